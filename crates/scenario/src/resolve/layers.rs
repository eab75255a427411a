//! Layers over the file: defaults < file < environment < flag, for the few values that may be overridden.

use crate::model::{Limit, Scenario};
use crate::read::Problems;
use crate::units::Micros;

/// Where a value in force comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Not in the file.
    Default,
    /// The scenario file, line from 1.
    File(u64),
    /// An environment variable.
    Environment(&'static str),
    /// A command-line flag.
    Flag(&'static str),
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(line) => write!(f, "file line {line}"),
            Self::Environment(name) => write!(f, "environment {name}"),
            Self::Flag(name) => write!(f, "flag {name}"),
        }
    }
}

/// A value that may be overridden.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// Seed of every draw.
    Seed,
    /// Length of the plan.
    Requests,
    /// Requests in flight of every step.
    Concurrency,
    /// Total time limit of a request.
    Timeout,
    /// Deadline of the passive drain.
    DrainTimeout,
}

impl Setting {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Seed, Self::Requests, Self::Concurrency, Self::Timeout, Self::DrainTimeout];

    /// Environment variable.
    #[must_use]
    pub const fn variable(self) -> &'static str {
        match self {
            Self::Seed => "PROOFLOAD_SEED",
            Self::Requests => "PROOFLOAD_REQUESTS",
            Self::Concurrency => "PROOFLOAD_CONCURRENCY",
            Self::Timeout => "PROOFLOAD_TIMEOUT",
            Self::DrainTimeout => "PROOFLOAD_DRAIN_TIMEOUT",
        }
    }

    /// Command-line flag.
    #[must_use]
    pub const fn flag(self) -> &'static str {
        match self {
            Self::Seed => "--seed",
            Self::Requests => "--requests",
            Self::Concurrency => "--concurrency",
            Self::Timeout => "--timeout",
            Self::DrainTimeout => "--drain-timeout",
        }
    }
}

/// Values of the layers above the file. A flag wins over an environment variable whichever is set first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    seed: Option<(u64, Source)>,
    requests: Option<(u64, Source)>,
    concurrency: Option<(u32, Source)>,
    timeout: Option<(Limit, Source)>,
    drain_timeout: Option<(Limit, Source)>,
}

impl Overrides {
    /// Reads the environment through `lookup`; unset variables change nothing.
    ///
    /// # Errors
    /// A message that names the variable.
    pub fn set_environment(&mut self, lookup: impl Fn(&str) -> Option<String>) -> Result<(), String> {
        for setting in Setting::ALL {
            let name = setting.variable();
            if let Some(text) = lookup(name) {
                self.set(setting, &text, Source::Environment(name))
                    .map_err(|why| format!("{name}: {why}"))?;
            }
        }
        Ok(())
    }

    /// Sets the value of a flag.
    ///
    /// # Errors
    /// A message that names the flag.
    pub fn set_flag(&mut self, setting: Setting, text: &str) -> Result<(), String> {
        let name = setting.flag();
        self.set(setting, text, Source::Flag(name)).map_err(|why| format!("{name}: {why}"))
    }

    fn set(&mut self, setting: Setting, text: &str, source: Source) -> Result<(), String> {
        let number = || {
            let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            let read = if plain { text.parse::<u64>().ok() } else { None };
            read.ok_or_else(|| format!("{text:?} is no whole number"))
        };
        let limit = || match text {
            "protocol" => Ok(Limit::Protocol),
            _ => Micros::parse(text).map(Limit::Time).map_err(|error| error.to_string()),
        };
        match setting {
            Setting::Seed => put(&mut self.seed, number()?, source),
            Setting::Requests => put(&mut self.requests, number()?, source),
            Setting::Concurrency => {
                let number = u32::try_from(number()?).map_err(|_| format!("{text:?} is too large"))?;
                put(&mut self.concurrency, number, source);
            }
            Setting::Timeout => put(&mut self.timeout, limit()?, source),
            Setting::DrainTimeout => put(&mut self.drain_timeout, limit()?, source),
        }
        Ok(())
    }

    /// The source of a value that a layer above the file gives.
    #[must_use]
    pub fn source(&self, setting: Setting) -> Option<&Source> {
        match setting {
            Setting::Seed => self.seed.as_ref().map(|(_, source)| source),
            Setting::Requests => self.requests.as_ref().map(|(_, source)| source),
            Setting::Concurrency => self.concurrency.as_ref().map(|(_, source)| source),
            Setting::Timeout => self.timeout.as_ref().map(|(_, source)| source),
            Setting::DrainTimeout => self.drain_timeout.as_ref().map(|(_, source)| source),
        }
    }

    pub(super) fn apply(&self, scenario: &mut Scenario, problems: &mut Problems<'_>) {
        if let Some((seed, _)) = self.seed {
            scenario.seed = seed;
        }
        if let Some((concurrency, _)) = self.concurrency {
            scenario.workload.steps.iter_mut().for_each(|step| step.concurrency = concurrency);
        }
        if let Some((timeout, _)) = self.timeout {
            scenario.workload.timeout = timeout;
        }
        if let Some((timeout, _)) = self.drain_timeout {
            scenario.drain.timeout = timeout;
        }
        let Some((requests, source)) = &self.requests else { return };
        let workload = &mut scenario.workload;
        let counted: Vec<usize> =
            (0..workload.steps.len()).filter(|i| workload.steps[*i].requests.is_some()).collect();
        match (counted.as_slice(), workload.steps.len()) {
            ([], _) => workload.max_requests = Some(*requests),
            ([only], 1) => {
                workload.steps[*only].requests = Some(*requests);
                workload.max_requests = Some(*requests);
            }
            _ => {
                let text = format!(
                    "{source} sets the number of requests, but the file has {} steps: change the steps instead",
                    workload.steps.len()
                );
                problems.add("workload.steps", text);
            }
        }
    }
}

fn put<T>(slot: &mut Option<(T, Source)>, value: T, source: Source) {
    let flag_stands = matches!(slot, Some((_, Source::Flag(_)))) && matches!(source, Source::Environment(_));
    if !flag_stands {
        *slot = Some((value, source));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_wins_over_the_environment_in_any_order() {
        let lookup = |name: &str| (name == "PROOFLOAD_SEED").then(|| "7".to_owned());
        let mut late = Overrides::default();
        late.set_environment(lookup).unwrap();
        late.set_flag(Setting::Seed, "9").unwrap();
        let mut early = Overrides::default();
        early.set_flag(Setting::Seed, "9").unwrap();
        early.set_environment(lookup).unwrap();
        assert_eq!(late, early);
        assert_eq!(late.source(Setting::Seed), Some(&Source::Flag("--seed")));
    }

    #[test]
    fn bad_values_name_their_source() {
        let mut overrides = Overrides::default();
        assert!(overrides.set_flag(Setting::Seed, "-1").unwrap_err().starts_with("--seed: "));
        assert!(overrides.set_flag(Setting::Timeout, "10").unwrap_err().contains("unit"));
        let error = overrides.set_environment(|_| Some("x".to_owned())).unwrap_err();
        assert!(error.starts_with("PROOFLOAD_SEED: "), "{error}");
    }
}

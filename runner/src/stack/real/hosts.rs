//! What runs the hosts: `versiond` with a network namespace for each, or bare `devshardd` on ports of its own; and with
//! which validation leases.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use scenario::model::{Resolved, Storage};

use super::super::postgres;
use super::super::reference::{LEASE_RETRY, LEASE_TTL};
use super::network;

/// Port of every `versiond` (contract hosts 1.2).
pub const VERSIOND_PORT: u16 = 8080;
/// How long a lease holds on a build that is told nothing, and the pause of its retry loop (contract hosts 1.3).
const THEIR_TTL: &str = "30m";
const THEIR_RETRY: &str = "5m";
/// Variables of a host that say so. What the user has set for the runner goes on to the hosts.
const TTL_VARIABLE: &str = "DEVSHARD_VALIDATION_LEASE_TTL";
const RETRY_VARIABLE: &str = "DEVSHARD_VALIDATION_RETRY_INTERVAL";

/// What starts the hosts (`--hosts-by`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum HostsBy {
    /// `versiond` where the folder holds it and the machine makes network namespaces, `devshardd` elsewhere.
    #[default]
    Auto,
    /// `versiond`, or nothing.
    Versiond,
    /// `devshardd` alone.
    Devshardd,
}

impl HostsBy {
    /// As on the command line and in `run.yaml`.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Versiond => "versiond",
            Self::Devshardd => "devshardd",
        }
    }

    /// What `run.yaml` names.
    #[must_use]
    pub fn of(word: &str) -> Option<Self> {
        <Self as clap::ValueEnum>::from_str(word, false).ok()
    }
}

/// The decision for one run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// `versiond` is in the path.
    pub versiond: bool,
    /// Why it is not, where the folder holds it and nobody asked for bare hosts.
    pub why_not: Option<String>,
}

/// Decides. What was asked for and can't be had is an error in words.
///
/// # Errors
/// In words, for `--hosts-by versiond` alone.
pub fn decide(
    asked: HostsBy,
    dir: &Path,
    resolved: &Resolved,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Decision, String> {
    let bare = |why_not| Decision { versiond: false, why_not };
    let here = dir.join("versiond").is_file();
    if asked == HostsBy::Devshardd || (asked == HostsBy::Auto && !here) {
        return Ok(bare(None));
    }
    let why = if here {
        out_of_reach(resolved, variable).or_else(network::not_here)
    } else {
        Some(format!("{} holds no versiond", dir.display()))
    };
    match why {
        None => Ok(Decision { versiond: true, why_not: None }),
        Some(why) if asked == HostsBy::Versiond => Err(format!("--hosts-by versiond: {why}")),
        Some(why) => Ok(bare(Some(why))),
    }
}

/// What a host in a namespace of its own could not reach or would not fit in.
fn out_of_reach(resolved: &Resolved, variable: impl Fn(&str) -> Option<String>) -> Option<String> {
    let devshard = &resolved.scenario.devshard;
    if devshard.participants * devshard.replicas > network::HOSTS_MAX {
        return Some(format!("a run has room for {} namespaces", network::HOSTS_MAX));
    }
    if devshard.storage != Storage::Postgres {
        return None;
    }
    match postgres::find(variable) {
        // A socket is a file, which every namespace sees.
        Ok(postgres::Source::Server { host, .. }) if !host.starts_with('/') => {
            Some(format!("PGHOST is {host}, which a network namespace does not reach; name a socket folder"))
        }
        _ => None,
    }
}

/// How validation leases are set on the hosts of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseSetting {
    /// Variables of every host.
    pub variables: BTreeMap<String, String>,
    /// How long a lease holds.
    pub ttl: Duration,
}

/// The setting: what the user's environment says; for replicas, whose scenarios are about leases that run out, the times
/// of the reference stack; else what the build would take by itself, said aloud, so that it is known.
///
/// # Errors
/// In words, when a variable is no duration as Go writes them.
pub fn leases(replicas: u32, variable: impl Fn(&str) -> Option<String>) -> Result<LeaseSetting, String> {
    let ours = |time: Duration| format!("{}ms", time.as_millis());
    let (ttl, retry) = if replicas > 1 {
        (ours(LEASE_TTL), ours(LEASE_RETRY))
    } else {
        (THEIR_TTL.to_owned(), THEIR_RETRY.to_owned())
    };
    let ttl = variable(TTL_VARIABLE).unwrap_or(ttl);
    let retry = variable(RETRY_VARIABLE).unwrap_or(retry);
    let read = |name: &str, text: &str| {
        go_duration(text).ok_or_else(|| format!("{name}={text:?} is no duration such as 30m, 10s or 250ms"))
    };
    read(RETRY_VARIABLE, &retry)?;
    let held = read(TTL_VARIABLE, &ttl)?;
    let variables = [(TTL_VARIABLE, ttl), (RETRY_VARIABLE, retry)];
    let variables = variables.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    Ok(LeaseSetting { variables, ttl: held })
}

/// A positive duration in Go's form with whole numbers, `1h30m`.
fn go_duration(text: &str) -> Option<Duration> {
    const UNITS: [(&str, u64); 4] = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000)];
    let mut rest = text;
    let mut total_ms = 0_u64;
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let number: u64 = rest.get(..digits)?.parse().ok()?;
        rest = rest.get(digits..)?;
        let (unit, ms) = UNITS.into_iter().find(|(unit, _)| rest.starts_with(unit))?;
        rest = rest.get(unit.len()..)?;
        total_ms = total_ms.checked_add(number.checked_mul(ms)?)?;
    }
    (total_ms > 0).then(|| Duration::from_millis(total_ms))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::{Overrides, load};

    fn resolved(storage: &str) -> Resolved {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let text = std::fs::read_to_string(root.join("scenarios/ml-5xx.yaml")).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("s.yaml");
        std::fs::write(&file, text.replace("storage: sqlite", &format!("storage: {storage}"))).unwrap();
        load(&file, &root.join("ml-profiles"), &Overrides::default()).unwrap().resolved
    }

    #[test]
    fn bare_hosts_are_chosen_where_versiond_is_not_and_asked_for_words_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let scenario = resolved("sqlite");
        let decided = |asked| decide(asked, dir.path(), &scenario, |_| None);
        assert_eq!(decided(HostsBy::Auto), Ok(Decision { versiond: false, why_not: None }));
        assert!(decided(HostsBy::Versiond).unwrap_err().contains("holds no versiond"));
        std::fs::write(dir.path().join("versiond"), "").unwrap();
        assert_eq!(decided(HostsBy::Devshardd), Ok(Decision { versiond: false, why_not: None }));
        // Whether this machine makes namespaces or not: one or the other is said.
        let auto = decided(HostsBy::Auto).unwrap();
        assert_eq!(auto.versiond, auto.why_not.is_none());
        assert_eq!(decided(HostsBy::Versiond).is_ok(), auto.versiond);
    }

    #[test]
    fn a_database_that_no_namespace_reaches_is_named() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("versiond"), "").unwrap();
        let at = |host: &'static str| move |name: &str| (name == "PGHOST").then(|| host.to_owned());
        let scenario = resolved("postgres");
        let tcp = decide(HostsBy::Auto, dir.path(), &scenario, at("127.0.0.1")).unwrap();
        assert!(!tcp.versiond && tcp.why_not.unwrap().contains("PGHOST is 127.0.0.1"));
        assert_eq!(out_of_reach(&scenario, at("/run/postgresql")), None);
    }

    #[test]
    fn words_of_the_choice_are_read_back() {
        for choice in [HostsBy::Auto, HostsBy::Versiond, HostsBy::Devshardd] {
            assert_eq!(HostsBy::of(choice.word()), Some(choice));
        }
    }

    #[test]
    fn leases_are_those_of_the_environment_then_of_replicas_then_of_the_build() {
        let set = |name: &str| (name == TTL_VARIABLE).then(|| "1h30m10s".to_owned());
        assert_eq!(leases(1, |_| None).unwrap().ttl, Duration::from_secs(1_800));
        assert_eq!(leases(2, |_| None).unwrap().ttl, LEASE_TTL);
        let own = leases(2, set).unwrap();
        assert_eq!(own.ttl, Duration::from_secs(5_410));
        assert_eq!(own.variables[TTL_VARIABLE], "1h30m10s");
        assert_eq!(own.variables[RETRY_VARIABLE], "250ms");
        for wrong in ["", "10", "-5s", "0s", "1.5h", "5 s", "ms"] {
            assert!(leases(1, |_| Some(wrong.to_owned())).is_err(), "{wrong:?}");
        }
    }
}

//! Step 0: parse strictly, resolve, expand the plan, name the run, look at the machine. Starts nothing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use evidence::EVIDENCE_VERSION;
use evidence::run::{LimitInForce, ReproOf, RunInfo};
use evidence::rundir::{PLAN, RUN, RunDir};
use scenario::build::BUILD_ID;
use scenario::digest::blake3_hex;
use scenario::identity::SALT_LEN;
use scenario::model::Resolved;

use super::carry::cannot_carry;
use super::preflight::{self, Machine};
use crate::clock::{random_bytes, unix_us};
use crate::error::RunnerError;
use crate::input;
use crate::judge::Known;
use crate::stack::Choice;
use crate::stack::programs::Programs;

/// Letters of run ids and salts: no vowels, so that no words come out, and nothing that needs quoting.
const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz0123456789";

/// What the command line chose.
#[derive(Clone, Debug)]
pub struct Options {
    /// Scenario file.
    pub scenario: PathBuf,
    /// Folder with profiles.
    pub profiles: PathBuf,
    /// Folder for results.
    pub results: PathBuf,
    /// Folder with programs.
    pub bin_dir: Option<PathBuf>,
    /// Values that override the file.
    pub overrides: input::Overrides,
    /// Personality and defect.
    pub choice: Choice,
    /// Named rules switched off.
    pub rules_off: Vec<String>,
    /// Known findings.
    pub known: Known,
}

/// A run that is ready to start.
#[derive(Debug)]
pub struct Prepared {
    /// Contents of `run.yaml`.
    pub info: RunInfo,
    /// Folder for results.
    pub results: PathBuf,
    /// Programs.
    pub programs: Programs,
    /// Personality and defect.
    pub choice: Choice,
    /// Known findings.
    pub known: Known,
}

impl Prepared {
    /// Reads the scenario and prepares a run of it.
    ///
    /// # Errors
    /// [`RunnerError::Usage`] for a bad file, [`RunnerError::CannotDo`] for what can't be done here,
    /// [`RunnerError::Environment`] for missing programs or a full disk.
    pub fn from_file(options: &Options) -> Result<Self, RunnerError> {
        let loaded = input::load(&options.scenario, &options.profiles, &options.overrides)?;
        let file = options.scenario.display().to_string();
        let limits = loaded.limits.clone();
        Self::of(loaded.resolved, (file, blake3_hex(&loaded.text)), limits, options, None)
    }

    /// Prepares a run of a scenario that is already resolved (`repro`).
    ///
    /// # Errors
    /// As [`Prepared::from_file`].
    pub fn of(
        resolved: Resolved,
        (scenario_file, scenario_file_blake3): (String, String),
        limits: Vec<LimitInForce>,
        options: &Options,
        repro_of: Option<ReproOf>,
    ) -> Result<Self, RunnerError> {
        if let Some(what) = options.choice.lacks() {
            return Err(RunnerError::Usage(format!("{what}; nothing was started")));
        }
        let provider = options.choice.provider();
        if let Some(why) = cannot_carry(&resolved).or_else(|| provider.cannot_do(&resolved)) {
            return Err(RunnerError::CannotDo(format!("{why}; nothing was started")));
        }
        let programs = Programs::find(options.bin_dir.as_deref(), &provider.programs(&resolved))?;
        results_folder(&options.results)?;
        preflight::require(&preflight::checks(&resolved, &Machine::look(&options.results)))?;
        let name = resolved.scenario.name.clone();
        let info = RunInfo {
            v: EVIDENCE_VERSION,
            run_id: run_id(&name)?,
            build: BUILD_ID.to_owned(),
            started_unix_us: 0,
            scenario_file,
            scenario_file_blake3,
            plan_hash: scenario::hash::plan_hash(&resolved),
            scenario_hash: scenario::hash::scenario_hash(&resolved),
            salt: letters(SALT_LEN)?,
            stack: provider.about(&resolved),
            programs: programs.identities(),
            limits,
            rules_off: options.rules_off.clone(),
            repro_of,
            machine: machine(),
            resolved,
        };
        Ok(Self {
            info,
            results: options.results.clone(),
            programs,
            choice: options.choice.clone(),
            known: options.known.clone(),
        })
    }

    /// Writes `run.yaml` and `plan.jsonl`.
    ///
    /// # Errors
    /// [`RunnerError::RunDir`].
    pub fn write(&self, dir: &RunDir) -> Result<(), RunnerError> {
        let text = serde_yaml::to_string(&self.info).map_err(|e| RunnerError::Internal(e.to_string()))?;
        dir.write_text(RUN, &text)?;
        let only = self.info.repro_of.as_ref().and_then(|of| of.only);
        let mut plan = dir.append(PLAN)?;
        for line in scenario::plan::lines(&self.info.resolved) {
            if only.is_some_and(|only| only != line.index) {
                continue;
            }
            plan.write_buffered(&line)?;
        }
        plan.flush()?;
        Ok(())
    }
}

/// A folder that can't be made or written would end the run before its first event.
fn results_folder(results: &Path) -> Result<(), RunnerError> {
    let failed = |error: std::io::Error| {
        let advice = "make it writable or give another --results";
        RunnerError::environment(format!("{}: {error}; {advice}; nothing was started", results.display()))
    };
    std::fs::create_dir_all(results).map_err(failed)?;
    tempfile::Builder::new().prefix(".proofload-").tempfile_in(results).map(drop).map_err(failed)
}

/// `<UTC time>-<scenario>-<six characters>`.
fn run_id(scenario: &str) -> Result<String, RunnerError> {
    let seconds = i64::try_from(unix_us() / 1_000_000).unwrap_or_default();
    let now = time::OffsetDateTime::from_unix_timestamp(seconds)
        .map_err(|error| RunnerError::Internal(error.to_string()))?;
    let (date, clock) = (now.date(), now.time());
    Ok(format!(
        "{:04}{:02}{:02}T{:02}{:02}{:02}Z-{scenario}-{}",
        date.year(),
        u8::from(date.month()),
        date.day(),
        clock.hour(),
        clock.minute(),
        clock.second(),
        letters(6)?
    ))
}

/// At most 32 letters of chance for names that must not meet.
///
/// # Errors
/// [`RunnerError::Environment`] when the operating system gives no random bytes.
pub(super) fn letters(count: usize) -> Result<String, RunnerError> {
    let bytes: [u8; 32] =
        random_bytes().map_err(|error| RunnerError::environment(format!("reading random bytes: {error}")))?;
    Ok(bytes.iter().take(count).map(|byte| char::from(LETTERS[usize::from(*byte) % LETTERS.len()])).collect())
}

fn machine() -> BTreeMap<String, String> {
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let about = rustix::system::uname();
    let memory = rustix::system::sysinfo();
    BTreeMap::from([
        ("cores".to_owned(), cores.to_string()),
        ("kernel".to_owned(), about.release().to_string_lossy().into_owned()),
        ("memory_bytes".to_owned(), (memory.totalram * u64::from(memory.mem_unit)).to_string()),
    ])
}

//! `runner stack plan` and the reaper.

use std::path::Path;

use compose_engine::lease::Lease;
use evidence::exit::Outcome;

use crate::commands::run::block_on;
use crate::error::RunnerError;
use crate::input;
use crate::life::prepare::Options;
use crate::stack::compose::project::Folders;
use crate::stack::compose::{lease, plan_of};
use crate::stack::reference::Keys;

/// Prints the plan of a scenario's project. Nothing is started and no engine is asked.
///
/// # Errors
/// [`RunnerError`] for a scenario or Compose file that can't be used.
pub fn plan(options: &Options, as_json: bool) -> Result<Outcome, RunnerError> {
    let loaded = input::load(&options.scenario, &options.profiles, &options.overrides)?;
    let keys = Keys::fresh(&loaded.resolved)?;
    let folder = tempfile::tempdir()
        .map_err(|error| RunnerError::environment(format!("making a temporary directory: {error}")))?;
    let folders = Folders {
        work: folder.path().join("work"),
        run: folder.path().to_path_buf(),
        context: folder.path().join("image"),
        postgres: folder.path().join("image-postgres"),
        postgres_bin: std::path::PathBuf::new(),
        private: folder.path().join("private"),
    };
    let plan = plan_of(&loaded.resolved, &options.choice, &keys, &folders)?;
    if as_json {
        let text = serde_json::to_string_pretty(&plan).map_err(|e| RunnerError::Internal(e.to_string()))?;
        crate::view::say(&text);
    } else {
        plan.lines().iter().for_each(|line| crate::view::say(line));
        crate::view::say(&format!("plan {}", plan.hash()));
    }
    Ok(Outcome::Pass)
}

/// Runs the reaper of a lease to its end.
///
/// # Errors
/// [`RunnerError::Environment`] when the engine does not answer for long.
pub fn reaper(path: &Path) -> Result<Outcome, RunnerError> {
    if Lease::read(path).is_none() {
        return Err(RunnerError::Usage(format!("{} is no lease", path.display())));
    }
    block_on(lease::reap(path))??;
    Ok(Outcome::Pass)
}

//! `runner gc`: leftovers of dead runs. On the embedded stack the guard ends every process, so that only a temporary
//! directory can be left when the runner was killed; on the Compose stack the reaper removes what carries the run's
//! label, and this command what even a reaper could not.

use std::path::PathBuf;

use evidence::exit::Outcome;

use crate::commands::run::block_on;
use crate::error::RunnerError;
use crate::life::run::{OWNER_FILE, WORK_PREFIX};
use crate::stack::compose::connect;
use crate::stack::compose::lease::collect;

/// Removes work directories whose owner is dead.
///
/// # Errors
/// [`RunnerError::Environment`] when one can't be removed, or the engine that was named does not answer.
pub fn gc(dry_run: bool, engine: Option<String>) -> Result<Outcome, RunnerError> {
    let mut found = block_on(on_engine(dry_run, engine))??;
    for path in dead_work_directories() {
        found += 1;
        if dry_run {
            crate::view::say(&format!("would remove {}", path.display()));
            continue;
        }
        std::fs::remove_dir_all(&path)
            .map_err(|error| RunnerError::environment(format!("removing {}: {error}", path.display())))?;
        crate::view::say(&format!("removed {}", path.display()));
    }
    if found == 0 {
        crate::view::say("nothing left behind");
    }
    Ok(Outcome::Pass)
}

/// Looks at the engine, when there is one; gives the number of runs that it holds objects of.
async fn on_engine(dry_run: bool, flag: Option<String>) -> Result<usize, RunnerError> {
    let named = flag.is_some();
    let engine = match connect(flag).await {
        Ok(engine) => engine,
        // A machine without an engine has no containers of ours.
        Err(_) if !named => return Ok(0),
        Err(error) => return Err(error),
    };
    let lines = collect(&engine, dry_run).await?;
    lines.iter().for_each(|line| crate::view::say(&line.to_string()));
    Ok(lines.len())
}

/// Work directories of ours whose owner process is gone or is another one by now.
#[must_use]
pub fn dead_work_directories() -> Vec<PathBuf> {
    let Ok(list) = std::fs::read_dir(std::env::temp_dir()) else { return Vec::new() };
    list.flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(WORK_PREFIX))
        .map(|entry| entry.path())
        .filter(|path| {
            // Without an owner file it is not ours to judge.
            let Ok(owner) = std::fs::read_to_string(path.join(OWNER_FILE)) else { return false };
            let Some((pid, ticks)) = owner.trim().split_once(' ') else { return false };
            let now = pid.parse().ok().and_then(crate::guard::tree::start_ticks);
            now.map(|ticks| ticks.to_string()).as_deref() != Some(ticks)
        })
        .collect()
}

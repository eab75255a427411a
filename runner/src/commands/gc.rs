//! `runner gc`: leftovers of dead runs. On the embedded stack the guard ends every process, so that only a temporary
//! directory can be left when the runner was killed.

use std::path::PathBuf;

use evidence::exit::Outcome;

use crate::error::RunnerError;
use crate::life::run::{OWNER_FILE, WORK_PREFIX};

/// Removes work directories whose owner is dead.
///
/// # Errors
/// [`RunnerError::Environment`] when one can't be removed.
pub fn gc(dry_run: bool) -> Result<Outcome, RunnerError> {
    let mut found = 0;
    for path in dead_work_directories() {
        found += 1;
        if dry_run {
            println!("would remove {}", path.display());
            continue;
        }
        std::fs::remove_dir_all(&path)
            .map_err(|error| RunnerError::environment(format!("removing {}: {error}", path.display())))?;
        println!("removed {}", path.display());
    }
    if found == 0 {
        println!("nothing left behind");
    }
    Ok(Outcome::Pass)
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

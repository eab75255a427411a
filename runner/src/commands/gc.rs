//! `runner gc`: leftovers of dead runs. On the embedded stack the guard ends every process and removes the private
//! directory, so that something is left only when runner and guard were killed together: the directory, and programs of
//! others (ours end with the guard's pipe); their network namespaces and links end with them. On the Compose stack the
//! reaper removes what carries the run's label, and this command what even a reaper could not.

use std::path::{Path, PathBuf};
use std::time::Duration;

use evidence::exit::Outcome;
use rustix::process::Signal;

use crate::commands::run::block_on;
use crate::error::RunnerError;
use crate::guard::tree;
use crate::life::run::{OWNER_FILE, OWNER_VARIABLE, WORK_PREFIX};
use crate::stack::compose::connect;
use crate::stack::compose::lease::collect;

/// Looks for processes of a dead run before it is given up, and the pause between them.
const LOOKS_MAX: u32 = 50;
const LOOK_PAUSE: Duration = Duration::from_millis(100);

/// Removes work directories whose owner is dead.
///
/// # Errors
/// [`RunnerError::Environment`] when one can't be removed, or the engine that was named does not answer.
pub fn gc(dry_run: bool, engine: Option<String>) -> Result<Outcome, RunnerError> {
    let mut found = block_on(on_engine(dry_run, engine))??;
    for path in dead_work_directories() {
        found += 1;
        end_processes(&path, dry_run)?;
        if dry_run {
            crate::view::say(&format!("would remove {}", path.display()));
            continue;
        }
        match std::fs::remove_dir_all(&path) {
            // Another one looks for leftovers at the same time: gone is what both want.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            removed => removed
                .map_err(|error| RunnerError::environment(format!("removing {}: {error}", path.display())))?,
        }
        crate::view::say(&format!("removed {}", path.display()));
    }
    if found == 0 {
        crate::view::say("nothing left behind");
    }
    Ok(Outcome::Pass)
}

/// Ends what still runs for a dead run. Its processes go before its directory: without that nobody finds them again.
fn end_processes(work: &Path, dry_run: bool) -> Result<(), RunnerError> {
    let value = work.display().to_string();
    for _ in 0..LOOKS_MAX {
        let left = tree::with_variable(OWNER_VARIABLE, &value);
        if left.is_empty() {
            return Ok(());
        }
        for pid in &left {
            crate::view::say(&format!("{} process {pid}", if dry_run { "would end" } else { "ends" }));
        }
        if dry_run {
            return Ok(());
        }
        left.into_iter().for_each(|pid| tree::signal(pid, Signal::KILL));
        // What they had begun to start in between is there at the next look.
        std::thread::sleep(LOOK_PAUSE);
    }
    Err(RunnerError::environment(format!("processes of {value} do not end; look for them with `ps`")))
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
            let now = pid.parse().ok().and_then(tree::start_ticks);
            now.map(|ticks| ticks.to_string()).as_deref() != Some(ticks)
        })
        .collect()
}

//! One file per command.

pub mod analyze;
pub mod catalogue;
pub mod compare;
pub mod gc;
pub mod list;
pub mod plan;
pub mod repro;
pub mod run;
mod sabotage;
pub mod selftest;
pub mod stack;

use std::path::{Path, PathBuf};

use evidence::run::ReproOf;
use evidence::rundir::RUN;

use crate::error::RunnerError;

/// Finds a run directory by id, unique part of an id, `last` (the newest that is no replay), or path.
///
/// # Errors
/// [`RunnerError::Usage`] when nothing or more than one run matches.
pub fn find_run(results: &Path, name: &str) -> Result<PathBuf, RunnerError> {
    let path = Path::new(name);
    if path.join(RUN).is_file() {
        return Ok(path.to_path_buf());
    }
    let runs = runs(results)?;
    if name == "last" {
        // A replay is looked at by the id that `repro` printed: `repro last A` and `repro last B` are about one run.
        return runs
            .iter()
            .rev()
            .map(|run| results.join(run))
            .find(|run| replay_of(run).is_none())
            .ok_or_else(|| RunnerError::Usage(format!("{} holds no run but replays", results.display())));
    }
    let matching: Vec<&String> = runs.iter().filter(|run| run.contains(name)).collect();
    match matching.as_slice() {
        [one] => Ok(results.join(one)),
        [] => Err(RunnerError::Usage(format!(
            "no run {name:?} in {}; `runner list` shows the runs there are",
            results.display()
        ))),
        several => Err(RunnerError::Usage(format!(
            "{name:?} is part of {} runs, for example {} and {}; give more of it",
            several.len(),
            several[0],
            several[1]
        ))),
    }
}

/// What a run repeats, by its `run.yaml`; `None` also for one that can't be read, which other commands say.
#[must_use]
pub fn replay_of(run: &Path) -> Option<ReproOf> {
    #[derive(serde::Deserialize)]
    struct Told {
        #[serde(default)]
        repro_of: Option<ReproOf>,
    }
    let text = std::fs::read_to_string(run.join(RUN)).ok()?;
    serde_yaml::from_str::<Told>(&text).ok()?.repro_of
}

/// Run ids in a results folder, oldest first (ids begin with their time).
///
/// # Errors
/// [`RunnerError::Usage`] when the folder can't be read.
pub fn runs(results: &Path) -> Result<Vec<String>, RunnerError> {
    let list = std::fs::read_dir(results).map_err(|error| {
        RunnerError::Usage(format!("reading {}: {error}; give --results", results.display()))
    })?;
    let mut runs: Vec<String> = list
        .flatten()
        .filter(|entry| entry.path().join(RUN).is_file())
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    runs.sort_unstable();
    Ok(runs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_run_is_no_replay() {
        let folder = tempfile::tempdir().unwrap();
        let run = |id: &str, text: &str| {
            std::fs::create_dir(folder.path().join(id)).unwrap();
            std::fs::write(folder.path().join(id).join(RUN), text).unwrap();
        };
        run("1-first", "v: 1\n");
        run("2-second", "v: 1\n");
        run("3-replay", "v: 1\nrepro_of:\n  run_id: 2-second\n  failure: request-7\n");
        assert_eq!(find_run(folder.path(), "last").unwrap(), folder.path().join("2-second"));
        assert_eq!(replay_of(&folder.path().join("3-replay")).unwrap().failure, "request-7");
        assert_eq!(find_run(folder.path(), "replay").unwrap(), folder.path().join("3-replay"));
        assert!(find_run(folder.path(), "-").is_err(), "part of three");
    }
}

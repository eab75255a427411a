//! One file per command.

pub mod analyze;
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

use evidence::rundir::RUN;

use crate::error::RunnerError;

/// Finds a run directory by id, unique part of an id, `last`, or path.
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
        return runs
            .last()
            .map(|run| results.join(run))
            .ok_or_else(|| RunnerError::Usage(format!("{} holds no run", results.display())));
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

//! `runner list` and `runner show`.

use std::io::Write;
use std::path::Path;

use evidence::assertion::Assertions;
use evidence::exit::Outcome;
use evidence::rundir::{ASSERTIONS, RunReader, SUMMARY};
use evidence::summary::Summary;

use super::{find_run, runs};
use crate::error::RunnerError;

/// One line a run, newest first.
///
/// # Errors
/// [`RunnerError::Usage`] when the folder can't be read.
pub fn list(results: &Path) -> Result<Outcome, RunnerError> {
    let mut out = std::io::stdout().lock();
    for run in runs(results)?.into_iter().rev() {
        let summary: Option<Summary> = RunReader::new(results.join(&run)).json(SUMMARY).ok().flatten();
        let line = summary.map_or_else(
            || format!("{run}  not judged (`runner analyze {run}` says what is missing)"),
            |summary| format!("{run}  {:<12} {} requests", summary.verdict.word(), summary.client.sent),
        );
        if writeln!(out, "{line}").is_err() {
            break;
        }
    }
    Ok(Outcome::Pass)
}

/// The summary of one run.
///
/// # Errors
/// [`RunnerError::Usage`] when there is no such run, or when it was never judged.
pub fn show(results: &Path, name: &str) -> Result<Outcome, RunnerError> {
    let root = find_run(results, name)?;
    let reader = RunReader::new(&root);
    let unread = |what: &str| {
        RunnerError::Usage(format!("{}: no readable {what}; `runner analyze` writes it", root.display()))
    };
    let summary: Summary = reader.json(SUMMARY).ok().flatten().ok_or_else(|| unread(SUMMARY))?;
    let assertions: Assertions = reader.json(ASSERTIONS).ok().flatten().ok_or_else(|| unread(ASSERTIONS))?;
    println!("{}", report::text::summary(&summary, &assertions, &root.display().to_string()));
    Ok(Outcome::Pass)
}

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

/// How a run is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// The page that a run prints at its end.
    Text,
    /// For a pull request.
    Markdown,
    /// JUnit XML, as `run --junit` writes it.
    Junit,
}

/// One run, to standard output. Text is what was written; the other forms are made from the evidence.
///
/// # Errors
/// [`RunnerError::Usage`] when there is no such run, or when it was never judged.
pub fn show(results: &Path, name: &str, format: Format) -> Result<Outcome, RunnerError> {
    let root = find_run(results, name)?;
    let reader = RunReader::new(&root);
    if format != Format::Text {
        let judged = verdict::judge::judge(&reader).map_err(|none| RunnerError::Usage(none.0))?;
        let report = crate::pages::run_report(&judged);
        let text = match format {
            Format::Markdown => report::run::markdown(&report),
            _ => report::run::junit(&report),
        };
        // A closed pipe is no error of ours.
        drop(std::io::stdout().lock().write_all(text.as_bytes()));
        return Ok(Outcome::Pass);
    }
    let unread = |what: &str| {
        RunnerError::Usage(format!("{}: no readable {what}; `runner analyze` writes it", root.display()))
    };
    let summary: Summary = reader.json(SUMMARY).ok().flatten().ok_or_else(|| unread(SUMMARY))?;
    let assertions: Assertions = reader.json(ASSERTIONS).ok().flatten().ok_or_else(|| unread(ASSERTIONS))?;
    crate::view::say(&format!(
        "{}",
        report::text::summary(&summary, &assertions, &root.display().to_string())
    ));
    Ok(Outcome::Pass)
}

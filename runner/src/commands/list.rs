//! `runner list` and `runner show`.

use std::io::Write;
use std::path::Path;

use evidence::EVIDENCE_VERSION;
use evidence::assertion::Assertions;
use evidence::exit::Outcome;
use evidence::rundir::{ASSERTIONS, RunReader, SUMMARY};
use evidence::summary::Summary;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::{find_run, replay_of, runs};
use crate::error::RunnerError;

/// One line a run, newest first.
///
/// # Errors
/// [`RunnerError::Usage`] when the folder can't be read.
pub fn list(results: &Path) -> Result<Outcome, RunnerError> {
    let mut out = std::io::stdout().lock();
    for run in runs(results)?.into_iter().rev() {
        let path = results.join(&run);
        let replay = replay_of(&path).map(|of| format!("  replay of {} in {}", of.failure, of.run_id));
        let line = line(&RunReader::new(path), &run) + &replay.unwrap_or_default();
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

fn line(reader: &RunReader, run: &str) -> String {
    match read::<Summary>(reader, SUMMARY) {
        Ok(summary) => format!("{run}  {:<12} {} requests", summary.verdict.word(), summary.client.sent),
        Err(Unread::Newer(version)) => format!("{run}  {}", newer(SUMMARY, version)),
        Err(Unread::Absent) => format!("{run}  not judged (`runner analyze {run}` says what is missing)"),
        Err(Unread::Damaged(why)) => format!("{run}  {SUMMARY} is damaged: {why}"),
    }
}

/// Why an artifact could not be shown.
enum Unread {
    Absent,
    Newer(u32),
    Damaged(String),
}

/// Reads an artifact; the version comes first, since a newer one need not have the fields that this build knows.
fn read<T: DeserializeOwned>(reader: &RunReader, name: &str) -> Result<T, Unread> {
    #[derive(Deserialize)]
    struct Version {
        v: u32,
    }
    let damaged = |bad: evidence::rundir::BadLine| Unread::Damaged(bad.why);
    let version: Version = reader.json(name).map_err(damaged)?.ok_or(Unread::Absent)?;
    if version.v > EVIDENCE_VERSION {
        return Err(Unread::Newer(version.v));
    }
    reader.json(name).map_err(damaged)?.ok_or(Unread::Absent)
}

fn newer(name: &str, version: u32) -> String {
    format!(
        "{name} has format version {version}, this build reads up to {EVIDENCE_VERSION}: use a newer runner"
    )
}

/// One run, to standard output. Text is what was written; the other forms are made from the evidence.
///
/// # Errors
/// [`RunnerError::Usage`] when there is no such run, when it was never judged, or when a newer build judged it.
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
    let unread = |what: &str, why: Unread| {
        let why = match why {
            Unread::Absent => format!("no {what}; `runner analyze` writes it"),
            Unread::Newer(version) => newer(what, version),
            Unread::Damaged(why) => format!("{what} is damaged: {why}; `runner analyze` writes it anew"),
        };
        RunnerError::Usage(format!("{}: {why}", root.display()))
    };
    let summary: Summary = read(&reader, SUMMARY).map_err(|why| unread(SUMMARY, why))?;
    let assertions: Assertions = read(&reader, ASSERTIONS).map_err(|why| unread(ASSERTIONS, why))?;
    crate::view::say(&report::text::summary(&summary, &assertions, &root.display().to_string()));
    Ok(Outcome::Pass)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_newer_or_damaged_summary_is_said_to_be_so() {
        let base = tempfile::tempdir().unwrap();
        let reader = RunReader::new(base.path());
        assert!(line(&reader, "r").contains("not judged"));
        for (text, wanted) in [("{\"v\": 99, \"shape\": \"new\"}", "format version 99"), ("{", "damaged")] {
            std::fs::write(base.path().join(SUMMARY), text).unwrap();
            assert!(line(&reader, "r").contains(wanted), "{}", line(&reader, "r"));
        }
    }
}

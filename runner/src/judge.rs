//! Step 8: the verdict over the files, then bundles, then the summary, then the manifest.

use std::collections::BTreeMap;
use std::path::Path;

use evidence::event::Phase;
use evidence::exit::Outcome;
use evidence::known::KnownFindings;
use evidence::rundir::{ASSERTIONS, RunDir, RunReader, SUMMARY};
use verdict::judge::{Judgement, NoRun};

use crate::bundle;
use crate::clock;
use crate::error::RunnerError;

/// The known-findings file of a command, and whether its findings may end green.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// The file, read.
    pub findings: Option<KnownFindings>,
    /// `--accept-known`.
    pub accept: bool,
}

impl Known {
    /// Reads the file before anything is started.
    ///
    /// # Errors
    /// [`RunnerError::Usage`] with the place of what is wrong, or when there is nothing that could be accepted.
    pub fn read(file: Option<&Path>, accept: bool) -> Result<Self, RunnerError> {
        let Some(path) = file else {
            if accept {
                let text = "--accept-known needs --known-findings FILE: what is known must be written down";
                return Err(RunnerError::Usage(text.to_owned()));
            }
            return Ok(Self::default());
        };
        let text = std::fs::read_to_string(path)
            .map_err(|source| RunnerError::Read { path: path.to_path_buf(), source })?;
        let findings =
            verdict::known::parse(&path.display().to_string(), &text).map_err(RunnerError::Usage)?;
        Ok(Self { findings: Some(findings), accept })
    }
}

/// Judges a directory, prints the page, and writes `assertions.json`, `failures/`, `summary.json` and `manifest.json`.
/// Gives the outcome that the command ends with. What can't be written does not keep the rest from being written and
/// printed; the error comes at the end.
///
/// # Errors
/// [`RunnerError::RunDir`] when an artifact can't be written; [`RunnerError::Environment`] when nothing is known about
/// the run.
pub fn judge(dir: &RunDir, known: &Known, phases_us: &BTreeMap<Phase, u64>) -> Result<Outcome, RunnerError> {
    let reader = RunReader::new(dir.root());
    let mut judged = verdict::judge::judge(&reader).map_err(|NoRun(why)| RunnerError::environment(why))?;
    // The phase that is going on now is not in the events yet.
    for (phase, took_us) in phases_us {
        if let Ok(serde_json::Value::String(name)) = serde_json::to_value(phase) {
            judged.summary.phases_us.entry(name).or_insert(*took_us);
        }
    }
    conclude(dir, judged, known, true)
}

/// What follows a judgement, for `run` and `analyze` alike.
///
/// # Errors
/// [`RunnerError::RunDir`] when an artifact can't be written.
pub fn conclude(
    dir: &RunDir,
    mut judged: Judgement,
    known: &Known,
    manifest: bool,
) -> Result<Outcome, RunnerError> {
    let outcome = apply(&mut judged, known);
    let place = dir.root().display().to_string();
    crate::view::say(&report::text::summary(&judged.summary, &judged.assertions, &place));
    write(dir, &judged)?;
    if manifest {
        let dropped = match judged.failures_dropped {
            0 => Vec::new(),
            count => vec![format!("{count} failures without a bundle of their own")],
        };
        dir.write_manifest(&judged.evidence.run.run_id, dropped)?;
    }
    Ok(outcome)
}

/// Holds the failures against the known ones; the verdict stays, the exit code may not.
fn apply(judged: &mut Judgement, known: &Known) -> Outcome {
    let verdict = judged.assertions.verdict;
    let Some(findings) = &known.findings else { return verdict };
    let report = verdict::known::compare(judged, findings, &clock::today(), known.accept);
    let outcome = if report.accepted { verdict::known::outcome_without(&judged.assertions) } else { verdict };
    judged.summary.known = Some(report);
    judged.summary.exit_code = outcome.code();
    outcome
}

/// Writes what was judged: first the verdict, then the page about the run, then one bundle after the other. The first
/// error is given back when all was tried.
///
/// # Errors
/// [`RunnerError::RunDir`].
pub fn write(dir: &RunDir, judged: &Judgement) -> Result<(), RunnerError> {
    let verdict = dir.write_json(ASSERTIONS, &judged.assertions);
    let summary = dir.write_json(SUMMARY, &judged.summary);
    let bundles = bundle::write_all(dir, judged);
    let page = crate::pages::write_page(dir, judged);
    verdict?;
    summary?;
    bundles?;
    page
}

//! Step 8: the verdict over the files, then bundles, then the summary, then the manifest.

use std::collections::BTreeMap;

use evidence::event::Phase;
use evidence::exit::Outcome;
use evidence::run::RunInfo;
use evidence::rundir::{ASSERTIONS, RunDir, RunReader, SUMMARY};
use verdict::judge::Judgement;

use crate::bundle;
use crate::error::RunnerError;

/// Judges a directory and writes `assertions.json`, `failures/`, `summary.json` and `manifest.json`.
///
/// # Errors
/// [`RunnerError::RunDir`] when an artifact can't be written.
pub fn judge(
    dir: &RunDir,
    _info: &RunInfo,
    phases_us: &BTreeMap<Phase, u64>,
) -> Result<Outcome, RunnerError> {
    let reader = RunReader::new(dir.root());
    let mut judged = verdict::judge::judge(&reader).map_err(|none| RunnerError::environment(none.0))?;
    // The phase that is going on now is not in the events yet.
    for (phase, took_us) in phases_us {
        if let Ok(serde_json::Value::String(name)) = serde_json::to_value(phase) {
            judged.summary.phases_us.entry(name).or_insert(*took_us);
        }
    }
    write(dir, &judged)?;
    let dropped = match judged.failures_dropped {
        0 => Vec::new(),
        count => vec![format!("{count} failures without a bundle of their own")],
    };
    dir.write_manifest(&judged.evidence.run.run_id, dropped)?;
    crate::view::say(&format!(
        "{}",
        report::text::summary(&judged.summary, &judged.assertions, &dir.root().display().to_string())
    ));
    Ok(judged.assertions.verdict)
}

/// Writes what was judged.
///
/// # Errors
/// [`RunnerError::RunDir`].
pub fn write(dir: &RunDir, judged: &Judgement) -> Result<(), RunnerError> {
    dir.write_json(ASSERTIONS, &judged.assertions)?;
    bundle::write_all(dir, judged)?;
    dir.write_json(SUMMARY, &judged.summary)?;
    crate::pages::write_page(dir, judged)
}

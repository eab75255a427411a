//! `runner analyze`: judge stored evidence again.

use std::path::Path;

use evidence::exit::Outcome;
use evidence::rundir::{RunDir, RunReader};

use super::find_run;
use crate::error::RunnerError;

/// Judges and rewrites `assertions.json`, `failures/` and `summary.json`. The same build writes the same bytes.
///
/// # Errors
/// [`RunnerError::Usage`] when there is no such run.
pub fn analyze(results: &Path, name: &str) -> Result<Outcome, RunnerError> {
    let root = find_run(results, name)?;
    let reader = RunReader::new(&root);
    let judged = verdict::judge::judge(&reader).map_err(|none| RunnerError::Usage(none.0))?;
    let dir = RunDir::existing(root.clone());
    crate::judge::write(&dir, &judged)?;
    dir.write_manifest(&judged.evidence.run.run_id, Vec::new())?;
    crate::view::say(&format!(
        "{}",
        report::text::summary(&judged.summary, &judged.assertions, &root.display().to_string())
    ));
    Ok(judged.assertions.verdict)
}

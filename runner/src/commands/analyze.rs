//! `runner analyze`: judge stored evidence again.

use std::path::Path;

use evidence::exit::Outcome;
use evidence::manifest::Manifest;
use evidence::rundir::{MANIFEST, RunDir, RunReader};
use verdict::judge::{NoRun, judge_beside};

use super::find_run;
use crate::error::RunnerError;
use crate::judge::{Known, conclude};

/// Judges and rewrites `assertions.json`, `failures/` and `summary.json`. The same build writes the same bytes. Evidence
/// that is not what the manifest says counts as missing: it was cut or changed since the run. Any such file, whoever reads
/// it, leaves the validity of the run unknown.
///
/// # Errors
/// [`RunnerError::Usage`] when there is no such run, [`RunnerError::RunDir`] when a file can't be written.
pub fn analyze(results: &Path, name: &str, known: &Known) -> Result<Outcome, RunnerError> {
    let root = find_run(results, name)?;
    let reader = RunReader::new(&root);
    let changed = match reader.json::<Manifest>(MANIFEST) {
        Ok(Some(manifest)) => manifest.changed(&root),
        // A runner that was killed wrote none; where it wrote one, somebody took it away.
        Ok(None) => {
            vec![(MANIFEST.to_owned(), "absent: what was changed since the run can't be told".to_owned())]
        }
        Err(bad) => {
            let why = format!("damaged ({}): what was changed since the run can't be told", bad.why);
            vec![(MANIFEST.to_owned(), why)]
        }
    };
    // What can't be vouched for gets no new manifest either.
    let whole = changed.is_empty();
    let judged = judge_beside(&reader, changed).map_err(|NoRun(why)| RunnerError::Usage(why))?;
    // A manifest that finds changes is evidence itself: it stays as it is.
    conclude(&RunDir::existing(root), judged, known, whole)
}

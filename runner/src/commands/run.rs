//! `runner run`.

use std::path::Path;

use evidence::exit::Outcome;
use evidence::rundir::RunReader;

use crate::error::RunnerError;
use crate::life::prepare::{Options, Prepared};

/// Runs a scenario.
///
/// # Errors
/// [`RunnerError`] before the start, also when the JUnit file can't be written, or when the run directory can't be used.
pub fn run(options: &Options, quiet: bool, junit: Option<&Path>) -> Result<Outcome, RunnerError> {
    let prepared = Prepared::from_file(options)?;
    // Before minutes of load, not after them.
    if let Some(path) = junit {
        std::fs::OpenOptions::new().create(true).append(true).open(path).map_err(|error| {
            let text = format!("--junit {}: {error}; name a file in a folder that exists", path.display());
            RunnerError::Usage(text)
        })?;
    }
    let finished = block_on(crate::life::run::run(prepared, quiet))??;
    if let Some(path) = junit {
        // From the files, like every other reading of a run, so that both say the same.
        let judged = verdict::judge::judge(&RunReader::new(&finished.dir))
            .map_err(|none| RunnerError::environment(none.0))?;
        crate::pages::write_junit(path, &judged)?;
    }
    Ok(finished.outcome)
}

/// Runs a future on a runtime of its own.
///
/// # Errors
/// [`RunnerError::Environment`] when no runtime can be made.
pub fn block_on<T>(work: impl Future<Output = T>) -> Result<T, RunnerError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| RunnerError::environment(format!("starting the runtime: {error}")))?;
    Ok(runtime.block_on(work))
}

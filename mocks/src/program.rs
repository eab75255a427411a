//! Body of the mock programs: runtime, log, exit status.

use std::future::Future;
use std::process::ExitCode;

use tokio::runtime::Builder;
use tracing_subscriber::EnvFilter;

use crate::process::MockError;

/// Body of a program: runtime, log to standard error, exit status.
pub fn main(program: &str, run: impl Future<Output = Result<(), MockError>>) -> ExitCode {
    main_on(program, Builder::new_multi_thread(), run)
}

/// As [`main`], on a number of threads; one means that everything runs on the caller's.
pub fn main_on_threads(
    program: &str,
    threads: usize,
    run: impl Future<Output = Result<(), MockError>>,
) -> ExitCode {
    let mut builder = Builder::new_multi_thread();
    if threads <= 1 {
        builder = Builder::new_current_thread();
    } else {
        builder.worker_threads(threads);
    }
    main_on(program, builder, run)
}

fn main_on(
    program: &str,
    mut builder: Builder,
    run: impl Future<Output = Result<(), MockError>>,
) -> ExitCode {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let runtime = match builder.enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            tracing::error!(%error, "{program} can't start its threads");
            return ExitCode::from(5);
        }
    };
    let done = runtime.block_on(run);
    // The thread that reads standard input can't be woken; waiting for it would hold the end up.
    runtime.shutdown_background();
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{program}: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}

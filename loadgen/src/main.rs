//! Program `loadgen`: a thin shell over the library.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

/// Sends chat requests to an LLM gateway in a closed loop and records each one.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    /// Job file of the runner: the load of a plan, commanded over standard input.
    #[arg(long, value_name = "FILE")]
    job: Option<PathBuf>,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match cli.job {
        Some(job) => ExitCode::from(loadgen::plan_mode::run(&job)),
        None => ExitCode::from(2),
    }
}

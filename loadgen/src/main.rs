//! Program `loadgen`: a thin shell over the library.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use loadgen::standalone::Flags;

/// Sends chat requests to an LLM gateway in a closed loop and records each one.
///
/// With --job it runs the plan of a runner, which commands it over standard input. Without, the flags say what to
/// send. A client key comes in the environment variable PROOFLOAD_CLIENT_KEY; proxy variables are ignored.
#[derive(Debug, Parser)]
#[command(version = scenario::build::BUILD_ID)]
struct Cli {
    /// Job file of a runner; no other flag goes with it.
    #[arg(long, value_name = "FILE", exclusive = true)]
    job: Option<PathBuf>,
    #[command(flatten)]
    flags: Option<Flags>,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match (cli.job, cli.flags) {
        (Some(job), _) => ExitCode::from(loadgen::plan_mode::run(&job)),
        (None, Some(flags)) => ExitCode::from(loadgen::standalone::run(&flags)),
        (None, None) => {
            eprintln!(
                "loadgen: give --job FILE, or --gateway-url, --model, --output and --requests or --duration"
            );
            ExitCode::from(evidence::exit::Outcome::Usage.code())
        }
    }
}

//! Program `mock-openai`; see the module `mocks::openai`.

use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use mocks::openai::pool::LOG_MAX;
use mocks::process::{Listen, MockError, named_port, read_config, until_told};
use mocks::ready::print_ready;

/// Command line.
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    /// Configuration, JSON.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Address of every listener.
    #[arg(long, visible_alias = "listen", default_value = "127.0.0.1")]
    listen_host: IpAddr,
    /// Threads that serve.
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Port of a listener by its name in the ready line, repeatable; the kernel chooses the others.
    #[arg(long = "port", value_name = "NAME=PORT", value_parser = named_port)]
    ports: Vec<(String, u16)>,
    /// Folder into which every entry of the logs is written at once: it survives the process.
    #[arg(long, value_name = "FOLDER")]
    journal: Option<PathBuf>,
    /// End when standard input ends.
    #[arg(long)]
    exit_with_stdin: bool,
    /// Planted defect.
    #[cfg(feature = "planted-defects")]
    #[arg(long, value_enum)]
    defect: Option<mocks::defects::Defect>,
}

async fn run(args: Args) -> Result<(), MockError> {
    let running = mocks::openai::start(
        read_config(&args.config)?,
        LOG_MAX,
        Listen::new(args.listen_host, args.ports).keep_logs(args.journal),
    )
    .await?;
    print_ready("mock-openai", running.ready())?;
    until_told(args.exit_with_stdin).await?;
    running.stop().await;
    Ok(())
}

fn main() -> ExitCode {
    let args = Args::parse();
    #[cfg(feature = "planted-defects")]
    mocks::defects::plant(args.defect);
    mocks::program::main_on_threads("mock-openai", args.threads, run(args))
}

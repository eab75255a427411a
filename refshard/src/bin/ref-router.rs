//! `ref-router --config FILE`: the router in front of one participant's replicas.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use refshard::ready::{print_ready, stop_signal};
use refshard::router::{Balancer, RouterConfig, RouterError};

/// Router in front of one participant's replicas.
#[derive(Debug, Parser)]
#[command(name = "ref-router", version)]
struct Arguments {
    /// Configuration, JSON
    #[arg(long)]
    config: PathBuf,
    /// Standard input ends the program when it ends
    #[arg(long)]
    exit_with_stdin: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let result = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| error.to_string())
        .and_then(|runtime| runtime.block_on(run(&arguments)).map_err(|error| error.to_string()));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ref-router: {error}");
            ExitCode::from(5)
        }
    }
}

async fn run(arguments: &Arguments) -> Result<(), RouterError> {
    let config = RouterConfig::read(&arguments.config)?;
    let listen = config.listen.clone();
    let balancer = Balancer::new(config);
    let (listener, address) = balancer.listen().await?;
    print_ready("ref-router", address).map_err(|source| RouterError::Serve { address: listen, source })?;
    balancer.serve(listener, stop_signal(arguments.exit_with_stdin)).await
}

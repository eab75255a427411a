//! `ref-gateway --config FILE`: the gateway of the reference Devshard.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use refshard::gateway::{Defect, Gateway, GatewayConfig, GatewayError, GatewayKeys};
use refshard::personality::Personality;
use refshard::ready::{print_ready, stop_signal};

/// The gateway of the reference Devshard. Keys come from PROOFLOAD_CREATOR_KEY, PROOFLOAD_ADMIN_KEY and
/// PROOFLOAD_API_KEYS.
#[derive(Debug, Parser)]
#[command(name = "ref-gateway", version)]
struct Arguments {
    /// Configuration, JSON
    #[arg(long)]
    config: PathBuf,
    /// Standard input ends the program when it ends
    #[arg(long)]
    exit_with_stdin: bool,
    /// Where to listen, over the configuration
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<String>,
    /// Which Devshard is imitated, over the configuration
    #[arg(long, value_enum)]
    personality: Option<Personality>,
    /// Planted defect
    #[cfg(feature = "planted-defects")]
    #[arg(long, value_enum)]
    defect: Option<Defect>,
}

impl Arguments {
    #[cfg(feature = "planted-defects")]
    fn defect(&self) -> Defect {
        self.defect.unwrap_or_default()
    }

    #[cfg(not(feature = "planted-defects"))]
    #[expect(clippy::unused_self, reason = "same interface as with the feature")]
    const fn defect(&self) -> Defect {
        Defect::None
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("ref-gateway: cannot start the runtime: {error}");
            return ExitCode::from(5);
        }
    };
    match runtime.block_on(run(&arguments)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ref-gateway: {error}");
            ExitCode::from(5)
        }
    }
}

async fn run(arguments: &Arguments) -> Result<(), GatewayError> {
    let mut config = GatewayConfig::read(&arguments.config)?;
    if let Some(listen) = &arguments.listen {
        config.listen.clone_from(listen);
    }
    config.personality = arguments.personality.unwrap_or(config.personality);
    let keys = GatewayKeys::from_environment()?;
    let gateway = Gateway::open(config, keys, arguments.defect()).await?;
    let (listener, address) = gateway.listen().await?;
    let closed = |source| GatewayError::Listen { address: address.to_string(), source };
    print_ready("ref-gateway", address).map_err(closed)?;
    gateway.serve(listener, stop_signal(arguments.exit_with_stdin)).await
}

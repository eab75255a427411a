//! `ref-host --config FILE`: one participant's host of the reference Devshard.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use refshard::host::{Defect, Host, HostConfig, HostError, KEY_VARIABLE};
use refshard::logline::{Level, LogLine};
use refshard::personality::Personality;
use refshard::ready::print_ready;
use refshard::signing::Signer;

/// One participant's host of the reference Devshard. The private key comes from PROOFLOAD_HOST_KEY.
#[derive(Debug, Parser)]
#[command(name = "ref-host", version)]
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
    /// Postgres with the validation leases, over the configuration
    #[arg(long, value_name = "URL")]
    postgres_url: Option<String>,
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
            eprintln!("ref-host: cannot start the runtime: {error}");
            return ExitCode::from(5);
        }
    };
    match runtime.block_on(run(&arguments)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ref-host: {error}");
            ExitCode::from(5)
        }
    }
}

async fn run(arguments: &Arguments) -> Result<(), HostError> {
    let mut config = HostConfig::read(&arguments.config)?;
    if let Some(listen) = &arguments.listen {
        config.listen.clone_from(listen);
    }
    config.personality = arguments.personality.unwrap_or(config.personality);
    config.postgres_url = arguments.postgres_url.clone().or(config.postgres_url);
    let signer = Signer::from_hex(&std::env::var(KEY_VARIABLE).unwrap_or_default())?;
    LogLine::new(Level::Info, "devshardd starting")
        .field("host", &config.host)
        .field("address", signer.address())
        .field("personality", config.personality.name())
        .emit();
    let host = Host::open(config, signer, arguments.defect())?;
    let (listener, address) = host.listen().await?;
    let shown = print_ready("ref-host", address);
    shown.map_err(HostError::Serve)?;
    LogLine::new(Level::Info, "listening").field("address", address).emit();
    host.serve(listener, refshard::ready::stop_signal(arguments.exit_with_stdin)).await?;
    LogLine::new(Level::Info, "devshardd stopped").emit();
    Ok(())
}

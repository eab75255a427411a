//! Start and end of a mock: bind, say what was bound, serve until told to end, end within a bound.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use axum::Router;
use axum::serve::ListenerExt as _;
use scenario::build::BUILD_ID;
use scenario::control::MockConfig;
use scenario::ready::ReadyLine;
use thiserror::Error;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

/// Time that open connections get to finish after the end was asked for.
const GRACE: Duration = Duration::from_secs(2);
/// Largest configuration file.
const CONFIG_MAX: u64 = 16 << 20;

/// Why a mock could not start or go on.
#[derive(Debug, Error)]
pub enum MockError {
    /// Configuration unusable: exit 2.
    #[error("configuration {place}: {reason}")]
    Config {
        /// File, or where the configuration came from.
        place: String,
        /// What is wrong and what to do.
        reason: String,
    },
    /// The machine refused: exit 5.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// Cause.
        source: std::io::Error,
    },
    /// The state file could not be used: exit 5.
    #[error(transparent)]
    State(#[from] crate::chain::state_file::StateError),
}

impl MockError {
    /// Exit status of the program: 2 for a bad configuration, 5 for the machine.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Config { .. } => 2,
            Self::Io { .. } | Self::State(_) => 5,
        }
    }
}

/// Reads a configuration file.
///
/// # Errors
/// [`MockError::Io`] when it can't be read, [`MockError::Config`] when it is no configuration.
pub fn read_config(path: &Path) -> Result<MockConfig, MockError> {
    let place = path.display().to_string();
    let io = |source| MockError::Io { what: format!("reading {place}"), source };
    let length = std::fs::metadata(path).map_err(io)?.len();
    if length > CONFIG_MAX {
        let reason = format!("{length} bytes, at most {CONFIG_MAX} are read");
        return Err(MockError::Config { place, reason });
    }
    let text = std::fs::read(path).map_err(io)?;
    serde_json::from_slice(&text).map_err(|error| MockError::Config { place, reason: error.to_string() })
}

/// A mock that serves. Dropped, it stops at once.
#[derive(Debug)]
pub struct Running {
    ready: BTreeMap<String, String>,
    closing: CancellationToken,
    tasks: JoinSet<()>,
    ip: IpAddr,
}

impl Running {
    /// Nothing bound yet; listeners will be on `ip` with ports chosen by the kernel.
    #[must_use]
    pub fn new(ip: IpAddr, closing: CancellationToken) -> Self {
        Self { ready: BTreeMap::new(), closing, tasks: JoinSet::new(), ip }
    }

    /// Bound addresses by name, as in the ready line.
    #[must_use]
    pub fn ready(&self) -> &BTreeMap<String, String> {
        &self.ready
    }

    /// Binds a listener under a name.
    ///
    /// # Errors
    /// [`MockError::Io`] when the kernel refuses.
    pub async fn bind(&mut self, name: &str) -> Result<TcpListener, MockError> {
        let io = |source| MockError::Io { what: format!("binding {name} on {}", self.ip), source };
        let listener = TcpListener::bind(SocketAddr::new(self.ip, 0)).await.map_err(io)?;
        let address = listener.local_addr().map_err(io)?;
        self.ready.insert(name.to_owned(), address.to_string());
        Ok(listener)
    }

    /// Runs a task until the end.
    pub fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(task);
    }

    /// Serves HTTP routes under a name.
    ///
    /// # Errors
    /// [`MockError::Io`] when the kernel refuses.
    pub async fn serve_http(&mut self, name: &str, routes: Router) -> Result<(), MockError> {
        let listener = self.bind(name).await?;
        let closing = self.closing.clone();
        self.spawn(async move {
            // Small frames must not wait for the acknowledgement of earlier ones.
            let listener = listener.tap_io(|io| {
                let _without_it_only_slower = io.set_nodelay(true);
            });
            let served =
                axum::serve(listener, routes).with_graceful_shutdown(closing.cancelled_owned()).await;
            if let Err(error) = served {
                tracing::error!(%error, "an HTTP listener has ended");
            }
        });
        Ok(())
    }

    /// Serves gRPC services under a name.
    ///
    /// # Errors
    /// [`MockError::Io`] when the kernel refuses.
    pub async fn serve_grpc(
        &mut self,
        name: &str,
        services: tonic::service::Routes,
    ) -> Result<(), MockError> {
        let listener = self.bind(name).await?;
        let incoming = tonic::transport::server::TcpIncoming::from(listener).with_nodelay(Some(true));
        let closing = self.closing.clone();
        self.spawn(async move {
            let server = tonic::transport::Server::builder().add_routes(services);
            let served = server.serve_with_incoming_shutdown(incoming, closing.cancelled_owned()).await;
            if let Err(error) = served {
                tracing::error!(%error, "a gRPC listener has ended");
            }
        });
        Ok(())
    }

    /// Ends: held calls are answered, connections get a short grace, what is left is dropped.
    pub async fn stop(mut self) {
        self.closing.cancel();
        let all = async { while self.tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(GRACE, all).await.is_err() {
            self.tasks.shutdown().await;
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Upgraded connections are tasks of their own and end by this token only.
        self.closing.cancel();
    }
}

/// Prints the one line of standard output.
///
/// # Errors
/// [`MockError::Io`] when nobody reads it.
pub fn print_ready(program: &str, running: &Running) -> Result<(), MockError> {
    let line =
        ReadyLine { ready: running.ready.clone(), program: program.to_owned(), build: BUILD_ID.to_owned() };
    let io = |source| MockError::Io { what: "printing the ready line".to_owned(), source };
    let text = serde_json::to_string(&line).map_err(|error| io(error.into()))?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush()).map_err(io)
}

/// Waits for SIGTERM or SIGINT, and with `with_stdin` also for the end of standard input.
///
/// # Errors
/// [`MockError::Io`] when signals can't be received.
pub async fn until_told(with_stdin: bool) -> Result<(), MockError> {
    let receive =
        |kind| signal(kind).map_err(|source| MockError::Io { what: "receiving signals".to_owned(), source });
    let mut terminate = receive(SignalKind::terminate())?;
    let mut interrupt = receive(SignalKind::interrupt())?;
    let stdin_end = async {
        if !with_stdin {
            return std::future::pending().await;
        }
        let mut stdin = tokio::io::stdin();
        let mut ignored = [0_u8; 256];
        while matches!(stdin.read(&mut ignored).await, Ok(count) if count > 0) {}
    };
    tokio::select! {
        _ = terminate.recv() => {},
        _ = interrupt.recv() => {},
        () = stdin_end => {},
    }
    Ok(())
}

/// Body of a program: runtime, log to standard error, exit status.
pub fn main(program: &str, run: impl Future<Output = Result<(), MockError>>) -> ExitCode {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
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

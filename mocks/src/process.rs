//! Start and end of a mock process: read the configuration, bind, serve until told to end, end within a bound.

use std::collections::BTreeMap;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::Router;
use scenario::control::MockConfig;
use thiserror::Error;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Time that open connections get to finish after the end was asked for.
const GRACE: Duration = Duration::from_secs(2);
/// Largest configuration file.
const CONFIG_BYTES_MAX: u64 = 16 << 20;

/// Why a mock could not start or go on.
#[derive(Debug, Error)]
pub enum MockError {
    /// The configuration can't be used.
    #[error("configuration {place}: {reason}")]
    Config {
        /// File, or where else the configuration came from.
        place: String,
        /// What is wrong and what to do.
        reason: String,
    },
    /// The machine refused something.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// Cause.
        source: std::io::Error,
    },
}

impl MockError {
    /// Exit status of the program (design section 7): 2 for a bad configuration, 5 for the machine.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Config { .. } => 2,
            Self::Io { .. } => 5,
        }
    }
}

/// Reads a configuration file.
///
/// # Errors
/// [`MockError::Io`] when it can't be read, [`MockError::Config`] when it is too large or no configuration.
pub fn read_config(path: &Path) -> Result<MockConfig, MockError> {
    let place = path.display().to_string();
    let io = |source| MockError::Io { what: format!("reading {place}"), source };
    let length = std::fs::metadata(path).map_err(io)?.len();
    if length > CONFIG_BYTES_MAX {
        let reason = format!("{length} bytes, at most {CONFIG_BYTES_MAX} are read");
        return Err(MockError::Config { place, reason });
    }
    let text = std::fs::read(path).map_err(io)?;
    serde_json::from_slice(&text).map_err(|error| MockError::Config { place, reason: error.to_string() })
}

/// CPU time of this process, microseconds.
#[must_use]
pub fn cpu_us() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let whole_s = u64::try_from(time.tv_sec).unwrap_or_default();
    whole_s.saturating_mul(1_000_000) + u64::try_from(time.tv_nsec).unwrap_or_default() / 1_000
}

/// Where a mock listens: one address, and ports by listener name. A listener without a port gets one from the kernel.
#[derive(Clone, Debug)]
pub struct Listen {
    ip: IpAddr,
    ports: BTreeMap<String, u16>,
    journal: Option<PathBuf>,
}

impl Listen {
    /// On this address with these ports.
    #[must_use]
    pub fn new(ip: IpAddr, ports: Vec<(String, u16)>) -> Self {
        Self { ip, ports: ports.into_iter().collect(), journal: None }
    }

    /// With a folder into which the logs are written too; none: they live in memory alone.
    #[must_use]
    pub fn keep_logs(self, journal: Option<PathBuf>) -> Self {
        Self { journal, ..self }
    }
}

impl From<IpAddr> for Listen {
    fn from(ip: IpAddr) -> Self {
        Self { ip, ports: BTreeMap::new(), journal: None }
    }
}

/// Reads `NAME=PORT`; names are those of the ready line and may hold colons.
///
/// # Errors
/// In words, for the command line.
pub fn named_port(text: &str) -> Result<(String, u16), String> {
    let wrong = || format!("{text:?} is no NAME=PORT, for example grpc=4040");
    let (name, port) = text.rsplit_once('=').filter(|(name, _)| !name.is_empty()).ok_or_else(wrong)?;
    Ok((name.to_owned(), port.parse().map_err(|_| wrong())?))
}

/// The listeners and tasks of a mock that serves. Dropped, it stops at once.
#[derive(Debug)]
pub struct Running {
    ready: BTreeMap<String, String>,
    closing: CancellationToken,
    tasks: JoinSet<()>,
    listen: Listen,
}

impl Running {
    /// Nothing bound yet, and the pulse of the process is watched from now on. `closing` is cancelled by
    /// [`Running::stop`].
    #[must_use]
    pub fn new(listen: Listen, closing: CancellationToken) -> Self {
        let mut tasks = JoinSet::new();
        let ended = closing.clone();
        tasks.spawn(async move {
            tokio::select! {
                () = crate::pulse::watch() => {}
                () = ended.cancelled() => {}
            }
        });
        Self { ready: BTreeMap::new(), closing, tasks, listen }
    }

    /// Bound addresses by name, as in the ready line.
    #[must_use]
    pub fn ready(&self) -> &BTreeMap<String, String> {
        &self.ready
    }

    /// Has the mock write its logs into the folder that was given, if one was.
    ///
    /// # Errors
    /// [`MockError::Io`] when folder or files can't be made.
    pub fn keep_logs<M: crate::control::Mock>(&self, mock: &M) -> Result<(), MockError> {
        let Some(folder) = &self.listen.journal else { return Ok(()) };
        let made = std::fs::create_dir_all(folder).and_then(|()| mock.keep_logs(folder));
        made.map_err(|source| MockError::Io {
            what: format!("making the journal in {}", folder.display()),
            source,
        })
    }

    /// Binds a listener under a name.
    ///
    /// # Errors
    /// [`MockError::Io`] when the kernel refuses.
    pub async fn bind(&mut self, name: &str) -> Result<TcpListener, MockError> {
        let port = self.listen.ports.get(name).copied().unwrap_or_default();
        let wanted = SocketAddr::new(self.listen.ip, port);
        let io = |source| MockError::Io { what: format!("binding {name} on {wanted}"), source };
        let listener = TcpListener::bind(wanted).await.map_err(io)?;
        let address = listener.local_addr().map_err(io)?;
        self.ready.insert(name.to_owned(), address.to_string());
        Ok(listener)
    }

    /// Runs a task until it ends by itself (it should, once `closing` is cancelled) or is dropped.
    pub fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(task);
    }

    /// Binds a listener under a name and serves HTTP routes there.
    ///
    /// # Errors
    /// [`MockError::Io`] when the kernel refuses.
    pub async fn serve_http(&mut self, name: &str, routes: Router) -> Result<(), MockError> {
        let listener = self.bind(name).await?;
        let closing = self.closing.clone();
        self.spawn(async move {
            let served =
                axum::serve(listener, routes).with_graceful_shutdown(closing.cancelled_owned()).await;
            if let Err(error) = served {
                tracing::error!(%error, "an HTTP listener has ended");
            }
        });
        Ok(())
    }

    /// Binds a listener under a name and serves gRPC services there.
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

    /// Ends: `closing` is cancelled, tasks get a short grace, what is left then is dropped.
    pub async fn stop(mut self) {
        self.closing.cancel();
        let all = async { while self.tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(GRACE, all).await.is_err() {
            self.tasks.shutdown().await;
        }
    }
}

/// Waits for SIGTERM or SIGINT, and `with_stdin` also for the end of standard input.
///
/// # Errors
/// [`MockError::Io`] when signals can't be received.
pub async fn until_told(with_stdin: bool) -> Result<(), MockError> {
    let receive =
        |kind| signal(kind).map_err(|source| MockError::Io { what: "receiving signals".to_owned(), source });
    let mut terminate = receive(SignalKind::terminate())?;
    let mut interrupt = receive(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        () = stdin_end(with_stdin) => {}
    }
    Ok(())
}

/// Ends when standard input ends, or never when it is not to be watched.
async fn stdin_end(watched: bool) {
    if !watched {
        return std::future::pending().await;
    }
    let mut stdin = tokio::io::stdin();
    let mut ignored = [0_u8; 256];
    while matches!(stdin.read(&mut ignored).await, Ok(count) if count > 0) {}
}

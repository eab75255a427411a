//! `ref-host`: one participant's host. It applies the user's steps, gives receipts, executes at model
//! servers, proposes finishes and validations (contract hosts 2 to 8).
//!
//! State: sessions in memory, each behind its own lock and rebuilt from SQLite at the start. What must
//! never happen: an answer that rests on a step that is not yet in the database, a model call without a
//! receipt, two executions of one inference at a time.

mod answer;
mod auth;
mod body;
mod chain;
mod chat;
mod config;
mod defects;
mod events;
mod execute;
mod families;
mod judge;
mod leases;
mod mempool;
pub mod nodes;
mod reads;
mod retry;
mod routes;
mod session;
mod store;
mod track;
mod validate;
mod votes;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::Semaphore;

pub use config::{ConfigError, HostConfig, KEY_VARIABLE};
pub use defects::Defect;
pub use leases::{Lease, LeaseError, Leases, Work};
pub use mempool::Mempool;
pub use store::{Store, StoreError, StoredSession};

use chain::{Chain, ChainError};
use nodes::Nodes;
use session::{HostSession, Limits, SessionError};

use crate::clock;
use crate::logline::{Level, LogLine};
use crate::metrics::Metrics;
use crate::personality::Personality;
use crate::ready::prompt;
use crate::request_id::RequestIds;
use crate::signing::{Signer, SigningError};

/// How often the host asks the chain for the epoch.
const EPOCH_POLL: Duration = Duration::from_secs(2);
/// A silent model server is given up after this time (contract hosts 7.1).
const ML_TIMEOUT: Duration = Duration::from_secs(300);

/// Why a host could not start or serve.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The key in the environment.
    #[error("{KEY_VARIABLE}: {0}")]
    Key(#[from] SigningError),
    /// The database.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// An address that is none.
    #[error("address {address:?} is not host:port: {source}")]
    Address {
        /// The text.
        address: String,
        /// What is wrong with it.
        source: tonic::transport::Error,
    },
    /// The HTTP client.
    #[error("cannot set up the HTTP client: {0}")]
    Client(#[from] reqwest::Error),
    /// The socket.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// Wanted address.
        address: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// Serving.
    #[error("serving ended: {0}")]
    Serve(std::io::Error),
}

/// Everything of a running host.
#[derive(Debug)]
pub struct Host {
    config: HostConfig,
    defect: Defect,
    signer: Arc<Signer>,
    store: Arc<Store>,
    chain: Chain,
    nodes: Nodes,
    http: reqwest::Client,
    metrics: Metrics,
    request_ids: RequestIds,
    sessions: Mutex<HashMap<String, Arc<HostSession>>>,
    validations: Semaphore,
    leases: Option<Leases>,
    /// Chat requests since the start.
    chats: AtomicU64,
    /// Occasions of a planted defect so far.
    occasions: AtomicU64,
    /// A planted defect answers 503 to looks at its health until then.
    unwell_until: OnceLock<std::time::Instant>,
}

impl Host {
    /// Opens the database and rebuilds every session in it. A session that cannot be rebuilt is skipped
    /// with an error line, as the real host does, and is not served.
    ///
    /// # Errors
    /// When the database, an address or the HTTP client cannot be set up.
    pub fn open(config: HostConfig, signer: Signer, defect: Defect) -> Result<Arc<Self>, HostError> {
        let at = |address: &str| {
            let address = address.to_owned();
            move |source| HostError::Address { address, source }
        };
        let store = Arc::new(Store::open(&config.database)?);
        let signer = Arc::new(signer);
        let metrics = Metrics::new(families::FAMILIES);
        metrics.set("process_start_time_seconds", &[], clock::unix_f64());
        metrics.add("devshard_validation_queue_drops_total", &[], 0.0);
        let http = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .timeout(ML_TIMEOUT)
            .no_proxy()
            .build()?;
        let mut sessions = HashMap::new();
        for stored in store.sessions()? {
            let escrow_id = stored.params.escrow_id.clone();
            match HostSession::load(stored, signer.clone(), store.clone(), config.personality) {
                Ok(session) => drop(sessions.insert(escrow_id, Arc::new(session))),
                Err(error) => LogLine::new(Level::Error, "skipping corrupt session")
                    .field("escrow_id", escrow_id)
                    .field("error", error)
                    .emit(),
            }
        }
        let leases = config.postgres_url.clone().map(|url| {
            let ttl = Duration::from_millis(config.lease_ttl_ms);
            let stale_after = if defect.steals_leases() { Duration::from_millis(1) } else { ttl };
            Leases::new(url, signer.address().to_owned(), ttl, stale_after)
        });
        Ok(Arc::new(Self {
            chats: AtomicU64::new(0),
            occasions: AtomicU64::new(0),
            unwell_until: OnceLock::new(),
            leases,
            defect,
            chain: Chain::new(&config.chain_grpc).map_err(at(&config.chain_grpc))?,
            nodes: Nodes::new(&config.dapi_grpc, config.personality).map_err(at(&config.dapi_grpc))?,
            validations: Semaphore::new(config.validation_concurrency),
            config,
            signer,
            store,
            http,
            metrics,
            request_ids: RequestIds::default(),
            sessions: Mutex::new(sessions),
        }))
    }

    /// Listens as configured.
    ///
    /// # Errors
    /// When the address cannot be bound.
    pub async fn listen(&self) -> Result<(TcpListener, SocketAddr), HostError> {
        let failed = |source| HostError::Listen { address: self.config.listen.clone(), source };
        let listener = TcpListener::bind(&self.config.listen).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok((listener, address))
    }

    /// Serves until `stop` ends. Requests that run then get five seconds, as on the real host.
    ///
    /// # Errors
    /// When the listener fails.
    pub async fn serve(
        self: Arc<Self>,
        listener: TcpListener,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), HostError> {
        let mut followers = vec![tokio::spawn(follow_settings(self.clone()))];
        followers.push(match self.config.chain_rpc.clone() {
            Some(rpc) => tokio::spawn(events::follow(self.clone(), rpc)),
            None => tokio::spawn(follow_epoch(self.clone())),
        });
        if self.leases.is_some() {
            followers.push(tokio::spawn(retry::follow(self.clone())));
        }
        if self.defect.will_die() {
            followers.push(tokio::spawn(die_when_idle(self.clone())));
        }
        let (stopping, stopped) = tokio::sync::oneshot::channel();
        let stop = async move {
            stop.await;
            let _ = stopping.send(());
        };
        let serving = axum::serve(prompt(listener), routes::router(self)).with_graceful_shutdown(stop);
        let window = async {
            if stopped.await.is_ok() {
                tokio::time::sleep(Duration::from_secs(5)).await;
            } else {
                std::future::pending::<()>().await;
            }
        };
        let result = tokio::select! {
            result = async { serving.await } => result.map_err(HostError::Serve),
            () = window => Ok(()),
        };
        followers.iter().for_each(tokio::task::JoinHandle::abort);
        result
    }

    fn limits(&self) -> Limits {
        let settings = self.nodes.settings();
        Limits {
            max_nonce: u64::from(settings.max_nonce),
            requests_enabled: settings.devshard_requests_enabled,
        }
    }

    /// A session that is in memory or, for whoever is not July, in the database: a replica may have made it,
    /// or a settlement taken it out of memory.
    fn session(&self, escrow_id: &str) -> Option<Arc<HostSession>> {
        if let Some(session) = self.lock_sessions().get(escrow_id) {
            return Some(session.clone());
        }
        if self.config.personality == Personality::July {
            return None;
        }
        let stored = self.store.session(escrow_id).ok()??;
        self.create(stored).ok()
    }

    /// Whether other processes write the same database.
    const fn has_replicas(&self) -> bool {
        self.leases.is_some()
    }

    /// The chain has settled an escrow: its session leaves memory. What still runs in it goes on, and here the
    /// next touch brings it back from the database; July begins it anew at nonce 0 (finding J21).
    fn settled(&self, escrow_id: &str) {
        if let Err(error) = self.store.put_settled(escrow_id) {
            LogLine::new(Level::Error, "settled session not marked")
                .field("escrow_id", escrow_id)
                .field("error", error)
                .emit();
        }
        if self.lock_sessions().remove(escrow_id).is_some() {
            LogLine::new(Level::Info, "session closed by settlement").field("escrow_id", escrow_id).emit();
        }
    }

    /// Asks the chain for an escrow that is not known here. Nothing is stored yet.
    async fn look_up(&self, escrow_id: &str) -> Result<StoredSession, ChainError> {
        let tag = self.config.protocol_version();
        let (params, epoch_id) = self.chain.session_params(escrow_id, tag, self.config.waits).await?;
        Ok(StoredSession { epoch_id, params })
    }

    /// Makes the session, database first; a concurrent maker wins and its session is taken.
    fn create(&self, stored: StoredSession) -> Result<Arc<HostSession>, SessionError> {
        let mut sessions = self.lock_sessions();
        if let Some(known) = sessions.get(&stored.params.escrow_id) {
            return Ok(known.clone());
        }
        self.store.add_session(&stored)?;
        let escrow_id = stored.params.escrow_id.clone();
        let (signer, store, personality) = (self.signer.clone(), self.store.clone(), self.config.personality);
        let session = match personality {
            Personality::Intended => HostSession::load(stored, signer, store, personality)?,
            Personality::July => HostSession::empty(stored, signer, store, personality),
        };
        let session = Arc::new(session);
        sessions.insert(escrow_id, session.clone());
        Ok(session)
    }

    /// Memory went ahead of the database: the next request replays the session from there.
    fn forget(&self, escrow_id: &str) {
        self.lock_sessions().remove(escrow_id);
    }

    /// No request and no validation runs, and no session has anything to propose.
    fn is_idle(&self) -> bool {
        let running = self.metrics.value("devshard_inflight", &[("stage", "request")]) > 0.0
            || self.validations.available_permits() < self.config.validation_concurrency;
        !running && self.lock_sessions().values().all(|session| session.mempool_len() == 0)
    }

    fn lock_sessions(&self) -> MutexGuard<'_, HashMap<String, Arc<HostSession>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A planted defect: the process ends by itself.
async fn die_when_idle(host: Arc<Host>) {
    loop {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let chats = host.chats.load(std::sync::atomic::Ordering::Relaxed);
        if host.defect.dies_now(chats, host.is_idle()) {
            std::process::exit(1);
        }
    }
}

async fn follow_epoch(host: Arc<Host>) {
    let mut reachable = true;
    loop {
        let answer = host.chain.refresh_epoch().await;
        if let (Err(error), true) = (&answer, reachable) {
            LogLine::new(Level::Warn, "chain events: disconnected, reconnecting")
                .field("error", error)
                .emit();
        }
        reachable = answer.is_ok();
        tokio::time::sleep(EPOCH_POLL).await;
    }
}

async fn follow_settings(host: Arc<Host>) {
    // The first question is not held, so that settings are there when the first chat comes.
    let mut known = host.nodes.refresh_settings(false).await;
    loop {
        if !known {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        known = host.nodes.refresh_settings(known).await;
        // An allocator that does not hold the question must not be asked in a tight loop.
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

//! `ref-gateway`: the user's side of the reference Devshard. Owns the order of a session's steps, the
//! accounting of requests, limiter and response cache (contract gateway, appendix A).
//!
//! State: SQLite in the database directory (steps, registry, settings, accounting); everything else is in
//! memory and comes back with the hosts' next answers. What must never happen here: a nonce that is used
//! twice, a request that was accepted and gets no outcome, a private key in an answer.

mod accounting;
mod admin;
mod attempt;
mod cache;
mod capacity;
mod chain;
mod chat;
mod config;
mod content;
mod counts;
mod defects;
mod escrow;
mod families;
mod gate;
mod hosts;
mod http;
mod limiter;
mod log;
mod normalize;
mod openapi;
mod perf;
mod policy;
mod quarantine;
mod race;
mod reads;
mod registry;
mod respond;
mod rotation;
mod settings;
mod shapes;
mod store;
mod sync;
mod timeouts;
mod weights;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use tokio::net::TcpListener;

pub use config::{
    ADMIN_KEY_VARIABLE, API_KEYS_VARIABLE, CREATOR_KEY_VARIABLE, ConfigError, GatewayConfig, GatewayKeys,
};
pub use defects::Defect;

use accounting::Accounting;
use cache::Cache;
use chain::{Chain, ChainError};
use escrow::{Escrow, StepError};
use gate::Gate;
use hosts::Hosts;
use limiter::Limiter;
use log::Line;
use perf::Perf;
use quarantine::Quarantine;
use rotation::Rotation;
use settings::Settings;
use store::{Registered, Store, StoreError};

use crate::clock;
use crate::metrics::Metrics;
use crate::personality::Personality;
use crate::request_id::RequestIds;

/// How long a stop waits for requests that run.
const SHUTDOWN: Duration = Duration::from_secs(30);
/// How often a deactivated escrow is looked at until it is idle.
const RETIRE_EVERY: Duration = Duration::from_millis(50);
/// Sessions that are kept to be read although they are not served.
const READ_ONLY_MAX: usize = 16;

/// Why a gateway could not start or serve.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A database.
    #[error("{0}")]
    Store(String),
    /// The chain.
    #[error("{0}")]
    Chain(String),
    /// A session that cannot be restored.
    #[error("session {escrow}: {reason}")]
    Session {
        /// Which.
        escrow: String,
        /// Why.
        reason: String,
    },
    /// The HTTP client.
    #[error("http client: {0}")]
    Client(#[from] reqwest::Error),
    /// Listening or serving.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// Where.
        address: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The stored or configured settings.
    #[error("settings: {0}")]
    Settings(String),
}

impl From<StoreError> for GatewayError {
    fn from(error: StoreError) -> Self {
        Self::Store(error.to_string())
    }
}

impl From<ChainError> for GatewayError {
    fn from(error: ChainError) -> Self {
        Self::Chain(error.to_string())
    }
}

/// A running gateway's state.
#[derive(Debug)]
pub struct Gateway {
    config: GatewayConfig,
    keys: GatewayKeys,
    defect: Defect,
    chain: Chain,
    hosts: Hosts,
    store: Arc<Store>,
    accounting: Accounting,
    metrics: Metrics,
    cache: Cache,
    limiter: Arc<Limiter>,
    perf: Perf,
    quarantine: Quarantine,
    gate: Gate,
    rotation: Rotation,
    request_ids: RequestIds,
    races: AtomicU64,
    turns: AtomicU64,
    settings: RwLock<Arc<Settings>>,
    residents: RwLock<BTreeMap<u64, Arc<Escrow>>>,
    /// Sessions that are read although nobody is served from them any more: they change no more, and are not replayed
    /// for each of the reads.
    read_only: Mutex<BTreeMap<String, Arc<Escrow>>>,
}

impl Gateway {
    /// Opens the databases, ends what an earlier process left running, and builds every active escrow.
    ///
    /// # Errors
    /// When a database, the chain or a stored session does not play along.
    pub async fn open(
        config: GatewayConfig,
        keys: GatewayKeys,
        defect: Defect,
    ) -> Result<Arc<Self>, GatewayError> {
        config.check()?;
        let no_directory = |error: std::io::Error| GatewayError::Store(error.to_string());
        std::fs::create_dir_all(&config.database_dir).map_err(no_directory)?;
        let store = Arc::new(Store::open(&config.database_dir.join("gateway.db"))?);
        let accounting = Accounting::open(&config.database_dir.join("perf.db"))?;
        // July leaves the rows of a lost process running for ever (contract gateway 1.7).
        let ended = match config.personality {
            Personality::Intended => accounting.end_orphans(clock::unix_ns())?,
            Personality::July => 0,
        };
        if ended > 0 {
            Line::process("accounting of a lost process ended as failed").field("requests", ended).emit();
        }
        let is_fresh = store.settings()?.is_none();
        let settings = load_settings(&config, &store)?;
        let bad_address = |error: tonic::transport::Error| GatewayError::Chain(error.to_string());
        let gateway = Arc::new(Self {
            chain: Chain::new(&config.chain_grpc).map_err(bad_address)?,
            hosts: Hosts::new(keys.creator.clone())?,
            metrics: Metrics::new(families::FAMILIES),
            cache: Cache::default(),
            limiter: Arc::new(Limiter::default()),
            perf: Perf::default(),
            quarantine: Quarantine::open(store.clone())?,
            gate: Gate::new()?,
            rotation: Rotation::default(),
            request_ids: RequestIds::default(),
            races: AtomicU64::new(0),
            turns: AtomicU64::new(0),
            settings: RwLock::new(Arc::new(settings)),
            residents: RwLock::new(BTreeMap::new()),
            read_only: Mutex::new(BTreeMap::new()),
            config,
            keys,
            defect,
            store,
            accounting,
        });
        gateway.metrics.set("process_start_time_seconds", &[], clock::unix_f64());
        gateway.bootstrap(is_fresh).await?;
        tokio::spawn(gate::follow(Arc::downgrade(&gateway)));
        Ok(gateway)
    }

    /// The configured escrows go into a fresh database only; afterwards the registry alone counts. Hosts may
    /// have moved meanwhile, but a chain that is away must not keep a restarted gateway down.
    async fn bootstrap(&self, is_fresh: bool) -> Result<(), GatewayError> {
        if is_fresh {
            for id in &self.config.escrow_ids {
                self.register(*id, None).await?;
            }
        }
        for row in self.store.registered()?.into_iter().filter(|row| row.active) {
            let id = row.params.escrow_id.as_str();
            if !is_fresh
                && let Ok(number) = id.parse()
                && let Err(error) = self.register(number, Some(&row.model)).await
            {
                Line::process("escrow not refreshed").field("escrow", id).field("error", error).emit();
            }
            let row = self.store.find(id)?.unwrap_or_else(|| row.clone());
            self.admit(&row)?;
        }
        Ok(())
    }

    /// Reads an escrow and its participants from the chain into the registry.
    async fn register(&self, id: u64, model: Option<&str>) -> Result<(), GatewayError> {
        let version = self.config.protocol_version();
        let params = self.chain.session_params(id, version, self.config.waits).await?;
        if params.creator != self.keys.creator.address() {
            let reason = format!("its creator is {}, not the holder of the key", params.creator);
            return Err(GatewayError::Session { escrow: id.to_string(), reason });
        }
        let mut known = BTreeMap::new();
        let mut urls = Vec::new();
        for address in &params.group {
            if !known.contains_key(address) {
                let url = self.chain.participant_url(address).await?;
                known.insert(address.clone(), format!("{url}{}", self.config.route_prefix));
            }
            urls.extend(known.get(address).cloned());
        }
        let now_ns = clock::unix_ns();
        let row = Registered {
            params,
            model: model.unwrap_or(&self.config.model).to_owned(),
            active: true,
            created_ns: now_ns,
            updated_ns: now_ns,
            urls,
            settlement: None,
        };
        Ok(self.store.register(&row)?)
    }

    /// Builds the session of a registered escrow without serving it.
    fn load(&self, row: &Registered) -> Result<Escrow, StepError> {
        Escrow::load(
            row.params.clone(),
            row.model.clone(),
            &row.urls,
            self.keys.creator.clone(),
            self.store.clone(),
            (self.config.personality, self.defect),
        )
    }

    /// The session of a registered escrow that is not served, for reads.
    fn load_to_read(&self, row: &Registered) -> Result<Arc<Escrow>, StepError> {
        let id = &row.params.escrow_id;
        let mut known = self.read_only.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(escrow) = known.get(id) {
            return Ok(escrow.clone());
        }
        let escrow = Arc::new(self.load(row)?);
        if known.len() >= READ_ONLY_MAX {
            known.clear();
        }
        known.insert(id.clone(), escrow.clone());
        Ok(escrow)
    }

    /// What was read is not what will be: the escrow is served again, or gone.
    fn forget_read(&self, id: &str) {
        self.read_only.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
    }

    fn admit(&self, row: &Registered) -> Result<Arc<Escrow>, GatewayError> {
        let broken = |reason: String| GatewayError::Session { escrow: row.params.escrow_id.clone(), reason };
        let escrow = Arc::new(self.load(row).map_err(|error| broken(error.to_string()))?);
        let number = row.params.escrow_id.parse().map_err(|_| broken("its id is no number".to_owned()))?;
        self.residents.write().unwrap_or_else(PoisonError::into_inner).insert(number, escrow.clone());
        self.forget_read(escrow.id());
        Line::process("recover_session")
            .field("escrow", escrow.id())
            .field("nonce", escrow.with_state(crate::state::Session::nonce))
            .emit();
        Ok(escrow)
    }

    /// Stops routing to an escrow; it leaves once nothing runs in it. False when it is not resident.
    fn deactivate(self: &Arc<Self>, id: &str) -> bool {
        let stored = self.store.set_active(id, false, clock::unix_ns());
        if let Err(error) = stored {
            Line::process("registry update failed").field("escrow", id).field("error", error).emit();
        }
        let Some(escrow) = self.resident(id) else { return false };
        escrow.active.store(false, Ordering::Release);
        if !escrow.is_busy() {
            self.retire(&escrow);
            return true;
        }
        Line::process("runtime_retire_deferred").field("escrow", id).emit();
        let gateway = self.clone();
        tokio::spawn(async move {
            while escrow.is_busy() {
                tokio::time::sleep(RETIRE_EVERY).await;
            }
            // It may have been activated again meanwhile.
            if !escrow.active.load(Ordering::Acquire) {
                Line::process("runtime_retire_drain_complete").field("escrow", escrow.id()).emit();
                gateway.retire(&escrow);
            }
        });
        true
    }

    fn retire(&self, escrow: &Arc<Escrow>) {
        escrow.close();
        let mut residents = self.residents.write().unwrap_or_else(PoisonError::into_inner);
        residents.retain(|_, resident| !Arc::ptr_eq(resident, escrow));
        drop(residents);
        self.forget_read(escrow.id());
    }

    fn resident(&self, id: &str) -> Option<Arc<Escrow>> {
        let number: u64 = id.parse().ok()?;
        self.residents.read().unwrap_or_else(PoisonError::into_inner).get(&number).cloned()
    }

    fn residents(&self) -> Vec<Arc<Escrow>> {
        self.residents.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    fn settings(&self) -> Arc<Settings> {
        self.settings.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn replace_settings(&self, settings: Settings) -> Result<(), StoreError> {
        let json = serde_json::to_string(&settings).expect("settings are plain data");
        let mut current = self.settings.write().unwrap_or_else(PoisonError::into_inner);
        self.store.put_settings(&json)?;
        *current = Arc::new(settings);
        Ok(())
    }

    fn next_race(&self) -> u64 {
        self.races.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Whether this gateway imitates the July build.
    fn is_july(&self) -> bool {
        self.config.personality == Personality::July
    }

    fn new_request_id(&self) -> String {
        self.request_ids.next(clock::unix_ns())
    }

    /// Binds the configured address.
    ///
    /// # Errors
    /// When it is taken or malformed.
    pub async fn listen(&self) -> Result<(TcpListener, SocketAddr), GatewayError> {
        let address = &self.config.listen;
        let failed = |source| GatewayError::Listen { address: address.clone(), source };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let bound = listener.local_addr().map_err(failed)?;
        Line::process("devshardctl gateway listening on").field("address", bound).emit();
        Ok((listener, bound))
    }

    /// Serves until `stop` ends, then lets running requests end for a while.
    ///
    /// # Errors
    /// When the listener fails.
    pub async fn serve(
        self: &Arc<Self>,
        listener: TcpListener,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), GatewayError> {
        if self.is_july() {
            return self.serve_until_killed(listener, stop).await;
        }
        let (stopped, seen) = tokio::sync::oneshot::channel();
        let signal = async move {
            stop.await;
            let _ = stopped.send(());
        };
        let router = axum::Router::new().fallback(http::handle).with_state(self.clone());
        let server = axum::serve(listener, router).with_graceful_shutdown(signal);
        let late = async {
            if seen.await.is_ok() {
                tokio::time::sleep(SHUTDOWN).await;
            } else {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            served = server => {
                served.map_err(|source| GatewayError::Listen { address: self.config.listen.clone(), source })?;
            }
            () = late => {}
        }
        // A race whose client has gone is in nobody's connection, and its outcome still has to be written.
        let drained = async {
            while self.residents().iter().any(|escrow| escrow.is_busy()) {
                tokio::time::sleep(RETIRE_EVERY).await;
            }
        };
        let _ = tokio::time::timeout(SHUTDOWN, drained).await;
        Ok(())
    }

    /// July watches no signal: whatever runs dies with the process (contract gateway 1.7).
    async fn serve_until_killed(
        self: &Arc<Self>,
        listener: TcpListener,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), GatewayError> {
        let router = axum::Router::new().fallback(http::handle).with_state(self.clone());
        tokio::select! {
            served = async { axum::serve(listener, router).await } => {
                served.map_err(|source| GatewayError::Listen { address: self.config.listen.clone(), source })
            }
            () = stop => Ok(()),
        }
    }
}

/// Stored settings; a fresh database gets the defaults with what the configuration says.
fn load_settings(config: &GatewayConfig, store: &Store) -> Result<Settings, GatewayError> {
    let bad = |error: String| GatewayError::Settings(error);
    if let Some(json) = store.settings()? {
        return serde_json::from_str(&json).map_err(|error| bad(error.to_string()));
    }
    let public_api = config.public_api.as_deref().unwrap_or_default();
    let mut settings = Settings::defaults(&config.chain_grpc, public_api, &config.model);
    if config.personality == Personality::July {
        settings.july(config.waits);
    }
    let settings = match &config.settings {
        Some(patch) => settings.updated(patch).map_err(bad)?,
        None => settings,
    };
    store.put_settings(&serde_json::to_string(&settings).expect("settings are plain data"))?;
    Ok(settings)
}

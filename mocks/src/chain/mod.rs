//! `mock-chain`: the part of the chain that gateway and hosts ask (contract mocks 5, fixture wire-july).
//!
//! [`start`] binds the gRPC listener, the RPC listener with its websocket, and the control listener, and produces
//! blocks.

pub mod config;
pub mod core;
pub mod ledger;
mod metrics;
pub mod rpc;
pub mod service;
pub mod shared;
pub mod state_file;
pub mod tx;
mod websocket;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use scenario::control::{ChainAct, ChainCallRecord, ChainStats, Hit, MockConfig, Page};
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use wire::proto::auth::query_server::QueryServer as AuthServer;
use wire::proto::inference::query_server::QueryServer;
use wire::proto::tendermint::service_server::ServiceServer as BlockServer;
use wire::proto::tx::service_server::ServiceServer as TxServer;

use crate::chain::core::Core;
use crate::chain::ledger::Ledger;
use crate::chain::service::Service;
use crate::chain::shared::Shared;
use crate::chain::state_file::{StateError, StateFile};
use crate::clock::Clock;
use crate::control::{self, Mock};
use crate::process::{Listen, MockError, Running};

/// Least time between two writes of the state file that only a new height asks for.
const SAVE_EVERY: Duration = Duration::from_secs(1);

/// Starts the chain with its listeners as `listen` says; `state` is the file that survives a restart.
///
/// # Errors
/// [`MockError::Config`] for a configuration that is refused, [`MockError::Io`] for a state file
/// that can't be used and when a listener can't be bound.
pub async fn start(
    config: MockConfig,
    state: Option<PathBuf>,
    listen: impl Into<Listen>,
) -> Result<Running, MockError> {
    let refused = |reason| MockError::Config { place: "of mock-chain".to_owned(), reason };
    let MockConfig::Chain(config) = config else {
        return Err(refused("`mock` must be \"chain\" for this program".to_owned()));
    };
    let file = state.map(StateFile::new);
    let saved = file.as_ref().map(StateFile::read).transpose().map_err(unusable)?.flatten();
    let core = Core::new(Ledger::new(config, saved).map_err(refused)?);
    // A directory that can't be written is found now, not by the first transaction.
    if let Some(file) = &file {
        file.write(|| core.ledger.saved().clone()).map_err(unusable)?;
    }
    let closing = CancellationToken::new();
    let shared = Arc::new(Shared::new(core, Clock::start(), file, closing.clone()));
    let mut running = Running::new(listen.into(), closing);
    running.keep_logs(&*shared)?;
    let service = Service::new(Arc::clone(&shared));
    let services = Routes::new(QueryServer::new(service.clone()))
        .add_service(AuthServer::new(service.clone()))
        .add_service(TxServer::new(service.clone()))
        .add_service(BlockServer::new(service));
    running.serve_grpc("grpc", services).await?;
    running.serve_http("rpc", rpc::routes(Arc::clone(&shared))).await?;
    running.serve_http("control", control::routes(Arc::clone(&shared))).await?;
    running.spawn(produce(shared));
    Ok(running)
}

/// A state file is no configuration: whatever is wrong with it, the machine has to be put right, not the scenario.
fn unusable(error: StateError) -> MockError {
    MockError::Io { what: "--state".to_owned(), source: std::io::Error::other(error) }
}

/// Produces a block every interval until the end, and then saves a last time.
async fn produce(shared: Arc<Shared>) {
    let mut unsaved = Duration::ZERO;
    loop {
        let interval = shared.core().ledger.config().block_interval.duration();
        tokio::select! {
            () = tokio::time::sleep(interval) => {}
            () = shared.closing().cancelled() => break,
        }
        let held = {
            let mut core = shared.core();
            let held = core.holds_blocks();
            if !held {
                core.ledger.produce(1);
            }
            held
        };
        if held {
            continue;
        }
        shared.publish();
        unsaved += interval;
        if unsaved >= SAVE_EVERY {
            unsaved = Duration::ZERO;
            save(&shared).await;
        }
    }
    save(&shared).await;
}

/// A height that can't be written is no reason to stop the chain; a transaction would fail loudly.
async fn save(shared: &Arc<Shared>) {
    if let Err(error) = shared.save().await {
        tracing::error!(%error, "the state file is behind");
    }
}

impl Mock for Shared {
    type Call = ChainCallRecord;
    type Stats = ChainStats;
    type Act = ChainAct;

    fn put(&self, config: MockConfig) -> Result<(), String> {
        match config {
            MockConfig::Chain(config) => self.apply(config),
            MockConfig::Openai(_) | MockConfig::Dapi(_) => Err("`mock` must be \"chain\" here".to_owned()),
        }
    }

    fn config(&self) -> MockConfig {
        MockConfig::Chain(self.core().ledger.config().clone())
    }

    fn hits(&self, after: u64, limit: usize) -> Page<Hit> {
        self.hit_log().page(after, limit, self.clock().started_unix_us())
    }

    fn calls(&self, after: u64, limit: usize) -> Page<ChainCallRecord> {
        self.call_log().page(after, limit, self.clock().started_unix_us())
    }

    fn keep_logs(&self, folder: &Path) -> std::io::Result<()> {
        let start = self.clock().started_unix_us();
        self.hit_log().keep_in(&folder.join(format!("{start}-hits.jsonl")))?;
        self.call_log().keep_in(&folder.join(format!("{start}-calls.jsonl")))
    }

    fn stats(&self) -> ChainStats {
        self.counters()
    }

    fn metrics(&self) -> String {
        metrics::text(&self.counters())
    }

    async fn act(self: Arc<Self>, act: ChainAct) -> Result<(), String> {
        self.carry_out(&act).await
    }
}

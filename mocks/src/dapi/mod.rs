//! `mock-dapi`: gives out ML nodes and runtime configuration (contract mocks 4, fixture wire-july).
//!
//! [`start`] binds one gRPC listener per host and one for the gateway, the HTTP face and the control listener.

pub mod config;
pub mod core;
pub mod http;
pub mod locks;
mod metrics;
pub mod policy;
pub mod service;
pub mod shared;

use std::path::Path;
use std::sync::Arc;

use scenario::control::{DapiCallRecord, DapiStats, Hit, MockConfig, Page};
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use wire::proto::nodemanager::node_manager_server::NodeManagerServer;

use crate::clock::Clock;
use crate::control::{self, Mock};
use crate::dapi::config::GATEWAY;
use crate::dapi::service::Service;
use crate::dapi::shared::Shared;
use crate::process::{Listen, MockError, Running};

/// Starts the allocator with its listeners as `listen` says.
///
/// # Errors
/// [`MockError::Config`] for a configuration that is refused, [`MockError::Io`] when a listener can't be bound.
pub async fn start(config: MockConfig, listen: impl Into<Listen>) -> Result<Running, MockError> {
    let refused = |reason| MockError::Config { place: "of mock-dapi".to_owned(), reason };
    let MockConfig::Dapi(config) = config else {
        return Err(refused("`mock` must be \"dapi\" for this program".to_owned()));
    };
    let closing = CancellationToken::new();
    let mut callers = config.hosts.clone();
    callers.push(GATEWAY.to_owned());
    let shared = Arc::new(Shared::new(config, Clock::start(), closing.clone()).map_err(refused)?);
    let mut running = Running::new(listen.into(), closing);
    running.keep_logs(&*shared)?;
    for caller in callers {
        let service = NodeManagerServer::new(Service::new(Arc::clone(&shared), &caller));
        running.serve_grpc(&format!("grpc:{caller}"), Routes::new(service)).await?;
    }
    running.serve_http("http", http::routes(Arc::clone(&shared))).await?;
    running.serve_http("control", control::routes(shared)).await?;
    Ok(running)
}

impl Mock for Shared {
    type Call = DapiCallRecord;
    type Stats = DapiStats;
    type Act = serde::de::IgnoredAny;

    fn put(&self, config: MockConfig) -> Result<(), String> {
        match config {
            MockConfig::Dapi(config) => self.apply(config),
            MockConfig::Openai(_) | MockConfig::Chain(_) => Err("`mock` must be \"dapi\" here".to_owned()),
        }
    }

    fn config(&self) -> MockConfig {
        MockConfig::Dapi(self.core().config().clone())
    }

    fn hits(&self, after: u64, limit: usize) -> Page<Hit> {
        self.hit_log().page(after, limit, self.clock().started_unix_us())
    }

    fn calls(&self, after: u64, limit: usize) -> Page<DapiCallRecord> {
        self.call_log().page(after, limit, self.clock().started_unix_us())
    }

    fn keep_logs(&self, folder: &Path) -> std::io::Result<()> {
        let start = self.clock().started_unix_us();
        self.hit_log().keep_in(&folder.join(format!("{start}-hits.jsonl")))?;
        self.call_log().keep_in(&folder.join(format!("{start}-calls.jsonl")))
    }

    fn stats(&self) -> DapiStats {
        self.counters()
    }

    fn metrics(&self) -> String {
        let counters = self.counters();
        let active = self.core().active_by_node(self.clock().now_us());
        metrics::text(&counters, &active)
    }

    async fn act(self: Arc<Self>, _act: Self::Act) -> Result<(), String> {
        Err("mock-dapi has no admin actions; nodes are made unavailable by its configuration".to_owned())
    }
}

//! Model servers: leases from the allocator, their return, and the passive memory of nodes for times when
//! the allocator is away (contract mocks 4.3).

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use tonic::Code;
use tonic::transport::{Channel, Endpoint};
use wire::proto::nodemanager::node_manager_client::NodeManagerClient;
use wire::proto::nodemanager::{
    AcquireMlNodeRequest, AcquireMlNodeResponse, GetRuntimeConfigRequest, ReleaseMlNodeRequest,
    ReleaseOutcome, RuntimeConfig,
};

use crate::clock;
use crate::personality::Personality;

const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(2);
/// How long an answer is waited for that nobody needs any more, to give its lock back.
const LATE_LIMIT: Duration = Duration::from_secs(60);
const REMEMBER: Duration = Duration::from_secs(600);
const REMEMBER_MAX: usize = 256;
/// How long one question for settings may be held by the allocator, in seconds.
const POLL_S: i32 = 30;

/// A node to call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Base URL as given, lock included.
    pub endpoint: String,
    /// Its name.
    pub node_id: String,
    /// The lease to return; none for a remembered node.
    pub lock_id: Option<String>,
}

/// An acquire that gave no node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AcquireError {
    /// The allocator answered no; asking again later makes sense.
    #[error("allocator refused: {0}")]
    Refused(String),
    /// The allocator is away and no node is remembered.
    #[error("allocator unavailable and no node remembered: {0}")]
    Unavailable(String),
}

/// Client of the allocator.
#[derive(Debug)]
pub struct Nodes {
    client: NodeManagerClient<Channel>,
    remembered: Mutex<Vec<(Node, Instant)>>,
    turn: AtomicUsize,
    settings: RwLock<RuntimeConfig>,
    /// A lock that is granted after the question was given up is given back. July lets it run out.
    returns_late: bool,
}

impl Nodes {
    /// A client for `host:port`.
    ///
    /// # Errors
    /// When the text is no address.
    pub fn new(address: &str, personality: Personality) -> Result<Self, tonic::transport::Error> {
        let channel = Endpoint::from_shared(format!("http://{address}"))?
            .connect_timeout(ACQUIRE_TIMEOUT)
            .connect_lazy();
        // Until the allocator has spoken: requests are on and no limit is set.
        let settings = RuntimeConfig { devshard_requests_enabled: true, ..RuntimeConfig::default() };
        Ok(Self {
            client: NodeManagerClient::new(channel),
            remembered: Mutex::new(Vec::new()),
            turn: AtomicUsize::new(0),
            settings: RwLock::new(settings),
            returns_late: personality == Personality::Intended,
        })
    }

    /// Current settings.
    #[must_use]
    pub fn settings(&self) -> RuntimeConfig {
        self.settings.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Asks once for the settings; `wait` lets the allocator hold the question until they change.
    /// Returns whether it answered.
    pub async fn refresh_settings(&self, wait: bool) -> bool {
        let height = self.settings.read().unwrap_or_else(PoisonError::into_inner).params_block_height;
        let max_wait_seconds = if wait { POLL_S } else { 0 };
        let request = GetRuntimeConfigRequest { client_params_block_height: height, max_wait_seconds };
        let limit = Duration::from_secs(u64::from(max_wait_seconds.unsigned_abs())) + Duration::from_secs(5);
        let mut client = self.client.clone();
        let Ok(Ok(answer)) = tokio::time::timeout(limit, client.get_runtime_config(request)).await else {
            return false;
        };
        if let Some(config) = answer.into_inner().config {
            *self.settings.write().unwrap_or_else(PoisonError::into_inner) = config;
        }
        true
    }

    /// Leases a node that is not excluded; while the allocator is away, takes a remembered one in turn.
    ///
    /// # Errors
    /// See [`AcquireError`].
    pub async fn acquire(&self, model: &str, excluded: &[String]) -> Result<Node, AcquireError> {
        let request = AcquireMlNodeRequest {
            model: model.to_owned(),
            excluded_nodes: excluded.to_vec(),
            ..AcquireMlNodeRequest::default()
        };
        let answer = match self.ask(request).await {
            Some(Ok(answer)) => answer,
            Some(Err(status)) if !matches!(status.code(), Code::Unavailable | Code::DeadlineExceeded) => {
                return Err(AcquireError::Refused(status.message().to_owned()));
            }
            Some(Err(status)) => return self.recall_or(excluded, status.message()),
            None => return self.recall_or(excluded, "no answer within 2 s"),
        };
        let node = Node { endpoint: answer.endpoint, node_id: answer.node_id, lock_id: Some(answer.lock_id) };
        self.remember(&node);
        Ok(node)
    }

    /// The allocator's answer; `None` when it does not come in time. The allocator may have granted a lock by then, or do
    /// so later.
    async fn ask(&self, request: AcquireMlNodeRequest) -> Option<Granted> {
        let mut client = self.client.clone();
        if !self.returns_late {
            let asked = tokio::time::timeout(ACQUIRE_TIMEOUT, client.acquire_ml_node(request)).await.ok()?;
            return Some(asked.map(tonic::Response::into_inner));
        }
        let (answered, mut answer) = tokio::sync::oneshot::channel::<Granted>();
        tokio::spawn(async move {
            let asked = tokio::time::timeout(LATE_LIMIT, client.acquire_ml_node(request)).await;
            let Ok(asked) = asked else { return };
            // Nobody waits any more, or is gone altogether.
            if let Err(Ok(late)) = answered.send(asked.map(tonic::Response::into_inner)) {
                let _returned = give_back(client, late.lock_id, ReleaseOutcome::TransportError).await;
            }
        });
        match tokio::time::timeout(ACQUIRE_TIMEOUT, &mut answer).await {
            Ok(answer) => answer.ok(),
            Err(_) => {
                // What was sent in this very moment is not lost.
                answer.close();
                answer.try_recv().ok()
            }
        }
    }

    /// Returns a lease; false when the allocator did not take it, which changes nothing about the call.
    pub async fn release(&self, node: &Node, success: bool) -> bool {
        let Some(lock_id) = node.lock_id.clone() else { return true };
        let outcome = if success { ReleaseOutcome::Success } else { ReleaseOutcome::TransportError };
        give_back(self.client.clone(), lock_id, outcome).await
    }

    /// A remembered node without its lock, for the planted defect `unlocked-call`.
    #[must_use]
    pub fn recall_unlocked(&self) -> Option<Node> {
        let node = self.recall(&[])?;
        let base = node.endpoint.split("/l/").next().unwrap_or_default().to_owned();
        Some(Node { endpoint: base, lock_id: None, ..node })
    }

    fn recall_or(&self, excluded: &[String], reason: &str) -> Result<Node, AcquireError> {
        self.recall(excluded).ok_or_else(|| AcquireError::Unavailable(reason.to_owned()))
    }

    fn recall(&self, excluded: &[String]) -> Option<Node> {
        let mut remembered = self.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        let now = clock::instant();
        remembered.retain(|(_, at)| now.duration_since(*at) < REMEMBER);
        let usable: Vec<&Node> = remembered
            .iter()
            .map(|(node, _)| node)
            .filter(|node| !excluded.contains(&node.node_id))
            .collect();
        if usable.is_empty() {
            return None;
        }
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) % usable.len();
        Some(Node { lock_id: None, ..usable[turn].clone() })
    }

    fn remember(&self, node: &Node) {
        let mut remembered = self.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        remembered.retain(|(known, _)| known.node_id != node.node_id);
        if remembered.len() >= REMEMBER_MAX {
            remembered.remove(0);
        }
        remembered.push((node.clone(), clock::instant()));
        // In the order of names, so that the turn does not depend on who was leased last.
        remembered.sort_by(|(a, _), (b, _)| a.node_id.cmp(&b.node_id));
    }
}

/// What the allocator answers to a question for a node.
type Granted = Result<AcquireMlNodeResponse, tonic::Status>;

/// Whether the allocator took a lock back.
async fn give_back(mut client: NodeManagerClient<Channel>, lock_id: String, outcome: ReleaseOutcome) -> bool {
    let request = ReleaseMlNodeRequest { lock_id, outcome: outcome.into() };
    let done = tokio::time::timeout(ACQUIRE_TIMEOUT, client.release_ml_node(request)).await;
    matches!(done, Ok(Ok(_)))
}

//! gRPC `nodemanager.NodeManager` (contract mocks 4.1 to 4.3). One instance serves one listener and knows its caller
//! by it, since an acquire names none.

use std::sync::Arc;
use std::time::Duration;

use scenario::fault::{DapiCall, DapiFault, Refusal};
use tonic::{Request, Response, Status};
use wire::proto::nodemanager::node_manager_server::NodeManager;
use wire::proto::nodemanager::{
    AcquireMlNodeRequest, AcquireMlNodeResponse, GetRuntimeConfigRequest, GetRuntimeConfigResponse,
    ModelValidationThreshold, ReleaseMlNodeRequest, ReleaseMlNodeResponse, ReleaseOutcome, RuntimeConfig,
};

use crate::dapi::locks::Return;
use crate::dapi::shared::{Entry, Shared};

/// Longest hold of a long poll; clients give up after 65 s (contract mocks 4.2).
const HOLD_MAX: Duration = Duration::from_secs(60);
/// Excluded nodes that are read; no pool is larger.
const EXCLUDED_MAX: usize = 1_024;

/// The service of one listener.
#[derive(Clone, Debug)]
pub struct Service {
    shared: Arc<Shared>,
    host: Arc<str>,
}

impl Service {
    /// For calls of `host`.
    #[must_use]
    pub fn new(shared: Arc<Shared>, host: &str) -> Self {
        Self { shared, host: host.into() }
    }

    /// Carries out the part of a fault that comes before the answer.
    async fn before_answer(&self, entry: &Entry<'_>) -> Result<(), Status> {
        match entry.action() {
            Some(DapiFault::Reject(Refusal::ResourceExhausted)) => {
                Err(Status::resource_exhausted("no ML node: refused by a fault rule"))
            }
            Some(DapiFault::Reject(Refusal::Unavailable)) => {
                Err(Status::unavailable("allocator unavailable: refused by a fault rule"))
            }
            Some(DapiFault::Outage(_)) => Err(outage()),
            Some(DapiFault::Delay(time)) if !self.shared.pause(time.duration()).await => Err(closing()),
            Some(DapiFault::Delay(_) | DapiFault::LoseRelease(_)) | None => Ok(()),
        }
    }

    /// Holds a poll until there is news, an outage, the end of its wait, or the end of the process.
    async fn poll(
        &self,
        entry: &mut Entry<'_>,
        ask: GetRuntimeConfigRequest,
    ) -> Result<GetRuntimeConfigResponse, Status> {
        // Subscribing after the first look would lose a change in between.
        let mut changes = self.shared.changes();
        let wait = Duration::from_secs(u64::try_from(ask.max_wait_seconds).unwrap_or(0)).min(HOLD_MAX);
        let deadline = tokio::time::sleep(wait);
        tokio::pin!(deadline);
        let known = ask.client_params_block_height;
        loop {
            if let Some(news) = self.news(known) {
                return Ok(GetRuntimeConfigResponse { unchanged: false, config: Some(news) });
            }
            if wait.is_zero() {
                return Ok(unchanged());
            }
            tokio::select! {
                () = &mut deadline => return Ok(unchanged()),
                () = self.shared.closing().cancelled() => return Err(closing()),
                changed = changes.changed() => changed.map_err(|_| closing())?,
            }
            if entry.meets_outage() {
                return Err(outage());
            }
        }
    }

    /// The whole configuration when the client does not have it yet.
    fn news(&self, known: i64) -> Option<RuntimeConfig> {
        let core = self.shared.core();
        let (height, params) = core.runtime();
        if known != 0 && height != 0 && height <= known {
            return None;
        }
        let threshold = ModelValidationThreshold {
            model_id: params.model.clone(),
            threshold_value: params.threshold_value,
            threshold_exponent: params.threshold_exponent,
        };
        Some(RuntimeConfig {
            params_block_height: height,
            current_epoch_id: params.epoch,
            logprobs_mode: params.logprobs_mode.clone(),
            devshard_requests_enabled: params.requests_enabled,
            max_nonce: params.max_nonce,
            approved_versions: Vec::new(),
            served_at_unix: self.shared.clock().unix_s(),
            refusal_timeout: params.refusal_timeout_s,
            execution_timeout: params.execution_timeout_s,
            validation_rate: params.validation_rate,
            vote_threshold_factor: params.vote_threshold_factor,
            validation_thresholds: if params.model.is_empty() { Vec::new() } else { vec![threshold] },
        })
    }
}

#[tonic::async_trait]
impl NodeManager for Service {
    async fn acquire_ml_node(
        &self,
        request: Request<AcquireMlNodeRequest>,
    ) -> Result<Response<AcquireMlNodeResponse>, Status> {
        let mut excluded = request.into_inner().excluded_nodes;
        excluded.truncate(EXCLUDED_MAX);
        let mut entry = Entry::open(&self.shared, DapiCall::Acquire, &self.host);
        entry.record().excluded.clone_from(&excluded);
        // A delayed acquire takes its node after the delay: a caller that has given up must not hold a lock.
        if let Err(status) = self.before_answer(&entry).await {
            self.shared.core().refuse_acquire();
            entry.finish("refused");
            return Err(status);
        }
        let ordinal = entry.record().ordinal;
        let grant = self.shared.core().acquire(ordinal, &excluded, self.shared.clock().now_us());
        let Some(grant) = grant else {
            entry.finish("exhausted");
            return Err(Status::resource_exhausted("no ML node is available"));
        };
        entry.record().lock = Some(grant.lock.clone());
        entry.record().node = Some(grant.node.clone());
        entry.finish("granted");
        let answer =
            AcquireMlNodeResponse { lock_id: grant.lock, endpoint: grant.endpoint, node_id: grant.node };
        Ok(Response::new(answer))
    }

    async fn release_ml_node(
        &self,
        request: Request<ReleaseMlNodeRequest>,
    ) -> Result<Response<ReleaseMlNodeResponse>, Status> {
        let request = request.into_inner();
        let mut entry = Entry::open(&self.shared, DapiCall::Release, &self.host);
        entry.record().outcome = Some(outcome_name(request.outcome()).to_owned());
        entry.record().lock = Some(request.lock_id.clone());
        if let Err(status) = self.before_answer(&entry).await {
            entry.finish("refused");
            return Err(status);
        }
        if matches!(entry.action(), Some(DapiFault::LoseRelease(_))) {
            let node = self.shared.core().node_of(&request.lock_id);
            entry.record().node = node;
            entry.finish("lost");
            return Ok(Response::new(ReleaseMlNodeResponse {}));
        }
        let back = self.shared.core().release(&request.lock_id, self.shared.clock().now_us());
        let (result, node) = match back {
            Return::Released(node) => ("released", Some(node)),
            Return::Twice(node) => ("released-twice", Some(node)),
            Return::Expired(node) => ("expired", Some(node)),
            Return::Unknown => ("unknown-lock", None),
        };
        entry.record().node = node;
        entry.finish(result);
        // Whatever it was, the caller hears no error: upstream ignores unknown locks (contract mocks 4.3).
        Ok(Response::new(ReleaseMlNodeResponse {}))
    }

    async fn get_runtime_config(
        &self,
        request: Request<GetRuntimeConfigRequest>,
    ) -> Result<Response<GetRuntimeConfigResponse>, Status> {
        let mut entry = Entry::open(&self.shared, DapiCall::RuntimeConfig, &self.host);
        let answer = match self.before_answer(&entry).await {
            Ok(()) => self.poll(&mut entry, request.into_inner()).await,
            Err(status) => Err(status),
        };
        entry.finish(if answer.is_ok() { "answered" } else { "refused" });
        answer.map(Response::new)
    }
}

fn unchanged() -> GetRuntimeConfigResponse {
    GetRuntimeConfigResponse { unchanged: true, config: None }
}

fn outage() -> Status {
    Status::unavailable("allocator unavailable: outage by a fault rule")
}

fn closing() -> Status {
    Status::unavailable("allocator is ending")
}

fn outcome_name(outcome: ReleaseOutcome) -> &'static str {
    match outcome {
        ReleaseOutcome::Success => "success",
        ReleaseOutcome::TransportError => "transport-error",
        ReleaseOutcome::ApplicationError => "application-error",
        ReleaseOutcome::Timeout => "timeout",
    }
}

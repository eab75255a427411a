//! What a host asks the chain: escrows, where participants answer, the epoch, validation thresholds.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tonic::transport::{Channel, Endpoint};
use wire::proto::inference::query_client::QueryClient;
use wire::proto::inference::{
    DevshardEscrow, QueryGetCurrentEpochRequest, QueryGetDevshardEscrowRequest,
    QueryGetEpochGroupDataRequest, QueryGetParticipantRequest,
};

use crate::personality::Waits;
use crate::state::{SessionConfig, SessionParams};

const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// Participants whose address is remembered; more than any group has.
const URLS_MAX: usize = 1024;

/// Why the chain gave no answer that can be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChainError {
    /// Not a decimal number.
    #[error("invalid escrow id {0:?}")]
    EscrowId(String),
    /// The chain knows no such escrow.
    #[error("escrow not found")]
    NotFound,
    /// The escrow cannot be served.
    #[error("escrow {0} has no slots")]
    NoSlots(String),
    /// The chain did not answer.
    #[error("chain query {query} failed: {reason}")]
    Query {
        /// Which question.
        query: &'static str,
        /// What came instead of an answer.
        reason: String,
    },
}

/// Client of the chain. Connects on first use and again after a loss.
#[derive(Debug)]
pub struct Chain {
    client: QueryClient<Channel>,
    epoch: AtomicU64,
    urls: Mutex<HashMap<String, String>>,
}

impl Chain {
    /// A client for `host:port`.
    ///
    /// # Errors
    /// When the text is no address.
    pub fn new(address: &str) -> Result<Self, tonic::transport::Error> {
        let channel = Endpoint::from_shared(format!("http://{address}"))?
            .connect_timeout(CALL_TIMEOUT)
            .timeout(CALL_TIMEOUT)
            .connect_lazy();
        Ok(Self {
            client: QueryClient::new(channel),
            epoch: AtomicU64::new(0),
            urls: Mutex::new(HashMap::new()),
        })
    }

    /// Epoch as of the last successful question.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Relaxed)
    }

    /// Asks for the epoch.
    ///
    /// # Errors
    /// When the chain does not answer.
    pub async fn refresh_epoch(&self) -> Result<u64, ChainError> {
        let answer = self.client.clone().get_current_epoch(QueryGetCurrentEpochRequest {}).await;
        let epoch = answer.map_err(|status| failed("GetCurrentEpoch", &status))?.into_inner().epoch;
        self.epoch.store(epoch, Ordering::Relaxed);
        Ok(epoch)
    }

    /// What a session of this escrow begins with, and the escrow's epoch.
    ///
    /// # Errors
    /// When the id is malformed, the escrow unknown or without slots, or the chain does not answer.
    pub async fn session_params(
        &self,
        escrow_id: &str,
        protocol_version: &str,
        waits: Waits,
    ) -> Result<(SessionParams, u64), ChainError> {
        let id: u64 = escrow_id.parse().map_err(|_| ChainError::EscrowId(escrow_id.to_owned()))?;
        let answer = self.client.clone().devshard_escrow(QueryGetDevshardEscrowRequest { id }).await;
        let answer = answer.map_err(|status| failed("DevshardEscrow", &status))?.into_inner();
        let escrow = answer.escrow.filter(|_| answer.found).ok_or(ChainError::NotFound)?;
        if escrow.slots.is_empty() {
            return Err(ChainError::NoSlots(escrow_id.to_owned()));
        }
        let epoch = escrow.epoch_index;
        Ok((params_of(escrow, protocol_version, waits), epoch))
    }

    /// Where the participant's router answers; remembered after the first question.
    ///
    /// # Errors
    /// When the chain does not answer or knows no address.
    pub async fn participant_url(&self, address: &str) -> Result<String, ChainError> {
        let known = |urls: &Mutex<HashMap<String, String>>| {
            urls.lock().unwrap_or_else(std::sync::PoisonError::into_inner).get(address).cloned()
        };
        if let Some(url) = known(&self.urls) {
            return Ok(url);
        }
        let request = QueryGetParticipantRequest { index: address.to_owned() };
        let answer = self.client.clone().participant(request).await;
        let answer = answer.map_err(|status| failed("Participant", &status))?.into_inner();
        let url = answer.participant.map(|participant| participant.inference_url).unwrap_or_default();
        if url.is_empty() {
            return Err(ChainError::Query { query: "Participant", reason: format!("no URL of {address}") });
        }
        let mut urls = self.urls.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if urls.len() >= URLS_MAX {
            urls.clear();
        }
        urls.insert(address.to_owned(), url.clone());
        Ok(url)
    }

    /// Similarity that a replay must exceed for this model, if the chain sets one.
    ///
    /// # Errors
    /// When the chain does not answer.
    pub async fn validation_threshold(&self, model: &str) -> Result<Option<f64>, ChainError> {
        let request = QueryGetEpochGroupDataRequest { epoch_index: self.epoch(), model_id: model.to_owned() };
        let answer = self.client.clone().epoch_group_data(request).await;
        let answer = answer.map_err(|status| failed("EpochGroupData", &status))?.into_inner();
        let decimal = answer
            .epoch_group_data
            .and_then(|data| data.model_snapshot)
            .and_then(|snapshot| snapshot.validation_threshold);
        Ok(decimal.map(|decimal| threshold(decimal.value, decimal.exponent)))
    }
}

/// `value · 10^exponent`.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "thresholds have a few digits")]
pub fn threshold(value: i64, exponent: i32) -> f64 {
    value as f64 * 10_f64.powi(exponent)
}

fn failed(query: &'static str, status: &tonic::Status) -> ChainError {
    ChainError::Query { query, reason: format!("{:?} {}", status.code(), status.message()) }
}

fn params_of(escrow: DevshardEscrow, protocol_version: &str, waits: Waits) -> SessionParams {
    let size = u32::try_from(escrow.slots.len()).unwrap_or(u32::MAX);
    SessionParams {
        escrow_id: escrow.id.to_string(),
        protocol_version: protocol_version.to_owned(),
        config: SessionConfig::of_escrow(&escrow, size, waits),
        creator: escrow.creator,
        group: escrow.slots,
        initial_balance: escrow.amount,
    }
}

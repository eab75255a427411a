//! What a gateway asks the chain, and the transactions that open and settle an escrow (contract gateway 1.4).

use std::time::Duration;

use prost::Message as _;
use tonic::Code;
use tonic::transport::{Channel, Endpoint};
use wire::keys::PrivateKey;
use wire::proto::Any;
use wire::proto::auth::query_client::QueryClient as AuthClient;
use wire::proto::auth::{BaseAccount, QueryAccountRequest};
use wire::proto::inference::query_client::QueryClient;
use wire::proto::inference::{
    MsgCreateDevshardEscrow, MsgSettleDevshardEscrow, QueryGetDevshardEscrowRequest,
    QueryGetParticipantRequest,
};
use wire::proto::secp256k1::PubKey;
use wire::proto::tendermint::GetNodeInfoRequest;
use wire::proto::tendermint::service_client::ServiceClient as NodeClient;
use wire::proto::tx::service_client::ServiceClient as TxClient;
use wire::proto::tx::{
    AuthInfo, BroadcastMode, BroadcastTxRequest, Fee, GetTxRequest, ModeInfo, SignDoc, SignerInfo, TxBody,
    TxRaw, mode_info,
};

use crate::personality::Waits;
use crate::state::{SessionConfig, SessionParams};

const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a transaction may wait for a block.
const TX_LIFETIME_S: i64 = 60;
const GAS_LIMIT: u64 = 500_000;
/// How long a created escrow is waited for: 45 s in questions of half a second.
const CREATED_POLLS: u32 = 90;
const CREATED_POLL: Duration = Duration::from_millis(500);

/// Why the chain gave no answer that can be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChainError {
    /// The chain knows no such escrow.
    #[error("escrow {0} not found")]
    NotFound(u64),
    /// The escrow cannot be served.
    #[error("escrow {escrow}: {problem}")]
    Escrow {
        /// Which.
        escrow: u64,
        /// What is wrong with it.
        problem: String,
    },
    /// The chain did not answer.
    #[error("chain query {query} failed: {reason}")]
    Query {
        /// Which question.
        query: &'static str,
        /// What came instead of an answer.
        reason: String,
    },
    /// The chain refused a transaction.
    #[error("transaction refused with code {code}: {log}")]
    Refused {
        /// Code of the answer.
        code: u32,
        /// Its text.
        log: String,
    },
}

/// Client of the chain. Connects on first use and again after a loss.
#[derive(Clone, Debug)]
pub struct Chain {
    channel: Channel,
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
        Ok(Self { channel })
    }

    /// What a session of this escrow begins with.
    ///
    /// # Errors
    /// When the escrow is unknown or without slots, or the chain does not answer.
    pub async fn session_params(
        &self,
        id: u64,
        protocol_version: &str,
        waits: Waits,
    ) -> Result<SessionParams, ChainError> {
        let mut client = QueryClient::new(self.channel.clone());
        let answer = client.devshard_escrow(QueryGetDevshardEscrowRequest { id }).await;
        let answer = answer.map_err(|status| failed("DevshardEscrow", &status))?.into_inner();
        let escrow = answer.escrow.filter(|_| answer.found).ok_or(ChainError::NotFound(id))?;
        if escrow.slots.is_empty() {
            return Err(ChainError::Escrow { escrow: id, problem: "it has no slots".to_owned() });
        }
        let size = u32::try_from(escrow.slots.len()).unwrap_or(u32::MAX);
        Ok(SessionParams {
            escrow_id: escrow.id.to_string(),
            protocol_version: protocol_version.to_owned(),
            config: SessionConfig::of_escrow(&escrow, size, waits),
            creator: escrow.creator,
            group: escrow.slots,
            initial_balance: escrow.amount,
        })
    }

    /// Where the participant's router answers.
    ///
    /// # Errors
    /// When the chain does not answer or knows no address.
    pub async fn participant_url(&self, address: &str) -> Result<String, ChainError> {
        let mut client = QueryClient::new(self.channel.clone());
        let answer = client.participant(QueryGetParticipantRequest { index: address.to_owned() }).await;
        let answer = answer.map_err(|status| failed("Participant", &status))?.into_inner();
        let url = answer.participant.map(|participant| participant.inference_url).unwrap_or_default();
        if url.is_empty() {
            return Err(ChainError::Query { query: "Participant", reason: format!("no URL of {address}") });
        }
        Ok(url.trim_end_matches('/').to_owned())
    }

    /// Sends the settlement and returns the transaction's hash. `now` (seconds, nanoseconds) makes the
    /// transaction unique.
    ///
    /// # Errors
    /// When the chain does not answer or refuses.
    pub async fn settle(
        &self,
        message: &MsgSettleDevshardEscrow,
        key: &PrivateKey,
        now: (i64, i32),
    ) -> Result<String, ChainError> {
        let any = Any {
            type_url: "/inference.inference.MsgSettleDevshardEscrow".to_owned(),
            value: message.encode_to_vec(),
        };
        self.send(any, &message.settler, key, now).await
    }

    /// Opens an escrow: its id and the transaction's hash.
    ///
    /// # Errors
    /// When the chain does not answer, refuses, or the transaction is in no block in time.
    pub async fn create(
        &self,
        message: &MsgCreateDevshardEscrow,
        key: &PrivateKey,
        now: (i64, i32),
    ) -> Result<(u64, String), ChainError> {
        let any = Any {
            type_url: "/inference.inference.MsgCreateDevshardEscrow".to_owned(),
            value: message.encode_to_vec(),
        };
        let hash = self.send(any, &message.creator, key, now).await?;
        for _ in 0..CREATED_POLLS {
            let request = GetTxRequest { hash: hash.clone() };
            match TxClient::new(self.channel.clone()).get_tx(request).await {
                Ok(answer) => {
                    let response = answer.into_inner().tx_response.unwrap_or_default();
                    let id = response
                        .events
                        .iter()
                        .filter(|event| event.r#type == "devshard_escrow_created")
                        .flat_map(|event| &event.attributes)
                        .find(|attribute| attribute.key == "escrow_id")
                        .and_then(|attribute| attribute.value.parse().ok());
                    let reason = || format!("{hash} carries no created event");
                    return id
                        .map(|id| (id, hash.clone()))
                        .ok_or_else(|| ChainError::Query { query: "GetTx", reason: reason() });
                }
                // Not in a block yet.
                Err(status) if status.code() == Code::NotFound => tokio::time::sleep(CREATED_POLL).await,
                Err(status) => return Err(failed("GetTx", &status)),
            }
        }
        Err(ChainError::Query { query: "GetTx", reason: format!("{hash} is in no block in time") })
    }

    async fn send(
        &self,
        message: Any,
        sender: &str,
        key: &PrivateKey,
        now: (i64, i32),
    ) -> Result<String, ChainError> {
        let account = AuthClient::new(self.channel.clone())
            .account(QueryAccountRequest { address: sender.to_owned() })
            .await;
        let number = match account {
            Ok(answer) => {
                let any = answer.into_inner().account.unwrap_or_default();
                BaseAccount::decode(any.value.as_slice()).unwrap_or_default().account_number
            }
            Err(status) if status.code() == Code::NotFound => 0,
            Err(status) => return Err(failed("Account", &status)),
        };
        let node = NodeClient::new(self.channel.clone()).get_node_info(GetNodeInfoRequest {}).await;
        let node = node.map_err(|status| failed("GetNodeInfo", &status))?.into_inner();
        let chain_id = node.default_node_info.map(|info| info.network).unwrap_or_default();
        let tx_bytes = transaction(message, key, now, &chain_id, number);
        let request = BroadcastTxRequest { tx_bytes, mode: BroadcastMode::Sync.into() };
        let answer = TxClient::new(self.channel.clone()).broadcast_tx(request).await;
        let answer = answer.map_err(|status| failed("BroadcastTx", &status))?.into_inner();
        let response = answer.tx_response.unwrap_or_default();
        if response.code != 0 {
            return Err(ChainError::Refused { code: response.code, log: response.raw_log });
        }
        Ok(response.txhash)
    }
}

/// An unordered transaction: its time makes it unique, so no sequence has to be known.
fn transaction(
    message: Any,
    key: &PrivateKey,
    (seconds, nanos): (i64, i32),
    chain_id: &str,
    account_number: u64,
) -> Vec<u8> {
    let body = TxBody {
        messages: vec![message],
        unordered: true,
        timeout_timestamp: Some(wire::proto::Timestamp { seconds: seconds + TX_LIFETIME_S, nanos }),
        ..TxBody::default()
    };
    let public_key = PubKey { key: key.public_key().compressed().to_vec() };
    let signer = SignerInfo {
        public_key: Some(Any {
            type_url: "/cosmos.crypto.secp256k1.PubKey".to_owned(),
            value: public_key.encode_to_vec(),
        }),
        mode_info: Some(ModeInfo { single: Some(mode_info::Single { mode: 1 }) }),
        sequence: Some(0),
    };
    let fee = Fee { amount: Vec::new(), gas_limit: GAS_LIMIT };
    let auth_info = AuthInfo { signer_infos: vec![signer], fee: Some(fee) };
    let (body_bytes, auth_info_bytes) = (body.encode_to_vec(), auth_info.encode_to_vec());
    let document = SignDoc {
        body_bytes: body_bytes.clone(),
        auth_info_bytes: auth_info_bytes.clone(),
        chain_id: chain_id.to_owned(),
        account_number: Some(account_number),
    };
    let signature = key.sign_plain(&document.encode_to_vec()).to_bytes().to_vec();
    TxRaw { body_bytes, auth_info_bytes, signatures: vec![signature] }.encode_to_vec()
}

fn failed(query: &'static str, status: &tonic::Status) -> ChainError {
    ChainError::Query { query, reason: format!("{:?} {}", status.code(), status.message()) }
}

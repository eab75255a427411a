//! gRPC of the chain: inference queries, accounts, transactions, blocks (contract mocks 5.1 to 5.6, fixture wire-july
//! section 4). What is unknown is answered as the real chain's stand-in does: with status OK and empty parts.

use std::sync::Arc;

use prost::Message as _;
use scenario::control::{ChainEscrow, ChainGrant, ChainParams};
use tonic::{Request, Response, Status};
use wire::keys::Address;
use wire::proto::abci::{Event, EventAttribute, TxResponse};
use wire::proto::auth::query_server::Query as AuthQuery;
use wire::proto::auth::{BaseAccount, QueryAccountRequest, QueryAccountResponse};
use wire::proto::inference::query_server::Query;
use wire::proto::inference::{self as messages, DevshardEscrow, DevshardEscrowParams, Params};
use wire::proto::tendermint::service_server::Service as BlockService;
use wire::proto::tendermint::{
    Block, DefaultNodeInfo, GetLatestBlockRequest, GetLatestBlockResponse, GetNodeInfoRequest,
    GetNodeInfoResponse, Header,
};
use wire::proto::tx::service_server::Service as TxService;
use wire::proto::tx::{BroadcastTxRequest, BroadcastTxResponse, GetTxRequest, GetTxResponse};

use crate::chain::ledger::{ChainEvent, EPOCH_LENGTH, Ledger};
use crate::chain::shared::{Call, Shared};
use crate::chain::tx;

/// Status of a participant that takes part.
const ACTIVE: i32 = 1;
/// The application hash of the generated seed: bytes 1 to 32 (contract mocks 2.2).
const APP_HASH: &str = "0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f20";
/// Codespace of refused transactions.
const CODESPACE: &str = "mockchain";

/// All gRPC services of the chain.
#[derive(Clone, Debug)]
pub struct Service {
    shared: Arc<Shared>,
}

impl Service {
    /// Around the shared state.
    #[must_use]
    pub fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Saves, and turns a disk that fails into a call that fails: an answer must not be forgotten by a restart.
    async fn save(&self, call: &mut Call<'_>) -> Result<(), Status> {
        match self.shared.save().await {
            Ok(()) => Ok(()),
            Err(error) => call.refuse(Status::internal(error)),
        }
    }
}

#[tonic::async_trait]
impl Query for Service {
    async fn params(
        &self,
        _: Request<messages::QueryParamsRequest>,
    ) -> Result<Response<messages::QueryParamsResponse>, Status> {
        let call = Call::open(&self.shared, "Params", "").await?;
        let params = params(&self.shared.core().ledger);
        call.answer(messages::QueryParamsResponse { params: Some(params) })
    }

    async fn epoch_info(
        &self,
        _: Request<messages::QueryEpochInfoRequest>,
    ) -> Result<Response<messages::QueryEpochInfoResponse>, Status> {
        let call = Call::open(&self.shared, "EpochInfo", "").await?;
        let answer = {
            let core = self.shared.core();
            let saved = core.ledger.saved();
            let epoch =
                messages::Epoch { index: saved.epoch, poc_start_block_height: signed(saved.epoch_start) };
            messages::QueryEpochInfoResponse {
                block_height: signed(saved.height),
                params: Some(params(&core.ledger)),
                latest_epoch: Some(epoch),
            }
        };
        call.answer(answer)
    }

    async fn get_current_epoch(
        &self,
        _: Request<messages::QueryGetCurrentEpochRequest>,
    ) -> Result<Response<messages::QueryGetCurrentEpochResponse>, Status> {
        let call = Call::open(&self.shared, "GetCurrentEpoch", "").await?;
        let epoch = self.shared.core().ledger.saved().epoch;
        call.answer(messages::QueryGetCurrentEpochResponse { epoch })
    }

    async fn devshard_escrow(
        &self,
        request: Request<messages::QueryGetDevshardEscrowRequest>,
    ) -> Result<Response<messages::QueryGetDevshardEscrowResponse>, Status> {
        let id = request.into_inner().id;
        let call = Call::open(&self.shared, "DevshardEscrow", &id.to_string()).await?;
        let escrow = self.shared.core().ledger.escrow(id).map(escrow_message);
        let found = escrow.is_some();
        call.answer(messages::QueryGetDevshardEscrowResponse { escrow, found })
    }

    async fn participant(
        &self,
        request: Request<messages::QueryGetParticipantRequest>,
    ) -> Result<Response<messages::QueryGetParticipantResponse>, Status> {
        let index = request.into_inner().index;
        let call = Call::open(&self.shared, "Participant", &index).await?;
        let participant = {
            let core = self.shared.core();
            let known = core.ledger.config().participants.iter().find(|known| known.address == index);
            known.map(|known| messages::Participant {
                index: known.address.clone(),
                address: known.address.clone(),
                inference_url: known.inference_url.clone(),
                status: ACTIVE,
            })
        };
        let participant = Some(participant.unwrap_or_default());
        call.answer(messages::QueryGetParticipantResponse { participant })
    }

    async fn account_by_address(
        &self,
        request: Request<messages::QueryAccountByAddressRequest>,
    ) -> Result<Response<messages::QueryAccountByAddressResponse>, Status> {
        let address = request.into_inner().address;
        let call = Call::open(&self.shared, "AccountByAddress", &address).await?;
        let pubkey = self.shared.core().ledger.pubkey(&address);
        let denom = "ngonka".to_owned();
        call.answer(messages::QueryAccountByAddressResponse { pubkey, balance: 0, denom })
    }

    /// An empty list is a good answer; an error would stop every validation (contract mocks 5.3).
    async fn grantees_by_message_type(
        &self,
        request: Request<messages::QueryGranteesByMessageTypeRequest>,
    ) -> Result<Response<messages::QueryGranteesByMessageTypeResponse>, Status> {
        let ask = request.into_inner();
        let call = Call::open(&self.shared, "GranteesByMessageType", &ask.granter_address).await?;
        let grantees = {
            let core = self.shared.core();
            let of = |grant: &&ChainGrant| {
                grant.granter == ask.granter_address && grant.message_type == ask.message_type_url
            };
            let grants = core.ledger.config().grants.iter().filter(of);
            grants
                .map(|grant| messages::Grantee {
                    address: grant.grantee.clone(),
                    pub_key: grant.pubkey.clone(),
                })
                .collect()
        };
        call.answer(messages::QueryGranteesByMessageTypeResponse { grantees })
    }

    async fn epoch_group_data(
        &self,
        request: Request<messages::QueryGetEpochGroupDataRequest>,
    ) -> Result<Response<messages::QueryGetEpochGroupDataResponse>, Status> {
        let ask = request.into_inner();
        let argument = format!("{} {}", ask.epoch_index, ask.model_id);
        let call = Call::open(&self.shared, "EpochGroupData", &argument).await?;
        let group = {
            let core = self.shared.core();
            let known =
                ask.epoch_index <= core.ledger.saved().epoch && core.ledger.knows_model(&ask.model_id);
            if known { group(ask, &core.ledger.config().params) } else { messages::EpochGroupData::default() }
        };
        call.answer(messages::QueryGetEpochGroupDataResponse { epoch_group_data: Some(group) })
    }

    async fn preserved_nodes_snapshot(
        &self,
        _: Request<messages::QueryPreservedNodesSnapshotRequest>,
    ) -> Result<Response<messages::QueryPreservedNodesSnapshotResponse>, Status> {
        let call = Call::open(&self.shared, "PreservedNodesSnapshot", "").await?;
        call.answer(messages::QueryPreservedNodesSnapshotResponse { snapshot: None, found: false })
    }
}

#[tonic::async_trait]
impl AuthQuery for Service {
    async fn account(
        &self,
        request: Request<QueryAccountRequest>,
    ) -> Result<Response<QueryAccountResponse>, Status> {
        let address = request.into_inner().address;
        let mut call = Call::open(&self.shared, "Account", &address).await?;
        if Address::parse(&address).is_err() {
            return call.refuse(Status::invalid_argument("this is no account address"));
        }
        let account = self.shared.core().ledger.account(&address).cloned();
        let Some(account) = account else {
            return call.refuse(Status::unavailable("no more accounts can be kept"));
        };
        let message = BaseAccount {
            address,
            pub_key: None,
            account_number: account.number,
            sequence: account.sequence,
        };
        let any = wire::proto::Any {
            type_url: "/cosmos.auth.v1beta1.BaseAccount".to_owned(),
            value: message.encode_to_vec(),
        };
        call.answer(QueryAccountResponse { account: Some(any) })
    }
}

#[tonic::async_trait]
impl TxService for Service {
    async fn broadcast_tx(
        &self,
        request: Request<BroadcastTxRequest>,
    ) -> Result<Response<BroadcastTxResponse>, Status> {
        let bytes = request.into_inner().tx_bytes;
        let mut call = Call::open(&self.shared, "BroadcastTx", &tx::hash(&bytes)).await?;
        let done = tx::read(&bytes).and_then(|transaction| {
            self.shared.core().ledger.submit(&transaction).map_err(|refused| refused.0)
        });
        // A refusal is an answer with status OK (fixture wire-july section 4).
        let response = match done {
            Err(raw_log) => {
                TxResponse { codespace: CODESPACE.to_owned(), code: 1, raw_log, ..TxResponse::default() }
            }
            Ok(stored) => {
                self.save(&mut call).await?;
                TxResponse {
                    txhash: stored.hash,
                    events: vec![event_message(stored.event)],
                    ..TxResponse::default()
                }
            }
        };
        call.answer(BroadcastTxResponse { tx_response: Some(response) })
    }

    async fn get_tx(&self, request: Request<GetTxRequest>) -> Result<Response<GetTxResponse>, Status> {
        let hash = request.into_inner().hash;
        let mut call = Call::open(&self.shared, "GetTx", &hash).await?;
        if hash.is_empty() {
            return call.refuse(Status::invalid_argument("`hash` is needed"));
        }
        let found = self.shared.core().ledger.transaction(&hash).cloned();
        let Some(stored) = found else {
            return call.refuse(Status::not_found("this transaction is in no block yet"));
        };
        let response = TxResponse {
            height: signed(stored.height),
            txhash: stored.hash,
            events: vec![event_message(stored.event)],
            ..TxResponse::default()
        };
        call.answer(GetTxResponse { tx_response: Some(response) })
    }
}

#[tonic::async_trait]
impl BlockService for Service {
    async fn get_latest_block(
        &self,
        _: Request<GetLatestBlockRequest>,
    ) -> Result<Response<GetLatestBlockResponse>, Status> {
        let call = Call::open(&self.shared, "GetLatestBlock", "").await?;
        let header = {
            let core = self.shared.core();
            let saved = core.ledger.saved();
            Header { chain_id: saved.chain_id.clone(), height: signed(saved.height) }
        };
        call.answer(GetLatestBlockResponse { sdk_block: Some(Block { header: Some(header) }) })
    }

    async fn get_node_info(
        &self,
        _: Request<GetNodeInfoRequest>,
    ) -> Result<Response<GetNodeInfoResponse>, Status> {
        let call = Call::open(&self.shared, "GetNodeInfo", "").await?;
        let network = self.shared.core().ledger.saved().chain_id.clone();
        call.answer(GetNodeInfoResponse { default_node_info: Some(DefaultNodeInfo { network }) })
    }
}

/// Heights are signed on the wire.
fn signed(height: u64) -> i64 {
    i64::try_from(height).unwrap_or(i64::MAX)
}

/// Clients read these at boot and when the allocator can't tell them (contract mocks 4.2).
fn params(ledger: &Ledger) -> Params {
    let announced = &ledger.config().params;
    let escrow_params = DevshardEscrowParams {
        max_nonce: announced.max_nonce,
        devshard_requests_enabled: announced.requests_enabled,
        refusal_timeout: announced.refusal_timeout_s,
        execution_timeout: announced.execution_timeout_s,
        validation_rate: announced.validation_rate,
        vote_threshold_factor: announced.vote_threshold_factor,
        ..DevshardEscrowParams::default()
    };
    let logprobs_mode = announced.logprobs_mode.clone();
    Params {
        epoch_params: Some(messages::EpochParams { epoch_length: signed(EPOCH_LENGTH) }),
        validation_params: Some(messages::ValidationParams { logprobs_mode }),
        devshard_escrow_params: Some(escrow_params),
    }
}

/// What the configuration does not hold has the values of the captured escrow. Zero would mean "compiled default"
/// (contract mocks 2.2), which differs between builds.
fn escrow_message(escrow: ChainEscrow) -> DevshardEscrow {
    DevshardEscrow {
        id: escrow.id,
        creator: escrow.creator,
        amount: escrow.amount,
        slots: escrow.slots,
        epoch_index: escrow.epoch,
        app_hash: APP_HASH.to_owned(),
        settled: escrow.settled,
        token_price: escrow.token_price,
        model_id: escrow.model,
        create_devshard_fee: 1_000,
        fee_per_nonce: escrow.fee_per_nonce,
        inference_seal_grace_nonces: 3,
        inference_seal_grace_seconds: 30,
        auto_seal_every_n_nonces: 100,
        validation_rate: escrow.validation_rate,
        vote_threshold_factor: escrow.vote_threshold_factor,
    }
}

/// The group of an epoch with the announced threshold, which a score must exceed (contract mocks 2.1).
fn group(ask: messages::QueryGetEpochGroupDataRequest, params: &ChainParams) -> messages::EpochGroupData {
    let threshold = messages::Decimal { value: params.threshold_value, exponent: params.threshold_exponent };
    let model = messages::Model { id: ask.model_id.clone(), validation_threshold: Some(threshold) };
    messages::EpochGroupData {
        model_id: ask.model_id,
        epoch_index: ask.epoch_index,
        model_snapshot: Some(model),
    }
}

fn event_message(event: ChainEvent) -> Event {
    let attribute = |(key, value)| EventAttribute { key, value, index: false };
    Event { r#type: event.kind, attributes: event.attributes.into_iter().map(attribute).collect() }
}

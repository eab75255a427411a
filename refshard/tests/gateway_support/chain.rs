//! A chain with what gateways and hosts ask, and the two transactions of a gateway.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use prost::Message as _;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};
use wire::proto::abci::{Event, EventAttribute, TxResponse};
use wire::proto::auth::query_server::{Query as AuthQuery, QueryServer as AuthServer};
use wire::proto::auth::{BaseAccount, QueryAccountRequest, QueryAccountResponse};
use wire::proto::inference::query_server::{Query, QueryServer};
use wire::proto::inference::{
    self as messages, DevshardEscrow, MsgCreateDevshardEscrow, MsgSettleDevshardEscrow,
};
use wire::proto::tendermint::service_server::{Service as NodeService, ServiceServer as NodeServer};
use wire::proto::tendermint::{
    DefaultNodeInfo, GetLatestBlockRequest, GetLatestBlockResponse, GetNodeInfoRequest, GetNodeInfoResponse,
};
use wire::proto::tx::service_server::{Service as TxService, ServiceServer as TxServer};
use wire::proto::tx::{BroadcastTxRequest, BroadcastTxResponse, GetTxRequest, GetTxResponse, TxBody, TxRaw};

#[derive(Clone)]
pub struct FakeChain {
    pub address: SocketAddr,
    pub settlements: Arc<Mutex<Vec<MsgSettleDevshardEscrow>>>,
    pub epoch: Arc<AtomicU64>,
    /// Where participants answer; may be filled after the start.
    pub urls: Arc<Mutex<BTreeMap<String, String>>>,
    pub escrows: Arc<Mutex<BTreeMap<u64, DevshardEscrow>>>,
}

impl FakeChain {
    pub async fn start(ids: &[u64], creator: &str, slots: &[String]) -> Self {
        let escrow = |id: u64| DevshardEscrow {
            id,
            creator: creator.to_owned(),
            // Escrow 9 is poor.
            amount: if id == 9 { 30_000 } else { 1_000_000_000 },
            slots: slots.to_vec(),
            validation_rate: 10_000,
            epoch_index: 1,
            token_price: 100,
            model_id: "test-model".into(),
            ..DevshardEscrow::default()
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let chain = Self {
            address: listener.local_addr().unwrap(),
            settlements: Arc::default(),
            epoch: Arc::new(AtomicU64::new(1)),
            urls: Arc::default(),
            escrows: Arc::new(Mutex::new(ids.iter().map(|id| (*id, escrow(*id))).collect())),
        };
        let server = tonic::transport::Server::builder()
            .add_service(QueryServer::new(chain.clone()))
            .add_service(AuthServer::new(chain.clone()))
            .add_service(TxServer::new(chain.clone()))
            .add_service(NodeServer::new(chain.clone()))
            .serve_with_incoming(TcpListenerStream::new(listener));
        tokio::spawn(server);
        chain
    }
}

type Answer<T> = Result<Response<T>, Status>;

fn absent<T>() -> Answer<T> {
    Err(Status::unimplemented("nobody here asks this"))
}

#[tonic::async_trait]
impl Query for FakeChain {
    async fn devshard_escrow(
        &self,
        request: Request<messages::QueryGetDevshardEscrowRequest>,
    ) -> Answer<messages::QueryGetDevshardEscrowResponse> {
        let escrow = self.escrows.lock().unwrap().get(&request.into_inner().id).cloned();
        let found = escrow.is_some();
        Ok(Response::new(messages::QueryGetDevshardEscrowResponse { escrow, found }))
    }

    async fn participant(
        &self,
        request: Request<messages::QueryGetParticipantRequest>,
    ) -> Answer<messages::QueryGetParticipantResponse> {
        let address = request.into_inner().index;
        let inference_url = self.urls.lock().unwrap().get(&address).cloned().unwrap_or_default();
        let participant = messages::Participant { index: address.clone(), address, inference_url, status: 1 };
        Ok(Response::new(messages::QueryGetParticipantResponse { participant: Some(participant) }))
    }

    async fn params(
        &self,
        _: Request<messages::QueryParamsRequest>,
    ) -> Answer<messages::QueryParamsResponse> {
        absent()
    }

    async fn epoch_info(
        &self,
        _: Request<messages::QueryEpochInfoRequest>,
    ) -> Answer<messages::QueryEpochInfoResponse> {
        absent()
    }

    async fn get_current_epoch(
        &self,
        _: Request<messages::QueryGetCurrentEpochRequest>,
    ) -> Answer<messages::QueryGetCurrentEpochResponse> {
        let epoch = self.epoch.load(Ordering::SeqCst);
        Ok(Response::new(messages::QueryGetCurrentEpochResponse { epoch }))
    }

    async fn account_by_address(
        &self,
        _: Request<messages::QueryAccountByAddressRequest>,
    ) -> Answer<messages::QueryAccountByAddressResponse> {
        absent()
    }

    async fn grantees_by_message_type(
        &self,
        _: Request<messages::QueryGranteesByMessageTypeRequest>,
    ) -> Answer<messages::QueryGranteesByMessageTypeResponse> {
        absent()
    }

    async fn epoch_group_data(
        &self,
        _: Request<messages::QueryGetEpochGroupDataRequest>,
    ) -> Answer<messages::QueryGetEpochGroupDataResponse> {
        Err(Status::not_found("no group data"))
    }

    async fn preserved_nodes_snapshot(
        &self,
        _: Request<messages::QueryPreservedNodesSnapshotRequest>,
    ) -> Answer<messages::QueryPreservedNodesSnapshotResponse> {
        absent()
    }
}

#[tonic::async_trait]
impl AuthQuery for FakeChain {
    async fn account(&self, request: Request<QueryAccountRequest>) -> Answer<QueryAccountResponse> {
        let account = BaseAccount {
            address: request.into_inner().address,
            account_number: 4,
            ..BaseAccount::default()
        };
        let any = wire::proto::Any {
            type_url: "/cosmos.auth.v1beta1.BaseAccount".to_owned(),
            value: account.encode_to_vec(),
        };
        Ok(Response::new(QueryAccountResponse { account: Some(any) }))
    }
}

#[tonic::async_trait]
impl TxService for FakeChain {
    async fn broadcast_tx(&self, request: Request<BroadcastTxRequest>) -> Answer<BroadcastTxResponse> {
        let raw = TxRaw::decode(request.into_inner().tx_bytes.as_slice()).unwrap();
        let body = TxBody::decode(raw.body_bytes.as_slice()).unwrap();
        assert!(body.unordered && raw.signatures[0].len() == 64);
        let any = &body.messages[0];
        let txhash = if any.type_url.ends_with("MsgCreateDevshardEscrow") {
            let message = MsgCreateDevshardEscrow::decode(any.value.as_slice()).unwrap();
            let mut escrows = self.escrows.lock().unwrap();
            let id = escrows.keys().last().copied().unwrap_or(0) + 1;
            let (_, like) = escrows.iter().next().unwrap();
            let made =
                DevshardEscrow { id, amount: message.amount, model_id: message.model_id, ..like.clone() };
            escrows.insert(id, made);
            format!("CREATED{id}")
        } else {
            let message = MsgSettleDevshardEscrow::decode(any.value.as_slice()).unwrap();
            let mut settlements = self.settlements.lock().unwrap();
            settlements.push(message);
            format!("HASH{}", settlements.len())
        };
        Ok(Response::new(BroadcastTxResponse {
            tx_response: Some(TxResponse { txhash, ..TxResponse::default() }),
        }))
    }

    async fn get_tx(&self, request: Request<GetTxRequest>) -> Answer<GetTxResponse> {
        let hash = request.into_inner().hash;
        let id = hash.strip_prefix("CREATED").ok_or_else(|| Status::not_found("in no block"))?;
        let attribute =
            EventAttribute { key: "escrow_id".into(), value: id.into(), ..EventAttribute::default() };
        let event = Event { r#type: "devshard_escrow_created".into(), attributes: vec![attribute] };
        let response = TxResponse { txhash: hash.clone(), events: vec![event], ..TxResponse::default() };
        Ok(Response::new(GetTxResponse { tx_response: Some(response) }))
    }
}

#[tonic::async_trait]
impl NodeService for FakeChain {
    async fn get_latest_block(&self, _: Request<GetLatestBlockRequest>) -> Answer<GetLatestBlockResponse> {
        absent()
    }

    async fn get_node_info(&self, _: Request<GetNodeInfoRequest>) -> Answer<GetNodeInfoResponse> {
        let info = DefaultNodeInfo { network: "test-chain".into() };
        Ok(Response::new(GetNodeInfoResponse { default_node_info: Some(info) }))
    }
}

//! A chain with the queries that a gateway asks.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use prost::Message as _;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};
use wire::proto::abci::TxResponse;
use wire::proto::auth::query_server::{Query as AuthQuery, QueryServer as AuthServer};
use wire::proto::auth::{BaseAccount, QueryAccountRequest, QueryAccountResponse};
use wire::proto::inference::query_server::{Query, QueryServer};
use wire::proto::inference::{self as messages, DevshardEscrow, MsgSettleDevshardEscrow};
use wire::proto::tendermint::service_server::{Service as NodeService, ServiceServer as NodeServer};
use wire::proto::tendermint::{
    DefaultNodeInfo, GetLatestBlockRequest, GetLatestBlockResponse, GetNodeInfoRequest, GetNodeInfoResponse,
};
use wire::proto::tx::service_server::{Service as TxService, ServiceServer as TxServer};
use wire::proto::tx::{BroadcastTxRequest, BroadcastTxResponse, GetTxRequest, GetTxResponse, TxBody, TxRaw};

use super::host::FakeHost;

#[derive(Clone)]
pub struct FakeChain {
    pub address: SocketAddr,
    pub settlements: Arc<Mutex<Vec<MsgSettleDevshardEscrow>>>,
}

#[derive(Clone)]
struct Service {
    escrows: BTreeMap<u64, DevshardEscrow>,
    urls: BTreeMap<String, String>,
    settlements: Arc<Mutex<Vec<MsgSettleDevshardEscrow>>>,
}

impl FakeChain {
    pub async fn start(ids: &[u64], creator: &str, hosts: &[Arc<FakeHost>]) -> Self {
        let slots: Vec<String> = hosts.iter().map(|host| host.address().to_owned()).collect();
        let escrow = |id: u64| DevshardEscrow {
            id,
            creator: creator.to_owned(),
            // Escrow 9 is poor.
            amount: if id == 9 { 30_000 } else { 1_000_000_000 },
            slots: slots.clone(),
            epoch_index: 1,
            token_price: 100,
            model_id: "test-model".into(),
            ..DevshardEscrow::default()
        };
        let settlements = Arc::new(Mutex::new(Vec::new()));
        let service = Service {
            escrows: ids.iter().map(|id| (*id, escrow(*id))).collect(),
            urls: hosts.iter().map(|host| (host.address().to_owned(), host.url.clone())).collect(),
            settlements: settlements.clone(),
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tonic::transport::Server::builder()
            .add_service(QueryServer::new(service.clone()))
            .add_service(AuthServer::new(service.clone()))
            .add_service(TxServer::new(service.clone()))
            .add_service(NodeServer::new(service))
            .serve_with_incoming(TcpListenerStream::new(listener));
        tokio::spawn(server);
        Self { address, settlements }
    }
}

type Answer<T> = Result<Response<T>, Status>;

fn absent<T>() -> Answer<T> {
    Err(Status::unimplemented("a gateway does not ask this"))
}

#[tonic::async_trait]
impl Query for Service {
    async fn devshard_escrow(
        &self,
        request: Request<messages::QueryGetDevshardEscrowRequest>,
    ) -> Answer<messages::QueryGetDevshardEscrowResponse> {
        let escrow = self.escrows.get(&request.into_inner().id).cloned();
        let found = escrow.is_some();
        Ok(Response::new(messages::QueryGetDevshardEscrowResponse { escrow, found }))
    }

    async fn participant(
        &self,
        request: Request<messages::QueryGetParticipantRequest>,
    ) -> Answer<messages::QueryGetParticipantResponse> {
        let address = request.into_inner().index;
        let inference_url = self.urls.get(&address).cloned().unwrap_or_default();
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
        absent()
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
        absent()
    }

    async fn preserved_nodes_snapshot(
        &self,
        _: Request<messages::QueryPreservedNodesSnapshotRequest>,
    ) -> Answer<messages::QueryPreservedNodesSnapshotResponse> {
        absent()
    }
}

#[tonic::async_trait]
impl AuthQuery for Service {
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
impl TxService for Service {
    async fn broadcast_tx(&self, request: Request<BroadcastTxRequest>) -> Answer<BroadcastTxResponse> {
        let raw = TxRaw::decode(request.into_inner().tx_bytes.as_slice()).unwrap();
        let body = TxBody::decode(raw.body_bytes.as_slice()).unwrap();
        let message = MsgSettleDevshardEscrow::decode(body.messages[0].value.as_slice()).unwrap();
        assert!(body.unordered && raw.signatures[0].len() == 64);
        let mut settlements = self.settlements.lock().unwrap();
        settlements.push(message);
        let txhash = format!("HASH{}", settlements.len());
        Ok(Response::new(BroadcastTxResponse {
            tx_response: Some(TxResponse { txhash, ..TxResponse::default() }),
        }))
    }

    async fn get_tx(&self, _: Request<GetTxRequest>) -> Answer<GetTxResponse> {
        absent()
    }
}

#[tonic::async_trait]
impl NodeService for Service {
    async fn get_latest_block(&self, _: Request<GetLatestBlockRequest>) -> Answer<GetLatestBlockResponse> {
        absent()
    }

    async fn get_node_info(&self, _: Request<GetNodeInfoRequest>) -> Answer<GetNodeInfoResponse> {
        let info = DefaultNodeInfo { network: "test-chain".into() };
        Ok(Response::new(GetNodeInfoResponse { default_node_info: Some(info) }))
    }
}

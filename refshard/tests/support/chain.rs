//! A chain with one escrow.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};
use wire::proto::inference::query_server::{Query, QueryServer};
use wire::proto::inference::*;

use super::{ESCROW, Urls, bind, user_signer};

/// Epoch of every chain of a test program.
pub static EPOCH: AtomicU64 = AtomicU64::new(1);

pub struct Chain {
    pub group: Vec<String>,
    pub urls: Urls,
}

pub async fn start_chain(group: Vec<String>, urls: Urls) -> String {
    let (listener, address) = bind().await;
    let service = QueryServer::new(Chain { group, urls });
    let incoming = TcpListenerStream::new(listener);
    tokio::spawn(tonic::transport::Server::builder().add_service(service).serve_with_incoming(incoming));
    address
}

#[tonic::async_trait]
impl Query for Chain {
    async fn params(&self, _: Request<QueryParamsRequest>) -> Result<Response<QueryParamsResponse>, Status> {
        Ok(Response::new(QueryParamsResponse::default()))
    }

    async fn epoch_info(
        &self,
        _: Request<QueryEpochInfoRequest>,
    ) -> Result<Response<QueryEpochInfoResponse>, Status> {
        Ok(Response::new(QueryEpochInfoResponse::default()))
    }

    async fn get_current_epoch(
        &self,
        _: Request<QueryGetCurrentEpochRequest>,
    ) -> Result<Response<QueryGetCurrentEpochResponse>, Status> {
        Ok(Response::new(QueryGetCurrentEpochResponse { epoch: EPOCH.load(Ordering::SeqCst) }))
    }

    async fn devshard_escrow(
        &self,
        request: Request<QueryGetDevshardEscrowRequest>,
    ) -> Result<Response<QueryGetDevshardEscrowResponse>, Status> {
        let id = request.into_inner().id;
        if id.to_string() != ESCROW {
            return Ok(Response::new(QueryGetDevshardEscrowResponse::default()));
        }
        let escrow = DevshardEscrow {
            id,
            creator: user_signer().address().into(),
            amount: 100_000_000,
            slots: self.group.clone(),
            epoch_index: 1,
            validation_rate: 10_000,
            model_id: "m".into(),
            ..DevshardEscrow::default()
        };
        Ok(Response::new(QueryGetDevshardEscrowResponse { escrow: Some(escrow), found: true }))
    }

    async fn participant(
        &self,
        request: Request<QueryGetParticipantRequest>,
    ) -> Result<Response<QueryGetParticipantResponse>, Status> {
        let index = request.into_inner().index;
        let inference_url = self.urls.lock().unwrap().get(&index).cloned().unwrap_or_default();
        let participant = Participant { address: index.clone(), index, inference_url, status: 1 };
        Ok(Response::new(QueryGetParticipantResponse { participant: Some(participant) }))
    }

    async fn account_by_address(
        &self,
        _: Request<QueryAccountByAddressRequest>,
    ) -> Result<Response<QueryAccountByAddressResponse>, Status> {
        Err(Status::unimplemented("not needed"))
    }

    async fn grantees_by_message_type(
        &self,
        _: Request<QueryGranteesByMessageTypeRequest>,
    ) -> Result<Response<QueryGranteesByMessageTypeResponse>, Status> {
        Err(Status::unimplemented("not needed"))
    }

    async fn epoch_group_data(
        &self,
        _: Request<QueryGetEpochGroupDataRequest>,
    ) -> Result<Response<QueryGetEpochGroupDataResponse>, Status> {
        Err(Status::not_found("no group data"))
    }

    async fn preserved_nodes_snapshot(
        &self,
        _: Request<QueryPreservedNodesSnapshotRequest>,
    ) -> Result<Response<QueryPreservedNodesSnapshotResponse>, Status> {
        Ok(Response::new(QueryPreservedNodesSnapshotResponse::default()))
    }
}

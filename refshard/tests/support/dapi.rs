//! An allocator that leases the first node which is not excluded, and remembers everything.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};
use wire::proto::nodemanager::node_manager_server::{NodeManager, NodeManagerServer};
use wire::proto::nodemanager::*;

use super::bind;

#[derive(Default)]
pub struct Dapi {
    /// Name and base URL.
    pub nodes: Vec<(String, String)>,
    pub away: AtomicBool,
    pub excluded: Mutex<Vec<Vec<String>>>,
    pub releases: Mutex<Vec<(String, ReleaseOutcome)>>,
    pub max_nonce: AtomicU32,
    ordinal: AtomicU32,
}

pub async fn start_dapi(nodes: Vec<(String, String)>) -> (Arc<Dapi>, String) {
    start_with(Dapi { nodes, ..Dapi::default() }).await
}

pub async fn start_with(dapi: Dapi) -> (Arc<Dapi>, String) {
    let (listener, address) = bind().await;
    let dapi = Arc::new(dapi);
    let service = NodeManagerServer::from_arc(dapi.clone());
    let incoming = TcpListenerStream::new(listener);
    tokio::spawn(tonic::transport::Server::builder().add_service(service).serve_with_incoming(incoming));
    (dapi, address)
}

#[tonic::async_trait]
impl NodeManager for Dapi {
    async fn acquire_ml_node(
        &self,
        request: Request<AcquireMlNodeRequest>,
    ) -> Result<Response<AcquireMlNodeResponse>, Status> {
        if self.away.load(Ordering::SeqCst) {
            return Err(Status::unavailable("away"));
        }
        let excluded = request.into_inner().excluded_nodes;
        self.excluded.lock().unwrap().push(excluded.clone());
        let node = self.nodes.iter().find(|(name, _)| !excluded.contains(name));
        let (name, base) = node.ok_or_else(|| Status::resource_exhausted("no available ML nodes"))?;
        let lock_id = format!("lock-{}", self.ordinal.fetch_add(1, Ordering::SeqCst) + 1);
        let endpoint = format!("{base}/l/{lock_id}");
        Ok(Response::new(AcquireMlNodeResponse { lock_id, endpoint, node_id: name.clone() }))
    }

    async fn release_ml_node(
        &self,
        request: Request<ReleaseMlNodeRequest>,
    ) -> Result<Response<ReleaseMlNodeResponse>, Status> {
        let request = request.into_inner();
        let outcome = request.outcome();
        self.releases.lock().unwrap().push((request.lock_id, outcome));
        Ok(Response::new(ReleaseMlNodeResponse {}))
    }

    async fn get_runtime_config(
        &self,
        request: Request<GetRuntimeConfigRequest>,
    ) -> Result<Response<GetRuntimeConfigResponse>, Status> {
        if request.into_inner().client_params_block_height > 0 {
            tokio::time::sleep(std::time::Duration::from_secs(5)).await;
            return Ok(Response::new(GetRuntimeConfigResponse { unchanged: true, config: None }));
        }
        let config = RuntimeConfig {
            params_block_height: 1,
            devshard_requests_enabled: true,
            max_nonce: self.max_nonce.load(Ordering::SeqCst),
            ..RuntimeConfig::default()
        };
        Ok(Response::new(GetRuntimeConfigResponse { unchanged: false, config: Some(config) }))
    }
}

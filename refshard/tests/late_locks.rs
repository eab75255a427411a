//! A lock that is granted after the host has given up asking (contract mocks 4.3): nobody would ever give it back.

#![expect(clippy::unwrap_used, reason = "tests stop at the first surprise")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use refshard::host::nodes::{AcquireError, Nodes};
use refshard::personality::Personality;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};
use wire::proto::nodemanager::node_manager_server::{NodeManager, NodeManagerServer};
use wire::proto::nodemanager::{
    AcquireMlNodeRequest, AcquireMlNodeResponse, GetRuntimeConfigRequest, GetRuntimeConfigResponse,
    ReleaseMlNodeRequest, ReleaseMlNodeResponse,
};

/// Grants at once and answers after the host's two seconds; notes what comes back.
#[derive(Clone, Default)]
struct Slow(Arc<Mutex<Vec<(String, i32)>>>);

#[tonic::async_trait]
impl NodeManager for Slow {
    async fn acquire_ml_node(
        &self,
        _: Request<AcquireMlNodeRequest>,
    ) -> Result<Response<AcquireMlNodeResponse>, Status> {
        tokio::time::sleep(Duration::from_millis(2_300)).await;
        let (endpoint, lock_id) = ("http://127.0.0.1:1/l/late".to_owned(), "late".to_owned());
        Ok(Response::new(AcquireMlNodeResponse { endpoint, lock_id, node_id: "node-a".to_owned() }))
    }

    async fn release_ml_node(
        &self,
        request: Request<ReleaseMlNodeRequest>,
    ) -> Result<Response<ReleaseMlNodeResponse>, Status> {
        let request = request.into_inner();
        self.0.lock().unwrap().push((request.lock_id, request.outcome));
        Ok(Response::new(ReleaseMlNodeResponse {}))
    }

    async fn get_runtime_config(
        &self,
        _: Request<GetRuntimeConfigRequest>,
    ) -> Result<Response<GetRuntimeConfigResponse>, Status> {
        Err(Status::unimplemented("not asked here"))
    }
}

/// What comes back to the allocator of a host of this personality.
async fn given_back(personality: Personality) -> Vec<(String, i32)> {
    let slow = Slow::default();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let serving = tonic::transport::Server::builder()
        .add_service(NodeManagerServer::new(slow.clone()))
        .serve_with_incoming(TcpListenerStream::new(listener));
    let server = tokio::spawn(async move { drop(serving.await) });
    let nodes = Nodes::new(&address, personality).unwrap();
    let refused = nodes.acquire("m", &[]).await;
    assert!(matches!(refused, Err(AcquireError::Unavailable(_))), "{refused:?}");
    for _ in 0..100 {
        if !slow.0.lock().unwrap().is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    server.abort();
    slow.0.lock().unwrap().clone()
}

#[tokio::test]
async fn a_lock_that_comes_too_late_is_given_back_as_not_used() {
    // 1 is `TRANSPORT_ERROR`: the node was not reached.
    assert_eq!(given_back(Personality::Intended).await, [("late".to_owned(), 1)]);
}

#[tokio::test]
async fn july_lets_it_run_out() {
    assert_eq!(given_back(Personality::July).await, []);
}

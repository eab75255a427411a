//! Client and server stubs fit each other. No network: the client calls the server's service.

use tonic::{Code, Request, Response, Status};
use wire::proto::nodemanager::node_manager_client::NodeManagerClient;
use wire::proto::nodemanager::node_manager_server::{NodeManager, NodeManagerServer};
use wire::proto::nodemanager::{
    AcquireMlNodeRequest, AcquireMlNodeResponse, GetRuntimeConfigRequest, GetRuntimeConfigResponse,
    ReleaseMlNodeRequest, ReleaseMlNodeResponse, ReleaseOutcome, RuntimeConfig,
};

/// Answers with what it was asked, so that a wrong field or method shows.
struct Echo;

#[tonic::async_trait]
impl NodeManager for Echo {
    async fn acquire_ml_node(
        &self,
        request: Request<AcquireMlNodeRequest>,
    ) -> Result<Response<AcquireMlNodeResponse>, Status> {
        let request = request.into_inner();
        if request.excluded_nodes.len() > 1 {
            return Err(Status::resource_exhausted("no node is left"));
        }
        Ok(Response::new(AcquireMlNodeResponse {
            lock_id: request.model,
            endpoint: "http://127.0.0.1:1/l/7".into(),
            node_id: request.excluded_nodes.concat(),
        }))
    }

    async fn release_ml_node(
        &self,
        request: Request<ReleaseMlNodeRequest>,
    ) -> Result<Response<ReleaseMlNodeResponse>, Status> {
        match request.into_inner().outcome() {
            ReleaseOutcome::TransportError => Ok(Response::new(ReleaseMlNodeResponse {})),
            other => Err(Status::invalid_argument(other.as_str_name())),
        }
    }

    async fn get_runtime_config(
        &self,
        request: Request<GetRuntimeConfigRequest>,
    ) -> Result<Response<GetRuntimeConfigResponse>, Status> {
        let height = request.into_inner().client_params_block_height;
        let config = RuntimeConfig { params_block_height: height + 1, ..RuntimeConfig::default() };
        Ok(Response::new(GetRuntimeConfigResponse { unchanged: false, config: Some(config) }))
    }
}

#[tokio::test]
async fn a_client_reaches_the_methods_of_a_server() {
    let mut client = NodeManagerClient::new(NodeManagerServer::new(Echo));

    let request = AcquireMlNodeRequest { model: "m".into(), ..Default::default() };
    let lease = client.acquire_ml_node(request.clone()).await.unwrap().into_inner();
    assert_eq!((lease.lock_id.as_str(), lease.node_id.as_str()), ("m", ""));

    let excluded_nodes = vec!["a".into(), "b".into()];
    let refusal =
        client.acquire_ml_node(AcquireMlNodeRequest { excluded_nodes, ..request }).await.unwrap_err();
    assert_eq!((refusal.code(), refusal.message()), (Code::ResourceExhausted, "no node is left"));

    let outcome = ReleaseOutcome::TransportError.into();
    client.release_ml_node(ReleaseMlNodeRequest { lock_id: "m".into(), outcome }).await.unwrap();

    let request = GetRuntimeConfigRequest { client_params_block_height: 41, max_wait_seconds: 0 };
    let answer = client.get_runtime_config(request).await.unwrap().into_inner();
    assert_eq!(answer.config.unwrap().params_block_height, 42);
}

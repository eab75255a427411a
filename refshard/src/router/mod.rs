//! `ref-router`: sends each request of an escrow to the same replica of a participant, and to the next one
//! when that does not accept connections (contract hosts 1.1).
//!
//! State: which upstreams have failed a connect within the last ten seconds. What must never happen:
//! sending a POST to a second upstream once the first has taken it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Response, StatusCode, Uri, header, uri::PathAndQuery};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;

use crate::clock;
use crate::ready::prompt;
use crate::signing::sha256;

/// How long an upstream that refused a connection is passed over.
const OUT_FOR: Duration = Duration::from_secs(10);
/// Points of each upstream on the hash ring.
const RING_POINTS: u32 = 64;
/// Longest wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The file given by `--config`, JSON. Unknown keys are errors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouterConfig {
    /// Where to listen; port 0 lets the kernel choose.
    #[serde(default = "any_port")]
    pub listen: String,
    /// Addresses of the replicas of one participant, `host:port`.
    pub upstreams: Vec<String>,
    /// Begin of the path that is taken off before a request is passed on, for example `/devshard/v2`: gateway and
    /// hosts always write it, a bare host knows its paths without it (fixture wire-july section 8).
    #[serde(default)]
    pub strip_prefix: Option<String>,
}

fn any_port() -> String {
    "127.0.0.1:0".to_owned()
}

/// Why a router could not start or serve.
#[derive(Debug, thiserror::Error)]
pub enum RouterError {
    /// The file cannot be read.
    #[error("cannot read the configuration {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is not such a configuration.
    #[error("the configuration {path} is not valid: {reason}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// The socket.
    #[error("cannot serve on {address}: {source}")]
    Serve {
        /// Wanted address.
        address: String,
        /// What the system said.
        source: std::io::Error,
    },
}

impl RouterConfig {
    /// Reads and checks the file.
    ///
    /// # Errors
    /// When it cannot be read, is not JSON of this shape, or names no upstream.
    pub fn read(path: &Path) -> Result<Self, RouterError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| RouterError::Read { path: path.to_owned(), source })?;
        let bad = |reason: String| RouterError::Parse { path: path.to_owned(), reason };
        let config: Self = serde_json::from_str(&text).map_err(|error| bad(error.to_string()))?;
        if config.upstreams.is_empty() {
            return Err(bad("upstreams must name at least one address".into()));
        }
        Ok(config)
    }
}

/// A router over the replicas of one participant.
#[derive(Debug)]
pub struct Balancer {
    config: RouterConfig,
    ring: BTreeMap<[u8; 32], usize>,
    out: Mutex<BTreeMap<usize, Instant>>,
    client: Client<HttpConnector, Body>,
}

impl Balancer {
    /// A router with these upstreams.
    #[must_use]
    pub fn new(config: RouterConfig) -> Arc<Self> {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
        connector.set_nodelay(true);
        let point = |name: &str, n: u32| sha256(format!("{name}#{n}").as_bytes());
        let ring = config
            .upstreams
            .iter()
            .enumerate()
            .flat_map(|(index, name)| (0..RING_POINTS).map(move |n| (point(name, n), index)))
            .collect();
        let client = Client::builder(TokioExecutor::new()).build(connector);
        Arc::new(Self { config, ring, out: Mutex::new(BTreeMap::new()), client })
    }

    /// Listens as configured.
    ///
    /// # Errors
    /// When the address cannot be bound.
    pub async fn listen(&self) -> Result<(TcpListener, SocketAddr), RouterError> {
        let failed = |source| RouterError::Serve { address: self.config.listen.clone(), source };
        let listener = TcpListener::bind(&self.config.listen).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok((listener, address))
    }

    /// Serves until `stop` ends; running streams are then cut, as a restarted nginx cuts them.
    ///
    /// # Errors
    /// When the listener fails.
    pub async fn serve(
        self: Arc<Self>,
        listener: TcpListener,
        stop: impl Future<Output = ()> + Send,
    ) -> Result<(), RouterError> {
        let address = self.config.listen.clone();
        let router = Router::new().fallback(forward).with_state(self);
        tokio::select! {
            result = async { axum::serve(prompt(listener), router).await } => {
                result.map_err(|source| RouterError::Serve { address, source })
            }
            () = stop => Ok(()),
        }
    }

    /// Upstreams in the order in which a key tries them: along the ring, those that are out last.
    fn order(&self, key: &str, now: Instant) -> Vec<usize> {
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        out.retain(|_, since| now.duration_since(*since) < OUT_FOR);
        let from = sha256(key.as_bytes());
        let mut order = Vec::with_capacity(self.config.upstreams.len());
        for index in self.ring.range(from..).chain(self.ring.range(..from)).map(|(_, index)| *index) {
            if !order.contains(&index) {
                order.push(index);
            }
        }
        order.sort_by_key(|index| out.contains_key(index));
        order
    }

    fn mark_out(&self, index: usize, now: Instant) {
        self.out.lock().unwrap_or_else(PoisonError::into_inner).insert(index, now);
    }
}

/// The escrow id where the path names one, else the whole request URI (contract hosts 1.1).
fn sticky_key(uri: &Uri) -> &str {
    let mut segments = uri.path().split('/');
    let named = segments.by_ref().any(|segment| segment == "sessions").then(|| segments.next()).flatten();
    named
        .filter(|id| !id.is_empty())
        .unwrap_or_else(|| uri.path_and_query().map_or("/", PathAndQuery::as_str))
}

/// The path without the prefix, where it has one as whole segments.
fn without_prefix<'a>(path: &'a str, prefix: Option<&str>) -> &'a str {
    let rest = prefix.and_then(|prefix| path.strip_prefix(prefix));
    rest.filter(|rest| rest.starts_with('/')).unwrap_or(path)
}

async fn forward(State(balancer): State<Arc<Balancer>>, request: Request) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path_and_query().map_or("/", PathAndQuery::as_str).to_owned();
    let path = without_prefix(&path, balancer.config.strip_prefix.as_deref());
    let order = balancer.order(sticky_key(&parts.uri), clock::instant());
    // The body is read first, so that it is still there when a connect fails.
    let Ok(body) = axum::body::to_bytes(body, 64 << 20).await else {
        return plain(StatusCode::PAYLOAD_TOO_LARGE, "request body too large");
    };
    for index in order {
        let upstream = &balancer.config.upstreams[index];
        let mut request = Request::new(Body::from(body.clone()));
        *request.method_mut() = parts.method.clone();
        *request.headers_mut() = parts.headers.clone();
        for name in [header::CONNECTION, header::TRANSFER_ENCODING, header::HOST] {
            request.headers_mut().remove(name);
        }
        let Ok(uri) = format!("http://{upstream}{path}").parse() else { continue };
        *request.uri_mut() = uri;
        match balancer.client.request(request).await {
            Ok(response) => {
                let mut response = response.map(Body::new);
                if let Ok(value) = HeaderValue::from_str(upstream) {
                    response.headers_mut().insert("x-upstream-addr", value);
                }
                return response;
            }
            Err(error) if error.is_connect() => balancer.mark_out(index, clock::instant()),
            Err(_) => break,
        }
    }
    plain(StatusCode::BAD_GATEWAY, "bad gateway")
}

fn plain(status: StatusCode, text: &'static str) -> Response<Body> {
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn balancer() -> Arc<Balancer> {
        let upstreams = (0..3).map(|n| format!("127.0.0.1:{}", 9000 + n)).collect();
        Balancer::new(RouterConfig { listen: any_port(), upstreams, strip_prefix: None })
    }

    #[test]
    fn an_escrow_sticks_to_one_replica_and_moves_only_when_it_is_out() {
        let balancer = balancer();
        let now = clock::instant();
        let order = balancer.order("42", now);
        assert_eq!(order.len(), 3);
        assert_eq!(balancer.order("42", now), order);
        balancer.mark_out(order[0], now);
        assert_eq!(balancer.order("42", now), [order[1], order[2], order[0]]);
        assert_eq!(balancer.order("42", now + OUT_FOR), order, "and comes back");
        let firsts: std::collections::BTreeSet<usize> =
            (0..50).map(|id| balancer.order(&id.to_string(), now)[0]).collect();
        assert!(firsts.len() > 1, "keys are spread");
    }

    #[test]
    fn a_prefix_is_taken_off_as_whole_segments_only() {
        let strip = |path| without_prefix(path, Some("/devshard/v2"));
        assert_eq!(strip("/devshard/v2/sessions/1/diffs?from=1"), "/sessions/1/diffs?from=1");
        assert_eq!(strip("/devshard/v20/sessions/1"), "/devshard/v20/sessions/1");
        assert_eq!(strip("/metrics"), "/metrics");
        assert_eq!(without_prefix("/devshard/v2/metrics", None), "/devshard/v2/metrics");
    }

    #[test]
    fn the_key_is_the_escrow_where_the_path_names_one() {
        let key = |uri: &str| sticky_key(&uri.parse().unwrap()).to_owned();
        assert_eq!(key("/devshard/v2/sessions/42/chat/completions"), "42");
        assert_eq!(key("/v2/sessions/42/diffs?from=1&to=2"), "42");
        assert_eq!(key("/v2/stats/shards/42?x=1"), "/v2/stats/shards/42?x=1");
    }
}

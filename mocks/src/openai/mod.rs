//! `mock-openai`: a pool of ML nodes (design section 8, contract mocks 3). One listener, worker set and queue per node.
//!
//! [`start`] binds one listener per node and the control listener. A call goes through `call`: its body is read
//! ([`request`]), a rule looked up ([`config`]), a worker taken ([`gate`]), one answer built ([`answer`]), turned into
//! steps together with the rule and the profile ([`script`]), and written (`play`, `http`).

pub mod answer;
pub mod attempts;
mod call;
pub mod config;
pub mod gate;
pub mod http;
mod metrics;
mod play;
pub mod pool;
pub mod request;
pub mod script;
pub mod vocabulary;

use std::net::SocketAddr;
use std::sync::Arc;

use scenario::control::MockConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use self::call::After;
use self::http::{Connection, NoRequest, Request, push_answer};
use self::play::{connection_header, error_body};
use self::pool::{Change, Order, Pool};
use crate::clock::Clock;
use crate::control;
use crate::process::{Listen, MockError, Running};

/// Connections of one node at most; more wait in the kernel.
const CONNECTIONS_MAX: usize = 16_384;
/// Wait after a failed accept: most often file descriptors have run out, and trying at once would spin.
const ACCEPT_PAUSE: std::time::Duration = std::time::Duration::from_millis(20);

/// Starts the pool with its listeners as `listen` says; `log_max` entries are kept of each log ([`pool::LOG_MAX`] usually).
///
/// # Errors
/// [`MockError::Config`] for a configuration that is refused, [`MockError::Io`] when a listener can't be bound.
pub async fn start(
    config: MockConfig,
    log_max: usize,
    listen: impl Into<Listen>,
) -> Result<Running, MockError> {
    let refused = |reason| MockError::Config { place: "of mock-openai".to_owned(), reason };
    let MockConfig::Openai(config) = config else {
        return Err(refused("`mock` must be \"openai\" for this program".to_owned()));
    };
    let pool = Arc::new(Pool::new(config, log_max, Clock::start()).map_err(refused)?);
    let closing = CancellationToken::new();
    let mut running = Running::new(listen.into(), closing.clone());
    running.keep_logs(&*pool)?;
    for node in 0..pool.nodes() {
        let listener = running.bind(&format!("node:{}", pool.name(node))).await?;
        let orders = pool.orders();
        running.spawn(accept(Arc::clone(&pool), node, listener, orders, closing.clone()));
    }
    running.serve_http("control", control::routes(pool)).await?;
    Ok(running)
}

/// Accepts connections of a node until the end, then lets those that are open finish. Orders close the listener and
/// open it again at the same address.
async fn accept(
    pool: Arc<Pool>,
    node: usize,
    listener: TcpListener,
    mut orders: mpsc::Receiver<Order>,
    closing: CancellationToken,
) {
    let address = listener.local_addr();
    let mut listener = Some(listener);
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    let mut ending = closing.child_token();
    loop {
        let accepted = async {
            let Some(listener) = &listener else { return std::future::pending().await };
            let place = Arc::clone(&places).acquire_owned().await;
            (place, listener.accept().await)
        };
        tokio::select! {
            (place, accepted) = accepted => match accepted {
                Ok((stream, _)) => {
                    let connection = serve(Arc::clone(&pool), node, stream, ending.clone());
                    connections.spawn(async move {
                        connection.await;
                        drop(place);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, node = pool.name(node), "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
            Some(Order { what, done }) = orders.recv() => {
                let result = match what {
                    Change::Kill => {
                        listener = None;
                        connections.shutdown().await;
                        Ok(())
                    }
                    Change::Stop => {
                        listener = None;
                        ending.cancel();
                        Ok(())
                    }
                    Change::Start => match reopen(&address, listener.is_some()).await {
                        Ok(opened) => {
                            listener = Some(opened);
                            ending = closing.child_token();
                            Ok(())
                        }
                        Err(why) => Err(why),
                    },
                };
                // Whoever asked may have gone; the order is carried out all the same.
                drop(done.send(result));
            }
            () = closing.cancelled() => break,
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

async fn reopen(address: &std::io::Result<SocketAddr>, listens: bool) -> Result<TcpListener, String> {
    match address {
        _ if listens => Err("this node listens already".to_owned()),
        Ok(address) => {
            TcpListener::bind(address).await.map_err(|error| format!("binding {address}: {error}"))
        }
        Err(error) => Err(format!("the node's address is not known: {error}")),
    }
}

/// Serves one connection to its end.
async fn serve(pool: Arc<Pool>, node: usize, stream: TcpStream, closing: CancellationToken) {
    let mut connection = Connection::new(stream);
    loop {
        let next = tokio::select! {
            next = connection.next_request() => next,
            () = closing.cancelled() => return,
        };
        let after = match next {
            Ok(request) => route(&pool, node, &mut connection, request).await,
            Err(NoRequest::Closed) => return,
            Err(NoRequest::Refused { status, reason }) => {
                pool.count_unreadable();
                refuse(&mut connection, status, reason, false).await
            }
        };
        match after {
            After::Keep => {}
            After::Gone => return,
            After::Fin => return connection.close_by_fin().await,
            After::Rst => return connection.close_by_rst().await,
        }
    }
}

/// What a path asks for.
#[derive(Debug, PartialEq, Eq)]
enum Target {
    Health,
    /// Chat with the lock of the path.
    Chat(Option<String>),
    Unknown,
}

fn target(path: &str) -> Target {
    let path = path.split('?').next().unwrap_or_default();
    let (lock, rest) = match path.strip_prefix("/l/").and_then(|tail| tail.split_once('/')) {
        // Bounded: it goes into every log entry.
        Some((lock, rest)) if (1..=256).contains(&lock.len()) => (Some(lock), rest),
        Some(_) => return Target::Unknown,
        None => (None, path.strip_prefix('/').unwrap_or_default()),
    };
    match rest {
        "v1/chat/completions" => Target::Chat(lock.map(str::to_owned)),
        "healthz" if lock.is_none() => Target::Health,
        _ => Target::Unknown,
    }
}

async fn route(pool: &Pool, node: usize, connection: &mut Connection, request: Request) -> After {
    let keep_alive = request.keep_alive;
    match (target(&request.path), request.method.as_str()) {
        (Target::Chat(lock), "POST") => call::answer(pool, node, connection, request, lock).await,
        (Target::Health, "GET") => {
            push_answer(&mut connection.out, 200, "text/plain", connection_header(keep_alive), b"ok");
            written(connection, keep_alive).await
        }
        (Target::Unknown, _) => {
            pool.count_unreadable();
            refuse(connection, 404, "the paths are /v1/chat/completions and /healthz", keep_alive).await
        }
        (_, _) => {
            pool.count_unreadable();
            refuse(connection, 405, "POST for chat, GET for healthz", keep_alive).await
        }
    }
}

async fn refuse(connection: &mut Connection, status: u16, reason: &str, keep_alive: bool) -> After {
    let body = error_body(status, reason, "invalid_request_error", None);
    let extra = connection_header(keep_alive);
    push_answer(&mut connection.out, status, "application/json", extra, body.as_bytes());
    written(connection, keep_alive).await
}

async fn written(connection: &mut Connection, keep_alive: bool) -> After {
    match connection.flush().await {
        Ok(()) if keep_alive => After::Keep,
        Ok(()) => After::Fin,
        Err(_gone) => After::Gone,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_read_from_the_path() {
        let chat = |lock: Option<&str>| Target::Chat(lock.map(str::to_owned));
        assert_eq!(target("/v1/chat/completions"), chat(None));
        assert_eq!(target("/l/k1-7/v1/chat/completions?x=1"), chat(Some("k1-7")));
        assert_eq!(target("/healthz"), Target::Health);
        for path in [
            "/l//v1/chat/completions",
            "/l/k1",
            "/l/k1/healthz",
            "/v1/chat",
            "",
            "*",
            "/l/a/b/v1/chat/completions",
        ] {
            assert_eq!(target(path), Target::Unknown, "{path}");
        }
    }
}

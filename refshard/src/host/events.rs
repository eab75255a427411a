//! Events of the chain over its websocket: new blocks move the epoch, settlements close sessions (contract
//! hosts 1.3, fixture wire-july section 7). Every end of the connection is repaired; July stays deaf after a
//! close with code 1000 (finding J22).

use std::sync::Arc;
use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{WebSocketStream, client_async};

use super::Host;
use crate::logline::{Level, LogLine};
use crate::personality::Personality;

/// What is subscribed to, as the real host words it.
const QUERIES: [&str; 3] = [
    "tm.event='Tx' AND devshard_escrow_created.escrow_id EXISTS",
    "tm.event='Tx' AND devshard_escrow_settled.escrow_id EXISTS",
    "tm.event='NewBlock'",
];
/// Pause before the connection is made again.
const AGAIN: Duration = Duration::from_secs(1);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The server said a normal goodbye, code 1000.
    Normal,
    /// Anything else.
    Lost,
}

/// Follows the chain's events for as long as the host serves.
pub async fn follow(host: Arc<Host>, rpc: String) {
    let mut reachable = true;
    loop {
        match connect(&rpc).await {
            Ok(socket) => {
                reachable = true;
                // A block may have come while nobody listened.
                let _ = host.chain.refresh_epoch().await;
                let end = listen(&host, socket).await;
                if end == End::Normal && host.config.personality == Personality::July {
                    return;
                }
            }
            Err(error) => {
                if reachable {
                    LogLine::new(Level::Warn, "chain events: disconnected, reconnecting")
                        .field("error", error)
                        .emit();
                }
                reachable = false;
            }
        }
        tokio::time::sleep(AGAIN).await;
    }
}

async fn connect(rpc: &str) -> Result<WebSocketStream<TcpStream>, String> {
    let attempt = async {
        let stream = TcpStream::connect(rpc).await.map_err(|error| error.to_string())?;
        let url = format!("ws://{rpc}/websocket");
        let (mut socket, _) = client_async(url, stream).await.map_err(|error| error.to_string())?;
        for (id, query) in QUERIES.iter().enumerate() {
            let params = json!({ "query": query });
            let ask = json!({ "jsonrpc": "2.0", "id": id, "method": "subscribe", "params": params });
            let text = Message::text(format!("{ask}\n"));
            socket.send(text).await.map_err(|error| error.to_string())?;
        }
        Ok(socket)
    };
    tokio::time::timeout(CONNECT_TIMEOUT, attempt).await.map_err(|_| "no answer in time".to_owned())?
}

async fn listen(host: &Arc<Host>, mut socket: WebSocketStream<TcpStream>) -> End {
    while let Some(frame) = socket.next().await {
        match frame {
            Ok(Message::Text(text)) => {
                let Ok(event) = serde_json::from_str::<Value>(text.as_str()) else { continue };
                let block = heard(host, &event).await;
                if block && host.defect.goes_deaf() {
                    std::future::pending::<()>().await;
                }
            }
            Ok(Message::Close(Some(frame))) if u16::from(frame.code) == 1000 => return End::Normal,
            Ok(Message::Close(_)) | Err(_) => return End::Lost,
            // Pings are answered by the library.
            Ok(_) => {}
        }
    }
    End::Lost
}

/// Acts on an event; true for a new block.
async fn heard(host: &Arc<Host>, event: &Value) -> bool {
    let result = &event["result"];
    match result["query"].as_str() {
        Some(query) if query.contains("NewBlock") => {
            // A chain that does not answer keeps the epoch that is known; the next block asks again.
            let _ = host.chain.refresh_epoch().await;
            return true;
        }
        Some(query) if query.contains("settled") => {
            let events = result["data"]["value"]["TxResult"]["result"]["events"].as_array();
            for id in events.into_iter().flatten().filter_map(settled_escrow) {
                host.settled(&id);
            }
        }
        _ => {}
    }
    false
}

/// Id of the escrow that an event closes.
fn settled_escrow(event: &Value) -> Option<String> {
    if event["type"] != "devshard_escrow_settled" {
        return None;
    }
    let attributes = event["attributes"].as_array()?;
    let named = attributes.iter().find(|attribute| attribute["key"] == "escrow_id")?;
    Some(named["value"].as_str()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fixture wire-july, `ws/devshardd-0.json`.
    #[test]
    fn a_settlement_names_its_escrow() {
        let event = json!({ "type": "devshard_escrow_settled", "attributes": [
            { "key": "settler", "value": "gonka1x" }, { "key": "escrow_id", "value": "2" }] });
        assert_eq!(settled_escrow(&event).as_deref(), Some("2"));
        let other = json!({ "type": "devshard_escrow_created", "attributes": [
            { "key": "escrow_id", "value": "2" }] });
        assert_eq!(settled_escrow(&other), None);
    }
}

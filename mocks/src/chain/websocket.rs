//! Event subscriptions (fixture wire-july section 7). A connection pulls from the ledger what it has not sent yet:
//! there is no queue that could overflow, and no subscription is ever dropped because its reader is slow.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::{SinkExt as _, StreamExt as _};
use scenario::fault::ChainFault;
use serde_json::{Map, Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::{Error, Message, Utf8Bytes};

use crate::chain::ledger::Published;
use crate::chain::rpc::header_of;
use crate::chain::shared::{Order, Shared};

/// Blocks that are sent one by one when a connection is behind; beyond that the height jumps.
const BLOCKS_MAX: u64 = 1_000;
/// Subscriptions of one connection; real hosts have three.
const SUBSCRIPTIONS_MAX: usize = 100;
/// Query of block subscribers.
const NEW_BLOCK: &str = "tm.event='NewBlock'";
/// Close code that says the server goes away; never 1000, after which hosts stay deaf.
const GOING_AWAY: u16 = 1_001;

/// One open connection.
#[derive(Debug)]
struct Connection {
    shared: Arc<Shared>,
    /// Query text to the id of its newest request.
    subscriptions: BTreeMap<String, Value>,
    /// Last height sent.
    height: u64,
    /// Last event sent.
    event: u64,
}

/// Serves a connection until either side ends it.
pub async fn serve<S: AsyncRead + AsyncWrite + Unpin>(shared: Arc<Shared>, mut socket: WebSocketStream<S>) {
    let mut news = shared.news();
    let mut orders = shared.orders();
    let closing = shared.closing().clone();
    let mut connection = Connection::new(shared);
    loop {
        let frames = tokio::select! {
            frame = socket.next() => match frame {
                Some(Ok(Message::Text(text))) => connection.hear(text.as_str()),
                Some(Ok(Message::Close(_)) | Err(_)) | None => return,
                Some(Ok(_)) => Vec::new(),
            },
            changed = news.changed() => match changed {
                Ok(()) => connection.news(),
                Err(_) => return,
            },
            order = orders.recv() => match order {
                Ok(Order::Cut(rule)) => return connection.ended(rule.as_deref(), ChainFault::CutWebsocket(true)),
                Ok(Order::Close(rule, code)) => {
                    connection.ended(rule.as_deref(), ChainFault::CloseWebsocket(code));
                    return close(&mut socket, code).await;
                }
                Err(_) => Vec::new(),
            },
            () = closing.cancelled() => return close(&mut socket, GOING_AWAY).await,
        };
        // A reader that does not read must not keep the process from ending.
        tokio::select! {
            sent = send(&mut socket, frames) => if sent.is_err() { return },
            () = closing.cancelled() => return,
        }
    }
}

async fn send<S: AsyncRead + AsyncWrite + Unpin>(
    socket: &mut WebSocketStream<S>,
    frames: Vec<Value>,
) -> Result<(), Error> {
    for frame in frames {
        socket.feed(Message::text(frame.to_string())).await?;
    }
    socket.flush().await
}

/// The answer to the close frame is not waited for: the peer may be stuck.
async fn close<S: AsyncRead + AsyncWrite + Unpin>(socket: &mut WebSocketStream<S>, code: u16) {
    let frame = CloseFrame { code: code.into(), reason: Utf8Bytes::from_static("") };
    let _peer_may_be_gone = socket.send(Message::Close(Some(frame))).await;
}

impl Connection {
    fn new(shared: Arc<Shared>) -> Self {
        let (height, event) = {
            let core = shared.core();
            (core.ledger.saved().height, core.ledger.events_total())
        };
        Self { shared, subscriptions: BTreeMap::new(), height, event }
    }

    /// Ended by an order: of a rule, which is a hit, or of an action, which the runner writes down itself.
    fn ended(&self, rule: Option<&str>, action: ChainFault) {
        self.shared.count_ended();
        if let Some(rule) = rule {
            self.shared.log_hit("websocket", rule, action, 1, 0);
        }
    }

    /// Answers one request frame. A repeated query replaces the older one: events carry the newest id.
    fn hear(&mut self, text: &str) -> Vec<Value> {
        let Ok(ask) = serde_json::from_str::<Value>(text) else {
            let error = json!({ "code": -32700, "message": "Parse error" });
            return vec![json!({ "jsonrpc": "2.0", "id": null, "error": error })];
        };
        let id = ask["id"].clone();
        let query = ask["params"]["query"].as_str().unwrap_or_default();
        let count = self.subscriptions.len();
        let error = match ask["method"].as_str() {
            Some("subscribe") if query.is_empty() => Some("`query` is needed"),
            Some("subscribe") if count >= SUBSCRIPTIONS_MAX => Some("too many subscriptions"),
            Some("subscribe") => {
                self.subscriptions.insert(query.to_owned(), id.clone());
                None
            }
            Some("unsubscribe") => {
                self.subscriptions.remove(query);
                None
            }
            Some("unsubscribe_all") => {
                self.subscriptions.clear();
                None
            }
            Some("health") => None,
            _ => Some("Method not found"),
        };
        self.count_subscriptions(count);
        vec![match error {
            None => json!({ "jsonrpc": "2.0", "id": id, "result": {} }),
            Some(text) => json!({ "jsonrpc": "2.0", "id": id, "error": { "code": -32601, "message": text } }),
        }]
    }

    fn count_subscriptions(&self, before: usize) {
        let number = |count: usize| u64::try_from(count).expect("bounded by SUBSCRIPTIONS_MAX");
        let total = self.shared.subscriptions();
        total.fetch_add(number(self.subscriptions.len()), Ordering::Relaxed);
        total.fetch_sub(number(before), Ordering::Relaxed);
    }

    /// Frames for everything that is new to this connection: events first, then blocks.
    fn news(&mut self) -> Vec<Value> {
        let (chain_id, height, events) = {
            let core = self.shared.core();
            let saved = core.ledger.saved();
            (saved.chain_id.clone(), saved.height, core.ledger.events_after(self.event))
        };
        let mut frames = Vec::new();
        for event in events {
            self.event = event.seq;
            frames.extend(self.event_frames(&event));
        }
        let first = (self.height + 1).max(height.saturating_sub(BLOCKS_MAX - 1));
        if let Some(id) = self.subscriptions.get(NEW_BLOCK) {
            frames.extend((first..=height).map(|height| {
                let value = json!({ "block": { "header": header_of(&chain_id, height) } });
                frame(id, NEW_BLOCK, "NewBlock", &value, &json!({ "tm.event": ["NewBlock"] }))
            }));
        }
        self.height = self.height.max(height);
        frames
    }

    fn event_frames(&self, published: &Published) -> Vec<Value> {
        let kind = &published.event.kind;
        let wanted = format!("{kind}.escrow_id EXISTS");
        let attributes: Vec<Value> = published
            .event
            .attributes
            .iter()
            .map(|(key, value)| json!({ "key": key, "value": value, "index": false }))
            .collect();
        let height = published.height.to_string();
        let events = json!([{ "type": kind, "attributes": attributes }]);
        let result = json!({ "height": height, "tx": "", "result": { "events": events } });
        let mut index = Map::new();
        index.insert("tm.event".to_owned(), json!(["Tx"]));
        index.insert("tx.hash".to_owned(), json!([published.hash]));
        index.insert("tx.height".to_owned(), json!([height]));
        for (key, value) in &published.event.attributes {
            index.insert(format!("{kind}.{key}"), json!([value]));
        }
        let (value, index) = (json!({ "TxResult": result }), Value::Object(index));
        let mine = self.subscriptions.iter().filter(|(query, _)| query.contains(&wanted));
        mine.map(|(query, id)| frame(id, query, "Tx", &value, &index)).collect()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let before = self.subscriptions.len();
        self.subscriptions.clear();
        self.count_subscriptions(before);
    }
}

/// An event as the client routes it: by id and by the very text of its query.
fn frame(id: &Value, query: &str, kind: &str, value: &Value, events: &Value) -> Value {
    let data = json!({ "type": format!("tendermint/event/{kind}"), "value": value });
    json!({ "jsonrpc": "2.0", "id": id, "result": { "query": query, "data": data, "events": events } })
}

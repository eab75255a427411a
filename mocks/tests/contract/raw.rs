//! Calls with the very bytes that were captured: no message type of ours comes between.

use std::time::Duration;

use bytes::{Buf as _, BufMut as _};
use futures_util::{SinkExt as _, StreamExt as _};
use http::uri::PathAndQuery;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::{Code, Request, Status};

use crate::compare::Difference;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// A replayed call.
#[derive(Debug)]
pub struct Exchange {
    /// Name under which reasons are looked for.
    pub call: String,
    pub found: Vec<Difference>,
}

/// A codec that leaves bytes as they are.
#[derive(Clone, Copy, Debug, Default)]
struct Bytes;

impl Codec for Bytes {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Bytes {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, target: &mut EncodeBuf<'_>) -> Result<(), Status> {
        target.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Bytes {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, source: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        let mut item = vec![0; source.remaining()];
        source.copy_to_slice(&mut item);
        Ok(Some(item))
    }
}

/// One call; gives the name of its status and the bytes of its answer.
pub async fn unary(address: &str, path: &str, request: Vec<u8>) -> (String, Vec<u8>) {
    let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{address}")).unwrap();
    let mut client = tonic::client::Grpc::new(endpoint.connect().await.unwrap());
    client.ready().await.unwrap();
    let path = PathAndQuery::try_from(path).unwrap();
    let answer = timeout(PATIENCE, client.unary(Request::new(request), path, Bytes)).await.unwrap();
    match answer {
        Ok(answer) => (name(Code::Ok).to_owned(), answer.into_inner()),
        Err(status) => (name(status.code()).to_owned(), Vec::new()),
    }
}

/// Names as the recordings have them.
const fn name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::NotFound => "NOT_FOUND",
        Code::Unimplemented => "UNIMPLEMENTED",
        _ => "another status",
    }
}

/// The type without its parameters.
pub fn content_type(headers: &reqwest::header::HeaderMap) -> String {
    let text = headers.get(reqwest::header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    text.unwrap_or_default().split(';').next().unwrap_or_default().to_owned()
}

/// A subscriber's connection.
pub type Socket = WebSocketStream<TcpStream>;

/// Sends one text frame.
pub async fn say(socket: &mut Socket, text: &str) {
    socket.send(Message::text(text)).await.unwrap();
}

/// The next text frame that is wanted.
pub async fn hear(socket: &mut Socket, wanted: impl Fn(&Value) -> bool) -> Value {
    loop {
        let message = timeout(PATIENCE, socket.next()).await.unwrap().unwrap().unwrap();
        let Ok(text) = message.to_text() else { continue };
        if let Ok(frame) = serde_json::from_str::<Value>(text)
            && wanted(&frame)
        {
            return frame;
        }
    }
}

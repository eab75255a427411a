//! Fault rules: where, which calls, what is done, and what is expected to come of it (design sections 6 and 8).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::identity::RequestId;
use crate::units::{Micros, Ppb};

/// The class in which every planned request ends (design section 6). The verdict decides it, nobody else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RequestClass {
    /// Answered well, touched by no fault.
    Success,
    /// Answered well although a fault hit it.
    MaskedFault,
    /// Failed as a matched `expect` says.
    ExpectedFailure,
    /// Failed and nothing allowed it.
    UnexpectedFailure,
    /// Refused before it was accepted.
    Rejected,
    /// Cut by its own cancel point.
    Cancelled,
    /// The generator could not send it.
    Dropped,
    /// Planned but never reached (the stage ended first).
    NotOffered,
}

/// The observed reason of an outcome; a rule's `because` must equal it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Because {
    /// The same host asked a second ML node, and that call completed.
    RotatedToOtherNode,
    /// The gateway started another attempt on another host, and that one completed.
    RetriedOnOtherHost,
    /// The same node answered a later attempt well.
    SameNodeLater,
    /// The fault slowed the answer, nothing more.
    DelayedOnly,
    /// The fault changed nothing that a client can see (for example a missing upstream `[DONE]`).
    Invisible,
    /// The gateway answered an HTTP error status.
    GatewayError,
    /// The stream ended with an error event.
    ErrorEvent,
    /// The stream ended without a marker, or with a marker but no finish reason.
    Truncated,
    /// A time limit of the client passed.
    ClientTimeout,
    /// 429 or 503 because a bound was reached.
    Overloaded,
    /// The client closed at its cancel point.
    ClientCancelled,
    /// Nobody listened where the gateway should be.
    Unreachable,
    /// The connection ended before the headers were complete.
    ConnectionLost,
}

/// How a stream may end when a matched `expect` exempts it from A3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum EndingKind {
    /// A JSON error event and no `[DONE]`.
    ErrorEvent,
    /// End of input without a marker.
    Truncated,
    /// `[DONE]` without a finish reason.
    DoneWithoutFinish,
}

/// One allowed outcome of a fault, a cancel, an action or required saturation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Expect {
    /// Allowed class.
    pub class: RequestClass,
    /// Required observed reason; any reason when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub because: Option<Because>,
    /// Stream ending that A3 then accepts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ending: Option<EndingKind>,
    /// Required HTTP status; any when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
}

/// What kind of ML call a rule or a counter is about.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum CallKind {
    /// The work of a client request.
    #[default]
    Execution,
    /// A replay: `enforced_tokens` present, or `X-Request-Id` starts with `validate-`.
    Validation,
}

/// Which attempts of a selected call a rule applies to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Attempts {
    /// Every call of the selected request at the node.
    #[default]
    All,
    /// Only the first call of that id and kind at the node.
    First,
}

/// Which calls a rule selects. Exactly one form is written in the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Select {
    /// A seeded share of the request ids.
    Fraction(Ppb),
    /// These request ids.
    Ids(Vec<RequestId>),
    /// Every request (`all: true`).
    All(bool),
    /// Calls by ordinal from 1 (dapi and chain calls carry no request id).
    Calls(Vec<u64>),
}

/// How a connection is closed by a fault or a cancelling client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Close {
    /// The body ends properly (chunked terminator), only content is missing.
    Clean,
    /// TCP FIN without the chunked terminator.
    #[default]
    Fin,
    /// TCP RST.
    Rst,
}

/// A cut of a stream after a number of content events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Cut {
    /// Content events sent before the cut.
    pub events: u64,
    /// How it is cut.
    #[serde(default)]
    pub close: Close,
}

/// A pause inside a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Stall {
    /// Content events sent before the pause.
    pub after_events: u64,
    /// Length of the pause.
    pub pause: Micros,
}

/// What a mock ML node does to a selected call (design section 8).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum NodeFault {
    /// Answers this status (400 to 599) with a JSON error body.
    Status(u16),
    /// Waits before the response headers.
    DelayHeaders(Micros),
    /// Sends headers, then waits before the first content (JSON: before the body).
    DelayFirstContent(Micros),
    /// Leaves the first content event out.
    DropFirstContent(bool),
    /// Waits this long between content events instead of the profile's interval.
    SlowTokens(Micros),
    /// Pauses inside the stream.
    Stall(Stall),
    /// Ends the stream early. JSON answers are cut in the middle of the body.
    CutAfterEvents(Cut),
    /// Cuts inside a multi-byte character of the n-th content event.
    CutInUtf8(Cut),
    /// Leaves `[DONE]` out; the body ends properly.
    OmitDone(bool),
    /// Leaves usage out of the answer.
    OmitUsage(bool),
    /// A JSON answer that does not parse (right length, cut text).
    MalformedJson(bool),
    /// A stream event that does not parse.
    MalformedSse(bool),
    /// One OpenAI error event, then `[DONE]`, with status 200.
    ErrorEvent(bool),
    /// TCP RST before any response byte.
    ResetBeforeHeaders(bool),
    /// TCP FIN before any response byte.
    CloseBeforeHeaders(bool),
    /// The right body under `text/plain`.
    WrongContentType(bool),
    /// One event of this many bytes.
    OversizeEvent(u64),
}

/// Which calls of the allocator a rule is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum DapiCall {
    /// `AcquireMLNode`.
    #[serde(rename = "AcquireMLNode")]
    Acquire,
    /// `ReleaseMLNode`.
    #[serde(rename = "ReleaseMLNode")]
    Release,
    /// `GetRuntimeConfig`.
    #[serde(rename = "GetRuntimeConfig")]
    RuntimeConfig,
}

/// How the allocator refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Refusal {
    /// gRPC `RESOURCE_EXHAUSTED`: hosts sleep and try again.
    ResourceExhausted,
    /// gRPC `UNAVAILABLE`: hosts fall back to nodes they know.
    Unavailable,
}

/// What the allocator does to a selected call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum DapiFault {
    /// Refuses the call.
    Reject(Refusal),
    /// Waits before answering.
    Delay(Micros),
    /// Answers a release well but keeps the lock.
    LoseRelease(bool),
    /// Every call fails with `UNAVAILABLE` while the rule is on.
    Outage(bool),
}

/// What the chain does to a selected query or to its subscriptions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ChainFault {
    /// Waits before answering.
    Delay(Micros),
    /// Fails with `UNAVAILABLE`.
    Fail(bool),
    /// Every call fails with `UNAVAILABLE` while the rule is on.
    Outage(bool),
    /// Cuts every websocket connection.
    CutWebsocket(bool),
    /// Closes every websocket with this code.
    CloseWebsocket(u16),
    /// Produces no block while the rule is on.
    HoldBlocks(bool),
    /// Produces this many blocks at once.
    BurstBlocks(u64),
}

/// Where a rule applies. Exactly one of `node`, `dapi`, `chain`; `host` only with `dapi`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Place {
    /// A pool entry (all its instances) or one instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// An allocator call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dapi: Option<DapiCall>,
    /// The host that makes the allocator call, for example `host-1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// A chain query by its method name, for example `GetCurrentEpoch`, or `*`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chain: Option<String>,
}

/// What a rule does, by where it applies. In the file the action stands directly under `do`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum FaultAction {
    /// At an ML node.
    Node(NodeFault),
    /// At the allocator.
    Dapi(DapiFault),
    /// At the chain.
    Chain(ChainFault),
}

impl FaultAction {
    /// Reads the value of `do` for a rule that applies at `place`.
    ///
    /// # Errors
    /// A message when `place` names not exactly one of node, dapi and chain, or when the action doesn't exist there.
    pub fn for_place(place: &Place, value: serde_json::Value) -> Result<Self, String> {
        let read = |error: serde_json::Error| format!("`do`: {error}");
        match (&place.node, &place.dapi, &place.chain) {
            (Some(_), None, None) => serde_json::from_value(value).map(Self::Node).map_err(read),
            (None, Some(_), None) => serde_json::from_value(value).map(Self::Dapi).map_err(read),
            (None, None, Some(_)) => serde_json::from_value(value).map(Self::Chain).map_err(read),
            _ => Err("`where` names exactly one of node, dapi and chain".to_owned()),
        }
    }

    /// The action's name in the file, for example `status`.
    #[must_use]
    pub fn name(&self) -> String {
        match serde_json::to_value(self) {
            Ok(serde_json::Value::Object(map)) => map.keys().next().cloned().unwrap_or_default(),
            _ => String::new(),
        }
    }
}

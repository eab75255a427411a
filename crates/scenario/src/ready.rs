//! The one line that every program of ours prints on standard output when it is ready (design section 4).

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `{"ready":{"<name>":"<addr>"},"program":"…","build":"…"}`. Addresses are `host:port` as bound.
///
/// Names by program: `mock-openai`: `control` and one `node:<instance>` a node; `mock-dapi`: `control`, `http`, one
/// `grpc:<host>` a host and `grpc:gateway`; `mock-chain`: `control`, `grpc`, `rpc`; `ref-gateway`: `http`;
/// `ref-host`: `http`; `ref-router`: `http`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReadyLine {
    /// Bound addresses by name.
    pub ready: BTreeMap<String, String>,
    /// Program name.
    pub program: String,
    /// Build identity ([`crate::build::BUILD_ID`]).
    pub build: String,
}

//! What became of the connections of a run.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Connections, streams and names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Wires {
    /// Connections that spoke HTTP/1.1.
    pub http1_connections: u64,
    /// Connections that spoke HTTP/2.
    pub http2_connections: u64,
    /// TLS handshakes that succeeded.
    pub tls_handshakes: u64,
    /// Server certificates were not checked: who answered is not known.
    pub insecure: bool,
    /// Fewest streams that a peer granted on one HTTP/2 connection; `None` when none set a limit.
    pub streams_granted_min: Option<u64>,
    /// Most streams open at once on one connection.
    pub streams_open_max: u64,
    /// Requests that found the streams of all HTTP/2 connections used up, so that another connection was needed.
    pub streams_used_up: u64,
    /// Streams that the peer reset.
    pub streams_reset: u64,
    /// Resolutions of a name during the run, those before its start left out.
    pub name_lookups: u64,
    /// By address.
    pub peers: BTreeMap<String, Peer>,
}

/// One address of a target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Peer {
    /// Connections that stood.
    pub connections: u64,
    /// Requests that began on them.
    pub requests: u64,
}

impl Wires {
    /// Adds another part of the run.
    pub fn merge(&mut self, other: &Self) {
        self.http1_connections += other.http1_connections;
        self.http2_connections += other.http2_connections;
        self.tls_handshakes += other.tls_handshakes;
        self.insecure |= other.insecure;
        let granted = [self.streams_granted_min, other.streams_granted_min];
        self.streams_granted_min = granted.into_iter().flatten().min();
        self.streams_open_max = self.streams_open_max.max(other.streams_open_max);
        self.streams_used_up += other.streams_used_up;
        self.streams_reset += other.streams_reset;
        self.name_lookups += other.name_lookups;
        for (address, theirs) in &other.peers {
            let own = self.peers.entry(address.clone()).or_default();
            own.connections += theirs.connections;
            own.requests += theirs.requests;
        }
    }
}

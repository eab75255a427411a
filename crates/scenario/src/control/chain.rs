//! What mock-chain is told, and what it logs and counts.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::fault::{ChainFault, Select};
use crate::units::{Micros, Ppb};

/// A participant on the chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ChainParticipant {
    /// bech32 address.
    pub address: String,
    /// Where gateway and other hosts reach it (router or host base URL, no trailing slash).
    pub inference_url: String,
    /// Base64 of its compressed public key. Real hosts check payload requests of validations against it: without one
    /// no validation ever succeeds (july-findings J14). Empty when unknown.
    #[serde(default)]
    pub pubkey: String,
}

/// Parameters that the chain announces (contract mocks 2.1 and 5.2). Real programs read them at boot and whenever the
/// allocator can't tell them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ChainParams {
    /// Highest nonce of a session.
    pub max_nonce: u32,
    /// Hosts accept chats.
    pub requests_enabled: bool,
    /// Seconds; announced, does not change a July session.
    pub refusal_timeout_s: i64,
    /// Seconds; announced, does not change a July session.
    pub execution_timeout_s: i64,
    /// Basis points.
    pub validation_rate: u32,
    /// Percent of the group; 0 = half.
    pub vote_threshold_factor: u32,
    /// `raw` or `processed`.
    pub logprobs_mode: String,
    /// Similarity threshold of every known model: value · 10^exponent.
    pub threshold_value: i64,
    /// Exponent.
    pub threshold_exponent: i32,
}

impl Default for ChainParams {
    /// Generous where a limit would end a session, and a threshold that a score of 1 can pass.
    fn default() -> Self {
        Self {
            max_nonce: 1_000_000,
            requests_enabled: true,
            refusal_timeout_s: 60,
            execution_timeout_s: 1_200,
            validation_rate: 5_000,
            vote_threshold_factor: 50,
            logprobs_mode: "raw".to_owned(),
            threshold_value: 95,
            threshold_exponent: -2,
        }
    }
}

/// Who may act for a participant (contract mocks 5.3). Hosts keep an answer for ever, so a grant works for unseen pairs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ChainGrant {
    /// Address that grants.
    pub granter: String,
    /// Message type URL.
    pub message_type: String,
    /// Address that may act.
    pub grantee: String,
    /// Base64 of the grantee's compressed public key.
    pub pubkey: String,
}

/// An escrow on the chain (fields of `DevshardEscrow` that are read, contract mocks 2.2 and 5.2).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ChainEscrow {
    /// Decimal id.
    pub id: u64,
    /// Address of the creator.
    pub creator: String,
    /// Balance.
    pub amount: u64,
    /// Slot owners in order; the host index is the position.
    pub slots: Vec<String>,
    /// Model.
    pub model: String,
    /// Epoch of creation.
    pub epoch: u64,
    /// Price of a token.
    pub token_price: u64,
    /// Fee of a nonce.
    pub fee_per_nonce: u64,
    /// Basis points.
    pub validation_rate: u32,
    /// Percent of the group; 0 = half.
    pub vote_threshold_factor: u32,
    /// Settled already.
    pub settled: bool,
}

/// A fault rule for the chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ChainRule {
    /// Rule id.
    pub id: String,
    /// Method name, or `*`.
    pub method: String,
    /// `all` or `calls` by ordinal of that method.
    pub select: Select,
    /// What is done.
    pub action: ChainFault,
}

/// Configuration of `mock-chain`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ChainConfig {
    /// Format version.
    pub v: u32,
    /// Chain id.
    pub chain_id: String,
    /// Participants.
    pub participants: Vec<ChainParticipant>,
    /// Seeded escrows; escrows created later are kept beside them.
    pub escrows: Vec<ChainEscrow>,
    /// Epoch.
    pub epoch: u64,
    /// Time between blocks.
    pub block_interval: Micros,
    /// Announced parameters.
    #[serde(default)]
    pub params: ChainParams,
    /// Grants in force; a replacement without a grant takes it back.
    #[serde(default)]
    pub grants: Vec<ChainGrant>,
    /// Rules in order; the first match is carried out.
    pub rules: Vec<ChainRule>,
}

/// One query to the chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ChainCallRecord {
    /// Sequence number.
    pub seq: u64,
    /// Offset.
    pub at_us: u64,
    /// Method name.
    pub method: String,
    /// Ordinal of this method, from 1.
    pub ordinal: u64,
    /// Main argument in short: an escrow id, an address.
    pub argument: String,
    /// gRPC code name answered, `OK` for success.
    pub code: String,
    /// Rule that hit it.
    pub rule: Option<String>,
}

/// How fast blocks come that are asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum BlockPace {
    /// Each is announced by itself, a moment after the one before.
    OneByOne,
    /// All are there at once.
    #[default]
    Burst,
}

/// An admin action on the chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "act", rename_all = "kebab-case")]
pub enum ChainAct {
    /// Next epoch.
    AdvanceEpoch {
        /// How its blocks come.
        #[serde(default)]
        pace: BlockPace,
    },
    /// This many blocks now.
    Blocks {
        /// How many.
        count: u64,
    },
    /// Settlement event for an escrow without a settlement of the gateway.
    Settle {
        /// Escrow.
        escrow: u64,
    },
    /// Blocks stop or go on, beside any rule that holds them.
    Hold {
        /// They stop.
        on: bool,
    },
    /// Every open websocket is cut. Refused when none is open: nothing would have happened.
    CutWebsockets,
    /// Every open websocket is closed with a code. Refused when none is open.
    CloseWebsockets {
        /// Close code.
        code: u16,
    },
}

/// Stats of `mock-chain`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ChainStats {
    /// Format version.
    pub v: u32,
    /// Height of the last block.
    pub height: u64,
    /// Epoch.
    pub epoch: u64,
    /// Calls by method.
    pub calls: BTreeMap<String, u64>,
    /// Transactions accepted.
    pub transactions: u64,
    /// Settled escrows in order.
    pub settled: Vec<u64>,
    /// Open websocket subscriptions.
    pub subscriptions: u64,
    /// Websockets that were cut or closed by a rule or an action.
    #[serde(default)]
    pub websockets_ended: u64,
    /// Blocks are held by an action.
    #[serde(default)]
    pub held: bool,
    /// CPU time of the process, microseconds.
    pub cpu_us: u64,
    /// Longest time in one piece in which the process did not get to run, microseconds; `None` from builds that did
    /// not watch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loop_gap_max_us: Option<u64>,
}

/// Share in basis points, as chain messages carry rates.
#[must_use]
pub fn basis_points(share: Ppb) -> u32 {
    u32::try_from(share.get() / 100_000).expect("at most ten thousand basis points")
}

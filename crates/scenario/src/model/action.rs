//! The timeline: what is done to services, to the chain, to the allocator and to escrows while the load runs.
//!
//! Every action is one key and its value, in the words of this file. What a stack can't do it refuses in words.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::control::BlockPace;
use crate::fault::Expect;
use crate::units::{Micros, Ppb};

/// When an action happens. Exactly one key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Trigger {
    /// When this many requests have been sent.
    Requests(u64),
    /// When this request has been sent.
    RequestSent(String),
    /// When any escrow has reached this nonce.
    Nonce(u64),
    /// Wall clock after load start: allowed for exploration, marks the run as not plan-exact.
    At(Micros),
}

/// What is done. Exactly one key; the value of the first eight is a service name such as `host-1`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ServiceAction {
    /// Ask to end, then wait.
    Stop(String),
    /// Start again.
    Start(String),
    /// End at once.
    Kill(String),
    /// Freeze.
    Pause(String),
    /// Thaw.
    Unpause(String),
    /// Stop, then start.
    Restart(String),
    /// Take out of the network; the process goes on (Compose stack).
    Disconnect(String),
    /// Put back into the network (Compose stack).
    Connect(String),
    /// Deactivate an escrow at the gateway (by ordinal from 1).
    Deactivate(u32),
    /// Settle an escrow through the gateway (by ordinal from 1); a busy one is asked again until it is idle.
    Settle(u32),
    /// Open an escrow with this balance through the gateway, which serves it from then on.
    CreateEscrow(u64),
    /// On the chain.
    Chain(ChainAction),
    /// At the node allocator.
    Allocator(AllocatorAction),
}

impl ServiceAction {
    /// The service that it ends, starts, freezes or thaws.
    #[must_use]
    pub fn service(&self) -> Option<&str> {
        match self {
            Self::Stop(name)
            | Self::Start(name)
            | Self::Kill(name)
            | Self::Pause(name)
            | Self::Unpause(name)
            | Self::Restart(name)
            | Self::Disconnect(name)
            | Self::Connect(name) => Some(name),
            Self::Deactivate(_)
            | Self::Settle(_)
            | Self::CreateEscrow(_)
            | Self::Chain(_)
            | Self::Allocator(_) => None,
        }
    }
}

/// What is done on the chain. Exactly one key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ChainAction {
    /// Blocks up to the begin of the next epoch, one by one or in a burst; the allocator announces the epoch too.
    SwitchEpoch(BlockPace),
    /// This many blocks at once.
    Blocks(u64),
    /// Blocks stop (`true`) or go on (`false`).
    HoldBlocks(bool),
    /// The chain settles an escrow (by ordinal from 1) that the gateway still serves.
    Settle(u32),
    /// Every open websocket is cut without a word (`true`).
    CutWebsocket(bool),
    /// Every open websocket is closed with this code; 1000 is a normal goodbye.
    CloseWebsocket(u16),
    /// Parameters change, on the chain and in what the allocator announces.
    Params(ParamsChange),
    /// A participant lets another one act for it.
    Grant(GrantChange),
    /// A participant takes that back.
    Revoke(GrantChange),
}

/// What is done at the allocator. Exactly one key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum AllocatorAction {
    /// This node is given to nobody any more.
    Unavailable(String),
    /// This node is given out again.
    Available(String),
    /// The epoch document names this block height; rotation of escrows compares it with the height of the switch.
    BlockHeight(u64),
}

/// Parameters that change; what is absent stays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ParamsChange {
    /// Highest nonce of a session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_nonce: Option<u32>,
    /// Hosts accept chats.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests_enabled: Option<bool>,
    /// Share of inferences that each participant validates, for escrows to come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation_rate: Option<Ppb>,
    /// Percent of the group; 0 = half. For escrows to come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vote_threshold_factor: Option<u32>,
}

/// Who acts for whom, both by service name (`host-1`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GrantChange {
    /// Participant for whom somebody acts.
    pub granter: String,
    /// Participant whose key is accepted for it.
    pub grantee: String,
}

/// One action of the timeline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Action {
    /// When.
    pub after: Trigger,
    /// What.
    #[serde(rename = "do")]
    pub action: ServiceAction,
    /// Allowed outcomes of requests in flight during it.
    pub expect: Vec<Expect>,
}

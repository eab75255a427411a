//! Values of a session: statuses, phases, records, configuration, refusals.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

/// SHA-256 root of a session's state.
pub type StateRoot = [u8; 32];

/// Status of one inference, by its number on the wire (contract hosts 3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Start accepted, no receipt in the log.
    Pending = 0,
    /// Receipt in the log.
    Started = 1,
    /// Finish in the log.
    Finished = 2,
    /// A validator said invalid; the vote runs.
    Challenged = 3,
    /// The challenge was lost.
    Validated = 4,
    /// The challenge was won; the cost was given back.
    Invalidated = 5,
    /// Timed out; the reservation was given back.
    TimedOut = 6,
}

impl Status {
    /// The gateway's word for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Started => "started",
            Self::Finished => "finished",
            Self::Challenged => "challenged",
            Self::Validated => "validated",
            Self::Invalidated => "invalidated",
            Self::TimedOut => "timed_out",
        }
    }

    /// Whether the inference will not move without a new dispute.
    #[must_use]
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Finished | Self::Validated | Self::Invalidated | Self::TimedOut)
    }
}

/// Phase of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Inferences may start.
    #[default]
    Active = 0,
    /// Only leftovers are taken in.
    Finalizing = 1,
    /// Everything is sealed; signatures are collected.
    Settlement = 2,
}

impl Phase {
    /// The word in status answers.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Finalizing => "finalizing",
            Self::Settlement => "settlement",
        }
    }
}

/// Settings that are frozen when a session begins; the names are those of the gateway's status.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionConfig {
    /// Seconds, see [`crate::personality::Waits`].
    pub refusal_timeout: u32,
    /// Seconds, see [`crate::personality::Waits`].
    pub execution_timeout: u32,
    /// Price of a token.
    pub token_price: u64,
    /// Price of opening the session.
    pub create_devshard_fee: u64,
    /// Price of a step while the session is active.
    pub fee_per_nonce: u64,
    /// More slots than this must agree.
    pub vote_threshold: u32,
    /// Share of finished inferences that are validated, in parts of 10000.
    pub validation_rate: u32,
    /// Steps that a finished inference stays live.
    pub inference_seal_grace_nonces: u32,
    /// Seconds that a finished inference stays live.
    pub inference_seal_grace_seconds: u32,
    /// Sealing happens at multiples of this nonce.
    pub auto_seal_every_n_nonces: u32,
}

impl SessionConfig {
    /// Compiled defaults for a group of `group_size` slots (status of the captures "surfaces-single").
    #[must_use]
    pub fn defaults(group_size: u32, waits: crate::personality::Waits) -> Self {
        Self {
            refusal_timeout: waits.refusal_s,
            execution_timeout: waits.execution_s,
            token_price: 100,
            create_devshard_fee: 10_000,
            fee_per_nonce: 1000,
            vote_threshold: group_size / 2,
            validation_rate: 6000,
            inference_seal_grace_nonces: group_size.max(20),
            inference_seal_grace_seconds: 3600,
            auto_seal_every_n_nonces: 150,
        }
    }

    /// Settings of an escrow over the compiled defaults; a zero in the escrow means "not set".
    #[must_use]
    pub fn of_escrow(
        escrow: &wire::proto::inference::DevshardEscrow,
        group_size: u32,
        waits: crate::personality::Waits,
    ) -> Self {
        let or = |value: u64, default: u64| if value == 0 { default } else { value };
        let or32 = |value: u32, default: u32| if value == 0 { default } else { value };
        let defaults = Self::defaults(group_size, waits);
        Self {
            token_price: or(escrow.token_price, defaults.token_price),
            create_devshard_fee: or(escrow.create_devshard_fee, defaults.create_devshard_fee),
            fee_per_nonce: or(escrow.fee_per_nonce, defaults.fee_per_nonce),
            vote_threshold: Self::vote_threshold_for(group_size, escrow.vote_threshold_factor),
            validation_rate: or32(escrow.validation_rate, defaults.validation_rate),
            inference_seal_grace_nonces: or32(
                escrow.inference_seal_grace_nonces,
                defaults.inference_seal_grace_nonces,
            ),
            inference_seal_grace_seconds: or32(
                escrow.inference_seal_grace_seconds,
                defaults.inference_seal_grace_seconds,
            ),
            auto_seal_every_n_nonces: or32(
                escrow.auto_seal_every_n_nonces,
                defaults.auto_seal_every_n_nonces,
            ),
            ..defaults
        }
    }

    /// Vote threshold for a factor in percent; 0 stands for half of the group (contract hosts 3.2).
    #[must_use]
    pub const fn vote_threshold_for(group_size: u32, factor: u32) -> u32 {
        if factor == 0 { group_size / 2 } else { group_size.saturating_mul(factor) / 100 }
    }
}

/// What a session begins with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionParams {
    /// Its id, decimal.
    pub escrow_id: String,
    /// Address of the user, the only one who signs steps.
    pub creator: String,
    /// Address per slot.
    pub group: Vec<String>,
    /// Deposit.
    pub initial_balance: u64,
    /// Protocol tag such as `v2`; part of the root.
    pub protocol_version: String,
    /// Frozen settings.
    pub config: SessionConfig,
}

impl SessionParams {
    /// Slots of an address.
    #[must_use]
    pub fn weight_of(&self, address: &str) -> u32 {
        let count = self.group.iter().filter(|slot| *slot == address).count();
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    /// First slot of an address.
    #[must_use]
    pub fn first_slot_of(&self, address: &str) -> Option<u32> {
        self.group.iter().position(|slot| slot == address).and_then(|slot| u32::try_from(slot).ok())
    }

    /// Address of a slot.
    #[must_use]
    pub fn address_of(&self, slot: u32) -> Option<&str> {
        self.group.get(slot as usize).map(String::as_str)
    }

    /// Slot that executes the inference with this id: `id mod group size`.
    #[must_use]
    pub fn executor_slot(&self, inference_id: u64) -> u32 {
        let size = u64::try_from(self.group.len()).unwrap_or(u64::MAX).max(1);
        u32::try_from(inference_id % size).unwrap_or(u32::MAX)
    }
}

/// Slots that spoke for and against an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VoteCount {
    /// For.
    pub valid: u32,
    /// Against.
    pub invalid: u32,
}

/// One inference as the log has made it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inference {
    /// Where it stands.
    pub status: Status,
    /// Slot that executes it.
    pub executor_slot: u32,
    /// Model name.
    pub model: String,
    /// SHA-256 of the canonical prompt.
    pub prompt_hash: Vec<u8>,
    /// SHA-256 of the stored answer; empty before the finish.
    pub response_hash: Vec<u8>,
    /// Prompt size that was reserved.
    pub input_length: u64,
    /// Answer size that was reserved, in tokens.
    pub max_tokens: u64,
    /// Prompt tokens used.
    pub input_tokens: u64,
    /// Answer tokens used.
    pub output_tokens: u64,
    /// Money set aside by the start.
    pub reserved_cost: u64,
    /// Money taken by the finish; given back on invalidation, where it stays here as a record.
    pub actual_cost: u64,
    /// The user's clock at the start, Unix seconds.
    pub started_at: i64,
    /// The executor's clock at the receipt, Unix seconds; 0 before.
    pub confirmed_at: i64,
    /// Weight of the opinions so far.
    pub votes: VoteCount,
    /// Slots that gave an opinion.
    pub validated_by: BTreeSet<u32>,
    /// Step at which it was sealed.
    pub sealed_nonce: Option<u64>,
}

/// What a slot has done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostStats {
    /// Timed-out inferences.
    pub missed: u32,
    /// Invalidated inferences.
    pub invalid: u32,
    /// Earned money.
    pub cost: u64,
    /// Never counted, as in July.
    pub required_validations: u32,
    /// Never counted, as in July.
    pub completed_validations: u32,
}

/// Why a step or an entry was refused. The texts follow the real program where it shows them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// A step was left out.
    #[error("invalid nonce: must be sequential: expected {expected}, got {got}")]
    Nonce {
        /// Next step.
        expected: u64,
        /// What came.
        got: u64,
    },
    /// The sender computed another state.
    #[error("post_state_root does not match computed state root: diff {claimed}, computed {computed}")]
    Root {
        /// Root in the step, hex.
        claimed: String,
        /// Root here, hex.
        computed: String,
    },
    /// No such inference.
    #[error("inference {0} not found")]
    Unknown(u64),
    /// The id is taken.
    #[error("duplicate inference id {0}")]
    Duplicate(u64),
    /// The inference has left the live set.
    #[error("inference sealed: late {0} not accepted")]
    Sealed(&'static str),
    /// The entry does not fit the status.
    #[error("inference {id}: expected {expected}, got {got}")]
    WrongStatus {
        /// The inference.
        id: u64,
        /// Wanted status.
        expected: &'static str,
        /// Number of the status it has.
        got: u8,
    },
    /// A start whose id is not its nonce.
    #[error("inference id {id} is not the nonce {nonce} of its diff")]
    StartId {
        /// The id.
        id: u64,
        /// The step.
        nonce: u64,
    },
    /// Two starts in one step.
    #[error("more than one start_inference in diff {0}")]
    TwoStarts(u64),
    /// The money does not suffice.
    #[error("insufficient balance: need {need}, have {have}")]
    Balance {
        /// Price of the entry.
        need: u64,
        /// What is left.
        have: u64,
    },
    /// The phase forbids the entry.
    #[error("{what} not accepted in phase {phase}")]
    WrongPhase {
        /// Kind of the entry.
        what: &'static str,
        /// Current phase.
        phase: &'static str,
    },
    /// Signed by somebody else.
    #[error("{0}: wrong signer")]
    Signer(&'static str),
    /// The entry names another session.
    #[error("{what} belongs to escrow {got:?}")]
    Escrow {
        /// Kind of the entry.
        what: &'static str,
        /// Its escrow.
        got: String,
    },
    /// No such slot, or not the one that may.
    #[error("{what}: wrong slot {slot}")]
    Slot {
        /// Kind of the entry.
        what: &'static str,
        /// The slot.
        slot: u32,
    },
    /// The address has voted before.
    #[error("duplicate vote from slot {0}")]
    DuplicateVote(u32),
    /// Too few votes for a timeout.
    #[error("timeout of inference {id}: accepted weight {weight} is not above {threshold}")]
    Votes {
        /// The inference.
        id: u64,
        /// Weight that accepts.
        weight: u32,
        /// Weight that must be exceeded.
        threshold: u32,
    },
    /// A reason that is neither refused nor execution.
    #[error("unknown timeout reason {0}")]
    Reason(i32),
}

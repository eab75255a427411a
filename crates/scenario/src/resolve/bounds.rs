//! Bounds of a scenario. They keep a misprint from starting a thousand processes; none of them is a threshold.

use crate::read::Problems;

/// Most participants.
pub const PARTICIPANTS_MAX: u64 = 16;
/// Most processes a participant.
pub const REPLICAS_MAX: u64 = 8;
/// Most slots of an escrow.
pub const SLOTS_MAX: u64 = 256;
/// Most escrows.
pub const ESCROWS_MAX: u64 = 64;
/// Least pool nodes: with one node no rotation can be seen (specification, mock pool).
pub const NODES_MIN: u64 = 2;
/// Most pool nodes.
pub const NODES_MAX: u64 = 64;
/// Most workers of a node.
pub const WORKERS_MAX: u64 = 100_000;
/// Most queue places of a node.
pub const QUEUE_MAX: u64 = 1_000_000;
/// Highest weight of a node.
pub const WEIGHT_MAX: u64 = 10_000;
/// Longest plan.
pub const REQUESTS_MAX: u64 = 10_000_000;
/// Most requests in flight.
pub const CONCURRENCY_MAX: u64 = 100_000;
/// Most steps.
pub const STEPS_MAX: u64 = 1_000;
/// Longest prompt in tokens.
pub const INPUT_TOKENS_MAX: u64 = 4_000_000;
/// Longest answer in tokens.
pub const OUTPUT_TOKENS_MAX: u64 = 1_000_000;
/// Most fault rules, checks or actions in a file.
pub const RULES_MAX: u64 = 256;
/// Most ids, ordinals or repeated bodies in one list.
pub const LIST_MAX: u64 = 10_000;
/// Largest event of `oversize_event`, bytes.
pub const EVENT_BYTES_MAX: u64 = 256 << 20;
/// Most blocks of one burst.
pub const BURST_BLOCKS_MAX: u64 = 10_000;
/// Most stable samples of the drain.
pub const STABLE_SAMPLES_MAX: u64 = 1_000;

/// Adds a problem when `value` is outside; says so with the bounds.
pub(super) fn within(path: &str, value: u64, (low, high): (u64, u64), problems: &mut Problems<'_>) -> bool {
    let inside = (low..=high).contains(&value);
    if !inside {
        problems.add(path, format!("{path} is {value}, but must be from {low} to {high}"));
    }
    inside
}

//! Metric families of a host, under the names of the real one (contract hosts 8).

use crate::metrics::Family;
use crate::metrics::Kind::{Counter, Gauge, Histogram};

/// The table; order by name, which is the order of the output.
pub const FAMILIES: &[Family] = &[
    ("devshard_inflight", Gauge, "Chat requests that are running."),
    ("devshard_interruption_total", Counter, "Chat requests that ended against expectation."),
    ("devshard_mempool_size", Gauge, "Entries that wait for a step."),
    ("devshard_mlnode_attempts_total", Counter, "Calls of model servers."),
    ("devshard_mlnode_call_seconds", Histogram, "Time until the response headers of a model server."),
    ("devshard_mlnode_tokens", Histogram, "Tokens of an answer."),
    ("devshard_payload_request_total", Counter, "Payload fetches by validators."),
    ("devshard_receipt_orphan_total", Counter, "Receipts whose execution ended without finish."),
    ("devshard_request_terminal_total", Counter, "Ends of chat requests."),
    ("devshard_session_resolution_total", Counter, "Look-ups of sessions."),
    ("devshard_validation_orphan_total", Counter, "Validations that ended without an entry."),
    ("devshard_validation_queue_depth", Gauge, "Validations that wait."),
    ("devshard_validation_queue_drops_total", Counter, "Validations dropped by a full queue."),
    ("devshard_validation_total", Counter, "Stages of validations."),
    ("devshardd_request_active_operations", Gauge, "Operations that are running."),
    ("devshardd_request_duration_seconds", Histogram, "Time of operations."),
    ("devshardd_request_errors_total", Counter, "Operations that ended with an error."),
    ("process_start_time_seconds", Gauge, "Start of the process, Unix seconds."),
];

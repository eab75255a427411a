//! `snapshots/leases.jsonl`: the lease table of each participant over time. The table itself keeps no history
//! (contract hosts 5.4), so that whoever wants to know who held what when must look again and again.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::EVIDENCE_VERSION;
use crate::snapshot::Lease;

/// One line of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LeaseLine {
    /// Format version.
    pub v: u32,
    /// What was seen.
    #[serde(flatten)]
    pub seen: LeaseSeen,
}

impl From<LeaseSeen> for LeaseLine {
    fn from(seen: LeaseSeen) -> Self {
        Self { v: EVIDENCE_VERSION, seen }
    }
}

/// What was seen. Times are those of the participant's database, microseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum LeaseSeen {
    /// Looking begins.
    Begin {
        /// Time between two looks at one table, microseconds.
        spacing_us: u64,
        /// How long a lease holds, microseconds; unknown on builds that were not told by us.
        ttl_us: Option<u64>,
    },
    /// A row that is new, or other than at the look before.
    Changed {
        /// Participant, `host-1`.
        participant: String,
        /// When the look was.
        seen_unix_us: u64,
        /// The row.
        lease: Lease,
    },
    /// A row that is there no more: released.
    Gone {
        /// Participant.
        participant: String,
        /// When the look was.
        seen_unix_us: u64,
        /// The row as it was last seen.
        lease: Lease,
    },
    /// Looking is over.
    End {
        /// Participant.
        participant: String,
        /// Looks that worked.
        looks: u64,
        /// Looks that did not.
        failed: u64,
        /// Why the last of these did not.
        why: Option<String>,
        /// Lines that were left out because there were too many.
        dropped: u64,
    },
}

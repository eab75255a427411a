//! What can go wrong, typed; the texts say what, where and what to do.

use std::path::PathBuf;

use thiserror::Error;

use crate::model::tree::Place;

/// A Compose file can't be used as it stands.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{at}: {text}")]
pub struct FileError {
    /// Where.
    pub at: Place,
    /// What, and what to do.
    pub text: String,
}

impl FileError {
    /// An error at a place.
    #[must_use]
    pub fn new(at: &Place, text: impl Into<String>) -> Self {
        Self { at: at.clone(), text: text.into() }
    }
}

/// A call to the engine failed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum EngineError {
    /// Nothing answers at the address.
    #[error("no container engine answers at {address}: {reason}; start one or give DOCKER_HOST")]
    Unreachable {
        /// Address.
        address: String,
        /// Cause.
        reason: String,
    },
    /// The engine is not on this machine.
    #[error("the engine {address} is not on this machine; only a local one is supported for now")]
    Remote {
        /// Address.
        address: String,
    },
    /// The ranges of API versions do not meet.
    #[error(
        "the engine speaks API {engine_min} to {engine_max}, this program {own_min} to {own_max}; update the older one"
    )]
    ApiVersion {
        /// Oldest of the engine.
        engine_min: String,
        /// Newest of the engine.
        engine_max: String,
        /// Oldest of ours.
        own_min: String,
        /// Newest of ours.
        own_max: String,
    },
    /// The object is not there.
    #[error("{what}: not found")]
    NotFound {
        /// Call and object.
        what: String,
    },
    /// The name is taken, or the state does not allow it.
    #[error("{what}: {reason}")]
    Conflict {
        /// Call and object.
        what: String,
        /// Engine's words.
        reason: String,
    },
    /// The subnet overlaps with a network or route that exists.
    #[error("{what}: the subnet is taken: {reason}")]
    SubnetTaken {
        /// Call and object.
        what: String,
        /// Engine's words.
        reason: String,
    },
    /// Every address pool of the engine is used up.
    #[error("{what}: no address pool is left: {reason}; remove unused networks (`runner gc`)")]
    PoolsExhausted {
        /// Call and object.
        what: String,
        /// Engine's words.
        reason: String,
    },
    /// A network still has endpoints.
    #[error("{what}: it still has endpoints: {reason}")]
    ActiveEndpoints {
        /// Call and object.
        what: String,
        /// Engine's words.
        reason: String,
    },
    /// The disk or a quota is full; that is the machine's state, never a failure of what is tested.
    #[error("{what}: no space is left: {reason}; free disk or raise the quota")]
    NoSpace {
        /// Call and object.
        what: String,
        /// Engine's words.
        reason: String,
    },
    /// A call took longer than its deadline.
    #[error("{what}: no answer within {limit_ms} ms")]
    Timeout {
        /// Call and object.
        what: String,
        /// Deadline, milliseconds.
        limit_ms: u64,
    },
    /// The engine closed the connection or a stream broke.
    #[error("{what}: the connection to the engine broke: {reason}")]
    Broken {
        /// Call and object.
        what: String,
        /// Cause.
        reason: String,
    },
    /// Any other answer.
    #[error("{what}: the engine answered {status}: {reason}")]
    Answer {
        /// Call and object.
        what: String,
        /// HTTP status; 0 when there was none.
        status: u16,
        /// Engine's words.
        reason: String,
    },
}

impl EngineError {
    /// The object was gone already.
    #[must_use]
    pub const fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound { .. })
    }

    /// Sorts an answer of the engine by status and words (design compose-engine 13, 14, reports 9, 10, 18, 25, 26).
    #[must_use]
    pub fn from_answer(what: &str, status: u16, reason: &str) -> Self {
        let (what, reason) = (what.to_owned(), reason.trim().to_owned());
        let lower = reason.to_lowercase();
        let says = |words: &[&str]| words.iter().any(|word| lower.contains(word));
        if says(&["no space left on device", "disk quota exceeded", "enospc", "edquot"]) {
            return Self::NoSpace { what, reason };
        }
        if says(&["pool overlaps with other one", "overlaps with existing", "conflicts with network"]) {
            return Self::SubnetTaken { what, reason };
        }
        if says(&["non-overlapping ipv4 address pool", "predefined address pools have been fully subnetted"])
        {
            return Self::PoolsExhausted { what, reason };
        }
        if says(&["has active endpoints"]) {
            return Self::ActiveEndpoints { what, reason };
        }
        match status {
            404 => Self::NotFound { what },
            409 => Self::Conflict { what, reason },
            _ => Self::Answer { what, status, reason },
        }
    }
}

/// Why a project could not be brought up or down.
#[derive(Debug, Error)]
pub enum ComposeError {
    /// A file.
    #[error(transparent)]
    File(#[from] FileError),
    /// The engine.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A service failed while it was awaited.
    #[error("{service}: {reason}")]
    Service {
        /// Service.
        service: String,
        /// What happened.
        reason: String,
        /// Its last log lines.
        log: Vec<String>,
    },
    /// An operation was not done in time.
    #[error("{what} was not done within {limit_ms} ms; {waiting}")]
    Deadline {
        /// Operation.
        what: String,
        /// Deadline, milliseconds.
        limit_ms: u64,
        /// What it waited for.
        waiting: String,
    },
    /// The machine can't carry the project.
    #[error("{0}")]
    Preflight(String),
    /// A file of ours could not be read or written.
    #[error("{path}: {source}")]
    Io {
        /// File.
        path: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
    /// No free subnet could be leased.
    #[error("no free subnet in {range}: {reason}; `runner gc` removes what dead runs left")]
    NoSubnet {
        /// Range leases are taken from.
        range: String,
        /// What stands in the way, owners included.
        reason: String,
    },
    /// Something was asked for that the project does not have.
    #[error("{0}")]
    Request(String),
}

impl ComposeError {
    /// An error about a file of ours.
    pub fn io(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        |source| Self::Io { path, source }
    }

    /// Log lines that explain it.
    #[must_use]
    pub fn log(&self) -> &[String] {
        match self {
            Self::Service { log, .. } => log,
            _ => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_sorted_by_status_and_words() {
        let of = |status, text| EngineError::from_answer("create network n", status, text);
        assert!(of(404, "no such network").is_not_found());
        assert!(matches!(of(409, "name in use"), EngineError::Conflict { .. }));
        let overlap = "Pool overlaps with other one on this address space";
        assert!(matches!(of(403, overlap), EngineError::SubnetTaken { .. }));
        let exhausted = "could not find an available, non-overlapping IPv4 address pool among the defaults";
        assert!(matches!(of(500, exhausted), EngineError::PoolsExhausted { .. }));
        assert!(matches!(of(403, "network n has active endpoints"), EngineError::ActiveEndpoints { .. }));
        assert!(matches!(of(500, "server error"), EngineError::Answer { status: 500, .. }));
    }

    #[test]
    fn reports_25_and_26_a_full_disk_or_quota_is_a_class_of_its_own() {
        for words in ["write /x: no space left on device", "mkdir: disk quota exceeded"] {
            let error = EngineError::from_answer("create volume v", 500, words);
            assert!(matches!(error, EngineError::NoSpace { .. }), "{words}");
        }
    }
}

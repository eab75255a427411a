//! What a host is started with.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::personality::{Personality, Waits};

/// Environment variable with the host's private key, 64 hex digits. Never in the file.
pub const KEY_VARIABLE: &str = "PROOFLOAD_HOST_KEY";

/// The file given by `--config`, JSON. Unknown keys are errors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostConfig {
    /// Name in logs, such as `host-1`.
    pub host: String,
    /// Where to listen; port 0 lets the kernel choose.
    #[serde(default = "any_port")]
    pub listen: String,
    /// gRPC of the chain, `host:port`.
    pub chain_grpc: String,
    /// gRPC of the node allocator for this host, `host:port`.
    pub dapi_grpc: String,
    /// Websocket and RPC of the chain, `host:port`; without it the epoch is asked for and settlements are not
    /// heard of.
    #[serde(default)]
    pub chain_rpc: Option<String>,
    /// SQLite file; made when missing. Replicas of one participant share it.
    pub database: PathBuf,
    /// Postgres with the validation leases of the participant, such as `postgres://user@127.0.0.1:5432/name`;
    /// without it there are no leases and no replicas.
    #[serde(default)]
    pub postgres_url: Option<String>,
    /// How long a lease holds, in milliseconds (30 min in July; short here like the waits).
    #[serde(default = "lease_ttl_ms")]
    pub lease_ttl_ms: u64,
    /// Pause between two looks at stale leases, in milliseconds (5 min in July).
    #[serde(default = "lease_retry_ms")]
    pub lease_retry_ms: u64,
    /// Validations at one time.
    #[serde(default = "validations")]
    pub validation_concurrency: usize,
    /// Which Devshard is imitated.
    #[serde(default)]
    pub personality: Personality,
    /// Protocol waits; those of the gateway must be the same.
    #[serde(default)]
    pub waits: Waits,
    /// Pause after a refused acquire, in milliseconds (2000 in July; short here like the waits).
    #[serde(default = "acquire_pause_ms")]
    pub acquire_pause_ms: u64,
    /// Public path of the routes; its last segment is the protocol tag.
    #[serde(default = "route_prefix")]
    pub route_prefix: String,
}

fn any_port() -> String {
    "127.0.0.1:0".to_owned()
}

const fn lease_ttl_ms() -> u64 {
    10_000
}

const fn lease_retry_ms() -> u64 {
    2_000
}

const fn validations() -> usize {
    4
}

const fn acquire_pause_ms() -> u64 {
    200
}

fn route_prefix() -> String {
    "/devshard/v2".to_owned()
}

/// Why a configuration was refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is not such a configuration.
    #[error("the configuration {path} is not valid: {source}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// Place and reason.
        source: serde_json::Error,
    },
    /// A value makes no sense.
    #[error("the configuration {path}: {problem}")]
    Value {
        /// The file.
        path: PathBuf,
        /// Which and why.
        problem: &'static str,
    },
}

impl HostConfig {
    /// Reads and checks the file.
    ///
    /// # Errors
    /// When it cannot be read, is not JSON of this shape, or a value makes no sense.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        let config: Self = serde_json::from_str(&text)
            .map_err(|source| ConfigError::Parse { path: path.to_owned(), source })?;
        let problem = if config.validation_concurrency == 0 {
            Some("validation_concurrency must be at least 1")
        } else if config.lease_ttl_ms == 0 || config.lease_retry_ms == 0 {
            Some("lease_ttl_ms and lease_retry_ms must be at least 1")
        } else if !config.route_prefix.starts_with('/') || config.route_prefix.ends_with('/') {
            Some("route_prefix must begin with a slash and end without one")
        } else {
            None
        };
        match problem {
            Some(problem) => Err(ConfigError::Value { path: path.to_owned(), problem }),
            None => Ok(config),
        }
    }

    /// The protocol tag: last segment of the route prefix.
    #[must_use]
    pub fn protocol_version(&self) -> &str {
        self.route_prefix.rsplit('/').next().unwrap_or_default()
    }
}

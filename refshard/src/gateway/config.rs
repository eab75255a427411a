//! What a gateway is started with. Keys come by environment alone, never by file.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::personality::{Personality, Waits};
use crate::signing::{Signer, SigningError};

/// Environment variable with the escrow creator's private key, 64 hex digits.
pub const CREATOR_KEY_VARIABLE: &str = "PROOFLOAD_CREATOR_KEY";
/// Environment variable with the admin bearer; without it every admin path is 404 (contract gateway 2.1).
pub const ADMIN_KEY_VARIABLE: &str = "PROOFLOAD_ADMIN_KEY";
/// Environment variable with client keys for models of access mode `api_key`, separated by commas.
pub const API_KEYS_VARIABLE: &str = "PROOFLOAD_API_KEYS";

/// The file given by `--config`, JSON. Unknown keys are errors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GatewayConfig {
    /// Escrows to serve.
    pub escrow_ids: Vec<u64>,
    /// Model of these escrows, and of requests that name none.
    pub model: String,
    /// gRPC of the chain, `host:port`.
    pub chain_grpc: String,
    /// Directory of the SQLite files; made when missing.
    pub database_dir: PathBuf,
    /// Where to listen; port 0 lets the kernel choose.
    #[serde(default = "any_port")]
    pub listen: String,
    /// HTTP base of the public API, whose participant weights cap the concurrency; none: no cap by weight.
    #[serde(default)]
    pub public_api: Option<String>,
    /// Path of the routes on hosts; its last segment is the protocol tag.
    #[serde(default = "route_prefix")]
    pub route_prefix: String,
    /// Which Devshard is imitated.
    #[serde(default)]
    pub personality: Personality,
    /// Protocol waits; those of the hosts must be the same.
    #[serde(default)]
    pub waits: Waits,
    /// Settings of a fresh database, in the form of `POST /v1/admin/settings`.
    #[serde(default)]
    pub settings: Option<Value>,
}

fn any_port() -> String {
    "127.0.0.1:0".to_owned()
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
    #[error("the gateway configuration: {0}")]
    Value(&'static str),
    /// The creator's key is missing or malformed.
    #[error("the environment variable {CREATOR_KEY_VARIABLE}: {0}")]
    Key(SigningError),
}

impl GatewayConfig {
    /// Reads and checks the file.
    ///
    /// # Errors
    /// When it cannot be read, is not JSON of this shape, or a value makes no sense.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        let config: Self = serde_json::from_str(&text)
            .map_err(|source| ConfigError::Parse { path: path.to_owned(), source })?;
        config.check()?;
        Ok(config)
    }

    /// Checks the values.
    ///
    /// # Errors
    /// When one makes no sense.
    pub fn check(&self) -> Result<(), ConfigError> {
        let problem = if self.model.is_empty() {
            "model must not be empty"
        } else if !self.route_prefix.starts_with('/') || self.route_prefix.ends_with('/') {
            "route_prefix must begin with a slash and end without one"
        } else {
            return Ok(());
        };
        Err(ConfigError::Value(problem))
    }

    /// The protocol tag: last segment of the route prefix.
    #[must_use]
    pub fn protocol_version(&self) -> &str {
        self.route_prefix.rsplit('/').next().unwrap_or_default()
    }
}

/// The secrets of a gateway. `Debug` shows none of them.
#[derive(Clone)]
pub struct GatewayKeys {
    /// Signs the steps.
    pub creator: Signer,
    /// The same key in the form that signs transactions.
    pub creator_tx: std::sync::Arc<wire::keys::PrivateKey>,
    /// Admin bearer.
    pub admin: Option<String>,
    /// Client keys.
    pub api: Vec<String>,
}

impl std::fmt::Debug for GatewayKeys {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "GatewayKeys({})", self.creator.address())
    }
}

impl GatewayKeys {
    /// Keys out of their texts.
    ///
    /// # Errors
    /// When the creator's key is not 64 hex digits of a key.
    pub fn new(creator_hex: &str, admin: Option<String>, api: Vec<String>) -> Result<Self, ConfigError> {
        let creator = Signer::from_hex(creator_hex).map_err(ConfigError::Key)?;
        let creator_tx = wire::keys::PrivateKey::from_hex(creator_hex.trim())
            .map_err(|_| ConfigError::Key(SigningError::Key))?;
        let admin = admin.filter(|key| !key.is_empty());
        Ok(Self { creator, creator_tx: std::sync::Arc::new(creator_tx), admin, api })
    }

    /// Keys from the environment.
    ///
    /// # Errors
    /// As for [`GatewayKeys::new`].
    pub fn from_environment() -> Result<Self, ConfigError> {
        let text = |name| std::env::var(name).unwrap_or_default();
        let api = text(API_KEYS_VARIABLE);
        let api = api.split(',').map(str::trim).filter(|key| !key.is_empty()).map(str::to_owned).collect();
        Self::new(&text(CREATOR_KEY_VARIABLE), Some(text(ADMIN_KEY_VARIABLE)), api)
    }
}

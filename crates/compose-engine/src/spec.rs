//! What is asked of the engine: specifications of networks, volumes and containers, and their hashes.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

use crate::model::{HealthCheck, HostOptions, Port, Restart};

/// A container in a network, ready to be sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Endpoint {
    /// Network name.
    pub network: String,
    /// Names in it.
    pub aliases: Vec<String>,
    /// Static address.
    pub ipv4: Option<Ipv4Addr>,
}

/// A network to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkCreate {
    /// Name.
    pub name: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// No way out.
    pub internal: bool,
    /// Driver options.
    pub options: BTreeMap<String, String>,
    /// Leased subnet.
    pub subnet: Ipv4Addr,
    /// Its prefix length.
    pub prefix: u8,
    /// Gateway.
    pub gateway: Ipv4Addr,
    /// Where dynamic addresses come from, so that none meets a static one (report 12).
    pub dynamic: Option<(Ipv4Addr, u8)>,
}

/// A mount to make.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum MountSpec {
    /// A path of the run's folder.
    Bind {
        /// On the host.
        source: PathBuf,
        /// In the container.
        target: String,
        /// Only reading.
        read_only: bool,
    },
    /// A named volume.
    Volume {
        /// Name in the engine.
        name: String,
        /// In the container.
        target: String,
        /// Only reading.
        read_only: bool,
        /// Leave it empty on first use.
        nocopy: bool,
    },
    /// Memory.
    Tmpfs {
        /// In the container.
        target: String,
        /// Bytes.
        size: Option<i64>,
        /// Permission bits.
        mode: Option<i64>,
    },
}

impl MountSpec {
    /// In the container.
    #[must_use]
    pub fn target(&self) -> &str {
        match self {
            Self::Bind { target, .. } | Self::Volume { target, .. } | Self::Tmpfs { target, .. } => target,
        }
    }
}

/// A network of a service, before the subnet is known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EndpointSpec {
    /// Key.
    pub network: String,
    /// Names beside the service's own.
    pub aliases: Vec<String>,
    /// Offset of a static address from the subnet's base.
    pub host_offset: Option<u32>,
}

/// A container, before subnets are known.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ContainerSpec {
    /// Service key.
    pub service: String,
    /// Image as named.
    pub image: String,
    /// Program.
    pub entrypoint: Option<Vec<String>>,
    /// Arguments.
    pub command: Option<Vec<String>>,
    /// Variables; `None` removes the image's value.
    pub environment: BTreeMap<String, Option<String>>,
    /// Working directory.
    pub working_dir: Option<String>,
    /// User.
    pub user: Option<String>,
    /// The file's labels.
    pub labels: BTreeMap<String, String>,
    /// Host name.
    pub hostname: Option<String>,
    /// Health check.
    pub healthcheck: Option<HealthCheck>,
    /// Restart policy.
    pub restart: Restart,
    /// Networks.
    pub endpoints: Vec<EndpointSpec>,
    /// Published ports.
    pub ports: Vec<Port>,
    /// Exposed ports.
    pub expose: Vec<String>,
    /// Mounts.
    pub mounts: Vec<MountSpec>,
    /// Limits and rights.
    pub host: HostOptions,
    /// Stop signal.
    pub stop_signal: Option<String>,
    /// Grace.
    pub stop_grace: Option<Duration>,
    /// Platform.
    pub platform: Option<String>,
    /// Log options.
    pub log_options: BTreeMap<String, String>,
    /// Standard input stays open.
    pub stdin_open: bool,
}

impl ContainerSpec {
    /// Hash of everything that makes the container, for the label.
    #[must_use]
    pub fn config_hash(&self) -> String {
        hash(self)
    }

    /// Hash of what does not change from run to run: no values of variables, no paths of a run's folder.
    #[must_use]
    pub fn shape_hash(&self) -> String {
        let mut shape = self.clone();
        shape.environment.values_mut().for_each(|value| *value = None);
        for mount in &mut shape.mounts {
            match mount {
                MountSpec::Bind { source, .. } => *source = PathBuf::new(),
                MountSpec::Volume { name, .. } => *name = String::new(),
                MountSpec::Tmpfs { .. } => {}
            }
        }
        hash(&shape)
    }
}

/// BLAKE3 of the JSON of a value whose maps are sorted.
pub fn hash<T: Serialize>(value: &T) -> String {
    // Specifications hold texts, numbers and maps with text keys: nothing that JSON can't carry.
    let bytes = serde_json::to_vec(value).unwrap_or_default();
    blake3::hash(&bytes).to_hex().to_string()
}

/// A container, ready to be sent.
#[derive(Clone, Debug, PartialEq)]
pub struct ContainerCreate {
    /// Name.
    pub name: String,
    /// All labels.
    pub labels: BTreeMap<String, String>,
    /// Specification.
    pub spec: ContainerSpec,
    /// Image id, pinned.
    pub image_id: String,
    /// Endpoints with addresses.
    pub endpoints: Vec<Endpoint>,
    /// Paths that the image declares as volumes and nothing is mounted at: they become memory, so that no anonymous
    /// volume is made (reports 24, 25, 27).
    pub extra_tmpfs: Vec<String>,
}

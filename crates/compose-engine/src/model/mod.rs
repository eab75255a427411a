//! The typed model of a Compose project: what the files say, strictly read, merged and checked.

pub mod canon;
pub mod check;
pub mod expand;
pub mod interpolate;
pub mod keys;
pub mod load;
pub mod overlay;
mod parts;
mod read;
mod reader;
pub mod tree;
pub mod units;

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

pub use load::{Loader, Source};
use tree::Place;

use crate::error::ComposeError;

/// A merged and checked project.
#[derive(Clone, Debug, Default)]
pub struct Project {
    /// `name` of the last file that has one.
    pub name: Option<String>,
    /// Folder that relative paths start from: that of the first file.
    pub dir: PathBuf,
    /// Files in order.
    pub files: Vec<PathBuf>,
    /// Services by key.
    pub services: BTreeMap<String, Service>,
    /// Networks by key; `default` is there when a service uses it.
    pub networks: BTreeMap<String, Network>,
    /// Volumes by key.
    pub volumes: BTreeMap<String, Volume>,
    /// Secrets by key: source files.
    pub secrets: BTreeMap<String, PathBuf>,
    /// Configs by key: source files.
    pub configs: BTreeMap<String, PathBuf>,
    /// What was read as nothing, once each.
    pub warnings: Vec<String>,
}

impl Project {
    /// Lets a service run an image by name in place of what the file says.
    ///
    /// # Errors
    /// [`ComposeError::Request`] for a service that the project does not have.
    pub fn use_image(
        &mut self,
        service: &str,
        reference: &str,
        pull: PullPolicy,
    ) -> Result<(), ComposeError> {
        let known: Vec<String> = self.services.keys().cloned().collect();
        let Some(found) = self.services.get_mut(service) else {
            let text = format!(
                "no service {service:?} to run the image {reference}; there are {}",
                known.join(", ")
            );
            return Err(ComposeError::Request(text));
        };
        found.image = Some(reference.to_owned());
        found.build = None;
        found.pull = pull;
        Ok(())
    }
}

/// One service.
#[derive(Clone, Debug)]
pub struct Service {
    /// Where it stands.
    pub at: Place,
    /// Image.
    pub image: Option<String>,
    /// Recipe.
    pub build: Option<Build>,
    /// Arguments; `None` keeps the image's.
    pub command: Option<Vec<String>>,
    /// Program; `None` keeps the image's.
    pub entrypoint: Option<Vec<String>>,
    /// Variables; `None` removes the image's value.
    pub environment: BTreeMap<String, Option<String>>,
    /// Working directory.
    pub working_dir: Option<String>,
    /// User.
    pub user: Option<String>,
    /// What must be there first.
    pub depends_on: BTreeMap<String, Dependency>,
    /// Health check.
    pub healthcheck: Option<HealthCheck>,
    /// Restart policy.
    pub restart: Restart,
    /// Networks by key.
    pub networks: BTreeMap<String, Attachment>,
    /// No network at all (`network_mode: none`).
    pub network_none: bool,
    /// Published ports.
    pub ports: Vec<Port>,
    /// Exposed ports, documentation only.
    pub expose: Vec<String>,
    /// Mounts, one a target.
    pub mounts: Vec<Mount>,
    /// Limits and rights.
    pub host: HostOptions,
    /// Signal that stops it.
    pub stop_signal: Option<String>,
    /// Time it gets to stop.
    pub stop_grace: Option<Duration>,
    /// Own labels.
    pub labels: BTreeMap<String, String>,
    /// Host name.
    pub hostname: Option<String>,
    /// Platform.
    pub platform: Option<String>,
    /// Log options; the driver is always one that can be read back.
    pub log_options: BTreeMap<String, String>,
    /// Pull policy.
    pub pull: PullPolicy,
    /// Profiles that it belongs to.
    pub profiles: Vec<String>,
    /// Standard input stays open.
    pub stdin_open: bool,
    /// Probe that says when it is ready (`x-ready`), for services without a health check.
    pub ready: Option<crate::ready::Probe>,
}

/// Limits and rights of a container.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct HostOptions {
    /// Added capabilities.
    pub cap_add: Vec<String>,
    /// Dropped capabilities.
    pub cap_drop: Vec<String>,
    /// Security options.
    pub security_opt: Vec<String>,
    /// All rights.
    pub privileged: bool,
    /// An init process reaps children.
    pub init: Option<bool>,
    /// Name, soft, hard.
    pub ulimits: Vec<(String, i64, i64)>,
    /// Kernel settings.
    pub sysctls: BTreeMap<String, String>,
    /// Shared memory, bytes.
    pub shm_bytes: Option<i64>,
    /// `name:address`.
    pub extra_hosts: Vec<String>,
    /// Root file system is read-only.
    pub read_only: bool,
    /// Memory, bytes.
    pub mem_bytes: Option<i64>,
    /// CPU in billionths of a core.
    pub nano_cpus: Option<i64>,
    /// Processes.
    pub pids: Option<i64>,
}

/// A build recipe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Build {
    /// Folder with everything that the recipe copies.
    pub context: PathBuf,
    /// Recipe, relative to the context.
    pub dockerfile: String,
    /// Stage.
    pub target: Option<String>,
    /// Arguments.
    pub args: BTreeMap<String, String>,
}

/// When a dependency counts as met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Condition {
    /// Its start call succeeded.
    ServiceStarted,
    /// Its health check passes.
    ServiceHealthy,
    /// It ended with code 0.
    ServiceCompletedSuccessfully,
}

impl Condition {
    /// As in the file.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::ServiceStarted => "service_started",
            Self::ServiceHealthy => "service_healthy",
            Self::ServiceCompletedSuccessfully => "service_completed_successfully",
        }
    }
}

/// One edge of `depends_on`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dependency {
    /// When it is met.
    pub condition: Condition,
    /// Failing it fails the dependent.
    pub required: bool,
    /// Restarts with it (kept in the label for docker compose).
    pub restart: bool,
}

/// A health check.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HealthCheck {
    /// `["NONE"]`, `["CMD", …]` or `["CMD-SHELL", …]`; `None` takes the image's.
    pub test: Option<Vec<String>>,
    /// Between probes.
    pub interval: Option<Duration>,
    /// Of one probe.
    pub timeout: Option<Duration>,
    /// Failures until unhealthy.
    pub retries: Option<i64>,
    /// Failures in it do not count.
    pub start_period: Option<Duration>,
    /// Between probes in the start period (engine API 1.44).
    pub start_interval: Option<Duration>,
}

impl HealthCheck {
    /// Switched off by the file.
    #[must_use]
    pub fn disabled(&self) -> bool {
        self.test.as_ref().is_some_and(|test| test.first().is_some_and(|first| first == "NONE"))
    }
}

/// Restart policies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Restart {
    /// Never: a crash stays visible.
    #[default]
    No,
    /// Always.
    Always,
    /// After a non-zero exit, at most so often (0: no limit).
    OnFailure(i64),
    /// Until it is stopped.
    UnlessStopped,
}

/// A service in a network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attachment {
    /// Other names.
    pub aliases: Vec<String>,
    /// Static address as written; rewritten into the leased subnet.
    pub ipv4: Option<Ipv4Addr>,
}

/// A published port. The host's side is always chosen by the engine on 127.0.0.1.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Port {
    /// In the container.
    pub target: u16,
    /// `tcp` or `udp`.
    pub protocol: String,
    /// What the file asked for, kept for the plan's note.
    pub asked: Option<String>,
}

/// What a mount brings in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum MountSource {
    /// A file or folder of the machine; copied before it is mounted.
    Bind(PathBuf),
    /// A named volume.
    Volume {
        /// Key.
        key: String,
        /// Do not copy the image's content on first use.
        nocopy: bool,
    },
    /// Memory.
    Tmpfs {
        /// Bytes.
        size: Option<i64>,
        /// Permission bits.
        mode: Option<i64>,
    },
}

/// A mount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Mount {
    /// Path in the container.
    pub target: String,
    /// What.
    pub source: MountSource,
    /// Only reading.
    pub read_only: bool,
}

/// A network.
#[derive(Clone, Debug, Default)]
pub struct Network {
    /// Where it stands; `None` for the implicit `default`.
    pub at: Option<Place>,
    /// No way out.
    pub internal: bool,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Options of the bridge driver.
    pub options: BTreeMap<String, String>,
    /// Subnet as written: address and prefix length.
    pub subnet: Option<(Ipv4Addr, u8)>,
    /// Gateway as written.
    pub gateway: Option<Ipv4Addr>,
}

/// A named volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Volume {
    /// Labels.
    pub labels: BTreeMap<String, String>,
}

/// When an image is fetched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PullPolicy {
    /// When it is not there.
    #[default]
    Missing,
    /// Before every start.
    Always,
    /// Never: offline jobs.
    Never,
    /// Built here.
    Build,
}

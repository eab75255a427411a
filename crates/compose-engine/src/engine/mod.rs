//! The engine as this crate needs it: one trait, a real one over the API and a fake one in memory behind it.

mod convert;
pub mod docker;
pub mod fake;
pub mod place;
mod raw;

use std::collections::BTreeMap;
use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::BoxStream;
use serde::{Deserialize, Serialize};
use tokio::io::AsyncWrite;

use crate::error::EngineError;
use crate::spec::{ContainerCreate, Endpoint, NetworkCreate};

/// Result of every call.
pub type Answer<T> = Result<T, EngineError>;

/// What the engine says about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    /// Where it was reached, and why there.
    pub address: String,
    /// Version.
    pub version: String,
    /// Oldest API.
    pub api_min: String,
    /// Newest API.
    pub api_max: String,
    /// API in use.
    pub api: String,
    /// Host name.
    pub host: String,
    /// Storage folder on its machine.
    pub root_dir: String,
    /// Cores.
    pub cpus: u64,
    /// Memory, bytes.
    pub mem_bytes: u64,
    /// Control group version.
    pub cgroup: String,
    /// Its clock, RFC 3339.
    pub time: String,
    /// Its address pools: base and size.
    pub pools: Vec<(String, u64)>,
}

/// An image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageSeen {
    /// Id.
    pub id: String,
    /// Paths that the image declares as volumes; each would become an anonymous volume.
    pub volumes: Vec<String>,
    /// It brings a health check.
    pub has_health: bool,
}

/// An image in a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageListed {
    /// Id.
    pub id: String,
    /// Names with tags.
    pub tags: Vec<String>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Unix seconds of its making.
    pub created_unix_s: i64,
}

/// A network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkSeen {
    /// Id.
    pub id: String,
    /// Name.
    pub name: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Subnets as written by the engine.
    pub subnets: Vec<String>,
    /// Containers in it: id and name; only filled by [`Engine::network`].
    pub endpoints: Vec<(String, String)>,
}

/// A volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeSeen {
    /// Name.
    pub name: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
}

/// A container in a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerListed {
    /// Id.
    pub id: String,
    /// Name without the slash.
    pub name: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// State word of the engine, whatever it is.
    pub state: String,
}

/// One result of a health check.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeSeen {
    /// Start, RFC 3339.
    pub start: String,
    /// End, RFC 3339.
    pub end: String,
    /// Exit code.
    pub exit_code: i64,
    /// Output, at most 4096 bytes.
    pub output: String,
}

/// A container in full.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerSeen {
    /// Id.
    pub id: String,
    /// Name without the slash.
    pub name: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Image id.
    pub image_id: String,
    /// State word of the engine, whatever it is.
    pub status: String,
    /// The engine calls it running; true also while it waits to be restarted.
    pub running: bool,
    /// Paused.
    pub paused: bool,
    /// It waits to be restarted.
    pub restarting: bool,
    /// Its last exit was an out-of-memory kill.
    pub oom_killed: bool,
    /// Process id on the engine's machine; 0 when it does not run.
    pub pid: i64,
    /// Last exit code.
    pub exit_code: i64,
    /// Engine's words about a failed start.
    pub error: String,
    /// Start, RFC 3339.
    pub started_at: String,
    /// End, RFC 3339.
    pub finished_at: String,
    /// Restarts by policy.
    pub restart_count: i64,
    /// Health word; `None` without a check.
    pub health: Option<String>,
    /// Last results of the check.
    pub probes: Vec<ProbeSeen>,
    /// Published ports: in the container to on the host.
    pub ports: BTreeMap<u16, SocketAddr>,
    /// Address in each network by its name.
    pub addresses: BTreeMap<String, Ipv4Addr>,
    /// Anonymous and named volumes mounted.
    pub volumes: Vec<String>,
}

impl ContainerSeen {
    /// It runs now and is not between two restarts (report 7).
    #[must_use]
    pub const fn up(&self) -> bool {
        self.running && !self.restarting
    }

    /// It has run and ended.
    #[must_use]
    pub fn ended(&self) -> bool {
        !self.running && !self.restarting && matches!(self.status.as_str(), "exited" | "dead")
    }
}

/// What is done to a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Act {
    /// Start.
    Start,
    /// Stop by its signal, then kill; `None` keeps the container's own grace.
    Stop(Option<Duration>),
    /// SIGKILL.
    Kill,
    /// Freeze.
    Pause,
    /// Thaw.
    Unpause,
    /// Stop and start.
    Restart(Option<Duration>),
}

impl Act {
    /// Word for messages.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Stop(_) => "stop",
            Self::Kill => "kill",
            Self::Pause => "pause",
            Self::Unpause => "unpause",
            Self::Restart(_) => "restart",
        }
    }
}

/// Which output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Output {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// A piece of a log: at most 16 KiB of one line, or several lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogPiece {
    /// Which output.
    pub output: Output,
    /// Bytes as sent, with the engine's time stamp in front when it was asked for.
    pub bytes: Bytes,
}

/// An event.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventSeen {
    /// `container`, `network`, …
    pub kind: String,
    /// Action without what follows a colon.
    pub action: String,
    /// What follows the colon (`healthy`).
    pub detail: String,
    /// Object.
    pub id: String,
    /// Attributes.
    pub attributes: BTreeMap<String, String>,
    /// Engine's clock, nanoseconds.
    pub time_ns: u64,
}

/// Both ends of a container's standard streams.
pub struct Attached {
    /// To its standard input.
    pub input: Pin<Box<dyn AsyncWrite + Send>>,
    /// From its outputs.
    pub output: BoxStream<'static, Answer<LogPiece>>,
}

impl std::fmt::Debug for Attached {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Attached")
    }
}

/// What a log request asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogAsk {
    /// Keep the stream open.
    pub follow: bool,
    /// Unix seconds; 0 for everything.
    pub since_unix_s: u64,
    /// Only the last lines.
    pub tail: Option<u32>,
}

/// How an image is built.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BuildAsk {
    /// Tag.
    pub tag: String,
    /// Recipe in the context.
    pub dockerfile: String,
    /// Stage.
    pub target: Option<String>,
    /// Arguments.
    pub args: BTreeMap<String, String>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
}

/// A future of a call.
pub trait Call<T>: Future<Output = Answer<T>> + Send {}
impl<T, F: Future<Output = Answer<T>> + Send> Call<T> for F {}

/// A container engine. Every call has a deadline of its own; none is retried here.
pub trait Engine: Send + Sync {
    /// Version, limits and clock.
    fn about(&self) -> impl Call<About>;
    /// An image by name or id.
    fn image(&self, reference: &str) -> impl Call<Option<ImageSeen>>;
    /// Every image, or those with a label.
    fn images(&self, label: Option<&str>) -> impl Call<Vec<ImageListed>>;
    /// Takes a name off an image, which goes with its last name; one that a container uses stays.
    fn remove_image(&self, tag: &str) -> impl Call<()>;
    /// Fetches an image.
    fn pull(&self, reference: &str) -> impl Call<()>;
    /// Builds an image from a tar of its context; gives its id.
    fn build(&self, ask: &BuildAsk, context: Bytes) -> impl Call<String>;
    /// Every network, or those with a label `key=value`.
    fn networks(&self, label: Option<&str>) -> impl Call<Vec<NetworkSeen>>;
    /// One network with its endpoints.
    fn network(&self, id: &str) -> impl Call<NetworkSeen>;
    /// Makes a network; gives its id.
    fn create_network(&self, spec: &NetworkCreate) -> impl Call<String>;
    /// Removes a network.
    fn remove_network(&self, id: &str) -> impl Call<()>;
    /// Joins a container to a network.
    fn connect(&self, network: &str, container: &str, endpoint: &Endpoint) -> impl Call<()>;
    /// Takes a container out of a network, by force.
    fn disconnect(&self, network: &str, container: &str) -> impl Call<()>;
    /// Every volume, or those with a label.
    fn volumes(&self, label: Option<&str>) -> impl Call<Vec<VolumeSeen>>;
    /// Makes a volume.
    fn create_volume(&self, name: &str, labels: &BTreeMap<String, String>) -> impl Call<()>;
    /// Removes a volume.
    fn remove_volume(&self, name: &str) -> impl Call<()>;
    /// Every container, ended ones included, or those with a label.
    fn containers(&self, label: Option<&str>) -> impl Call<Vec<ContainerListed>>;
    /// Makes a container; gives its id.
    fn create_container(&self, spec: &ContainerCreate) -> impl Call<String>;
    /// One container.
    fn inspect(&self, id: &str) -> impl Call<ContainerSeen>;
    /// Acts on a container; being in that state already is success.
    fn act(&self, id: &str, act: Act) -> impl Call<()>;
    /// Removes a container by force, with its anonymous volumes.
    fn remove_container(&self, id: &str) -> impl Call<()>;
    /// Unpacks a tar at a folder of a container.
    fn upload(&self, id: &str, folder: &str, tar: Bytes) -> impl Call<()>;
    /// Packs a path of a container; works on ended ones too.
    fn download(&self, id: &str, path: &str) -> impl Call<Bytes>;
    /// Logs as pieces.
    fn logs(&self, id: &str, ask: LogAsk) -> BoxStream<'static, Answer<LogPiece>>;
    /// Events of containers with a label since a time.
    fn events(&self, label: &str, since_unix_s: u64) -> BoxStream<'static, Answer<EventSeen>>;
    /// Standard streams of a container; what it wrote before comes first.
    fn attach(&self, id: &str) -> impl Call<Attached>;
    /// Calls so far.
    fn calls(&self) -> u64;
}

//! The real engine: changes through bollard, reads as lenient JSON, every call with a deadline, calls counted.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bollard::Docker as Client;
use bollard::container::LogOutput;
use bollard::errors::Error;
use bollard::models::{
    Ipam, IpamConfig, NetworkConnectRequest, NetworkCreateRequest, NetworkDisconnectRequest,
    VolumeCreateRequest,
};
use bollard::query_parameters as query;
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use serde_json::Value;

use super::place::EnginePlace;
use super::raw::{Raw, timeout};
use super::{
    About, Act, Answer, Attached, BuildAsk, ContainerListed, ContainerSeen, Engine, EventSeen, ImageListed,
    ImageSeen, LogAsk, LogPiece, NetworkSeen, Output, VolumeSeen, convert,
};
use crate::error::EngineError;
use crate::spec::{ContainerCreate, Endpoint, NetworkCreate};

/// Oldest API that this crate works with: Debian's engine.
pub const API_MIN: (u32, u32) = (1, 41);
/// Newest API that it was written against.
pub const API_MAX: (u32, u32) = (1, 53);
/// Deadline of an ordinary call.
const CALL_LIMIT: Duration = Duration::from_secs(30);
/// Deadline of a build or pull.
const IMAGE_LIMIT: Duration = Duration::from_secs(600);
/// What a stop may take beyond its grace.
const STOP_MARGIN: Duration = Duration::from_secs(20);
/// Grace of a container that names none, as the engine has it.
const GRACE_DEFAULT: Duration = Duration::from_secs(10);
/// Largest archive that is read from a container.
const DOWNLOAD_BYTES_MAX: usize = 1024 * 1024 * 1024;

/// A connected engine. Clones share the connection pool and the count of calls.
#[derive(Clone, Debug)]
pub struct Docker {
    client: Client,
    raw: Raw,
    about: About,
    api: (u32, u32),
    limit: Duration,
    calls: Arc<AtomicU64>,
}

fn version(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// The API to use, or both ranges in words (report 29).
fn negotiate(engine_min: &str, engine_max: &str) -> Result<(u32, u32), EngineError> {
    let of = |(major, minor): (u32, u32)| format!("{major}.{minor}");
    let refused = || EngineError::ApiVersion {
        engine_min: engine_min.to_owned(),
        engine_max: engine_max.to_owned(),
        own_min: of(API_MIN),
        own_max: of(API_MAX),
    };
    let newest = version(engine_max).ok_or_else(refused)?;
    let oldest = version(engine_min).unwrap_or(API_MIN);
    let chosen = newest.min(API_MAX);
    if chosen < API_MIN || chosen < oldest { Err(refused()) } else { Ok(chosen) }
}

impl Docker {
    /// Connects, negotiates and asks for limits.
    ///
    /// # Errors
    /// [`EngineError::Unreachable`], [`EngineError::ApiVersion`], or whatever the first calls give.
    pub async fn connect(place: &EnginePlace) -> Result<Self, EngineError> {
        Self::connect_with_limit(place, CALL_LIMIT).await
    }

    /// The same with another deadline for ordinary calls.
    ///
    /// # Errors
    /// As [`Docker::connect`].
    pub async fn connect_with_limit(place: &EnginePlace, limit: Duration) -> Result<Self, EngineError> {
        let address = format!("{} ({})", place.socket.display(), place.because);
        let unreachable = |reason: String| EngineError::Unreachable { address: address.clone(), reason };
        let path = place.socket.to_str().ok_or_else(|| unreachable("the path is no text".to_owned()))?;
        // Our own deadlines are shorter or meant to be longer: the client's must never be the one that ends a stop.
        let client = Client::connect_with_unix(path, 3_600, bollard::API_DEFAULT_VERSION)
            .map_err(|error| unreachable(error.to_string()))?;
        let raw = Raw { socket: place.socket.clone(), limit };
        let told = match raw.get("asking for the version", "/version").await {
            Err(EngineError::Broken { reason, .. }) => return Err(unreachable(reason)),
            other => other?,
        };
        let text =
            |json: &Value, key: &str| json.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (api_min, api_max) = (text(&told, "MinAPIVersion"), text(&told, "ApiVersion"));
        let api = negotiate(&api_min, &api_max)?;
        let client = client.negotiate_version().await.map_err(|error| unreachable(error.to_string()))?;
        let mut engine =
            Self { client, raw, about: About::default(), api, limit, calls: Arc::new(AtomicU64::new(2)) };
        let info = engine.get("asking for limits", "/info").await?;
        let count = |key: &str| info.get(key).and_then(Value::as_u64).unwrap_or_default();
        let pools = info.get("DefaultAddressPools").and_then(Value::as_array).into_iter().flatten();
        engine.about = About {
            address,
            version: text(&told, "Version"),
            api_min,
            api_max,
            api: format!("{}.{}", api.0, api.1),
            host: text(&info, "Name"),
            root_dir: text(&info, "DockerRootDir"),
            cpus: count("NCPU"),
            mem_bytes: count("MemTotal"),
            cgroup: text(&info, "CgroupVersion"),
            time: text(&info, "SystemTime"),
            pools: pools
                .map(|pool| {
                    (text(pool, "Base"), pool.get("Size").and_then(Value::as_u64).unwrap_or_default())
                })
                .collect(),
        };
        Ok(engine)
    }

    async fn get(&self, what: &str, path: &str) -> Answer<Value> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.raw.get(what, path).await
    }

    async fn call<T>(
        &self,
        what: String,
        limit: Duration,
        call: impl Future<Output = Result<T, Error>> + Send,
    ) -> Answer<T> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        match tokio::time::timeout(limit, call).await {
            Ok(answer) => answer.map_err(|error| sort(&what, &error)),
            Err(_) => Err(timeout(&what, limit)),
        }
    }
}

/// Sorts an error of the client.
fn sort(what: &str, error: &Error) -> EngineError {
    match error {
        Error::DockerResponseServerError { status_code, message } => {
            EngineError::from_answer(what, *status_code, message)
        }
        Error::DockerStreamError { error } => EngineError::from_answer(what, 500, error),
        Error::RequestTimeoutError => timeout(what, Duration::from_secs(3_600)),
        other => EngineError::Broken { what: what.to_owned(), reason: other.to_string() },
    }
}

/// `?filters={"label":["…"]}` with the JSON percent-encoded.
fn filter(label: Option<&str>) -> String {
    let Some(label) = label else { return String::new() };
    let json = serde_json::json!({ "label": [label] }).to_string();
    format!("filters={}", encode(&json))
}

fn encode(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    text.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

fn network_seen(json: &Value) -> NetworkSeen {
    let text = |json: &Value, key: &str| json.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let configs = json.pointer("/IPAM/Config").and_then(Value::as_array).into_iter().flatten();
    let inside = json.get("Containers").and_then(Value::as_object).into_iter().flatten();
    NetworkSeen {
        id: text(json, "Id"),
        name: text(json, "Name"),
        labels: convert::labels(json.get("Labels")),
        subnets: configs.map(|config| text(config, "Subnet")).collect(),
        endpoints: inside.map(|(id, end)| (id.clone(), text(end, "Name"))).collect(),
    }
}

fn piece(output: LogOutput) -> LogPiece {
    match output {
        LogOutput::StdErr { message } => LogPiece { output: Output::Stderr, bytes: message },
        LogOutput::StdOut { message } | LogOutput::StdIn { message } | LogOutput::Console { message } => {
            LogPiece { output: Output::Stdout, bytes: message }
        }
    }
}

fn list(json: Value) -> Vec<Value> {
    match json {
        Value::Array(items) => items,
        _ => Vec::new(),
    }
}

impl Engine for Docker {
    async fn about(&self) -> Answer<About> {
        let info = self.get("asking for the clock", "/info").await?;
        let time = info.get("SystemTime").and_then(Value::as_str).unwrap_or_default().to_owned();
        Ok(About { time, ..self.about.clone() })
    }

    async fn image(&self, reference: &str) -> Answer<Option<ImageSeen>> {
        let path = format!("/images/{}/json", encode(reference));
        let json = match self.get(&format!("image {reference}"), &path).await {
            Err(error) if error.is_not_found() => return Ok(None),
            other => other?,
        };
        let volumes = json.pointer("/Config/Volumes").and_then(Value::as_object).into_iter().flatten();
        Ok(Some(ImageSeen {
            id: json.get("Id").and_then(Value::as_str).unwrap_or_default().to_owned(),
            volumes: volumes.map(|(path, _)| path.clone()).collect(),
            has_health: json.pointer("/Config/Healthcheck/Test").is_some(),
        }))
    }

    async fn images(&self, label: Option<&str>) -> Answer<Vec<ImageListed>> {
        let json = self.get("listing images", &format!("/images/json?{}", filter(label))).await?;
        let listed = |json: &Value| ImageListed {
            id: json.get("Id").and_then(Value::as_str).unwrap_or_default().to_owned(),
            tags: json
                .get("RepoTags")
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
                .filter_map(|tag| tag.as_str().map(str::to_owned))
                .collect(),
            labels: convert::labels(json.get("Labels")),
            created_unix_s: json.get("Created").and_then(Value::as_i64).unwrap_or_default(),
        };
        Ok(list(json).iter().map(listed).collect())
    }

    async fn remove_image(&self, tag: &str) -> Answer<()> {
        let options = query::RemoveImageOptionsBuilder::default().force(false).noprune(false).build();
        let call = self.client.remove_image(tag, Some(options), None);
        self.call(format!("remove image {tag}"), self.limit, call).await.map(drop)
    }

    async fn pull(&self, reference: &str) -> Answer<()> {
        let ask = query::CreateImageOptionsBuilder::default().from_image(reference).build();
        let call = async {
            let mut told = std::pin::pin!(self.client.create_image(Some(ask), None, None));
            while let Some(line) = told.next().await {
                line?;
            }
            Ok(())
        };
        self.call(format!("pull {reference}"), IMAGE_LIMIT, call).await
    }

    async fn build(&self, ask: &BuildAsk, context: Bytes) -> Answer<String> {
        let args: HashMap<String, String> = convert::hash_map(&ask.args);
        let labels = convert::hash_map(&ask.labels);
        let options = query::BuildImageOptionsBuilder::default()
            .dockerfile(&ask.dockerfile)
            .t(&ask.tag)
            .rm(true)
            .forcerm(true)
            .target(ask.target.as_deref().unwrap_or_default())
            .buildargs(&args)
            .labels(&labels)
            .build();
        let call = async {
            let body = bollard::body_full(context);
            let mut told = std::pin::pin!(self.client.build_image(options, None, Some(body)));
            let mut id = String::new();
            while let Some(line) = told.next().await {
                let line = line?;
                if let Some(error) = line.error_detail.and_then(|detail| detail.message) {
                    return Err(Error::DockerStreamError { error });
                }
                if let Some(built) = line.aux.and_then(|aux| aux.id) {
                    id = built;
                }
            }
            Ok(id)
        };
        self.call(format!("build {}", ask.tag), IMAGE_LIMIT, call).await
    }

    async fn networks(&self, label: Option<&str>) -> Answer<Vec<NetworkSeen>> {
        let json = self.get("listing networks", &format!("/networks?{}", filter(label))).await?;
        Ok(list(json).iter().map(network_seen).collect())
    }

    async fn network(&self, id: &str) -> Answer<NetworkSeen> {
        let json = self.get(&format!("network {id}"), &format!("/networks/{}", encode(id))).await?;
        Ok(network_seen(&json))
    }

    async fn create_network(&self, spec: &NetworkCreate) -> Answer<String> {
        let config = IpamConfig {
            subnet: Some(format!("{}/{}", spec.subnet, spec.prefix)),
            gateway: Some(spec.gateway.to_string()),
            ip_range: spec.dynamic.map(|(base, prefix)| format!("{base}/{prefix}")),
            ..IpamConfig::default()
        };
        let request = NetworkCreateRequest {
            name: spec.name.clone(),
            driver: Some("bridge".to_owned()),
            internal: Some(spec.internal),
            attachable: Some(false),
            ipam: Some(Ipam { config: Some(vec![config]), ..Ipam::default() }),
            options: Some(convert::hash_map(&spec.options)),
            labels: Some(convert::hash_map(&spec.labels)),
            ..NetworkCreateRequest::default()
        };
        // Before API 1.44 the engine makes two networks of one name; the name is this run's own, so looking is enough.
        let there = self.networks(None).await?.into_iter().any(|seen| seen.name == spec.name);
        if there {
            let reason = "a network of that name is there already".to_owned();
            return Err(EngineError::Conflict { what: format!("create network {}", spec.name), reason });
        }
        let what = format!("create network {}", spec.name);
        self.call(what, self.limit, self.client.create_network(request)).await.map(|made| made.id)
    }

    async fn remove_network(&self, id: &str) -> Answer<()> {
        self.call(format!("remove network {id}"), self.limit, self.client.remove_network(id)).await
    }

    async fn connect(&self, network: &str, container: &str, end: &Endpoint) -> Answer<()> {
        let request = NetworkConnectRequest {
            container: container.to_owned(),
            endpoint_config: Some(convert::endpoint(end)),
        };
        let what = format!("connect {container} to {network}");
        self.call(what, self.limit, self.client.connect_network(network, request)).await
    }

    async fn disconnect(&self, network: &str, container: &str) -> Answer<()> {
        let request = NetworkDisconnectRequest { container: container.to_owned(), force: Some(true) };
        let what = format!("disconnect {container} from {network}");
        self.call(what, self.limit, self.client.disconnect_network(network, request)).await
    }

    async fn volumes(&self, label: Option<&str>) -> Answer<Vec<VolumeSeen>> {
        let json = self.get("listing volumes", &format!("/volumes?{}", filter(label))).await?;
        let all = json.get("Volumes").and_then(Value::as_array).into_iter().flatten();
        let seen = |json: &Value| VolumeSeen {
            name: json.get("Name").and_then(Value::as_str).unwrap_or_default().to_owned(),
            labels: convert::labels(json.get("Labels")),
        };
        Ok(all.map(seen).collect())
    }

    async fn create_volume(&self, name: &str, labels: &BTreeMap<String, String>) -> Answer<()> {
        let request = VolumeCreateRequest {
            name: Some(name.to_owned()),
            labels: Some(convert::hash_map(labels)),
            ..VolumeCreateRequest::default()
        };
        let what = format!("create volume {name}");
        self.call(what, self.limit, self.client.create_volume(request)).await.map(drop)
    }

    async fn remove_volume(&self, name: &str) -> Answer<()> {
        let options = query::RemoveVolumeOptionsBuilder::default().force(true).build();
        let call = self.client.remove_volume(name, Some(options));
        self.call(format!("remove volume {name}"), self.limit, call).await
    }

    async fn containers(&self, label: Option<&str>) -> Answer<Vec<ContainerListed>> {
        let path = format!("/containers/json?all=true&{}", filter(label));
        let json = self.get("listing containers", &path).await?;
        let text =
            |json: &Value, key: &str| json.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let listed = |json: &Value| ContainerListed {
            id: text(json, "Id"),
            name: json
                .pointer("/Names/0")
                .and_then(Value::as_str)
                .unwrap_or_default()
                .trim_start_matches('/')
                .to_owned(),
            labels: convert::labels(json.get("Labels")),
            state: text(json, "State"),
        };
        Ok(list(json).iter().map(listed).collect())
    }

    async fn create_container(&self, spec: &ContainerCreate) -> Answer<String> {
        let options = query::CreateContainerOptionsBuilder::default().name(&spec.name).build();
        let newer = self.api >= (1, 44);
        let body = convert::body(spec, newer, newer);
        let what = format!("create container {}", spec.name);
        let call = self.client.create_container(Some(options), body);
        let id = self.call(what, self.limit, call).await?.id;
        if !newer {
            for end in spec.endpoints.iter().skip(1) {
                self.connect(&end.network, &id, end).await?;
            }
        }
        Ok(id)
    }

    async fn inspect(&self, id: &str) -> Answer<ContainerSeen> {
        let path = format!("/containers/{}/json", encode(id));
        self.get(&format!("inspect {id}"), &path).await.map(|json| convert::seen(&json))
    }

    async fn act(&self, id: &str, act: Act) -> Answer<()> {
        let what = format!("{} {id}", act.word());
        let seconds = |grace: Duration| i32::try_from(grace.as_secs()).unwrap_or(i32::MAX);
        let limit = |grace: Option<Duration>| grace.unwrap_or(GRACE_DEFAULT) + STOP_MARGIN;
        let answer = match act {
            Act::Start => self.call(what, self.limit, self.client.start_container(id, None)).await,
            Act::Stop(grace) => {
                let mut options = query::StopContainerOptionsBuilder::default();
                if let Some(grace) = grace {
                    options = options.t(seconds(grace));
                }
                let call = self.client.stop_container(id, Some(options.build()));
                self.call(what, limit(grace), call).await
            }
            Act::Kill => {
                let options = query::KillContainerOptionsBuilder::default().signal("SIGKILL").build();
                self.call(what, self.limit, self.client.kill_container(id, Some(options))).await
            }
            Act::Pause => self.call(what, self.limit, self.client.pause_container(id)).await,
            Act::Unpause => self.call(what, self.limit, self.client.unpause_container(id)).await,
            Act::Restart(grace) => {
                let mut options = query::RestartContainerOptionsBuilder::default();
                if let Some(grace) = grace {
                    options = options.t(seconds(grace));
                }
                let call = self.client.restart_container(id, Some(options.build()));
                self.call(what, limit(grace), call).await
            }
        };
        match answer {
            // 304 means that it is so already.
            Err(EngineError::Answer { status: 304, .. }) => Ok(()),
            other => other,
        }
    }

    async fn remove_container(&self, id: &str) -> Answer<()> {
        // Reports 24, 25: without `v` every anonymous volume stays.
        let options = query::RemoveContainerOptionsBuilder::default().v(true).force(true).build();
        let call = self.client.remove_container(id, Some(options));
        self.call(format!("remove container {id}"), self.limit + STOP_MARGIN, call).await
    }

    async fn upload(&self, id: &str, folder: &str, tar: Bytes) -> Answer<()> {
        let options = query::UploadToContainerOptionsBuilder::default().path(folder).build();
        let call = self.client.upload_to_container(id, Some(options), bollard::body_full(tar));
        self.call(format!("upload to {id}:{folder}"), self.limit, call).await
    }

    async fn download(&self, id: &str, path: &str) -> Answer<Bytes> {
        let options = query::DownloadFromContainerOptionsBuilder::default().path(path).build();
        let call = async {
            let mut parts = std::pin::pin!(self.client.download_from_container(id, Some(options)));
            let mut all = Vec::new();
            while let Some(part) = parts.next().await {
                all.extend_from_slice(&part?);
                if all.len() > DOWNLOAD_BYTES_MAX {
                    let error = format!("more than {DOWNLOAD_BYTES_MAX} bytes");
                    return Err(Error::DockerStreamError { error });
                }
            }
            Ok(Bytes::from(all))
        };
        self.call(format!("download {id}:{path}"), IMAGE_LIMIT, call).await
    }

    fn logs(&self, id: &str, ask: LogAsk) -> BoxStream<'static, Answer<LogPiece>> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let tail = ask.tail.map_or_else(|| "all".to_owned(), |count| count.to_string());
        let options = query::LogsOptionsBuilder::default()
            .follow(ask.follow)
            .stdout(true)
            .stderr(true)
            .timestamps(ask.tail.is_none())
            .since(i32::try_from(ask.since_unix_s).unwrap_or(i32::MAX))
            .tail(&tail)
            .build();
        let what = format!("logs of {id}");
        let pieces = self.client.logs(id, Some(options));
        pieces.map(move |line| line.map(piece).map_err(|error| sort(&what, &error))).boxed()
    }

    fn events(&self, label: &str, since_unix_s: u64) -> BoxStream<'static, Answer<EventSeen>> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let path = format!("/events?since={since_unix_s}&{}", filter(Some(label)));
        self.raw.lines("following events", path).map(|line| line.map(|json| convert::event(&json))).boxed()
    }

    async fn attach(&self, id: &str) -> Answer<Attached> {
        let options = query::AttachContainerOptionsBuilder::default()
            .logs(true)
            .stream(true)
            .stdin(true)
            .stdout(true)
            .stderr(true)
            .build();
        let what = format!("attach to {id}");
        let attached =
            self.call(what.clone(), self.limit, self.client.attach_container(id, Some(options))).await?;
        let output = attached.output.map(move |line| line.map(piece).map_err(|error| sort(&what, &error)));
        Ok(Attached { input: attached.input, output: output.boxed() })
    }

    fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_29_ranges_meet_or_both_are_named() {
        assert_eq!(negotiate("1.12", "1.41").unwrap(), (1, 41));
        assert_eq!(negotiate("1.44", "1.99").unwrap(), API_MAX);
        let error = negotiate("1.12", "1.40").unwrap_err().to_string();
        assert!(error.contains("1.12 to 1.40") && error.contains("1.41 to 1.53"), "{error}");
        assert!(negotiate("1.60", "1.70").is_err());
        assert!(negotiate("", "").is_err());
    }
}

//! An engine in memory: for plans, faults and kill points at every call. It keeps the rules that cleanup depends on:
//! names are unique, a network with endpoints can't be removed, a used volume can't be removed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use futures_util::stream::{self, BoxStream, StreamExt};

use super::{
    About, Act, Answer, Attached, BuildAsk, ContainerListed, ContainerSeen, Engine, EventSeen, ImageListed,
    ImageSeen, LogAsk, LogPiece, NetworkSeen, Output, VolumeSeen,
};
use tokio::sync::Notify;

use crate::error::EngineError;
use crate::ready::{Probe, Prober};
use crate::spec::{ContainerCreate, Endpoint, NetworkCreate};

/// How a fake service behaves after its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Behaviour {
    /// It ends with this code after so many looks.
    pub ends: Option<(u32, i64)>,
    /// It becomes healthy after so many looks; without it there is no check.
    pub healthy_after: Option<u32>,
    /// It becomes unhealthy after so many looks.
    pub unhealthy_after: Option<u32>,
    /// It is restarted by its policy at each of so many looks.
    pub restarts: u32,
}

/// What happens at one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Strike {
    /// The caller dies before the engine does anything.
    KillBefore,
    /// The caller dies after the engine has done it.
    KillAfter,
    /// The engine answers with this.
    Fail(EngineError),
    /// The engine does it and answers with this: a lost answer.
    FailAfter(EngineError),
}

#[derive(Clone, Debug)]
struct Container {
    seen: ContainerSeen,
    create: ContainerCreate,
    networks: Vec<String>,
    looks: u32,
}

#[derive(Debug, Default)]
struct World {
    images: BTreeMap<String, ImageSeen>,
    listed: Vec<ImageListed>,
    networks: BTreeMap<String, (NetworkSeen, BTreeMap<String, String>)>,
    volumes: BTreeMap<String, VolumeSeen>,
    containers: BTreeMap<String, Container>,
    behaviours: BTreeMap<String, Behaviour>,
    strikes: BTreeMap<u64, Strike>,
    calls: u64,
    names: Vec<String>,
    next_id: u64,
    taken: Vec<String>,
    root_dir: String,
}

/// The fake. Clones share one world.
#[derive(Clone, Debug, Default)]
pub struct Fake(Arc<Mutex<World>>, Arc<Notify>);

impl Fake {
    /// An empty engine that has the named images.
    #[must_use]
    pub fn with_images(names: &[&str]) -> Self {
        let fake = Self::default();
        for name in names {
            let seen = ImageSeen { id: format!("sha256:{name}"), ..ImageSeen::default() };
            fake.world(|world| world.images.insert((*name).to_owned(), seen));
        }
        fake
    }

    /// An empty engine whose storage is in a folder of this machine.
    #[must_use]
    pub fn at(root_dir: &str) -> Self {
        let fake = Self::default();
        fake.world(|world| root_dir.clone_into(&mut world.root_dir));
        fake
    }

    fn world<T>(&self, change: impl FnOnce(&mut World) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Lets an image declare volumes.
    pub fn image_volumes(&self, name: &str, volumes: &[&str]) {
        self.world(|world| {
            if let Some(image) = world.images.get_mut(name) {
                image.volumes = volumes.iter().map(|path| (*path).to_owned()).collect();
            }
        });
    }

    /// Puts an image into the list.
    pub fn list_image(&self, image: ImageListed) {
        self.world(|world| world.listed.push(image));
    }

    /// How a service behaves.
    pub fn behave(&self, service: &str, behaviour: Behaviour) {
        self.world(|world| world.behaviours.insert(service.to_owned(), behaviour));
    }

    /// What happens at the n-th call from now, counted from 1.
    pub fn strike(&self, call: u64, strike: Strike) {
        self.world(|world| {
            let at = world.calls + call;
            world.strikes.insert(at, strike);
        });
    }

    /// Returns when a kill has struck.
    pub async fn killed(&self) {
        self.1.notified().await;
    }

    /// Subnets that the engine refuses as taken.
    pub fn refuse_subnets(&self, begins: &[&str]) {
        self.world(|world| world.taken = begins.iter().map(|text| (*text).to_owned()).collect());
    }

    /// Names of the calls so far.
    #[must_use]
    pub fn call_names(&self) -> Vec<String> {
        self.world(|world| world.names.clone())
    }

    /// What a container was made from.
    #[must_use]
    pub fn created(&self, name: &str) -> Option<ContainerCreate> {
        self.world(|world| world.containers.values().find(|c| c.seen.name == name).map(|c| c.create.clone()))
    }

    /// Names of everything that is there.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.world(|world| {
            let containers = world.containers.values().map(|c| c.seen.name.clone());
            let networks = world.networks.values().map(|(n, _)| n.name.clone());
            containers.chain(networks).chain(world.volumes.keys().cloned()).collect()
        })
    }

    /// Puts an object of somebody else there: a container in a network of its own, and a volume.
    pub fn foreign(&self, name: &str, labels: &BTreeMap<String, String>) {
        self.world(|world| {
            let seen = ContainerSeen {
                id: format!("id-{name}"),
                name: name.to_owned(),
                labels: labels.clone(),
                status: "running".to_owned(),
                running: true,
                ..ContainerSeen::default()
            };
            let create = ContainerCreate {
                name: name.to_owned(),
                labels: labels.clone(),
                spec: crate::fixture::container(name, BTreeMap::new()),
                image_id: String::new(),
                endpoints: Vec::new(),
                extra_tmpfs: Vec::new(),
            };
            let container = Container { seen, create, networks: Vec::new(), looks: 0 };
            world.containers.insert(format!("id-{name}"), container);
            let volume = VolumeSeen { name: format!("{name}-volume"), labels: labels.clone() };
            world.volumes.insert(volume.name.clone(), volume);
            let id = format!("net-{name}");
            let network =
                NetworkSeen { id: id.clone(), name: format!("{name}-network"), ..NetworkSeen::default() };
            let network = NetworkSeen { labels: labels.clone(), ..network };
            world.networks.insert(id, (network, BTreeMap::new()));
        });
    }

    /// Leaves an endpoint in a network whose container is gone (report 18).
    pub fn ghost_endpoint(&self, network: &str) {
        self.world(|world| {
            for (seen, endpoints) in world.networks.values_mut() {
                if seen.name == network {
                    endpoints.insert("ghost".to_owned(), "ghost".to_owned());
                }
            }
        });
    }

    /// One call: counts it, strikes when told to, and does it.
    async fn call<T>(&self, name: String, deed: impl FnOnce(&mut World) -> Answer<T> + Send) -> Answer<T> {
        let strike = self.world(|world| {
            world.calls += 1;
            world.names.push(name);
            world.strikes.remove(&world.calls)
        });
        // A real call gives others their turn.
        tokio::task::yield_now().await;
        match strike {
            None => self.world(deed),
            Some(Strike::Fail(error)) => Err(error),
            Some(Strike::FailAfter(error)) => {
                drop(self.world(deed));
                Err(error)
            }
            Some(Strike::KillBefore) => {
                self.1.notify_one();
                std::future::pending().await
            }
            Some(Strike::KillAfter) => {
                drop(self.world(deed));
                self.1.notify_one();
                std::future::pending().await
            }
        }
    }
}

fn missing<T>(what: &str) -> Answer<T> {
    Err(EngineError::NotFound { what: what.to_owned() })
}

fn has(labels: &BTreeMap<String, String>, filter: Option<&str>) -> bool {
    match filter.map(|filter| filter.split_once('=')) {
        None => true,
        Some(Some((key, value))) => labels.get(key).is_some_and(|own| own == value),
        Some(None) => filter.is_some_and(|key| labels.contains_key(key)),
    }
}

impl World {
    fn find(&mut self, id: &str) -> Option<&mut Container> {
        self.containers.values_mut().find(|c| c.seen.id == id || c.seen.name == id)
    }

    fn id(&mut self) -> String {
        self.next_id += 1;
        format!("id-{}", self.next_id)
    }

    fn make(&mut self, spec: &ContainerCreate) -> Answer<String> {
        if self.containers.values().any(|c| c.seen.name == spec.name) {
            return Err(EngineError::Conflict { what: spec.name.clone(), reason: "name in use".to_owned() });
        }
        for end in &spec.endpoints {
            if !self.networks.values().any(|(seen, _)| seen.name == end.network) {
                return missing(&end.network);
            }
        }
        let id = self.id();
        let seen = ContainerSeen {
            id: id.clone(),
            name: spec.name.clone(),
            labels: spec.labels.clone(),
            image_id: spec.image_id.clone(),
            status: "created".to_owned(),
            ..ContainerSeen::default()
        };
        let networks = spec.endpoints.iter().map(|end| end.network.clone()).collect();
        self.containers.insert(id.clone(), Container { seen, create: spec.clone(), networks, looks: 0 });
        Ok(id)
    }

    fn act(&mut self, id: &str, act: Act) -> Answer<()> {
        let Some(container) = self.find(id) else { return missing(id) };
        let seen = &mut container.seen;
        match act {
            Act::Start | Act::Restart(_) => {
                container.looks = 0;
                seen.running = true;
                seen.status = "running".to_owned();
                seen.pid += 1;
                seen.started_at = format!("start-{}", seen.pid);
            }
            Act::Stop(_) | Act::Kill => {
                seen.running = false;
                seen.status = "exited".to_owned();
                seen.exit_code = if act == Act::Kill { 137 } else { 143 };
            }
            Act::Pause => seen.status = "paused".to_owned(),
            Act::Unpause => seen.status = "running".to_owned(),
        }
        seen.paused = act == Act::Pause;
        Ok(())
    }

    fn look(&mut self, id: &str) -> Answer<ContainerSeen> {
        let service = self.find(id).map(|c| c.create.spec.service.clone()).unwrap_or_default();
        let behaviour = self.behaviours.get(&service).copied().unwrap_or_default();
        let Some(container) = self.find(id) else { return missing(id) };
        let seen = &mut container.seen;
        if seen.running {
            container.looks += 1;
            if let Some((looks, code)) = behaviour.ends
                && container.looks > looks
            {
                seen.running = false;
                seen.status = "exited".to_owned();
                seen.exit_code = code;
            }
            if seen.restart_count < i64::from(behaviour.restarts) {
                seen.restart_count += 1;
                seen.started_at = format!("restart-{}", seen.restart_count);
            }
            seen.health = behaviour.healthy_after.map(|after| {
                let bad = behaviour.unhealthy_after.is_some_and(|bad| container.looks > bad);
                let word = if bad {
                    "unhealthy"
                } else if container.looks > after {
                    "healthy"
                } else {
                    "starting"
                };
                word.to_owned()
            });
        }
        Ok(seen.clone())
    }

    fn remove_network(&mut self, id: &str) -> Answer<()> {
        let Some((seen, endpoints)) = self.networks.get(id) else { return missing(id) };
        let name = seen.name.clone();
        let used = self.containers.values().any(|c| c.seen.running && c.networks.contains(&name));
        if used || !endpoints.is_empty() {
            return Err(EngineError::ActiveEndpoints {
                what: name,
                reason: "has active endpoints".to_owned(),
            });
        }
        self.networks.remove(id);
        Ok(())
    }

    fn make_network(&mut self, spec: &NetworkCreate) -> Answer<String> {
        if self.networks.values().any(|(seen, _)| seen.name == spec.name) {
            return Err(EngineError::Conflict { what: spec.name.clone(), reason: "name in use".to_owned() });
        }
        let subnet = format!("{}/{}", spec.subnet, spec.prefix);
        let same = self.networks.values().any(|(seen, _)| seen.subnets.contains(&subnet));
        if same || self.taken.iter().any(|begin| subnet.starts_with(begin.as_str())) {
            let reason = "Pool overlaps with other one on this address space".to_owned();
            return Err(EngineError::SubnetTaken { what: spec.name.clone(), reason });
        }
        let id = self.id();
        let seen = NetworkSeen {
            id: id.clone(),
            name: spec.name.clone(),
            labels: spec.labels.clone(),
            subnets: vec![subnet],
            endpoints: Vec::new(),
        };
        self.networks.insert(id.clone(), (seen, BTreeMap::new()));
        Ok(id)
    }
}

impl Engine for Fake {
    async fn about(&self) -> Answer<About> {
        let about = About { api_max: "1.41".into(), cpus: 2, mem_bytes: 1 << 33, ..About::default() };
        self.call("about".into(), |world| Ok(About { root_dir: world.root_dir.clone(), ..about })).await
    }

    async fn image(&self, reference: &str) -> Answer<Option<ImageSeen>> {
        self.call(format!("image {reference}"), |world| Ok(world.images.get(reference).cloned())).await
    }

    async fn images(&self, label: Option<&str>) -> Answer<Vec<ImageListed>> {
        self.call("images".into(), |world| {
            Ok(world.listed.iter().filter(|image| has(&image.labels, label)).cloned().collect())
        })
        .await
    }

    async fn remove_image(&self, tag: &str) -> Answer<()> {
        self.call(format!("remove image {tag}"), |world| {
            let used = world.listed.iter().find(|image| image.tags.iter().any(|own| own == tag));
            let used = used.is_some_and(|image| {
                world.containers.values().any(|container| container.seen.image_id == image.id)
            });
            if used {
                let reason = "image is being used by running container".to_owned();
                return Err(EngineError::Conflict { what: tag.to_owned(), reason });
            }
            world.images.remove(tag);
            world.listed.retain(|image| !image.tags.iter().any(|own| own == tag));
            Ok(())
        })
        .await
    }

    async fn pull(&self, reference: &str) -> Answer<()> {
        self.call(format!("pull {reference}"), |_| missing(reference)).await
    }

    async fn build(&self, ask: &BuildAsk, context: Bytes) -> Answer<String> {
        self.call(format!("build {}", ask.tag), |world| {
            let id = format!("sha256:{}", blake3::hash(&context).to_hex());
            let created_unix_s = i64::try_from(world.listed.len()).unwrap_or_default();
            world.listed.push(ImageListed {
                id: id.clone(),
                tags: vec![ask.tag.clone()],
                labels: ask.labels.clone(),
                created_unix_s,
            });
            world.images.insert(ask.tag.clone(), ImageSeen { id: id.clone(), ..ImageSeen::default() });
            Ok(id)
        })
        .await
    }

    async fn networks(&self, label: Option<&str>) -> Answer<Vec<NetworkSeen>> {
        self.call("networks".into(), |world| {
            let all = world.networks.values().map(|(seen, _)| seen.clone());
            Ok(all.filter(|seen| has(&seen.labels, label)).collect())
        })
        .await
    }

    async fn network(&self, id: &str) -> Answer<NetworkSeen> {
        self.call("network".into(), |world| {
            let Some((seen, endpoints)) = world.networks.get(id) else { return missing(id) };
            let mut seen = seen.clone();
            seen.endpoints = endpoints.clone().into_iter().collect();
            let inside =
                world.containers.values().filter(|c| c.seen.running && c.networks.contains(&seen.name));
            seen.endpoints.extend(inside.map(|c| (c.seen.id.clone(), c.seen.name.clone())));
            Ok(seen)
        })
        .await
    }

    async fn create_network(&self, spec: &NetworkCreate) -> Answer<String> {
        self.call(format!("create network {}", spec.name), |world| world.make_network(spec)).await
    }

    async fn remove_network(&self, id: &str) -> Answer<()> {
        self.call("remove network".into(), |world| world.remove_network(id)).await
    }

    async fn connect(&self, network: &str, container: &str, _: &Endpoint) -> Answer<()> {
        self.call("connect".into(), |world| {
            let Some(container) = world.find(container) else { return missing(container) };
            container.networks.push(network.to_owned());
            Ok(())
        })
        .await
    }

    async fn disconnect(&self, network: &str, container: &str) -> Answer<()> {
        self.call("disconnect".into(), |world| {
            let name = world.networks.get_mut(network).map(|(seen, endpoints)| {
                endpoints.remove(container);
                seen.name.clone()
            });
            let name = name.unwrap_or_else(|| network.to_owned());
            if let Some(container) = world.find(container) {
                container.networks.retain(|own| *own != name);
            }
            Ok(())
        })
        .await
    }

    async fn volumes(&self, label: Option<&str>) -> Answer<Vec<VolumeSeen>> {
        self.call("volumes".into(), |world| {
            Ok(world.volumes.values().filter(|seen| has(&seen.labels, label)).cloned().collect())
        })
        .await
    }

    async fn create_volume(&self, name: &str, labels: &BTreeMap<String, String>) -> Answer<()> {
        self.call(format!("create volume {name}"), |world| {
            let seen = VolumeSeen { name: name.to_owned(), labels: labels.clone() };
            world.volumes.entry(name.to_owned()).or_insert(seen);
            Ok(())
        })
        .await
    }

    async fn remove_volume(&self, name: &str) -> Answer<()> {
        self.call("remove volume".into(), |world| {
            world.volumes.remove(name).map_or_else(|| missing(name), |_| Ok(()))
        })
        .await
    }

    async fn containers(&self, label: Option<&str>) -> Answer<Vec<ContainerListed>> {
        self.call("containers".into(), |world| {
            let all = world.containers.values().filter(|c| has(&c.seen.labels, label));
            let listed = all.map(|c| ContainerListed {
                id: c.seen.id.clone(),
                name: c.seen.name.clone(),
                labels: c.seen.labels.clone(),
                state: c.seen.status.clone(),
            });
            Ok(listed.collect())
        })
        .await
    }

    async fn create_container(&self, spec: &ContainerCreate) -> Answer<String> {
        self.call(format!("create container {}", spec.name), |world| world.make(spec)).await
    }

    async fn inspect(&self, id: &str) -> Answer<ContainerSeen> {
        self.call("inspect".into(), |world| world.look(id)).await
    }

    async fn act(&self, id: &str, act: Act) -> Answer<()> {
        self.call(act.word().to_owned(), |world| world.act(id, act)).await
    }

    async fn remove_container(&self, id: &str) -> Answer<()> {
        self.call("remove container".into(), |world| {
            let found = world.find(id).map(|c| c.seen.id.clone());
            found.and_then(|id| world.containers.remove(&id)).map_or_else(|| missing(id), |_| Ok(()))
        })
        .await
    }

    async fn upload(&self, id: &str, _: &str, _: Bytes) -> Answer<()> {
        self.call("upload".into(), |world| world.find(id).map_or_else(|| missing(id), |_| Ok(()))).await
    }

    async fn download(&self, id: &str, _: &str) -> Answer<Bytes> {
        self.call("download".into(), |_| missing(id)).await
    }

    fn logs(&self, id: &str, _: LogAsk) -> BoxStream<'static, Answer<LogPiece>> {
        let text = format!("last words of {id}\n");
        stream::iter([Ok(LogPiece { output: Output::Stderr, bytes: text.into() })]).boxed()
    }

    fn events(&self, _: &str, _: u64) -> BoxStream<'static, Answer<EventSeen>> {
        stream::empty().boxed()
    }

    async fn attach(&self, id: &str) -> Answer<Attached> {
        self.call("attach".into(), |_| missing(id)).await
    }

    fn calls(&self) -> u64 {
        self.world(|world| world.calls)
    }
}

/// A prober that answers yes.
#[derive(Clone, Copy, Debug, Default)]
pub struct YesProber;

impl Prober for YesProber {
    async fn probe(&self, _: &ContainerSeen, _: &Probe) -> Result<(), String> {
        Ok(())
    }
}

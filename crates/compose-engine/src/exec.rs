//! Carrying out a plan: as parallel as its edges allow, every call and wait with a deadline, the first error reported.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::engine::{Act, ContainerSeen, Engine, ImageSeen, LogAsk};
use crate::error::{ComposeError, EngineError};
use crate::ledger::{Ledger, Phase};
use crate::logs::Lines;
use crate::model::Condition;
use crate::plan::{Op, Plan};
use crate::ready::{Look, Prober, look_completed, look_running, start_identity};
use crate::spec::{ContainerCreate, NetworkCreate};
use crate::subnet::{Leases, Net, dynamic_half};
use crate::target::Target;
use crate::{binds, images};

/// Calls under way at once: the engine serialises most of its work anyway.
const PARALLEL_MAX: usize = 8;
/// Subnets tried when the engine refuses the leased one.
const SUBNET_TRIES_MAX: usize = 16;
/// Log lines shown for a service that failed.
const LOG_TAIL: u32 = 40;

/// Deadlines and spacing.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Of one wait: healthy, completed, ready.
    pub wait: Duration,
    /// Of the whole plan (report 3).
    pub total: Duration,
    /// Equal samples for ready.
    pub samples: u32,
    /// Between looks.
    pub spacing: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            wait: Duration::from_secs(60),
            total: Duration::from_secs(180),
            samples: 3,
            spacing: Duration::from_millis(50),
        }
    }
}

/// What stands after a plan.
#[derive(Clone, Debug, Default)]
pub struct Up {
    /// Container ids by service.
    pub containers: BTreeMap<String, String>,
    /// Latest look at each service that was awaited ready.
    pub seen: BTreeMap<String, ContainerSeen>,
    /// Image ids by reference.
    pub images: BTreeMap<String, ImageSeen>,
    /// Subnets by network key.
    pub subnets: BTreeMap<String, Net>,
    /// What was skipped or lowered, for people.
    pub warnings: Vec<String>,
}

/// Carries out plans for one target.
#[derive(Debug)]
pub struct Executor<'a, E, P> {
    /// Engine.
    pub engine: &'a E,
    /// Prober.
    pub prober: &'a P,
    /// Target.
    pub target: &'a Target,
    /// Ledger.
    pub ledger: &'a Ledger,
    /// Subnet leases.
    pub leases: &'a Leases,
    /// Networks that are no candidates: routes of the host.
    pub routes: &'a [Net],
    /// Deadlines.
    pub limits: Limits,
}

/// Shared by the steps under way.
struct Shared {
    up: Mutex<Up>,
    cancel: watch::Receiver<bool>,
    until: Instant,
}

impl Shared {
    fn with<T>(&self, change: impl FnOnce(&mut Up) -> T) -> T {
        change(&mut self.up.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<E: Engine, P: Prober> Executor<'_, E, P> {
    /// Carries out a plan on top of what stands already.
    ///
    /// # Errors
    /// The first [`ComposeError`]. Calls under way are finished before it returns, so that a teardown that follows sees
    /// everything; waits are ended at once.
    pub async fn run(&self, plan: &Plan, standing: Up) -> Result<Up, ComposeError> {
        let (cancel, watched) = watch::channel(false);
        let until = tokio::time::Instant::now() + self.limits.total;
        let shared = Shared { up: Mutex::new(standing), cancel: watched, until };
        let mut waiting: BTreeSet<usize> = (0..plan.steps.len()).collect();
        let mut done: BTreeSet<usize> = BTreeSet::new();
        let mut under_way = FuturesUnordered::new();
        let mut first_error = None;
        loop {
            if first_error.is_none() {
                let free: Vec<usize> = waiting
                    .iter()
                    .copied()
                    .filter(|index| plan.steps[*index].after.iter().all(|before| done.contains(before)))
                    .take(PARALLEL_MAX - under_way.len().min(PARALLEL_MAX))
                    .collect();
                for index in free {
                    waiting.remove(&index);
                    let shared = &shared;
                    under_way.push(async move { (index, self.step(&plan.steps[index].op, shared).await) });
                }
            }
            let Some((index, result)) = under_way.next().await else { break };
            match result {
                Ok(()) => drop(done.insert(index)),
                Err(error) if plan.steps[index].optional => {
                    shared.with(|up| up.warnings.push(format!("{}: {error}", plan.steps[index].op)));
                    done.insert(index);
                }
                Err(error) => {
                    // Report 22: the first error is the cause; what follows from it is not reported over it.
                    if first_error.is_none() {
                        first_error = Some(error);
                    }
                    cancel.send_replace(true);
                }
            }
        }
        drop(under_way);
        match first_error {
            Some(error) => Err(error),
            None => Ok(shared.up.into_inner().unwrap_or_else(PoisonError::into_inner)),
        }
    }

    async fn step(&self, op: &Op, shared: &Shared) -> Result<(), ComposeError> {
        match op {
            Op::Image { reference, service } => {
                let source = self.target.images.get(service);
                let source = source.ok_or_else(|| ComposeError::Request(format!("no image of {service}")))?;
                let seen = images::ensure(self.engine, source).await?;
                shared.with(|up| up.images.insert(reference.clone(), seen));
                Ok(())
            }
            Op::Network { key } => self.network(key, shared).await,
            Op::Volume { key } => {
                let name = self.target.object_name(key);
                let labels = self.target.volume_labels(key);
                self.deed("create_volume", &name, self.engine.create_volume(&name, &labels)).await
            }
            Op::Create { service } => self.create(service, shared).await,
            Op::Start { service } => self.start(service, shared).await,
            Op::Await { service, condition } => self.wait(service, Some(*condition), shared).await,
            Op::Ready { service } => self.wait(service, None, shared).await,
        }
    }

    /// A call that is written down before and after.
    async fn deed<T>(
        &self,
        deed: &str,
        object: &str,
        call: impl Future<Output = Result<T, EngineError>>,
    ) -> Result<T, ComposeError> {
        self.ledger.write(deed, object, Phase::Intended, "")?;
        match call.await {
            Ok(value) => {
                self.ledger.write(deed, object, Phase::Done, "")?;
                Ok(value)
            }
            Err(error) => {
                self.ledger.write(deed, object, Phase::Failed, &error.to_string())?;
                Err(error.into())
            }
        }
    }

    async fn network(&self, key: &str, shared: &Shared) -> Result<(), ComposeError> {
        let Some(spec) = self.target.networks.get(key) else { return Ok(()) };
        let name = self.target.object_name(key);
        // Spreads runs over the range; two with the same start are kept apart by the lock files.
        let salt =
            u64::from_le_bytes(blake3::hash(name.as_bytes()).as_bytes()[..8].try_into().unwrap_or_default());
        let mut refused = BTreeSet::new();
        loop {
            let mut busy = self.routes.to_vec();
            for seen in self.engine.networks(None).await? {
                busy.extend(seen.subnets.iter().filter_map(|text| Net::parse(text)));
            }
            let net = self.leases.take(spec.prefix, &self.target.project, salt, &busy, &refused)?;
            let create = NetworkCreate {
                name: name.clone(),
                labels: self.target.network_labels(key),
                internal: spec.internal,
                options: spec.options.clone(),
                subnet: net.base.into(),
                prefix: net.prefix,
                gateway: (net.base + spec.gateway_offset).into(),
                dynamic: dynamic_half(net, &spec.static_offsets),
            };
            match self.deed("create_network", &name, self.engine.create_network(&create)).await {
                Ok(_) => {
                    shared.with(|up| up.subnets.insert(key.to_owned(), net));
                    return Ok(());
                }
                Err(ComposeError::Engine(EngineError::SubnetTaken { .. }))
                    if refused.len() < SUBNET_TRIES_MAX =>
                {
                    self.leases.give(net);
                    refused.insert(net.base);
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn create(&self, service: &str, shared: &Shared) -> Result<(), ComposeError> {
        let Some(wanted) = self.target.containers.get(service) else { return Ok(()) };
        let image = shared.with(|up| up.images.get(&wanted.image).cloned()).unwrap_or_default();
        // Labels carry the hash of what was asked for; the copy of bind sources is this run's own affair.
        let spec = match &self.target.copies {
            Some(folder) => binds::copy(wanted, folder, &self.target.own)?,
            None => wanted.clone(),
        };
        let subnets = shared.with(|up| up.subnets.clone());
        let endpoints = self.target.endpoints_of(service, &subnets);
        let mounted = |path: &String| spec.mounts.iter().any(|mount| mount.target() == path);
        let extra_tmpfs: Vec<String> = image.volumes.iter().filter(|path| !mounted(path)).cloned().collect();
        let create = ContainerCreate {
            name: self.target.container_name(service),
            labels: self.target.container_labels(service, &image.id),
            image_id: if image.id.is_empty() { spec.image.clone() } else { image.id },
            spec,
            endpoints,
            extra_tmpfs,
        };
        let id = self.deed("create_container", &create.name, self.engine.create_container(&create)).await?;
        shared.with(|up| up.containers.insert(service.to_owned(), id));
        Ok(())
    }

    fn id(&self, service: &str, shared: &Shared) -> String {
        let known = shared.with(|up| up.containers.get(service).cloned());
        known.unwrap_or_else(|| self.target.container_name(service))
    }

    async fn start(&self, service: &str, shared: &Shared) -> Result<(), ComposeError> {
        let id = self.id(service, shared);
        let name = self.target.container_name(service);
        match self.deed("start", &name, self.engine.act(&id, Act::Start)).await {
            Err(ComposeError::Engine(error)) if !matches!(error, EngineError::NoSpace { .. }) => {
                Err(self.failed(service, &id, error.to_string()).await)
            }
            other => other,
        }
    }

    /// Waits for a condition, or for ready when there is none. Inspect decides; looks are spaced, never endless.
    async fn wait(
        &self,
        service: &str,
        condition: Option<Condition>,
        shared: &Shared,
    ) -> Result<(), ComposeError> {
        let id = self.id(service, shared);
        let until = shared.until.min(tokio::time::Instant::now() + self.limits.wait);
        let mut cancel = shared.cancel.clone();
        let mut same: Option<((String, String, i64, i64), u32)> = None;
        let needed = if condition.is_some() { 1 } else { self.limits.samples };
        let mut why = String::new();
        while tokio::time::Instant::now() < until {
            if *cancel.borrow() {
                return Ok(());
            }
            let seen = self.engine.inspect(&id).await?;
            match self.look(service, condition, &seen).await {
                Look::Good => {
                    let identity = start_identity(&seen);
                    let count = match &same {
                        Some((known, count)) if *known == identity => count + 1,
                        _ => 1,
                    };
                    if count >= needed {
                        shared.with(|up| up.seen.insert(service.to_owned(), seen));
                        return Ok(());
                    }
                    same = Some((identity, count));
                    why = format!("it was ready {count} of {needed} times in a row");
                }
                Look::NotYet(reason) => {
                    same = None;
                    why = reason;
                }
                Look::Never(reason) => return Err(self.failed(service, &id, reason).await),
            }
            // A cancelled wait ends at once instead of at its next look.
            drop(tokio::time::timeout(self.limits.spacing, cancel.changed()).await);
        }
        let log = self.tail(&id).await;
        let reason = format!("not ready within {} s: {why}", self.limits.wait.as_secs_f64());
        Err(ComposeError::Service { service: service.to_owned(), reason, log })
    }

    async fn look(&self, service: &str, condition: Option<Condition>, seen: &ContainerSeen) -> Look {
        match condition {
            Some(Condition::ServiceStarted) => return Look::Good,
            Some(Condition::ServiceHealthy) => return look_running(seen, true),
            Some(Condition::ServiceCompletedSuccessfully) => return look_completed(seen),
            None => {}
        }
        let state = look_running(seen, false);
        match (self.target.probes.get(service), &state) {
            (Some(probe), Look::Good) => match self.prober.probe(seen, probe).await {
                Ok(()) => Look::Good,
                Err(reason) => Look::NotYet(reason),
            },
            _ => state,
        }
    }

    async fn failed(&self, service: &str, id: &str, reason: String) -> ComposeError {
        ComposeError::Service { service: service.to_owned(), reason, log: self.tail(id).await }
    }

    /// The last lines of a service's log; an engine that can't give them does not hide the cause.
    async fn tail(&self, id: &str) -> Vec<String> {
        let ask = LogAsk { tail: Some(LOG_TAIL), ..LogAsk::default() };
        let mut pieces = self.engine.logs(id, ask);
        let mut lines = Lines::default();
        let mut out = Vec::new();
        let read = async {
            while let Some(Ok(piece)) = pieces.next().await {
                out.extend(lines.take(&piece));
            }
        };
        drop(tokio::time::timeout(Duration::from_secs(5), read).await);
        out.extend(lines.rest());
        out.into_iter().map(|line| line.text).collect()
    }
}

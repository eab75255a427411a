//! Bringing the project up: engine, preflight, sweep, image, plan, ready lines.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use compose_engine::clock;
use compose_engine::engine::Engine;
use compose_engine::exec::{Executor, Limits, Up};
use compose_engine::images;
use compose_engine::labels::{Owner, RunMark};
use compose_engine::lease::{Lease, Liveness};
use compose_engine::ledger::Ledger;
use compose_engine::observed::Observed;
use compose_engine::plan::{Op, Plan, Step as PlanStep, plan};
use compose_engine::preflight::{Needs, check, left_out};
use compose_engine::queue::{Capacity, Place};
use compose_engine::ready::NetProber;
use compose_engine::subnet::routes;
use compose_engine::target::{ImageSource, Target, run_project};
use evidence::event::EventKind;
use evidence::redact::Redactor;
use scenario::model::{Resolved, Storage};
use scenario::pipe::LoadgenJob;
use serde_json::json;

use super::lease::{self, Held};
use super::observe;
use super::project::{self, CONTROL_PORT, Folders, POSTGRES, SERVICE_PORT, postgres_urls};
use super::{Compose, EXPIRY_S, KEEP_S, Standing, connect, environment, image, keep, watch};
use crate::collect::ask::Ask;
use crate::collect::counters::Counters;
use crate::collect::snapshot::{Mocks, OpenaiControl};
use crate::collect::{Escrows, HostSurface, Surfaces};
use crate::control::Control;
use crate::error::RunnerError;
use crate::stack::embedded::{MODEL, PROGRAMS};
use crate::stack::reference::{Keys, LEASE_TTL};
use crate::stack::{Choice, Context, LOADGEN, Running, launch};

/// What a run needs of the machine: images and volumes, files, the containers' memory.
const NEEDS: Needs = Needs { disk_bytes: 2 << 30, inodes: 20_000, mem_bytes: 1 << 30 };
/// How long a run waits for its place on the engine, and the pause between two looks.
const QUEUE_LIMIT: Duration = Duration::from_secs(3_600);
const QUEUE_LOOK: Duration = Duration::from_millis(300);
/// Images of ours that stay under each name: going back to a commit or two needs no new build.
const IMAGES_KEPT: usize = 4;
/// How long the report of a start may take.
const REPORT_LIMIT: Duration = Duration::from_secs(5);
/// Limit of one probe.
const PROBE_LIMIT: Duration = Duration::from_secs(1);
/// The image with our programs, as the Compose file calls it.
const OWN_IMAGE: &str = "proofload/stack";
/// Image of each service with its id, in the run directory.
const IMAGES_FILE: &str = "work/images.json";
/// Where the run directory is in loadgen's container.
const RUN_DIR_INSIDE: &str = "/run-dir";

/// `http://…` or `host:port` of a service at its static address.
pub(super) fn address_of(up: &Up, service: &str, port: u16) -> Option<String> {
    let seen = up.seen.get(service)?;
    let ip = seen.addresses.values().next()?;
    Some(SocketAddr::new((*ip).into(), port).to_string())
}

/// Names of everything but loadgen, which starts after faults and the first snapshot.
fn stack_services(target: &Target) -> Vec<String> {
    target.containers.keys().filter(|service| *service != LOADGEN).cloned().collect()
}

/// Programs of ours that the project of a scenario runs.
#[must_use]
pub fn programs(resolved: &Resolved, choice: &Choice) -> Vec<&'static str> {
    let mut programs = PROGRAMS.to_vec();
    if project::routed(resolved, choice) {
        programs.push("ref-router");
    }
    programs
}

/// Whether a service runs an image of the user's.
pub(super) fn is_foreign(target: &Target, service: &str) -> bool {
    foreign_image(target, service).is_some()
}

/// The image of a service that is none of ours.
fn foreign_image<'a>(target: &'a Target, service: &str) -> Option<&'a String> {
    target.images.get(service).map(|source| &source.reference).filter(|name| *name != OWN_IMAGE)
}

/// Image name and id of each service, for the manifest.
fn images_of(target: &Target, up: &Up) -> serde_json::Value {
    let of = |source: &ImageSource| {
        let id = up.images.get(&source.reference).map(|image| image.id.clone());
        json!({ "image": source.reference, "id": id })
    };
    target
        .images
        .iter()
        .map(|(service, source)| (service.clone(), of(source)))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

/// The target of a scenario on folders that are laid already.
///
/// # Errors
/// [`RunnerError`] for files that can't be used.
pub fn target(
    resolved: &Resolved,
    choice: &Choice,
    keys: &Keys,
    folders: &Folders,
    run_id: &str,
) -> Result<Target, RunnerError> {
    let project = project::load(resolved, choice, keys, folders)?;
    let six = run_id.rsplit('-').next().unwrap_or(run_id);
    let name = run_project(&resolved.scenario.name, six);
    if !choice.compose.observe.is_empty() {
        let path = folders.work.join("prometheus.yml");
        let text = observe::scrape_config(resolved, choice, &name).to_string();
        std::fs::write(&path, text)
            .map_err(|error| RunnerError::environment(format!("{}: {error}", path.display())))?;
    }
    let now = clock::unix_s();
    let kept = choice.compose.keep;
    let mark = RunMark {
        run_id: run_id.to_owned(),
        scenario_hash: scenario::hash::scenario_hash(resolved),
        owner: lease::own(),
        created_unix_s: now,
        expires_unix_s: now + if kept { KEEP_S } else { EXPIRY_S },
        kept,
    };
    let copies = folders.work.join("binds");
    let mut target = Target::new(&project, &name, mark, Some(copies)).map_err(environment)?;
    let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    target.own = vec![absolute(&folders.run), absolute(&folders.work), absolute(&folders.private)];
    Ok(target)
}

/// The plan of a fresh project, loadgen apart.
///
/// # Errors
/// [`RunnerError`] as of the engine's plan.
pub fn fresh_plan(target: &Target) -> Result<Plan, RunnerError> {
    plan(target, &Observed::default(), Some(&stack_services(target))).map_err(environment)
}

/// Waits for a place on the engine: its cores and memory are shared, and runs that measure are alone.
async fn wait_for_room(
    target: &Target,
    socket: &Path,
    capacity: Capacity,
    context: &mut Context<'_>,
) -> Result<Place, RunnerError> {
    let needs = lease::needs(context.resolved, target.containers.len());
    let queue = lease::queue(socket);
    let place = queue.join(&target.mark.run_id, target.mark.owner.clone(), needs).map_err(environment)?;
    let gone = |owner: &Owner| lease::liveness(owner) == Liveness::Gone;
    let deadline = tokio::time::Instant::now() + QUEUE_LIMIT;
    let mut told = false;
    loop {
        let before = place.waits_for(capacity, gone).map_err(environment)?;
        if before.is_empty() {
            return Ok(place);
        }
        let text = format!("waits for {} on this engine: {}", before.len(), before.join(", "));
        if tokio::time::Instant::now() > deadline {
            return Err(RunnerError::environment(format!(
                "{text}; gave up after {} s",
                QUEUE_LIMIT.as_secs()
            )));
        }
        if !std::mem::replace(&mut told, true) {
            context.dispatcher.view.line(&text);
            context.dispatcher.log(EventKind::Note { text })?;
        }
        if context.dispatcher.during(tokio::time::sleep(QUEUE_LOOK)).await?.is_err() {
            return Err(RunnerError::environment("stopped while waiting for a place on the engine"));
        }
    }
}

impl Compose {
    pub(super) async fn bring_up(&mut self, context: &mut Context<'_>) -> Result<Running, RunnerError> {
        let resolved = context.resolved;
        let keys = Keys::fresh(resolved)?;
        context.dir.set_redactor(Redactor::new(keys.secrets()));
        let engine = connect(self.choice.compose.engine.clone()).await?;
        let (about, warnings) = check(&engine, NEEDS, clock::unix_ns()).await.map_err(environment)?;
        for text in warnings {
            context.dispatcher.log(EventKind::Note { text })?;
        }
        for text in lease::collect(&engine, false).await? {
            context.dispatcher.log(EventKind::Note { text })?;
        }
        let run_id = context.dir.root().file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut folders = self.lay_images(context)?;
        if self.choice.compose.keep && project::is_real(&self.choice) {
            folders.private = keep::make(&run_id)?;
        }
        let target = target(resolved, &self.choice, &keys, &folders, &run_id)?;
        for text in left_out(&about, &target) {
            context.dispatcher.log(EventKind::Note { text })?;
        }
        let socket =
            compose_engine::engine::place::Surroundings::of_process(self.choice.compose.engine.clone());
        let socket = socket.choose().map_err(|e| environment(e.into()))?.socket;
        let capacity = Capacity { cores: about.cpus, mem_bytes: about.mem_bytes };
        let place = wait_for_room(&target, &socket, capacity, context).await?;
        let observed = Observed::look(&engine, &target.project).await.map_err(|e| environment(e.into()))?;
        let steps = plan(&target, &observed, Some(&stack_services(&target))).map_err(environment)?;
        let told = json!({ "engine": about, "project": target.project, "hash": steps.hash(), "steps": steps.lines() });
        context.dir.write_json("work/plan.json", &told)?;
        let ledger = Ledger::open(&context.dir.path("work/ledger.jsonl")).map_err(environment)?;
        let lease = Held::take(Lease {
            v: 1,
            run_id,
            project: target.project.clone(),
            owner: target.mark.owner.clone(),
            beat_unix_s: clock::unix_s(),
            engine: socket,
            work: context.work.to_path_buf(),
        })?;
        let standing = Standing {
            engine,
            target,
            ledger,
            leases: lease::subnets(),
            lease,
            place,
            up: Up::default(),
            watchers: BTreeMap::new(),
            torn_down: Arc::default(),
        };
        self.standing = Some(standing);
        self.execute(&steps, context).await?;
        self.prune_images(context).await?;
        self.follow_all(context).await?;
        self.running(keys, context).await
    }

    /// Lays the build contexts of the images that are ours.
    fn lay_images(&self, context: &Context<'_>) -> Result<Folders, RunnerError> {
        let mut folders = Folders {
            work: context.dir.path("work"),
            run: context.dir.root().to_path_buf(),
            context: context.work.join("image"),
            postgres: context.work.join("image-postgres"),
            postgres_bin: PathBuf::new(),
            private: context.work.join("keys"),
        };
        let recipes = self.choice.compose.compose_files.first().and_then(|file| file.parent());
        let recipes = recipes.unwrap_or(Path::new("."));
        image::lay(context.programs, &programs(context.resolved, &self.choice), recipes, &folders.context)?;
        if context.resolved.scenario.devshard.storage == Storage::Postgres {
            let source = image::postgres_source(&self.choice.compose.images);
            if let Some(bin) = source.map_err(RunnerError::CannotDo)? {
                image::lay_postgres(&bin, recipes, &folders.postgres)?;
                folders.postgres_bin = bin;
            }
        }
        Ok(folders)
    }

    /// Removes images of ours that are old. Only while no other run is there, which might be about to use one.
    async fn prune_images(&self, context: &mut Context<'_>) -> Result<(), RunnerError> {
        let Some(standing) = &self.standing else { return Ok(()) };
        let Some(_lock) = standing.place.only_one().map_err(environment)? else { return Ok(()) };
        let gone = context.dispatcher.through(images::prune(&standing.engine, IMAGES_KEPT)).await?;
        // A run does not fail because an old image stays.
        let text = match gone {
            Ok(gone) if gone.is_empty() => return Ok(()),
            Ok(gone) => format!("old images removed: {}", gone.join(", ")),
            Err(error) => format!("old images stay: {error}"),
        };
        context.dispatcher.log(EventKind::Note { text })
    }

    /// Carries a plan out; a signal to the runner cuts it short, and what it made is found by label.
    async fn execute(&mut self, steps: &Plan, context: &mut Context<'_>) -> Result<(), RunnerError> {
        let Some(standing) = &mut self.standing else { return Ok(()) };
        let routes = routes(&std::fs::read_to_string("/proc/net/route").unwrap_or_default());
        let executor = Executor {
            engine: &standing.engine,
            prober: &NetProber { limit: PROBE_LIMIT },
            target: &standing.target,
            ledger: &standing.ledger,
            leases: &standing.leases,
            routes: &routes,
            limits: Limits::default(),
        };
        let done = context.dispatcher.during(executor.run(steps, standing.up.clone())).await?;
        let up = done.map_err(|_| RunnerError::environment("stopped while the stack was starting"))?;
        standing.up = up.map_err(environment)?;
        for text in std::mem::take(&mut standing.up.warnings) {
            context.dispatcher.log(EventKind::Note { text })?;
        }
        Ok(())
    }

    async fn follow_all(&mut self, context: &mut Context<'_>) -> Result<(), RunnerError> {
        let Some(standing) = &mut self.standing else { return Ok(()) };
        let images: BTreeMap<&String, &String> =
            standing.up.images.iter().map(|(name, image)| (name, &image.id)).collect();
        context.dispatcher.log(EventKind::Note { text: format!("images: {images:?}") })?;
        context.dir.write_json(IMAGES_FILE, &images_of(&standing.target, &standing.up))?;
        for (service, seen) in &standing.up.seen {
            let watched = standing.watched(service, &seen.id, context);
            let watcher = context.dispatcher.through(watch::follow(watched, seen)).await?;
            standing.watchers.insert(service.clone(), watcher);
        }
        let services: Vec<String> = standing.up.seen.keys().cloned().collect();
        // A store that was said to be ready would be looked for among the services that must stay so.
        for service in services.into_iter().filter(|service| !observe::is_store(service)) {
            self.said_ready(&service, context).await?;
        }
        Ok(())
    }

    /// Programs of ours say that they are ready and of which build they are; for others the engine said it.
    pub(super) async fn said_ready(
        &self,
        service: &str,
        context: &mut Context<'_>,
    ) -> Result<(), RunnerError> {
        let Some(standing) = &self.standing else { return Ok(()) };
        let Some(image) = foreign_image(&standing.target, service) else {
            return launch::ready(context, service).await.map(drop);
        };
        // The report of its start is on its way; until it is taken, its process is not known.
        let started = |context: &Context<'_>| {
            context.dispatcher.services.get(service).filter(|state| state.running).cloned()
        };
        while started(context).is_none() {
            match tokio::time::timeout(REPORT_LIMIT, context.dispatcher.next()).await {
                Ok(taken) => taken?,
                Err(_) => return Err(RunnerError::environment(format!("{service}: no report of its start"))),
            }
        }
        let (pid, start_ticks) = started(context).map_or((0, 0), |state| (state.pid, state.start_ticks));
        let id = standing.up.images.get(image).map_or_else(String::new, |image| image.id.clone());
        context.dispatcher.log(EventKind::ProcessReady {
            service: service.to_owned(),
            pid,
            start_ticks,
            addresses: BTreeMap::new(),
            build: format!("{image} {id}"),
        })
    }

    /// Waits until a service is ready by the project's own rule: its health check or probe.
    pub(super) async fn await_ready(
        &mut self,
        service: &str,
        context: &mut Context<'_>,
    ) -> Result<(), RunnerError> {
        let step = PlanStep {
            op: Op::Ready { service: service.to_owned() },
            after: Vec::new(),
            optional: false,
            shape: None,
        };
        self.execute(&Plan { steps: vec![step] }, context).await
    }

    async fn running(&self, keys: Keys, context: &mut Context<'_>) -> Result<Running, RunnerError> {
        let resolved = context.resolved;
        let up = self.standing.as_ref().map(|standing| &standing.up);
        let at = |service: &str, port: u16| {
            let found = up.and_then(|up| address_of(up, service, port));
            found.ok_or_else(|| {
                RunnerError::environment(format!("{service} has no address in the project's network"))
            })
        };
        let ask = Ask::new().map_err(RunnerError::environment)?;
        let control = |service: &str| at(service, CONTROL_PORT).map(|at| Control::new(ask.clone(), &at));
        let mut openai = Vec::new();
        for node in &resolved.nodes {
            let control = control(&node.name)?;
            openai.push(OpenaiControl {
                service: node.name.clone(),
                nodes: vec![node.name.clone()],
                control,
            });
        }
        let mocks = Mocks {
            openai,
            dapi: Some(control("mock-dapi")?),
            chain: Some(control("mock-chain")?),
            journal: Some(launch::journals(context)),
            counters: Counters::default(),
        };
        let real = project::is_real(&self.choice);
        let mut hosts = Vec::new();
        for process in project::processes(resolved) {
            let at = at(&process.service, SERVICE_PORT)?;
            let base = format!("http://{at}{}", project::surface_path(&self.choice));
            let participant = keys.hosts[process.participant].address.clone();
            hosts.push(HostSurface { service: process.service, base, participant });
        }
        let surfaces = Surfaces {
            ask,
            gateway: format!("http://{}", at("gateway", SERVICE_PORT)?),
            admin_key: keys.admin,
            hosts,
            session_prefix: if real { String::new() } else { "/devshard/v2".to_owned() },
            escrows: Escrows::first(resolved.scenario.devshard.escrows),
            requests_max: resolved.requests_max,
            perf_db: None,
        };
        let services = up.into_iter().flat_map(|up| up.seen.keys());
        let required = services.filter(|service| !observe::is_store(service)).cloned().collect();
        Ok(Running {
            surfaces,
            mocks,
            node_urls: project::node_urls(resolved),
            model: MODEL.to_owned(),
            required,
            postgres: up
                .and_then(|up| up.seen.get(POSTGRES)?.addresses.values().next().copied())
                .map(|ip| postgres_urls(resolved, &ip.to_string()))
                .unwrap_or_default(),
            // Images of yours have their own, half an hour by default.
            lease_ttl: (!real).then_some(LEASE_TTL),
            waits_s: (0, 0),
        })
    }

    /// Loadgen's container sees the run directory under another name and the gateway by its own.
    pub(super) async fn launch_loadgen(
        &mut self,
        mut job: LoadgenJob,
        context: &mut Context<'_>,
    ) -> Result<(), RunnerError> {
        let root = context.dir.root().display().to_string();
        let inside = |path: &str| path.replacen(&root, RUN_DIR_INSIDE, 1);
        job.plan = inside(&job.plan);
        job.records = inside(&job.records);
        job.gateway_url = format!("http://gateway:{SERVICE_PORT}");
        context.dir.write_json(&format!("{}/loadgen-job.json", evidence::rundir::LOGS), &job)?;
        let Some(standing) = &self.standing else { return Ok(()) };
        let observed = Observed::look(&standing.engine, &standing.target.project).await;
        let observed = observed.map_err(|error| environment(error.into()))?;
        let steps = plan(&standing.target, &observed, Some(&[LOADGEN.to_owned()])).map_err(environment)?;
        self.execute(&steps, context).await?;
        let Some(standing) = &mut self.standing else { return Ok(()) };
        let id = standing.up.containers.get(LOADGEN).cloned().unwrap_or_default();
        let looked = context.dispatcher.through(async {
            let attached = standing.engine.attach(&id).await?;
            let seen = standing.engine.inspect(&id).await?;
            Ok::<_, compose_engine::error::EngineError>((attached, seen))
        });
        let (attached, seen) = looked.await?.map_err(|error| environment(error.into()))?;
        let watched = standing.watched(LOADGEN, &id, context);
        let followed = watch::Loadgen::follow(watched, attached, &seen);
        let (loadgen, watcher) = context.dispatcher.through(followed).await?;
        standing.watchers.insert(LOADGEN.to_owned(), watcher);
        self.loadgen = Some(loadgen);
        Ok(())
    }
}

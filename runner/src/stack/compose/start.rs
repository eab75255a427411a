//! Bringing the project up: engine, preflight, sweep, image, plan, ready lines.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use compose_engine::clock;
use compose_engine::engine::Engine;
use compose_engine::exec::{Executor, Limits, Up};
use compose_engine::labels::RunMark;
use compose_engine::lease::Lease;
use compose_engine::ledger::Ledger;
use compose_engine::observed::Observed;
use compose_engine::plan::{Plan, plan};
use compose_engine::preflight::{Needs, check};
use compose_engine::ready::NetProber;
use compose_engine::subnet::routes;
use compose_engine::target::{Target, run_project};
use evidence::event::EventKind;
use evidence::redact::Redactor;
use scenario::model::Resolved;
use scenario::pipe::LoadgenJob;
use serde_json::json;

use super::lease::{self, Held};
use super::project::{self, CONTROL_PORT, Folders, Keys, SERVICE_PORT};
use super::{Compose, EXPIRY_S, KEEP_S, Standing, connect, environment, image, watch};
use crate::collect::ask::Ask;
use crate::collect::snapshot::{Mocks, OpenaiControl};
use crate::collect::{HostSurface, Surfaces};
use crate::control::Control;
use crate::error::RunnerError;
use crate::stack::embedded::{MODEL, PROGRAMS};
use crate::stack::{Choice, Context, LOADGEN, Running, launch};

/// What a run needs of the machine: images and volumes, files, the containers' memory.
const NEEDS: Needs = Needs { disk_bytes: 2 << 30, inodes: 20_000, mem_bytes: 1 << 30 };
/// Limit of one probe.
const PROBE_LIMIT: Duration = Duration::from_secs(1);
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
    let name = run_project(&resolved.scenario.name, six);
    let copies = folders.work.join("binds");
    let mut target = Target::new(&project, &name, mark, Some(copies)).map_err(environment)?;
    let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    target.own = vec![absolute(&folders.run), absolute(&folders.work)];
    Ok(target)
}

/// The plan of a fresh project, loadgen apart.
///
/// # Errors
/// [`RunnerError`] as of the engine's plan.
pub fn fresh_plan(target: &Target) -> Result<Plan, RunnerError> {
    plan(target, &Observed::default(), Some(&stack_services(target))).map_err(environment)
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
        let folders = Folders {
            work: context.dir.path("work"),
            run: context.dir.root().to_path_buf(),
            context: context.work.join("image"),
        };
        let recipes = self.choice.compose.compose_files.first().and_then(|file| file.parent());
        image::lay(context.programs, &PROGRAMS, recipes.unwrap_or(Path::new(".")), &folders.context)?;
        let run_id = context.dir.root().file_name().unwrap_or_default().to_string_lossy().into_owned();
        let target = target(resolved, &self.choice, &keys, &folders, &run_id)?;
        let observed = Observed::look(&engine, &target.project).await.map_err(|e| environment(e.into()))?;
        let steps = plan(&target, &observed, Some(&stack_services(&target))).map_err(environment)?;
        let told = json!({ "engine": about, "project": target.project, "hash": steps.hash(), "steps": steps.lines() });
        context.dir.write_json("work/plan.json", &told)?;
        let ledger = Ledger::open(&context.dir.path("work/ledger.jsonl")).map_err(environment)?;
        let socket =
            compose_engine::engine::place::Surroundings::of_process(self.choice.compose.engine.clone());
        let lease = Held::take(Lease {
            v: 1,
            run_id,
            project: target.project.clone(),
            owner: target.mark.owner.clone(),
            beat_unix_s: clock::unix_s(),
            engine: socket.choose().map_err(|e| environment(e.into()))?.socket,
            work: context.work.to_path_buf(),
        })?;
        let standing = Standing {
            engine,
            target,
            ledger,
            leases: lease::subnets(),
            lease,
            up: Up::default(),
            watchers: BTreeMap::new(),
        };
        self.standing = Some(standing);
        self.execute(&steps, context).await?;
        self.follow_all(context).await?;
        self.running(keys, context).await
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
        let images: BTreeSet<&String> = standing.up.images.values().map(|image| &image.id).collect();
        context.dispatcher.log(EventKind::Note { text: format!("images: {images:?}") })?;
        for (service, seen) in &standing.up.seen {
            let watched = watch::Watched {
                engine: standing.engine.clone(),
                id: seen.id.clone(),
                service: service.clone(),
                log: context.dir.path(&launch::log_file(service)),
                reports: context.reports.clone(),
            };
            let watcher = context.dispatcher.through(watch::follow(watched, seen)).await?;
            standing.watchers.insert(service.clone(), watcher);
        }
        let services: Vec<String> = standing.up.seen.keys().cloned().collect();
        for service in services {
            launch::ready(context, &service).await?;
        }
        Ok(())
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
            journal: None,
        };
        let mut hosts = Vec::new();
        for (index, host) in keys.hosts.iter().enumerate() {
            let service = format!("host-{index}");
            let base = format!("http://{}", at(&service, SERVICE_PORT)?);
            hosts.push(HostSurface { service, base, participant: host.address.clone() });
        }
        let surfaces = Surfaces {
            ask,
            gateway: format!("http://{}", at("gateway", SERVICE_PORT)?),
            admin_key: keys.admin,
            hosts,
            session_prefix: "/devshard/v2".to_owned(),
            escrows: (1..=resolved.scenario.devshard.escrows).map(|id| id.to_string()).collect(),
            requests_max: resolved.requests_max,
        };
        let required = up.map(|up| up.seen.keys().cloned().collect()).unwrap_or_default();
        Ok(Running {
            surfaces,
            mocks,
            node_urls: project::node_urls(resolved),
            model: MODEL.to_owned(),
            required,
            postgres: BTreeMap::new(),
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
        let watched = watch::Watched {
            engine: standing.engine.clone(),
            id,
            service: LOADGEN.to_owned(),
            log: context.dir.path(&launch::log_file(LOADGEN)),
            reports: context.reports.clone(),
        };
        let followed = watch::Loadgen::follow(watched, attached, &seen);
        let (loadgen, watcher) = context.dispatcher.through(followed).await?;
        standing.watchers.insert(LOADGEN.to_owned(), watcher);
        self.loadgen = Some(loadgen);
        Ok(())
    }
}

//! The Compose stack: containers of one project on a local engine, made by `compose-engine` (design section 4).
//!
//! Everything of a run carries its label; a reaper process removes it when this process is gone. Services are reached
//! at static addresses of the run's own subnet, so that one that was killed and started again is where it was.

mod act;
pub mod image;
pub mod keep;
pub mod lease;
pub mod observe;
pub mod project;
mod start;
mod watch;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::{Args, ValueEnum};
use compose_engine::down::{Ending, down};
use compose_engine::engine::docker::Docker;
use compose_engine::engine::place::Surroundings;
use compose_engine::error::ComposeError;
use compose_engine::exec::Up;
use compose_engine::ledger::Ledger;
use compose_engine::model::PullPolicy;
use compose_engine::plan::Plan;
use compose_engine::preflight::clock_again;
use compose_engine::queue::Place;
use compose_engine::subnet::Leases;
use compose_engine::target::Target;
use evidence::event::EventKind;
use evidence::run::Stack;
use evidence::snapshot::{Missing, ProcessIdentity};
use scenario::model::{Resolved, ServiceAction, Storage};
use scenario::pipe::LoadgenJob;

use super::services::Down;
use super::{ActError, Choice, Context, Provider, Running, Step, launch};
use crate::error::RunnerError;

/// Services that get this long to end at the end of a run.
const END_GRACE: Duration = Duration::from_secs(2);
/// How long a kept project stays.
const KEEP_S: u64 = 4 * 3_600;
/// How long a run may take before other hosts may consider it dead.
const EXPIRY_S: u64 = 6 * 3_600;

/// Flags of the Compose stack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
pub struct ComposeArgs {
    /// Compose file; may be repeated, later ones are laid over earlier ones.
    #[arg(long = "compose-file", value_name = "FILE", default_value = "compose/devshard.yml")]
    pub compose_files: Vec<PathBuf>,
    /// Engine, as a Unix socket; by default the one that `docker` would use.
    #[arg(long, value_name = "SOCKET")]
    pub engine: Option<String>,
    /// Run your own image by name in place of a service's, for example `postgres=postgres:16`; may be repeated.
    #[arg(long = "image", value_name = "SERVICE=IMAGE", value_parser = named_image)]
    pub images: Vec<(String, String)>,
    /// When images of yours are fetched; `never` for jobs without a network.
    #[arg(long, value_enum, default_value_t = Pull::Missing)]
    pub pull: Pull,
    /// Stores for metrics, logs and traces beside the run (compose/observability.yml), by your images: all three, or those
    /// that are named (`--observe=prometheus`).
    #[arg(long, value_name = "STORE", num_args = 0.., require_equals = true, value_delimiter = ',',
          value_parser = observe::STORES.map(|(name, _)| name),
          default_missing_values = observe::STORES.map(|(name, _)| name))]
    pub observe: Vec<String>,
    /// Leave the containers up at the end, for some hours, and say how to enter them.
    #[arg(long)]
    pub keep: bool,
}

/// When an image by name is fetched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Pull {
    /// When it is not there.
    #[default]
    Missing,
    /// Before every start.
    Always,
    /// Never.
    Never,
}

impl From<Pull> for PullPolicy {
    fn from(pull: Pull) -> Self {
        match pull {
            Pull::Missing => Self::Missing,
            Pull::Always => Self::Always,
            Pull::Never => Self::Never,
        }
    }
}

/// `SERVICE=IMAGE`.
fn named_image(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((service, image)) if !service.is_empty() && !image.is_empty() => {
            Ok((service.to_owned(), image.to_owned()))
        }
        _ => Err("write SERVICE=IMAGE, for example postgres=postgres:16".to_owned()),
    }
}

/// What stands on the engine.
struct Standing {
    engine: Docker,
    target: Target,
    ledger: Ledger,
    leases: Leases,
    lease: lease::Held,
    /// Place in the queue of the engine, given back when the run is torn down.
    place: Place,
    up: Up,
    watchers: BTreeMap<String, watch::Watcher>,
    /// Whether ends belong to the teardown: nothing is collected any more.
    torn_down: Arc<AtomicBool>,
}

impl Standing {
    /// What following a container needs.
    fn watched(&self, service: &str, id: &str, context: &Context<'_>) -> watch::Watched {
        let mock = ["mock-chain", "mock-dapi"].contains(&service)
            || context.resolved.nodes.iter().any(|node| node.name == service);
        watch::Watched {
            engine: self.engine.clone(),
            id: id.to_owned(),
            service: service.to_owned(),
            log: context.dir.path(&launch::log_file(service)),
            journal: mock.then(|| launch::journals(context).join(service)),
            torn_down: self.torn_down.clone(),
            reports: context.reports.clone(),
        }
    }
}

/// The Compose provider.
pub struct Compose {
    choice: Choice,
    standing: Option<Standing>,
    down: Down,
    loadgen: Option<watch::Loadgen>,
    /// What was found about the engine's clock since the start.
    clock: Option<String>,
}

impl std::fmt::Debug for Compose {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Compose").field("choice", &self.choice).finish_non_exhaustive()
    }
}

/// Failures of the engine are the machine's, with the log of the service that failed.
#[expect(clippy::needless_pass_by_value, reason = "used as the argument of map_err")]
pub(crate) fn environment(error: ComposeError) -> RunnerError {
    let log = error.log().to_vec();
    RunnerError::Environment { message: error.to_string(), log }
}

/// Connects to the engine that the flag or the surroundings name.
///
/// # Errors
/// [`RunnerError::Environment`].
pub async fn connect(flag: Option<String>) -> Result<Docker, RunnerError> {
    let place = Surroundings::of_process(flag).choose().map_err(|e| environment(e.into()))?;
    Docker::connect(&place).await.map_err(|error| environment(error.into()))
}

/// The plan of a scenario's project on folders of its own: what a run would ask of the engine before loadgen.
///
/// # Errors
/// [`RunnerError`] for a Compose file that can't be used.
pub fn plan_of(
    resolved: &Resolved,
    choice: &Choice,
    keys: &super::reference::Keys,
    folders: &project::Folders,
) -> Result<Plan, RunnerError> {
    start::fresh_plan(&start::target(resolved, choice, keys, folders, "plan-000000")?)
}

impl Compose {
    /// Nothing is started yet.
    #[must_use]
    pub fn new(choice: Choice) -> Self {
        Self { choice, standing: None, down: Down::default(), loadgen: None, clock: None }
    }

    async fn end(&mut self, context: &mut Context<'_>) -> Result<(), RunnerError> {
        let Some(mut standing) = self.standing.take() else { return Ok(()) };
        self.loadgen = None;
        let run = standing.target.mark.run_id.clone();
        if self.choice.compose.keep {
            let gateway = start::address_of(&standing.up, "gateway", project::SERVICE_PORT);
            let gateway = gateway.unwrap_or_else(|| "no address".to_owned());
            for text in keep::told(&standing.target, &gateway, self.choice.compose.engine.as_deref()) {
                context.dispatcher.view.line(&text);
                context.dispatcher.log(EventKind::Note { text })?;
            }
            // Its networks stand, and what stands is seen by whoever looks for a free one: no lease has to outlive the runner.
            standing.leases.give_all(&standing.target.project);
            standing.lease.release();
            return Ok(());
        }
        standing.torn_down.store(true, Ordering::Relaxed);
        let ending = Ending::Graceful(END_GRACE);
        let removed = down(&standing.engine, &run, ending, &standing.ledger);
        let removed = context.dispatcher.through(removed).await?.map_err(environment)?;
        for (_, watcher) in std::mem::take(&mut standing.watchers) {
            context.dispatcher.through(watcher.finish()).await?;
        }
        standing.leases.give_all(&standing.target.project);
        if removed.left.is_empty() {
            standing.lease.release();
            return Ok(());
        }
        // The reaper keeps trying after this process has ended.
        Err(RunnerError::environment(format!("left on the engine: {}", removed.left.join("; "))))
    }
}

impl Provider for Compose {
    fn about(&self, resolved: &Resolved) -> Stack {
        let isolation = "containers of one project in a leased subnet; every object carries the run's label";
        let about = super::reference::about("compose", &self.choice, resolved, isolation);
        if project::is_real(&self.choice) {
            return Stack { devshard: super::real::DEVSHARD.to_owned(), personality: None, ..about };
        }
        about
    }

    fn programs(&self, resolved: &Resolved) -> Vec<&'static str> {
        start::programs(resolved, &self.choice)
    }

    fn cannot_do(&self, resolved: &Resolved) -> Option<String> {
        let devshard = &resolved.scenario.devshard;
        if let Some(why) = self.real_cannot_do() {
            return Some(why);
        }
        if devshard.storage == Storage::Postgres
            && let Err(why) = image::postgres_source(&self.choice.compose.images)
        {
            return Some(format!("this scenario needs Postgres: {why}"));
        }
        let processes = devshard.participants.saturating_mul(devshard.replicas);
        let routers = if project::routed(resolved, &self.choice) { devshard.participants } else { 0 };
        let nodes = resolved.nodes.len();
        let fits =
            processes <= project::HOSTS_MAX && routers <= project::ROUTERS_MAX && nodes <= project::NODES_MAX;
        (!fits).then(|| {
            format!(
                "the subnet of a run has addresses for {} host processes, {} routers and {} nodes, this scenario needs \
                 {processes}, {routers} and {nodes}",
                project::HOSTS_MAX,
                project::ROUTERS_MAX,
                project::NODES_MAX
            )
        })
    }

    fn start<'a>(&'a mut self, context: &'a mut Context<'_>) -> Step<'a, Result<Running, RunnerError>> {
        Box::pin(async move { self.bring_up(context).await })
    }

    fn processes<'a>(
        &'a mut self,
        running: &'a Running,
        context: &'a mut Context<'_>,
    ) -> Step<'a, Vec<ProcessIdentity>> {
        Box::pin(async move {
            self.check_clock(context).await;
            self.identities(running, context).await
        })
    }

    fn act<'a>(
        &'a mut self,
        action: &'a ServiceAction,
        running: &'a Running,
        context: &'a mut Context<'_>,
    ) -> Step<'a, Result<(), ActError>> {
        Box::pin(async move { self.carry_out(action, running, context).await })
    }

    fn undo(&self) -> Vec<ServiceAction> {
        self.undo_in_order()
    }

    fn start_loadgen<'a>(
        &'a mut self,
        job: LoadgenJob,
        context: &'a mut Context<'_>,
    ) -> Step<'a, Result<(), RunnerError>> {
        Box::pin(async move { self.launch_loadgen(job, context).await })
    }

    fn tell_loadgen<'a>(
        &'a mut self,
        line: &'a str,
        _context: &'a mut Context<'_>,
    ) -> Step<'a, Result<(), RunnerError>> {
        Box::pin(async move {
            let loadgen = self.loadgen.as_mut();
            let loadgen =
                loadgen.ok_or_else(|| RunnerError::environment("loadgen's container is not there"))?;
            loadgen.tell(line).await
        })
    }

    fn kill_loadgen<'a>(&'a mut self, context: &'a mut Context<'_>) -> Step<'a, Result<(), RunnerError>> {
        Box::pin(async move { self.kill(launch_name(), context).await })
    }

    fn collect_logs<'a>(&'a mut self, context: &'a mut Context<'_>) -> Step<'a, Vec<Missing>> {
        Box::pin(async move {
            self.check_clock(context).await;
            let mut missing = self.evidence(context).await;
            missing.extend(self.clock.take().map(|why| Missing { what: "engine/clock".to_owned(), why }));
            missing
        })
    }

    fn stop<'a>(&'a mut self, context: &'a mut Context<'_>) -> Step<'a, Result<(), RunnerError>> {
        Box::pin(async move { self.end(context).await })
    }
}

impl Compose {
    /// What real Devshard images need beside what the scenario does.
    fn real_cannot_do(&self) -> Option<String> {
        let given = |wanted: &str| self.choice.compose.images.iter().any(|(name, _)| name == wanted);
        let program = self.choice.devshard_bin.as_ref().map(|folder| folder.join(project::HOST_PROGRAM));
        if !project::is_real(&self.choice) {
            return program.map(|_| {
                "--devshard-bin runs on the embedded stack; in containers it goes with --image devshardctl=… --image versiond=…"
                    .to_owned()
            });
        }
        if !given(project::GATEWAY_IMAGE) || !given(project::HOST_IMAGE) {
            return Some(
                "real Devshard images go together: give --image devshardctl=… and --image versiond=…"
                    .to_owned(),
            );
        }
        if !program.is_some_and(|program| program.is_file()) {
            let why = "the versiond image starts a host program that is mounted: --devshard-bin must name a folder with devshardd";
            return Some(why.to_owned());
        }
        None
    }
}

const fn launch_name() -> &'static str {
    super::LOADGEN
}

impl Compose {
    /// Compares the engine's clock with ours at every snapshot: one that was right at the start may be set, or drift.
    /// The first difference is kept as a gap of the evidence.
    async fn check_clock(&mut self, context: &mut Context<'_>) {
        let Some(standing) = self.standing.as_ref().filter(|_| self.clock.is_none()) else { return };
        // What ends the dispatcher ends the step that asked, too.
        let looked = context.dispatcher.through(clock_again(&standing.engine)).await;
        self.clock = looked.ok().flatten();
    }

    /// The engine's process ids are this machine's: the engine is a local one.
    async fn identities(&mut self, running: &Running, context: &Context<'_>) -> Vec<ProcessIdentity> {
        let mut identities = launch::identities(running, context);
        if let Some(standing) = &self.standing {
            for identity in &mut identities {
                use compose_engine::engine::Engine;
                let Some(id) = standing.up.containers.get(&identity.service) else { continue };
                match standing.engine.inspect(id).await {
                    // Inspect is the truth, whatever events told: who restarts a container from outside leaves another
                    // process that is up, which is a restart and no service that does not run (report 31).
                    Ok(seen) => {
                        identity.ready = seen.up() && seen.restart_count == 0;
                        identity.pid = u32::try_from(seen.pid).unwrap_or_default();
                        identity.start_ticks =
                            crate::guard::tree::start_ticks(identity.pid).unwrap_or_default();
                    }
                    Err(_) => identity.ready = false,
                }
            }
        }
        identities
    }
}

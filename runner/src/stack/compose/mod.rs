//! The Compose stack: containers of one project on a local engine, made by `compose-engine` (design section 4).
//!
//! Everything of a run carries its label; a reaper process removes it when this process is gone. Services are reached
//! at static addresses of the run's own subnet, so that one that was killed and started again is where it was.

mod act;
pub mod image;
pub mod lease;
pub mod project;
mod start;
mod watch;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use compose_engine::down::{Ending, down};
use compose_engine::engine::docker::Docker;
use compose_engine::engine::place::Surroundings;
use compose_engine::error::ComposeError;
use compose_engine::exec::Up;
use compose_engine::ledger::Ledger;
use compose_engine::plan::Plan;
use compose_engine::subnet::Leases;
use compose_engine::target::Target;
use evidence::event::EventKind;
use evidence::run::Stack;
use evidence::snapshot::{Missing, ProcessIdentity};
use scenario::model::{Resolved, ServiceAction, Storage};
use scenario::pipe::LoadgenJob;

use super::{ActError, Choice, Context, Provider, Running, Step, launch};
use crate::error::RunnerError;
use crate::stack::embedded::PROGRAMS;

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
    /// Leave the containers up at the end, for some hours, and say how to enter them.
    #[arg(long)]
    pub keep: bool,
}

/// What stands on the engine.
struct Standing {
    engine: Docker,
    target: Target,
    ledger: Ledger,
    leases: Leases,
    lease: lease::Held,
    up: Up,
    watchers: BTreeMap<String, watch::Watcher>,
}

/// The Compose provider.
pub struct Compose {
    choice: Choice,
    standing: Option<Standing>,
    /// What actions left down, and what brings it back.
    down: BTreeMap<String, ServiceAction>,
    loadgen: Option<watch::Loadgen>,
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
    keys: &project::Keys,
    folders: &project::Folders,
) -> Result<Plan, RunnerError> {
    start::fresh_plan(&start::target(resolved, choice, keys, folders, "plan-000000")?)
}

impl Compose {
    /// Nothing is started yet.
    #[must_use]
    pub fn new(choice: Choice) -> Self {
        Self { choice, standing: None, down: BTreeMap::new(), loadgen: None }
    }

    async fn end(&mut self, context: &mut Context<'_>) -> Result<(), RunnerError> {
        let Some(mut standing) = self.standing.take() else { return Ok(()) };
        self.loadgen = None;
        let run = standing.target.mark.run_id.clone();
        if self.choice.compose.keep {
            let project = &standing.target.project;
            let text = format!(
                "project {project} stays up for {} h: docker ps --filter label=com.docker.compose.project={project}; \
                 gateway at {}; `runner gc` removes it after that",
                KEEP_S / 3_600,
                start::address_of(&standing.up, "gateway", project::SERVICE_PORT).unwrap_or_default()
            );
            context.dispatcher.view.line(&text);
            context.dispatcher.log(EventKind::Note { text })?;
            standing.lease.release();
            return Ok(());
        }
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
        super::reference::about("compose", &self.choice, resolved, isolation)
    }

    fn programs(&self, _resolved: &Resolved) -> Vec<&'static str> {
        PROGRAMS.to_vec()
    }

    fn cannot_do(&self, resolved: &Resolved) -> Option<String> {
        let devshard = &resolved.scenario.devshard;
        if devshard.storage == Storage::Postgres || devshard.replicas > 1 {
            let why =
                "this scenario needs Postgres (leases or replicas), which compose/devshard.yml does not have";
            return Some(why.to_owned());
        }
        let (hosts, nodes) = (devshard.participants, resolved.nodes.len());
        (hosts > project::HOSTS_MAX || nodes > project::NODES_MAX).then(|| {
            format!(
                "the subnet of a run has addresses for {} hosts and {} nodes, this scenario has {hosts} and {nodes}",
                project::HOSTS_MAX,
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
        Box::pin(async move { self.identities(running, context).await })
    }

    fn act<'a>(
        &'a mut self,
        action: &'a ServiceAction,
        _running: &'a Running,
        context: &'a mut Context<'_>,
    ) -> Step<'a, Result<(), ActError>> {
        Box::pin(async move { self.carry_out(action, context).await })
    }

    fn undo(&self) -> Vec<ServiceAction> {
        self.down.values().cloned().collect()
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
        Box::pin(async move { self.evidence(context).await })
    }

    fn stop<'a>(&'a mut self, context: &'a mut Context<'_>) -> Step<'a, Result<(), RunnerError>> {
        Box::pin(async move { self.end(context).await })
    }
}

const fn launch_name() -> &'static str {
    super::LOADGEN
}

impl Compose {
    /// The engine's process ids are this machine's: the engine is a local one.
    async fn identities(&mut self, running: &Running, context: &Context<'_>) -> Vec<ProcessIdentity> {
        let mut identities = launch::identities(running, context);
        if let Some(standing) = &self.standing {
            for identity in &mut identities {
                // Inspect is the truth: a restart whose event was lost shows as another process here (report 31).
                use compose_engine::engine::Engine;
                let Some(id) = standing.up.containers.get(&identity.service) else { continue };
                match standing.engine.inspect(id).await {
                    Ok(seen) => {
                        identity.ready &= seen.up() && seen.restart_count == 0;
                        identity.pid = u32::try_from(seen.pid).unwrap_or_default();
                    }
                    Err(_) => identity.ready = false,
                }
            }
        }
        identities
    }
}

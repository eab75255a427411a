//! Stacks (design section 4): one trait, [`Provider`], behind which every stack lies, and what it hands over.
//!
//! The life of a run knows only this trait. A provider starts and ends processes or containers, says where they
//! answer and who they are, and carries service actions out. What it starts itself it reports to the dispatcher as
//! [`crate::guard::Report`]s (the guard does that for child processes), so that ends, output and restarts of all
//! stacks arrive on the one channel.

pub mod attach;
pub mod cast;
pub mod compose;
pub mod embedded;
pub mod fleet;
pub mod launch;
pub mod mocks;
pub mod ports;
pub mod postgres;
pub mod programs;
pub mod real;
pub mod reference;
pub mod services;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::time::Duration;

use evidence::run::Stack;
use evidence::rundir::RunDir;
use evidence::snapshot::{Missing, ProcessIdentity};
use scenario::model::{Resolved, ServiceAction};
use scenario::pipe::LoadgenJob;
use tokio::sync::mpsc;

use crate::collect::Surfaces;
use crate::collect::ask::Refused;
use crate::collect::snapshot::Mocks;
use crate::error::RunnerError;
use crate::guard::client::Guard;
use crate::guard::{Report, ServiceSignal};
use crate::life::dispatcher::Dispatcher;
use programs::Programs;

/// The service name of loadgen on every stack.
pub const LOADGEN: &str = "loadgen";

/// A step of a provider. Boxed, so that providers can be chosen at run time.
pub type Step<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// Which stack the command line chose, and with what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Provider.
    pub stack: StackKind,
    /// `intended` or `july`; only the reference Devshard has personalities.
    pub personality: String,
    /// Planted defect of a `planted-defects` build.
    pub defect: Option<String>,
    /// Only for the Compose stack.
    pub compose: compose::ComposeArgs,
    /// Folder with the user's own builds of the Devshard programs, which then run instead of the reference ones.
    pub devshard_bin: Option<PathBuf>,
    /// What starts the hosts of those programs.
    pub hosts_by: real::HostsBy,
    /// Only for a running environment.
    pub attach: attach::AttachArgs,
}

/// Providers by the name of `--stack`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum StackKind {
    /// Child processes on loopback.
    Embedded,
    /// Containers of a Compose project on a local engine.
    Compose,
    /// A running environment at addresses that are given.
    Attach,
}

impl StackKind {
    /// The kind whose provider wrote this name into `run.yaml`.
    #[must_use]
    pub fn of(provider: &str) -> Option<Self> {
        <Self as clap::ValueEnum>::from_str(provider, false).ok()
    }
}

impl Choice {
    /// What the command line must name for this stack and does not.
    #[must_use]
    pub fn lacks(&self) -> Option<&'static str> {
        let nowhere = self.stack == StackKind::Attach && self.attach.gateway.is_none();
        nowhere.then_some("--stack attach needs --gateway URL, where the running environment is")
    }

    /// The provider of this choice; nothing is started or looked at yet.
    #[must_use]
    pub fn provider(&self) -> Box<dyn Provider> {
        match self.stack {
            StackKind::Embedded if self.devshard_bin.is_some() => Box::new(real::Real::new(self.clone())),
            StackKind::Embedded => Box::new(embedded::Embedded::new(self.clone())),
            StackKind::Compose => Box::new(compose::Compose::new(self.clone())),
            StackKind::Attach => Box::new(attach::Attach::new(self.clone())),
        }
    }
}

/// Why a scenario that takes services out of the network can't be done where all of them share one.
#[must_use]
pub fn no_rewiring(resolved: &Resolved) -> Option<String> {
    let rewires = resolved
        .scenario
        .actions
        .iter()
        .any(|action| matches!(action.action, ServiceAction::Disconnect(_) | ServiceAction::Connect(_)));
    rewires.then(|| {
        "this scenario takes a service out of the network, and processes on loopback share one; use --stack compose"
            .to_owned()
    })
}

/// What a provider works with; it belongs to the run.
#[derive(Debug)]
pub struct Context<'a> {
    /// Owner of the run's state: waits go through it, so that signals and ends are seen meanwhile.
    pub dispatcher: &'a mut Dispatcher,
    /// Parent of every child process of the run.
    pub guard: &'a mut Guard,
    /// The dispatcher's inbox, for providers that watch something else than children of the guard.
    pub reports: &'a mpsc::Sender<Report>,
    /// The run directory.
    pub dir: &'a mut RunDir,
    /// Our programs, those that [`Provider::programs`] named.
    pub programs: &'a Programs,
    /// Scenario.
    pub resolved: &'a Resolved,
    /// Private directory of the run (databases, key files): not evidence, removed at the end.
    pub work: &'a Path,
}

/// A stack: started, asked, acted on, stopped.
///
/// Only [`Provider::start`] must be called first; [`Provider::stop`] may come at any moment, also after a failed start.
pub trait Provider: std::fmt::Debug {
    /// What will run, for `run.yaml`; known before the start.
    fn about(&self, resolved: &Resolved) -> Stack;

    /// Our programs that it starts, loadgen included; all are looked for before the start.
    fn programs(&self, resolved: &Resolved) -> Vec<&'static str>;

    /// Why this scenario can't be done here, as far as the file and this machine show (outcome unknown, nothing is
    /// started). What only the running build shows is an error of [`Provider::start`].
    fn cannot_do(&self, resolved: &Resolved) -> Option<String>;

    /// Whether the stack exists for this run alone. Where it does not, no setting is changed, and the drain ends with
    /// the passive wait: sync and finalize would change what belongs to others.
    fn is_ours(&self) -> bool {
        true
    }

    /// Starts everything and waits until every part answers. Sets the redactor before the first secret can be
    /// written. Settings, canaries and faults are not its business.
    ///
    /// # Errors
    /// [`RunnerError::Environment`] with the last log lines of what did not come up; [`RunnerError::CannotDo`] when
    /// the build shows that it can't carry the scenario.
    fn start<'a>(&'a mut self, context: &'a mut Context<'_>) -> Step<'a, Result<Running, RunnerError>>;

    /// Identity and liveness of each required service, now.
    fn processes<'a>(
        &'a mut self,
        running: &'a Running,
        context: &'a mut Context<'_>,
    ) -> Step<'a, Vec<ProcessIdentity>>;

    /// Carries out an action on a service and returns when it has taken effect: an end was seen, a started service
    /// is ready again at its old addresses. Only those with a [`ServiceAction::service`] come here. Exits that it causes are
    /// marked as planned before they can happen.
    ///
    /// # Errors
    /// [`ActError::Refused`] when this stack or this moment does not allow it (becomes an event),
    /// [`ActError::Run`] when the run can't go on.
    fn act<'a>(
        &'a mut self,
        action: &'a ServiceAction,
        running: &'a Running,
        context: &'a mut Context<'_>,
    ) -> Step<'a, Result<(), ActError>>;

    /// The actions that bring back what earlier actions left stopped, killed or paused, in the order in which they
    /// are to be done. Empty when everything runs.
    fn undo(&self) -> Vec<ServiceAction>;

    /// Starts loadgen as service [`LOADGEN`]. The job holds paths and URLs of this machine; a provider that runs
    /// loadgen elsewhere translates them.
    ///
    /// # Errors
    /// [`RunnerError`] when it can't be started at all; a later end is a report.
    fn start_loadgen<'a>(
        &'a mut self,
        job: LoadgenJob,
        context: &'a mut Context<'_>,
    ) -> Step<'a, Result<(), RunnerError>> {
        Box::pin(async move { launch::loadgen(&job, BTreeMap::new(), context).await })
    }

    /// Writes a line to loadgen.
    ///
    /// # Errors
    /// [`RunnerError::Environment`] when what carries the line is gone.
    fn tell_loadgen<'a>(
        &'a mut self,
        line: &'a str,
        context: &'a mut Context<'_>,
    ) -> Step<'a, Result<(), RunnerError>> {
        Box::pin(async move { context.guard.input(LOADGEN, line).await })
    }

    /// Ends loadgen at once.
    ///
    /// # Errors
    /// As [`Provider::tell_loadgen`].
    fn kill_loadgen<'a>(&'a mut self, context: &'a mut Context<'_>) -> Step<'a, Result<(), RunnerError>> {
        Box::pin(async move { context.guard.signal(LOADGEN, ServiceSignal::Kill).await })
    }

    /// Brings logs that are not in `logs/` yet into it, bounded; gives what could not be had. Child processes of the
    /// guard write there directly.
    fn collect_logs<'a>(&'a mut self, _context: &'a mut Context<'_>) -> Step<'a, Vec<Missing>> {
        Box::pin(std::future::ready(Vec::new()))
    }

    /// Ends what it started outside the guard. The run ends the guard's children itself, afterwards.
    ///
    /// # Errors
    /// [`RunnerError::Environment`] naming what is left behind; it can't change the verdict any more.
    fn stop<'a>(&'a mut self, _context: &'a mut Context<'_>) -> Step<'a, Result<(), RunnerError>> {
        Box::pin(std::future::ready(Ok(())))
    }
}

/// What a provider answers to an action on gateway, chain or allocator, which the run does itself.
pub const NOT_THE_STACKS: &str = "this action is a call of the gateway or a mock, not of the stack";

/// Why an action was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum ActError {
    /// The stack does not do this, or not now; in words.
    #[error("{0}")]
    Refused(String),
    /// The run can't go on.
    #[error(transparent)]
    Run(#[from] RunnerError),
}

/// A stack that answers, whoever started it.
#[derive(Clone, Debug)]
pub struct Running {
    /// Where gateway and hosts are, seen from the runner.
    pub surfaces: Surfaces,
    /// Control of the mocks; what is absent can't be seen or faulted.
    pub mocks: Mocks,
    /// Base URL of each pool node as the allocator gives it out, by instance.
    pub node_urls: BTreeMap<String, String>,
    /// Model that is served.
    pub model: String,
    /// Postgres URL of each participant's leases, by participant (`host-0`); empty without Postgres. May hold a secret.
    pub postgres: BTreeMap<String, String>,
    /// How long a validation lease holds; unknown where the build was not told by us.
    pub lease_ttl: Option<Duration>,
    /// Services that must stay up.
    pub required: Vec<String>,
    /// Protocol waits as status shows them, seconds: refusal, execution. Filled after the start.
    pub waits_s: (u64, u64),
}

impl Running {
    /// Answers that could not be used, by service, in words: what was asked for is missing where it was asked for, and
    /// here is why.
    #[must_use]
    pub fn refused(&self) -> Vec<(String, String)> {
        let named = |refused: Refused| {
            let service = self.surfaces.service_at(&refused.origin);
            let service = service.or_else(|| self.mocks.service_at(&refused.origin));
            let what = format!("answers of {}", service.unwrap_or(&refused.origin));
            (what, refused.words)
        };
        self.surfaces.ask.refused().into_iter().map(named).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `run` and `repro` both ask it: a replay of an attached run has no address of its own.
    #[test]
    fn a_running_environment_needs_an_address_and_no_other_stack_does() {
        let choice = |stack, gateway: Option<&str>| Choice {
            stack,
            personality: "intended".to_owned(),
            defect: None,
            compose: compose::ComposeArgs::default(),
            devshard_bin: None,
            hosts_by: real::HostsBy::default(),
            attach: attach::AttachArgs {
                gateway: gateway.map(str::to_owned),
                ..attach::AttachArgs::default()
            },
        };
        assert!(choice(StackKind::Attach, None).lacks().is_some_and(|what| what.contains("--gateway URL")));
        assert_eq!(choice(StackKind::Attach, Some("http://127.0.0.1:1")).lacks(), None);
        assert_eq!(choice(StackKind::Embedded, None).lacks(), None);
        assert_eq!(choice(StackKind::Compose, None).lacks(), None);
    }
}

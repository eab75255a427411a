//! The embedded stack: mocks and the reference Devshard as child processes on loopback (design section 4).
//!
//! Every service has leased ports ([`super::ports`]), so that a restarted one is where its neighbours look for it. Order:
//! mocks, hosts, routers, gateway. Faults are off until the run's fault step.

mod start;

pub(super) use start::write_work;

use evidence::run::Stack;
use evidence::snapshot::ProcessIdentity;
use scenario::model::{Resolved, ServiceAction, Storage};
use scenario::pipe::LoadgenJob;

use super::fleet::Fleet;
use super::ports::Ports;
use super::{ActError, Choice, Context, LOADGEN, Provider, Running, Step, launch, postgres};
use crate::error::RunnerError;

/// Programs that the embedded stack starts, loadgen included.
pub const PROGRAMS: [&str; 6] =
    ["loadgen", "mock-chain", "mock-dapi", "mock-openai", "ref-gateway", "ref-host"];
/// Model name of the reference stack (contract gateway 1.3).
pub const MODEL: &str = "test-model";
/// Planted defects of a `planted-defects` build, in the order of `refshard`'s table and after
/// them those of mocks and loadgen, and the service that gets each
/// (design, selftest layer M). The programs are asked in a test whether they have the same ones.
pub const DEFECTS: [(&str, &str); 43] = [
    ("lost-accounting", "gateway"),
    ("fail-unselected", "gateway"),
    ("hide-truncation", "gateway"),
    ("double-done", "gateway"),
    ("wrong-shape", "gateway"),
    ("cut-json", "gateway"),
    ("bad-utf8", "gateway"),
    ("error-in-stream", "gateway"),
    ("hold-answer", "gateway"),
    ("forget-cancelled", "gateway"),
    ("cross-talk", "gateway"),
    ("reuse-nonce", "gateway"),
    ("nonce-back", "gateway"),
    ("future-nonce", "gateway"),
    ("stuck-gauge", "gateway"),
    ("flapping-gauge", "gateway"),
    ("drop-id-on-error", "gateway"),
    ("lookup-404", "gateway"),
    ("foreign-host", "gateway"),
    ("record-failed-on-200", "gateway"),
    ("timeout-on-success", "gateway"),
    ("slow-answers", "gateway"),
    ("slow-end", "gateway"),
    ("drop-finish", "host-1"),
    ("orphan-receipt", "host-1"),
    ("foreign-finish", "host-1"),
    ("double-validation", "host-1"),
    ("ignore-lease", "host-1"),
    ("steal-lease", "host-1"),
    ("late-submit", "host-1"),
    ("stale-replica", "host-1"),
    ("flip-balance", "host-1"),
    ("rewritten-step", "host-1"),
    ("stuck-inflight", "host-1"),
    ("deaf", "host-1"),
    ("silent-death", "host-1"),
    ("flapping-health", "host-1"),
    ("unlocked-call", "host-1"),
    ("stuck-queue", "mock-openai"),
    ("forgotten-hit", "mock-openai"),
    ("hidden-node", "mock-openai"),
    ("lost-records", "loadgen"),
    ("wrong-class", "loadgen"),
];

/// The embedded provider.
#[derive(Debug)]
pub struct Embedded {
    choice: Choice,
    ports: Ports,
    fleet: Fleet,
}

impl Embedded {
    /// Nothing is started yet.
    #[must_use]
    pub fn new(choice: Choice) -> Self {
        Self { choice, ports: Ports::default(), fleet: Fleet::default() }
    }
}

impl Provider for Embedded {
    fn about(&self, resolved: &Resolved) -> Stack {
        let isolation = "child processes of one guard process, loopback ports chosen by the kernel";
        super::reference::about("embedded", &self.choice, resolved, isolation)
    }

    fn start_loadgen<'a>(
        &'a mut self,
        job: LoadgenJob,
        context: &'a mut Context<'_>,
    ) -> Step<'a, Result<(), RunnerError>> {
        let planted = self.choice.defect.clone().filter(|name| DEFECTS.contains(&(name.as_str(), LOADGEN)));
        let env = planted.map(|name| ("PROOFLOAD_LOADGEN_DEFECT".to_owned(), name)).into_iter().collect();
        Box::pin(async move { launch::loadgen(&job, env, context).await })
    }

    fn programs(&self, resolved: &Resolved) -> Vec<&'static str> {
        let mut programs = PROGRAMS.to_vec();
        if resolved.scenario.devshard.replicas > 1 {
            programs.push("ref-router");
        }
        programs
    }

    fn cannot_do(&self, resolved: &Resolved) -> Option<String> {
        if let Some(why) = super::no_rewiring(resolved) {
            return Some(why);
        }
        if resolved.scenario.devshard.storage == Storage::Sqlite {
            return None;
        }
        let found = postgres::find(|name| std::env::var(name).ok());
        found.err().map(|why| {
            format!("this scenario needs Postgres, and there is {why}; set PGHOST or install the server")
        })
    }

    fn start<'a>(&'a mut self, context: &'a mut Context<'_>) -> Step<'a, Result<Running, RunnerError>> {
        Box::pin(self.start_all(context))
    }

    fn processes<'a>(
        &'a mut self,
        running: &'a Running,
        context: &'a mut Context<'_>,
    ) -> Step<'a, Vec<ProcessIdentity>> {
        Box::pin(std::future::ready(launch::identities(running, context)))
    }

    fn act<'a>(
        &'a mut self,
        action: &'a ServiceAction,
        running: &'a Running,
        context: &'a mut Context<'_>,
    ) -> Step<'a, Result<(), ActError>> {
        Box::pin(self.fleet.carry_out(action, running, context))
    }

    fn stop<'a>(&'a mut self, _context: &'a mut Context<'_>) -> Step<'a, Result<(), RunnerError>> {
        Box::pin(async move {
            match &self.fleet.databases {
                Some(databases) => databases.close().await.map_err(RunnerError::environment),
                None => Ok(()),
            }
        })
    }

    fn undo(&self) -> Vec<ServiceAction> {
        self.fleet.undo_in_order()
    }
}

//! The embedded stack: mocks and the reference Devshard as child processes on loopback (design section 4).
//!
//! Every program says where it listens. Order: chain and nodes, allocator, hosts, participants' URLs into the chain,
//! gateway. Faults are off until the run's fault step.

mod start;

use std::collections::BTreeMap;
use std::time::Duration;

use evidence::run::Stack;
use evidence::snapshot::ProcessIdentity;
use scenario::model::{Resolved, ServiceAction, Storage};

use super::{ActError, Choice, Context, Provider, Running, Step, launch};
use crate::error::RunnerError;
use crate::guard::ServiceSignal;

/// Programs that the embedded stack starts, loadgen included.
pub const PROGRAMS: [&str; 6] =
    ["loadgen", "mock-chain", "mock-dapi", "mock-openai", "ref-gateway", "ref-host"];
/// Model name of the reference stack (contract gateway 1.3).
pub const MODEL: &str = "test-model";
/// Planted defects of a `planted-defects` build, and the service that gets each (design, selftest layer M).
pub const DEFECTS: [(&str, &str); 14] = [
    ("drop-finish", "host-1"),
    ("double-validation", "host-1"),
    ("stale-replica", "host-1"),
    ("flip-balance", "host-1"),
    ("stuck-inflight", "host-1"),
    ("unlocked-call", "host-1"),
    ("lost-accounting", "gateway"),
    ("record-failed-on-200", "gateway"),
    ("reuse-nonce", "gateway"),
    ("drop-id-on-error", "gateway"),
    ("lookup-404", "gateway"),
    ("double-done", "gateway"),
    ("fail-unselected", "gateway"),
    ("stuck-gauge", "gateway"),
];
/// How long a service may take to end after SIGTERM or SIGKILL before the action counts as refused.
const END_LIMIT: Duration = Duration::from_secs(10);

/// The embedded provider.
#[derive(Debug)]
pub struct Embedded {
    choice: Choice,
    /// What actions left down, and what brings it back.
    down: BTreeMap<String, ServiceAction>,
}

impl Embedded {
    /// Nothing is started yet.
    #[must_use]
    pub fn new(choice: Choice) -> Self {
        Self { choice, down: BTreeMap::new() }
    }

    async fn carry_out(&mut self, action: &ServiceAction, context: &mut Context<'_>) -> Result<(), ActError> {
        match action {
            ServiceAction::Stop(service) => {
                self.end(service, ServiceSignal::Terminate, context).await?;
            }
            ServiceAction::Kill(service) => {
                self.end(service, ServiceSignal::Kill, context).await?;
            }
            ServiceAction::Pause(service) => {
                self.down.insert(service.clone(), ServiceAction::Unpause(service.clone()));
                context.guard.signal(service, ServiceSignal::Stop).await?;
            }
            ServiceAction::Unpause(service) => {
                context.guard.signal(service, ServiceSignal::Continue).await?;
                self.down.remove(service);
            }
            ServiceAction::Start(_) | ServiceAction::Restart(_) => {
                let why = "the embedded stack can't start a service again yet";
                return Err(ActError::Refused(why.to_owned()));
            }
            ServiceAction::Deactivate(_) => {
                let why = "deactivation is a call of the gateway, not of the stack";
                return Err(ActError::Refused(why.to_owned()));
            }
        }
        Ok(())
    }

    async fn end(
        &mut self,
        service: &str,
        signal: ServiceSignal,
        context: &mut Context<'_>,
    ) -> Result<(), ActError> {
        if launch::end(context, service, signal, END_LIMIT).await? {
            return Ok(());
        }
        let limit = END_LIMIT.as_secs();
        Err(ActError::Refused(format!("{service} did not end within {limit} s")))
    }
}

impl Provider for Embedded {
    fn about(&self, resolved: &Resolved) -> Stack {
        Stack {
            provider: "embedded".to_owned(),
            devshard: "reference".to_owned(),
            personality: Some(self.choice.personality.clone()),
            defect: self.choice.defect.clone(),
            storage: match resolved.scenario.devshard.storage {
                Storage::Sqlite => "sqlite".to_owned(),
                Storage::Postgres => "postgres".to_owned(),
            },
            isolation: "child processes of one guard process, loopback ports chosen by the kernel".to_owned(),
        }
    }

    fn programs(&self, _resolved: &Resolved) -> Vec<&'static str> {
        PROGRAMS.to_vec()
    }

    fn cannot_do(&self, resolved: &Resolved) -> Option<String> {
        let devshard = &resolved.scenario.devshard;
        if devshard.storage == Storage::Postgres || devshard.replicas > 1 {
            return Some(
                "this scenario needs Postgres (leases or replicas), which the embedded stack of this build does not \
                 start"
                    .to_owned(),
            );
        }
        let restarts =
            |action: &ServiceAction| matches!(action, ServiceAction::Start(_) | ServiceAction::Restart(_));
        if resolved.scenario.actions.iter().any(|action| restarts(&action.action)) {
            return Some(
                "this scenario starts a service again, which the embedded stack of this build does not do"
                    .to_owned(),
            );
        }
        None
    }

    fn start<'a>(&'a mut self, context: &'a mut Context<'_>) -> Step<'a, Result<Running, RunnerError>> {
        Box::pin(async move {
            let starter = start::Starter { context, choice: &self.choice };
            starter.start().await
        })
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
        _running: &'a Running,
        context: &'a mut Context<'_>,
    ) -> Step<'a, Result<(), ActError>> {
        Box::pin(self.carry_out(action, context))
    }

    fn undo(&self) -> Vec<ServiceAction> {
        self.down.values().cloned().collect()
    }
}

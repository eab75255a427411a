//! The embedded stack with the user's own `devshardctl` and `devshardd` (`--devshard-bin DIR`): our mocks, our keys
//! and our router around real programs (design section 4, contract mocks 1.4 and 9, fixture wire-july section 3).

pub(super) use programs::PROTOCOL;
pub(super) use start::write_keyring;

mod listener;
mod mocks;
mod programs;
mod start;

use std::time::Duration;

use evidence::run::Stack;
use evidence::snapshot::ProcessIdentity;
use scenario::model::{Resolved, ServiceAction, Storage};

use super::{ActError, Choice, Context, NOT_THE_STACKS, Provider, Running, Step, launch};
use crate::error::RunnerError;
use crate::guard::ServiceSignal;

/// What `run.yaml` says of the Devshard of this stack.
pub const DEVSHARD: &str = "real";
/// Programs of ours on this stack.
const PROGRAMS: [&str; 5] = ["loadgen", "mock-chain", "mock-dapi", "mock-openai", "ref-router"];
/// How long a service may take to end.
const END_LIMIT: Duration = Duration::from_secs(10);

/// The provider.
#[derive(Debug)]
pub struct Real {
    choice: Choice,
    /// Services that an action froze.
    paused: Vec<String>,
}

impl Real {
    /// Nothing is started or looked at yet.
    #[must_use]
    pub fn new(choice: Choice) -> Self {
        Self { choice, paused: Vec::new() }
    }

    async fn carry_out(&mut self, action: &ServiceAction, context: &mut Context<'_>) -> Result<(), ActError> {
        let (service, signal) = match action {
            ServiceAction::Stop(service) => (service, ServiceSignal::Terminate),
            ServiceAction::Kill(service) => (service, ServiceSignal::Kill),
            ServiceAction::Pause(service) => {
                self.paused.push(service.clone());
                return Ok(context.guard.signal(service, ServiceSignal::Stop).await?);
            }
            ServiceAction::Unpause(service) => {
                context.guard.signal(service, ServiceSignal::Continue).await?;
                self.paused.retain(|paused| paused != service);
                return Ok(());
            }
            ServiceAction::Start(_)
            | ServiceAction::Restart(_)
            | ServiceAction::Disconnect(_)
            | ServiceAction::Connect(_) => {
                let why = "this stack neither starts services again nor takes them out of the network";
                return Err(ActError::Refused(why.to_owned()));
            }
            _ => return Err(ActError::Refused(NOT_THE_STACKS.to_owned())),
        };
        if launch::end(context, service, signal, END_LIMIT).await? {
            return Ok(());
        }
        Err(ActError::Refused(format!("{service} did not end within {} s", END_LIMIT.as_secs())))
    }
}

impl Provider for Real {
    fn about(&self, _resolved: &Resolved) -> Stack {
        Stack {
            provider: "embedded".to_owned(),
            devshard: DEVSHARD.to_owned(),
            personality: None,
            defect: None,
            storage: "sqlite".to_owned(),
            isolation: "child processes of one guard process, ports chosen by the kernel; gateway and hosts listen on \
                        every address, as their programs do"
                .to_owned(),
        }
    }

    fn programs(&self, _resolved: &Resolved) -> Vec<&'static str> {
        PROGRAMS.to_vec()
    }

    fn cannot_do(&self, resolved: &Resolved) -> Option<String> {
        if let Some(why) = super::no_rewiring(resolved) {
            return Some(why);
        }
        let devshard = &resolved.scenario.devshard;
        if devshard.storage == Storage::Postgres || devshard.replicas > 1 {
            let text = "this scenario needs Postgres (leases or replicas), which this stack does not start for real \
                        programs; several participants on SQLite work";
            return Some(text.to_owned());
        }
        let restarts =
            |action: &ServiceAction| matches!(action, ServiceAction::Start(_) | ServiceAction::Restart(_));
        if resolved.scenario.actions.iter().any(|action| restarts(&action.action)) {
            return Some("this scenario starts a service again, which this stack does not do".to_owned());
        }
        None
    }

    fn start<'a>(&'a mut self, context: &'a mut Context<'_>) -> Step<'a, Result<Running, RunnerError>> {
        Box::pin(start::start(&self.choice, context))
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
        self.paused.iter().cloned().map(ServiceAction::Unpause).collect()
    }
}

//! The embedded stack with the user's own `devshardctl` and `devshardd` (`--devshard-bin DIR`): our mocks, our keys
//! and our routers around real programs (design section 4, contract mocks 1.4 and 9, fixture wire-july section 3).
//!
//! `versiond` is not used: its port is fixed, so that every participant would need a network namespace of its own.

pub(super) use programs::PROTOCOL;
pub(super) use start::write_keyring;

mod programs;
mod start;

use evidence::run::Stack;
use evidence::snapshot::ProcessIdentity;
use scenario::model::{Devshard, Resolved, ServiceAction, Storage};

use super::fleet::Fleet;
use super::ports::Ports;
use super::{ActError, Choice, Context, Provider, Running, Step, launch, postgres};
use crate::error::RunnerError;

/// What `run.yaml` says of the Devshard of this stack.
pub const DEVSHARD: &str = "real";
/// Programs of ours on this stack.
const PROGRAMS: [&str; 5] = ["loadgen", "mock-chain", "mock-dapi", "mock-openai", "ref-router"];

/// Why real hosts can't be replicas of each other without Postgres.
#[must_use]
pub(super) fn replicas_without_postgres(devshard: &Devshard) -> Option<String> {
    let alone = devshard.storage == Storage::Sqlite && devshard.replicas > 1;
    alone.then(|| {
        "replicas of one participant share their Postgres: real hosts on SQLite know nothing of each other and own no \
         leases; set `storage: postgres`"
            .to_owned()
    })
}

/// The provider.
#[derive(Debug)]
pub struct Real {
    choice: Choice,
    ports: Ports,
    fleet: Fleet,
}

impl Real {
    /// Nothing is started or looked at yet.
    #[must_use]
    pub fn new(choice: Choice) -> Self {
        Self { choice, ports: Ports::default(), fleet: Fleet::default() }
    }
}

impl Provider for Real {
    fn about(&self, resolved: &Resolved) -> Stack {
        let storage = match resolved.scenario.devshard.storage {
            Storage::Sqlite => "sqlite",
            Storage::Postgres => "postgres",
        };
        Stack {
            provider: "embedded".to_owned(),
            devshard: DEVSHARD.to_owned(),
            personality: None,
            defect: None,
            storage: storage.to_owned(),
            isolation: "child processes of one guard process, ports chosen by the kernel and kept over restarts; gateway \
                        and hosts listen on every address, as their programs do"
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
        match devshard.storage {
            Storage::Sqlite => replicas_without_postgres(devshard),
            Storage::Postgres => {
                let found = postgres::find(|name| std::env::var(name).ok());
                found.err().map(|why| {
                    format!(
                        "this scenario needs Postgres, and there is {why}; set PGHOST or install the server"
                    )
                })
            }
        }
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

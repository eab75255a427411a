//! The embedded stack with the user's own `devshardctl` and `devshardd` (`--devshard-bin DIR`): our mocks, our keys
//! and our routers around real programs (design section 4, contract mocks 1.4 and 9, fixture wire-july section 3).
//!
//! Where the folder holds `versiond` and the machine makes network namespaces, it starts the hosts (`network`).

pub use hosts::HostsBy;
pub(super) use programs::PROTOCOL;
pub(super) use start::write_keyring;

mod hosts;
mod network;
mod programs;
mod start;

use std::collections::BTreeMap;
use std::path::PathBuf;

use evidence::run::Stack;
use evidence::snapshot::ProcessIdentity;
use scenario::model::{Resolved, ServiceAction, Storage};
use serde_json::Value;

use super::fleet::Fleet;
use super::ports::Ports;
use super::{ActError, Choice, Context, Provider, Running, Step, launch, postgres};
use crate::collect::ask::bound;
use crate::error::RunnerError;
use hosts::Decision;
use network::{Namespace, Network};

/// What `run.yaml` says of the Devshard of this stack.
pub const DEVSHARD: &str = "real";
/// How bare programs listen, for `run.yaml`.
const BARE: &str = "gateway and hosts listen on every address, as their programs do";
/// Series with the start time of a process.
const METRIC_START: &str = "process_start_time_seconds";
/// Programs of ours on this stack.
const PROGRAMS: [&str; 5] = ["loadgen", "mock-chain", "mock-dapi", "mock-openai", "ref-router"];

/// The provider.
#[derive(Debug)]
pub struct Real {
    choice: Choice,
    /// What the runner and clients alone reach.
    ports: Ports,
    /// What hosts reach.
    host_ports: Ports,
    /// Namespaces of the hosts, under `versiond`.
    network: Option<Network>,
    /// Each by the service of its host.
    namespaces: BTreeMap<String, Namespace>,
    fleet: Fleet,
}

impl Real {
    /// Nothing is started or looked at yet.
    #[must_use]
    pub fn new(choice: Choice) -> Self {
        Self {
            choice,
            ports: Ports::default(),
            host_ports: Ports::default(),
            network: None,
            namespaces: BTreeMap::new(),
            fleet: Fleet::default(),
        }
    }

    fn folder(&self) -> PathBuf {
        self.choice.devshard_bin.clone().unwrap_or_else(|| PathBuf::from("."))
    }

    /// What starts the hosts of this run.
    fn decide(&self, resolved: &Resolved) -> Result<Decision, String> {
        hosts::decide(self.choice.hosts_by, &self.folder(), resolved, |name| std::env::var(name).ok())
    }

    /// What differs under `versiond`: its child is another process than the guard's. Its restart shows in the start time
    /// of its metrics, its absence in the list of children.
    async fn supervised(&self, running: &Running, process: &mut ProcessIdentity) {
        let host = running.surfaces.hosts.iter().find(|host| host.service == process.service);
        let Some(host) = host else { return };
        if let Ok((_, series)) = running.surfaces.metrics(&host.base).await {
            process.metric_start = series.get(METRIC_START).map(f64::to_string);
        }
        let url = host.base.strip_suffix(PROTOCOL).map(|base| format!("{base}healthz"));
        let listed = running.surfaces.json(&url.unwrap_or_default(), false, bound::SMALL, child_runs).await;
        process.ready &= listed.is_ok_and(|(runs, _)| runs);
    }
}

/// Whether the list of children of a `versiond` shows ours as running (contract hosts 1.2).
fn child_runs(list: &Value) -> Result<bool, String> {
    let children = list.as_array().ok_or("no list of children")?;
    let ours = children.iter().find(|child| child["name"] == PROTOCOL);
    Ok(ours.is_some_and(|child| child["status"] == "running"))
}

impl Provider for Real {
    fn about(&self, resolved: &Resolved) -> Stack {
        let storage = match resolved.scenario.devshard.storage {
            Storage::Sqlite => "sqlite",
            Storage::Postgres => "postgres",
        };
        let base =
            "child processes of one guard process, ports chosen by the kernel and kept over restarts; ";
        // Where nothing can be decided, nothing is started.
        let decision = self.decide(resolved).unwrap_or(Decision { versiond: false, why_not: None });
        let hosts = match &decision {
            Decision { versiond: true, .. } => {
                "the gateway listens on every address, as its program does; each host runs under versiond in a network \
                 namespace of its own with one link to this machine"
                    .to_owned()
            }
            Decision { why_not: Some(why), .. } => format!("{BARE}; without versiond: {why}"),
            Decision { why_not: None, .. } => BARE.to_owned(),
        };
        let hosts_by = if decision.versiond { HostsBy::Versiond } else { HostsBy::Devshardd };
        Stack {
            provider: "embedded".to_owned(),
            devshard: DEVSHARD.to_owned(),
            personality: None,
            defect: None,
            storage: storage.to_owned(),
            isolation: format!("{base}{hosts}"),
            hosts_by: Some(hosts_by.word().to_owned()),
        }
    }

    fn programs(&self, _resolved: &Resolved) -> Vec<&'static str> {
        PROGRAMS.to_vec()
    }

    fn cannot_do(&self, resolved: &Resolved) -> Option<String> {
        if let Some(why) = super::no_rewiring(resolved) {
            return Some(why);
        }
        if let Err(why) = self.decide(resolved) {
            return Some(why);
        }
        match resolved.scenario.devshard.storage {
            Storage::Sqlite => None,
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
        Box::pin(async move {
            let mut processes = launch::identities(running, context);
            if self.network.is_some() {
                for process in &mut processes {
                    self.supervised(running, process).await;
                }
            }
            processes
        })
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_child_runs_when_versiond_lists_it_as_running() {
        let one = |name: &str, status: &str| json!([{ "name": name, "port": 5000, "status": status }]);
        assert_eq!(child_runs(&one("v2", "running")), Ok(true));
        assert_eq!(child_runs(&one("v2", "starting")), Ok(false));
        assert_eq!(child_runs(&one("v3", "running")), Ok(false));
        assert_eq!(child_runs(&json!([])), Ok(false), "a child whose preflight fails vanishes from the list");
        assert!(child_runs(&json!({})).is_err());
    }
}

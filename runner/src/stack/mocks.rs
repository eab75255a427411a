//! Our three mocks as child processes at leased ports, the same around the reference Devshard and around real programs.

use std::collections::BTreeMap;
use std::net::SocketAddrV4;
use std::path::PathBuf;

use scenario::control::{ChainConfig, MockConfig};
use scenario::model::Resolved;

use super::embedded::write_work;
use super::fleet::Fleet;
use super::ports::Ports;
use super::{Context, launch};
use crate::collect::ask::Ask;
use crate::collect::counters::Counters;
use crate::collect::snapshot::{Mocks, OpenaiControl};
use crate::control::Control;
use crate::error::RunnerError;

/// Leased addresses of one service by listener name.
pub type Addresses = BTreeMap<String, SocketAddrV4>;

/// Where the mocks listen, known before they run.
#[derive(Clone, Debug)]
pub struct MockSet {
    /// `mock-chain`: `grpc`, `rpc`, `control`.
    pub chain: Addresses,
    /// `mock-dapi`: `http`, `control`, and `grpc:<caller>` for the gateway and each participant.
    pub dapi: Addresses,
    /// `mock-openai`: `control` and `node:<instance>`.
    openai: Addresses,
}

impl MockSet {
    /// Leases every port.
    ///
    /// # Errors
    /// [`RunnerError::Environment`] when there is no port left.
    pub fn lease(ports: &mut Ports, resolved: &Resolved) -> Result<Self, RunnerError> {
        let fixed = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let mut lease = |names: Vec<String>| -> Result<Addresses, RunnerError> {
            names.into_iter().map(|name| Ok((name, ports.lease()?))).collect()
        };
        let chain = lease(fixed(&["grpc", "rpc", "control"]))?;
        let mut names = fixed(&["http", "control", "grpc:gateway"]);
        names.extend((0..resolved.scenario.devshard.participants).map(|index| format!("grpc:host-{index}")));
        let dapi = lease(names)?;
        let mut names = fixed(&["control"]);
        names.extend(resolved.nodes.iter().map(|node| format!("node:{}", node.name)));
        Ok(Self { chain, dapi, openai: lease(names)? })
    }

    /// Base URL of each pool node, by instance.
    #[must_use]
    pub fn node_urls(&self) -> BTreeMap<String, String> {
        let nodes = self.openai.iter();
        nodes
            .filter_map(|(name, address)| {
                Some((name.strip_prefix("node:")?.to_owned(), format!("http://{address}")))
            })
            .collect()
    }

    /// Starts all three without rules and waits until they answer; `extra` gives more arguments by service.
    ///
    /// # Errors
    /// [`RunnerError::Environment`] with the last log lines of the one that does not come up.
    pub async fn start(
        &self,
        fleet: &mut Fleet,
        context: &mut Context<'_>,
        chain: ChainConfig,
        extra: impl Fn(&str) -> Vec<String>,
    ) -> Result<(), RunnerError> {
        let resolved = context.resolved;
        let mut args = extra("mock-chain");
        args.extend(["--state".to_owned(), context.work.join("chain-state.json").display().to_string()]);
        start(fleet, context, "mock-chain", (&MockConfig::Chain(chain), &self.chain), args).await?;
        let config = MockConfig::Openai(scenario::configs::openai_config(resolved, false));
        start(fleet, context, "mock-openai", (&config, &self.openai), extra("mock-openai")).await?;
        let config = MockConfig::Dapi(scenario::configs::dapi_config(resolved, &self.node_urls(), false));
        start(fleet, context, "mock-dapi", (&config, &self.dapi), extra("mock-dapi")).await?;
        for mock in ["mock-chain", "mock-openai", "mock-dapi"] {
            launch::ready(context, mock).await?;
        }
        Ok(())
    }

    /// Control of all.
    #[must_use]
    pub fn controls(&self, ask: &Ask, journal: PathBuf) -> Mocks {
        let control = |addresses: &Addresses| Control::new(ask.clone(), &addresses["control"].to_string());
        let pool = OpenaiControl {
            service: "mock-openai".to_owned(),
            nodes: self.node_urls().into_keys().collect(),
            control: control(&self.openai),
        };
        Mocks {
            openai: vec![pool],
            dapi: Some(control(&self.dapi)),
            chain: Some(control(&self.chain)),
            journal: Some(journal),
            counters: Counters::default(),
        }
    }
}

async fn start(
    fleet: &mut Fleet,
    context: &mut Context<'_>,
    name: &str,
    (config, addresses): (&MockConfig, &Addresses),
    mut args: Vec<String>,
) -> Result<(), RunnerError> {
    context.dir.write_json(&format!("faults/start-{name}.json"), config)?;
    args.extend(["--config".to_owned(), write_work(context, name, config)?]);
    args.extend(launch::journal(context, name));
    for (listener, address) in addresses {
        args.extend(["--port".to_owned(), format!("{listener}={}", address.port())]);
    }
    let spawn = launch::child(context, name, name, args, BTreeMap::new());
    fleet.spawn(context, spawn).await
}

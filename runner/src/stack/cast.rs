//! Who takes part in a stack of child processes: keys, leased addresses and databases of the participants. The same around
//! the reference hosts and around real ones.

use std::collections::BTreeMap;
use std::net::SocketAddrV4;

use evidence::redact::Redactor;
use scenario::control::ChainConfig;
use scenario::model::{Resolved, Storage};

use super::Context;
use super::fleet::Fleet;
use super::ports::Ports;
use super::postgres::{self, Databases};
use super::reference::{Identity, Keys, chain_config};
use crate::error::RunnerError;

/// A process and its leased address.
pub struct Member {
    /// Service name.
    pub service: String,
    /// Where it listens.
    pub address: SocketAddrV4,
}

/// A participant: its key, its processes, and where its neighbours reach it.
pub struct Participant {
    /// Its name in the scenario.
    pub host: String,
    /// Key.
    pub identity: Identity,
    /// Processes.
    pub replicas: Vec<Member>,
    /// The router in front of them.
    pub router: Option<Member>,
}

impl Participant {
    fn url(&self) -> String {
        let address = self.router.as_ref().map_or(self.replicas[0].address, |router| router.address);
        format!("http://{address}")
    }

    /// What its router reads.
    #[must_use]
    pub fn upstreams(&self) -> Vec<String> {
        self.replicas.iter().map(|replica| replica.address.to_string()).collect()
    }
}

/// Everybody, before anything of Devshard runs.
pub struct Cast {
    /// Keys of the run.
    pub keys: Keys,
    /// Participants in order.
    pub participants: Vec<Participant>,
    /// Postgres URL of each, by name; empty without Postgres.
    pub postgres: BTreeMap<String, String>,
}

impl Cast {
    /// Fresh keys, kept out of every file from now on; a leased port for each process; a database for each participant where
    /// the scenario has Postgres. `routed` puts a router in front of a lone process, too.
    ///
    /// # Errors
    /// [`RunnerError`] when there is no port left, or Postgres does not come up.
    pub async fn assemble(
        fleet: &mut Fleet,
        ports: &mut Ports,
        routed: bool,
        context: &mut Context<'_>,
    ) -> Result<Self, RunnerError> {
        let resolved = context.resolved;
        let keys = Keys::fresh(resolved)?;
        let participants = participants(resolved, &keys, routed, ports)?;
        let source = match resolved.scenario.devshard.storage {
            Storage::Sqlite => None,
            Storage::Postgres => {
                Some(postgres::find(|name| std::env::var(name).ok()).map_err(RunnerError::CannotDo)?)
            }
        };
        let mut secrets = keys.secrets();
        secrets.extend(source.iter().flat_map(Databases::secrets));
        context.dir.set_redactor(Redactor::new(secrets));
        let postgres = match source {
            Some(source) => {
                let hosts: Vec<&str> = participants.iter().map(|one| one.host.as_str()).collect();
                fleet.open_databases(context, source, &hosts).await?
            }
            None => BTreeMap::new(),
        };
        Ok(Self { keys, participants, postgres })
    }

    /// What the chain knows before anything runs: all ports are leased, so it can name every address.
    #[must_use]
    pub fn chain(&self, resolved: &Resolved) -> ChainConfig {
        let known = self.participants.iter().map(|one| (one.identity.address.clone(), one.url())).collect();
        chain_config(resolved, &self.keys.creator, &self.keys.hosts, &known)
    }
}

fn participants(
    resolved: &Resolved,
    keys: &Keys,
    routed: bool,
    ports: &mut Ports,
) -> Result<Vec<Participant>, RunnerError> {
    let count = resolved.scenario.devshard.replicas;
    let mut member = |service: String| Ok::<_, RunnerError>(Member { service, address: ports.lease()? });
    let mut participants = Vec::new();
    for (index, identity) in keys.hosts.iter().enumerate() {
        let host = format!("host-{index}");
        let name = |replica| if count > 1 { format!("{host}-{replica}") } else { host.clone() };
        let replicas = (0..count).map(|replica| member(name(replica))).collect::<Result<_, _>>()?;
        let router = if routed || count > 1 { Some(member(format!("router-{index}"))?) } else { None };
        participants.push(Participant { host, identity: identity.clone(), replicas, router });
    }
    Ok(participants)
}

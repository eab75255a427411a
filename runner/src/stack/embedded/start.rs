//! Starting the embedded stack in its order, with fresh keys.

use std::collections::BTreeMap;
use std::net::SocketAddrV4;
use std::time::Duration;

use evidence::redact::Redactor;
use scenario::model::{Resolved, Storage};
use serde::Serialize;
use serde_json::json;

use super::{DEFECTS, Embedded, MODEL};
use crate::collect::ask::Ask;
use crate::collect::{Escrows, HostSurface, Surfaces};
use crate::error::RunnerError;
use crate::stack::mocks::{Addresses, MockSet};
use crate::stack::postgres::{self, Databases};
use crate::stack::reference::{Identity, chain_config, random};
use crate::stack::{Choice, Context, Running, launch};

/// Validation leases run out soon, so that a run of seconds sees it (30 min and 5 min on a real host).
const LEASE_TTL: Duration = Duration::from_secs(3);
const LEASE_RETRY: Duration = Duration::from_millis(250);

/// One process of a participant.
struct Replica {
    service: String,
    address: SocketAddrV4,
}

/// A participant: its key, its processes, and where its neighbours reach it.
struct Participant {
    host: String,
    identity: Identity,
    replicas: Vec<Replica>,
    /// The router in front of several replicas.
    router: Option<Replica>,
}

impl Participant {
    fn url(&self) -> String {
        let address = self.router.as_ref().map_or(self.replicas[0].address, |router| router.address);
        format!("http://{address}")
    }
}

impl Embedded {
    /// Starts everything and waits until every program is ready.
    ///
    /// # Errors
    /// [`RunnerError::Environment`] with the program's last log lines when one does not come up.
    pub(super) async fn start_all(&mut self, context: &mut Context<'_>) -> Result<Running, RunnerError> {
        let resolved = context.resolved;
        let creator = Identity::fresh()?;
        let admin_key = hex::encode(random::<24>()?);
        let participants = self.participants(resolved)?;
        let mut secrets: Vec<String> =
            participants.iter().map(|participant| participant.identity.key_hex.clone()).collect();
        secrets.extend([creator.key_hex.clone(), admin_key.clone()]);
        let source = match resolved.scenario.devshard.storage {
            Storage::Sqlite => None,
            Storage::Postgres => {
                Some(postgres::find(|name| std::env::var(name).ok()).map_err(RunnerError::CannotDo)?)
            }
        };
        secrets.extend(source.iter().flat_map(Databases::secrets));
        context.dir.set_redactor(Redactor::new(secrets));
        let urls = match source {
            Some(source) => {
                let hosts: Vec<&str> = participants.iter().map(|one| one.host.as_str()).collect();
                self.fleet.open_databases(context, source, &hosts).await?
            }
            None => BTreeMap::new(),
        };
        let ask = Ask::new().map_err(RunnerError::environment)?;

        let mocks = MockSet::lease(&mut self.ports, resolved)?;
        // The chain knows every participant's address before anything runs: all ports are leased.
        let owners: Vec<Identity> = participants.iter().map(|one| one.identity.clone()).collect();
        let known = participants.iter().map(|one| (one.identity.address.clone(), one.url())).collect();
        let chain = chain_config(resolved, &creator, &owners, &known);
        let choice = &self.choice;
        mocks.start(&mut self.fleet, context, chain, |service| planted(choice, service)).await?;
        // A gateway asks only the chain when it starts: it comes up beside the hosts.
        let hosts = self.hosts(context, &participants, (&mocks.chain, &mocks.dapi), &urls).await?;
        let gateway = self.gateway(context, &creator, &admin_key, (&mocks.chain, &mocks.dapi)).await?;
        let routers = participants.iter().filter_map(|participant| participant.router.as_ref());
        let started = hosts.iter().map(|host| &host.service).chain(routers.map(|router| &router.service));
        for service in started.map(String::as_str).chain(["gateway"]) {
            launch::ready(context, service).await?;
        }
        Ok(Running {
            mocks: mocks.controls(&ask, launch::journals(context)),
            surfaces: Surfaces {
                ask,
                gateway: format!("http://{gateway}"),
                admin_key,
                hosts,
                session_prefix: "/devshard/v2".to_owned(),
                escrows: Escrows::first(resolved.scenario.devshard.escrows),
                requests_max: resolved.requests_max,
                perf_db: None,
            },
            node_urls: mocks.node_urls(),
            postgres: urls,
            lease_ttl: Some(LEASE_TTL),
            model: MODEL.to_owned(),
            required: self.fleet.services.iter().map(|spawn| spawn.service.clone()).collect(),
            waits_s: (0, 0),
        })
    }

    fn participants(&mut self, resolved: &Resolved) -> Result<Vec<Participant>, RunnerError> {
        let devshard = &resolved.scenario.devshard;
        let mut participants = Vec::new();
        for index in 0..devshard.participants {
            let host = format!("host-{index}");
            let mut replicas = Vec::new();
            for replica in 0..devshard.replicas {
                let service = if devshard.replicas > 1 { format!("{host}-{replica}") } else { host.clone() };
                replicas.push(Replica { service, address: self.ports.lease()? });
            }
            let router = if devshard.replicas > 1 {
                Some(Replica { service: format!("router-{index}"), address: self.ports.lease()? })
            } else {
                None
            };
            participants.push(Participant { host, identity: Identity::fresh()?, replicas, router });
        }
        Ok(participants)
    }

    async fn hosts(
        &mut self,
        context: &mut Context<'_>,
        participants: &[Participant],
        (chain, dapi): (&Addresses, &Addresses),
        postgres: &BTreeMap<String, String>,
    ) -> Result<Vec<HostSurface>, RunnerError> {
        let mut surfaces = Vec::new();
        for participant in participants {
            for replica in &participant.replicas {
                let config = json!({
                    "host": participant.host,
                    "listen": replica.address.to_string(),
                    "chain_grpc": chain["grpc"].to_string(),
                    "chain_rpc": chain["rpc"].to_string(),
                    "dapi_grpc": dapi[&format!("grpc:{}", participant.host)].to_string(),
                    // Replicas have one durable copy between them (contract hosts 6.5).
                    "database": context.work.join(format!("{}.db", participant.host)),
                    "personality": self.choice.personality,
                    "lease_ttl_ms": LEASE_TTL.as_millis(),
                    "lease_retry_ms": LEASE_RETRY.as_millis(),
                });
                let mut args = Vec::new();
                if let Some(url) = postgres.get(&participant.host) {
                    args.extend(["--postgres-url".to_owned(), url.clone()]);
                }
                let key = participant.identity.key_hex.clone();
                let env = BTreeMap::from([("PROOFLOAD_HOST_KEY".to_owned(), key)]);
                self.configured(context, ("ref-host", &replica.service), &config, args, env).await?;
                surfaces.push(HostSurface {
                    service: replica.service.clone(),
                    base: format!("http://{}", replica.address),
                    participant: participant.identity.address.clone(),
                });
            }
        }
        for participant in participants {
            let Some(router) = &participant.router else { continue };
            let upstreams: Vec<String> =
                participant.replicas.iter().map(|replica| replica.address.to_string()).collect();
            let config = json!({"listen": router.address.to_string(), "upstreams": upstreams});
            let program = ("ref-router", router.service.as_str());
            self.configured(context, program, &config, Vec::new(), BTreeMap::new()).await?;
        }
        Ok(surfaces)
    }

    async fn gateway(
        &mut self,
        context: &mut Context<'_>,
        creator: &Identity,
        admin_key: &str,
        (chain, dapi): (&Addresses, &Addresses),
    ) -> Result<SocketAddrV4, RunnerError> {
        let address = self.ports.lease()?;
        let escrows: Vec<u32> = (1..=context.resolved.scenario.devshard.escrows).collect();
        let config = json!({
            "escrow_ids": escrows,
            "model": MODEL,
            "listen": address.to_string(),
            "chain_grpc": chain["grpc"].to_string(),
            "public_api": format!("http://{}", dapi["http"]),
            "database_dir": context.work.join("gateway"),
            "personality": self.choice.personality,
        });
        let env = BTreeMap::from([
            ("PROOFLOAD_CREATOR_KEY".to_owned(), creator.key_hex.clone()),
            ("PROOFLOAD_ADMIN_KEY".to_owned(), admin_key.to_owned()),
        ]);
        self.configured(context, ("ref-gateway", "gateway"), &config, Vec::new(), env).await?;
        Ok(address)
    }

    async fn configured(
        &mut self,
        context: &mut Context<'_>,
        (program, service): (&str, &str),
        config: &impl Serialize,
        mut args: Vec<String>,
        env: BTreeMap<String, String>,
    ) -> Result<(), RunnerError> {
        args.extend(["--config".to_owned(), write_work(context, service, config)?]);
        self.spawn(context, program, service, args, env).await
    }

    async fn spawn(
        &mut self,
        context: &mut Context<'_>,
        program: &str,
        service: &str,
        mut args: Vec<String>,
        env: BTreeMap<String, String>,
    ) -> Result<(), RunnerError> {
        args.extend(planted(&self.choice, service));
        let spawn = launch::child(context, program, service, args, env);
        self.fleet.spawn(context, spawn).await
    }
}

/// The flag of a planted defect, for the service that it sits in: the first process of a participant.
fn planted(choice: &Choice, service: &str) -> Vec<String> {
    let host = service.strip_suffix("-0").filter(|host| host.starts_with("host-")).unwrap_or(service);
    let sits_here = |defect: &str| DEFECTS.contains(&(defect, service)) || DEFECTS.contains(&(defect, host));
    let defect = choice.defect.as_deref().filter(|defect| sits_here(defect));
    defect.map(|defect| vec!["--defect".to_owned(), defect.to_owned()]).unwrap_or_default()
}

/// Writes a configuration into the private directory and gives its path.
///
/// # Errors
/// [`RunnerError::Environment`] when it can't be written.
pub(in crate::stack) fn write_work(
    context: &Context<'_>,
    service: &str,
    config: &impl Serialize,
) -> Result<String, RunnerError> {
    let file = context.work.join(format!("{service}.json"));
    let text = serde_json::to_vec_pretty(config).map_err(|error| RunnerError::Internal(error.to_string()))?;
    std::fs::write(&file, text)
        .map_err(|error| RunnerError::environment(format!("writing {}: {error}", file.display())))?;
    Ok(file.display().to_string())
}

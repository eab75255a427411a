//! Starting the embedded stack in its order, with fresh keys.

use std::collections::BTreeMap;
use std::net::SocketAddrV4;

use serde::Serialize;
use serde_json::json;

use super::{DEFECTS, Embedded, MODEL};
use crate::collect::ask::Ask;
use crate::collect::{Escrows, HostSurface, Surfaces};
use crate::error::RunnerError;
use crate::stack::cast::Cast;
use crate::stack::mocks::{Addresses, MockSet};
use crate::stack::reference::{Keys, LEASE_RETRY, LEASE_TTL};
use crate::stack::{Choice, Context, Running, launch};

impl Embedded {
    /// Starts everything and waits until every program is ready.
    ///
    /// # Errors
    /// [`RunnerError::Environment`] with the program's last log lines when one does not come up.
    pub(super) async fn start_all(&mut self, context: &mut Context<'_>) -> Result<Running, RunnerError> {
        let resolved = context.resolved;
        let cast = Cast::assemble(&mut self.fleet, &mut self.ports, false, context).await?;
        let ask = Ask::new().map_err(RunnerError::environment)?;

        let mocks = MockSet::lease(&mut self.ports, resolved)?;
        let choice = &self.choice;
        let chain = cast.chain(resolved);
        mocks.start(&mut self.fleet, context, chain, |service| planted(choice, service)).await?;
        // A gateway asks only the chain when it starts: it comes up beside the hosts.
        let hosts = self.hosts(context, &cast, (&mocks.chain, &mocks.dapi)).await?;
        let gateway = self.gateway(context, &cast.keys, (&mocks.chain, &mocks.dapi)).await?;
        let routers = cast.participants.iter().filter_map(|participant| participant.router.as_ref());
        let started = hosts.iter().map(|host| &host.service).chain(routers.map(|router| &router.service));
        for service in started.map(String::as_str).chain(["gateway"]) {
            launch::ready(context, service).await?;
        }
        Ok(Running {
            mocks: mocks.controls(&ask, launch::journals(context)),
            surfaces: Surfaces {
                ask,
                gateway: format!("http://{gateway}"),
                admin_key: cast.keys.admin,
                hosts,
                session_prefix: "/devshard/v2".to_owned(),
                escrows: Escrows::first(resolved.scenario.devshard.escrows),
                requests_max: resolved.requests_max,
                perf_db: None,
            },
            node_urls: mocks.node_urls(),
            postgres: cast.postgres,
            lease_ttl: Some(LEASE_TTL),
            model: MODEL.to_owned(),
            required: self.fleet.services.iter().map(|spawn| spawn.service.clone()).collect(),
            waits_s: (0, 0),
        })
    }

    async fn hosts(
        &mut self,
        context: &mut Context<'_>,
        cast: &Cast,
        (chain, dapi): (&Addresses, &Addresses),
    ) -> Result<Vec<HostSurface>, RunnerError> {
        let mut surfaces = Vec::new();
        for participant in &cast.participants {
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
                if let Some(url) = cast.postgres.get(&participant.host) {
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
        for participant in &cast.participants {
            let Some(router) = &participant.router else { continue };
            let config = json!({"listen": router.address.to_string(), "upstreams": participant.upstreams()});
            let program = ("ref-router", router.service.as_str());
            self.configured(context, program, &config, Vec::new(), BTreeMap::new()).await?;
        }
        Ok(surfaces)
    }

    async fn gateway(
        &mut self,
        context: &mut Context<'_>,
        keys: &Keys,
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
            ("PROOFLOAD_CREATOR_KEY".to_owned(), keys.creator.key_hex.clone()),
            ("PROOFLOAD_ADMIN_KEY".to_owned(), keys.admin.clone()),
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

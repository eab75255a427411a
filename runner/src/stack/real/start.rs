//! Starting real programs in the order that their boot needs: mocks, hosts, a router in front of each, gateway
//! (contract gateway 1.1 and 1.2, contract mocks 1.4 and 5.3).

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use evidence::event::EventKind;
use serde_json::{Value, json};
use wire::keyring::{RANDOM_BYTES, TEST_FOLDER, test_backend_files};
use wire::keys::PrivateKey;

use super::super::cast::{Cast, Member, Participant};
use super::super::embedded::{MODEL, write_work};
use super::super::fleet::{Probe, answering};
use super::super::mocks::MockSet;
use super::super::ports::Ports;
use super::super::reference::{CHAIN_ID, Identity, Keys, random};
use super::super::{Context, Running, launch};
use super::Real;
use super::hosts::{LeaseSetting, VERSIOND_PORT, leases};
use super::network::Network;
use super::programs::{PROTOCOL, Theirs, look};
use crate::collect::ask::{Ask, bound};
use crate::collect::{Escrows, HostSurface, Surfaces};
use crate::error::RunnerError;
use crate::guard::Spawn;
use crate::life::preflight::{Finding, host_rate};

/// Where a host program answers under `versiond`, and what the router in front of that takes off a path; a bare host knows
/// its paths without its version.
const CHILD_HEALTH: &str = "/v2/healthz";
const PUBLIC_PREFIX: &str = "/devshard";
/// How often `versiond` asks the allocator for versions.
const POLL_INTERVAL: &str = "5s";

/// What every program of others is started with.
struct Stage<'a> {
    theirs: &'a Theirs,
    mocks: &'a MockSet,
    http: &'a reqwest::Client,
    /// This machine's address as hosts see it.
    ours: Ipv4Addr,
    leases: Option<&'a LeaseSetting>,
}

impl Real {
    /// Starts everything and waits until every program answers.
    ///
    /// # Errors
    /// [`RunnerError::Environment`] with the last log lines of what did not come up.
    pub(super) async fn start_all(&mut self, context: &mut Context<'_>) -> Result<Running, RunnerError> {
        let theirs = self.look(context).await?;
        let resolved = context.resolved;
        let rate = host_rate(resolved);
        if rate.finding == Finding::Note {
            context.dispatcher.view.line(&format!("warning: {}", rate.text));
            context.dispatcher.log(EventKind::Note { text: rate.text })?;
        }
        // Gateway and hosts write `/devshard/<version>`, which a bare host does not know: a lone process needs a router.
        if theirs.versiond.is_some() {
            self.link(context).await?;
        }
        let mut cast = Cast::assemble(&mut self.fleet, &mut self.host_ports, true, context).await?;
        for replica in cast.participants.iter_mut().flat_map(|one| &mut one.replicas) {
            if let Some(namespace) = self.namespaces.get(&replica.service) {
                replica.address = SocketAddrV4::new(namespace.address, VERSIOND_PORT);
            }
        }
        let leases = self.lease_setting(context)?;
        let ask = Ask::new().map_err(RunnerError::environment)?;
        let mocks = MockSet::lease(&mut self.host_ports, resolved)?;
        let chain = cast.chain(resolved);
        let ours = self.host_ports.ip();
        let listen = |_: &str| vec!["--listen".to_owned(), ours.to_string()];
        mocks.start(&mut self.fleet, context, chain, listen).await?;
        let stage =
            Stage { theirs: &theirs, mocks: &mocks, http: ask.client(), ours, leases: leases.as_ref() };
        let hosts = self.hosts(context, &stage, &cast.participants).await?;
        let gateway = self.gateway(context, &stage, &cast.keys).await?;
        let build = build_of(&ask, &gateway, &cast.keys.admin).await;
        note_ready(context, "gateway", &build)?;
        Ok(Running {
            mocks: mocks.controls(&ask, launch::journals(context)),
            surfaces: Surfaces {
                ask,
                gateway,
                admin_key: cast.keys.admin,
                hosts,
                session_prefix: String::new(),
                escrows: Escrows::first(resolved.scenario.devshard.escrows),
                requests_max: resolved.requests_max,
                perf_db: Some(gateway_data(context.work).join("perf.db")),
            },
            node_urls: mocks.node_urls(),
            lease_ttl: leases.map(|leases| leases.ttl),
            postgres: cast.postgres,
            model: MODEL.to_owned(),
            required: self.fleet.services.iter().map(|spawn| spawn.service.clone()).collect(),
            waits_s: (0, 0),
        })
    }

    /// The user's programs, and what starts the hosts; a choice that nobody made is said aloud.
    async fn look(&self, context: &mut Context<'_>) -> Result<Theirs, RunnerError> {
        let decision = self.decide(context.resolved).map_err(RunnerError::CannotDo)?;
        if let Some(why) = &decision.why_not {
            let text = format!("devshardd runs without versiond: {why}");
            context.dispatcher.view.line(&text);
            context.dispatcher.log(EventKind::Note { text })?;
        }
        look(&self.folder(), decision.versiond).await
    }

    /// Makes the namespace of every host. This comes before any port is leased: this machine's address on the links
    /// exists with them.
    async fn link(&mut self, context: &mut Context<'_>) -> Result<(), RunnerError> {
        let devshard = &context.resolved.scenario.devshard;
        let mut network = Network::open(context)?;
        for participant in 0..devshard.participants {
            for replica in 0..devshard.replicas {
                let host = format!("host-{participant}");
                let service = if devshard.replicas > 1 { format!("{host}-{replica}") } else { host };
                let namespace = network.add(&service, context).await?;
                self.namespaces.insert(service, namespace);
            }
        }
        self.host_ports = Ports::on(network.ours());
        self.network = Some(network);
        Ok(())
    }

    /// How leases are set on the hosts of a run on Postgres.
    fn lease_setting(&self, context: &mut Context<'_>) -> Result<Option<LeaseSetting>, RunnerError> {
        if self.fleet.databases.is_none() {
            return Ok(None);
        }
        let replicas = context.resolved.scenario.devshard.replicas;
        let leases = leases(replicas, |name| std::env::var(name).ok()).map_err(RunnerError::Usage)?;
        let text = format!("a validation lease holds {} ms on every host", leases.ttl.as_millis());
        context.dispatcher.log(EventKind::Note { text })?;
        Ok(Some(leases))
    }

    /// Base of the paths of a host.
    fn base(&self, host: &Member) -> String {
        let version = self.namespaces.get(&host.service).map_or_else(String::new, |_| format!("/{PROTOCOL}"));
        format!("http://{}{version}", host.address)
    }

    /// Program and arguments, inside its namespace where the service has one.
    fn command(&self, service: &str, program: &Path, args: Vec<String>) -> (PathBuf, Vec<String>) {
        let Some(namespace) = self.namespaces.get(service) else { return (program.to_path_buf(), args) };
        let mut words = namespace.inside(&[&program.display().to_string()]);
        words.extend(args);
        (PathBuf::from(words.remove(0)), words)
    }

    async fn hosts(
        &mut self,
        context: &mut Context<'_>,
        stage: &Stage<'_>,
        participants: &[Participant],
    ) -> Result<Vec<HostSurface>, RunnerError> {
        // Twins that make the tables of one database at the same moment can break one another (finding J24): each begins
        // when the one before it answers. Participants have databases of their own and don't wait.
        let rounds =
            participants.iter().map(|participant| participant.replicas.len()).max().unwrap_or_default();
        for round in 0..rounds {
            let of_round = || participants.iter().filter_map(|of| Some((of, of.replicas.get(round)?)));
            for (participant, replica) in of_round() {
                self.host(context, stage, participant, replica).await?;
            }
            for (_, replica) in of_round() {
                if let Some(probe) = self.fleet.probes.get(&replica.service) {
                    answering(probe, &replica.service, context).await?;
                }
                note_ready(context, &replica.service, &stage.theirs.host_build)?;
            }
        }
        let mut surfaces = Vec::new();
        for participant in participants {
            self.router(context, participant).await?;
            // Looked at past the router, so that every replica shows its own state.
            surfaces.extend(participant.replicas.iter().map(|replica| HostSurface {
                service: replica.service.clone(),
                base: self.base(replica),
                participant: participant.identity.address.clone(),
            }));
        }
        Ok(surfaces)
    }

    /// Environment of a host (contract mocks 1.4, contract hosts 1.3). A folder of its own, and with Postgres a database
    /// for each participant: a shared one breaks all but one of them (finding J13).
    async fn host(
        &mut self,
        context: &mut Context<'_>,
        stage: &Stage<'_>,
        participant: &Participant,
        replica: &Member,
    ) -> Result<(), RunnerError> {
        let service = &replica.service;
        let keyring = write_keyring(context.work, service, &participant.identity)?;
        let (chain, dapi) = (&stage.mocks.chain, &stage.mocks.dapi);
        let env = [
            ("NODE_HOST", stage.ours.to_string()),
            ("NODE_GRPC_URL", chain["grpc"].to_string()),
            ("NODE_RPC_URL", format!("http://{}", chain["rpc"])),
            ("NODE_MANAGER_ADDR", dapi[&format!("grpc:{}", participant.host)].to_string()),
            // Without it the host asks the chain for its id before anything else.
            ("CHAIN_ID", CHAIN_ID.to_owned()),
            ("KEYRING_BACKEND", "test".to_owned()),
            ("KEYRING_DIR", keyring.display().to_string()),
            ("KEY_NAME", service.clone()),
            // Newer builds refuse peers on private addresses otherwise; older ones do not know the name.
            ("DEVSHARD_ALLOW_PRIVATE_ADDRESSES", "true".to_owned()),
        ];
        let mut env: BTreeMap<String, String> =
            env.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        if let Some(databases) = &self.fleet.databases {
            env.extend(databases.variables(&participant.host));
            env.insert("DEVSHARD_REQUIRE_POSTGRES".to_owned(), "true".to_owned());
        }
        env.extend(stage.leases.into_iter().flat_map(|leases| leases.variables.clone()));
        let data = context.work.join(format!("{service}-data"));
        make_dir(&data)?;
        let Some(versiond) = &stage.theirs.versiond else {
            let port = replica.address.port().to_string();
            let args = vec!["--port".to_owned(), port, "--data-dir".to_owned(), data.display().to_string()];
            return self.theirs(context, stage, (&stage.theirs.host, replica, "/healthz"), args, env).await;
        };
        let versions = context.work.join(format!("{service}-versions"));
        make_dir(&versions)?;
        env.extend(supervised(stage, &data, &versions));
        self.theirs(context, stage, (versiond, replica, CHILD_HEALTH), Vec::new(), env).await
    }

    async fn router(
        &mut self,
        context: &mut Context<'_>,
        participant: &Participant,
    ) -> Result<(), RunnerError> {
        let Some(router) = &participant.router else { return Ok(()) };
        let config = json!({
            "listen": router.address.to_string(),
            "upstreams": participant.upstreams(),
            // The version is what `versiond` chooses its child by.
            "strip_prefix": match self.network {
                Some(_) => PUBLIC_PREFIX.to_owned(),
                None => format!("{PUBLIC_PREFIX}/{PROTOCOL}"),
            },
        });
        let args = vec!["--config".to_owned(), write_work(context, &router.service, &config)?];
        let spawn = launch::child(context, "ref-router", &router.service, args, BTreeMap::new());
        self.fleet.spawn(context, spawn).await?;
        launch::ready(context, &router.service).await?;
        Ok(())
    }

    /// Environment of the gateway (contract gateway 1.2). The data folder is fresh: an old one would win over all of
    /// this. Answers its base URL.
    async fn gateway(
        &mut self,
        context: &mut Context<'_>,
        stage: &Stage<'_>,
        keys: &Keys,
    ) -> Result<String, RunnerError> {
        const KEY_ENV: &str = "DEVSHARD_PRIVATE_KEY";
        let member = Member { service: "gateway".to_owned(), address: self.ports.lease()? };
        let escrow = |id: u32| json!({ "id": id.to_string(), "private_key_env": KEY_ENV, "model": MODEL });
        let escrows: Value = (1..=context.resolved.scenario.devshard.escrows).map(escrow).collect();
        let data = gateway_data(context.work);
        make_dir(&data)?;
        let (chain, dapi) = (&stage.mocks.chain, &stage.mocks.dapi);
        let env = [
            ("DEVSHARD_PORT", member.address.port().to_string()),
            ("DEVSHARD_STORAGE_DIR", data.display().to_string()),
            ("DEVSHARD_CHAIN_GRPC", chain["grpc"].to_string()),
            ("DEVSHARD_NODE_MANAGER_ADDR", dapi["grpc:gateway"].to_string()),
            ("DEVSHARD_PUBLIC_API", format!("http://{}", dapi["http"])),
            ("DEVSHARD_CHAIN_ID", CHAIN_ID.to_owned()),
            ("DEVSHARD_MODEL", MODEL.to_owned()),
            ("DEVSHARDS_JSON", escrows.to_string()),
            (KEY_ENV, keys.creator.key_hex.clone()),
            ("DEVSHARD_ADMIN_API_KEY", keys.admin.clone()),
            ("DEVSHARD_ALLOW_PRIVATE_ADDRESSES", "true".to_owned()),
        ];
        let env = env.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        let program = (stage.theirs.gateway.as_path(), &member, "/v1/status");
        self.theirs(context, stage, program, Vec::new(), env).await?;
        if let Some(probe) = self.fleet.probes.get("gateway") {
            answering(probe, "gateway", context).await?;
        }
        Ok(format!("http://{}", member.address))
    }

    /// Starts a program of others and keeps where it answers.
    async fn theirs(
        &mut self,
        context: &mut Context<'_>,
        stage: &Stage<'_>,
        (program, member, path): (&Path, &Member, &'static str),
        args: Vec<String>,
        env: BTreeMap<String, String>,
    ) -> Result<(), RunnerError> {
        let service = member.service.clone();
        let log = context.dir.path(&launch::log_file(&service));
        let probe = Probe { http: stage.http.clone(), address: member.address, path };
        self.fleet.probes.insert(service.clone(), probe);
        let (program, args) = self.command(&service, program, args);
        let spawn = Spawn { service, program, args, env, log, user: None, stdout_to_log: true };
        self.fleet.spawn(context, spawn).await
    }
}

/// What `versiond` needs to know beside what it hands on to its child (contract hosts 1.2, mocks 1.3): one version, from
/// the user's folder, whatever the allocator offers.
fn supervised(stage: &Stage<'_>, data: &Path, versions: &Path) -> BTreeMap<String, String> {
    let env = [
        ("VERSIOND_ORACLE_URL", format!("http://{}/versions", stage.mocks.dapi["http"])),
        ("VERSIOND_POLL_INTERVAL", POLL_INTERVAL.to_owned()),
        ("VERSIOND_BIN_DIR", versions.display().to_string()),
        ("VERSIOND_DATA_DIR", data.display().to_string()),
        ("VERSIOND_BINARY_NAME", "devshardd".to_owned()),
        ("VERSIOND_FORCE", PROTOCOL.to_owned()),
    ];
    let chosen = (format!("VERSIOND_OVERRIDE_{PROTOCOL}"), stage.theirs.host.display().to_string());
    env.into_iter().map(|(name, value)| (name.to_owned(), value)).chain([chosen]).collect()
}

fn gateway_data(work: &Path) -> PathBuf {
    work.join("gateway-data")
}

/// A program of others is ready: it prints no line that says so.
fn note_ready(context: &mut Context<'_>, service: &str, build: &str) -> Result<(), RunnerError> {
    let (pid, start_ticks) =
        context.dispatcher.services.get(service).map_or((0, 0), |state| (state.pid, state.start_ticks));
    context.dispatcher.log(EventKind::ProcessReady {
        service: service.to_owned(),
        pid,
        start_ticks,
        addresses: BTreeMap::new(),
        build: build.to_owned(),
    })
}

/// The generation of a gateway by the settings that it shows, one flag each (contract gateway 10.1).
async fn build_of(ask: &Ask, gateway: &str, admin_key: &str) -> String {
    let request = ask.client().get(format!("{gateway}/v1/admin/settings")).bearer_auth(admin_key);
    let Ok((_, text)) = ask.send(request, bound::SMALL).await else {
        return "unknown: settings are not shown".to_owned();
    };
    generation(&serde_json::from_slice(&text).unwrap_or_default()).to_owned()
}

fn generation(settings: &Value) -> &'static str {
    let text = settings.to_string();
    match (
        text.contains("\"force_upstream_streaming\""),
        text.contains("\"non_stream_no_content_timeout_ms\""),
    ) {
        (true, _) => "newer",
        (false, true) => "july",
        (false, false) => "unknown: neither generation's settings are shown",
    }
}

/// The key of a host as the keyring backend `test` keeps it. The folder is private and never evidence.
///
/// # Errors
/// [`RunnerError::Environment`] when a file can't be written.
pub(in crate::stack) fn write_keyring(
    work: &Path,
    service: &str,
    host: &Identity,
) -> Result<PathBuf, RunnerError> {
    let root = work.join(format!("{service}-keyring"));
    let folder = root.join(TEST_FOLDER);
    make_dir(&root)?;
    make_dir(&folder)?;
    let internal = |error: &dyn std::fmt::Display| RunnerError::Internal(format!("keyring: {error}"));
    let key = PrivateKey::from_hex(&host.key_hex).map_err(|error| internal(&error))?;
    let salt = random::<RANDOM_BYTES>()?;
    let files = test_backend_files(service, &key, &salt).map_err(|error| internal(&error))?;
    for file in files {
        let path = folder.join(&file.name);
        let write = || {
            let mut options = std::fs::OpenOptions::new();
            let mut out = options.write(true).create_new(true).mode(0o600).open(&path)?;
            std::io::Write::write_all(&mut out, file.content.as_bytes())
        };
        write().map_err(|error| RunnerError::environment(format!("writing {}: {error}", path.display())))?;
    }
    Ok(root)
}

fn make_dir(path: &Path) -> Result<(), RunnerError> {
    let make = || {
        std::fs::create_dir(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700))
    };
    make().map_err(|error| RunnerError::environment(format!("making {}: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generations_are_told_apart_by_their_own_settings() {
        assert_eq!(generation(&json!({"redundancy": {"non_stream_no_content_timeout_ms": 1}})), "july");
        assert_eq!(generation(&json!({"force_upstream_streaming": true})), "newer");
        assert!(generation(&json!({})).starts_with("unknown"));
    }

    #[test]
    fn the_keyring_holds_the_hosts_key_for_nobody_else() {
        let work = tempfile::tempdir().unwrap();
        let host = Identity::fresh().unwrap();
        let folder = write_keyring(work.path(), "host-0", &host).unwrap().join(TEST_FOLDER);
        let file = folder.join("host-0.info");
        let content = std::fs::read_to_string(&file).unwrap();
        let (name, key) = wire::keyring::read_key_file(&content, "test").unwrap();
        assert_eq!((name.as_str(), key.expose_hex()), ("host-0", host.key_hex));
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(folder).unwrap().count(), 2);
    }
}

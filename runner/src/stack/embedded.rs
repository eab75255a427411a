//! The embedded stack: mocks and the reference Devshard as child processes on loopback (design section 4).
//!
//! Every program binds port 0 and says where it listens; nobody picks a port. Order: chain and nodes, allocator,
//! hosts, participants' URLs into the chain, gateway. Faults are off until the run's fault step.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use evidence::event::EventKind;
use evidence::redact::Redactor;
use evidence::run::Stack;
use evidence::rundir::{LOGS, RunDir};
use scenario::build::BUILD_ID;
use scenario::control::{ChainConfig, ChainEscrow, ChainParticipant, MockConfig, basis_points};
use scenario::model::{Resolved, Storage};
use scenario::ready::ReadyLine;
use scenario::units::Micros;
use serde_json::{Value, json};

use super::Running;
use super::programs::Programs;
use crate::clock::random_bytes;
use crate::collect::snapshot::Mocks;
use crate::collect::{HostSurface, Surfaces};
use crate::control::{Control, client};
use crate::error::RunnerError;
use crate::guard::Spawn;
use crate::guard::client::Guard;
use crate::life::dispatcher::Dispatcher;

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
    ("lost-accounting", "ref-gateway"),
    ("record-failed-on-200", "ref-gateway"),
    ("reuse-nonce", "ref-gateway"),
    ("drop-id-on-error", "ref-gateway"),
    ("lookup-404", "ref-gateway"),
    ("double-done", "ref-gateway"),
    ("fail-unselected", "ref-gateway"),
    ("stuck-gauge", "ref-gateway"),
];
/// How long a program may take until its ready line.
const READY_LIMIT: Duration = Duration::from_secs(20);
/// Log lines shown when a program fails.
const LOG_TAIL: usize = 20;
/// Balance of an escrow: far above what any committed plan can spend (contract gateway 6.8).
const ESCROW_AMOUNT: u64 = 1_000_000_000_000;
const TOKEN_PRICE: u64 = 100;
const FEE_PER_NONCE: u64 = 1;
const VOTE_THRESHOLD_FACTOR: u32 = 50;
const CHAIN_ID: &str = "proofload-1";

/// What the caller chooses.
#[derive(Clone, Debug)]
pub struct Choice {
    /// `intended` or `july`.
    pub personality: String,
    /// Planted defect of a `planted-defects` build.
    pub defect: Option<String>,
}

/// Keys of one run, fresh for each: they protect nothing beyond it and never reach a file.
#[derive(Clone)]
struct Identity {
    key_hex: String,
    address: String,
}

/// Starts the stack.
#[derive(Debug)]
pub struct Starter<'a> {
    /// Who waits.
    pub dispatcher: &'a mut Dispatcher,
    /// Who spawns.
    pub guard: &'a mut Guard,
    /// Where logs and configurations go.
    pub dir: &'a mut RunDir,
    /// Programs.
    pub programs: &'a Programs,
    /// Scenario.
    pub resolved: &'a Resolved,
    /// Choice.
    pub choice: &'a Choice,
    /// Private directory of the run for databases: not evidence, removed at the end.
    pub work: PathBuf,
}

impl Starter<'_> {
    /// Starts everything and waits until every program is ready.
    ///
    /// # Errors
    /// [`RunnerError::Environment`] with the program's last log lines when one does not come up.
    pub async fn start(mut self) -> Result<Running, RunnerError> {
        let participants = self.resolved.scenario.devshard.participants;
        let creator = identity()?;
        let hosts: Vec<Identity> = (0..participants).map(|_| identity()).collect::<Result<_, _>>()?;
        let admin_key = hex::encode(random::<24>()?);
        let mut secrets: Vec<String> = hosts.iter().map(|host| host.key_hex.clone()).collect();
        secrets.push(creator.key_hex.clone());
        secrets.push(admin_key.clone());
        self.dir.set_redactor(Redactor::new(secrets.clone()));
        let http = client().map_err(RunnerError::environment)?;

        let chain = self.chain_config(&creator, &hosts, &BTreeMap::new());
        self.spawn_mock("mock-chain", &MockConfig::Chain(chain)).await?;
        let openai = scenario::configs::openai_config(self.resolved, false);
        self.spawn_mock("mock-openai", &MockConfig::Openai(openai)).await?;
        let chain_at = self.ready("mock-chain").await?;
        let openai_at = self.ready("mock-openai").await?;
        let node_urls = node_urls(&openai_at);
        let dapi = scenario::configs::dapi_config(self.resolved, &node_urls, false);
        self.spawn_mock("mock-dapi", &MockConfig::Dapi(dapi)).await?;
        let dapi_at = self.ready("mock-dapi").await?;
        let control = |line: &ReadyLine| Control::new(http.clone(), address(line, "control"));
        let mocks = Mocks { openai: control(&openai_at), dapi: control(&dapi_at), chain: control(&chain_at) };

        for (index, host) in hosts.iter().enumerate() {
            self.spawn_host(index, host, &chain_at, &dapi_at).await?;
        }
        let mut surfaces_hosts = Vec::new();
        let mut urls = BTreeMap::new();
        for (index, host) in hosts.iter().enumerate() {
            let service = format!("host-{index}");
            let line = self.ready(&service).await?;
            let base = format!("http://{}", address(&line, "http"));
            urls.insert(host.address.clone(), base.clone());
            surfaces_hosts.push(HostSurface { service, base, participant: host.address.clone() });
        }
        let chain = self.chain_config(&creator, &hosts, &urls);
        put(&mocks.chain, &MockConfig::Chain(chain), "mock-chain").await?;
        self.spawn_gateway(&creator, &admin_key, &chain_at).await?;
        let gateway_at = self.ready("ref-gateway").await?;
        let escrows: Vec<String> =
            (1..=self.resolved.scenario.devshard.escrows).map(|id| id.to_string()).collect();
        let surfaces = Surfaces {
            client: http,
            gateway: format!("http://{}", address(&gateway_at, "http")),
            admin_key,
            hosts: surfaces_hosts,
            session_prefix: "/devshard/v2".to_owned(),
            escrows,
        };
        let required = self.required();
        let about = self.about();
        let mut running = Running {
            surfaces,
            mocks,
            node_urls,
            model: MODEL.to_owned(),
            required,
            about,
            waits_s: (0, 0),
            secrets,
        };
        self.settle_in(&mut running).await?;
        Ok(running)
    }

    fn required(&self) -> Vec<String> {
        let hosts = (0..self.resolved.scenario.devshard.participants).map(|index| format!("host-{index}"));
        let fixed = ["mock-chain", "mock-dapi", "mock-openai", "ref-gateway"].map(str::to_owned);
        fixed.into_iter().chain(hosts).collect()
    }

    fn about(&self) -> Stack {
        Stack {
            provider: "embedded".to_owned(),
            devshard: "reference".to_owned(),
            personality: Some(self.choice.personality.clone()),
            defect: self.choice.defect.clone(),
            storage: match self.resolved.scenario.devshard.storage {
                Storage::Sqlite => "sqlite".to_owned(),
                Storage::Postgres => "postgres".to_owned(),
            },
            isolation: "child processes of one guard process, loopback ports chosen by the kernel".to_owned(),
        }
    }

    fn chain_config(
        &self,
        creator: &Identity,
        hosts: &[Identity],
        urls: &BTreeMap<String, String>,
    ) -> ChainConfig {
        let devshard = &self.resolved.scenario.devshard;
        let slots = devshard.slots.unwrap_or(devshard.participants);
        let slot_owner = |slot: u32| hosts[slot as usize % hosts.len()].address.clone();
        let participant = |host: &Identity| ChainParticipant {
            address: host.address.clone(),
            inference_url: urls.get(&host.address).cloned().unwrap_or_default(),
        };
        let escrow = |id: u32| ChainEscrow {
            id: u64::from(id),
            creator: creator.address.clone(),
            amount: ESCROW_AMOUNT,
            slots: (0..slots).map(slot_owner).collect(),
            model: MODEL.to_owned(),
            epoch: 1,
            token_price: TOKEN_PRICE,
            fee_per_nonce: FEE_PER_NONCE,
            validation_rate: basis_points(devshard.validation_rate),
            vote_threshold_factor: VOTE_THRESHOLD_FACTOR,
            settled: false,
        };
        ChainConfig {
            v: scenario::control::CONTROL_VERSION,
            chain_id: CHAIN_ID.to_owned(),
            participants: hosts.iter().map(participant).collect(),
            escrows: (1..=devshard.escrows).map(escrow).collect(),
            epoch: 1,
            block_interval: Micros::from_s(1),
            rules: Vec::new(),
        }
    }

    /// Settings, read back; then the waits that status shows, and a canary chat per escrow.
    async fn settle_in(&mut self, running: &mut Running) -> Result<(), RunnerError> {
        crate::life::faults::gateway_settings(running, self.resolved, self.dispatcher).await?;
        running.waits_s = crate::life::faults::protocol_waits(running).await?;
        crate::life::faults::canaries(running, self.dispatcher).await
    }

    async fn spawn_mock(&mut self, name: &str, config: &MockConfig) -> Result<(), RunnerError> {
        let file = format!("faults/start-{name}.json");
        self.dir.write_json(&file, config)?;
        let args = vec!["--config".to_owned(), self.dir.path(&file).display().to_string()];
        self.spawn(name, name, args, BTreeMap::new()).await
    }

    async fn spawn_host(
        &mut self,
        index: usize,
        host: &Identity,
        chain: &ReadyLine,
        dapi: &ReadyLine,
    ) -> Result<(), RunnerError> {
        let service = format!("host-{index}");
        let config = json!({
            "host": service,
            "chain_grpc": address(chain, "grpc"),
            "dapi_grpc": address(dapi, &format!("grpc:{service}")),
            "database": self.work.join(format!("{service}.db")),
            "personality": self.choice.personality,
        });
        let env = BTreeMap::from([("PROOFLOAD_HOST_KEY".to_owned(), host.key_hex.clone())]);
        self.spawn_configured("ref-host", &service, &config, env).await
    }

    async fn spawn_gateway(
        &mut self,
        creator: &Identity,
        admin_key: &str,
        chain: &ReadyLine,
    ) -> Result<(), RunnerError> {
        let escrows: Vec<u32> = (1..=self.resolved.scenario.devshard.escrows).collect();
        let config = json!({
            "escrow_ids": escrows,
            "model": MODEL,
            "chain_grpc": address(chain, "grpc"),
            "database_dir": self.work.join("gateway"),
            "personality": self.choice.personality,
        });
        let env = BTreeMap::from([
            ("PROOFLOAD_CREATOR_KEY".to_owned(), creator.key_hex.clone()),
            ("PROOFLOAD_ADMIN_KEY".to_owned(), admin_key.to_owned()),
        ]);
        self.spawn_configured("ref-gateway", "ref-gateway", &config, env).await
    }

    async fn spawn_configured(
        &mut self,
        program: &str,
        service: &str,
        config: &Value,
        env: BTreeMap<String, String>,
    ) -> Result<(), RunnerError> {
        let file = self.work.join(format!("{service}.json"));
        let text = serde_json::to_vec_pretty(config).map_err(|e| RunnerError::Internal(e.to_string()))?;
        std::fs::write(&file, text)
            .map_err(|error| RunnerError::environment(format!("writing {}: {error}", file.display())))?;
        let mut args = vec!["--config".to_owned(), file.display().to_string()];
        if let Some(defect) = &self.choice.defect
            && DEFECTS.contains(&(defect.as_str(), service))
        {
            args.extend(["--defect".to_owned(), defect.clone()]);
        }
        self.spawn(program, service, args, env).await
    }

    async fn spawn(
        &mut self,
        program: &str,
        service: &str,
        args: Vec<String>,
        env: BTreeMap<String, String>,
    ) -> Result<(), RunnerError> {
        let log = self.dir.path(&format!("{LOGS}/{service}.log"));
        let program = self.programs.path(program);
        self.guard.spawn(Spawn { service: service.to_owned(), program, args, env, log }).await
    }

    /// Waits for a service's ready line, its exit or the limit, whatever comes first.
    async fn ready(&mut self, service: &str) -> Result<ReadyLine, RunnerError> {
        let deadline = tokio::time::Instant::now() + READY_LIMIT;
        loop {
            let state = self.dispatcher.services.entry(service.to_owned()).or_default();
            if let Some(error) = &state.not_spawned {
                return Err(RunnerError::environment(format!("starting {service}: {error}")));
            }
            while let Some(line) = state.output.pop_front() {
                if let Ok(ready) = serde_json::from_str::<ReadyLine>(&line) {
                    check_build(service, &ready.build)?;
                    let (pid, start_ticks) = (state.pid, state.start_ticks);
                    self.dispatcher.log(EventKind::ProcessReady {
                        service: service.to_owned(),
                        pid,
                        start_ticks,
                        addresses: ready.ready.clone(),
                        build: ready.build.clone(),
                    })?;
                    return Ok(ready);
                }
            }
            if let Some(ended) = &state.ended {
                let message = format!("{service} ended before it was ready ({ended})");
                return Err(self.failed(service, message));
            }
            if self.dispatcher.signals > 0 {
                return Err(RunnerError::environment("stopped while the stack was starting"));
            }
            match tokio::time::timeout_at(deadline, self.dispatcher.next()).await {
                Ok(taken) => taken?,
                Err(_) => {
                    let seconds = READY_LIMIT.as_secs();
                    return Err(self.failed(service, format!("{service} was not ready within {seconds} s")));
                }
            }
        }
    }

    fn failed(&self, service: &str, message: String) -> RunnerError {
        let path = self.dir.path(&format!("{LOGS}/{service}.log"));
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let text = self.dir.redactor().text(&text).into_owned();
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let log = lines[lines.len().saturating_sub(LOG_TAIL)..].to_vec();
        RunnerError::Environment { message, log }
    }
}

/// Compares a build id with our own.
///
/// # Errors
/// [`RunnerError::Environment`]: programs of two builds must not judge each other.
pub fn check_build(service: &str, build: &str) -> Result<(), RunnerError> {
    if build == BUILD_ID {
        return Ok(());
    }
    Err(RunnerError::environment(format!(
        "{service} is of build {build:?}, this runner of {BUILD_ID:?}; build both from one commit (`make build`)"
    )))
}

/// Sends a configuration and compares the hash that was answered with ours.
///
/// # Errors
/// [`RunnerError::Environment`] when the mock refuses or answers another hash.
pub async fn put(control: &Control, config: &MockConfig, mock: &str) -> Result<String, RunnerError> {
    let applied =
        control.put_config(config).await.map_err(|e| RunnerError::environment(format!("{mock}: {e}")))?;
    if applied.hash != config.hash() {
        let text = format!("{mock} answered hash {} for a configuration of {}", applied.hash, config.hash());
        return Err(RunnerError::environment(text));
    }
    Ok(applied.hash)
}

fn address<'a>(line: &'a ReadyLine, name: &str) -> &'a str {
    line.ready.get(name).map_or("", String::as_str)
}

fn node_urls(line: &ReadyLine) -> BTreeMap<String, String> {
    let node = |(name, address): (&String, &String)| {
        Some((name.strip_prefix("node:")?.to_owned(), format!("http://{address}")))
    };
    line.ready.iter().filter_map(node).collect()
}

fn random<const N: usize>() -> Result<[u8; N], RunnerError> {
    random_bytes().map_err(|error| RunnerError::environment(format!("reading random bytes: {error}")))
}

fn identity() -> Result<Identity, RunnerError> {
    let bytes: [u8; 32] = random()?;
    let key = wire::keys::PrivateKey::from_bytes(&bytes).map_err(|e| RunnerError::Internal(e.to_string()))?;
    Ok(Identity { key_hex: hex::encode(bytes), address: key.address().to_string() })
}

//! Starting the embedded stack in its order, with fresh keys.

use std::collections::BTreeMap;

use evidence::redact::Redactor;
use scenario::control::{ChainConfig, ChainEscrow, ChainParticipant, MockConfig, basis_points};
use scenario::ready::ReadyLine;
use scenario::units::Micros;
use serde_json::{Value, json};

use super::super::{Choice, Context, Running, launch};
use super::{DEFECTS, MODEL};
use crate::clock::random_bytes;
use crate::collect::snapshot::{Mocks, OpenaiControl};
use crate::collect::{HostSurface, Surfaces};
use crate::control::{Control, client, put};
use crate::error::RunnerError;

/// Balance of an escrow: far above what any committed plan can spend (contract gateway 6.8).
const ESCROW_AMOUNT: u64 = 1_000_000_000_000;
const TOKEN_PRICE: u64 = 100;
const FEE_PER_NONCE: u64 = 1;
const VOTE_THRESHOLD_FACTOR: u32 = 50;
const CHAIN_ID: &str = "proofload-1";

/// Keys of one run, fresh for each: they protect nothing beyond it and never reach a file.
#[derive(Clone)]
struct Identity {
    key_hex: String,
    address: String,
}

/// Starts the stack.
#[derive(Debug)]
pub(super) struct Starter<'a, 'b> {
    /// What it works with.
    pub(super) context: &'a mut Context<'b>,
    /// Choice.
    pub(super) choice: &'a Choice,
}

impl Starter<'_, '_> {
    /// Starts everything and waits until every program is ready.
    ///
    /// # Errors
    /// [`RunnerError::Environment`] with the program's last log lines when one does not come up.
    pub(super) async fn start(mut self) -> Result<Running, RunnerError> {
        let participants = self.context.resolved.scenario.devshard.participants;
        let creator = identity()?;
        let hosts: Vec<Identity> = (0..participants).map(|_| identity()).collect::<Result<_, _>>()?;
        let admin_key = hex::encode(random::<24>()?);
        let mut secrets: Vec<String> = hosts.iter().map(|host| host.key_hex.clone()).collect();
        secrets.push(creator.key_hex.clone());
        secrets.push(admin_key.clone());
        self.context.dir.set_redactor(Redactor::new(secrets));
        let http = client().map_err(RunnerError::environment)?;

        let chain = self.chain_config(&creator, &hosts, &BTreeMap::new());
        self.spawn_mock("mock-chain", &MockConfig::Chain(chain)).await?;
        let openai = scenario::configs::openai_config(self.context.resolved, false);
        self.spawn_mock("mock-openai", &MockConfig::Openai(openai)).await?;
        let chain_at = launch::ready(self.context, "mock-chain").await?;
        let openai_at = launch::ready(self.context, "mock-openai").await?;
        let node_urls = node_urls(&openai_at);
        let dapi = scenario::configs::dapi_config(self.context.resolved, &node_urls, false);
        self.spawn_mock("mock-dapi", &MockConfig::Dapi(dapi)).await?;
        let dapi_at = launch::ready(self.context, "mock-dapi").await?;
        let control = |line: &ReadyLine| Control::new(http.clone(), address(line, "control"));
        let nodes = node_urls.keys().cloned().collect();
        let mocks = Mocks {
            openai: vec![OpenaiControl {
                service: "mock-openai".to_owned(),
                nodes,
                control: control(&openai_at),
            }],
            dapi: Some(control(&dapi_at)),
            chain: Some(control(&chain_at)),
        };

        for (index, host) in hosts.iter().enumerate() {
            self.spawn_host(index, host, &chain_at, &dapi_at).await?;
        }
        let mut surfaces_hosts = Vec::new();
        let mut urls = BTreeMap::new();
        for (index, host) in hosts.iter().enumerate() {
            let service = format!("host-{index}");
            let line = launch::ready(self.context, &service).await?;
            let base = format!("http://{}", address(&line, "http"));
            urls.insert(host.address.clone(), base.clone());
            surfaces_hosts.push(HostSurface { service, base, participant: host.address.clone() });
        }
        let chain = self.chain_config(&creator, &hosts, &urls);
        put(&control(&chain_at), &MockConfig::Chain(chain), "mock-chain").await?;
        self.spawn_gateway(&creator, &admin_key, &chain_at).await?;
        let gateway_at = launch::ready(self.context, "gateway").await?;
        let escrows: Vec<String> =
            (1..=self.context.resolved.scenario.devshard.escrows).map(|id| id.to_string()).collect();
        let surfaces = Surfaces {
            client: http,
            gateway: format!("http://{}", address(&gateway_at, "http")),
            admin_key,
            hosts: surfaces_hosts,
            session_prefix: "/devshard/v2".to_owned(),
            escrows,
        };
        let required = self.required();
        Ok(Running { surfaces, mocks, node_urls, model: MODEL.to_owned(), required, waits_s: (0, 0) })
    }

    fn required(&self) -> Vec<String> {
        let hosts =
            (0..self.context.resolved.scenario.devshard.participants).map(|index| format!("host-{index}"));
        let fixed = ["mock-chain", "mock-dapi", "mock-openai", "gateway"].map(str::to_owned);
        fixed.into_iter().chain(hosts).collect()
    }

    fn chain_config(
        &self,
        creator: &Identity,
        hosts: &[Identity],
        urls: &BTreeMap<String, String>,
    ) -> ChainConfig {
        let devshard = &self.context.resolved.scenario.devshard;
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

    async fn spawn_mock(&mut self, name: &str, config: &MockConfig) -> Result<(), RunnerError> {
        let file = format!("faults/start-{name}.json");
        self.context.dir.write_json(&file, config)?;
        let args = vec!["--config".to_owned(), self.context.dir.path(&file).display().to_string()];
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
            "database": self.context.work.join(format!("{service}.db")),
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
        let escrows: Vec<u32> = (1..=self.context.resolved.scenario.devshard.escrows).collect();
        let config = json!({
            "escrow_ids": escrows,
            "model": MODEL,
            "chain_grpc": address(chain, "grpc"),
            "database_dir": self.context.work.join("gateway"),
            "personality": self.choice.personality,
        });
        let env = BTreeMap::from([
            ("PROOFLOAD_CREATOR_KEY".to_owned(), creator.key_hex.clone()),
            ("PROOFLOAD_ADMIN_KEY".to_owned(), admin_key.to_owned()),
        ]);
        self.spawn_configured("ref-gateway", "gateway", &config, env).await
    }

    async fn spawn_configured(
        &mut self,
        program: &str,
        service: &str,
        config: &Value,
        env: BTreeMap<String, String>,
    ) -> Result<(), RunnerError> {
        let file = self.context.work.join(format!("{service}.json"));
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
        let spawn = launch::child(self.context, program, service, args, env);
        self.context.guard.spawn(spawn).await
    }
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

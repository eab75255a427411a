//! The project of a scenario: variables and groups for the Compose files, and the configuration files that services read.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use compose_engine::model::expand::Copy;
use compose_engine::model::{Loader, Project};
use scenario::control::MockConfig;
use scenario::model::Resolved;
use serde_json::json;

use super::environment;
use crate::error::RunnerError;
use crate::stack::Choice;
use crate::stack::embedded::{DEFECTS, MODEL};
use crate::stack::reference::{Identity, chain_config, random};

/// Port of gateway and hosts in their containers.
pub const SERVICE_PORT: u16 = 8080;
/// Control port of every mock.
pub const CONTROL_PORT: u16 = 9900;
/// First allocator port; each host has one of its own.
const DAPI_PORT: u16 = 9100;
/// Static addresses by kind: offsets in the file's subnet.
const HOSTS_FROM: u8 = 32;
const NODES_FROM: u8 = 128;
/// Hosts that have an address.
pub const HOSTS_MAX: u32 = 96;
/// Nodes that have an address.
pub const NODES_MAX: usize = 127;

/// Keys of a run.
pub struct Keys {
    /// Owner of the escrows.
    pub creator: Identity,
    /// Participants.
    pub hosts: Vec<Identity>,
    /// Bearer of the gateway's admin routes.
    pub admin: String,
}

impl Keys {
    /// Fresh ones.
    ///
    /// # Errors
    /// [`RunnerError`] when the machine gives no random bytes.
    pub fn fresh(resolved: &Resolved) -> Result<Self, RunnerError> {
        let participants = resolved.scenario.devshard.participants;
        let hosts = (0..participants).map(|_| Identity::fresh()).collect::<Result<_, _>>()?;
        Ok(Self { creator: Identity::fresh()?, hosts, admin: hex::encode(random::<24>()?) })
    }

    /// Everything that must not reach a file.
    #[must_use]
    pub fn secrets(&self) -> Vec<String> {
        let hosts = self.hosts.iter().map(|host| host.key_hex.clone());
        hosts.chain([self.creator.key_hex.clone(), self.admin.clone()]).collect()
    }
}

/// Folders of a run as the project sees them.
#[derive(Clone, Debug)]
pub struct Folders {
    /// Configuration files that services read.
    pub work: PathBuf,
    /// The run directory.
    pub run: PathBuf,
    /// Build context of the image.
    pub context: PathBuf,
}

/// Base URL of each pool node in the project's network.
#[must_use]
pub fn node_urls(resolved: &Resolved) -> BTreeMap<String, String> {
    resolved.nodes.iter().map(|node| (node.name.clone(), format!("http://{}:8000", node.name))).collect()
}

/// Writes the configuration files and loads the project.
///
/// # Errors
/// [`RunnerError`] for a file that can't be written and for a Compose file that can't be used.
pub fn load(
    resolved: &Resolved,
    choice: &Choice,
    keys: &Keys,
    folders: &Folders,
) -> Result<Project, RunnerError> {
    write_configs(resolved, choice, keys, folders)?;
    let mut loader = Loader::default();
    for file in &choice.compose.compose_files {
        loader = loader.file(file).map_err(environment)?;
    }
    let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    let participants = resolved.scenario.devshard.participants;
    let dapi: Vec<String> = (0..participants)
        .map(|index| format!("--port grpc:host-{index}={}", u32::from(DAPI_PORT) + index))
        .collect();
    let user = format!("{}:{}", rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let variables = [
        ("STACK_CONTEXT", absolute(&folders.context).display().to_string()),
        ("WORK", absolute(&folders.work).display().to_string()),
        ("RUN_DIR", absolute(&folders.run).display().to_string()),
        ("DAPI_PORTS", dapi.join(" ")),
        ("CREATOR_KEY", keys.creator.key_hex.clone()),
        ("ADMIN_KEY", keys.admin.clone()),
        ("USER_IDS", user),
        ("GATEWAY_DEFECT", defect(choice, "gateway")),
    ];
    loader.variables = variables.map(|(name, value)| (name.to_owned(), value)).into();
    let hosts = keys.hosts.iter().enumerate().map(|(index, host)| {
        let name = format!("host-{index}");
        let variables = [
            ("HOST_KEY", host.key_hex.clone()),
            ("ADDRESS", address(HOSTS_FROM, index)),
            ("DEFECT", defect(choice, &name)),
        ];
        Copy { name, variables: variables.map(|(name, value)| (name.to_owned(), value)).into() }
    });
    let nodes = resolved.nodes.iter().enumerate().map(|(index, node)| Copy {
        name: node.name.clone(),
        variables: [("ADDRESS".to_owned(), address(NODES_FROM, index))].into(),
    });
    loader.groups =
        BTreeMap::from([("hosts".to_owned(), hosts.collect()), ("nodes".to_owned(), nodes.collect())]);
    loader.load().map_err(|error| RunnerError::environment(error.to_string()))
}

fn address(from: u8, index: usize) -> String {
    let last = usize::from(from) + index;
    Ipv4Addr::new(10, 213, 0, u8::try_from(last).unwrap_or(u8::MAX)).to_string()
}

fn defect(choice: &Choice, service: &str) -> String {
    match &choice.defect {
        Some(defect) if DEFECTS.contains(&(defect.as_str(), service)) => format!("--defect {defect}"),
        _ => String::new(),
    }
}

fn write_configs(
    resolved: &Resolved,
    choice: &Choice,
    keys: &Keys,
    folders: &Folders,
) -> Result<(), RunnerError> {
    let failed = |error: std::io::Error| {
        RunnerError::environment(format!("writing into {}: {error}", folders.work.display()))
    };
    std::fs::create_dir_all(&folders.work).map_err(failed)?;
    let write = |service: &str, text: Vec<u8>| {
        std::fs::write(folders.work.join(format!("{service}.json")), text).map_err(failed)
    };
    let urls: BTreeMap<String, String> = keys
        .hosts
        .iter()
        .enumerate()
        .map(|(index, host)| (host.address.clone(), format!("http://host-{index}:{SERVICE_PORT}")))
        .collect();
    let chain = MockConfig::Chain(chain_config(resolved, &keys.creator, &keys.hosts, &urls));
    write("mock-chain", json_of(&chain)?)?;
    let dapi = scenario::configs::dapi_config(resolved, &node_urls(resolved), false);
    write("mock-dapi", json_of(&MockConfig::Dapi(dapi))?)?;
    for node in &resolved.nodes {
        let mut config = scenario::configs::openai_config(resolved, false);
        config.nodes.retain(|own| own.name == node.name);
        write(&node.name, json_of(&MockConfig::Openai(config))?)?;
    }
    let listen = format!("0.0.0.0:{SERVICE_PORT}");
    for index in 0..keys.hosts.len() {
        let service = format!("host-{index}");
        let config = json!({
            "host": service,
            "listen": listen,
            "chain_grpc": "mock-chain:9090",
            "chain_rpc": "mock-chain:26657",
            "dapi_grpc": format!("mock-dapi:{}", usize::from(DAPI_PORT) + index),
            "database": "/data/host.db",
            "personality": choice.personality,
        });
        write(&service, json_of(&config)?)?;
    }
    let escrows: Vec<u32> = (1..=resolved.scenario.devshard.escrows).collect();
    let config = json!({
        "escrow_ids": escrows,
        "model": MODEL,
        "listen": listen,
        "chain_grpc": "mock-chain:9090",
        "public_api": "http://mock-dapi:9200",
        "database_dir": "/data/gateway",
        "personality": choice.personality,
    });
    write("gateway", json_of(&config)?)
}

fn json_of<T: serde::Serialize>(value: &T) -> Result<Vec<u8>, RunnerError> {
    serde_json::to_vec_pretty(value).map_err(|error| RunnerError::Internal(error.to_string()))
}

//! The project of a scenario: variables and groups for the Compose files, and the configuration files that services read.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use compose_engine::model::expand::{Copy, Groups};
use compose_engine::model::{Loader, Project};
use scenario::control::MockConfig;
use scenario::model::{Resolved, Storage};
use serde_json::json;

use super::{environment, observe};
use crate::error::RunnerError;
use crate::stack::Choice;
use crate::stack::embedded::{DEFECTS, MODEL};
use crate::stack::real::{PROTOCOL, write_keyring};
use crate::stack::reference::{CHAIN_ID, Keys, LEASE_RETRY, LEASE_TTL, chain_config};

/// Port of gateway and hosts in their containers.
pub const SERVICE_PORT: u16 = 8080;
/// Control port of every mock.
pub const CONTROL_PORT: u16 = 9900;
/// First allocator port; each host has one of its own.
const DAPI_PORT: u16 = 9100;
/// Port of Postgres.
const POSTGRES_PORT: u16 = 5432;
/// Service name of Postgres.
pub const POSTGRES: &str = "postgres";
/// User of Postgres inside the project's network.
const POSTGRES_USER: &str = "proofload";
/// File that is laid over the others for scenarios with Postgres.
const POSTGRES_FILE: &str = "postgres.yml";
/// File that is laid over the others for real Devshard images, and what `--image` calls these.
const REAL_FILE: &str = "real.yml";
/// File that is laid over that one for scenarios with Postgres.
const REAL_POSTGRES_FILE: &str = "real-postgres.yml";
/// Image of the real gateway.
pub const GATEWAY_IMAGE: &str = "devshardctl";
/// Image of the supervisor that starts the real host program.
pub const HOST_IMAGE: &str = "versiond";
/// The real host program in `--devshard-bin`.
pub const HOST_PROGRAM: &str = "devshardd";
/// Allocator port of the gateway.
const GATEWAY_DAPI_PORT: u16 = 9099;
/// Static addresses by kind: offsets in the file's subnet.
const HOSTS_FROM: u8 = 32;
const ROUTERS_FROM: u8 = 112;
const NODES_FROM: u8 = 128;
/// Host processes that have an address.
pub const HOSTS_MAX: u32 = 80;
/// Routers that have an address.
pub const ROUTERS_MAX: u32 = 16;
/// Nodes that have an address.
pub const NODES_MAX: usize = 127;

/// Folders of a run as the project sees them.
#[derive(Clone, Debug)]
pub struct Folders {
    /// Configuration files that services read.
    pub work: PathBuf,
    /// The run directory.
    pub run: PathBuf,
    /// Build context of the image.
    pub context: PathBuf,
    /// Build context of the Postgres image.
    pub postgres: PathBuf,
    /// Folder of the installed server binaries that it is built from.
    pub postgres_bin: PathBuf,
    /// Folder that is no evidence and goes with the run: keys.
    pub private: PathBuf,
}

/// Base URL of each pool node in the project's network.
#[must_use]
pub fn node_urls(resolved: &Resolved) -> BTreeMap<String, String> {
    resolved.nodes.iter().map(|node| (node.name.clone(), format!("http://{}:8000", node.name))).collect()
}

/// One host process: a participant has one, or several behind a router.
pub struct Process {
    /// Service name, as on the embedded stack.
    pub service: String,
    /// Index of its participant.
    pub participant: usize,
}

/// Every host process of a scenario, in order.
#[must_use]
pub fn processes(resolved: &Resolved) -> Vec<Process> {
    let devshard = &resolved.scenario.devshard;
    let mut all = Vec::new();
    for participant in 0..devshard.participants {
        for replica in 0..devshard.replicas {
            let host = format!("host-{participant}");
            let service = if devshard.replicas > 1 { format!("{host}-{replica}") } else { host };
            all.push(Process { service, participant: participant as usize });
        }
    }
    all
}

/// Whether the user's own Devshard images run.
#[must_use]
pub fn is_real(choice: &Choice) -> bool {
    choice.compose.images.iter().any(|(name, _)| name == GATEWAY_IMAGE || name == HOST_IMAGE)
}

/// Whether a router stands in front of each participant: of one with several processes, and of a real supervisor, which
/// does not know the path prefix that gateway and hosts write.
#[must_use]
pub fn routed(resolved: &Resolved, choice: &Choice) -> bool {
    resolved.scenario.devshard.replicas > 1 || is_real(choice)
}

fn routers(resolved: &Resolved, choice: &Choice) -> Vec<String> {
    let count = if routed(resolved, choice) { resolved.scenario.devshard.participants } else { 0 };
    (0..count).map(|index| format!("router-{index}")).collect()
}

/// Where neighbours reach a participant: service name.
fn participant_service(resolved: &Resolved, choice: &Choice, index: usize) -> String {
    let kind = if routed(resolved, choice) { "router" } else { "host" };
    format!("{kind}-{index}")
}

/// What comes before every path at a host process: a real one answers behind its supervisor, which routes by version.
#[must_use]
pub fn surface_path(choice: &Choice) -> String {
    if is_real(choice) { format!("/{PROTOCOL}") } else { String::new() }
}

/// Database of a participant.
fn database(index: usize) -> String {
    format!("host_{index}")
}

/// Postgres URL of each participant at an address; empty without Postgres.
#[must_use]
pub fn postgres_urls(resolved: &Resolved, address: &str) -> BTreeMap<String, String> {
    if resolved.scenario.devshard.storage == Storage::Sqlite {
        return BTreeMap::new();
    }
    (0..resolved.scenario.devshard.participants as usize)
        .map(|index| {
            let url = format!("postgres://{POSTGRES_USER}@{address}:{POSTGRES_PORT}/{}", database(index));
            (format!("host-{index}"), url)
        })
        .collect()
}

/// Writes the configuration files and loads the project.
///
/// # Errors
/// [`RunnerError`] for a file that can't be written, for a Compose file that can't be used, and for an image that is
/// named for a service that is not there.
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
    let postgres = resolved.scenario.devshard.storage == Storage::Postgres;
    let folder =
        choice.compose.compose_files.first().and_then(|file| file.parent()).unwrap_or(Path::new("."));
    for (laid, name) in [
        (postgres, POSTGRES_FILE),
        (is_real(choice), REAL_FILE),
        (is_real(choice) && postgres, REAL_POSTGRES_FILE),
        (!choice.compose.observe.is_empty(), observe::FILE),
    ] {
        if laid {
            loader = loader.file(&folder.join(name)).map_err(environment)?;
        }
    }
    loader.profiles.clone_from(&choice.compose.observe);
    loader.variables = variables(resolved, choice, keys, folders);
    loader.groups = groups(resolved, choice, keys, folders)?;
    let mut project = loader.load().map_err(|error| RunnerError::environment(error.to_string()))?;
    for (name, reference) in &choice.compose.images {
        let services = match name.as_str() {
            GATEWAY_IMAGE => vec!["gateway".to_owned()],
            HOST_IMAGE => processes(resolved).into_iter().map(|process| process.service).collect(),
            _ => vec![name.clone()],
        };
        for service in services {
            let named = project.use_image(&service, reference, choice.compose.pull.into());
            named.map_err(environment)?;
        }
    }
    Ok(project)
}

fn texts<const N: usize>(pairs: [(&str, String); N]) -> BTreeMap<String, String> {
    pairs.map(|(name, value)| (name.to_owned(), value)).into()
}

fn variables(
    resolved: &Resolved,
    choice: &Choice,
    keys: &Keys,
    folders: &Folders,
) -> BTreeMap<String, String> {
    let absolute =
        |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf()).display().to_string();
    let participants = resolved.scenario.devshard.participants;
    let mut dapi: Vec<String> = (0..participants)
        .map(|index| format!("--port grpc:host-{index}={}", u32::from(DAPI_PORT) + index))
        .collect();
    dapi.push(format!("--port grpc:gateway={GATEWAY_DAPI_PORT}"));
    let escrow =
        |id: u32| json!({ "id": id.to_string(), "private_key_env": "DEVSHARD_PRIVATE_KEY", "model": MODEL });
    let escrows: serde_json::Value = (1..=resolved.scenario.devshard.escrows).map(escrow).collect();
    let program = choice.devshard_bin.as_ref().map(|folder| absolute(&folder.join(HOST_PROGRAM)));
    let user = format!("{}:{}", rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    texts([
        ("STACK_CONTEXT", absolute(&folders.context)),
        ("POSTGRES_CONTEXT", absolute(&folders.postgres)),
        ("POSTGRES_BIN", folders.postgres_bin.display().to_string()),
        ("WORK", absolute(&folders.work)),
        ("RUN_DIR", absolute(&folders.run)),
        ("DAPI_PORTS", dapi.join(" ")),
        ("CREATOR_KEY", keys.creator.key_hex.clone()),
        ("ADMIN_KEY", keys.admin.clone()),
        ("USER_IDS", user),
        ("GATEWAY_DEFECT", defect(choice, "gateway")),
        ("PROTOCOL", PROTOCOL.to_owned()),
        ("CHAIN_ID", CHAIN_ID.to_owned()),
        ("MODEL", MODEL.to_owned()),
        ("ESCROWS_JSON", escrows.to_string()),
        ("DEVSHARDD", program.unwrap_or_default()),
    ])
}

fn groups(
    resolved: &Resolved,
    choice: &Choice,
    keys: &Keys,
    folders: &Folders,
) -> Result<Groups, RunnerError> {
    let mut hosts = Vec::new();
    for (index, process) in processes(resolved).into_iter().enumerate() {
        let identity = &keys.hosts[process.participant];
        let keyring = if is_real(choice) {
            std::fs::create_dir_all(&folders.private).map_err(|error| {
                RunnerError::environment(format!("making {}: {error}", folders.private.display()))
            })?;
            write_keyring(&folders.private, &process.service, identity)?
        } else {
            PathBuf::new()
        };
        let variables = texts([
            ("HOST_KEY", identity.key_hex.clone()),
            ("ADDRESS", address(HOSTS_FROM, index)),
            ("DEFECT", defect(choice, &process.service)),
            ("DAPI_PORT", (usize::from(DAPI_PORT) + process.participant).to_string()),
            ("KEYRING", keyring.display().to_string()),
            ("DATABASE", database(process.participant)),
        ]);
        hosts.push(Copy { name: process.service, variables });
    }
    let addressed = |from: u8| {
        move |(index, name): (usize, String)| Copy {
            name,
            variables: texts([("ADDRESS", address(from, index))]),
        }
    };
    let nodes = resolved.nodes.iter().map(|node| node.name.clone()).enumerate().map(addressed(NODES_FROM));
    let routers = routers(resolved, choice).into_iter().enumerate().map(addressed(ROUTERS_FROM));
    Ok(Groups::from([
        ("hosts".to_owned(), hosts),
        ("routers".to_owned(), routers.collect()),
        ("nodes".to_owned(), nodes.collect()),
    ]))
}

fn address(from: u8, index: usize) -> String {
    let last = usize::from(from) + index;
    Ipv4Addr::new(10, 213, 0, u8::try_from(last).unwrap_or(u8::MAX)).to_string()
}

/// The flag of a planted defect. One of a participant sits in its first process.
fn defect(choice: &Choice, service: &str) -> String {
    let first = service.strip_suffix("-0").filter(|host| host.starts_with("host-")).unwrap_or(service);
    match &choice.defect {
        Some(defect) if [service, first].iter().any(|name| DEFECTS.contains(&(defect.as_str(), *name))) => {
            format!("--defect {defect}")
        }
        _ => String::new(),
    }
}

/// What host processes and routers read, by service.
fn participant_configs(
    resolved: &Resolved,
    choice: &Choice,
    listen: &str,
) -> Vec<(String, serde_json::Value)> {
    let postgres = postgres_urls(resolved, POSTGRES);
    let mut all = Vec::new();
    for process in processes(resolved) {
        let host = format!("host-{}", process.participant);
        let mut config = json!({
            "host": host,
            "listen": listen,
            "chain_grpc": "mock-chain:9090",
            "chain_rpc": "mock-chain:26657",
            "dapi_grpc": format!("mock-dapi:{}", usize::from(DAPI_PORT) + process.participant),
            // Replicas have one durable copy between them (contract hosts 6.5).
            "database": format!("/data/{host}.db"),
            "personality": choice.personality,
            "lease_ttl_ms": LEASE_TTL.as_millis(),
            "lease_retry_ms": LEASE_RETRY.as_millis(),
        });
        if let Some(url) = postgres.get(&host) {
            config["postgres_url"] = json!(url);
        }
        all.push((process.service, config));
    }
    for (index, router) in routers(resolved, choice).into_iter().enumerate() {
        let upstreams: Vec<String> = processes(resolved)
            .into_iter()
            .filter(|process| process.participant == index)
            .map(|process| format!("{}:{SERVICE_PORT}", process.service))
            .collect();
        let mut config = json!({ "listen": listen, "upstreams": upstreams });
        if is_real(choice) {
            config["strip_prefix"] = json!("/devshard");
        }
        all.push((router, config));
    }
    all
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
    let write = |name: &str, text: Vec<u8>| std::fs::write(folders.work.join(name), text).map_err(failed);
    let put = |service: &str, text: Vec<u8>| write(&config_file(service), text);
    let reached = keys.hosts.iter().enumerate();
    let urls: BTreeMap<String, String> = reached
        .map(|(index, host)| {
            (
                host.address.clone(),
                format!("http://{}:{SERVICE_PORT}", participant_service(resolved, choice, index)),
            )
        })
        .collect();
    let chain = MockConfig::Chain(chain_config(resolved, &keys.creator, &keys.hosts, &urls));
    put("mock-chain", json_of(&chain)?)?;
    let dapi = scenario::configs::dapi_config(resolved, &node_urls(resolved), false);
    put("mock-dapi", json_of(&MockConfig::Dapi(dapi))?)?;
    for node in &resolved.nodes {
        let mut config = scenario::configs::openai_config(resolved, false);
        config.nodes.retain(|own| own.name == node.name);
        put(&node.name, json_of(&MockConfig::Openai(config))?)?;
    }
    let listen = format!("0.0.0.0:{SERVICE_PORT}");
    for (service, config) in participant_configs(resolved, choice, &listen) {
        put(&service, json_of(&config)?)?;
    }
    let databases = postgres_urls(resolved, POSTGRES).len();
    if databases > 0 {
        let statement = |index| format!("CREATE DATABASE {};\n", database(index));
        write("postgres-init.sql", (0..databases).map(statement).collect::<String>().into_bytes())?;
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
    put("gateway", json_of(&config)?)
}

/// Configuration file of a service in the folder of configuration files.
#[must_use]
pub fn config_file(service: &str) -> String {
    format!("{service}.json")
}

fn json_of<T: serde::Serialize>(value: &T) -> Result<Vec<u8>, RunnerError> {
    serde_json::to_vec_pretty(value).map_err(|error| RunnerError::Internal(error.to_string()))
}

#[cfg(test)]
mod tests {
    use compose_engine::model::{Condition, MountSource, Service};

    use super::*;
    use crate::input::{self, Overrides};
    use crate::stack::StackKind;
    use crate::stack::compose::{ComposeArgs, Pull};

    fn root() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
    }

    fn resolved(change: impl Fn(String) -> String) -> Resolved {
        let folder = tempfile::tempdir().unwrap();
        let text = std::fs::read_to_string(root().join("scenarios/ml-5xx.yaml")).unwrap();
        let file = folder.path().join("s.yaml");
        std::fs::write(&file, change(text)).unwrap();
        input::load(&file, &root().join("ml-profiles"), &Overrides::default()).unwrap().resolved
    }

    fn choice(images: &[(&str, &str)], devshard_bin: Option<PathBuf>) -> Choice {
        let images = images.iter().map(|(name, image)| ((*name).to_owned(), (*image).to_owned())).collect();
        let compose_files = vec![root().join("compose/devshard.yml")];
        let compose = ComposeArgs { compose_files, images, pull: Pull::Never, ..ComposeArgs::default() };
        Choice {
            stack: StackKind::Compose,
            personality: "intended".to_owned(),
            defect: None,
            compose,
            devshard_bin,
            hosts_by: crate::stack::real::HostsBy::default(),
            attach: crate::stack::attach::AttachArgs::default(),
        }
    }

    fn project(resolved: &Resolved, choice: &Choice) -> (Project, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let folders = Folders {
            work: at("work"),
            run: at("run"),
            context: at("image"),
            postgres: at("image-postgres"),
            postgres_bin: PathBuf::from("/bin"),
            private: at("keys"),
        };
        let keys = Keys::fresh(resolved).unwrap();
        (load(resolved, choice, &keys, &folders).unwrap(), folder)
    }

    fn bound<'a>(service: &'a Service, target: &str) -> &'a Path {
        let mount = service.mounts.iter().find(|mount| mount.target == target).expect(target);
        match &mount.source {
            MountSource::Bind(path) => path,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn real_images_get_what_their_programs_read_and_nothing_of_the_reference() {
        let bin = tempfile::tempdir().unwrap();
        std::fs::write(bin.path().join(HOST_PROGRAM), "").unwrap();
        let images = [(GATEWAY_IMAGE, "gw:1"), (HOST_IMAGE, "sup:2")];
        let (project, folder) =
            project(&resolved(|text| text), &choice(&images, Some(bin.path().to_path_buf())));
        let gateway = &project.services["gateway"];
        assert_eq!((gateway.image.as_deref(), gateway.build.is_none()), (Some("gw:1"), true));
        assert!(gateway.command.is_none() && gateway.mounts.is_empty());
        let of = |service: &Service, name: &str| service.environment[name].clone().expect(name);
        assert_eq!(of(gateway, "DEVSHARD_CHAIN_GRPC"), "mock-chain:9090");
        assert_eq!(of(gateway, "DEVSHARD_NODE_MANAGER_ADDR"), "mock-dapi:9099");
        assert!(of(gateway, "DEVSHARDS_JSON").contains("\"private_key_env\":\"DEVSHARD_PRIVATE_KEY\""));
        assert!(!gateway.environment.contains_key("PROOFLOAD_ADMIN_KEY"));
        let host = &project.services["host-1"];
        assert_eq!(host.image.as_deref(), Some("sup:2"));
        assert_eq!(of(host, "NODE_MANAGER_ADDR"), "mock-dapi:9101");
        assert_eq!(of(host, "KEY_NAME"), "host-1");
        assert!(!host.environment.contains_key("PROOFLOAD_HOST_KEY"));
        // Keys lie outside the run directory; the host program comes from the user's folder.
        assert!(bound(host, "/keyring").starts_with(folder.path().join("keys")));
        assert_eq!(bound(host, "/opt/devshard/devshardd"), bin.path().join(HOST_PROGRAM));
        // A router takes the prefix off that the supervisor does not know.
        assert!(project.services.contains_key("router-1"));
        let text = std::fs::read_to_string(folder.path().join("work/router-1.json")).unwrap();
        assert!(text.contains("\"strip_prefix\": \"/devshard\"") && text.contains("host-1:8080"), "{text}");
        let dapi = project.services["mock-dapi"].command.clone().unwrap().join(" ");
        assert!(dapi.contains("grpc:gateway=9099"), "{dapi}");
    }

    #[test]
    fn real_hosts_find_the_database_of_their_participant() {
        let bin = tempfile::tempdir().unwrap();
        std::fs::write(bin.path().join(HOST_PROGRAM), "").unwrap();
        let images = [(GATEWAY_IMAGE, "gw:1"), (HOST_IMAGE, "sup:2"), (POSTGRES, "postgres:16")];
        let scenario = resolved(|text| text.replace("storage: sqlite", "storage: postgres\n  replicas: 2"));
        let (project, _folder) = project(&scenario, &choice(&images, Some(bin.path().to_path_buf())));
        for (service, database) in [("host-1-0", "host_1"), ("host-1-1", "host_1"), ("host-2-0", "host_2")] {
            let host = &project.services[service];
            assert_eq!(host.environment["PGDATABASE"].as_deref(), Some(database));
            assert_eq!(host.environment["DEVSHARD_REQUIRE_POSTGRES"].as_deref(), Some("true"));
            assert_eq!(host.depends_on[POSTGRES].condition, Condition::ServiceHealthy);
        }
    }

    #[test]
    fn replicas_are_services_behind_a_router_with_a_database_for_each_participant() {
        let scenario = resolved(|text| text.replace("storage: sqlite", "storage: postgres\n  replicas: 2"));
        let (project, folder) = project(&scenario, &choice(&[(POSTGRES, "postgres:16")], None));
        let postgres = &project.services[POSTGRES];
        assert_eq!((postgres.image.as_deref(), postgres.build.is_none()), (Some("postgres:16"), true));
        let host = &project.services["host-2-1"];
        assert_eq!(host.depends_on[POSTGRES].condition, Condition::ServiceHealthy);
        let read = |name: &str| std::fs::read_to_string(folder.path().join("work").join(name)).unwrap();
        assert!(read("host-2-1.json").contains("postgres://proofload@postgres:5432/host_2"));
        // One file for both, in a volume that both see.
        for process in ["host-2-0", "host-2-1"] {
            assert!(read(&format!("{process}.json")).contains("\"database\": \"/data/host-2.db\""));
            let mount =
                project.services[process].mounts.iter().find(|mount| mount.target == "/data").unwrap();
            assert!(matches!(&mount.source, MountSource::Volume { key, .. } if key == "host-data"));
        }
        assert_eq!(read("postgres-init.sql").lines().count(), 3);
        assert!(read("router-2.json").contains("host-2-0:8080"));
        // One key for both processes of a participant, another for the next one.
        let key = |service: &str| project.services[service].environment["PROOFLOAD_HOST_KEY"].clone();
        assert_eq!(key("host-2-0"), key("host-2-1"));
        assert_ne!(key("host-1-0"), key("host-2-1"));
    }

    #[test]
    fn one_store_alone_can_be_asked_for_and_is_no_service_of_the_run() {
        let mut choice = choice(&[("prometheus", "own/prometheus:1")], None);
        choice.compose.observe = vec!["prometheus".to_owned()];
        let (project, _folder) = project(&resolved(|text| text), &choice);
        let stores: Vec<&String> = project.services.keys().filter(|name| observe::is_store(name)).collect();
        assert_eq!(stores, ["prometheus"]);
        assert_eq!(project.services["prometheus"].image.as_deref(), Some("own/prometheus:1"));
        assert!(!project.services.keys().any(|name| ["loki", "jaeger"].contains(&name.as_str())));
    }

    #[test]
    fn an_image_for_a_service_that_is_not_there_names_those_that_are() {
        let folder = tempfile::tempdir().unwrap();
        let scenario = resolved(|text| text);
        let at = |name: &str| folder.path().join(name);
        let folders = Folders {
            work: at("w"),
            run: at("r"),
            context: at("c"),
            postgres: at("p"),
            postgres_bin: PathBuf::new(),
            private: at("k"),
        };
        let keys = Keys::fresh(&scenario).unwrap();
        let error =
            load(&scenario, &choice(&[("gatway", "x")], None), &keys, &folders).unwrap_err().to_string();
        assert!(error.contains("no service \"gatway\"") && error.contains("gateway"), "{error}");
    }
}

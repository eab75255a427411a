//! Starting real programs in the order that their boot needs: mocks, hosts, a router in front of each, the
//! participants' URLs into the chain, gateway (contract gateway 1.1 and 1.2, contract mocks 1.4 and 5.3).

use std::collections::BTreeMap;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use evidence::event::EventKind;
use evidence::redact::Redactor;
use scenario::control::MockConfig;
use scenario::ready::ReadyLine;
use serde_json::{Value, json};
use wire::keyring::{RANDOM_BYTES, TEST_FOLDER, test_backend_files};
use wire::keys::PrivateKey;

use super::super::embedded::{MODEL, write_work};
use super::super::reference::{CHAIN_ID, Identity, chain_config, random};
use super::super::{Choice, Context, Running, launch};
use super::listener::port_of;
use super::mocks::{self, Started, address};
use super::programs::{PROTOCOL, Theirs, look};
use crate::collect::ask::{Ask, bound};
use crate::collect::{Escrows, HostSurface, Surfaces};
use crate::control::{Control, put};
use crate::error::RunnerError;
use crate::guard::Spawn;

/// How long a real program may take until it answers; a gateway asks the chain for every escrow first.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);
/// Pause between two looks.
const LOOK_PAUSE: Duration = Duration::from_millis(100);
/// Time limit of one look.
const LOOK_LIMIT: Duration = Duration::from_secs(2);

/// Starts everything and waits until every program answers.
///
/// # Errors
/// [`RunnerError::Environment`] with the last log lines of what did not come up.
pub async fn start(choice: &Choice, context: &mut Context<'_>) -> Result<Running, RunnerError> {
    let dir = choice.devshard_bin.as_deref().unwrap_or(Path::new("."));
    let theirs = look(dir).await?;
    let devshard = context.resolved.scenario.devshard.clone();
    let creator = Identity::fresh()?;
    let hosts: Vec<Identity> =
        (0..devshard.participants).map(|_| Identity::fresh()).collect::<Result<_, _>>()?;
    let admin_key = hex::encode(random::<24>()?);
    let keys = hosts.iter().chain([&creator]).map(|known| known.key_hex.clone());
    let secrets: Vec<String> = keys.chain([admin_key.clone()]).collect();
    context.dir.set_redactor(Redactor::new(secrets));
    let ask = Ask::new().map_err(RunnerError::environment)?;

    let chain = chain_config(context.resolved, &creator, &hosts, &BTreeMap::new());
    let mocks = mocks::start(context, chain, &ask).await?;
    for (index, host) in hosts.iter().enumerate() {
        spawn_host(context, &theirs, index, host, &mocks).await?;
    }
    let mut surfaces = Vec::new();
    let mut urls = BTreeMap::new();
    for (index, host) in hosts.iter().enumerate() {
        let base = routed(context, &theirs, index, ask.client()).await?;
        urls.insert(host.address.clone(), base.clone());
        surfaces.push(HostSurface {
            service: format!("host-{index}"),
            base,
            participant: host.address.clone(),
        });
    }
    let chain = chain_config(context.resolved, &creator, &hosts, &urls);
    let control = Control::new(ask.clone(), address(&mocks.chain_at, "control"));
    put(&control, &MockConfig::Chain(chain), "mock-chain").await?;
    spawn_gateway(context, &theirs, &creator, &admin_key, &mocks).await?;
    let port = answering(context, "gateway", "/v1/status", ask.client()).await?;
    let gateway = format!("http://127.0.0.1:{port}");
    let build = build_of(&ask, &gateway, &admin_key).await;
    note_ready(context, "gateway", port, &build)?;
    Ok(Running {
        surfaces: Surfaces {
            ask,
            gateway,
            admin_key,
            hosts: surfaces,
            session_prefix: format!("/devshard/{PROTOCOL}"),
            escrows: Escrows::first(devshard.escrows),
            requests_max: context.resolved.requests_max,
        },
        mocks: mocks.mocks,
        node_urls: mocks.node_urls,
        postgres: BTreeMap::new(),
        lease_ttl: None,
        model: MODEL.to_owned(),
        required: required(hosts.len()),
        waits_s: (0, 0),
    })
}

fn required(hosts: usize) -> Vec<String> {
    let fixed = ["mock-chain", "mock-dapi", "mock-openai", "gateway"].map(str::to_owned);
    let per_host = (0..hosts).flat_map(|index| [format!("host-{index}"), format!("router-{index}")]);
    fixed.into_iter().chain(per_host).collect()
}

/// Environment of a host (contract mocks 1.4). SQLite in a folder of its own: one participant, one database.
async fn spawn_host(
    context: &mut Context<'_>,
    theirs: &Theirs,
    index: usize,
    host: &Identity,
    mocks: &Started,
) -> Result<(), RunnerError> {
    let service = format!("host-{index}");
    let keyring = write_keyring(context.work, &service, host)?;
    let rpc = address(&mocks.chain_at, "rpc");
    let env = [
        ("NODE_HOST", "127.0.0.1".to_owned()),
        ("NODE_GRPC_URL", address(&mocks.chain_at, "grpc").to_owned()),
        ("NODE_RPC_URL", format!("http://{rpc}")),
        ("NODE_MANAGER_ADDR", address(&mocks.dapi_at, &format!("grpc:{service}")).to_owned()),
        // Without it the host asks the chain for its id before anything else.
        ("CHAIN_ID", CHAIN_ID.to_owned()),
        ("KEYRING_BACKEND", "test".to_owned()),
        ("KEYRING_DIR", keyring.display().to_string()),
        ("KEY_NAME", service.clone()),
        // Newer builds refuse peers on private addresses otherwise; older ones do not know the name.
        ("DEVSHARD_ALLOW_PRIVATE_ADDRESSES", "true".to_owned()),
    ];
    let data = context.work.join(format!("{service}-data"));
    make_dir(&data)?;
    let args =
        ["--port", "0", "--data-dir"].map(str::to_owned).into_iter().chain([data.display().to_string()]);
    spawn(context, &theirs.host, &service, args.collect(), env.into_iter().collect()).await
}

/// Environment of the gateway (contract gateway 1.2). The data folder is fresh: an old one would win over all of this.
async fn spawn_gateway(
    context: &mut Context<'_>,
    theirs: &Theirs,
    creator: &Identity,
    admin_key: &str,
    mocks: &Started,
) -> Result<(), RunnerError> {
    const KEY_ENV: &str = "DEVSHARD_PRIVATE_KEY";
    let escrow = |id: u32| json!({ "id": id.to_string(), "private_key_env": KEY_ENV, "model": MODEL });
    let escrows: Value = (1..=context.resolved.scenario.devshard.escrows).map(escrow).collect();
    let data = context.work.join("gateway-data");
    make_dir(&data)?;
    let env = [
        ("DEVSHARD_PORT", "0".to_owned()),
        ("DEVSHARD_STORAGE_DIR", data.display().to_string()),
        ("DEVSHARD_CHAIN_GRPC", address(&mocks.chain_at, "grpc").to_owned()),
        ("DEVSHARD_NODE_MANAGER_ADDR", address(&mocks.dapi_at, "grpc:gateway").to_owned()),
        ("DEVSHARD_PUBLIC_API", format!("http://{}", address(&mocks.dapi_at, "http"))),
        ("DEVSHARD_CHAIN_ID", CHAIN_ID.to_owned()),
        ("DEVSHARD_MODEL", MODEL.to_owned()),
        ("DEVSHARDS_JSON", escrows.to_string()),
        (KEY_ENV, creator.key_hex.clone()),
        ("DEVSHARD_ADMIN_API_KEY", admin_key.to_owned()),
        ("DEVSHARD_ALLOW_PRIVATE_ADDRESSES", "true".to_owned()),
    ];
    spawn(context, &theirs.gateway, "gateway", Vec::new(), env.into_iter().collect()).await
}

async fn spawn(
    context: &mut Context<'_>,
    program: &Path,
    service: &str,
    args: Vec<String>,
    env: BTreeMap<&str, String>,
) -> Result<(), RunnerError> {
    let env = env.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    let log = context.dir.path(&launch::log_file(service));
    let (service, program) = (service.to_owned(), program.to_path_buf());
    context.guard.spawn(Spawn { service, program, args, env, log, user: None, stdout_to_log: true }).await
}

/// Waits for a host and puts a router in front of it: gateway and hosts write `/devshard/<version>`, which a bare host
/// does not know. Answers the router's base URL.
async fn routed(
    context: &mut Context<'_>,
    theirs: &Theirs,
    index: usize,
    http: &reqwest::Client,
) -> Result<String, RunnerError> {
    let service = format!("host-{index}");
    let port = answering(context, &service, "/healthz", http).await?;
    note_ready(context, &service, port, &theirs.host_build)?;
    let router = format!("router-{index}");
    let config = json!({
        "upstreams": [format!("127.0.0.1:{port}")],
        "strip_prefix": format!("/devshard/{PROTOCOL}"),
    });
    let file = write_work(context, &router, &config)?;
    let args = vec!["--config".to_owned(), file];
    let spawn = launch::child(context, "ref-router", &router, args, BTreeMap::new());
    context.guard.spawn(spawn).await?;
    let line: ReadyLine = launch::ready(context, &router).await?;
    Ok(format!("http://{}", address(&line, "http")))
}

/// Waits until a program of others listens and answers 200, its exit, or the limit.
async fn answering(
    context: &mut Context<'_>,
    service: &str,
    path: &str,
    http: &reqwest::Client,
) -> Result<u16, RunnerError> {
    let deadline = tokio::time::Instant::now() + ANSWER_LIMIT;
    let mut last = "it listens on no port".to_owned();
    while tokio::time::Instant::now() < deadline {
        let state = context.dispatcher.services.entry(service.to_owned()).or_default();
        if let Some(error) = &state.not_spawned {
            return Err(RunnerError::environment(format!("starting {service}: {error}")));
        }
        if let Some(ended) = &state.ended {
            let message = format!("{service} ended before it answered ({ended})");
            return Err(launch::failed(context.dir, service, message));
        }
        let port = state.running.then(|| port_of(state.pid)).flatten();
        if let Some(port) = port {
            let ask = http.get(format!("http://127.0.0.1:{port}{path}")).timeout(LOOK_LIMIT).send();
            match context.dispatcher.through(ask).await? {
                Ok(answer) if answer.status().is_success() => return Ok(port),
                Ok(answer) => last = format!("{path} answers {}", answer.status()),
                Err(error) => last = format!("{path}: {error}"),
            }
        }
        if context.dispatcher.signals > 0 {
            return Err(RunnerError::environment("stopped while the stack was starting"));
        }
        context.dispatcher.through(tokio::time::sleep(LOOK_PAUSE)).await?;
    }
    let message = format!("{service} did not answer within {} s: {last}", ANSWER_LIMIT.as_secs());
    Err(launch::failed(context.dir, service, message))
}

fn note_ready(context: &mut Context<'_>, service: &str, port: u16, build: &str) -> Result<(), RunnerError> {
    let (pid, start_ticks) =
        context.dispatcher.services.get(service).map_or((0, 0), |state| (state.pid, state.start_ticks));
    context.dispatcher.log(EventKind::ProcessReady {
        service: service.to_owned(),
        pid,
        start_ticks,
        addresses: BTreeMap::from([("http".to_owned(), format!("127.0.0.1:{port}"))]),
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

//! The real programs: ready line, kill -9, failover of the router, command line.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests fail the test; the lint exempts only test functions"
)]

mod support;

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use scenario::ready::ReadyLine;
use serde_json::{Value, json};
use support::user::User;
use support::{Urls, dapi, host_config, key, signer};
use tempfile::TempDir;

/// A child that does not outlive its test.
struct Program {
    child: Child,
    url: String,
    address: String,
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn start(program: &str, name: &str, config: &Path, extra: &[&str]) -> Program {
    let mut child = Command::new(program)
        .arg("--config")
        .arg(config)
        .args(extra)
        .env("PROOFLOAD_HOST_KEY", key(1))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let ready: ReadyLine = serde_json::from_str(&line).unwrap();
    assert_eq!((ready.program.as_str(), ready.build.as_str()), (name, scenario::build::BUILD_ID));
    let address = ready.ready["http"].clone();
    Program { child, url: format!("http://{address}"), address }
}

fn start_host(config: &Path) -> Program {
    start(env!("CARGO_BIN_EXE_ref-host"), "ref-host", config, &[])
}

struct World {
    user: User,
    directory: TempDir,
    config: std::path::PathBuf,
}

async fn world() -> World {
    let group = vec![signer(1).address().to_owned()];
    let chain = support::chain::start_chain(group.clone(), Urls::default()).await;
    let (_, node) = support::node::start_node().await;
    let (_, dapi) = dapi::start_dapi(vec![("node".to_owned(), node)]).await;
    let directory = TempDir::new().unwrap();
    let config = directory.path().join("host.json");
    let text = serde_json::to_string(&host_config(&directory.path().join("host.db"), &chain, &dapi)).unwrap();
    std::fs::write(&config, text).unwrap();
    World { user: User::new(group), directory, config }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_9_loses_nothing_that_was_answered() {
    let World { mut user, directory: _directory, config } = world().await;
    let mut host = start_host(&config);
    for round in 0..4 {
        for stream in [true, false, true] {
            let (id, payload) = user.start(stream);
            assert_eq!(user.chat(&host.url, id, Some(payload)).await.done, 1);
        }
        let log = user.get(&host.url, "diffs?from=1&to=999").await;
        let mempool = user.get(&host.url, "mempool").await;
        assert_eq!(log.as_array().unwrap().len(), 3 * (round + 1));
        host.child.kill().unwrap();
        host.child.wait().unwrap();
        host = start_host(&config);
        assert_eq!(user.get(&host.url, "diffs?from=1&to=999").await, log);
        assert_eq!(user.get(&host.url, "mempool").await, mempool);
    }
    // Replayed to the user's own state: otherwise the next step's root would not fit.
    let (id, payload) = user.start(true);
    let answer = user.chat(&host.url, id, Some(payload)).await;
    assert_eq!(answer.receipt.unwrap().state_hash.0, user.session.root());
}

/// A restarted service is found where it was.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_host_comes_back_at_its_address_with_its_state() {
    let World { mut user, directory: _directory, config } = world().await;
    let mut host = start_host(&config);
    let (id, payload) = user.start(true);
    assert_eq!(user.chat(&host.url, id, Some(payload)).await.done, 1);
    let log = user.get(&host.url, "diffs?from=1&to=9").await;
    let (url, address) = (host.url.clone(), host.address.clone());
    host.child.kill().unwrap();
    host.child.wait().unwrap();
    let again = start(env!("CARGO_BIN_EXE_ref-host"), "ref-host", &config, &["--listen", &address]);
    assert_eq!(again.url, url);
    assert_eq!(user.get(&url, "diffs?from=1&to=9").await, log);
    let (id, payload) = user.start(false);
    assert_eq!(user.chat(&url, id, Some(payload)).await.done, 1);
    // The personality is the command line's.
    drop(again);
    let july = ["--listen", &address, "--personality", "july"];
    let again = start(env!("CARGO_BIN_EXE_ref-host"), "ref-host", &config, &july);
    let mempool = user.get(&again.url, "mempool").await;
    assert_eq!(mempool["txs"], json!([]), "July keeps its mempool in memory alone");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_router_sticks_to_a_replica_and_fails_over_when_it_is_gone() {
    let World { mut user, directory, config } = world().await;
    let mut hosts = vec![start_host(&config)];
    // The second replica shares the database, as replicas of one participant do.
    hosts.push(start_host(&config));
    let upstreams: Vec<&String> = hosts.iter().map(|host| &host.address).collect();
    let router_config = directory.path().join("router.json");
    std::fs::write(&router_config, json!({ "upstreams": upstreams }).to_string()).unwrap();
    let router = start(env!("CARGO_BIN_EXE_ref-router"), "ref-router", &router_config, &[]);

    let served_by = async |user: &User| -> String {
        let url = format!("{}/devshard/v2/sessions/42/mempool", router.url);
        let response = user.http.get(url).send().await.unwrap();
        response.headers()["x-upstream-addr"].to_str().unwrap().to_owned()
    };
    let (id, payload) = user.start(true);
    assert_eq!(user.chat(&router.url, id, Some(payload)).await.done, 1);
    let first = served_by(&user).await;
    for _ in 0..5 {
        assert_eq!(served_by(&user).await, first);
    }
    let gone = hosts.iter().position(|host| host.address == first).unwrap();
    hosts.remove(gone);
    assert_eq!(served_by(&user).await, hosts[0].address);
    let nowhere = user.http.get(format!("{}/healthz", router.url)).send().await.unwrap();
    assert_eq!(nowhere.text().await.unwrap(), "ok");
    hosts.clear();
    let nowhere = user.http.get(format!("{}/healthz", router.url)).send().await.unwrap();
    assert_eq!(nowhere.status(), 502);
}

#[test]
fn a_bad_start_says_why_and_leaves_no_ready_line() {
    let directory = TempDir::new().unwrap();
    let config = directory.path().join("host.json");
    let run = |text: &str, key: &str, extra: &[&str]| {
        std::fs::write(&config, text).unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_ref-host"))
            .arg("--config")
            .arg(&config)
            .args(extra)
            .env("PROOFLOAD_HOST_KEY", key)
            .output()
            .unwrap();
        assert!(output.stdout.is_empty());
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let database = directory.path().join("no/such/folder.db");
    let good =
        json!({"host": "h", "chain_grpc": "127.0.0.1:1", "dapi_grpc": "127.0.0.1:1", "database": database});
    let mut typo = good.clone();
    typo["databse"] = Value::Null;
    let (code, text) = run(&typo.to_string(), &key(1), &[]);
    assert_eq!(code, Some(5));
    assert!(text.contains("databse"), "{text}");
    let (code, text) = run(&good.to_string(), "not a key", &[]);
    assert_eq!(code, Some(5));
    assert!(text.contains("PROOFLOAD_HOST_KEY") && !text.contains("not a key"), "{text}");
    let (code, text) = run(&good.to_string(), &key(1), &[]);
    assert_eq!(code, Some(5));
    assert!(text.contains("database"), "{text}");
    let (code, text) = run(&good.to_string(), &key(1), &["--defect", "no-such-defect"]);
    assert_eq!(code, Some(2), "{text}");
    let flag_exists = !text.contains("unexpected argument");
    assert_eq!(flag_exists, cfg!(feature = "planted-defects"), "{text}");
}

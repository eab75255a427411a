//! Stand-ins for the programs of others: the reference Devshard in the place of `devshardctl` and `devshardd`, started with
//! their environment, and a `versiond` that supervises and passes on as the real one does (contract hosts 1.2).

#![allow(dead_code, clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

/// Variables of a stand-in: whose place it takes, where our programs are, its arguments, one a line.
const ROLE: &str = "PROOFLOAD_THEIRS";
const BIN: &str = "PROOFLOAD_THEIRS_BIN";
const ARGS: &str = "PROOFLOAD_THEIRS_ARGS";
/// Variable by which a test finds the processes of its own folder.
pub const HOME: &str = "PROOFLOAD_THEIRS_HOME";

/// Writes all three into a folder, for the programs of `own`.
pub fn write_all(folder: &Path, own: &Path) {
    let test = std::env::current_exe().unwrap();
    for role in ["devshardctl", "devshardd", "versiond"] {
        let script = format!(
            "#!/bin/sh\ncase \"$1\" in --print-*) echo v2; exit 0;; esac\n\
             {ROLE}={role} {HOME}='{}' {BIN}='{}' {ARGS}=\"$(printf '%s\\n' \"$@\")\" \
             exec '{}' --exact namespaces::the_stand_in --nocapture\n",
            folder.display(),
            own.display(),
            test.display()
        );
        let path = folder.join(role);
        std::fs::write(&path, script).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    }
}

/// Whether this machine makes network namespaces with links.
pub fn namespaces() -> bool {
    let link = ["-n", "ip", "link", "add", "probe0", "type", "veth", "peer", "name", "probe1"];
    Command::new("unshare").args(link).output().is_ok_and(|output| output.status.success())
}

/// Living processes of a folder's stand-ins and what they became, by part of their command line and environment.
pub fn processes(folder: &Path, program: &str, variable: &str) -> Vec<u32> {
    let home = format!("{HOME}={}", folder.display());
    let pids = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| {
        let read = |name: &str| std::fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
        let environment = String::from_utf8_lossy(&read("environ")).into_owned();
        let of = |wanted: &str| environment.split('\0').any(|entry| entry == wanted);
        let line = String::from_utf8_lossy(&read("cmdline")).into_owned();
        of(&home) && (variable.is_empty() || of(variable)) && line.contains(program)
    })
    .collect()
}

fn var(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set"))
}

/// The stand-in itself, in the process that a script starts; in every other one nothing.
pub fn run() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let args: Vec<String> = var(ARGS).lines().map(str::to_owned).collect();
    match role.as_str() {
        "devshardctl" => gateway(),
        "devshardd" => host(&args),
        _ => supervise(),
    }
}

/// Writes a configuration and becomes one of our programs.
fn become_ours(program: &str, folder: &Path, config: &Value, secrets: &[(&str, String)]) {
    std::fs::create_dir_all(folder).unwrap();
    let file = folder.join("stand-in.json");
    std::fs::write(&file, config.to_string()).unwrap();
    let secrets = secrets.iter().map(|(name, value)| (*name, value.as_str()));
    let error = Command::new(PathBuf::from(var(BIN)).join(program))
        .args(["--config".as_ref(), file.as_os_str()])
        .envs(secrets)
        .exec();
    panic!("{program}: {error}");
}

fn gateway() {
    let escrows: Value = serde_json::from_str(&var("DEVSHARDS_JSON")).unwrap();
    let ids: Vec<u64> = escrows
        .as_array()
        .unwrap()
        .iter()
        .map(|escrow| escrow["id"].as_str().unwrap().parse().unwrap())
        .collect();
    let folder = PathBuf::from(var("DEVSHARD_STORAGE_DIR"));
    let config = json!({
        "escrow_ids": ids,
        "model": var("DEVSHARD_MODEL"),
        "listen": format!("0.0.0.0:{}", var("DEVSHARD_PORT")),
        "chain_grpc": var("DEVSHARD_CHAIN_GRPC"),
        "public_api": var("DEVSHARD_PUBLIC_API"),
        "database_dir": folder.join("reference"),
    });
    let secrets = [
        ("PROOFLOAD_CREATOR_KEY", var("DEVSHARD_PRIVATE_KEY")),
        ("PROOFLOAD_ADMIN_KEY", var("DEVSHARD_ADMIN_API_KEY")),
    ];
    become_ours("ref-gateway", &folder, &config, &secrets);
}

fn host(args: &[String]) {
    let after = |name: &str| args[args.iter().position(|arg| arg == name).unwrap() + 1].clone();
    let folder = PathBuf::from(after("--data-dir"));
    let key_file = Path::new(&var("KEYRING_DIR")).join("keyring-test").join(var("KEY_NAME") + ".info");
    let content = std::fs::read_to_string(&key_file).unwrap();
    let (_, key) = wire::keyring::read_key_file(&content, "test").unwrap();
    let config = json!({
        "host": var("KEY_NAME"),
        "listen": format!("0.0.0.0:{}", after("--port")),
        "chain_grpc": var("NODE_GRPC_URL"),
        "chain_rpc": var("NODE_RPC_URL").trim_start_matches("http://"),
        "dapi_grpc": var("NODE_MANAGER_ADDR"),
        "database": folder.join("host.db"),
    });
    become_ours("ref-host", &folder, &config, &[("PROOFLOAD_HOST_KEY", key.expose_hex())]);
}

/// Starts the host program, starts it again when it ends, and passes on what comes to the fixed port.
fn supervise() {
    let versions = var("VERSIOND_FORCE");
    let program = var(&format!("VERSIOND_OVERRIDE_{versions}"));
    let data = PathBuf::from(var("VERSIOND_DATA_DIR")).join(&versions);
    let listener = TcpListener::bind("0.0.0.0:8080").unwrap();
    let running = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&running);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let running = seen.load(Ordering::SeqCst);
            std::thread::spawn(move || drop(pass_on(&stream, running)));
        }
    });
    loop {
        let mut command = Command::new(&program);
        let mut child = command.args(["--port", "5000", "--data-dir"]).arg(&data).spawn().unwrap();
        while TcpStream::connect("127.0.0.1:5000").is_err() && child.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(20));
        }
        running.store(true, Ordering::SeqCst);
        let status = child.wait().unwrap();
        running.store(false, Ordering::SeqCst);
        eprintln!("ERROR child exited version={versions} {status}");
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// Answers one request: the list of children, 404 without a child, else what the child says. Its host knows the paths with
/// their version, too, so that nothing is taken off.
fn pass_on(stream: &TcpStream, running: bool) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut head = String::new();
    while reader.read_line(&mut head)? > 2 {}
    let mut client = stream;
    let answer = |status: &str, body: &str| {
        format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}", body.len())
    };
    if head.starts_with("GET /healthz ") {
        let status = if running { "running" } else { "stopped" };
        let list = json!([{ "name": "v2", "port": 5000, "status": status }]).to_string();
        return client.write_all(answer("200 OK", &list).as_bytes());
    }
    let Some(mut child) = running.then(|| TcpStream::connect("127.0.0.1:5000").ok()).flatten() else {
        return client.write_all(answer("404 Not Found", "version \"v2\" not found").as_bytes());
    };
    child.set_nodelay(true)?;
    // One request a connection: the next one may be for the list.
    let lines = head.lines().filter(|line| !line.to_ascii_lowercase().starts_with("connection:"));
    let lines: Vec<&str> = lines.filter(|line| !line.is_empty()).chain(["Connection: close"]).collect();
    child.write_all(format!("{}\r\n\r\n", lines.join("\r\n")).as_bytes())?;
    let mut to_child = child.try_clone()?;
    std::thread::spawn(move || {
        let mut buffer = [0; 16 * 1024];
        while let Ok(count @ 1..) = reader.read(&mut buffer) {
            if to_child.write_all(&buffer[..count]).is_err() {
                break;
            }
        }
    });
    let copied = std::io::copy(&mut child, &mut client);
    stream.shutdown(Shutdown::Both)?;
    copied.map(drop)
}

//! A stand-in for a service of the stack: a script in the place of its program starts this test again as a proxy, which
//! starts the real program behind itself. From a phase of the run on it answers what it likes to what the runner
//! reads; everything else goes through.

#![allow(dead_code, clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Variables of the proxy's process: its task, and the arguments of the program, one a line.
const TASK: &str = "PROOFLOAD_STAND_IN";
const ARGS: &str = "PROOFLOAD_STAND_IN_ARGS";
/// Length of the answer of [`Manner::Huge`].
const HUGE: usize = 100 * 1024 * 1024;

/// How it misbehaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Manner {
    /// A page for people.
    Html,
    /// JSON of another form.
    Form,
    /// Takes the connection and closes it.
    Close,
    /// Takes the connection and never answers.
    Hang,
    /// 100 MB of JSON.
    Huge,
}

/// What the proxy is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Task {
    /// Program that stands behind it.
    pub program: PathBuf,
    /// Folder with run directories, where the phase is seen.
    pub results: PathBuf,
    /// Service that misbehaves; others of the same program are only passed through.
    pub service: String,
    /// From when on.
    pub phase: String,
    /// How.
    pub manner: Manner,
    /// Requests that are spoilt, by part of the first line.
    pub spoilt: Vec<String>,
}

/// Makes a folder with all programs of `own`, of which `program` is the stand-in.
pub fn bin_dir(own: &Path, folder: &Path, program: &str, task: &Task) {
    for entry in std::fs::read_dir(own).unwrap().flatten() {
        let name = entry.file_name();
        if entry.path().is_file() && name.to_str() != Some(program) {
            std::os::unix::fs::symlink(entry.path(), folder.join(&name)).unwrap();
        }
    }
    let test = std::env::current_exe().unwrap();
    let task = serde_json::to_string(task).unwrap();
    assert!(!task.contains('\''), "the task goes into a script");
    let script = format!(
        "#!/bin/sh\n{ARGS}=\"$(printf '%s\\n' \"$@\")\" {TASK}='{task}' exec '{}' --exact services_misbehave::the_stand_in --nocapture\n",
        test.display()
    );
    let path = folder.join(program);
    std::fs::write(&path, script).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
}

/// The proxy itself, in the process that the script starts; in every other one nothing.
pub fn run() {
    let Ok(task) = std::env::var(TASK) else { return };
    let task: Task = serde_json::from_str(&task).unwrap();
    let args: Vec<String> = std::env::var(ARGS).unwrap().lines().map(str::to_owned).collect();
    let (args, own) = displaced(args, &task);
    let Some((listener, name)) = own else {
        // Another service of the same program: it takes this process's place.
        let error = std::os::unix::process::CommandExt::exec(Command::new(&task.program).args(args));
        panic!("{}: {error}", task.program.display());
    };
    let mut child = Command::new(&task.program)
        .args(args)
        .stdin(Stdio::inherit())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut ready: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    let behind: SocketAddr = ready["ready"][&name].as_str().unwrap().parse().unwrap();
    ready["ready"][&name] = json!(listener.local_addr().unwrap().to_string());
    println!("{ready}");
    let spoilt = Arc::new(AtomicBool::new(false));
    for stream in listener.incoming().flatten() {
        let (task, spoilt) = (task.clone(), Arc::clone(&spoilt));
        std::thread::spawn(move || drop(serve(stream, behind, &task, &spoilt)));
    }
    // The listener never ends; the guard ends both.
    drop(child.wait());
}

/// The program's arguments with another port in them, and a listener at the port that the runner gave.
fn displaced(args: Vec<String>, task: &Task) -> (Vec<String>, Option<(TcpListener, String)>) {
    let at = |name: &str| args.iter().position(|arg| arg == name).map(|at| at + 1);
    if let Some(place) = args.iter().position(|arg| arg.starts_with("control=")) {
        let port: u16 = args[place].trim_start_matches("control=").parse().unwrap();
        let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
        let mut args = args;
        args[place] = "control=0".to_owned();
        return (args, Some((listener, "control".to_owned())));
    }
    let file = PathBuf::from(&args[at("--config").unwrap()]);
    if file.file_stem().unwrap().to_str() != Some(task.service.as_str()) {
        return (args, None);
    }
    let mut config: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let listener = TcpListener::bind(config["listen"].as_str().unwrap()).unwrap();
    config["listen"] = json!("127.0.0.1:0");
    std::fs::write(&file, config.to_string()).unwrap();
    (args, Some((listener, "http".to_owned())))
}

/// Serves one request of a connection.
fn serve(mut stream: TcpStream, behind: SocketAddr, task: &Task, spoilt: &AtomicBool) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut head: Vec<String> = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let line = line.trim_end().to_owned();
        if line.is_empty() {
            break;
        }
        head.push(line);
    }
    let of = |name: &str| {
        let lines = head.iter().skip(1).filter_map(|line| line.split_once(':'));
        lines.filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim()).next()
    };
    let length: usize = of("content-length").map_or(0, |text| text.parse().unwrap());
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    // Clients and other services get what they ask for: what is broken is the runner's view alone.
    let of_runner = of("user-agent") == Some("proofload-runner");
    if of_runner && task.spoilt.iter().any(|part| head[0].contains(part)) && begun(task, spoilt) {
        return misbehave(stream, task.manner);
    }
    let mut upstream = TcpStream::connect(behind)?;
    upstream.set_nodelay(true)?;
    let kept = head.iter().filter(|line| !line.to_ascii_lowercase().starts_with("connection:"));
    let mut text: String = kept.map(|line| format!("{line}\r\n")).collect();
    text.push_str("Connection: close\r\n\r\n");
    upstream.write_all(text.as_bytes())?;
    upstream.write_all(&body)?;
    // A client that goes away takes the call behind along.
    let (mut gone, other) = (stream.try_clone()?, upstream.try_clone()?);
    std::thread::spawn(move || {
        let mut rest = [0; 64];
        while matches!(gone.read(&mut rest), Ok(count) if count > 0) {}
        drop(other.shutdown(Shutdown::Both));
    });
    std::io::copy(&mut upstream, &mut stream)?;
    stream.shutdown(Shutdown::Both)
}

fn begun(task: &Task, spoilt: &AtomicBool) -> bool {
    if !spoilt.load(Ordering::Relaxed) {
        let mark = format!("\"phase\":\"{}\"", task.phase);
        let seen = super::run_dirs(&task.results).iter().any(|dir| {
            let events = std::fs::read_to_string(dir.join("events.jsonl")).unwrap_or_default();
            events.lines().any(|line| line.contains("phase-started") && line.contains(&mark))
        });
        spoilt.fetch_or(seen, Ordering::Relaxed);
    }
    spoilt.load(Ordering::Relaxed)
}

fn misbehave(mut stream: TcpStream, manner: Manner) -> std::io::Result<()> {
    let answer = |kind: &str, length: usize| {
        format!(
            "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
        )
    };
    match manner {
        Manner::Close => {}
        Manner::Hang => std::thread::sleep(Duration::from_secs(600)),
        Manner::Html | Manner::Form => {
            let (kind, body) = match manner {
                Manner::Html => ("text/html", "<html><body>please come back later</body></html>"),
                _ => ("application/json", "{\"ok\":true}"),
            };
            stream.write_all(answer(kind, body.len()).as_bytes())?;
            stream.write_all(body.as_bytes())?;
        }
        Manner::Huge => {
            stream.write_all(answer("application/json", HUGE).as_bytes())?;
            let part = b"[0,".iter().chain(std::iter::repeat_n(b"0,", 40_000).flatten());
            let part: Vec<u8> = part.copied().collect();
            for _ in 0..HUGE / part.len() {
                stream.write_all(&part)?;
            }
        }
    }
    stream.shutdown(Shutdown::Both)
}

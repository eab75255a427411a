//! The guard program itself (`runner __guard`).

use std::collections::HashMap;
use std::ffi::CStr;
use std::fs::OpenOptions;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use rustix::process::{Signal, set_child_subreaper};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin};
use tokio::sync::mpsc;

use scenario::control::MockConfig;

use super::{Command, Foreign, LINE_LEN_MAX, Report, ServiceSignal, Spawn, tree};
use crate::collect::ask::Ask;
use crate::control::Control;
use crate::life::run::WORK_PREFIX;

/// Reports that may wait for the runner to read them; beyond, services wait with their output.
const REPORTS_MAX: usize = 4_096;
/// Time that services get to end by themselves when the runner is gone.
const ORPHAN_GRACE: Duration = Duration::from_millis(300);

struct Service {
    pid: u32,
    input: Option<ChildStdin>,
}

/// Name of the process, at most 15 bytes: not the runner's, see [`super::client`].
const NAME: &CStr = c"proofload-guard";

/// Runs until standard input ends; then removes the run's private directory, too.
#[must_use]
pub fn run(work: &Path) -> ExitCode {
    // A machine that refuses the name has a guard all the same.
    let _refused = rustix::thread::set_name(NAME);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    match runtime {
        Ok(runtime) => runtime.block_on(guard(work)),
        Err(error) => {
            eprintln!("guard: no runtime: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn guard(work: &Path) -> ExitCode {
    let own = std::process::id();
    if let Err(error) = set_child_subreaper(Some(rustix::process::getpid())) {
        eprintln!("guard: becoming a child subreaper failed: {error}");
        return ExitCode::FAILURE;
    }
    let (reports, outbox) = mpsc::channel::<Report>(REPORTS_MAX);
    let writer = tokio::spawn(write_reports(outbox));
    send(&reports, Report::Standing { pid: own }).await;
    let mut services: HashMap<String, Service> = HashMap::new();
    let mut foreign = Vec::new();
    let mut input = BufReader::new(tokio::io::stdin());
    let mut line = String::new();
    loop {
        line.clear();
        match input.read_line(&mut line).await {
            Ok(n) if n > 0 => {}
            _ => break,
        }
        match serde_json::from_str::<Command>(&line) {
            Ok(Command::TakeOff(mock)) => foreign.push(mock),
            Ok(Command::TakenOff) => foreign.clear(),
            Ok(command) => carry_out(command, &mut services, &reports, own).await,
            Err(error) => eprintln!("guard: not a command: {error}"),
        }
    }
    // The runner is gone or has finished: nothing of the run may stay.
    services.clear();
    tree::end_all(own, ORPHAN_GRACE).await;
    for mock in foreign {
        if let Err(why) = take_off(&mock).await {
            eprintln!("guard: rules of this run may stand at {}: {why}", mock.address);
        }
    }
    // A runner that could still do it has nothing against its directory being gone; `gc` finds one that resists.
    if work.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(WORK_PREFIX.as_bytes())) {
        drop(std::fs::remove_dir_all(work));
    }
    drop(reports);
    writer.abort();
    ExitCode::SUCCESS
}

async fn carry_out(
    command: Command,
    services: &mut HashMap<String, Service>,
    reports: &mpsc::Sender<Report>,
    own: u32,
) {
    match command {
        Command::Spawn(spawn) => match start(&spawn) {
            Ok(mut child) => {
                let pid = child.id().unwrap_or_default();
                let input = child.stdin.take();
                services.insert(spawn.service.clone(), Service { pid, input });
                let start_ticks = tree::start_ticks(pid).unwrap_or_default();
                send(reports, Report::Spawned { service: spawn.service.clone(), pid, start_ticks }).await;
                tokio::spawn(follow(spawn.service, pid, child, reports.clone()));
            }
            Err(error) => {
                let error = format!("{}: {error}", spawn.program.display());
                send(reports, Report::NotSpawned { service: spawn.service, error }).await;
            }
        },
        Command::Input { service, line } => {
            if let Some(input) = services.get_mut(&service).and_then(|s| s.input.as_mut()) {
                let text = format!("{line}\n");
                // A service that closed its input is reported by its exit, not here.
                drop(input.write_all(text.as_bytes()).await);
            }
        }
        Command::Signal { service, signal } => {
            let Some(service) = services.get(&service) else { return };
            match signal {
                // What a service started is part of it. A polite end is its own to pass on, the others reach all.
                ServiceSignal::Interrupt | ServiceSignal::Terminate => {
                    tree::signal(service.pid, number(signal));
                }
                ServiceSignal::Kill | ServiceSignal::Stop | ServiceSignal::Continue => {
                    tree::signal_all(service.pid, number(signal));
                }
            }
        }
        // These are no services: the loop itself keeps them.
        Command::TakeOff(_) | Command::TakenOff => {}
        Command::EndAll { grace_ms } => {
            for service in services.values_mut() {
                service.input = None;
            }
            let killed = tree::end_all(own, Duration::from_millis(grace_ms)).await;
            send(reports, Report::Ended { killed }).await;
        }
    }
}

/// Takes all rules off a mock that held none before this run; all else stays as it is by now.
async fn take_off(mock: &Foreign) -> Result<(), String> {
    let control = Control::new(Ask::new()?, &mock.address);
    let mut config = control.config().await?;
    match &mut config {
        MockConfig::Openai(config) => {
            config.rules.clear();
            config.seed = mock.seed.unwrap_or(config.seed);
        }
        MockConfig::Dapi(config) => config.rules.clear(),
        MockConfig::Chain(config) => config.rules.clear(),
    }
    control.put_config(&config).await.map(drop)
}

const fn number(signal: ServiceSignal) -> Signal {
    match signal {
        ServiceSignal::Interrupt => Signal::INT,
        ServiceSignal::Terminate => Signal::TERM,
        ServiceSignal::Kill => Signal::KILL,
        ServiceSignal::Stop => Signal::STOP,
        ServiceSignal::Continue => Signal::CONT,
    }
}

fn start(spawn: &Spawn) -> std::io::Result<Child> {
    let log = OpenOptions::new().create(true).append(true).open(&spawn.log)?;
    let mut command = tokio::process::Command::new(&spawn.program);
    command.args(&spawn.args).env_clear().envs(&spawn.env);
    // Programs need to find shared libraries and temporary space as the user's shell does, and nothing else.
    for name in ["PATH", "HOME", "TMPDIR", "LANG", "LD_LIBRARY_PATH"] {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    if let Some((uid, gid)) = spawn.user {
        command.gid(gid).uid(uid).current_dir("/");
    }
    let stdout = if spawn.stdout_to_log { Stdio::from(log.try_clone()?) } else { Stdio::piped() };
    command.stdin(Stdio::piped()).stdout(stdout).stderr(log).spawn()
}

/// Forwards standard output by the line, then reports the exit.
async fn follow(service: String, pid: u32, mut child: Child, reports: mpsc::Sender<Report>) {
    if let Some(output) = child.stdout.take() {
        let mut lines = BufReader::new(output);
        let mut bytes = Vec::new();
        loop {
            bytes.clear();
            match lines.read_until(b'\n', &mut bytes).await {
                Ok(n) if n > 0 => {}
                _ => break,
            }
            bytes.truncate(LINE_LEN_MAX);
            let line = String::from_utf8_lossy(&bytes).trim_end().to_owned();
            send(&reports, Report::Output { service: service.clone(), line }).await;
        }
    }
    let status = child.wait().await;
    let (code, signal) = status.map_or((None, None), |status| (status.code(), status.signal()));
    send(&reports, Report::Exited { service, pid, code, signal }).await;
}

async fn send(reports: &mpsc::Sender<Report>, report: Report) {
    // The writer only ends with the guard itself.
    drop(reports.send(report).await);
}

async fn write_reports(mut outbox: mpsc::Receiver<Report>) {
    let mut out = tokio::io::stdout();
    while let Some(report) = outbox.recv().await {
        let Ok(mut line) = serde_json::to_string(&report) else { continue };
        line.push('\n');
        if out.write_all(line.as_bytes()).await.is_err() || out.flush().await.is_err() {
            return;
        }
    }
}

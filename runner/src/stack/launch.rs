//! Child processes of the guard: start, ready line, end. Every provider that runs programs of ours uses these.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use evidence::event::EventKind;
use evidence::rundir::{LOGS, RunDir};
use evidence::snapshot::ProcessIdentity;
use scenario::build::BUILD_ID;
use scenario::pipe::LoadgenJob;
use scenario::ready::ReadyLine;

use super::{Context, LOADGEN, Running};
use crate::error::RunnerError;
use crate::guard::{ServiceSignal, Spawn};
use crate::life::run::OWNER_VARIABLE;

/// How long a program may take until its ready line.
const READY_LIMIT: Duration = Duration::from_secs(20);
/// Log lines shown when a program fails.
const LOG_TAIL: usize = 20;

/// Log file of a service in the run directory.
#[must_use]
pub fn log_file(service: &str) -> String {
    format!("{LOGS}/{service}.log")
}

/// A child process of the guard that logs into the run directory.
#[must_use]
pub fn child(
    context: &Context<'_>,
    program: &str,
    service: &str,
    mut args: Vec<String>,
    env: BTreeMap<String, String>,
) -> Spawn {
    // The guard holds the other end: a program of ours ends with it, even when nobody is left to end it. loadgen takes
    // its orders there and needs no flag.
    if program != LOADGEN {
        args.push("--exit-with-stdin".to_owned());
    }
    Spawn {
        service: service.to_owned(),
        program: context.programs.path(program),
        args,
        env,
        log: context.dir.path(&log_file(service)),
        user: None,
        stdout_to_log: false,
    }
}

/// Folder in the run's private directory under which mocks write their logs.
#[must_use]
pub fn journals(context: &Context<'_>) -> PathBuf {
    context.work.join("journal")
}

/// The flag that makes a mock write its logs into its own folder there.
#[must_use]
pub fn journal(context: &Context<'_>, service: &str) -> [String; 2] {
    ["--journal".to_owned(), journals(context).join(service).display().to_string()]
}

/// Starts a service, for the first time or again: what is known of an earlier process is forgotten.
///
/// # Errors
/// [`RunnerError::Environment`] when the guard is gone.
pub async fn spawn(context: &mut Context<'_>, mut spawn: Spawn) -> Result<(), RunnerError> {
    // What a service starts itself inherits it: so a process is found that guard and runner can no longer end.
    spawn.env.insert(OWNER_VARIABLE.to_owned(), context.work.display().to_string());
    let state = context.dispatcher.services.entry(spawn.service.clone()).or_default();
    state.not_spawned = None;
    state.ended = None;
    state.output.clear();
    context.guard.spawn(spawn).await
}

/// Writes loadgen's job and starts it as a child, with variables of its own.
///
/// # Errors
/// [`RunnerError`] when the job can't be written or the guard is gone.
pub async fn loadgen(
    job: &LoadgenJob,
    env: BTreeMap<String, String>,
    context: &mut Context<'_>,
) -> Result<(), RunnerError> {
    let file = format!("{LOGS}/loadgen-job.json");
    context.dir.write_json(&file, job)?;
    let args = vec!["--job".to_owned(), context.dir.path(&file).display().to_string()];
    let child = child(context, "loadgen", LOADGEN, args, env);
    spawn(context, child).await
}

/// Waits for the ready line of a program of ours, its exit or the limit, whatever comes first, and writes the event.
///
/// # Errors
/// [`RunnerError::Environment`] with the program's last log lines when it does not come up or is of another build.
pub async fn ready(context: &mut Context<'_>, service: &str) -> Result<ReadyLine, RunnerError> {
    let deadline = tokio::time::Instant::now() + READY_LIMIT;
    loop {
        let state = context.dispatcher.services.entry(service.to_owned()).or_default();
        if let Some(error) = &state.not_spawned {
            return Err(RunnerError::environment(format!("starting {service}: {error}")));
        }
        while let Some(line) = state.output.pop_front() {
            if let Ok(ready) = serde_json::from_str::<ReadyLine>(&line) {
                check_build(service, &ready.build)?;
                let (pid, start_ticks) = (state.pid, state.start_ticks);
                context.dispatcher.log(EventKind::ProcessReady {
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
            return Err(failed(context.dir, service, message));
        }
        if context.dispatcher.signals > 0 {
            return Err(RunnerError::environment("stopped while the stack was starting"));
        }
        match tokio::time::timeout_at(deadline, context.dispatcher.next()).await {
            Ok(taken) => taken?,
            Err(_) => {
                let message = format!("{service} was not ready within {} s", READY_LIMIT.as_secs());
                return Err(failed(context.dir, service, message));
            }
        }
    }
}

/// Waits for a short program to end by itself and well.
///
/// # Errors
/// [`RunnerError::Environment`] with its log when it fails, can't be started, or takes longer than the limit.
pub async fn finished(context: &mut Context<'_>, service: &str, limit: Duration) -> Result<(), RunnerError> {
    context.dispatcher.services.entry(service.to_owned()).or_default().ends_by_itself = true;
    let deadline = tokio::time::Instant::now() + limit;
    loop {
        let state = context.dispatcher.services.entry(service.to_owned()).or_default();
        let message = match (&state.not_spawned, state.ended.as_deref()) {
            (Some(error), _) => format!("starting {service}: {error}"),
            (None, Some("exit code 0")) => return Ok(()),
            (None, Some(ended)) => format!("{service} failed ({ended})"),
            (None, None) => match tokio::time::timeout_at(deadline, context.dispatcher.next()).await {
                Ok(taken) => {
                    taken?;
                    continue;
                }
                Err(_) => format!("{service} did not end within {} s", limit.as_secs()),
            },
        };
        return Err(failed(context.dir, service, message));
    }
}

/// Marks the end of a service as planned, signals it, and waits until it is gone; false after the limit.
///
/// # Errors
/// [`RunnerError`] when the guard or the run directory fails.
pub async fn end(
    context: &mut Context<'_>,
    service: &str,
    signal: ServiceSignal,
    limit: Duration,
) -> Result<bool, RunnerError> {
    context.dispatcher.services.entry(service.to_owned()).or_default().exit_planned = true;
    context.guard.signal(service, signal).await?;
    if signal != ServiceSignal::Kill {
        // A frozen process takes no other signal.
        context.guard.signal(service, ServiceSignal::Continue).await?;
    }
    let deadline = tokio::time::Instant::now() + limit;
    while context.dispatcher.services.get(service).is_some_and(|state| state.running) {
        match tokio::time::timeout_at(deadline, context.dispatcher.next()).await {
            Ok(taken) => taken?,
            Err(_) => return Ok(false),
        }
    }
    Ok(true)
}

/// Identity and liveness of each required service that is a child of the guard.
#[must_use]
pub fn identities(running: &Running, context: &Context<'_>) -> Vec<ProcessIdentity> {
    let services = running.required.iter();
    let known = services.filter_map(|service| Some((service, context.dispatcher.services.get(service)?)));
    known
        .map(|(service, state)| {
            let now = crate::guard::tree::start_ticks(state.pid);
            ProcessIdentity {
                service: service.clone(),
                pid: state.pid,
                start_ticks: now.unwrap_or_default(),
                metric_start: None,
                ready: state.running && now == Some(state.start_ticks),
            }
        })
        .collect()
}

/// An error with the last lines of a service's log.
#[must_use]
pub fn failed(dir: &RunDir, service: &str, message: String) -> RunnerError {
    let text = std::fs::read(dir.path(&log_file(service))).unwrap_or_default();
    let text = dir.redactor().text(&String::from_utf8_lossy(&text)).into_owned();
    let lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let log = lines[lines.len().saturating_sub(LOG_TAIL)..].to_vec();
    RunnerError::Environment { message, log }
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

//! One run from its scenario to its verdict.

use std::path::PathBuf;
use std::time::Duration;

use evidence::event::{EventKind, Phase};
use evidence::exit::Outcome;
use evidence::rundir::RunDir;
use evidence::snapshot::{Moment, ProcessIdentity};
use scenario::model::{Limit, ServiceAction};
use scenario::units::Micros;
use tokio::sync::mpsc;

use super::dispatcher::{Dispatcher, INBOX_MAX, Message};
use super::drain::{DrainLimits, Drainer};
use super::faults::{FaultConfigs, RulesOn};
use super::load::{Load, LoadEnd};
use super::prepare::Prepared;
use crate::clock::Clock;
use crate::collect::join::JoinInput;
use crate::collect::mocks::MockLogs;
use crate::collect::snapshot;
use crate::error::RunnerError;
use crate::guard::client::Guard;
use crate::guard::{Report, ServiceSignal};
use crate::judge;
use crate::stack::Running;
use crate::stack::embedded::Starter;
use crate::view::View;

/// Begin of the name of a run's private directory.
pub const WORK_PREFIX: &str = "proofload-run-";
/// File in it that names its owner: process id and start time.
pub const OWNER_FILE: &str = "owner";
/// Polite time that services get at the end, milliseconds.
const END_GRACE_MS: u64 = 1_000;
/// What the protocol limits add to the waits that status shows (design section 3, "Deadlines").
const PROTOCOL_MARGIN_S: u64 = 30;

/// What a finished run hands back.
#[derive(Clone, Debug)]
pub struct Finished {
    /// Run id.
    pub run_id: String,
    /// Its directory.
    pub dir: PathBuf,
    /// Verdict.
    pub outcome: Outcome,
}

/// Runs a prepared scenario. Whatever happens after the directory exists, it is judged, written and torn down.
///
/// # Errors
/// [`RunnerError`] only when the directory itself can't be used.
pub async fn run(mut prepared: Prepared, quiet: bool) -> Result<Finished, RunnerError> {
    let clock = Clock::start();
    prepared.info.started_unix_us = clock.start_unix_us();
    let mut dir = RunDir::create(&prepared.results, &prepared.info.run_id)?;
    let (inbox, outbox) = mpsc::channel(INBOX_MAX);
    let mut dispatcher = Dispatcher::new(clock, outbox, &dir, View::new(quiet))?;
    dispatcher.view.line(&format!("run {}", prepared.info.run_id));
    dispatcher.phase(Phase::Prepare)?;
    prepared.write(&dir)?;
    let work = tempfile::Builder::new()
        .prefix(WORK_PREFIX)
        .tempdir()
        .map_err(|error| RunnerError::environment(format!("making a temporary directory: {error}")))?;
    own(work.path())?;
    watch_signals(&inbox)?;
    let mut guard = Guard::start(forward(inbox))?;
    let body = body(&prepared, &mut dispatcher, &mut guard, &mut dir, work.path().to_path_buf()).await;
    note_end(&mut dispatcher, body)?;
    dispatcher.phase(Phase::Judge)?;
    dispatcher.end_phase()?;
    let judged = judge::judge(&dir, &prepared.info, &dispatcher.phases_us);
    dispatcher.phase(Phase::Teardown)?;
    teardown(&mut dispatcher, &mut guard).await?;
    guard.close().await;
    dispatcher.end_phase()?;
    dispatcher.view.finish();
    Ok(Finished { run_id: prepared.info.run_id, dir: dir.root().to_path_buf(), outcome: judged? })
}

/// Writes who owns the private directory, so that `gc` can tell a dead run's from a living one's.
fn own(work: &std::path::Path) -> Result<(), RunnerError> {
    let pid = std::process::id();
    let ticks = crate::guard::tree::start_ticks(pid).unwrap_or_default();
    std::fs::write(work.join(OWNER_FILE), format!("{pid} {ticks}"))
        .map_err(|error| RunnerError::environment(format!("writing {}: {error}", work.display())))
}

/// Writes down why the body ended early; a full disk at this point ends the run.
fn note_end(dispatcher: &mut Dispatcher, body: Result<(), RunnerError>) -> Result<(), RunnerError> {
    match body {
        Ok(()) => Ok(()),
        Err(RunnerError::Environment { message, log }) => {
            dispatcher.log(EventKind::EnvironmentFailed { message, log })
        }
        Err(error) => {
            let message = error.to_string();
            dispatcher.log(EventKind::EnvironmentFailed { message, log: Vec::new() })
        }
    }
}

/// Steps 1 to 7. An early return leaves evidence for what was done so far.
async fn body(
    prepared: &Prepared,
    dispatcher: &mut Dispatcher,
    guard: &mut Guard,
    dir: &mut RunDir,
    work: PathBuf,
) -> Result<(), RunnerError> {
    dispatcher.phase(Phase::Start)?;
    let starter = Starter {
        dispatcher: &mut *dispatcher,
        guard: &mut *guard,
        dir: &mut *dir,
        programs: &prepared.programs,
        resolved: &prepared.info.resolved,
        choice: &prepared.choice,
        work,
    };
    let running = starter.start().await?;
    let stage = Stage { prepared, running: &running, dir };
    let mut logs = MockLogs::open(dir)?;

    dispatcher.phase(Phase::Faults)?;
    let faults = FaultConfigs::new(&prepared.info.resolved, &running);
    faults.apply(RulesOn::All, &running, dispatcher, dir).await?;

    dispatcher.phase(Phase::Before)?;
    stage.snapshot(dispatcher, Moment::Before).await?;

    dispatcher.phase(Phase::Load)?;
    let total = stage.time_limit(prepared.info.resolved.scenario.workload.timeout);
    let job = (prepared.programs.path("loadgen"), total, prepared.info.salt.clone());
    let load = Load::new(&prepared.info.resolved, &running);
    let end = load.run(dispatcher, guard, &mut logs, dir, job).await;
    let loaded = match end {
        Ok(LoadEnd::Died) => {
            let message = "loadgen ended without saying `end`; its log is logs/loadgen.log".to_owned();
            Err(RunnerError::environment(message))
        }
        Ok(_) => Ok(()),
        Err(error) => Err(error),
    };

    dispatcher.phase(Phase::Drain)?;
    let drained = stage.drain(dispatcher, &faults, guard, &mut logs).await;

    dispatcher.phase(Phase::Collect)?;
    stage.collect(dispatcher, &mut logs).await?;
    loaded?;
    drained
}

/// What the later steps share.
struct Stage<'a> {
    prepared: &'a Prepared,
    running: &'a Running,
    dir: &'a RunDir,
}

impl Stage<'_> {
    /// `protocol` is what status shows plus a margin (design section 3).
    fn time_limit(&self, limit: Limit) -> Micros {
        match limit {
            Limit::Time(time) => time,
            Limit::Protocol => {
                let longest = self.running.waits_s.0.max(self.running.waits_s.1);
                Micros::from_s(longest + PROTOCOL_MARGIN_S)
            }
        }
    }

    async fn snapshot(&self, dispatcher: &mut Dispatcher, moment: Moment) -> Result<(), RunnerError> {
        let processes = processes(dispatcher, self.running);
        let at_us = dispatcher.at_us();
        let take =
            snapshot::take(&self.running.surfaces, &self.running.mocks, moment, at_us, processes, self.dir);
        dispatcher.through(take).await??;
        Ok(())
    }

    async fn drain(
        &self,
        dispatcher: &mut Dispatcher,
        faults: &FaultConfigs,
        guard: &mut Guard,
        logs: &mut MockLogs,
    ) -> Result<(), RunnerError> {
        faults.apply(RulesOn::ValidationOnly, self.running, dispatcher, self.dir).await?;
        restore_services(dispatcher, guard, self.running).await?;
        let drain = &self.prepared.info.resolved.scenario.drain;
        // After Ctrl-C the drain is brief: what is not quiet by then is written as interrupted.
        let timeout = if dispatcher.signals > 0 {
            Duration::from_secs(2)
        } else {
            self.time_limit(drain.timeout).duration()
        };
        let limits = DrainLimits {
            timeout,
            stable_samples: drain.stable_samples,
            interval: drain.interval.duration(),
        };
        let mut drainer = Drainer::new(self.running, limits, self.dir)?;
        drainer.passive(dispatcher).await?;
        self.snapshot(dispatcher, Moment::DrainPassive).await?;
        drainer.sync(dispatcher).await?;
        self.snapshot(dispatcher, Moment::DrainSynced).await?;
        self.join(dispatcher, logs).await?;
        faults.apply(RulesOn::None, self.running, dispatcher, self.dir).await?;
        drainer.finalize(dispatcher).await?;
        self.snapshot(dispatcher, Moment::DrainFinal).await
    }

    /// Accounting is read after sync and before finalize, which turns attempts into `not_in_state`.
    async fn join(&self, dispatcher: &mut Dispatcher, logs: &mut MockLogs) -> Result<(), RunnerError> {
        dispatcher.through(logs.read(&self.running.mocks)).await??;
        let input = JoinInput::read(self.dir, &self.prepared.info);
        let joined = dispatcher.through(crate::collect::join::join(&self.running.surfaces, &input)).await?;
        let mut out = self.dir.append(evidence::rundir::ACCOUNTING)?;
        for line in &joined {
            out.write_buffered(line)?;
        }
        out.flush()?;
        Ok(())
    }

    async fn collect(&self, dispatcher: &mut Dispatcher, logs: &mut MockLogs) -> Result<(), RunnerError> {
        dispatcher.through(logs.read(&self.running.mocks)).await??;
        for (what, why) in logs.missing.clone() {
            dispatcher.log(EventKind::EvidenceMissing { what, why })?;
        }
        Ok(())
    }
}

/// Identity and liveness of each required service.
fn processes(dispatcher: &Dispatcher, running: &Running) -> Vec<ProcessIdentity> {
    running
        .required
        .iter()
        .filter_map(|service| {
            let state = dispatcher.services.get(service)?;
            let now = crate::guard::tree::start_ticks(state.pid);
            Some(ProcessIdentity {
                service: service.clone(),
                pid: state.pid,
                start_ticks: now.unwrap_or_default(),
                metric_start: None,
                ready: state.running && now == Some(state.start_ticks),
            })
        })
        .collect()
}

/// One service action of the scenario: intention, deed, result.
///
/// # Errors
/// [`RunnerError`] when the guard or the run directory fails; an action that the stack refuses is an event.
pub async fn service_action(
    ordinal: usize,
    action: &ServiceAction,
    running: &Running,
    dispatcher: &mut Dispatcher,
    guard: &mut Guard,
) -> Result<(), RunnerError> {
    let what = serde_json::to_string(action).unwrap_or_default();
    dispatcher.log(EventKind::ActionIntended { action: ordinal, what })?;
    let expect_exit = |dispatcher: &mut Dispatcher, service: &str| {
        dispatcher.services.entry(service.to_owned()).or_default().exit_planned = true;
    };
    let mut error = None;
    match action {
        ServiceAction::Stop(service) => {
            expect_exit(dispatcher, service);
            guard.signal(service, ServiceSignal::Terminate).await?;
        }
        ServiceAction::Kill(service) => {
            expect_exit(dispatcher, service);
            guard.signal(service, ServiceSignal::Kill).await?;
        }
        ServiceAction::Pause(service) => guard.signal(service, ServiceSignal::Stop).await?,
        ServiceAction::Unpause(service) => guard.signal(service, ServiceSignal::Continue).await?,
        ServiceAction::Deactivate(escrow) => {
            let url = format!("{}/v1/admin/devshards/{escrow}/deactivate", running.surfaces.gateway);
            let answer = dispatcher.through(running.surfaces.post(&url, Duration::from_secs(10))).await?;
            error = match answer {
                Ok((status, _)) if status < 300 => None,
                Ok((status, text)) => Some(format!("{status}: {text}")),
                Err(why) => Some(why),
            };
        }
        ServiceAction::Start(_) | ServiceAction::Restart(_) => {
            error = Some("the embedded stack can't start a service again yet".to_owned());
        }
    }
    dispatcher.log(EventKind::ActionDone { action: ordinal, error })
}

/// Thaws what an action froze: the drain needs every service.
async fn restore_services(
    dispatcher: &mut Dispatcher,
    guard: &mut Guard,
    running: &Running,
) -> Result<(), RunnerError> {
    for service in &running.required {
        if dispatcher.services.get(service).is_some_and(|state| state.running) {
            guard.signal(service, ServiceSignal::Continue).await?;
        }
    }
    Ok(())
}

async fn teardown(dispatcher: &mut Dispatcher, guard: &mut Guard) -> Result<(), RunnerError> {
    for state in dispatcher.services.values_mut() {
        state.exit_planned = true;
    }
    if guard.end_all(END_GRACE_MS).await.is_err() {
        // The guard is gone: its own end took the services along.
        return Ok(());
    }
    let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
    while !dispatcher.all_ended {
        match tokio::time::timeout_at(deadline, dispatcher.next()).await {
            Ok(taken) => taken?,
            Err(_) => break,
        }
    }
    Ok(())
}

/// Turns SIGINT and SIGTERM into messages; nothing else reacts to them.
fn watch_signals(inbox: &mpsc::Sender<Message>) -> Result<(), RunnerError> {
    use tokio::signal::unix::{SignalKind, signal};
    for (kind, name) in [(SignalKind::interrupt(), "SIGINT"), (SignalKind::terminate(), "SIGTERM")] {
        let mut stream =
            signal(kind).map_err(|error| RunnerError::environment(format!("watching {name}: {error}")))?;
        let inbox = inbox.clone();
        tokio::spawn(async move {
            while stream.recv().await.is_some() {
                if inbox.send(Message::Signal(name)).await.is_err() {
                    return;
                }
            }
        });
    }
    Ok(())
}

/// A channel for the guard's reports that ends in the dispatcher's inbox.
fn forward(inbox: mpsc::Sender<Message>) -> mpsc::Sender<Report> {
    let (reports, mut taken) = mpsc::channel(INBOX_MAX);
    tokio::spawn(async move {
        while let Some(report) = taken.recv().await {
            if inbox.send(Message::Guard(report)).await.is_err() {
                return;
            }
        }
    });
    reports
}

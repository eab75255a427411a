//! One run from its scenario to its verdict.

use std::path::PathBuf;
use std::time::Duration;

use evidence::event::{EventKind, Phase};
use evidence::exit::Outcome;
use evidence::rundir::RunDir;
use evidence::sessions::SessionLog;
use evidence::snapshot::{Moment, Snapshot};
use scenario::model::Limit;
use scenario::units::Micros;
use tokio::sync::{Mutex, mpsc};

use super::actions;
use super::dispatcher::{Dispatcher, INBOX_MAX, Message};
use super::drain::{self, DrainLimits, Drainer};
use super::faults::{self, FaultConfigs, RulesOn};
use super::load::{Load, LoadEnd, Pause};
use super::prepare::{Prepared, letters};
use super::search::Searcher;
use super::wall::WallWatch;
use crate::clock::Clock;
use crate::collect::health::{self, HealthWatch};
use crate::collect::join::{self, Source};
use crate::collect::leases::LeaseWatch;
use crate::collect::mocks::MockLogs;
use crate::collect::snapshot;
use crate::error::RunnerError;
use crate::guard::Report;
use crate::guard::client::Guard;
use crate::judge;
use crate::stack::{Context, Provider, Running};
use crate::view::View;

/// Begin of the name of a run's private directory.
pub const WORK_PREFIX: &str = "proofload-run-";
/// File in it that names its owner: process id and start time.
pub const OWNER_FILE: &str = "owner";
/// Letters of its name after that.
const WORK_NAME_LEN: usize = 10;
/// Variable of every process of a run that names its private directory.
pub const OWNER_VARIABLE: &str = "PROOFLOAD_WORK";
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
    let (inbox, outbox) = mpsc::channel(INBOX_MAX);
    let reports = forward(inbox.clone());
    // The guard knows the private directory before it is there: at no moment would a runner that is killed leave it.
    let name = format!("{WORK_PREFIX}{}", letters(WORK_NAME_LEN)?);
    let path = std::path::absolute(std::env::temp_dir().join(&name)).unwrap_or_default();
    let mut guard = Guard::start(&path, reports.clone())?;
    let work = tempfile::Builder::new().prefix(&name).rand_bytes(0).tempdir().map_err(|error| {
        let advice = "TMPDIR must name a folder that can be written; nothing was started";
        RunnerError::environment(format!("making a private directory: {error}; {advice}"))
    })?;
    own(work.path())?;
    let mut dir = RunDir::create(&prepared.results, &prepared.info.run_id)?;
    let mut dispatcher = Dispatcher::new(clock, outbox, &dir, View::new(quiet))?;
    dispatcher.view.line(&format!("run {}", prepared.info.run_id));
    dispatcher.phase(Phase::Prepare)?;
    prepared.write(&dir)?;
    watch_signals(&inbox)?;
    let wall = WallWatch::start(clock, inbox.clone());
    let mut provider = prepared.choice.provider();
    let mut context = Context {
        dispatcher: &mut dispatcher,
        guard: &mut guard,
        reports: &reports,
        dir: &mut dir,
        programs: &prepared.programs,
        resolved: &prepared.info.resolved,
        work: work.path(),
    };
    let body = body(&prepared, provider.as_mut(), &mut context, &inbox).await;
    note_end(context.dispatcher, body)?;
    // What is written from now on is not judged any more.
    drop(wall);
    context.dispatcher.phase(Phase::Judge)?;
    context.dispatcher.end_phase()?;
    let judged = judge_all(&prepared, &mut context).await?;
    context.dispatcher.phase(Phase::Teardown)?;
    teardown(provider.as_mut(), &mut context).await?;
    guard.close().await;
    dispatcher.end_phase()?;
    dispatcher.view.finish();
    Ok(Finished { run_id: prepared.info.run_id, dir: dir.root().to_path_buf(), outcome: judged? })
}

/// Judges what is there. A signal, or the end of a service, that arrives between the evidence and the verdict is evidence
/// too: then everything is judged once more.
async fn judge_all(
    prepared: &Prepared,
    context: &mut Context<'_>,
) -> Result<Result<Outcome, RunnerError>, RunnerError> {
    // Judging holds the thread: what came meanwhile needs a moment to reach the inbox.
    const MOMENT: Duration = Duration::from_millis(5);
    let judge =
        |context: &mut Context<'_>| judge::judge(context.dir, &prepared.known, &context.dispatcher.phases_us);
    tokio::time::sleep(MOMENT).await;
    take_late(context.dispatcher)?;
    let judged = judge(context);
    tokio::time::sleep(MOMENT).await;
    if take_late(context.dispatcher)? { Ok(judge(context)) } else { Ok(judged) }
}

/// Takes in what has arrived; an environment that breaks now is evidence too, and the run is torn down all the same.
fn take_late(dispatcher: &mut Dispatcher) -> Result<bool, RunnerError> {
    match dispatcher.take_waiting() {
        Err(error @ RunnerError::Environment { .. }) => note_end(dispatcher, Err(error)).map(|()| true),
        other => other,
    }
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
    provider: &mut dyn Provider,
    context: &mut Context<'_>,
    inbox: &mpsc::Sender<Message>,
) -> Result<(), RunnerError> {
    context.dispatcher.phase(Phase::Start)?;
    let mut running = provider.start(context).await?;
    let ours = provider.is_ours();
    let mut logs = MockLogs::open(context.dir)?;
    if !ours {
        context.dispatcher.through(logs.pass_over(&running.mocks)).await??;
    }
    settle_in(&mut running, ours, context).await?;
    let sessions = Mutex::new(SessionLog::open(context.dir)?);
    let stage = Stage { prepared, running: &running, sessions };
    context.dispatcher.phase(Phase::Faults)?;
    let faults = if ours {
        FaultConfigs::new(&prepared.info.resolved, &running)
    } else {
        FaultConfigs::for_others(&prepared.info.resolved, &running, context.dispatcher, context.guard).await?
    };
    faults.apply(RulesOn::All, &running, context.dispatcher, context.dir).await?;

    context.dispatcher.phase(Phase::Before)?;
    // It loads its plan while the first snapshot is taken; before the faults stand it would leave records for nothing.
    let load = stage.begin_load(provider, context).await?;
    stage.snapshot(provider, context, Moment::Before).await?;

    let watch = LeaseWatch::start(&running.postgres, running.lease_ttl, context.dir)?;
    let health = HealthWatch::start(health::targets(&running), context.dispatcher.clock(), inbox)?;
    context.dispatcher.phase(Phase::Load)?;
    let loaded = match stage.load(load, provider, context, &faults, &mut logs).await {
        Ok(LoadEnd::Died) => {
            let message = "loadgen ended without saying `end`; its log is logs/loadgen.log".to_owned();
            Err(RunnerError::environment(message))
        }
        Ok(_) => Ok(()),
        Err(error) => Err(error),
    };

    context.dispatcher.phase(Phase::Drain)?;
    let drained = stage.drain(provider, context, &faults, &mut logs).await;

    for (service, why) in context.dispatcher.through(health.stop()).await? {
        let what = format!("health of {service}");
        context.dispatcher.log(EventKind::EvidenceMissing { what, why })?;
    }
    context.dispatcher.phase(Phase::Collect)?;
    if let Some(watch) = watch {
        context.dispatcher.through(watch.stop()).await??;
    }
    stage.collect(provider, context, &mut logs).await?;
    loaded?;
    drained
}

/// Settings, read back; then the waits that status shows, and a canary chat per escrow.
async fn settle_in(running: &mut Running, ours: bool, context: &mut Context<'_>) -> Result<(), RunnerError> {
    if ours {
        faults::gateway_settings(running, context.resolved, context.dispatcher).await?;
    } else {
        faults::settings_of_others(running, context.resolved, context.dispatcher).await?;
    }
    running.waits_s = faults::protocol_waits(running).await?;
    faults::canaries(running, context.dispatcher).await
}

/// What the later steps share.
pub(super) struct Stage<'a> {
    pub(super) prepared: &'a Prepared,
    pub(super) running: &'a Running,
    /// What snapshots share; one snapshot is taken at a time.
    sessions: Mutex<SessionLog>,
}

/// A drain that has come as far as (c).
pub(super) struct Synced<'a> {
    drainer: Drainer<'a>,
    /// The passive wait ended with everything stable at zero.
    pub(super) drained: bool,
    /// Transactions left at the gateway; `None` when that could not be read.
    pub(super) pending: Option<u64>,
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

    async fn snapshot(
        &self,
        provider: &mut dyn Provider,
        context: &mut Context<'_>,
        moment: Moment,
    ) -> Result<(), RunnerError> {
        let processes = provider.processes(self.running, context).await;
        let at_us = context.dispatcher.at_us();
        let blank = Snapshot { processes, ..Snapshot::blank(moment, at_us) };
        let mut sessions = self.sessions.lock().await;
        let take = snapshot::take(self.running, blank, &mut sessions, context.dir);
        context.dispatcher.through(take).await??;
        Ok(())
    }

    /// Starts loadgen; it sends nothing before its first step.
    async fn begin_load(
        &self,
        provider: &mut dyn Provider,
        context: &mut Context<'_>,
    ) -> Result<Load<'_>, RunnerError> {
        let resolved = &self.prepared.info.resolved;
        let total = self.time_limit(resolved.scenario.workload.timeout);
        let mut load = Load::new(resolved, self.running);
        load.begin(provider, context, (total, self.prepared.info.salt.clone())).await?;
        Ok(load)
    }

    /// Commands the steps of the load; before the recovery step the system drains as far as sync.
    async fn load<'s>(
        &'s self,
        mut load: Load<'s>,
        provider: &mut dyn Provider,
        context: &mut Context<'_>,
        faults: &FaultConfigs,
        logs: &mut MockLogs,
    ) -> Result<LoadEnd, RunnerError> {
        let workload = &self.prepared.info.resolved.scenario.workload;
        if let Some(search) = &workload.search {
            return Searcher::new(self, search, load)?.run(provider, context, faults, logs).await;
        }
        let steps = workload.all_steps();
        let mut next = 0;
        loop {
            if let Pause::Ended(end) = load.follow(provider, context, logs).await? {
                return Ok(end);
            }
            let Some(step) = steps.get(next).filter(|_| context.dispatcher.signals == 0) else { continue };
            if workload.recovery.is_some() && next == workload.steps.len() {
                self.drain_to_sync(next.checked_sub(1), provider, context, faults, logs).await?;
            }
            load.go(next, (step.concurrency, None), provider, context).await?;
            next += 1;
        }
    }

    /// (a) to (c) of the drain: after the last step, or after `step` before another one. A stack that is not ours is not
    /// synced.
    pub(super) async fn drain_to_sync(
        &self,
        step: Option<usize>,
        provider: &mut dyn Provider,
        context: &mut Context<'_>,
        faults: &FaultConfigs,
        logs: &mut MockLogs,
    ) -> Result<Synced<'_>, RunnerError> {
        let ours = provider.is_ours();
        let (mut drainer, drained) = self.drain_passive(step, provider, context, faults, logs).await?;
        let pending = if ours { drainer.sync(context.dispatcher, drained).await? } else { None };
        Ok(Synced { drainer, drained, pending })
    }

    /// (a) and (b) of the drain; says whether everything became quiet.
    async fn drain_passive(
        &self,
        step: Option<usize>,
        provider: &mut dyn Provider,
        context: &mut Context<'_>,
        faults: &FaultConfigs,
        logs: &mut MockLogs,
    ) -> Result<(Drainer<'_>, bool), RunnerError> {
        // A mock that is down can't take its rules off: services come back first.
        actions::undo(self.running, provider, context, logs).await?;
        drain::executions_ended(self.running, context.dispatcher).await?;
        faults.apply(RulesOn::ValidationOnly, self.running, context.dispatcher, context.dir).await?;
        let drain = &self.prepared.info.resolved.scenario.drain;
        // After Ctrl-C the drain is brief: what is not quiet by then is written as interrupted.
        let timeout = if context.dispatcher.signals > 0 {
            Duration::from_secs(2)
        } else {
            self.time_limit(drain.timeout).duration()
        };
        let limits = DrainLimits {
            timeout,
            stable_samples: drain.stable_samples,
            interval: drain.interval.duration(),
        };
        let mut drainer = Drainer::new(self.running, limits, step, context.dir)?;
        let drained = drainer.passive(context.dispatcher).await? == "stable";
        drainer.leases(context.dispatcher, timeout).await?;
        // Between steps the evidence is the samples: a snapshot of a moment is taken once.
        if step.is_none() {
            self.snapshot(provider, context, Moment::DrainPassive).await?;
        }
        Ok((drainer, drained))
    }

    async fn drain(
        &self,
        provider: &mut dyn Provider,
        context: &mut Context<'_>,
        faults: &FaultConfigs,
        logs: &mut MockLogs,
    ) -> Result<(), RunnerError> {
        if !provider.is_ours() {
            self.drain_passive(None, provider, context, faults, logs).await?;
            self.join(context, logs).await?;
            faults.apply(RulesOn::None, self.running, context.dispatcher, context.dir).await?;
            return context.guard.taken_off().await;
        }
        let Synced { mut drainer, .. } = self.drain_to_sync(None, provider, context, faults, logs).await?;
        self.snapshot(provider, context, Moment::DrainSynced).await?;
        self.join(context, logs).await?;
        faults.apply(RulesOn::None, self.running, context.dispatcher, context.dir).await?;
        drainer.finalize(context.dispatcher).await?;
        self.snapshot(provider, context, Moment::DrainFinal).await
    }

    /// Accounting is read after sync and before finalize, which turns attempts into `not_in_state`.
    async fn join(&self, context: &mut Context<'_>, logs: &mut MockLogs) -> Result<(), RunnerError> {
        context.dispatcher.through(logs.read(&self.running.mocks)).await??;
        let surfaces = &self.running.surfaces;
        let source = Source::new(context.dir, &self.prepared.info, surfaces.perf_db.clone());
        let mut out = context.dir.append(evidence::rundir::ACCOUNTING)?;
        context.dispatcher.through(join::join(surfaces, &source, &mut out)).await??;
        Ok(())
    }

    async fn collect(
        &self,
        provider: &mut dyn Provider,
        context: &mut Context<'_>,
        logs: &mut MockLogs,
    ) -> Result<(), RunnerError> {
        context.dispatcher.through(logs.finish(&self.running.mocks)).await??;
        let gaps = provider.collect_logs(context).await.into_iter().map(|gap| (gap.what, gap.why));
        let refused = self.running.refused();
        for (what, why) in logs.missing().into_iter().chain(gaps).chain(refused) {
            context.dispatcher.log(EventKind::EvidenceMissing { what, why })?;
        }
        Ok(())
    }
}

async fn teardown(provider: &mut dyn Provider, context: &mut Context<'_>) -> Result<(), RunnerError> {
    for state in context.dispatcher.services.values_mut() {
        state.exit_planned = true;
    }
    if let Err(error) = provider.stop(context).await {
        context.dispatcher.log(EventKind::Note { text: format!("teardown: {error}") })?;
    }
    // A guard that is gone can't be told; that it is gone arrives as a report, and with it the end of its services.
    let _told = context.guard.end_all(END_GRACE_MS).await;
    let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
    while !context.dispatcher.all_ended {
        match tokio::time::timeout_at(deadline, context.dispatcher.next()).await {
            Ok(Err(error)) if context.dispatcher.all_ended => {
                context.dispatcher.log(EventKind::Note { text: format!("teardown: {error}") })?;
            }
            Ok(taken) => taken?,
            Err(_) => break,
        }
    }
    Ok(())
}

/// Turns SIGINT, SIGTERM and SIGHUP into messages; nothing else reacts to them.
fn watch_signals(inbox: &mpsc::Sender<Message>) -> Result<(), RunnerError> {
    use tokio::signal::unix::{SignalKind, signal};
    let kinds = [
        (SignalKind::interrupt(), "SIGINT"),
        (SignalKind::terminate(), "SIGTERM"),
        // The terminal was closed: what ran for it ends in order, too.
        (SignalKind::hangup(), "SIGHUP"),
    ];
    for (kind, name) in kinds {
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

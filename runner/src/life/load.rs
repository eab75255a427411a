//! Launching loadgen and following it: steps, progress, service actions (design sections 3 and 10).

use std::time::Duration;

use evidence::event::EventKind;
use evidence::rundir::{PLAN, REQUESTS};
use scenario::model::{Action, Resolved, Trigger};
use scenario::pipe::{GeneratorHealth, LoadLimits, LoadgenJob, LoadgenLine, PIPE_VERSION, Shard};
use scenario::units::Micros;
use serde_json::Value;

use super::actions;
use super::dispatcher::Dispatcher;
use crate::collect::ask::bound;
use crate::collect::mocks::MockLogs;
use crate::error::RunnerError;
use crate::stack::{Context, LOADGEN, Provider, Running, launch};

/// How long loadgen may take to load its plan.
const READY_LIMIT_US: u64 = 30_000_000;
/// Spacing of reading the mocks' logs while the load runs.
const LOG_SPACING_US: u64 = 1_000_000;

/// How the load ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadEnd {
    /// Loadgen said `end`.
    Complete,
    /// A signal stopped it.
    Interrupted,
    /// Loadgen failed or died; records are incomplete.
    Died,
}

/// Why following the load came back.
#[derive(Clone, Debug, PartialEq)]
pub enum Pause {
    /// Loadgen has loaded its plan and waits for its first step.
    Ready,
    /// A step is over and none of its requests is open.
    StepEnded(StepFacts),
    /// It is over.
    Ended(LoadEnd),
}

/// What loadgen says at the end of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct StepFacts {
    /// Which.
    pub step: usize,
    /// Requests released.
    pub released: u64,
    /// First release to last end, microseconds.
    pub load_us: u64,
    /// Generator health since its start.
    pub health: GeneratorHealth,
}

/// The total limit of one request and the parts of it (design section 3, "Deadlines").
#[must_use]
pub fn limits(total: Micros) -> LoadLimits {
    LoadLimits {
        connect: Micros::from_s(5),
        headers: total,
        first_byte: total,
        idle: total,
        total,
        drain: Micros::from_s(5),
    }
}

/// Follows one load.
#[derive(Debug)]
pub struct Load<'a> {
    resolved: &'a Resolved,
    running: &'a Running,
    actions_done: usize,
    /// Requests sent, as loadgen said last.
    sent: u64,
    /// When the first step began.
    loading_us: Option<u64>,
    begun_us: u64,
    ready: bool,
    stopping: bool,
    logs_read_us: u64,
}

impl<'a> Load<'a> {
    /// A load that has not begun.
    #[must_use]
    pub fn new(resolved: &'a Resolved, running: &'a Running) -> Self {
        Self {
            resolved,
            running,
            actions_done: 0,
            sent: 0,
            loading_us: None,
            begun_us: 0,
            ready: false,
            stopping: false,
            logs_read_us: 0,
        }
    }

    /// Starts loadgen.
    ///
    /// # Errors
    /// [`RunnerError`] when the run directory or the guard fails.
    pub async fn begin(
        &mut self,
        provider: &mut dyn Provider,
        context: &mut Context<'_>,
        (total, salt): (Micros, String),
    ) -> Result<(), RunnerError> {
        let job = self.job(context, total, salt);
        provider.start_loadgen(job, context).await?;
        self.begun_us = context.dispatcher.at_us();
        Ok(())
    }

    /// Follows loadgen until a decision about the next step is due, or it has ended.
    ///
    /// # Errors
    /// [`RunnerError`] when the run directory or the guard fails.
    pub async fn follow(
        &mut self,
        provider: &mut dyn Provider,
        context: &mut Context<'_>,
        logs: &mut MockLogs,
    ) -> Result<Pause, RunnerError> {
        loop {
            while let Some(line) = next_line(context.dispatcher) {
                if let Some(pause) = self.take(line, provider, context, logs).await? {
                    return Ok(pause);
                }
            }
            self.act(provider, context, logs).await?;
            if context.dispatcher.signals > 0 && !self.stopping {
                self.stopping = true;
                provider.tell_loadgen("stop", context).await?;
            }
            if context.dispatcher.signals > 1 {
                provider.kill_loadgen(context).await?;
            }
            if gone(context.dispatcher) {
                let end = if self.stopping { LoadEnd::Interrupted } else { LoadEnd::Died };
                return Ok(Pause::Ended(end));
            }
            let at_us = context.dispatcher.at_us();
            if !self.ready && at_us.saturating_sub(self.begun_us) > READY_LIMIT_US {
                return Err(RunnerError::environment("loadgen did not load its plan within 30 s"));
            }
            if at_us.saturating_sub(self.logs_read_us) > LOG_SPACING_US {
                self.logs_read_us = at_us;
                context.dispatcher.through(logs.read(&self.running.mocks)).await??;
            }
            // Wakes up on every message; the timer only bounds the log spacing.
            if let Ok(taken) =
                tokio::time::timeout(Duration::from_millis(200), context.dispatcher.next()).await
            {
                taken?;
            }
        }
    }

    fn job(&self, context: &Context<'_>, total: Micros, salt: String) -> LoadgenJob {
        let text = |name: &str| context.dir.path(name).display().to_string();
        LoadgenJob {
            v: PIPE_VERSION,
            gateway_url: self.running.surfaces.gateway.clone(),
            model: self.running.model.clone(),
            plan: text(PLAN),
            records: text(REQUESTS),
            salt,
            steps: self.resolved.scenario.workload.all_steps(),
            limits: limits(total),
            shard: Shard { shard: 0, of: 1 },
            ca: None,
            insecure: false,
        }
    }

    /// Takes one line of loadgen.
    async fn take(
        &mut self,
        line: LoadgenLine,
        provider: &mut dyn Provider,
        context: &mut Context<'_>,
        logs: &mut MockLogs,
    ) -> Result<Option<Pause>, RunnerError> {
        match line {
            LoadgenLine::Ready { build, planned, wall_anchor_unix_us, .. } => {
                launch::check_build(LOADGEN, &build)?;
                let text = format!("loadgen ready: {planned} planned, anchor {wall_anchor_unix_us}");
                context.dispatcher.log(EventKind::Note { text })?;
                self.ready = true;
                return Ok(Some(Pause::Ready));
            }
            progress @ LoadgenLine::Progress { .. } => {
                context.dispatcher.view.progress(&progress, logs.hits_read);
                if let LoadgenLine::Progress { sent, .. } = progress {
                    self.sent = sent;
                    self.act(provider, context, logs).await?;
                }
            }
            LoadgenLine::StepEnd {
                step,
                started_us,
                ended_us,
                released,
                in_flight_min,
                in_flight_max,
                health,
            } => {
                context.dispatcher.log(EventKind::StepEnded {
                    step,
                    started_us,
                    ended_us,
                    released,
                    in_flight_min,
                    in_flight_max,
                })?;
                let load_us = ended_us.saturating_sub(started_us);
                return Ok(Some(Pause::StepEnded(StepFacts { step, released, load_us, health })));
            }
            LoadgenLine::End { records, records_dropped, partial, health } => {
                let health = serde_json::to_value(&health).unwrap_or_default();
                context.dispatcher.log(EventKind::LoadEnded { records, records_dropped, partial, health })?;
                let end = if partial { LoadEnd::Interrupted } else { LoadEnd::Complete };
                return Ok(Some(Pause::Ended(end)));
            }
            LoadgenLine::Failed { message } => {
                return Err(RunnerError::environment(format!("loadgen: {message}")));
            }
        }
        Ok(None)
    }

    /// Starts a step of the job; with `requests`, a level of a search, whose job has no steps.
    ///
    /// # Errors
    /// [`RunnerError`] when the run directory or the way to loadgen fails.
    pub async fn go(
        &mut self,
        step: usize,
        (concurrency, requests): (u32, Option<u64>),
        provider: &mut dyn Provider,
        context: &mut Context<'_>,
    ) -> Result<(), RunnerError> {
        context.dispatcher.log(EventKind::StepStarted { step, concurrency })?;
        self.loading_us.get_or_insert(context.dispatcher.at_us());
        let line = match requests {
            Some(requests) => format!("go {step} {concurrency} {requests}"),
            None => format!("go {step}"),
        };
        provider.tell_loadgen(&line, context).await
    }

    /// Carries out the actions whose moment has come, in the order of the file.
    async fn act(
        &mut self,
        provider: &mut dyn Provider,
        context: &mut Context<'_>,
        logs: &mut MockLogs,
    ) -> Result<(), RunnerError> {
        while let Some(Action { after, action, .. }) = self.resolved.scenario.actions.get(self.actions_done)
            && self.is_due(after, context).await?
        {
            actions::planned(self.actions_done, action, self.running, provider, context, logs).await?;
            self.actions_done += 1;
        }
        Ok(())
    }

    /// Requests are sent in the order of the plan: one is sent when as many are as stand up to it.
    async fn is_due(&self, after: &Trigger, context: &mut Context<'_>) -> Result<bool, RunnerError> {
        let Some(loading_us) = self.loading_us else { return Ok(false) };
        Ok(match after {
            Trigger::Requests(count) => self.sent >= *count,
            Trigger::RequestSent(id) => {
                let index = id.rsplit_once('-').and_then(|(_, index)| index.parse::<u64>().ok());
                index.is_some_and(|index| self.sent > index)
            }
            Trigger::Nonce(nonce) => {
                let highest = highest_nonce(self.running);
                context.dispatcher.through(highest).await?.is_some_and(|highest| highest >= *nonce)
            }
            Trigger::At(time) => context.dispatcher.at_us().saturating_sub(loading_us) >= time.us(),
        })
    }
}

/// The highest nonce of all escrows that show theirs.
async fn highest_nonce(running: &Running) -> Option<u64> {
    let mut highest = None;
    for escrow in running.surfaces.escrows.list() {
        let url = format!("{}/devshard/{escrow}/v1/status", running.surfaces.gateway);
        let read = |status: &Value| status["nonce"].as_u64().ok_or_else(|| "no nonce".to_owned());
        let status = running.surfaces.json(&url, false, bound::SMALL, read).await;
        highest = highest.max(status.ok().map(|(nonce, _)| nonce));
    }
    highest
}

fn next_line(dispatcher: &mut Dispatcher) -> Option<LoadgenLine> {
    let state = dispatcher.services.get_mut(LOADGEN)?;
    loop {
        let line = state.output.pop_front()?;
        if let Ok(line) = serde_json::from_str(&line) {
            return Some(line);
        }
    }
}

/// Loadgen has ended and everything it wrote has been read.
fn gone(dispatcher: &Dispatcher) -> bool {
    dispatcher.services.get(LOADGEN).is_some_and(|state| {
        state.not_spawned.is_some() || (!state.running && state.ended.is_some() && state.output.is_empty())
    })
}

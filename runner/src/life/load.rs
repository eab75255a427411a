//! Launching loadgen and following it: steps, progress, service actions (design sections 3 and 10).

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use evidence::event::EventKind;
use evidence::rundir::{LOGS, PLAN, REQUESTS, RunDir};
use scenario::model::{Action, Resolved, Trigger};
use scenario::pipe::{LoadLimits, LoadgenJob, LoadgenLine, PIPE_VERSION, Shard};
use scenario::units::Micros;

use super::dispatcher::Dispatcher;
use crate::collect::mocks::MockLogs;
use crate::error::RunnerError;
use crate::guard::client::Guard;
use crate::guard::{ServiceSignal, Spawn};
use crate::stack::Running;

/// The service name of loadgen.
pub const LOADGEN: &str = "loadgen";
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
    step: usize,
    logs_read_us: u64,
    end: Option<LoadEnd>,
}

impl<'a> Load<'a> {
    /// A load that has not begun.
    #[must_use]
    pub fn new(resolved: &'a Resolved, running: &'a Running) -> Self {
        Self { resolved, running, actions_done: 0, step: 0, logs_read_us: 0, end: None }
    }

    /// Starts loadgen, runs all steps and returns when it has ended.
    ///
    /// # Errors
    /// [`RunnerError`] when the run directory or the guard fails.
    pub async fn run(
        mut self,
        dispatcher: &mut Dispatcher,
        guard: &mut Guard,
        logs: &mut MockLogs,
        dir: &RunDir,
        job: (PathBuf, Micros, String),
    ) -> Result<LoadEnd, RunnerError> {
        let (program, total, salt) = job;
        self.launch(guard, dir, program, total, salt).await?;
        let begun_us = dispatcher.at_us();
        let mut ready = false;
        let mut stopping = false;
        loop {
            while let Some(line) = next_line(dispatcher) {
                ready |= self.take(line, dispatcher, guard, logs).await?;
            }
            if let Some(end) = self.end {
                return Ok(end);
            }
            if dispatcher.signals > 0 && !stopping {
                stopping = true;
                guard.input(LOADGEN, "stop").await?;
            }
            if dispatcher.signals > 1 {
                guard.signal(LOADGEN, ServiceSignal::Kill).await?;
            }
            if gone(dispatcher) {
                return Ok(if stopping { LoadEnd::Interrupted } else { LoadEnd::Died });
            }
            let at_us = dispatcher.at_us();
            if !ready && at_us.saturating_sub(begun_us) > READY_LIMIT_US {
                return Err(RunnerError::environment("loadgen did not load its plan within 30 s"));
            }
            if at_us.saturating_sub(self.logs_read_us) > LOG_SPACING_US {
                self.logs_read_us = at_us;
                dispatcher.through(logs.read(&self.running.mocks)).await??;
            }
            // Wakes up on every message; the timer only bounds the log spacing.
            drop(tokio::time::timeout(Duration::from_millis(200), dispatcher.next()).await);
        }
    }

    async fn launch(
        &self,
        guard: &mut Guard,
        dir: &RunDir,
        program: PathBuf,
        total: Micros,
        salt: String,
    ) -> Result<(), RunnerError> {
        let text = |name: &str| dir.path(name).display().to_string();
        let job = LoadgenJob {
            v: PIPE_VERSION,
            gateway_url: self.running.surfaces.gateway.clone(),
            model: self.running.model.clone(),
            plan: text(PLAN),
            records: text(REQUESTS),
            salt,
            steps: self.resolved.scenario.workload.steps.clone(),
            limits: limits(total),
            shard: Shard { shard: 0, of: 1 },
        };
        let job_file = format!("{LOGS}/loadgen-job.json");
        dir.write_json(&job_file, &job)?;
        guard
            .spawn(Spawn {
                service: LOADGEN.to_owned(),
                program,
                args: vec!["--job".to_owned(), text(&job_file)],
                env: BTreeMap::new(),
                log: dir.path(&format!("{LOGS}/loadgen.log")),
            })
            .await
    }

    /// Takes one line of loadgen; true once it is ready.
    async fn take(
        &mut self,
        line: LoadgenLine,
        dispatcher: &mut Dispatcher,
        guard: &mut Guard,
        logs: &MockLogs,
    ) -> Result<bool, RunnerError> {
        match line {
            LoadgenLine::Ready { build, planned, wall_anchor_unix_us, .. } => {
                crate::stack::embedded::check_build(LOADGEN, &build)?;
                let text = format!("loadgen ready: {planned} planned, anchor {wall_anchor_unix_us}");
                dispatcher.log(EventKind::Note { text })?;
                self.go(dispatcher, guard).await?;
                return Ok(true);
            }
            progress @ LoadgenLine::Progress { .. } => {
                dispatcher.view.progress(&progress, logs.hits_read);
                if let LoadgenLine::Progress { sent, .. } = progress {
                    self.act(sent, dispatcher, guard).await?;
                }
            }
            LoadgenLine::StepEnd {
                step,
                started_us,
                ended_us,
                released,
                in_flight_min,
                in_flight_max,
                ..
            } => {
                dispatcher.log(EventKind::StepEnded {
                    step,
                    started_us,
                    ended_us,
                    released,
                    in_flight_min,
                    in_flight_max,
                })?;
                self.step = step + 1;
                if self.step < self.resolved.scenario.workload.steps.len() && dispatcher.signals == 0 {
                    self.go(dispatcher, guard).await?;
                }
            }
            LoadgenLine::End { records, records_dropped, partial, health } => {
                let health = serde_json::to_value(&health).unwrap_or_default();
                dispatcher.log(EventKind::LoadEnded { records, records_dropped, partial, health })?;
                self.end = Some(if partial { LoadEnd::Interrupted } else { LoadEnd::Complete });
            }
            LoadgenLine::Failed { message } => {
                return Err(RunnerError::environment(format!("loadgen: {message}")));
            }
        }
        Ok(false)
    }

    async fn go(&self, dispatcher: &mut Dispatcher, guard: &mut Guard) -> Result<(), RunnerError> {
        let concurrency = self.resolved.scenario.workload.steps[self.step].concurrency;
        dispatcher.log(EventKind::StepStarted { step: self.step, concurrency })?;
        guard.input(LOADGEN, &format!("go {}", self.step)).await
    }

    /// Carries out the actions whose request count is reached.
    async fn act(
        &mut self,
        sent: u64,
        dispatcher: &mut Dispatcher,
        guard: &mut Guard,
    ) -> Result<(), RunnerError> {
        while let Some(Action { after: Trigger::Requests(count), action, .. }) =
            self.resolved.scenario.actions.get(self.actions_done)
            && sent >= *count
        {
            super::run::service_action(self.actions_done, action, self.running, dispatcher, guard).await?;
            self.actions_done += 1;
        }
        Ok(())
    }
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

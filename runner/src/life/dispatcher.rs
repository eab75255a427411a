//! One task owns the run's state: signals, child exits and service output reach it on one bounded channel, and
//! `events.jsonl` is that stream.

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;

use evidence::EVIDENCE_VERSION;
use evidence::event::{Event, EventKind, Phase};
use evidence::rundir::{EVENTS, LineWriter, RunDir};
use tokio::sync::mpsc;

use crate::clock::Clock;
use crate::error::RunnerError;
use crate::guard::{Report, tree};
use crate::view::View;

/// Messages that may wait for the dispatcher; beyond, their senders wait.
pub const INBOX_MAX: usize = 8_192;
/// Output lines kept per service until somebody reads them; the oldest is dropped and counted.
const OUTPUT_KEPT_MAX: usize = 65_536;

/// What reaches the dispatcher.
#[derive(Debug)]
pub enum Message {
    /// From the guard.
    Guard(Report),
    /// SIGINT or SIGTERM to the runner.
    Signal(&'static str),
    /// What a watch saw, written as it is.
    Seen(EventKind),
}

/// What is known about one service.
#[derive(Clone, Debug, Default)]
pub struct ServiceState {
    /// Process id of its latest start.
    pub pid: u32,
    /// Start time in clock ticks since boot.
    pub start_ticks: u64,
    /// It runs.
    pub running: bool,
    /// Its exit is expected: the runner asked for it.
    pub exit_planned: bool,
    /// It is a short program whose good end is no event to worry about.
    pub ends_by_itself: bool,
    /// Why it could not be started.
    pub not_spawned: Option<String>,
    /// Exit code or signal of its latest end, in words.
    pub ended: Option<String>,
    /// Output lines not read yet.
    pub output: VecDeque<String>,
    /// Output lines dropped.
    pub output_dropped: u64,
}

/// Owner of the run's state.
#[derive(Debug)]
pub struct Dispatcher {
    clock: Clock,
    inbox: mpsc::Receiver<Message>,
    events: LineWriter,
    seq: u64,
    /// Services by name.
    pub services: BTreeMap<String, ServiceState>,
    /// Signals received so far.
    pub signals: u32,
    /// The guard reported that everything is gone.
    pub all_ended: bool,
    /// What people see.
    pub view: View,
    phase: Option<(Phase, u64)>,
    /// Duration of each finished phase.
    pub phases_us: BTreeMap<Phase, u64>,
}

/// A wait was cut short by a signal to the runner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interrupted;

impl Dispatcher {
    /// A dispatcher that writes to the run directory.
    ///
    /// # Errors
    /// [`RunnerError::RunDir`] when `events.jsonl` can't be opened.
    pub fn new(
        clock: Clock,
        inbox: mpsc::Receiver<Message>,
        dir: &RunDir,
        view: View,
    ) -> Result<Self, RunnerError> {
        Ok(Self {
            clock,
            inbox,
            events: dir.append(EVENTS)?,
            seq: 0,
            services: BTreeMap::new(),
            signals: 0,
            all_ended: false,
            view,
            phase: None,
            phases_us: BTreeMap::new(),
        })
    }

    /// The clock of the run, for watches whose times stand in events.
    #[must_use]
    pub const fn clock(&self) -> Clock {
        self.clock
    }

    /// Microseconds since the run began.
    #[must_use]
    pub fn at_us(&self) -> u64 {
        self.clock.at_us()
    }

    /// Writes an event.
    ///
    /// # Errors
    /// [`RunnerError::RunDir`]: a run whose events can't be kept can't go on.
    pub fn log(&mut self, event: EventKind) -> Result<(), RunnerError> {
        self.seq += 1;
        let at_us = self.clock.at_us();
        self.view.event(&event);
        let event =
            Event { v: EVIDENCE_VERSION, seq: self.seq, at_us, unix_us: self.clock.unix_at(at_us), event };
        self.events.write(&event)?;
        Ok(())
    }

    /// Ends the current phase and begins another.
    ///
    /// # Errors
    /// As [`Dispatcher::log`].
    pub fn phase(&mut self, phase: Phase) -> Result<(), RunnerError> {
        self.end_phase()?;
        self.phase = Some((phase, self.clock.at_us()));
        self.log(EventKind::PhaseStarted { phase })
    }

    /// Ends the current phase.
    ///
    /// # Errors
    /// As [`Dispatcher::log`].
    pub fn end_phase(&mut self) -> Result<(), RunnerError> {
        if let Some((phase, since)) = self.phase.take() {
            let took_us = self.clock.at_us().saturating_sub(since);
            *self.phases_us.entry(phase).or_default() += took_us;
            self.log(EventKind::PhaseEnded { phase, took_us })?;
        }
        Ok(())
    }

    /// Takes one message in.
    ///
    /// # Errors
    /// As [`Dispatcher::log`].
    pub fn take(&mut self, message: Message) -> Result<(), RunnerError> {
        match message {
            Message::Signal(name) => {
                self.signals += 1;
                self.log(EventKind::Signal { signal: name.to_owned() })
            }
            Message::Seen(event) => self.log(event),
            Message::Guard(report) => self.take_report(report),
        }
    }

    fn take_report(&mut self, report: Report) -> Result<(), RunnerError> {
        match report {
            Report::Standing { .. } => Ok(()),
            Report::Ended { .. } => {
                self.all_ended = true;
                Ok(())
            }
            Report::Gone => self.guard_gone(),
            Report::Spawned { service, pid, start_ticks } => {
                let state = self.services.entry(service).or_default();
                state.pid = pid;
                state.start_ticks = start_ticks;
                state.running = true;
                state.exit_planned = false;
                state.ended = None;
                Ok(())
            }
            Report::NotSpawned { service, error } => {
                self.services.entry(service).or_default().not_spawned = Some(error);
                Ok(())
            }
            Report::Output { service, line } => {
                let state = self.services.entry(service).or_default();
                if state.output.len() >= OUTPUT_KEPT_MAX {
                    state.output.pop_front();
                    state.output_dropped += 1;
                }
                state.output.push_back(line);
                Ok(())
            }
            Report::Exited { service, pid, code, signal } => {
                let state = self.services.entry(service.clone()).or_default();
                if state.pid == pid {
                    state.running = false;
                    state.ended = Some(ended_in_words(code, signal));
                }
                // Loadgen ends by itself when its plan is done.
                let by_itself = state.ends_by_itself || service == crate::stack::LOADGEN;
                let planned = state.exit_planned || (by_itself && code == Some(0));
                self.log(EventKind::ProcessExited { service, pid, code, signal, planned })
            }
        }
    }

    /// Somebody ended the guard: its services would outlive the run. They are ended here, each by its identity, and the
    /// run ends as an environment error.
    fn guard_gone(&mut self) -> Result<(), RunnerError> {
        if std::mem::replace(&mut self.all_ended, true) {
            return Ok(());
        }
        let running = self.services.iter().filter(|(_, state)| state.running);
        let ended: Vec<(String, u32)> = running
            .filter(|(_, state)| tree::start_ticks(state.pid).is_none_or(|ticks| ticks == state.start_ticks))
            .map(|(service, state)| (service.clone(), state.pid))
            .collect();
        for (service, pid) in ended {
            tree::signal_all(pid, rustix::process::Signal::KILL);
            let signal = Some(rustix::process::Signal::KILL.as_raw());
            self.take_report(Report::Exited { service, pid, code: None, signal })?;
        }
        let message = "the guard process was ended from outside; its services were ended after it";
        Err(RunnerError::environment(message))
    }

    /// Takes in what has arrived, without waiting. True when there was anything.
    ///
    /// # Errors
    /// As [`Dispatcher::log`].
    pub fn take_waiting(&mut self) -> Result<bool, RunnerError> {
        let mut taken = false;
        while let Ok(message) = self.inbox.try_recv() {
            // Output of a service is kept, and no evidence of the verdict.
            taken |= !matches!(message, Message::Guard(Report::Output { .. }));
            self.take(message)?;
        }
        Ok(taken)
    }

    /// Waits for the next message.
    ///
    /// # Errors
    /// As [`Dispatcher::log`]; an internal error when the channel is closed.
    pub async fn next(&mut self) -> Result<(), RunnerError> {
        let Some(message) = self.inbox.recv().await else {
            return Err(RunnerError::Internal("the dispatcher's channel was closed".to_owned()));
        };
        self.take(message)
    }

    /// Carries a future out while messages keep being taken in. A signal cuts it short.
    ///
    /// # Errors
    /// As [`Dispatcher::log`].
    pub async fn during<T>(
        &mut self,
        work: impl Future<Output = T>,
    ) -> Result<Result<T, Interrupted>, RunnerError> {
        let signals = self.signals;
        tokio::pin!(work);
        loop {
            tokio::select! {
                biased;
                message = self.inbox.recv() => match message {
                    Some(message) => self.take(message)?,
                    None => return Err(RunnerError::Internal("the dispatcher's channel was closed".to_owned())),
                },
                result = &mut work => return Ok(Ok(result)),
            }
            if self.signals > signals {
                return Ok(Err(Interrupted));
            }
        }
    }

    /// Carries a future out to its end, signals or not: for short bounded work that must not be cut.
    ///
    /// # Errors
    /// As [`Dispatcher::log`].
    pub async fn through<T>(&mut self, work: impl Future<Output = T>) -> Result<T, RunnerError> {
        tokio::pin!(work);
        loop {
            tokio::select! {
                biased;
                message = self.inbox.recv() => match message {
                    Some(message) => self.take(message)?,
                    None => return Err(RunnerError::Internal("the dispatcher's channel was closed".to_owned())),
                },
                result = &mut work => return Ok(result),
            }
        }
    }
}

fn ended_in_words(code: Option<i32>, signal: Option<i32>) -> String {
    match (code, signal) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "unknown end".to_owned(),
    }
}

//! Watches everything that can end a load from outside: commands, signals, the record file. One task, one place.

use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use crate::error::LoadgenError;
use crate::halt::{Halt, Reason};
use crate::record_writer::WriteFailed;

/// A line of standard input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Start this step of the job.
    Go(usize),
    /// Start a step that the job does not have.
    Level(Level),
    /// No more steps come.
    End,
    /// End the load as SIGINT does.
    Stop,
    /// Standard input has ended.
    Gone,
    /// Something else.
    Unknown(String),
}

impl Command {
    /// Reads a line without its end.
    #[must_use]
    pub fn parse(line: &str) -> Self {
        let unknown = || Self::Unknown(line.to_owned());
        let words: Vec<&str> = line.split(' ').collect();
        match words.as_slice() {
            ["stop"] => Self::Stop,
            ["end"] => Self::End,
            ["go", step] => step.parse().map_or_else(|_| unknown(), Self::Go),
            ["go", step, concurrency, requests] => {
                match (step.parse(), concurrency.parse(), requests.parse()) {
                    (Ok(step), Ok(concurrency), Ok(requests)) if concurrency > 0 && requests > 0 => {
                        Self::Level(Level { step, concurrency, requests })
                    }
                    _ => unknown(),
                }
            }
            _ => unknown(),
        }
    }
}

/// A step that the runner chose while the load went on (a search).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    /// Which step, from 0.
    pub step: usize,
    /// Requests in flight.
    pub concurrency: u32,
    /// Requests.
    pub requests: u64,
}

/// What is to be run next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// A step of the job.
    Step(usize),
    /// A level.
    Level(Level),
}

/// What is watched.
pub struct Inputs {
    /// Commands, and where the steps to start go; `None` without a runner.
    pub commands: Option<(mpsc::Receiver<Command>, mpsc::Sender<Wanted>)>,
    /// Signals that end a load.
    pub signals: Signals,
    /// The record file.
    pub write_failed: WriteFailed,
    /// The end of the run.
    pub halt: Arc<Halt>,
    /// Time for open requests after a stop.
    pub drain: Duration,
}

/// SIGINT, SIGTERM and, unless somebody has it ignored (`nohup`), SIGHUP: a terminal that is closed.
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Option<Signal>,
}

impl Signals {
    /// Listens from now on.
    ///
    /// # Errors
    /// Environment when the system does not let it.
    pub fn listen() -> Result<Self, LoadgenError> {
        let listen = |kind| {
            signal(kind).map_err(|error| LoadgenError::Environment(format!("no signal handler: {error}")))
        };
        // Listening would take back that it is ignored.
        let ignored =
            std::fs::read_to_string("/proc/self/status").is_ok_and(|status| ignores_hangup(&status));
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hangup: if ignored { None } else { Some(listen(SignalKind::hangup())?) },
        })
    }

    /// Waits for the next one.
    async fn next(&mut self) {
        let hangup = async {
            match &mut self.hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            Some(()) = self.interrupt.recv() => {}
            Some(()) = self.terminate.recv() => {}
            Some(()) = hangup => {}
        }
    }
}

/// Whether signal 1 is in the mask of ignored ones in `/proc/<pid>/status`.
fn ignores_hangup(status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 == 1)
}

/// Runs until the load can't go on, and gives the reason; to be aborted when the load has ended by itself.
pub async fn run(inputs: Inputs) -> LoadgenError {
    let Inputs { commands, signals: mut ending, mut write_failed, halt, drain } = inputs;
    let (mut commands, mut steps) = commands.unzip();
    let mut signals = 0_u32;
    loop {
        tokio::select! {
            () = ending.next() => on_signal(&halt, drain, &mut signals),
            Ok(message) = &mut write_failed => {
                halt.abort_at_once(Reason::Failed);
                return LoadgenError::Environment(message);
            }
            command = next(&mut commands) => match command {
                Command::Go(step) => {
                    if let Some(error) = pass_on(steps.as_ref(), Wanted::Step(step), &halt) {
                        return error;
                    }
                }
                Command::Level(level) => {
                    if let Some(error) = pass_on(steps.as_ref(), Wanted::Level(level), &halt) {
                        return error;
                    }
                }
                Command::End => steps = None,
                Command::Stop => stop(&halt, Reason::Command, drain),
                Command::Gone => {
                    commands = None;
                    halt.abort_at_once(Reason::RunnerGone);
                }
                Command::Unknown(line) => {
                    halt.abort_at_once(Reason::Failed);
                    return LoadgenError::Usage(format!("command {line:?} is not known; `go`, `end` and `stop` are"));
                }
            },
        }
    }
}

/// Full only when the runner sent more steps at once than a job has; then the last is refused.
fn pass_on(steps: Option<&mpsc::Sender<Wanted>>, wanted: Wanted, halt: &Arc<Halt>) -> Option<LoadgenError> {
    if steps.is_some_and(|steps| steps.try_send(wanted).is_ok()) {
        return None;
    }
    halt.abort_at_once(Reason::Failed);
    let step = match wanted {
        Wanted::Step(step) => step,
        Wanted::Level(level) => level.step,
    };
    Some(LoadgenError::Usage(format!("`go {step}` came while too many steps were waiting, or after `end`")))
}

async fn next(commands: &mut Option<mpsc::Receiver<Command>>) -> Command {
    match commands {
        Some(receiver) => receiver.recv().await.unwrap_or(Command::Gone),
        None => std::future::pending().await,
    }
}

/// The first signal lets open requests end, the second one does not.
fn on_signal(halt: &Arc<Halt>, drain: Duration, signals: &mut u32) {
    *signals += 1;
    if *signals > 1 {
        halt.abort_at_once(Reason::Signal);
    } else {
        stop(halt, Reason::Signal, drain);
    }
}

/// Stops, and cuts what is still open after the drain.
fn stop(halt: &Arc<Halt>, reason: Reason, drain: Duration) {
    halt.stop(reason);
    let halt = Arc::clone(halt);
    tokio::task::spawn_local(async move {
        tokio::time::sleep(drain).await;
        halt.abort(reason);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ignored_hangup_is_seen_in_the_mask() {
        for (mask, ignored) in [("0000000000000001", true), ("0000000000001006", false), ("x", false)] {
            let status = format!("Name:\tloadgen\nSigIgn:\t{mask}\nSigCgt:\t0000000000000001\n");
            assert_eq!(ignores_hangup(&status), ignored, "{mask}");
        }
    }

    #[test]
    fn commands_are_read_exactly() {
        for (line, command) in [
            ("go 0", Command::Go(0)),
            ("go 12", Command::Go(12)),
            ("stop", Command::Stop),
            ("go", Command::Unknown("go".into())),
            ("go -1", Command::Unknown("go -1".into())),
            ("go 1 2", Command::Unknown("go 1 2".into())),
            ("go 1 8 20", Command::Level(Level { step: 1, concurrency: 8, requests: 20 })),
            ("go 1 0 20", Command::Unknown("go 1 0 20".into())),
            ("go 1 8 x", Command::Unknown("go 1 8 x".into())),
            ("end", Command::End),
            ("", Command::Unknown(String::new())),
            ("stop now", Command::Unknown("stop now".into())),
        ] {
            assert_eq!(Command::parse(line), command, "{line:?}");
        }
    }
}

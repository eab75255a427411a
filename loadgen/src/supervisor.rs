//! Watches everything that can end a load from outside: commands, signals, the record file. One task, one place.

use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::Signal;
use tokio::sync::mpsc;

use crate::error::LoadgenError;
use crate::halt::{Halt, Reason};
use crate::record_writer::WriteFailed;

/// A line of standard input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Start this step.
    Go(usize),
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
        match line.split_once(' ') {
            _ if line == "stop" => Self::Stop,
            Some(("go", step)) => step.parse().map_or_else(|_| Self::Unknown(line.to_owned()), Self::Go),
            _ => Self::Unknown(line.to_owned()),
        }
    }
}

/// What is watched.
pub struct Inputs {
    /// Commands, and where the steps to start go; `None` without a runner.
    pub commands: Option<(mpsc::Receiver<Command>, mpsc::Sender<usize>)>,
    /// SIGINT and SIGTERM.
    pub signals: (Signal, Signal),
    /// The record file.
    pub write_failed: WriteFailed,
    /// The end of the run.
    pub halt: Arc<Halt>,
    /// Time for open requests after a stop.
    pub drain: Duration,
}

/// Runs until the load can't go on, and gives the reason; to be aborted when the load has ended by itself.
pub async fn run(inputs: Inputs) -> LoadgenError {
    let Inputs { commands, signals: (mut interrupt, mut terminate), mut write_failed, halt, drain } = inputs;
    let (mut commands, steps) = commands.unzip();
    let mut signals = 0_u32;
    loop {
        tokio::select! {
            Some(()) = interrupt.recv() => on_signal(&halt, drain, &mut signals),
            Some(()) = terminate.recv() => on_signal(&halt, drain, &mut signals),
            Ok(message) = &mut write_failed => {
                halt.abort_at_once(Reason::Failed);
                return LoadgenError::Environment(message);
            }
            command = next(&mut commands) => match command {
                Command::Go(step) => {
                    // Full only when the runner sent more steps at once than a job has; then the last is refused.
                    if steps.as_ref().is_none_or(|steps| steps.try_send(step).is_err()) {
                        halt.abort_at_once(Reason::Failed);
                        return LoadgenError::Usage(format!("`go {step}` came while too many steps were waiting"));
                    }
                }
                Command::Stop => stop(&halt, Reason::Command, drain),
                Command::Gone => {
                    commands = None;
                    halt.abort_at_once(Reason::RunnerGone);
                }
                Command::Unknown(line) => {
                    halt.abort_at_once(Reason::Failed);
                    return LoadgenError::Usage(format!("command {line:?} is not known; `go <step>` and `stop` are"));
                }
            },
        }
    }
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
    fn commands_are_read_exactly() {
        for (line, command) in [
            ("go 0", Command::Go(0)),
            ("go 12", Command::Go(12)),
            ("stop", Command::Stop),
            ("go", Command::Unknown("go".into())),
            ("go -1", Command::Unknown("go -1".into())),
            ("go 1 2", Command::Unknown("go 1 2".into())),
            ("", Command::Unknown(String::new())),
            ("stop now", Command::Unknown("stop now".into())),
        ] {
            assert_eq!(Command::parse(line), command, "{line:?}");
        }
    }
}

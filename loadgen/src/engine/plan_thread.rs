//! The thread of a plan load: steps come in over a channel, so that signals and commands are never held up by it.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use scenario::model::Step;
use scenario::pipe::LoadgenLine;
use tokio::sync::oneshot;

use super::Shared;
use super::plan_load::{Parts, PlanLoad};
use super::reactor::Reactor;
use crate::error::LoadgenError;
use crate::halt::Halt;
use crate::record_writer::Written;
use crate::tally::Tally;

enum Command {
    Step { index: usize, step: Step, done: oneshot::Sender<Result<LoadgenLine, LoadgenError>> },
    Rest { done: oneshot::Sender<Result<(), LoadgenError>> },
}

/// A plan load on a thread of its own.
#[derive(Debug)]
pub struct PlanThread {
    commands: Sender<Command>,
    thread: JoinHandle<Result<(Written, Tally), LoadgenError>>,
}

impl PlanThread {
    /// Starts the thread.
    ///
    /// # Errors
    /// Environment when the system gives no thread or descriptor.
    pub fn start(parts: Parts, shared: Shared) -> Result<Self, LoadgenError> {
        let reactor = Reactor::new(parts.clock, shared, false)?;
        let halt = Arc::clone(&parts.halt);
        halt.tell(reactor.waker());
        let (commands, inbox) = channel();
        let thread = std::thread::Builder::new()
            .name("load".to_owned())
            .spawn(move || run(&inbox, reactor, PlanLoad::new(parts), &halt))
            .map_err(|error| LoadgenError::Environment(format!("no thread for the load: {error}")))?;
        Ok(Self { commands, thread })
    }

    /// Runs a step to its end: until no request of it is open.
    ///
    /// # Errors
    /// What made the load impossible; its requests are recorded all the same.
    pub async fn run_step(&self, index: usize, step: &Step) -> Result<LoadgenLine, LoadgenError> {
        let (done, result) = oneshot::channel();
        let _ = self.commands.send(Command::Step { index, step: step.clone(), done });
        result.await.unwrap_or_else(|_| Err(gone()))
    }

    /// Writes a record for every line that was not reached.
    ///
    /// # Errors
    /// Usage when the rest of the plan can't be read.
    pub async fn write_rest(&self) -> Result<(), LoadgenError> {
        let (done, result) = oneshot::channel();
        let _ = self.commands.send(Command::Rest { done });
        result.await.unwrap_or_else(|_| Err(gone()))
    }

    /// Ends the thread and the record file; gives what was written and the counts of the run.
    ///
    /// # Errors
    /// Internal when a thread panicked.
    pub fn close(self) -> Result<(Written, Tally), LoadgenError> {
        drop(self.commands);
        self.thread.join().map_err(|_| gone())?
    }
}

fn gone() -> LoadgenError {
    LoadgenError::Internal("the thread of the load panicked".to_owned())
}

fn run(
    inbox: &Receiver<Command>,
    mut reactor: Reactor,
    mut load: PlanLoad,
    halt: &Halt,
) -> Result<(Written, Tally), LoadgenError> {
    while let Ok(command) = inbox.recv() {
        match command {
            Command::Step { index, step, done } => {
                load.begin(index, &step);
                reactor.run(&mut load, halt);
                let _ = done.send(load.end(&step, reactor.sent()));
            }
            Command::Rest { done } => {
                let _ = done.send(load.write_rest());
            }
        }
    }
    load.close()
}

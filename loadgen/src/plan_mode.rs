//! `loadgen --job FILE`: the load of a plan under the runner, commanded over the pipe (design section 10).

use std::io::{BufRead as _, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use evidence::exit::Outcome;
use evidence::redact::Redactor;
use scenario::build::BUILD_ID;
use scenario::model::Step;
use scenario::pipe::{LoadgenJob, LoadgenLine, PIPE_VERSION};
use tokio::sync::mpsc;
use tokio::task::LocalSet;

use crate::body;
use crate::clock::Clock;
use crate::connection::request::{ClientKey, HeadTemplate};
use crate::connection::transport::{Options, Transport};
use crate::engine::plan_load::Parts;
use crate::engine::plan_thread::PlanThread;
use crate::engine::{KeepAlive, Route, Shared};
use crate::error::LoadgenError;
use crate::halt::{Halt, Reason};
use crate::health;
use crate::job;
use crate::plan_source::PlanSource;
use crate::progress::{self, Printer};
use crate::protocol::openai_chat::OpenAiChat;
use crate::pulse::{self, Pulse};
use crate::record_writer::{Overflow, RecordWriter, WriteFailed};
use crate::supervisor::{self, Command, Wanted};
use crate::target::Target;

/// Commands that may wait; the runner sends one a step.
const COMMANDS: usize = 16;
const COMMAND_BYTES_MAX: u64 = 256;

/// Runs the job to its end and gives the exit code. Never prints the client key.
#[must_use]
pub fn run(job_file: &Path) -> u8 {
    match try_run(job_file) {
        Ok(outcome) => outcome.code(),
        Err(error) => {
            progress::print(&LoadgenLine::Failed { message: error.to_string() });
            error.outcome().code()
        }
    }
}

fn try_run(job_file: &Path) -> Result<Outcome, LoadgenError> {
    let clock = Clock::start();
    let job = job::read(job_file)?;
    let target = Target::resolve(&job.gateway_url)?;
    let key = ClientKey::from_env()?;
    let most = job.steps.iter().map(|step| step.concurrency).max().unwrap_or_default();
    health::make_room(u64::from(most))?;
    let plan = PlanSource::open(Path::new(&job.plan), job.shard)?;
    let (writer, write_failed) = RecordWriter::open(Path::new(&job.records), Overflow::Wait)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| LoadgenError::Environment(format!("the runtime can't start: {error}")))?;
    let pulse = Arc::new(Pulse::default());
    let (printer, printer_end) = Printer::start()
        .map_err(|error| LoadgenError::Environment(format!("no thread for the pipe: {error}")))?;
    let halt = Arc::new(Halt::default());
    let planned = plan.planned();
    let observer = printer.clone();
    let head = HeadTemplate::new(&target, key.as_ref());
    let redactor = Redactor::new(key.iter().map(|key| key.secret().to_owned()));
    let parts = Parts {
        clock,
        head: head.clone(),
        plan,
        body: body::from_plan(job.salt.clone(), job.model.clone()),
        writer,
        halt: Arc::clone(&halt),
        observer: Box::new(move |line| observer.progress(line)),
        pulse: Some(Arc::clone(&pulse)),
    };
    let ca = job.ca.as_ref().map(PathBuf::from);
    let transport = Transport::new(&target, &Options { ca, insecure: job.insecure, ..Options::default() })?;
    if job.insecure {
        eprintln!("loadgen: the certificate of the gateway is NOT CHECKED: the job says insecure");
    }
    let (limits, keep) = (job.limits, KeepAlive::Reuse);
    let route = Route { target, head, protocol: &OpenAiChat, limits, keep, transport };
    let engine = PlanThread::start(parts, Shared { routes: vec![route], redactor })?;
    let ready = LoadgenLine::Ready {
        v: PIPE_VERSION,
        build: BUILD_ID.to_owned(),
        planned,
        wall_anchor_unix_us: clock.wall_anchor_unix_us(),
    };
    let result = LocalSet::new().block_on(&runtime, async {
        let commands = read_commands()?;
        drive(engine, &job, (clock, halt, pulse), printer, (commands, write_failed, ready)).await
    });
    printer_end.wait();
    result
}

type Inputs = (mpsc::Receiver<Command>, WriteFailed, LoadgenLine);

async fn drive(
    engine: PlanThread,
    job: &LoadgenJob,
    (clock, halt, pulse): (Clock, Arc<Halt>, Arc<Pulse>),
    printer: Printer,
    (commands, write_failed, ready): Inputs,
) -> Result<Outcome, LoadgenError> {
    let signals = supervisor::Signals::listen()?;
    let (steps_in, mut steps) = mpsc::channel(COMMANDS);
    let supervisor = tokio::task::spawn_local(supervisor::run(supervisor::Inputs {
        commands: Some((commands, steps_in)),
        signals,
        write_failed,
        halt: Arc::clone(&halt),
        drain: job.limits.drain.duration(),
    }));
    let watching = tokio::task::spawn_local(pulse::watch(Arc::clone(&pulse), clock));
    printer.print(ready).await;
    let mut next = 0;
    let mut result = Ok(());
    // Without steps of its own the job is a search: its levels come until `end`.
    while result.is_ok() && (job.steps.is_empty() || next < job.steps.len()) {
        let step = tokio::select! {
            biased;
            () = halt.stopped() => break,
            step = steps.recv() => step,
        };
        let Some(wanted) = step else { break };
        result = run_step(&engine, job, wanted, &mut next, &printer).await;
    }
    if result.is_ok() {
        result = engine.write_rest().await;
    }
    watching.abort();
    supervisor.abort();
    let failed = supervisor.await.ok();
    let wall_us = clock.now_us();
    let (written, tally) = engine.close()?;
    result?;
    if let Some(error) = failed {
        return Err(error);
    }
    if let Some(message) = written.error {
        return Err(LoadgenError::Environment(message));
    }
    printer
        .print(LoadgenLine::End {
            records: written.records,
            records_dropped: written.dropped,
            partial: halt.is_stopped(),
            health: tally.health(wall_us, Some(&pulse.beats())),
        })
        .await;
    Ok(match halt.reason() {
        None | Some(Reason::Command) => Outcome::Pass,
        Some(Reason::Signal | Reason::RunnerGone) => Outcome::Interrupted,
        Some(Reason::Failed) => Outcome::Internal,
    })
}

async fn run_step(
    engine: &PlanThread,
    job: &LoadgenJob,
    wanted: Wanted,
    next: &mut usize,
    printer: &Printer,
) -> Result<(), LoadgenError> {
    let (index, step) = match wanted {
        Wanted::Step(index) => (index, job.steps.get(index).cloned()),
        Wanted::Level(level) => {
            let step =
                Step { concurrency: level.concurrency, requests: Some(level.requests), duration: None };
            (level.step, job.steps.is_empty().then_some(step))
        }
    };
    let Some(step) = step.filter(|_| index >= *next) else {
        return Err(LoadgenError::Usage(format!(
            "`go {index}`: the job has {} steps from 0, the next one is {next}",
            job.steps.len()
        )));
    };
    health::make_room(u64::from(step.concurrency))?;
    let end = engine.run_step(index, &step).await?;
    printer.print(end).await;
    *next = index + 1;
    Ok(())
}

/// Reads commands in a thread, since a pipe can't be waited for otherwise without blocking.
fn read_commands() -> Result<mpsc::Receiver<Command>, LoadgenError> {
    let (sender, receiver) = mpsc::channel(COMMANDS);
    std::thread::Builder::new()
        .name("commands".to_owned())
        .spawn(move || {
            let mut input = std::io::stdin().lock();
            let mut line = String::new();
            loop {
                line.clear();
                let count = input.by_ref().take(COMMAND_BYTES_MAX).read_line(&mut line);
                let command = match count {
                    Ok(0) | Err(_) => Command::Gone,
                    Ok(_) => Command::parse(line.trim()),
                };
                let last = command == Command::Gone;
                if sender.blocking_send(command).is_err() || last {
                    return;
                }
            }
        })
        .map_err(|error| LoadgenError::Environment(format!("no thread for commands: {error}")))?;
    Ok(receiver)
}

//! The closed loop: as many slots as the concurrency, each with one request at a time. A slot that is free takes the
//! next plan line; the instant at which it became free is the planned instant of that request.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use evidence::record::{ClientClass, RequestRecord};
use scenario::model::Step;
use scenario::pipe::LoadgenLine;
use scenario::plan::PlanLine;

use crate::clock::Clock;
use crate::error::LoadgenError;
use crate::exchange::Wire;
use crate::halt::{Halt, Reason};
use crate::plan_source::PlanSource;
use crate::record_writer::{RecordWriter, Written};
use crate::tally::Tally;

/// Gives the exact body of a plan line.
pub type BodySource = Box<dyn Fn(&PlanLine) -> Vec<u8>>;
/// Is told of progress lines; must not block.
pub type Observer = Box<dyn Fn(LoadgenLine)>;

const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);
/// A count step reports at each such part of its requests.
const PROGRESS_PARTS: u64 = 20;
/// When the end is hurried, time for the lines that were never reached.
const REST_HURRIED_US: u64 = 2_000_000;
/// Lines without a request between two looks at signals.
const REST_BATCH: u64 = 1024;

/// A load: one plan, one target, one record file.
pub struct Engine {
    wire: Wire,
    plan: RefCell<PlanSource>,
    body: BodySource,
    writer: RecordWriter,
    halt: Rc<Halt>,
    tally: RefCell<Tally>,
    observer: Observer,
    /// Plan index at which the next step begins, the same for all shards.
    base: Cell<u64>,
    failure: RefCell<Option<LoadgenError>>,
}

/// What [`Engine::new`] takes.
pub struct Parts {
    /// The send path.
    pub wire: Wire,
    /// The plan.
    pub plan: PlanSource,
    /// The bodies.
    pub body: BodySource,
    /// The record file.
    pub writer: RecordWriter,
    /// The end of the run.
    pub halt: Rc<Halt>,
    /// Progress.
    pub observer: Observer,
}

/// One step while it runs.
struct StepRun {
    index: usize,
    /// First plan index that does not belong to the step.
    end: u64,
    /// When a duration step releases nothing more.
    until_us: Option<u64>,
    concurrency: u64,
    /// Requests between two progress lines; 0 = by time only.
    report_every: u64,
    started_us: u64,
    ended_us: Cell<u64>,
    released: Cell<u64>,
    done: Cell<u64>,
    in_flight: Cell<u64>,
    /// Lowest number in flight since it was full.
    min: Cell<Option<u64>>,
    max: Cell<u64>,
}

impl StepRun {
    fn release(&self) {
        self.released.set(self.released.get() + 1);
        let now = self.in_flight.get() + 1;
        self.in_flight.set(now);
        self.max.set(self.max.get().max(now));
        if now == self.concurrency || self.min.get().is_some() {
            self.dip(now);
        }
    }

    /// A number that counts once the step had been full.
    fn dip(&self, in_flight: u64) {
        self.min.set(Some(self.min.get().map_or(in_flight, |min| min.min(in_flight))));
    }
}

impl Engine {
    /// An engine at rest.
    #[must_use]
    pub fn new(parts: Parts) -> Self {
        let Parts { wire, plan, body, writer, halt, observer } = parts;
        Self {
            wire,
            plan: RefCell::new(plan),
            body,
            writer,
            halt,
            tally: RefCell::default(),
            observer,
            base: Cell::new(0),
            failure: RefCell::default(),
        }
    }

    /// The clock of all instants.
    #[must_use]
    pub fn clock(&self) -> Clock {
        self.wire.clock
    }

    /// Counts so far.
    #[must_use]
    pub fn tally(&self) -> std::cell::Ref<'_, Tally> {
        self.tally.borrow()
    }

    /// Runs a step to its end: until no request of it is open. Must run inside a `LocalSet`.
    ///
    /// # Errors
    /// What made the load impossible; its requests are recorded all the same.
    pub async fn run_step(self: &Rc<Self>, index: usize, step: &Step) -> Result<LoadgenLine, LoadgenError> {
        let run = Rc::new(self.start(index, step));
        let ticker = tokio::task::spawn_local(Rc::clone(self).tick(index));
        let slots: Vec<_> = (0..run.concurrency)
            .map(|_| tokio::task::spawn_local(Rc::clone(self).slot(Rc::clone(&run))))
            .collect();
        for slot in slots {
            if let Err(error) = slot.await {
                self.fail(LoadgenError::Internal(format!("a slot ended: {error}")));
            }
        }
        ticker.abort();
        // Its end is awaited because it holds the engine.
        let _ = ticker.await;
        self.set_next_base(step);
        self.report(index);
        if let Some(failure) = self.failure.borrow_mut().take() {
            return Err(failure);
        }
        Ok(self.step_end(&run))
    }

    fn start(&self, index: usize, step: &Step) -> StepRun {
        let shard = self.plan.borrow().shard();
        let started_us = self.clock().now_us();
        // Shares of a concurrency that does not divide go to the first shards; none is left without a slot.
        let whole = u64::from(step.concurrency);
        let share = whole / shard.of + u64::from(shard.shard < whole % shard.of);
        StepRun {
            index,
            end: step.requests.map_or(u64::MAX, |requests| self.base.get().saturating_add(requests)),
            until_us: step.duration.map(|duration| started_us.saturating_add(duration.us())),
            concurrency: share.max(1),
            report_every: step.requests.map_or(0, |requests| (requests / shard.of).div_ceil(PROGRESS_PARTS)),
            started_us,
            ended_us: Cell::new(started_us),
            released: Cell::new(0),
            done: Cell::new(0),
            in_flight: Cell::new(0),
            min: Cell::new(None),
            max: Cell::new(0),
        }
    }

    /// A count step ends at the same index for all shards; after a duration step each goes on where it is.
    fn set_next_base(&self, step: &Step) {
        let plan = self.plan.borrow();
        self.base.set(match step.requests {
            Some(requests) => self.base.get().saturating_add(requests),
            None => plan.next_index() / plan.shard().of * plan.shard().of,
        });
    }

    async fn slot(self: Rc<Self>, run: Rc<StepRun>) {
        let mut out = Vec::new();
        while let Some(line) = self.next_line(&run) {
            let released_us = self.clock().now_us();
            let body = (self.body)(&line);
            let record = RequestRecord {
                step: Some(run.index),
                planned_us: Some(released_us),
                released_us: Some(released_us),
                ..RequestRecord::blank(line.index, line.id.clone(), line.stream)
            };
            run.release();
            {
                let mut tally = self.tally.borrow_mut();
                tally.in_flight += 1;
                tally.first_us.get_or_insert(released_us);
            }
            let record = self.wire.exchange(&line, &body, record, &self.halt, &mut out).await;
            run.in_flight.set(run.in_flight.get() - 1);
            run.done.set(run.done.get() + 1);
            run.ended_us.set(run.ended_us.get().max(record.end_us.unwrap_or_default()));
            {
                let mut tally = self.tally.borrow_mut();
                tally.in_flight -= 1;
                tally.add(&record);
            }
            if run.report_every > 0 && run.done.get().is_multiple_of(run.report_every) {
                self.report(run.index);
            }
            let in_flight = run.in_flight.get();
            // A slot that stands idle for the disk's sake is a gap in the load that the step end must show.
            if self.writer.write(record).await && run.min.get().is_some() {
                run.dip(in_flight);
            }
        }
    }

    fn next_line(&self, run: &StepRun) -> Option<PlanLine> {
        let over = run.until_us.is_some_and(|until_us| self.clock().now_us() >= until_us);
        if over || self.halt.is_stopped() {
            return None;
        }
        match self.plan.borrow_mut().next_below(run.end) {
            Ok(line) => line,
            Err(error) => {
                self.fail(error);
                None
            }
        }
    }

    fn fail(&self, error: LoadgenError) {
        self.failure.borrow_mut().get_or_insert(error);
        self.halt.abort_at_once(Reason::Failed);
    }

    async fn tick(self: Rc<Self>, step: usize) {
        loop {
            tokio::time::sleep(PROGRESS_INTERVAL).await;
            self.report(step);
        }
    }

    fn report(&self, step: usize) {
        let line = self.tally.borrow().progress(self.clock().now_us(), step, self.wire.sent.get());
        (self.observer)(line);
    }

    fn step_end(&self, run: &StepRun) -> LoadgenLine {
        LoadgenLine::StepEnd {
            step: run.index,
            started_us: run.started_us,
            ended_us: run.ended_us.get(),
            released: run.released.get(),
            in_flight_min: run.min.get().unwrap_or_default(),
            in_flight_max: run.max.get(),
            health: self.tally.borrow().health(self.clock().now_us()),
        }
    }

    /// Writes a record for every line that was not reached. In a hurry only as many as fit into a short time.
    ///
    /// # Errors
    /// Usage when the rest of the plan can't be read.
    pub async fn write_rest(&self) -> Result<(), LoadgenError> {
        let mut count = 0_u64;
        let mut until_us = None;
        loop {
            let Some(line) = self.plan.borrow_mut().next_below(u64::MAX)? else { return Ok(()) };
            let mut record = RequestRecord::blank(line.index, line.id, line.stream);
            record.client_class = ClientClass::NotOffered;
            self.writer.write(Box::new(record)).await;
            count += 1;
            if !count.is_multiple_of(REST_BATCH) {
                continue;
            }
            tokio::task::yield_now().await;
            let now_us = self.clock().now_us();
            if self.halt.is_hurried() && now_us >= *until_us.get_or_insert(now_us + REST_HURRIED_US) {
                return Ok(());
            }
        }
    }

    /// Ends the record file; gives what was written and the counts of the run.
    ///
    /// # Errors
    /// Internal when the writer panicked or a task still holds the engine.
    pub fn close(self: Rc<Self>) -> Result<(Written, Tally), LoadgenError> {
        let engine = Rc::try_unwrap(self)
            .map_err(|_| LoadgenError::Internal("a task outlived its step".to_owned()))?;
        Ok((engine.writer.close()?, engine.tally.into_inner()))
    }
}

//! The closed loop of plan mode: as many slots as the concurrency, each with one request at a time. A slot that is
//! free takes the next plan line; the instant at which it became free is the planned instant of that request.

use std::sync::Arc;

use evidence::record::{ClientClass, RequestRecord};
use scenario::model::Step;
use scenario::pipe::LoadgenLine;
use scenario::plan::PlanLine;

use super::spare::Spare;
use super::{Ended, Load, Next, Work};
use crate::checks::Check;
use crate::clock::Clock;
use crate::connection::request::HeadTemplate;
use crate::error::LoadgenError;
use crate::halt::{Halt, Reason};
use crate::plan_source::PlanSource;
use crate::pulse::Pulse;
use crate::record_writer::{RecordWriter, Written};
use crate::tally::Tally;

/// Gives the exact body of a plan line.
pub type BodySource = Box<dyn Fn(&PlanLine) -> Vec<u8> + Send>;
/// Is told of progress lines; must not block.
pub type Observer = Box<dyn Fn(LoadgenLine) + Send>;

const PROGRESS_INTERVAL_US: u64 = 1_000_000;
/// A count step reports at each such part of its requests.
const PROGRESS_PARTS: u64 = 20;
/// When the end is hurried, time for the lines that were never reached.
const REST_HURRIED_US: u64 = 2_000_000;
/// Lines without a request between two looks at signals.
const REST_BATCH: u64 = 1024;

/// What a plan load is made of.
pub struct Parts {
    /// The clock.
    pub clock: Clock,
    /// The common part of the heads.
    pub head: HeadTemplate,
    /// The plan.
    pub plan: PlanSource,
    /// The bodies.
    pub body: BodySource,
    /// The record file.
    pub writer: RecordWriter,
    /// The end of the run.
    pub halt: Arc<Halt>,
    /// Progress.
    pub observer: Observer,
    /// Whether the process gets to run, where somebody watches.
    pub pulse: Option<Arc<Pulse>>,
}

/// One plan, one target, one record file.
pub struct PlanLoad {
    parts: Parts,
    tally: Tally,
    /// Plan index at which the next step begins, the same for all shards.
    base: u64,
    run: StepRun,
    failure: Option<LoadgenError>,
    sent: u64,
    report_us: u64,
}

/// One step while it runs.
#[derive(Debug, Default)]
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
    ended_us: u64,
    released: u64,
    done: u64,
    in_flight: u64,
    /// Lowest number in flight since it was full.
    min: Option<u64>,
    max: u64,
}

impl StepRun {
    fn release(&mut self) {
        self.released += 1;
        self.in_flight += 1;
        self.max = self.max.max(self.in_flight);
        if self.in_flight == self.concurrency || self.min.is_some() {
            self.dip(self.in_flight);
        }
    }

    /// A number that counts once the step had been full.
    fn dip(&mut self, in_flight: u64) {
        self.min = Some(self.min.map_or(in_flight, |min| min.min(in_flight)));
    }
}

impl PlanLoad {
    /// A load at rest.
    #[must_use]
    pub fn new(parts: Parts) -> Self {
        Self {
            parts,
            tally: Tally::default(),
            base: 0,
            run: StepRun::default(),
            failure: None,
            sent: 0,
            report_us: 0,
        }
    }

    /// Prepares a step; the event loop then runs this load.
    pub fn begin(&mut self, index: usize, step: &Step) {
        let shard = self.parts.plan.shard();
        let started_us = self.parts.clock.now_us();
        // Shares of a concurrency that does not divide go to the first shards; none is left without a slot.
        let whole = u64::from(step.concurrency);
        let share = whole / shard.of + u64::from(shard.shard < whole % shard.of);
        self.run = StepRun {
            index,
            end: step.requests.map_or(u64::MAX, |requests| self.base.saturating_add(requests)),
            until_us: step.duration.map(|duration| started_us.saturating_add(duration.us())),
            concurrency: share.max(1),
            report_every: step.requests.map_or(0, |requests| (requests / shard.of).div_ceil(PROGRESS_PARTS)),
            started_us,
            ended_us: started_us,
            ..StepRun::default()
        };
        self.report_us = started_us + PROGRESS_INTERVAL_US;
    }

    /// Closes a step that the event loop has run; gives its end line.
    ///
    /// # Errors
    /// What made the load impossible; its requests are recorded all the same.
    pub fn end(&mut self, step: &Step, sent: u64) -> Result<LoadgenLine, LoadgenError> {
        self.sent = sent;
        // A count step ends at the same index for all shards; after a duration step each goes on where it is.
        self.base = match step.requests {
            Some(requests) => self.base.saturating_add(requests),
            None => self.parts.plan.next_index() / self.parts.plan.shard().of * self.parts.plan.shard().of,
        };
        // Between steps nobody looks after what has gathered.
        self.parts.writer.flush();
        self.report();
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        let run = &self.run;
        Ok(LoadgenLine::StepEnd {
            step: run.index,
            started_us: run.started_us,
            ended_us: run.ended_us,
            released: run.released,
            in_flight_min: run.min.unwrap_or_default(),
            in_flight_max: run.max,
            health: self.tally.health(
                self.parts.clock.now_us(),
                self.parts.pulse.as_ref().map(|pulse| pulse.beats()).as_ref(),
            ),
        })
    }

    fn next_line(&mut self, now_us: u64) -> Option<PlanLine> {
        let over = self.run.until_us.is_some_and(|until_us| now_us >= until_us);
        if over || self.parts.halt.is_stopped() {
            return None;
        }
        match self.parts.plan.next_below(self.run.end) {
            Ok(line) => line,
            Err(error) => {
                self.failure.get_or_insert(error);
                self.parts.halt.abort_at_once(Reason::Failed);
                None
            }
        }
    }

    fn report(&self) {
        let now_us = self.parts.clock.now_us();
        (self.parts.observer)(self.tally.progress(now_us, self.run.index, self.sent));
    }

    /// Writes a record for every line that was not reached. In a hurry only as many as fit into a short time.
    ///
    /// # Errors
    /// Usage when the rest of the plan can't be read.
    pub fn write_rest(&mut self) -> Result<(), LoadgenError> {
        let mut count = 0_u64;
        let mut until_us = None;
        loop {
            let Some(line) = self.parts.plan.next_below(u64::MAX)? else { return Ok(()) };
            let mut record = RequestRecord::blank(line.index, line.id, line.stream);
            record.client_class = ClientClass::NotOffered;
            self.parts.writer.write(&record, 0);
            count += 1;
            if !count.is_multiple_of(REST_BATCH) {
                continue;
            }
            let now_us = self.parts.clock.now_us();
            if self.parts.halt.is_hurried() && now_us >= *until_us.get_or_insert(now_us + REST_HURRIED_US) {
                return Ok(());
            }
        }
    }

    /// Ends the record file; gives what was written and the counts of the run.
    ///
    /// # Errors
    /// Internal when the writer panicked.
    pub fn close(self) -> Result<(Written, Tally), LoadgenError> {
        Ok((self.parts.writer.close()?, self.tally))
    }
}

impl Load for PlanLoad {
    fn next(&mut self, now_us: u64, spare: &mut Spare) -> Next {
        if self.run.in_flight >= self.run.concurrency {
            return Next::Blocked;
        }
        let Some(line) = self.next_line(now_us) else { return Next::Over };
        let body = (self.parts.body)(&line);
        let mut request = spare.take();
        self.parts.head.write(line.id.as_str(), &body, &mut request);
        let record = RequestRecord {
            step: Some(self.run.index),
            planned_us: Some(now_us),
            released_us: Some(now_us),
            bytes_out: body.len() as u64,
            ..RequestRecord::blank(line.index, line.id, line.stream)
        };
        self.run.release();
        self.tally.in_flight += 1;
        self.tally.first_us.get_or_insert(now_us);
        Next::Start(Box::new(Work {
            tag: line.index,
            route: 0,
            part: 0,
            record: Box::new(record),
            cancel: line.cancel,
            checks: line.checks.iter().map(Check::from).collect::<Arc<[Check]>>(),
            keep_content: false,
            digest: true,
            request,
        }))
    }

    fn ended(&mut self, ended: Ended, now_us: u64) {
        let record = ended.record;
        let run = &mut self.run;
        run.in_flight -= 1;
        run.done += 1;
        run.ended_us = run.ended_us.max(record.end_us.unwrap_or_default());
        self.tally.in_flight -= 1;
        self.tally.add(&record);
        let in_flight = run.in_flight;
        // A load that stands idle for the disk's sake is a gap that the step end must show.
        if self.parts.writer.write(&*record, now_us) && self.run.min.is_some() {
            self.run.dip(in_flight);
        }
        if self.run.report_every > 0 && self.run.done.is_multiple_of(self.run.report_every) {
            self.report();
        }
    }

    fn event_gap(&mut self, _tag: u64, _gap_us: u64) {}

    fn tick(&mut self, now_us: u64, sent: u64) -> Option<u64> {
        self.sent = sent;
        if now_us >= self.report_us {
            self.report_us = now_us + PROGRESS_INTERVAL_US;
            self.report();
        }
        let flush_us = self.parts.writer.tick(now_us);
        Some(flush_us.map_or(self.report_us, |at_us| at_us.min(self.report_us)))
    }
}

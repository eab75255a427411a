//! The load of a profile on one thread: stages one after another (`stages`), closed and open, and what is sent in them
//! (`sends`), conversations of several turns. This file holds the state and what the event loop calls.

mod sends;
mod stages;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use evidence::record::ClientClass;
use scenario::pipe::Shard;
use stats::Histogram;

use super::arrivals::{Arrival, Arrivals};
use super::conversation::{Conversation, Writer};
use super::live::{Interval, Live};
use super::measure::{self, Context};
use super::slab::Slab;
use super::spare::Spare;
use super::stage::StagePart;
use super::turn_record::{TurnPlace, TurnRecord};
use super::{Ended, Load, Next};
use crate::clock::Clock;
use crate::error::LoadgenError;
use crate::halt::Halt;
use crate::health;
use crate::profile::Resolved;
use crate::profile::resolve::StagePlan;
use crate::record_writer::{RecordWriter, Written};
use crate::result::{OverTime, SearchResult, Wires};
use crate::terminal;

/// Longest time between two looks at what runs by time.
const TICK_US: u64 = 20_000;

/// What happens between stages: more stages, or the end.
pub trait Director {
    /// A stage has ended and nothing of it is in flight. Gives the next one to append, and whether to go on.
    fn after(&mut self, index: usize, part: &StagePart) -> (Option<StagePlan>, bool);
    /// Looks at a stage while it runs; a reason ends it and the run.
    fn during(&mut self, index: usize, part: &StagePart) -> Option<String>;
    /// What a search has found.
    fn found(&self) -> Option<SearchResult>;
}

/// What a profile load is made of.
pub struct Parts {
    /// The clock.
    pub clock: Clock,
    /// The profile.
    pub plan: Arc<Resolved>,
    /// Its stages; a search begins with one.
    pub stages: Vec<StagePlan>,
    /// Writes requests.
    pub requests: Writer,
    /// The record file.
    pub writer: RecordWriter,
    /// The end of the run.
    pub halt: Arc<Halt>,
    /// The share of this thread.
    pub shard: Shard,
    /// Lines for people.
    pub live: Arc<Live>,
    /// This thread prints them for all.
    pub speaks: bool,
    /// Start of the first stage, common to all threads; `None` = when the thread gets there.
    pub begin_us: Option<u64>,
    /// Decides between stages; only with it they are drained.
    pub director: Option<Box<dyn Director + Send>>,
}

/// One stage while it runs.
struct Running {
    until_us: Option<u64>,
    /// Conversations left, for a stage by count.
    left: Option<u64>,
    arrivals: Option<Arrivals>,
    /// The next arrival, its instant absolute.
    next: Option<Arrival>,
    /// Scenario of each user of this thread.
    users: Vec<usize>,
    ramp: (u64, u64, u64),
    look_us: Option<u64>,
}

/// The load of a profile.
pub struct ProfileLoad {
    parts: Parts,
    weights: Vec<u64>,
    conversations: Slab<Conversation>,
    due_turns: VecDeque<usize>,
    /// The next arrival with its request and the size of its body.
    prepared: Option<(Conversation, (Vec<u8>, u64))>,
    stages: Vec<StagePart>,
    running: Option<Running>,
    /// When the next stage starts, where that is known before anybody looks.
    starts_us: Option<u64>,
    /// All stages are over, or the run is: nothing new starts.
    finished: bool,
    /// Conversations that have begun go on although their stage has ended.
    lets_finish: bool,
    /// Waiting for what is in flight before the next stage.
    draining: bool,
    idle_users: BTreeSet<usize>,
    ordinals: Vec<u64>,
    in_flight: u64,
    arrivals_open: u64,
    /// When the in-flight bound last let go.
    blocked_us: Option<u64>,
    sequence: u64,
    over_time: OverTime,
    interval: Interval,
    interval_us: u64,
    rss_max_bytes: u64,
}

/// What a thread gives back.
pub struct Outcome {
    /// Its stages, and their plans.
    pub stages: Vec<(StagePlan, StagePart)>,
    /// Windows over time.
    pub over_time: OverTime,
    /// Records.
    pub written: Written,
    /// Largest resident memory seen.
    pub rss_max_bytes: u64,
    /// Turns of the event loops.
    pub loop_turn: Histogram,
    /// Connections of the event loops.
    pub wires: Wires,
    /// Time without a core.
    pub core_wait_us: Option<u64>,
    /// Who decided between stages.
    pub director: Option<Box<dyn Director + Send>>,
}

impl ProfileLoad {
    /// A load at rest.
    #[must_use]
    pub fn new(parts: Parts) -> Self {
        let weights = parts.plan.scenarios.iter().map(|scenario| scenario.weight).collect();
        let interval_us = parts.clock.now_us();
        let starts_us = parts.begin_us;
        Self {
            parts,
            weights,
            conversations: Slab::default(),
            due_turns: VecDeque::new(),
            prepared: None,
            stages: Vec::new(),
            running: None,
            starts_us,
            finished: false,
            draining: false,
            lets_finish: false,
            idle_users: BTreeSet::new(),
            ordinals: Vec::new(),
            in_flight: 0,
            arrivals_open: 0,
            blocked_us: None,
            sequence: 0,
            over_time: OverTime::default(),
            interval: Interval::default(),
            interval_us,
            rss_max_bytes: 0,
        }
    }

    /// Ends the record file; gives everything that was counted.
    ///
    /// # Errors
    /// Internal when the writer panicked.
    pub fn close(mut self) -> Result<Outcome, LoadgenError> {
        self.leave(self.parts.clock.now_us());
        let plans = self.parts.stages.into_iter();
        Ok(Outcome {
            stages: plans.zip(self.stages).collect(),
            over_time: self.over_time,
            written: self.parts.writer.close()?,
            rss_max_bytes: self.rss_max_bytes,
            loop_turn: Histogram::new(),
            wires: Wires::default(),
            core_wait_us: None,
            director: self.parts.director,
        })
    }

    /// The line for people, made of what happened since the last one.
    fn show(&mut self, now_us: u64) {
        let span_us = now_us - self.interval_us;
        self.interval_us = now_us;
        self.interval.in_flight = self.in_flight;
        self.parts.live.add(&std::mem::take(&mut self.interval));
        self.rss_max_bytes = self.rss_max_bytes.max(health::Usage::now().rss_bytes);
        if self.parts.speaks {
            let index = self.stages.len().saturating_sub(1);
            let words = self.parts.stages.get(index).map(|stage| stage.load.words()).unwrap_or_default();
            let stage = format!("stage {} ({words})", index + 1);
            terminal::show(&self.parts.live.line(now_us, span_us, &stage, terminal::width()));
        }
    }
}

impl Load for ProfileLoad {
    fn next(&mut self, now_us: u64, spare: &mut Spare) -> Next {
        loop {
            if self.finished || self.parts.halt.is_stopped() {
                self.leave(now_us);
                return Next::Over;
            }
            if let Some(key) = self.due_turns.pop_front() {
                if (self.draining || self.running.is_none()) && !self.lets_finish {
                    self.go_on(key, false, String::new(), now_us);
                    continue;
                }
                return self.start(key, None, now_us, spare);
            }
            if self.draining {
                if self.in_flight > 0 {
                    return Next::Blocked;
                }
                if !self.decide() {
                    self.finished = true;
                }
                continue;
            }
            if self.running.is_none() && !self.enter(now_us) {
                if self.lets_finish && self.in_flight > 0 {
                    return Next::Blocked;
                }
                self.finished = true;
                continue;
            }
            if let Some(next) = self.want(now_us, spare) {
                return next;
            }
        }
    }

    fn ended(&mut self, mut ended: Ended, now_us: u64) {
        let Ok(key) = usize::try_from(ended.tag) else { return };
        let plan = Arc::clone(&self.parts.plan);
        let Some(conversation) = self.conversations.get_mut(key) else { return };
        let (stage, scenario, delayed) = (conversation.stage, conversation.scenario, conversation.delayed);
        let context = Context { slo: plan.slo.as_ref(), prices_nano: plan.prices_nano, delayed };
        let part = &mut self.stages[stage];
        let steady = part.is_steady(conversation.planned_us);
        let end_us = ended.record.end_us.unwrap_or(now_us);
        part.ended_us = part.ended_us.max(end_us);
        if steady {
            measure::add(&mut part.scenarios[scenario], &ended, context);
        } else {
            measure::count(&mut part.outside, &ended, context);
        }
        measure::add_over_time(&mut self.over_time, &ended, delayed);
        let from_us = if delayed { ended.record.released_us } else { ended.record.planned_us };
        let late_us = ended.start_us.zip(from_us).map(|(start, from)| start.saturating_sub(from));
        self.interval.add(ended.record.client_class, ended.record.latency_us(), late_us);
        self.in_flight -= 1;
        let good = ended.record.client_class == ClientClass::Ok;
        let content = std::mem::take(&mut ended.content);
        let place = TurnPlace {
            conversation: &conversation.uuid,
            scenario: &plan.scenarios[scenario].name,
            turn: conversation.turn,
            stage,
            steady,
        };
        self.parts.writer.write(&TurnRecord::new(place, &ended), now_us);
        self.go_on(key, good, content, now_us);
    }

    fn event_gap(&mut self, tag: u64, gap_us: u64) {
        let found = usize::try_from(tag).ok().and_then(|key| self.conversations.get_mut(key));
        let Some(conversation) = found else { return };
        let part = &mut self.stages[conversation.stage];
        if part.is_steady(conversation.planned_us) {
            let figures = &mut part.scenarios[conversation.scenario];
            figures.distributions.record(crate::result::Metric::InterEvent, gap_us);
        }
    }

    fn tick(&mut self, now_us: u64, _sent: u64) -> Option<u64> {
        let flush_us = self.parts.writer.tick(now_us);
        let live_us = self.parts.plan.live_us.map(|every_us| {
            if now_us >= self.interval_us + every_us {
                self.show(now_us);
            }
            self.interval_us + every_us
        });
        let index = self.stages.len().saturating_sub(1);
        let look_us = self.running.as_ref().and_then(|running| running.look_us);
        if let (Some(look_us), Some(every_us)) = (look_us, self.parts.plan.abort_within_us)
            && now_us >= look_us
        {
            let part = &self.stages[index];
            let why = self.parts.director.as_mut().and_then(|director| director.during(index, part));
            if let Some(running) = &mut self.running {
                running.look_us = Some(now_us + every_us);
            }
            if let Some(why) = why {
                self.end_run(now_us, why);
            }
        }
        let look_us = self.running.as_ref().and_then(|running| running.look_us);
        let next_us = [flush_us, live_us, look_us].into_iter().flatten().min();
        // Records gather from now on: they are looked after even when nothing else is due.
        Some(next_us.unwrap_or(u64::MAX).min(now_us + TICK_US))
    }
}

//! The load of a profile on one thread: stages one after another, closed and open, conversations of several turns.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use evidence::record::{ClientClass, RequestRecord};
use scenario::identity::RequestId;
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
use super::{Ended, Load, Next, Work};
use crate::clock::Clock;
use crate::error::LoadgenError;
use crate::halt::Halt;
use crate::health;
use crate::profile::Resolved;
use crate::profile::content::Place;
use crate::profile::resolve::{Kind, StagePlan};
use crate::profile::weights;
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
    stages: Vec<StagePart>,
    running: Option<Running>,
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
        Self {
            parts,
            weights,
            conversations: Slab::default(),
            due_turns: VecDeque::new(),
            stages: Vec::new(),
            running: None,
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

    /// Begins the next stage; `false` when there is none.
    fn enter(&mut self, now_us: u64) -> bool {
        let index = self.stages.len();
        let Some(stage) = self.parts.stages.get(index) else { return false };
        let shard = self.parts.shard;
        let until_us = stage.duration_us.map(|duration| now_us.saturating_add(duration));
        let share = |whole: u64| whole / shard.of + u64::from(shard.shard < whole % shard.of);
        let (mut users, mut ramp) = (Vec::new(), (0, 0, 0));
        if let Kind::Closed { from, to, ramp_us } = stage.kind {
            // Which user has which scenario is decided over all shards, so that shares are exact.
            let all = weights::spread(to.max(from), &self.weights);
            let step = usize::try_from(shard.of).unwrap_or(1);
            users = all
                .into_iter()
                .skip(usize::try_from(shard.shard).unwrap_or_default())
                .step_by(step)
                .collect();
            ramp = (share(from), share(to), ramp_us);
            self.ordinals.resize(self.ordinals.len().max(users.len()), 0);
            let busy: BTreeSet<usize> = self
                .conversations
                .keys()
                .into_iter()
                .filter_map(|key| self.conversations.get_mut(key)?.user)
                .collect();
            self.idle_users = (0..users.len()).filter(|user| !busy.contains(user)).collect();
        }
        let mut arrivals = Arrivals::new(&stage.kind, shard, self.parts.plan.seed, index, &self.weights);
        let next = arrivals.as_mut().and_then(|arrivals| absolute(arrivals.next(), now_us));
        self.running = Some(Running {
            until_us,
            left: stage.requests.map(share),
            arrivals,
            next,
            users,
            ramp,
            look_us: self.parts.plan.abort_within_us.map(|us| now_us + us),
        });
        let steady_until_us = until_us.map_or(u64::MAX, |until| until.saturating_sub(stage.cooldown_us));
        self.stages.push(StagePart {
            started_us: now_us,
            ended_us: now_us,
            steady_from_us: now_us.saturating_add(stage.warmup_us),
            steady_until_us,
            scenarios: vec![crate::result::Figures::default(); self.weights.len()],
            cpu_us: (health::cpu_us(), 0),
            ..StagePart::default()
        });
        true
    }

    /// Ends the stage that runs: what it still planned is not offered.
    fn leave(&mut self, now_us: u64) {
        let Some(mut running) = self.running.take() else { return };
        let Some(part) = self.stages.last_mut() else { return };
        part.cpu_us.1 = health::cpu_us();
        part.ended_us = part.ended_us.max(now_us.min(running.until_us.unwrap_or(now_us)));
        let started_us = part.started_us;
        while let Some(arrival) = running.next {
            let steady = part.is_steady(arrival.at_us);
            let counts =
                if steady { &mut part.scenarios[arrival.scenario].counts } else { &mut part.outside };
            counts.planned += 1;
            *counts.classes.entry(ClientClass::NotOffered).or_default() += 1;
            running.next = running.arrivals.as_mut().and_then(|all| absolute(all.next(), started_us));
        }
        self.draining = self.parts.director.is_some();
        // A stage by count is over when its conversations are; one by time cuts them at its end.
        self.lets_finish = running.until_us.is_none();
    }

    /// After a stage was drained; `false` = the run is over.
    fn decide(&mut self) -> bool {
        self.draining = false;
        let Some(director) = &mut self.parts.director else { return true };
        let index = self.stages.len() - 1;
        let (more, go_on) = director.after(index, &self.stages[index]);
        self.parts.stages.extend(more);
        go_on
    }

    fn end_run(&mut self, now_us: u64, why: String) {
        if let Some(part) = self.stages.last_mut() {
            part.stopped.get_or_insert(why);
        }
        self.leave(now_us);
        self.draining = false;
        self.finished = true;
    }

    /// What the running stage wants now.
    fn want(&mut self, now_us: u64, spare: &mut Spare) -> Option<Next> {
        let running = self.running.as_mut()?;
        let over = running.until_us.is_some_and(|until_us| now_us >= until_us) || running.left == Some(0);
        // What was planned up to the end is sent although the end is noticed first.
        let due = running.next.is_some() && !self.is_full();
        if over && !due {
            self.leave(now_us);
            return None;
        }
        let running = self.running.as_ref()?;
        let end = running.until_us.map_or(Next::Blocked, Next::At);
        if running.arrivals.is_some() {
            self.want_arrival(now_us, spare, end)
        } else {
            self.want_user(now_us, spare, end)
        }
    }

    /// The in-flight bound holds arrivals back.
    fn is_full(&self) -> bool {
        let plan = &self.parts.plan;
        !plan.drop_above && self.arrivals_open >= plan.inflight_max.div_ceil(self.parts.shard.of)
    }

    fn want_arrival(&mut self, now_us: u64, spare: &mut Spare, end: Next) -> Option<Next> {
        let plan = Arc::clone(&self.parts.plan);
        let running = self.running.as_mut()?;
        let Some(arrival) = running.next else { return Some(end) };
        if arrival.at_us > now_us {
            return Some(Next::At(running.until_us.map_or(arrival.at_us, |until| until.min(arrival.at_us))));
        }
        let full = self.arrivals_open >= plan.inflight_max.div_ceil(self.parts.shard.of);
        if full && !plan.drop_above {
            let waited_us = now_us - arrival.at_us;
            if plan.oversaturation_us.is_some_and(|most| waited_us > most) {
                let why = format!("over-saturated: the oldest arrival waits for {} ms", waited_us / 1_000);
                self.end_run(now_us, why);
                return None;
            }
            return Some(end);
        }
        // One that became due while the bound was reached waited for it, and not for the generator.
        let held = self.blocked_us.is_some_and(|free_us| free_us > arrival.at_us);
        let started_us = self.stages.last()?.started_us;
        running.next = running.arrivals.as_mut().and_then(|all| absolute(all.next(), started_us));
        let stage = self.stages.len() - 1;
        let place = Place { stage: stage as u64, user: 0, ordinal: arrival.index };
        let mut conversation = Conversation::new(&plan, arrival.scenario, place, None);
        conversation.planned_us = arrival.at_us;
        conversation.delayed = held;
        if full {
            self.drop_one(&conversation, stage, now_us);
            return self.want(now_us, spare);
        }
        self.arrivals_open += 1;
        let key = self.conversations.insert(conversation);
        Some(self.start(key, now_us, spare))
    }

    fn want_user(&mut self, now_us: u64, spare: &mut Spare, end: Next) -> Option<Next> {
        let running = self.running.as_mut()?;
        let started_us = self.stages.last()?.started_us;
        let (from, to, ramp_us) = running.ramp;
        let passed_us = now_us.saturating_sub(started_us);
        let (most, next_us) = ramp_at(from, to, ramp_us, passed_us);
        let Some(user) = self.idle_users.first().copied().filter(|user| (*user as u64) < most) else {
            return Some(match (next_us, end) {
                (Some(next_us), Next::At(until_us)) => Next::At(until_us.min(started_us + next_us)),
                (Some(next_us), _) => Next::At(started_us + next_us),
                (None, end) => end,
            });
        };
        self.idle_users.remove(&user);
        running.left = running.left.map(|left| left - 1);
        let scenario = running.users[user];
        let shard = self.parts.shard;
        let place = Place {
            stage: self.stages.len() as u64 - 1,
            user: user as u64 * shard.of + shard.shard,
            ordinal: self.ordinals[user],
        };
        self.ordinals[user] += 1;
        let mut conversation = Conversation::new(&self.parts.plan, scenario, place, Some(user));
        conversation.planned_us = now_us;
        let key = self.conversations.insert(conversation);
        Some(self.start(key, now_us, spare))
    }

    /// Counts an arrival that the bound keeps out.
    fn drop_one(&mut self, conversation: &Conversation, stage: usize, now_us: u64) {
        let part = &mut self.stages[stage];
        let steady = part.is_steady(conversation.planned_us);
        let counts =
            if steady { &mut part.scenarios[conversation.scenario].counts } else { &mut part.outside };
        counts.planned += 1;
        *counts.classes.entry(ClientClass::Dropped).or_default() += 1;
        let scenario = &self.parts.plan.scenarios[conversation.scenario];
        let id = RequestId::from_text(format!("{}.0", conversation.uuid));
        let mut record = RequestRecord::blank(self.sequence, id, scenario.stream);
        record.planned_us = Some(conversation.planned_us);
        record.client_class = ClientClass::Dropped;
        record.detail = Some("more were in flight than openloop_max_inflight allows".to_owned());
        let place =
            TurnPlace { conversation: &conversation.uuid, scenario: &scenario.name, turn: 0, stage, steady };
        let ended = Ended {
            tag: 0,
            record: Box::new(record),
            content: String::new(),
            output_events: 0,
            start_us: None,
            tls_us: None,
            dns_us: None,
            http2: false,
            cancel_reached_us: None,
        };
        self.parts.writer.write(&TurnRecord::new(place, ended), now_us);
    }

    /// The request of the turn that is due.
    fn start(&mut self, key: usize, now_us: u64, spare: &mut Spare) -> Next {
        let stage = self.stages.len() - 1;
        let plan = Arc::clone(&self.parts.plan);
        let Some(conversation) = self.conversations.get_mut(key) else { return Next::Blocked };
        conversation.stage = stage;
        let (request, bytes_out) = self.parts.requests.write(conversation, spare);
        let scenario = &plan.scenarios[conversation.scenario];
        let draws = conversation.draws(&plan);
        let turn = u64::from(conversation.turn);
        let cancel =
            scenario.cancel.filter(|(share, _)| draws.selects("cancel", turn, *share)).map(|(_, at)| at);
        let id = RequestId::from_text(format!("{}.{turn}", conversation.uuid));
        let record = RequestRecord {
            step: Some(stage),
            planned_us: Some(conversation.planned_us),
            released_us: Some(now_us),
            bytes_out,
            ..RequestRecord::blank(self.sequence, id, scenario.stream)
        };
        self.sequence += 1;
        let part = &mut self.stages[stage];
        let counts = if part.is_steady(conversation.planned_us) {
            &mut part.scenarios[conversation.scenario].counts
        } else {
            &mut part.outside
        };
        counts.planned += 1;
        self.in_flight += 1;
        part.in_flight_max = part.in_flight_max.max(self.in_flight);
        Next::Start(Box::new(Work {
            tag: key as u64,
            route: conversation.scenario,
            record: Box::new(record),
            cancel,
            checks: Arc::clone(&scenario.checks),
            keep_content: conversation.turn + 1 < conversation.turns,
            digest: false,
            request,
        }))
    }

    /// A conversation goes on with its next turn, or ends and makes room.
    fn go_on(&mut self, key: usize, good: bool, content: String, now_us: u64) {
        let closing = self.finished || (self.draining && !self.lets_finish) || self.parts.halt.is_stopped();
        let Some(conversation) = self.conversations.get_mut(key) else { return };
        if good && !closing && conversation.turn + 1 < conversation.turns {
            conversation.answered(content);
            conversation.planned_us = now_us;
            self.due_turns.push_back(key);
            return;
        }
        match conversation.user {
            Some(user) => {
                let known = self.running.as_ref().map_or(0, |running| running.users.len());
                if user < known {
                    self.idle_users.insert(user);
                }
            }
            None => {
                let share = self.parts.plan.inflight_max.div_ceil(self.parts.shard.of);
                if self.arrivals_open >= share {
                    self.blocked_us = Some(now_us);
                }
                self.arrivals_open -= 1;
            }
        }
        self.conversations.remove(key);
    }
}

/// An arrival with its instant on the clock of the run.
fn absolute(arrival: Option<Arrival>, started_us: u64) -> Option<Arrival> {
    arrival.map(|arrival| Arrival { at_us: arrival.at_us.saturating_add(started_us), ..arrival })
}

/// Users of a ramp after some time, and when there will be one more.
fn ramp_at(from: u64, to: u64, ramp_us: u64, passed_us: u64) -> (u64, Option<u64>) {
    if ramp_us == 0 || passed_us >= ramp_us {
        return (to, None);
    }
    let part = |span: u64| u64::try_from(u128::from(span) * u128::from(passed_us) / u128::from(ramp_us));
    if from >= to {
        return (from - part(from - to).unwrap_or_default(), None);
    }
    let now = from + part(to - from).unwrap_or_default();
    let next = u128::from(now + 1 - from) * u128::from(ramp_us);
    (now, u64::try_from(next.div_ceil(u128::from(to - from))).ok())
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
                return self.start(key, now_us, spare);
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
        self.parts.writer.write(&TurnRecord::new(place, ended), now_us);
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

impl ProfileLoad {
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

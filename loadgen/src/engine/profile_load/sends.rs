//! What is sent next: arrivals and users that are due, the bound on what is in flight, and the turns of conversations.

use std::sync::Arc;

use evidence::record::{ClientClass, RequestRecord};
use scenario::identity::RequestId;

use super::ProfileLoad;
use super::stages::{absolute, ramp_at};
use crate::engine::arrivals::Arrival;
use crate::engine::conversation::Conversation;
use crate::engine::spare::Spare;
use crate::engine::turn_record::{TurnPlace, TurnRecord};
use crate::engine::{Ended, Next, Work};
use crate::profile::content::{Draws, Place};

impl ProfileLoad {
    /// What the running stage wants now.
    pub(super) fn want(&mut self, now_us: u64, spare: &mut Spare) -> Option<Next> {
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
    pub(super) fn is_full(&self) -> bool {
        let plan = &self.parts.plan;
        !plan.drop_above && self.arrivals_open >= plan.inflight_max.div_ceil(self.parts.shard.of)
    }

    pub(super) fn want_arrival(&mut self, now_us: u64, spare: &mut Spare, end: Next) -> Option<Next> {
        let plan = Arc::clone(&self.parts.plan);
        let running = self.running.as_mut()?;
        let Some(arrival) = running.next else { return Some(end) };
        if arrival.at_us > now_us {
            self.prepare(arrival, spare);
            let running = self.running.as_ref()?;
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
        let place = place_of(arrival, stage);
        let (mut conversation, written) = match self.prepared.take().filter(|(known, _)| known.place == place)
        {
            Some((conversation, written)) => (conversation, Some(written)),
            None => (Conversation::new(&plan, arrival.scenario, place, None), None),
        };
        conversation.planned_us = arrival.at_us;
        conversation.delayed = held;
        if full {
            self.drop_one(&conversation, stage, now_us);
            return self.want(now_us, spare);
        }
        self.arrivals_open += 1;
        let key = self.conversations.insert(conversation);
        Some(self.start(key, written, now_us, spare))
    }

    /// Writes the request of the next arrival while nothing is due, so that at its instant only sending is left.
    fn prepare(&mut self, arrival: Arrival, spare: &mut Spare) {
        let place = place_of(arrival, self.stages.len() - 1);
        if self.prepared.as_ref().is_none_or(|(known, _)| known.place != place) {
            let mut conversation = Conversation::new(&self.parts.plan, arrival.scenario, place, None);
            let written = self.parts.requests.write(&mut conversation, spare);
            self.prepared = Some((conversation, written));
        }
    }

    pub(super) fn want_user(&mut self, now_us: u64, spare: &mut Spare, end: Next) -> Option<Next> {
        let running = self.running.as_mut()?;
        let started_us = self.stages.last()?.started_us;
        let (from, to, ramp_us) = running.ramp;
        let passed_us = now_us.saturating_sub(started_us);
        let (shard, stage) = (self.parts.shard, self.stages.len() as u64 - 1);
        let global = |user: u64| user * shard.of + shard.shard;
        let draw = |user| {
            let place = Place { stage, user: global(user), ordinal: 0 };
            Draws { seed: self.parts.plan.seed, scenario: "", place }.below("ramp", 0, ramp_us)
        };
        let (most, next_us) = ramp_at(from, to, ramp_us, passed_us, draw);
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
        let place = Place { stage, user: global(user as u64), ordinal: self.ordinals[user] };
        self.ordinals[user] += 1;
        let mut conversation = Conversation::new(&self.parts.plan, scenario, place, Some(user));
        conversation.planned_us = now_us;
        let key = self.conversations.insert(conversation);
        Some(self.start(key, None, now_us, spare))
    }

    /// Counts an arrival that the bound keeps out.
    pub(super) fn drop_one(&mut self, conversation: &Conversation, stage: usize, now_us: u64) {
        let part = &mut self.stages[stage];
        let steady = part.is_steady(conversation.planned_us);
        let counts =
            if steady { &mut part.scenarios[conversation.scenario].counts } else { &mut part.outside };
        counts.planned += 1;
        *counts.classes.entry(ClientClass::Dropped).or_default() += 1;
        let scenario = &self.parts.plan.scenarios[conversation.scenario];
        let id = turn_id(&conversation.uuid, 0);
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
            http2: false,
            first_on_connection: false,
            proxy_us: None,
            cancel_reached_us: None,
        };
        self.parts.writer.write(&TurnRecord::new(place, &ended), now_us);
    }

    /// The request of the turn that is due, unless it is written already.
    pub(super) fn start(
        &mut self,
        key: usize,
        written: Option<(Vec<u8>, u64)>,
        now_us: u64,
        spare: &mut Spare,
    ) -> Next {
        let stage = self.stages.len() - 1;
        let plan = Arc::clone(&self.parts.plan);
        let Some(conversation) = self.conversations.get_mut(key) else { return Next::Blocked };
        conversation.stage = stage;
        let (request, bytes_out) = written.unwrap_or_else(|| self.parts.requests.write(conversation, spare));
        let scenario = &plan.scenarios[conversation.scenario];
        let draws = conversation.draws(&plan);
        let turn = u64::from(conversation.turn);
        let cancel =
            scenario.cancel.filter(|(share, _)| draws.selects("cancel", turn, *share)).map(|(_, at)| at);
        let id = turn_id(&conversation.uuid, turn);
        let record = RequestRecord {
            step: Some(stage),
            planned_us: Some(conversation.planned_us),
            released_us: Some(now_us),
            bytes_out,
            ..RequestRecord::blank(self.sequence, id, scenario.stream)
        };
        self.sequence += 1;
        let part = &mut self.stages[stage];
        let steady = part.is_steady(conversation.planned_us);
        let counts =
            if steady { &mut part.scenarios[conversation.scenario].counts } else { &mut part.outside };
        counts.planned += 1;
        self.in_flight += 1;
        part.in_flight_max = part.in_flight_max.max(self.in_flight);
        Next::Start(Box::new(Work {
            tag: key as u64,
            route: conversation.scenario,
            part: stage as u64 * 2 + u64::from(steady),
            record: Box::new(record),
            cancel,
            checks: Arc::clone(&scenario.checks),
            keep_content: conversation.turn + 1 < conversation.turns,
            digest: false,
            request,
        }))
    }

    /// A conversation goes on with its next turn, or ends and makes room.
    pub(super) fn go_on(&mut self, key: usize, good: bool, content: String, now_us: u64) {
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

fn place_of(arrival: Arrival, stage: usize) -> Place {
    Place { stage: stage as u64, user: 0, ordinal: arrival.index }
}

/// Id of a turn: that of its conversation and its number. Without `format!`, which costs more than all the rest of it.
fn turn_id(conversation: &str, turn: u64) -> RequestId {
    let mut digits = itoa::Buffer::new();
    RequestId::from_text([conversation, digits.format(turn)].join("."))
}

//! Stages of a profile: how one begins, what it still planned when it ends, and what comes after it.

use std::collections::BTreeSet;

use evidence::record::ClientClass;

use super::{ProfileLoad, Running};
use crate::engine::arrivals::{Arrival, Arrivals};
use crate::engine::stage::StagePart;
use crate::health;
use crate::profile::resolve::Kind;
use crate::profile::weights;

impl ProfileLoad {
    /// Begins the next stage; `false` when there is none.
    pub(super) fn enter(&mut self, now_us: u64) -> bool {
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
    pub(super) fn leave(&mut self, now_us: u64) {
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
    pub(super) fn decide(&mut self) -> bool {
        self.draining = false;
        let Some(director) = &mut self.parts.director else { return true };
        let index = self.stages.len() - 1;
        let (more, go_on) = director.after(index, &self.stages[index]);
        self.parts.stages.extend(more);
        go_on
    }

    pub(super) fn end_run(&mut self, now_us: u64, why: String) {
        if let Some(part) = self.stages.last_mut() {
            part.stopped.get_or_insert(why);
        }
        self.leave(now_us);
        self.draining = false;
        self.finished = true;
    }
}

/// An arrival with its instant on the clock of the run.
pub(super) fn absolute(arrival: Option<Arrival>, started_us: u64) -> Option<Arrival> {
    arrival.map(|arrival| Arrival { at_us: arrival.at_us.saturating_add(started_us), ..arrival })
}

/// Users of a ramp after some time, and when there will be one more.
pub(super) fn ramp_at(from: u64, to: u64, ramp_us: u64, passed_us: u64) -> (u64, Option<u64>) {
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

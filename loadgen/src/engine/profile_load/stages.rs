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
        // Noticed when somebody looked; planned for the instant at which it was due, the same for all threads.
        let now_us = self.starts_us.take().map_or(now_us, |starts_us| starts_us.min(now_us));
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
        self.starts_us = running.until_us.filter(|_| !self.draining);
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

/// Users of a ramp after some time, and when there will be one more. Each of those that join begins at an instant of its
/// own slot, `draw` (below `ramp_us`) parts of it from its start: users who begin in step ask in step for the rest of the
/// run, and the target is never seen between their bursts.
pub(super) fn ramp_at(
    from: u64,
    to: u64,
    ramp_us: u64,
    passed_us: u64,
    draw: impl Fn(u64) -> u64,
) -> (u64, Option<u64>) {
    if ramp_us == 0 || passed_us >= ramp_us {
        return (to, None);
    }
    let part = |span: u64| {
        let part = u128::from(span) * u128::from(passed_us) / u128::from(ramp_us);
        u64::try_from(part).unwrap_or(span)
    };
    if from >= to {
        return (from - part(from - to), None);
    }
    let joining = to - from;
    let start = |user: u64| {
        let sum = u128::from(user) * u128::from(ramp_us) + u128::from(draw(from + user));
        u64::try_from(sum / u128::from(joining)).unwrap_or(ramp_us)
    };
    // Those whose slot is over have begun; of the one whose slot this is, its draw says. (Slots may be shorter than the
    // clock's microsecond.)
    let mut begun = part(joining);
    while begun < joining && start(begun) <= passed_us {
        begun += 1;
    }
    (from + begun, (begun < joining).then(|| start(begun)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RAMP_US: u64 = 1_000;

    /// Instants at which users of a ramp begin, found by waiting for each as told.
    fn starts(from: u64, to: u64, draw: impl Fn(u64) -> u64 + Copy) -> Vec<u64> {
        let (mut now_us, mut found) = (0, Vec::new());
        loop {
            let (users, next_us) = ramp_at(from, to, RAMP_US, now_us, draw);
            found.resize((users - from) as usize, now_us);
            let Some(next_us) = next_us else { return found };
            assert!(next_us > now_us, "the next one is not due yet");
            now_us = next_us;
        }
    }

    #[test]
    fn users_of_a_ramp_begin_in_slots_of_their_own_and_not_in_step() {
        let drawn = |user: u64| (user * user * 7_919 + 13) % RAMP_US;
        for (from, to) in [(0, 1), (0, 10), (3, 10), (0, 999)] {
            let found = starts(from, to, drawn);
            let joining = to - from;
            assert_eq!(found.len() as u64, joining);
            for (user, start_us) in found.iter().enumerate() {
                let user = user as u64;
                let slot = user * RAMP_US / joining..=((user + 1) * RAMP_US).div_ceil(joining);
                assert!(slot.contains(start_us), "user {user} of {joining} at {start_us}");
            }
        }
        let gaps = |found: Vec<u64>| found.windows(2).map(|pair| pair[1] - pair[0]).collect::<BTreeSet<_>>();
        assert!(gaps(starts(0, 10, drawn)).len() > 5, "the draw decides within a slot");
        assert_eq!(gaps(starts(0, 10, |_| 0)).len(), 1, "and nothing else does");
    }

    #[test]
    fn a_ramp_ends_at_its_level_and_may_go_down() {
        let none = |_| 0;
        assert_eq!(ramp_at(0, 5, 0, 0, none), (5, None));
        assert_eq!(ramp_at(0, 5, RAMP_US, RAMP_US, none), (5, None));
        assert_eq!(ramp_at(10, 4, RAMP_US, 0, none), (10, None));
        assert_eq!(ramp_at(10, 4, RAMP_US, RAMP_US / 2, none), (7, None));
        assert_eq!(ramp_at(0, u64::MAX, u64::MAX, 1, none).0, 2);
    }
}

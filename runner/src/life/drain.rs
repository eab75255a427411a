//! The bounded drain (design section 3): (a) passive wait on the named signals, (b) snapshot, (c) sync until stable,
//! snapshot, (d) finalize, snapshot.

use std::collections::BTreeMap;
use std::time::Duration;

use evidence::EVIDENCE_VERSION;
use evidence::drain::{DrainPart, DrainSample, SIGNALS};
use evidence::event::EventKind;
use evidence::rundir::{DRAIN, LineWriter, RunDir};
use scenario::control::{DapiStats, OpenaiStats};
use serde_json::Value;

use super::dispatcher::Dispatcher;
use crate::collect::ask::bound;
use crate::collect::gateway::waiting as waiting_at;
use crate::collect::leases::{self, Quiet};
use crate::collect::metrics::sum;
use crate::error::RunnerError;
use crate::stack::Running;

/// Rounds of sync over all escrows; more than this many never helped on a real build (contract gateway 6.6).
const SYNC_ROUNDS_MAX: u32 = 12;
/// Wait for the work that one round of sync brought, where signals did not come to rest before the first of them either.
const QUIET_LIMIT: Duration = Duration::from_secs(1);
/// Pause between looks at the signals: the short one within [`QUIET_LIMIT`], then the interval of the drain.
const QUIET_PAUSE: Duration = Duration::from_millis(50);
/// Looks in a row at which no execution runs any more, before the rules about executions go off; and the longest wait.
const ENDED_LOOKS: u32 = 3;
const ENDED_LIMIT: Duration = Duration::from_secs(2);
/// Time limit of one sync or finalize call; it is shorter where the whole drain may not take that long.
const CALL_LIMIT: Duration = Duration::from_secs(60);
/// Shortest limit of such a call: what works at all is done by then.
const CALL_LIMIT_MIN: Duration = Duration::from_secs(5);
/// Times of a lease that are waited for the last one: it runs out, is taken over, and may run out once more.
const LEASE_TIMES: u32 = 4;
/// Name in samples of part (c): transactions that wait at the gateway, over all escrows.
const PENDING: &str = "gateway_pending_transactions";
/// Part of a service's answer that is kept in an event.
const DETAIL_LEN_MAX: usize = 300;

/// How the passive wait is bounded.
#[derive(Clone, Copy, Debug)]
pub struct DrainLimits {
    /// Deadline after the start of the wait.
    pub timeout: Duration,
    /// Samples in a row that must be zero and unchanged.
    pub stable_samples: u32,
    /// Time between samples.
    pub interval: Duration,
}

/// Writes `drain.jsonl`.
#[derive(Debug)]
pub struct Drainer<'a> {
    running: &'a Running,
    limits: DrainLimits,
    step: Option<usize>,
    out: LineWriter,
    /// A lease was left when the wait for it was given up.
    lease_left: bool,
}

impl<'a> Drainer<'a> {
    /// Opens `drain.jsonl`. `step` is set for a drain between steps: after which one.
    ///
    /// # Errors
    /// [`RunnerError::RunDir`].
    pub fn new(
        running: &'a Running,
        limits: DrainLimits,
        step: Option<usize>,
        dir: &RunDir,
    ) -> Result<Self, RunnerError> {
        Ok(Self { running, limits, step, out: dir.append(DRAIN)?, lease_left: false })
    }

    /// (a): waits until every signal is zero and unchanged for K samples, or the deadline. Gives how it ended.
    ///
    /// # Errors
    /// [`RunnerError::RunDir`].
    pub async fn passive(&mut self, dispatcher: &mut Dispatcher) -> Result<&'static str, RunnerError> {
        let timeout_us = u64::try_from(self.limits.timeout.as_micros()).unwrap_or(u64::MAX);
        let deadline_us = dispatcher.at_us().saturating_add(timeout_us);
        let mut stable = 0;
        loop {
            let signals = dispatcher.through(read_signals(self.running)).await?;
            let zero = all_zero(&signals);
            stable = if zero { stable + 1 } else { 0 };
            let at_us = dispatcher.at_us();
            let ended = if stable >= self.limits.stable_samples {
                Some("stable")
            } else if at_us >= deadline_us {
                Some("deadline")
            } else {
                None
            };
            self.sample(DrainPart::Passive, (at_us, Some(deadline_us)), signals, stable, ended)?;
            if let Some(ended) = ended {
                return Ok(ended);
            }
            if dispatcher.during(tokio::time::sleep(self.pause(at_us, deadline_us))).await?.is_err() {
                let at_us = dispatcher.at_us();
                let at = (at_us, Some(deadline_us));
                self.sample(DrainPart::Passive, at, BTreeMap::new(), 0, Some("interrupted"))?;
                return Ok("interrupted");
            }
        }
    }

    /// Time to the next look: the deadline is looked at however long the interval is.
    fn pause(&self, at_us: u64, deadline_us: u64) -> Duration {
        self.limits.interval.min(Duration::from_micros(deadline_us.saturating_sub(at_us)))
    }

    fn sample(
        &mut self,
        part: DrainPart,
        (at_us, deadline_us): (u64, Option<u64>),
        signals: BTreeMap<String, Option<f64>>,
        stable: u32,
        ended: Option<&str>,
    ) -> Result<(), RunnerError> {
        let (v, ended, step) = (EVIDENCE_VERSION, ended.map(str::to_owned), self.step);
        self.out.write(&DrainSample { v, at_us, part, signals, stable, ended, deadline_us, step })?;
        Ok(())
    }

    /// (c): `sync-hosts` on each escrow until nothing is pending, nonces stand still, no signal is above zero and no
    /// lease is open: a sync may bring hosts work to validate, and a round asked before that work has ended is a round
    /// lost. Where the passive wait came to rest (`drained`) that work has the time of the drain, over all rounds.
    /// Bounded by rounds and by time; what is left then is for the verdict. Gives the number of transactions that still
    /// wait at the gateway; `None` when that could not be read, which is never zero.
    ///
    /// # Errors
    /// [`RunnerError::RunDir`].
    pub async fn sync(
        &mut self,
        dispatcher: &mut Dispatcher,
        drained: bool,
    ) -> Result<Option<u64>, RunnerError> {
        let us = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let work_until_us = dispatcher.at_us().saturating_add(us(self.limits.timeout));
        let mut before = None;
        let mut waiting = None;
        let mut stable = 0;
        for round in 1..=SYNC_ROUNDS_MAX {
            for escrow in &self.running.surfaces.escrows.list() {
                let url = format!("{}/devshard/{escrow}/v1/debug/sync-hosts", self.running.surfaces.gateway);
                let answer = dispatcher.through(self.running.surfaces.order(&url, self.call_limit())).await?;
                log_step(dispatcher, "sync", escrow, &answer)?;
            }
            let short_us = dispatcher.at_us().saturating_add(us(QUIET_LIMIT));
            let until_us = if drained { work_until_us.max(short_us) } else { short_us };
            let mut signals = self.quiet(dispatcher, short_us, until_us).await?;
            // Read last: what the work of this round brought is among it.
            let pending = self.pending(dispatcher).await?;
            waiting = pending.waiting();
            let quiet = all_zero(&signals) && waiting == Some(0);
            signals.insert(PENDING.to_owned(), waiting.map(|count| count as f64));
            stable = if quiet { stable + 1 } else { 0 };
            let nonces = pending.nonces;
            let settled = quiet && before.as_ref() == Some(&nonces);
            let last = (round == SYNC_ROUNDS_MAX).then_some("rounds");
            let ended = if settled { Some("stable") } else { last };
            self.sample(DrainPart::Synced, (dispatcher.at_us(), None), signals, stable, ended)?;
            if settled {
                break;
            }
            before = Some(nonces);
        }
        Ok(waiting)
    }

    /// What waits at the gateway, over all escrows.
    async fn pending(&self, dispatcher: &mut Dispatcher) -> Result<Pending, RunnerError> {
        let mut pending = Pending::default();
        for escrow in &self.running.surfaces.escrows.list() {
            let url = format!("{}/devshard/{escrow}/v1/debug/pending", self.running.surfaces.gateway);
            let read = |value: &Value| {
                let nonce = value["nonce"].as_u64().ok_or("no nonce")?;
                Ok((waiting_at(value)?.len() as u64, nonce))
            };
            let shown = self.running.surfaces.json(&url, true, bound::STATE, read);
            pending.add(dispatcher.through(shown).await?.ok().map(|(shown, _)| shown));
        }
        Ok(pending)
    }

    fn call_limit(&self) -> Duration {
        self.limits.timeout.clamp(CALL_LIMIT_MIN, CALL_LIMIT)
    }

    /// Waits until all signals are zero and no lease is open, at most until `until_us`; gives the last look.
    async fn quiet(
        &mut self,
        dispatcher: &mut Dispatcher,
        short_us: u64,
        until_us: u64,
    ) -> Result<BTreeMap<String, Option<f64>>, RunnerError> {
        loop {
            let signals = dispatcher.through(read_signals(self.running)).await?;
            let left_us = until_us.saturating_sub(dispatcher.at_us());
            if left_us == 0 || dispatcher.signals > 0 {
                return Ok(signals);
            }
            // What can't be read does not become quiet by waiting.
            if signals.values().flatten().any(|value| *value != 0.0) {
                let short = dispatcher.at_us() < short_us;
                let pause = if short { QUIET_PAUSE } else { self.limits.interval.max(QUIET_PAUSE) };
                let _cut = dispatcher.during(tokio::time::sleep(pause)).await?;
            } else if self.leases(dispatcher, Duration::from_micros(left_us)).await? != Quiet::Waited {
                return Ok(signals);
            }
        }
    }

    /// Gives what a dead owner held, or one that came too late, the time to be taken over and worked on, which no gauge
    /// shows. A lease that nobody took over in that time is not waited for again.
    ///
    /// # Errors
    /// [`RunnerError::RunDir`].
    pub async fn leases(
        &mut self,
        dispatcher: &mut Dispatcher,
        limit: Duration,
    ) -> Result<Quiet, RunnerError> {
        let ttl = self.running.lease_ttl.filter(|_| dispatcher.signals == 0 && !self.lease_left);
        let Some(ttl) = ttl else { return Ok(Quiet::AtOnce) };
        let limit = limit.min(LEASE_TIMES * ttl);
        let quiet = dispatcher.through(leases::quiet(&self.running.postgres, limit)).await?;
        self.lease_left = quiet == Quiet::GaveUp;
        Ok(quiet)
    }

    /// (d): finalize on each escrow, once, last: it ends the escrow. While races are being cleaned up in the background
    /// (losers, protocol timeouts), which no gauge shows, it is refused with 409 (contract gateway 6.6): then it is
    /// asked again until the deadline of the drain.
    ///
    /// # Errors
    /// [`RunnerError::RunDir`].
    pub async fn finalize(&mut self, dispatcher: &mut Dispatcher) -> Result<(), RunnerError> {
        let timeout_us = u64::try_from(self.limits.timeout.as_micros()).unwrap_or(u64::MAX);
        let deadline_us = dispatcher.at_us().saturating_add(timeout_us);
        for escrow in &self.running.surfaces.escrows.list() {
            let url = format!("{}/devshard/{escrow}/v1/finalize", self.running.surfaces.gateway);
            let mut answer = dispatcher.through(self.running.surfaces.order(&url, self.call_limit())).await?;
            while matches!(answer, Ok((409, _)))
                && dispatcher.at_us() < deadline_us
                && dispatcher.signals == 0
            {
                // A signal cuts the pause; the loop ends by its own condition then.
                let pause = self.pause(dispatcher.at_us(), deadline_us);
                let _cut = dispatcher.during(tokio::time::sleep(pause)).await?;
                answer = dispatcher.through(self.running.surfaces.order(&url, self.call_limit())).await?;
            }
            log_step(dispatcher, "finalize", escrow, &answer)?;
        }
        let signals = dispatcher.through(read_signals(self.running)).await?;
        let stable = u32::from(all_zero(&signals));
        self.sample(DrainPart::Final, (dispatcher.at_us(), None), signals, stable, Some("looked"))
    }
}

/// What one round of sync found waiting at the gateway.
#[derive(Debug, Default)]
struct Pending {
    count: u64,
    unread: bool,
    /// By escrow.
    nonces: Vec<Option<u64>>,
}

impl Pending {
    /// Transactions and nonce of one escrow, if they could be read.
    fn add(&mut self, shown: Option<(u64, u64)>) {
        self.unread |= shown.is_none();
        self.count += shown.map_or(0, |(count, _)| count);
        self.nonces.push(shown.map(|(_, nonce)| nonce));
    }

    /// All that wait; one escrow that could not be read makes the sum unknown.
    fn waiting(&self) -> Option<u64> {
        (!self.unread).then_some(self.count)
    }
}

fn all_zero(signals: &BTreeMap<String, Option<f64>>) -> bool {
    signals.values().all(|value| *value == Some(0.0))
}

fn log_step(
    dispatcher: &mut Dispatcher,
    what: &str,
    escrow: &str,
    answer: &Result<(u16, String), String>,
) -> Result<(), RunnerError> {
    let (status, detail) = match answer {
        Ok((status, _)) if *status < 300 => (Some(*status), None),
        Ok((status, text)) => (Some(*status), Some(text.chars().take(DETAIL_LEN_MAX).collect())),
        Err(why) => (None, Some(why.chars().take(DETAIL_LEN_MAX).collect())),
    };
    dispatcher.log(EventKind::DrainStep { what: what.to_owned(), escrow: escrow.to_owned(), status, detail })
}

/// Waits until the attempts that the load has begun are over. The loser of a race may reach its node after its client was
/// answered: selected by a rule that is off by then, its call would contradict the plan. What still runs at the limit
/// waits for a limit of the protocol, and makes no calls.
///
/// # Errors
/// [`RunnerError::RunDir`].
pub async fn executions_ended(running: &Running, dispatcher: &mut Dispatcher) -> Result<(), RunnerError> {
    let deadline = tokio::time::Instant::now() + ENDED_LIMIT;
    let mut looks = 0;
    while looks < ENDED_LOOKS && tokio::time::Instant::now() < deadline && dispatcher.signals == 0 {
        let signals = dispatcher.through(read_signals(running)).await?;
        let nodes = dispatcher.through(running.mocks.openai_stats()).await?;
        let calls = |stats: OpenaiStats| {
            stats.nodes.iter().map(|node| node.execution.active + node.execution.queued).sum::<u64>()
        };
        let open = signals.get("gateway_attempts_open").copied().flatten();
        let ended = open == Some(0.0) && nodes.is_ok_and(|stats| calls(stats) == 0);
        looks = if ended { looks + 1 } else { 0 };
        // A signal cuts the pause; the loop ends by its own condition then.
        let _cut = dispatcher.during(tokio::time::sleep(QUIET_PAUSE)).await?;
    }
    Ok(())
}

/// Reads every signal of [`SIGNALS`]; what can't be read is `None`, which is never zero.
pub async fn read_signals(running: &Running) -> BTreeMap<String, Option<f64>> {
    let surfaces = &running.surfaces;
    let gateway = surfaces.metrics(&surfaces.gateway).await.ok().map(|(_, series)| series);
    // Where no host was named (a running environment), nothing is known of any.
    let mut hosts = (!surfaces.hosts.is_empty()).then(Vec::new);
    for host in &surfaces.hosts {
        let page = surfaces.metrics(&host.base).await.ok();
        hosts = hosts.zip(page).map(|(mut all, (_, series))| {
            all.push(series);
            all
        });
    }
    // What is there now, whatever earlier processes had counted.
    let nodes: Option<OpenaiStats> = running.mocks.openai_now().await.ok();
    let dapi: Option<DapiStats> = running.mocks.dapi_now().await.ok();
    let host_sum = |metric: &str, labels: &[&str]| {
        hosts.as_ref().map(|all| all.iter().map(|one| sum(one, metric, labels)).sum::<f64>())
    };
    let gateway_sum = |metric: &str| gateway.as_ref().map(|one| sum(one, metric, &[]));
    let node_sum = |pick: fn(&scenario::control::NodeCounters) -> u64| {
        nodes.as_ref().map(|stats| {
            stats.nodes.iter().map(|node| pick(&node.execution) + pick(&node.validation)).sum::<u64>() as f64
        })
    };
    let started = gateway_sum("devshard_gateway_attempts_started_total");
    let terminal = gateway_sum("devshard_gateway_attempts_terminal_total");
    let begun = gateway_sum("devshard_speculative_decisions_total");
    let settled = gateway.as_ref().map(|one| {
        let of = |outcome| sum(one, "devshard_gateway_requests_total", &[outcome]);
        of("outcome=\"success\"") + of("outcome=\"failed\"")
    });
    SIGNALS
        .iter()
        .map(|signal| {
            let value = match signal.name {
                "gateway_active_requests" => gateway_sum("devshard_runtime_active_requests"),
                "gateway_inflight_requests" => gateway_sum("devshard_gateway_inflight_requests"),
                "gateway_attempts_open" => started.zip(terminal).map(|(s, t)| s - t),
                // A race that could not be prepared is settled without a decision.
                "gateway_races_open" => begun.zip(settled).map(|(begun, settled)| (begun - settled).max(0.0)),
                "host_inflight_requests" => host_sum("devshard_inflight", &["stage=\"request\""]),
                "host_validation_queue" => host_sum("devshard_validation_queue_depth", &[]),
                "node_active_calls" => node_sum(|counters| counters.active),
                "node_queued_calls" => node_sum(|counters| counters.queued),
                "dapi_active_locks" => dapi.as_ref().map(|stats| stats.active as f64),
                _ => None,
            };
            (signal.name.to_owned(), value)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_not_be_read_is_not_zero() {
        let mut pending = Pending::default();
        assert_eq!(pending.waiting(), Some(0), "no escrow, nothing waits");
        pending.add(Some((0, 7)));
        assert_eq!(pending.waiting(), Some(0));
        pending.add(None);
        pending.add(Some((0, 9)));
        assert_eq!((pending.waiting(), pending.nonces), (None, vec![Some(7), None, Some(9)]));
    }
}

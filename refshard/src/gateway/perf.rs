//! How fast and how reliable participants have been: samples of races, comparisons of pairs that ran for the
//! same request, and what `/v1/debug/perf` and `/v1/debug/pairwise` show of them (contract gateway 2.4.5, 4.8).
//! Shared by all escrows; memory only.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};

use super::counts::number;
use super::settings::{Redundancy, Settings};
use super::shapes::time_of;

/// Races that are remembered.
const LOG_MAX: usize = 4096;
/// Comparisons of one pair that are remembered.
const COMPARISONS_MAX: usize = 64;
/// Pairs, participants and models together stay below this; beyond it nothing new is learned.
const KEYS_MAX: usize = 10_000;
/// Names of the request sizes, and the first size that is too large for each.
const BUCKETS: [(&str, u64); 6] = [
    ("lt_1k", 1_000),
    ("1k_5k", 5_000),
    ("5k_15k", 15_000),
    ("15k_30k", 30_000),
    ("30k_100k", 100_000),
    ("gte_100k", u64::MAX),
];

/// What one attempt was like. Times in milliseconds; absent when it never came so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    pub host_idx: u32,
    pub participant: String,
    pub nonce: u64,
    pub output_chunks: u64,
    pub receipt_ms: Option<u64>,
    pub first_token_ms: Option<u64>,
    pub total_ms: u64,
    /// It said something.
    pub responsive: bool,
    pub finished: bool,
    pub winner: bool,
}

/// What one race was like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RaceSample {
    pub at_ns: u64,
    pub model: String,
    /// Bytes of the normalised request.
    pub input: u64,
    pub decision: &'static str,
    pub won: bool,
    pub hosts: Vec<Sample>,
}

/// Two participants that worked for the same request; `a` sorts before `b`.
#[derive(Clone, Debug)]
struct Comparison {
    at_ns: u64,
    input: u64,
    a: Sample,
    b: Sample,
}

type PairKey = (String, &'static str, String, String);

#[derive(Debug, Default)]
struct Inner {
    hosts: BTreeMap<String, VecDeque<(u64, Sample)>>,
    races: VecDeque<RaceSample>,
    pairs: BTreeMap<PairKey, VecDeque<Comparison>>,
}

/// What is known of a participant inside the window.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Record {
    pub samples: u64,
    pub failures: u64,
    pub total_ms: f64,
}

impl Record {
    /// Share of attempts that said something; 1 without any attempt.
    #[must_use]
    pub fn responsive_rate(&self) -> f64 {
        if self.samples == 0 { 1.0 } else { number(self.samples - self.failures) / number(self.samples) }
    }
}

/// What is known of a pair: how often both ran, and the first one's time over the second one's.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pair {
    pub count: u64,
    pub ratio: f64,
}

/// The tracker.
#[derive(Debug, Default)]
pub struct Perf {
    inner: Mutex<Inner>,
}

/// Name of the size class of a request.
#[must_use]
pub fn bucket_of(input: u64) -> &'static str {
    BUCKETS.iter().find(|(_, above)| input < *above).map_or("gte_100k", |(name, _)| name)
}

impl Perf {
    /// Learns from a settled race.
    pub fn learn(&self, race: RaceSample, settings: &Settings) {
        let mut inner = self.lock();
        let window = usize::try_from(settings.perf.sample_size).unwrap_or(usize::MAX).min(LOG_MAX);
        for sample in &race.hosts {
            if inner.hosts.len() >= KEYS_MAX && !inner.hosts.contains_key(&sample.participant) {
                continue;
            }
            let known = inner.hosts.entry(sample.participant.clone()).or_default();
            known.push_back((race.at_ns, sample.clone()));
            while known.len() > window {
                known.pop_front();
            }
        }
        inner.compare(&race);
        // Only races that somebody won say what a good answer takes.
        if race.won {
            inner.races.push_back(race);
            if inner.races.len() > LOG_MAX {
                inner.races.pop_front();
            }
        }
    }

    /// What is known of a participant.
    #[must_use]
    pub fn record(&self, participant: &str, settings: &Settings, now_ns: u64) -> Record {
        let inner = self.lock();
        let since = now_ns.saturating_sub(settings.perf.window_ms.saturating_mul(1_000_000));
        let mut record = Record::default();
        let known = inner.hosts.get(participant).into_iter().flatten().filter(|(at_ns, _)| *at_ns >= since);
        for (_, sample) in known {
            record.samples += 1;
            record.failures += u64::from(!sample.responsive);
            record.total_ms += number(sample.total_ms);
        }
        if record.samples > 0 {
            record.total_ms /= number(record.samples);
        }
        record
    }

    /// What is known of `first` against `second` for requests of this size.
    #[must_use]
    pub fn pair(&self, model: &str, input: u64, first: &str, second: &str) -> Pair {
        let inner = self.lock();
        let swapped = first > second;
        let (a, b) = if swapped { (second, first) } else { (first, second) };
        let key = (model.to_owned(), bucket_of(input), a.to_owned(), b.to_owned());
        let Some(known) = inner.pairs.get(&key) else { return Pair::default() };
        let ratio = |one: &Comparison| {
            let (mine, other) = if swapped { (&one.b, &one.a) } else { (&one.a, &one.b) };
            number(mine.total_ms.max(1)) / number(other.total_ms.max(1))
        };
        let count = known.len() as u64;
        Pair { count, ratio: known.iter().map(ratio).sum::<f64>() / number(count.max(1)) }
    }

    /// `/v1/debug/perf`.
    #[must_use]
    pub fn shape(&self, settings: &Settings, group: &[String]) -> Value {
        let inner = self.lock();
        let hosts: Vec<Value> =
            inner.hosts.iter().map(|(key, known)| host_shape(key, known, group)).collect();
        let races: Vec<Value> = inner.races.iter().map(race_shape).collect();
        let redundancy = &settings.redundancy;
        json!({
            "advantage_threshold": redundancy.parallel_advantage_threshold,
            "context_limits": {},
            "host_window_size": settings.perf.sample_size,
            "hosts": hosts,
            "pairwise": inner.pair_shapes(),
            "participant_window_ms": settings.perf.window_ms,
            "receipt_timeout_ms": redundancy.receipt_timeout_ms,
            "request_log_size": LOG_MAX,
            "requests": races,
            "tool_unsupported": {},
            "unresponsive_threshold": redundancy.unresponsive_threshold,
        })
    }

    /// `/v1/debug/pairwise`.
    #[must_use]
    pub fn pairwise_shape(&self, redundancy: &Redundancy) -> Value {
        json!({
            "ab_sample_rate": super::policy::AB_RATE,
            "ab_sparse_sample_rate": super::policy::AB_SPARSE_RATE,
            "ab_sparse_sample_threshold": super::policy::AB_SPARSE_BELOW,
            "budget_percentile": redundancy.pairwise_budget_percentile,
            "chained_confidence_decay": 0.75,
            "comparisons": self.lock().pair_shapes(),
            "legacy_secondary_faster_enabled": true,
            "max_proactive_attempts": redundancy.pairwise_max_proactive_attempts,
            "min_direct_comparisons": redundancy.pairwise_min_direct_comparisons,
            "request_shape_buckets": BUCKETS.map(|(name, _)| name),
            "speed_policy": redundancy.speed_policy,
            "winner_hold_min_samples": redundancy.pairwise_winner_hold_min_samples,
            "winner_hold_min_speedup": redundancy.pairwise_winner_hold_min_speedup,
            "winner_hold_ms": redundancy.pairwise_winner_hold_ms,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn compare(&mut self, race: &RaceSample) {
        for (place, one) in race.hosts.iter().enumerate() {
            for other in &race.hosts[place + 1..] {
                if one.participant == other.participant || !one.finished || !other.finished {
                    continue;
                }
                let (a, b) = if one.participant < other.participant { (one, other) } else { (other, one) };
                let names = (a.participant.clone(), b.participant.clone());
                let key = (race.model.clone(), bucket_of(race.input), names.0, names.1);
                if self.pairs.len() >= KEYS_MAX && !self.pairs.contains_key(&key) {
                    continue;
                }
                let known = self.pairs.entry(key).or_default();
                known.push_back(Comparison {
                    at_ns: race.at_ns,
                    input: race.input,
                    a: a.clone(),
                    b: b.clone(),
                });
                if known.len() > COMPARISONS_MAX {
                    known.pop_front();
                }
            }
        }
    }

    fn pair_shapes(&self) -> Vec<Value> {
        self.pairs.iter().map(|(key, known)| pair_shape(key, known)).collect()
    }
}

fn host_shape(participant: &str, known: &VecDeque<(u64, Sample)>, group: &[String]) -> Value {
    let count = known.len() as u64;
    let failures = known.iter().filter(|(_, sample)| !sample.responsive).count() as u64;
    let mean = |value: fn(&Sample) -> Option<u64>| {
        let values: Vec<u64> = known.iter().filter_map(|(_, sample)| value(sample)).collect();
        number(values.iter().sum()) / number((values.len() as u64).max(1))
    };
    let slot = group.iter().position(|address| address == participant);
    json!({
        "participant_key": participant,
        // A participant of another escrow has no place in this group.
        "host_idx": slot.map_or(-1, |slot| i64::try_from(slot).unwrap_or(-1)),
        "total_samples": count,
        "failure_samples": failures,
        "responsive_rate": number(count - failures) / number(count.max(1)),
        "avg_receipt_time_ms": mean(|sample| sample.receipt_ms),
        "avg_cttfl": mean(|sample| sample.first_token_ms) / 1000.0,
        "avg_total_time_ms": mean(|sample| Some(sample.total_ms)),
        "window_start": time_of(known.front().map_or(0, |(at_ns, _)| *at_ns)),
    })
}

fn race_shape(race: &RaceSample) -> Value {
    let winner = race.hosts.iter().find(|sample| sample.winner);
    let hosts: Vec<Value> = race
        .hosts
        .iter()
        .map(|sample| {
            json!({
                "host_idx": sample.host_idx,
                "participant_key": sample.participant,
                "nonce": sample.nonce,
                "output_chunks": sample.output_chunks,
                "receipt_time_ms": sample.receipt_ms.unwrap_or(0),
                "first_token_ms": sample.first_token_ms.unwrap_or(0),
                "total_time_ms": sample.total_ms,
                "responsive": sample.responsive,
                "finished": sample.finished,
                "winner": sample.winner,
            })
        })
        .collect();
    json!({
        "timestamp": time_of(race.at_ns),
        "model": race.model,
        "input_tokens": race.input,
        "winner_host_idx": winner.map_or(0, |sample| sample.host_idx),
        "winner_nonce": winner.map_or(0, |sample| sample.nonce),
        "decision": race.decision,
        "hosts": hosts,
    })
}

fn pair_shape((model, bucket, a, b): &PairKey, known: &VecDeque<Comparison>) -> Value {
    let count = number((known.len() as u64).max(1));
    let mean = |value: &dyn Fn(&Comparison) -> f64| known.iter().map(value).sum::<f64>() / count;
    let ratio = |one: &Comparison| number(one.a.total_ms.max(1)) / number(one.b.total_ms.max(1));
    let recent: Vec<Value> = known
        .iter()
        .map(|one| {
            json!({
                "timestamp": time_of(one.at_ns),
                "model": model,
                "participant_a": a,
                "participant_b": b,
                "request_shape_bucket": bucket,
                "input_tokens": one.input,
                "a_total_ms": one.a.total_ms,
                "b_total_ms": one.b.total_ms,
                "ratio_a_to_b": ratio(one),
                "a_first_token_ms": one.a.first_token_ms.unwrap_or(0),
                "b_first_token_ms": one.b.first_token_ms.unwrap_or(0),
                "a_finished": one.a.finished,
                "b_finished": one.b.finished,
                "a_responsive": one.a.responsive,
                "b_responsive": one.b.responsive,
                "a_winner": one.a.winner,
                "b_winner": one.b.winner,
            })
        })
        .collect();
    json!({
        "model": model,
        "participant_a": a,
        "participant_b": b,
        "request_shape_bucket": bucket,
        "sample_count": known.len(),
        "avg_a_total_ms": mean(&|one| number(one.a.total_ms)),
        "avg_b_total_ms": mean(&|one| number(one.b.total_ms)),
        "avg_ratio_a_to_b": mean(&ratio),
        "avg_speedup_a_to_b": mean(&|one| (1.0 - ratio(one)).max(0.0)),
        "confidence": 1,
        "last_updated": time_of(known.back().map_or(0, |one| one.at_ns)),
        "recent_comparisons": recent,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(participant: &str, total_ms: u64, responsive: bool) -> Sample {
        Sample {
            host_idx: 0,
            participant: participant.into(),
            nonce: 1,
            output_chunks: 2,
            receipt_ms: Some(1),
            first_token_ms: Some(2),
            total_ms,
            responsive,
            finished: responsive,
            winner: false,
        }
    }

    fn race(at_ns: u64, hosts: Vec<Sample>) -> RaceSample {
        RaceSample { at_ns, model: "m".into(), input: 10, decision: "receipt_timeout", won: true, hosts }
    }

    #[test]
    fn records_count_inside_the_window_and_pairs_know_their_sides() {
        let settings = Settings::defaults("", "", "m");
        let perf = Perf::default();
        let hour_ns = 3_600_000_000_000;
        perf.learn(race(1, vec![sample("a", 500, false)]), &settings);
        perf.learn(race(hour_ns, vec![sample("b", 100, true), sample("a", 300, true)]), &settings);
        let now = perf.record("a", &settings, hour_ns);
        assert_eq!((now.samples, now.failures, now.responsive_rate()), (2, 1, 0.5));
        let later = perf.record("a", &settings, hour_ns + 2);
        assert_eq!((later.samples, later.failures, later.total_ms), (1, 0, 300.0));
        assert_eq!(perf.pair("m", 10, "a", "b"), Pair { count: 1, ratio: 3.0 });
        assert!(perf.pair("m", 10, "b", "a").ratio < 0.34);
        assert_eq!(perf.pair("m", 5000, "a", "b").count, 0, "another size, another pair");
    }

    #[test]
    fn memory_is_bounded() {
        let settings = Settings::defaults("", "", "m");
        let perf = Perf::default();
        for at in 0..5000 {
            perf.learn(race(at, vec![sample("a", 1, true), sample("b", 1, true)]), &settings);
        }
        let inner = perf.lock();
        assert_eq!((inner.races.len(), inner.hosts["a"].len()), (LOG_MAX, 256));
        assert!(inner.pairs.values().all(|known| known.len() == COMPARISONS_MAX));
    }
}

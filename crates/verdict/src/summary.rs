//! `summary.json`: every signal of the specification's measurements table, from evidence.

use std::collections::BTreeMap;

use evidence::EVIDENCE_VERSION;
use evidence::assertion::{Assertions, Status};
use evidence::event::EventKind;
use evidence::record::ClientClass;
use evidence::run::RunInfo;
use evidence::snapshot::Moment;
use evidence::summary::{BASELINE_SENTENCE, ClientSignals, Coverage, Latency, NotSeen, Summary};
use scenario::fault::{Because, RequestClass};
use serde_json::{Value, json};
use stats::Histogram;
use stats::Percentile;

use crate::applicability::{LIMITS, not_applicable};
use crate::assertions::a07_replica_agreement::IGNORED;
use crate::classify::Decided;
use crate::judge::reasons;
use crate::load::Evidence;
use crate::table::Table;

/// Time during which load was offered: first release to last end of each step. Drains between steps don't count.
#[must_use]
pub fn load_span_us(evidence: &Evidence) -> u64 {
    let spans = evidence.events.iter().map(|event| match event.event {
        EventKind::StepEnded { started_us, ended_us, .. } => ended_us.saturating_sub(started_us),
        _ => 0,
    });
    spans.sum()
}

/// The summary of a judged run.
#[must_use]
pub fn summarize(evidence: &Evidence, decided: &Table<Decided>, assertions: &Assertions) -> Summary {
    let run = &evidence.run;
    let scenario = &run.resolved.scenario;
    let mut not_shown = BTreeMap::new();
    for (input, why) in &evidence.missing {
        not_shown.insert(input.clone(), why.clone());
    }
    let topology = json!({
        "participants": scenario.devshard.participants,
        "replicas": scenario.devshard.replicas,
        "slots": scenario.devshard.slots.unwrap_or(scenario.devshard.participants),
        "escrows": scenario.devshard.escrows,
        "storage": run.stack.storage,
        "nodes": run.resolved.nodes.iter().map(|node| json!({"name": node.name, "profile": node.profile,
            "workers": node.behaviour.workers, "queue": node.behaviour.queue})).collect::<Vec<_>>(),
    });
    Summary {
        v: EVIDENCE_VERSION,
        run_id: run.run_id.clone(),
        verdict: assertions.verdict,
        exit_code: assertions.verdict.code(),
        reasons: environment(evidence).into_iter().chain(reasons(assertions)).collect(),
        partial: assertions.findings.interrupted || assertions.findings.environment,
        scenario: scenario.name.clone(),
        seed: scenario.seed,
        plan_hash: run.plan_hash.clone(),
        scenario_hash: run.scenario_hash.clone(),
        programs: run.programs.clone(),
        stack: run.stack.clone(),
        topology,
        steps: scenario.workload.steps.clone(),
        highest_stable_step: None,
        assertions: assertions.results.iter().map(|r| (r.id.to_string(), r.status)).collect(),
        evaluated: assertions.results.iter().map(|r| (r.id.to_string(), r.evaluated)).collect(),
        coverage: coverage(run, assertions),
        known: None,
        client: client(evidence, decided),
        devshard: devshard(evidence),
        hosts: hosts(evidence),
        allocation: allocation(evidence),
        nodes: nodes(evidence),
        validity: validity(evidence),
        faults: faults(evidence, decided),
        not_shown,
        phases_us: phases(evidence),
        note: BASELINE_SENTENCE.to_owned(),
    }
}

/// Reasons that are named per assertion; the rest is in `assertions.json`.
const NOT_SEEN_MAX: usize = 10;

/// What was judged, what could not be seen and why.
fn coverage(run: &RunInfo, assertions: &Assertions) -> Coverage {
    let mut coverage = Coverage::default();
    for result in &assertions.results {
        let parts_whole = result.parts.values().all(|status| matches!(status, Status::Pass | Status::Fail));
        let whole = result.missing.is_empty() && parts_whole;
        *match result.status {
            Status::Unknown => &mut coverage.not_judged,
            Status::NotApplicable => &mut coverage.not_applicable,
            Status::Pass | Status::Fail if whole => &mut coverage.in_full,
            Status::Pass | Status::Fail => &mut coverage.in_part,
        } += 1;
        let what = format!("{} {}", result.id, result.name);
        let seen = |why: &String| NotSeen { what: what.clone(), why: why.clone() };
        coverage.not_seen.extend(result.missing.iter().take(NOT_SEEN_MAX).map(seen));
        let of_table = result.parts.keys().map(String::as_str).chain([""]);
        for part in of_table {
            if let Some(why) = not_applicable(run, result.id, part) {
                let what = format!("{what} {part}").trim_end().to_owned();
                coverage.not_seen.push(NotSeen { what, why: why.to_owned() });
            }
        }
    }
    let limits = LIMITS.iter().filter(|limit| (limit.holds)(run));
    coverage.limits = limits
        .map(|limit| NotSeen { what: format!("{} {}", limit.id, limit.id.name()), why: limit.why.to_owned() })
        .collect();
    let ignored = IGNORED.iter().map(|(field, why)| NotSeen {
        what: format!("A7 replica-agreement, field {field}"),
        why: (*why).to_owned(),
    });
    coverage.limits.extend(ignored);
    coverage
}

/// What failed around Devshard, with the last log lines of the service, in the words of the event.
fn environment(evidence: &Evidence) -> Vec<String> {
    let mut lines = Vec::new();
    for event in &evidence.events {
        if let EventKind::EnvironmentFailed { message, log } = &event.event {
            lines.push(message.clone());
            lines.extend(log.iter().map(|line| format!("  | {line}")));
        }
    }
    lines
}

fn word<T: serde::Serialize>(value: &T) -> String {
    match serde_json::to_value(value) {
        Ok(Value::String(text)) => text,
        _ => String::new(),
    }
}

fn latency(histogram: &Histogram) -> Latency {
    Latency {
        n: histogram.count(),
        p50_us: histogram.percentile_us(Percentile::P50),
        p95_us: histogram.percentile_us(Percentile::P95),
        p99_us: histogram.percentile_us(Percentile::P99),
        max_us: histogram.max_us(),
    }
}

fn client(evidence: &Evidence, decided: &Table<Decided>) -> ClientSignals {
    let mut signals = ClientSignals { planned: evidence.plan.len(), ..ClientSignals::default() };
    let (mut ttft, mut total) = (Histogram::new(), Histogram::new());
    let (mut errors, mut failures, mut timeouts, mut good) = (0, 0, 0, 0);
    let mut classes: BTreeMap<(RequestClass, ClientClass), u64> = BTreeMap::new();
    for (index, decided) in decided.iter() {
        let Some(record) = evidence.records.get(index) else { continue };
        *classes.entry((decided.class, record.client_class)).or_default() += 1;
        if matches!(decided.class, RequestClass::NotOffered | RequestClass::Dropped) {
            continue;
        }
        signals.sent += 1;
        match decided.class {
            RequestClass::Success | RequestClass::MaskedFault => {
                good += 1;
                record.ttft.us().into_iter().for_each(|us| ttft.record(us));
                record.latency.us().into_iter().for_each(|us| total.record(us));
            }
            RequestClass::UnexpectedFailure | RequestClass::Rejected => {
                errors += 1;
                failures += 1;
            }
            RequestClass::ExpectedFailure => failures += 1,
            _ => {}
        }
        timeouts += u64::from(matches!(
            record.client_class,
            ClientClass::ConnectTimeout
                | ClientClass::HeadersTimeout
                | ClientClass::FirstByteTimeout
                | ClientClass::IdleTimeout
                | ClientClass::TotalTimeout
        ));
        if record.stream && record.status == Some(200) {
            match record.client_class {
                ClientClass::Ok => signals.streams_completed += 1,
                _ => signals.streams_broken += 1,
            }
        }
    }
    for ((class, client_class), count) in classes {
        *signals.classes.entry(word(&class)).or_default() += count;
        *signals.client_classes.entry(client_class.word()).or_default() += count;
    }
    signals.achieved_rps = stats::ratio::per_second(signals.sent, load_span_us(evidence));
    signals.success_rate = stats::ratio::share(good, signals.sent);
    signals.error_rate = stats::ratio::share(errors, signals.sent);
    signals.raw_error_rate = stats::ratio::share(failures, signals.sent);
    signals.timeout_rate = stats::ratio::share(timeouts, signals.sent);
    signals.ttft = latency(&ttft);
    signals.latency = latency(&total);
    signals
}

fn devshard(evidence: &Evidence) -> BTreeMap<String, Value> {
    let mut accepted = 0;
    let mut outcomes: BTreeMap<&str, u64> = BTreeMap::new();
    let mut decisions: BTreeMap<&str, u64> = BTreeMap::new();
    let mut rejected: BTreeMap<&str, u64> = BTreeMap::new();
    for (index, joined) in evidence.joined.iter() {
        if joined.accepted {
            accepted += 1;
            if let Some(outcome) = evidence.names.maybe(joined.outcome) {
                *outcomes.entry(outcome).or_default() += 1;
                let decision = evidence.names.maybe(joined.decision).unwrap_or("none");
                *decisions.entry(decision).or_default() += 1;
            }
        } else if evidence.records.get(index).is_some_and(|record| record.status.is_some()) {
            let reason = evidence.records.reasons.get(&index).map_or("no reason given", String::as_str);
            *rejected.entry(reason).or_default() += 1;
        }
    }
    let phase = |moment| evidence.snapshot(moment).ok();
    let statuses = phase(Moment::DrainSynced).map(|_| evidence.sessions.statuses(&evidence.names));
    let queue = phase(Moment::DrainPassive).map(|snapshot| {
        let series = snapshot.host_metrics.values().flatten();
        series
            .filter(|(name, _)| name.starts_with("devshard_validation_queue_depth"))
            .map(|(_, v)| v)
            .sum::<f64>()
    });
    BTreeMap::from([
        ("accepted".to_owned(), json!(accepted)),
        ("terminal_outcomes".to_owned(), json!(outcomes)),
        ("decisions".to_owned(), json!(decisions)),
        ("rejected_by_reason".to_owned(), json!(rejected)),
        ("inference_statuses_after_sync".to_owned(), json!(statuses)),
        ("validation_queue_after_drain".to_owned(), json!(queue)),
        ("passive_drain_us".to_owned(), json!(passive_us(evidence))),
    ])
}

fn passive_us(evidence: &Evidence) -> Option<u64> {
    let last = |sample: &&evidence::drain::DrainSample| {
        sample.part == evidence::drain::DrainPart::Passive && sample.step.is_none()
    };
    let mut passive = evidence.drain.iter().filter(last);
    let first = passive.next()?.at_us;
    let last = passive.next_back().map_or(first, |sample| sample.at_us);
    Some(last.saturating_sub(first))
}

/// Requests and terminal outcomes per participant that won or, without a winner, that was tried last.
fn hosts(evidence: &Evidence) -> BTreeMap<String, Value> {
    let mut per_host: BTreeMap<u32, BTreeMap<&str, u64>> = BTreeMap::new();
    let mut attempts: BTreeMap<u32, u64> = BTreeMap::new();
    for (_, joined) in evidence.joined.iter() {
        let Some(outcome) = evidence.names.maybe(joined.outcome) else { continue };
        let of_row = evidence.joined.attempts(joined);
        for attempt in of_row {
            *attempts.entry(attempt.host_idx.into()).or_default() += 1;
        }
        if let Some(attempt) = of_row.iter().find(|attempt| attempt.winner).or(of_row.last()) {
            *per_host.entry(attempt.host_idx.into()).or_default().entry(outcome).or_default() += 1;
        }
    }
    attempts
        .into_iter()
        .map(|(host, count)| {
            let outcomes = per_host.get(&host).cloned().unwrap_or_default();
            (format!("slot-{host}"), json!({"attempts": count, "terminal_outcomes": outcomes}))
        })
        .collect()
}

fn allocation(evidence: &Evidence) -> BTreeMap<String, Value> {
    let Some(dapi) = evidence.snapshot(Moment::DrainSynced).ok().and_then(|snapshot| snapshot.dapi.as_ref())
    else {
        return BTreeMap::new();
    };
    BTreeMap::from([
        ("acquisitions".to_owned(), json!(dapi.acquisitions)),
        ("releases".to_owned(), json!(dapi.releases)),
        ("rejections".to_owned(), json!(dapi.rejections)),
        ("active_after_drain".to_owned(), json!(dapi.active)),
        ("expired".to_owned(), json!(dapi.expired)),
        ("double_releases".to_owned(), json!(dapi.double_releases)),
        ("per_node".to_owned(), json!(dapi.per_node)),
    ])
}

fn nodes(evidence: &Evidence) -> BTreeMap<String, Value> {
    let stats = evidence.snapshot(Moment::DrainSynced).ok().and_then(|snapshot| snapshot.openai.as_ref());
    let nodes = stats.map(|stats| stats.nodes.as_slice()).unwrap_or_default();
    nodes.iter().map(|node| (node.name.clone(), json!(node))).collect()
}

fn validity(evidence: &Evidence) -> BTreeMap<String, Value> {
    let mut out = BTreeMap::new();
    for event in &evidence.events {
        if let EventKind::LoadEnded { records, records_dropped, partial, health } = &event.event {
            out.insert("records".to_owned(), json!(records));
            out.insert("generator_dropped_jobs".to_owned(), json!(records_dropped));
            out.insert("partial".to_owned(), json!(partial));
            out.insert("generator_health".to_owned(), health.clone());
        }
    }
    out
}

fn faults(evidence: &Evidence, decided: &Table<Decided>) -> BTreeMap<String, Value> {
    let names = &evidence.names;
    let mut places: BTreeMap<&str, BTreeMap<&str, u64>> = BTreeMap::new();
    for hit in evidence.hits.iter() {
        let of_rule = places.entry(names.word(hit.rule)).or_default();
        *of_rule.entry(names.word(hit.place)).or_default() += 1;
    }
    let mut classes: BTreeMap<(&str, RequestClass), u64> = BTreeMap::new();
    let mut reasons: BTreeMap<(&str, Because), u64> = BTreeMap::new();
    for (index, decided) in decided.iter() {
        for rule in evidence.rules_of(index) {
            *classes.entry((rule, decided.class)).or_default() += 1;
            if let Some(because) = decided.because {
                *reasons.entry((rule, because)).or_default() += 1;
            }
        }
    }
    let of_rule = |rule: &str| {
        let hits: u64 = places.get(rule).into_iter().flat_map(BTreeMap::values).sum();
        let requests = evidence.calls.oracle.hit_ids.get(rule).map_or(0, |ids| ids.len());
        let classes =
            words(classes.iter().filter(|((of, _), _)| *of == rule).map(|((_, class), n)| (class, n)));
        let reasons = words(reasons.iter().filter(|((of, _), _)| *of == rule).map(|((_, why), n)| (why, n)));
        json!({"hits": hits, "distinct_requests": requests, "classes": classes, "because": reasons,
            "places": places.get(rule).cloned().unwrap_or_default()})
    };
    let rules = &evidence.run.resolved.scenario.faults;
    rules.iter().map(|rule| (rule.id.clone(), of_rule(&rule.id))).collect()
}

fn words<'c, T: serde::Serialize + 'c>(
    counts: impl Iterator<Item = (&'c T, &'c u64)>,
) -> BTreeMap<String, u64> {
    counts.map(|(what, count)| (word(what), *count)).collect()
}

fn phases(evidence: &Evidence) -> BTreeMap<String, u64> {
    let mut phases = BTreeMap::new();
    for event in &evidence.events {
        if let EventKind::PhaseEnded { phase, took_us } = event.event {
            *phases.entry(word(&phase)).or_default() += took_us;
        }
    }
    phases
}

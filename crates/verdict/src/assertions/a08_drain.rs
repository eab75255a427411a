//! A8 `drain`: no queue, lease or operation in flight is left after the drain deadline.
//!
//! Reasons: `not-drained` (a named signal was not zero and stable at the end of the passive wait, or above zero in a
//! snapshot after it),
//! `within-protocol-timeout` (the same, but the deadline of the scenario is shorter than a protocol timer that still
//! runs), `pending-left` (gateway transactions after sync), `lease-pending`, `locks-not-returned` (allocations minus
//! releases, whatever the gauge says). Source: design section 3, contract gateway 6.6, hosts 10.

use evidence::assertion::{AssertionId, EvidenceRef, Witness};
use evidence::drain::{DrainPart, DrainSample, SIGNALS};
use evidence::event::EventKind;
use evidence::rundir::{DRAIN, EVENTS};
use evidence::snapshot::{Moment, Snapshot};
use scenario::model::Limit;

use super::{Assertion, Case, about_nonce, escrows_in_use, snapshot_file, unread};
use crate::sheet::Sheet;

pub(super) const ASSERTION: Assertion =
    Assertion { id: AssertionId::A8, inputs: &[DRAIN, EVENTS], unit: "signals and escrows", judge };

fn judge(case: &Case<'_>, sheet: &mut Sheet) {
    // A sample that stands twice would count twice among the stable ones.
    if !case.evidence.drain.is_sorted_by(|earlier, later| earlier.at_us < later.at_us) {
        sheet.missing(format!("{DRAIN}: the samples are not in the order of their time"));
    }
    passive_wait(case, None, sheet);
    agreement(case, sheet);
    // Levels of a search may fail to drain: that ends the search (design section 10), not the run.
    let workload = &case.evidence.run.resolved.scenario.workload;
    if workload.recovery.is_some() && !case.partial() {
        passive_wait(case, workload.steps.len().checked_sub(1), sheet);
    }
    match case.evidence.snapshot(Moment::DrainSynced) {
        Err(missing) => sheet.missing(missing),
        // Nothing was synced: what waits at the gateway then is normal, and the signals tell of locks.
        Ok(_) if case.evidence.is_attached() => {}
        Ok(snapshot) => {
            unread(snapshot, Moment::DrainSynced, |what| what.ends_with("/debug/pending"), sheet);
            steps(case, snapshot, sheet);
            for escrow in &snapshot.escrows {
                sheet.looked(1);
                if let Some(tx) = escrow.pending.first() {
                    let text = format!(
                        "escrow {}: {} transactions wait at the gateway after sync, the first is {}",
                        escrow.escrow,
                        escrow.pending.len(),
                        tx.kind
                    );
                    let nonce = tx.inference.unwrap_or(escrow.nonce);
                    let file = snapshot_file(Moment::DrainSynced);
                    sheet.witness(about_nonce("pending-left", text, &escrow.escrow, nonce, &file));
                }
            }
            for lease in snapshot.leases.iter().flatten().filter(|lease| lease.status == "pending") {
                let text = format!("the lease of inference {} is pending after sync", lease.inference);
                let file = snapshot_file(Moment::DrainSynced);
                sheet.witness(about_nonce("lease-pending", text, &lease.escrow, lease.inference, &file));
            }
            locks(snapshot, sheet);
        }
    }
}

/// The whole snapshot after the wait must agree with its samples: a signal that comes and goes is not drained. Only
/// what no client is left to raise: hosts may begin a validation by themselves when a lease runs out.
const AGREEING: [(&str, &str); 2] = [
    ("gateway_active_requests", "devshard_runtime_active_requests"),
    ("gateway_inflight_requests", "devshard_gateway_inflight_requests"),
];

fn agreement(case: &Case<'_>, sheet: &mut Sheet) {
    // Clients of others may come at any time to an environment that runs on.
    let waited = samples(case, None).any(|sample| sample.ended.as_deref() == Some("stable"));
    if !waited || case.evidence.is_attached() {
        return;
    }
    for moment in [Moment::DrainPassive, Moment::DrainSynced, Moment::DrainFinal] {
        let Ok(snapshot) = case.evidence.snapshot(moment) else { continue };
        for (signal, metric) in AGREEING {
            let of = |series: &str| {
                series.strip_prefix(metric).is_some_and(|rest| rest.is_empty() || rest.starts_with('{'))
            };
            let shown = snapshot.gateway_metrics.iter().filter(|(series, _)| of(series));
            let value: f64 = shown.map(|(_, value)| value).sum();
            sheet.looked(1);
            if value != 0.0 {
                let text =
                    format!("{signal} was zero when the wait ended and is {value} at {}", moment.dir());
                let mut witness = Witness::new("not-drained", text);
                witness.subject = Some(signal.to_owned());
                witness.evidence.push(EvidenceRef { file: snapshot_file(moment), at: metric.to_owned() });
                sheet.witness(witness);
            }
        }
    }
}

/// Samples of one passive wait: after the load, or after a step.
fn samples<'a>(case: &Case<'a>, step: Option<usize>) -> impl DoubleEndedIterator<Item = &'a DrainSample> {
    let of = move |sample: &&DrainSample| sample.part == DrainPart::Passive && sample.step == step;
    case.evidence.drain.iter().filter(of)
}

fn passive_wait(case: &Case<'_>, step: Option<usize>, sheet: &mut Sheet) {
    let last = samples(case, step).next_back();
    match last.filter(|sample| sample.ended.is_some()) {
        None => sheet.missing(format!("{DRAIN}: the passive wait has no end")),
        Some(sample) => signals(case, sample, sheet),
    }
}

fn signals(case: &Case<'_>, sample: &DrainSample, sheet: &mut Sheet) {
    let deadline = sample.ended.as_deref() == Some("deadline");
    if sample.ended.as_deref() == Some("interrupted") {
        sheet.missing("the passive wait was interrupted");
        return;
    }
    let reason = if within_protocol(case) { "within-protocol-timeout" } else { "not-drained" };
    for signal in SIGNALS {
        match sample.signals.get(signal.name).copied().flatten() {
            None => sheet.missing(format!("signal {} could not be read at the end", signal.name)),
            Some(value) => {
                sheet.looked(1);
                if value != 0.0 {
                    sheet.witness(left(reason, signal.name, value, signal.meaning));
                }
            }
        }
    }
    let all_zero = SIGNALS.iter().all(|s| sample.signals.get(s.name).copied().flatten() == Some(0.0));
    if !deadline {
        stable(case, sample.step, sheet);
    }
    let taken = samples(case, sample.step).count();
    let needed = case.evidence.run.resolved.scenario.drain.stable_samples as usize;
    if deadline && all_zero && taken < needed {
        // A deadline of 0, for example: nobody looked long enough to say either thing.
        sheet.missing(format!("{DRAIN}: the deadline left room for {taken} samples, {needed} are needed"));
    } else if deadline && all_zero {
        // Zero in the last sample, but never for K samples in a row.
        let moving = moving(case, sample.step);
        sheet.witness(left(reason, moving, 0.0, "was never zero for enough samples in a row"));
    }
}

/// The samples must show what the last one claims: zero for as many samples in a row as the scenario asks.
fn stable(case: &Case<'_>, step: Option<usize>, sheet: &mut Sheet) {
    let wanted = case.evidence.run.resolved.scenario.drain.stable_samples;
    let zero = |sample: &&DrainSample| {
        SIGNALS.iter().all(|signal| sample.signals.get(signal.name).copied().flatten() == Some(0.0))
    };
    let seen = samples(case, step).rev().take_while(zero).count();
    if seen < wanted as usize {
        sheet.missing(format!("{DRAIN}: {seen} samples at the end are zero, {wanted} are needed"));
    }
}

/// Each escrow was synced and finalized: what was not closed was not drained. An action may end an escrow earlier.
fn steps(case: &Case<'_>, snapshot: &Snapshot, sheet: &mut Sheet) {
    let seen: Vec<&str> = snapshot.escrows.iter().map(|escrow| escrow.escrow.as_str()).collect();
    for escrow in escrows_in_use(case.evidence) {
        if !seen.contains(&escrow) {
            sheet.missing(format!("escrow {escrow} after sync"));
        }
        for step in ["sync", "finalize"] {
            let done = case.evidence.events.iter().any(|event| {
                matches!(&event.event, EventKind::DrainStep { what, escrow: of, status: Some(200..300), .. }
                    if what == step && of == escrow)
            });
            if !done && case.evidence.run.resolved.scenario.actions.is_empty() {
                sheet.missing(format!("{step} of escrow {escrow} did not succeed"));
            }
        }
    }
}

/// The signal that was last seen above zero.
fn moving(case: &Case<'_>, step: Option<usize>) -> &'static str {
    for sample in samples(case, step).rev() {
        let busy = SIGNALS.iter().find(|s| sample.signals.get(s.name).copied().flatten() != Some(0.0));
        if let Some(signal) = busy {
            return signal.name;
        }
    }
    "all signals"
}

fn left(reason: &str, signal: &str, value: f64, meaning: &str) -> Witness {
    let mut witness = Witness::new(reason, format!("{signal} is {value} at the deadline: {meaning}"));
    witness.subject = Some(signal.to_owned());
    witness.detail.insert("value".to_owned(), value.into());
    witness
        .evidence
        .push(EvidenceRef { file: DRAIN.to_owned(), at: "last sample of part passive".to_owned() });
    witness
}

/// The scenario's own deadline is shorter than the longest protocol timer that status shows.
fn within_protocol(case: &Case<'_>) -> bool {
    let Limit::Time(deadline) = case.evidence.run.resolved.scenario.drain.timeout else { return false };
    let Ok(snapshot) = case.evidence.snapshot(Moment::DrainPassive) else { return false };
    let longest = snapshot
        .escrows
        .iter()
        .flat_map(|escrow| [escrow.refusal_timeout_s, escrow.execution_timeout_s])
        .flatten()
        .max();
    longest.is_some_and(|seconds| deadline.us() < seconds.saturating_mul(1_000_000))
}

fn locks(snapshot: &Snapshot, sheet: &mut Sheet) {
    let Some(dapi) = &snapshot.dapi else {
        sheet.missing("mock-dapi statistics after sync");
        return;
    };
    sheet.looked(1);
    let out = dapi.acquisitions.saturating_sub(dapi.releases).saturating_sub(dapi.expired);
    if out > 0 {
        let text = format!(
            "{} locks were given, {} returned, {} expired: {out} are out (gauge: {})",
            dapi.acquisitions, dapi.releases, dapi.expired, dapi.active
        );
        let mut witness = Witness::new("locks-not-returned", text);
        witness.service = Some("mock-dapi".to_owned());
        let file = snapshot_file(Moment::DrainSynced);
        witness.evidence.push(EvidenceRef { file, at: "/dapi".to_owned() });
        sheet.witness(witness);
    }
}

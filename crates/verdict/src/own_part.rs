//! What our own programs and their machine did to a run: the one place that says which findings they take from Devshard.
//!
//! Three rules (docs/assertions.md, "Our own part"). A wall clock that was set while the run went on makes it invalid,
//! and what Devshard does by that clock (leases, deadlines of its protocol) is unknown. A generator or a mock that did not get to run for longer than
//! `validity.loop_gap_max`, outside planned pauses, makes the run invalid (V), and what its absence explains is no
//! failure any more; what nothing explains stays one. A limit that was broken by no more than a request loses on a
//! machine on which the generator itself woke up as late as it did can't be held against Devshard (T is unknown, V fails).

use evidence::assertion::{AssertionId, AssertionResult, EvidenceRef, Status, Witness};
use evidence::event::EventKind;
use evidence::rundir::EVENTS;
use evidence::snapshot::Snapshot;
use scenario::model::ServiceAction;
use scenario::pipe::GeneratorHealth;
use stats::Percentile;

use crate::assertions::snapshot_file;
use crate::health::names;
use crate::load::Evidence;
use crate::sheet::Sheet;

/// Times that a process has to be woken up until an answer is with the client: gateway, host, allocator, host, node,
/// host, gateway, client. Each may wait for a core as long as the generator did.
const WAKE_UPS: u64 = 8;

/// A timer is kept to the millisecond: a beat that comes so late is on time.
const TIMER_US: u64 = 2_000;

/// A generator that needs a hundredth of a core and did not get to run for more than this share of its time had no core
/// free, and what needs more of one had less still: latencies then say nothing. Measured: 1 in a hundred on a quiet
/// machine, 4 with three runs beside each other, 11 to 20 beside four busy loops for each core.
const STARVED_SHARE_PPB: u64 = 80_000_000;

/// The wall clock may move by so much in a run, microseconds: what a time service does without a step.
const CLOCK_MOVES_MAX_US: u64 = 250_000;

/// Under this name T tells that a limit was broken by no more than the machine explains.
const MACHINE: &str = "within-own-lateness";

/// Who was frozen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Generator,
    Openai,
    Dapi,
    Chain,
}

impl Part {
    const fn service(self) -> &'static str {
        match self {
            Self::Generator => "loadgen",
            Self::Openai => "mock-openai",
            Self::Dapi => "mock-dapi",
            Self::Chain => "mock-chain",
        }
    }

    /// Whether the absence of this part may be all that a finding shows: something is late, left over, missing or
    /// unready. What was done twice, out of order or with other content is never explained.
    fn explains(self, id: AssertionId, reason: &str) -> bool {
        use AssertionId::{A1, A2, A6, A7, A8, A9, A11};
        let mock = self != Self::Generator;
        match (id, reason) {
            // A caller lost patience: with the part itself, or the client with all of them.
            (A2, "untouched-failed" | "untouched-rejected" | "untouched-cancelled" | "outside-expect") => {
                true
            }
            (A1, "no-terminal-outcome") | (A7, "lag") | (A8, _) => mock,
            (A6, reason) => {
                mock && matches!(
                    reason,
                    "pending-for-ever"
                        | "started-without-finish"
                        | "execution-without-finish"
                        | "receipt-without-execution"
                        | "waiting-in-mempool"
                )
            }
            (A9, "not-ready" | "health-lost" | "subscription-lost") | (A11, "lock-without-call") => mock,
            // Hosts that get no lock call nodes that they know (rule `cached-node`).
            (A11, "call-without-lock") => self == Self::Dapi,
            _ => false,
        }
    }
}

/// A part that did not get to run for too long.
#[derive(Clone, Debug)]
pub(crate) struct Frozen {
    part: Part,
    gap_us: u64,
    seen_in: EvidenceRef,
}

/// What loadgen says about itself at its end, if it can be read.
pub(crate) fn health(evidence: &Evidence) -> Option<GeneratorHealth> {
    let ended = evidence.events.iter().find_map(|event| match &event.event {
        EventKind::LoadEnded { health, .. } => Some(health),
        _ => None,
    });
    serde_json::from_value(ended?.clone()).ok()
}

/// Every part of ours that was frozen.
fn frozen(evidence: &Evidence) -> Vec<Frozen> {
    let most_us = evidence.run.resolved.scenario.validity.loop_gap_max().us();
    let gap = health(evidence).and_then(|health| health.loop_gap_max_us);
    let at = EvidenceRef { file: EVENTS.to_owned(), at: "kind=load-ended".to_owned() };
    let mut all: Vec<Frozen> =
        gap.map(|gap_us| Frozen { part: Part::Generator, gap_us, seen_in: at }).into_iter().collect();
    all.extend(
        [Part::Openai, Part::Dapi, Part::Chain].into_iter().filter_map(|part| longest(evidence, part)),
    );
    all.retain(|frozen| frozen.gap_us > most_us && !is_planned(evidence, frozen.part));
    all
}

/// The longest gap of a mock over all snapshots: a process that was replaced counts anew.
fn longest(evidence: &Evidence, part: Part) -> Option<Frozen> {
    let gap = |snapshot: &Snapshot| match part {
        Part::Generator => None,
        Part::Openai => snapshot.openai.as_ref()?.loop_gap_max_us,
        Part::Dapi => snapshot.dapi.as_ref()?.loop_gap_max_us,
        Part::Chain => snapshot.chain.as_ref()?.loop_gap_max_us,
    };
    let seen = evidence.snapshots.iter().filter_map(|(moment, snapshot)| Some((gap(snapshot)?, *moment)));
    // The first moment that shows it: later ones repeat it.
    let (gap_us, moment) = seen.max_by_key(|(gap_us, moment)| (*gap_us, std::cmp::Reverse(*moment)))?;
    let at = format!("/{}/loop_gap_max_us", part.service().trim_start_matches("mock-"));
    Some(Frozen { part, gap_us, seen_in: EvidenceRef { file: snapshot_file(moment), at } })
}

/// The scenario itself has it frozen; a pool may be paused node by node.
fn is_planned(evidence: &Evidence, part: Part) -> bool {
    let resolved = &evidence.run.resolved;
    resolved.scenario.actions.iter().any(|action| match &action.action {
        ServiceAction::Pause(name) => {
            names(name, part.service())
                || (part == Part::Openai && resolved.nodes.iter().any(|node| names(name, &node.name)))
        }
        _ => false,
    })
}

/// V: no part of ours was frozen, and nobody set the clock.
pub(crate) fn judge(evidence: &Evidence, sheet: &mut Sheet) {
    sheet.looked(1);
    let most = evidence.run.resolved.scenario.validity.loop_gap_max();
    for frozen in frozen(evidence) {
        let service = frozen.part.service();
        let reason = if frozen.part == Part::Generator { "generator-frozen" } else { "mock-frozen" };
        let text =
            format!("{service} did not get to run for {} us in one piece, limit {most}", frozen.gap_us);
        let mut witness = Witness::new(reason, text);
        witness.service = Some(service.to_owned());
        witness.evidence.push(frozen.seen_in);
        sheet.witness(witness);
    }
    let moved_us = moved_us(evidence);
    sheet.looked(1);
    if moved_us > CLOCK_MOVES_MAX_US {
        let text = format!("the wall clock moved by {moved_us} us, limit {CLOCK_MOVES_MAX_US} us");
        let mut witness = Witness::new("clock-jump", text);
        witness.subject = Some("wall clock".to_owned());
        witness.evidence.push(EvidenceRef { file: EVENTS.to_owned(), at: "kind=clock-moved".to_owned() });
        sheet.witness(witness);
    }
}

/// All moves of the wall clock that the runner saw, added up without their signs.
fn moved_us(evidence: &Evidence) -> u64 {
    let moves = evidence.events.iter().filter_map(|event| match event.event {
        EventKind::ClockMoved { by_us } => Some(by_us.unsigned_abs()),
        _ => None,
    });
    moves.fold(0, u64::saturating_add)
}

/// Whether a wall clock that was set may be all that a finding shows. Leases are held by the time of the database, and
/// deadlines of the protocol by that of user and executor (contract hosts 12).
fn hangs_on_the_wall_clock(id: AssertionId, reason: &str) -> bool {
    use AssertionId::{A2, A5, A6, A8};
    matches!(
        (id, reason),
        (A5, "taken-over-early")
            | (A2, "untouched-failed" | "untouched-rejected" | "outside-expect")
            | (A6, "pending-for-ever" | "started-without-finish")
            | (A8, "not-drained" | "within-protocol-timeout" | "pending-left" | "lease-pending")
    )
}

/// What is taken from findings in this run.
#[derive(Debug)]
pub(crate) struct Excuses {
    frozen: Vec<Frozen>,
    moved_us: u64,
}

impl Excuses {
    /// By what the run tells of our programs and their machine.
    pub(crate) fn of(evidence: &Evidence) -> Self {
        Self { frozen: frozen(evidence), moved_us: moved_us(evidence) }
    }

    /// Takes from a sheet what they explain.
    pub(crate) fn take(&self, id: AssertionId, sheet: &mut Sheet) {
        sheet.excuse(|reason| {
            let by = self.frozen.iter().find(|frozen| frozen.part.explains(id, reason));
            let by = by.map(|by| format!("{} did not get to run for {} us", by.part.service(), by.gap_us));
            let moved = self.moved_us > 0 && hangs_on_the_wall_clock(id, reason);
            by.or_else(|| moved.then(|| format!("the wall clock moved by {} us", self.moved_us)))
        });
    }
}

/// How much of a latency the machine may have added, by what the generator's own loop went through.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Machine {
    late_us: [u64; 3],
    stalled_us: u64,
    starved: bool,
}

impl Machine {
    /// As the generator saw it; nothing where nobody watched.
    pub(crate) fn seen(evidence: &Evidence) -> Self {
        let Some(health) = health(evidence) else { return Self::default() };
        let late = [health.loop_late_p50_us, health.loop_late_p95_us, health.loop_late_p99_us];
        let stalled_us = health.stalled_us.unwrap_or_default();
        Self {
            late_us: late.map(Option::unwrap_or_default),
            stalled_us,
            starved: stats::ratio::exceeds(stalled_us, health.wall_us, STARVED_SHARE_PPB),
        }
    }

    /// What a request may have lost on its way at a percentile, microseconds.
    pub(crate) fn added_us(self, percentile: Percentile) -> u64 {
        if self.starved {
            return u64::MAX;
        }
        let [p50, p95, p99] = self.late_us;
        let late_us = match percentile {
            Percentile::P50 => p50,
            Percentile::P95 => p95,
            _ => p99,
        };
        late_us.saturating_sub(TIMER_US).saturating_mul(WAKE_UPS)
    }

    /// What the whole load may have lost, microseconds.
    pub(crate) fn lost_us(self) -> u64 {
        if self.starved { u64::MAX } else { self.stalled_us.saturating_mul(WAKE_UPS) }
    }
}

/// T: a limit is broken by no more than the machine explains.
pub(crate) fn on_the_machine(sheet: &mut Sheet, text: &str) {
    sheet.missing(format!("{text}, which is no more than the generator's own lateness explains"));
    sheet.information(MACHINE, text, 1);
}

/// V fails for the limits that T could not hold.
pub(crate) fn blame_machine(results: &mut [AssertionResult]) {
    let of_t = results.iter().find(|result| result.id == AssertionId::T);
    let told = of_t.and_then(|result| result.information.iter().find(|entry| entry.name == MACHINE));
    let Some(text) = told.map(|entry| entry.message.clone()) else { return };
    let Some(validity) = results.iter_mut().find(|result| result.id == AssertionId::V) else { return };
    let text = format!("the machine had no core free in time: {text}");
    let mut witness = Witness::new("no-free-core", text);
    witness.service = Some("loadgen".to_owned());
    witness.evidence.push(EvidenceRef { file: EVENTS.to_owned(), at: "kind=load-ended".to_owned() });
    validity.status = Status::Fail;
    validity.witnesses.push(witness);
    validity.witnesses_total += 1;
}

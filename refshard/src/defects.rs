//! Every planted defect of the reference stack, with what it must trip (selftest, layer M). A program built
//! without the feature `planted-defects` has none of them and no flag for them.

#[cfg(feature = "planted-defects")]
use crate::logline::{Level, LogLine};
#[cfg(feature = "planted-defects")]
use crate::planted::On;

/// Which program has a defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// `ref-gateway`.
    Gateway,
    /// `ref-host`.
    Host,
}

/// One defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planted {
    /// Value of `--defect`.
    pub id: &'static str,
    /// Whose.
    pub program: Program,
    /// What it does.
    pub does: &'static str,
    /// The assertion that must fire, and after it those that come along.
    pub fires: &'static [&'static str],
}

const fn gateway(id: &'static str, does: &'static str, fires: &'static [&'static str]) -> Planted {
    Planted { id, program: Program::Gateway, does, fires }
}

const fn host(id: &'static str, does: &'static str, fires: &'static [&'static str]) -> Planted {
    Planted { id, program: Program::Host, does, fires }
}

/// The table.
pub const PLANTED: &[Planted] = &[
    gateway("lost-accounting", "every fifth race never gets a terminal outcome", &["A1"]),
    gateway("fail-unselected", "every fiftieth request is answered 502 without a cause", &["A2"]),
    gateway("hide-truncation", "a stream that broke off ends with the marker", &["A2", "A3"]),
    gateway("double-done", "every tenth stream ends with two markers", &["A2", "A3"]),
    gateway("wrong-shape", "every tenth JSON answer has no choices", &["A3", "A2", "A11"]),
    gateway(
        "cut-json",
        "every tenth JSON answer ends in the middle, with a length that fits",
        &["A3", "A2", "A11"],
    ),
    gateway("bad-utf8", "every twelfth stream has a byte that is no UTF-8", &["A3"]),
    gateway("error-in-stream", "every tenth good stream has an error event before its marker", &["A3", "A2"]),
    gateway("hold-answer", "the fortieth stream gets its content and never an end", &["A1", "A2", "A8"]),
    gateway("forget-cancelled", "takes in no finish of a stream whose client has left", &["A6"]),
    gateway("cross-talk", "chunks of every twelfth stream bear another request's id", &["A3"]),
    gateway("reuse-nonce", "one step in ten has two contents", &["A4"]),
    gateway("nonce-back", "every other look at status shows an older nonce", &["A4"]),
    gateway("future-nonce", "accounting names nonces that do not exist yet", &["A4", "A10"]),
    gateway("stuck-gauge", "the in-flight gauge never falls below 1 after the first request", &["A8"]),
    gateway("flapping-gauge", "every other look at the in-flight gauge shows 1", &["A8"]),
    gateway("drop-id-on-error", "the answer of a failed race names no request", &["A10"]),
    gateway("lookup-404", "a failed race is not found in accounting", &["A10"]),
    gateway("foreign-host", "attempts of a failed race name a host outside the group", &["A10"]),
    gateway("record-failed-on-200", "every seventh success is accounted as failed", &["A2", "A11"]),
    gateway("timeout-on-success", "every seventh JSON success is answered 504", &["A2", "A11"]),
    gateway("slow-answers", "every answer comes 400 ms late", &["T"]),
    gateway("slow-end", "answers of the last step come 400 ms late", &["T"]),
    host("drop-finish", "never publishes every seventh finish", &["A1", "A6"]),
    host("orphan-receipt", "executes nothing for every tenth inference after its receipt", &["A6"]),
    host("foreign-finish", "proposes every eighth finish also for another session", &["A6"]),
    host("double-validation", "publishes every validation under a second signature too", &["A5"]),
    host("ignore-lease", "validates what another replica has leased", &["A5"]),
    host("steal-lease", "takes over leases whose time has not passed", &["A5"]),
    host(
        "late-submit",
        "publishes every third time after twice the lease's time, whoever owns it then",
        &["A5"],
    ),
    host("stale-replica", "shows diffs and statistics three steps late", &["A7"]),
    host("flip-balance", "shows a wrong state hash at multiples of 5", &["A7"]),
    host("rewritten-step", "shows another signature of the user at multiples of 7", &["A7"]),
    host("stuck-inflight", "the in-flight gauge never falls below 1 after the first request", &["A8"]),
    host("deaf", "forgets the chain's events after its first block", &["A9"]),
    host("silent-death", "the process ends by itself when it has nothing to do", &["A9"]),
    host("flapping-health", "is unwell for three seconds from its tenth chat on", &["A9"]),
    host("unlocked-call", "calls a known node without an acquisition every fifth time", &["A11"]),
];

/// Says in the program's log that a planted defect took effect, and on what; the self-test reads these lines.
#[cfg(feature = "planted-defects")]
pub(crate) fn took_effect(defect: &impl clap::ValueEnum, on: On<'_>) {
    let value = defect.to_possible_value();
    let name = value.as_ref().map_or("", |value| value.get_name());
    let line = LogLine::new(Level::Info, "planted defect took effect").field("defect", name);
    match on {
        On::Body(body) => {
            let text = String::from_utf8_lossy(body);
            let marker = scenario::identity::find_marker(&text);
            line.field("request", marker.map_or("", |marker| marker.id)).emit();
        }
        On::Nonce(escrow, nonce) => line.field("escrow", escrow).field("nonce", nonce).emit(),
        On::Program => line.emit(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::ValueEnum as _;

    use super::*;

    fn ids(program: Program) -> BTreeSet<&'static str> {
        PLANTED.iter().filter(|planted| planted.program == program).map(|planted| planted.id).collect()
    }

    fn flags<T: clap::ValueEnum>() -> BTreeSet<String> {
        let value = |variant: &T| variant.to_possible_value().map(|value| value.get_name().to_owned());
        T::value_variants().iter().filter_map(value).collect()
    }

    #[test]
    fn the_table_has_what_the_programs_have() {
        let owned = |ids: BTreeSet<&str>| ids.into_iter().map(str::to_owned).collect::<BTreeSet<_>>();
        assert_eq!(flags::<crate::gateway::Defect>(), owned(ids(Program::Gateway)));
        assert_eq!(flags::<crate::host::Defect>(), owned(ids(Program::Host)));
        assert!(!crate::gateway::Defect::value_variants().is_empty());
    }

    /// Validity is a matter of the generator and the mocks.
    #[test]
    fn every_assertion_but_thresholds_has_three() {
        for assertion in ["A1", "A2", "A3", "A4", "A5", "A6", "A7", "A8", "A9", "A10", "A11"] {
            let count = PLANTED.iter().filter(|planted| planted.fires.contains(&assertion)).count();
            assert!(count >= 3, "{assertion} has {count}");
        }
    }
}

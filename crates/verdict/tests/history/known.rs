//! Known findings: they stay a fail, expire, go, and are accepted only when nothing is new beside them.

use crate::support::catalogue::{account, all, http_error};
use crate::support::story::of;
use crate::support::{Files, good};
use evidence::assertion::AssertionId::{A2, A6, A7, A8, A10, T};
use evidence::assertion::{AssertionId, AssertionResult, Witness};
use evidence::event::EventKind;
use evidence::exit::Outcome;
use evidence::known::{KnownReport, KnownState};
use verdict::judge::Judgement;
use verdict::known::{compare, outcome_without, parse};
use verdict::sheet::WITNESSES_PER_REASON_MAX;

const TODAY: &str = "2026-06-15";

fn entry(assertion: &str, reason: &str, witness: &str, expires: &str) -> String {
    format!(
        "  - {{ assertion: {assertion}, reason: {reason}, {witness} because: it is known, \
         link: \"https://example.org/1\", owner: keeper, expires: {expires} }}\n"
    )
}

fn report(judged: &Judgement, entries: &[String], accept: bool) -> KnownReport {
    let text = format!("version: 1\nfindings:\n{}", entries.concat());
    compare(judged, &parse("known.yaml", &text).expect("a good file"), TODAY, accept)
}

/// The gateway answers 200 and records a failure, twice.
fn two_pairs() -> Files {
    let mut files = good();
    account(&mut files, 7, "failed");
    account(&mut files, 9, "failed");
    files
}

#[test]
fn a_known_finding_stays_a_fail_and_may_be_accepted() {
    let judged = two_pairs().judge();
    assert_eq!(judged.assertions.verdict, Outcome::Fail);
    let known = entry("A11", "outcome-pair", "", "2026-06-15");
    let told = report(&judged, std::slice::from_ref(&known), false);
    assert_eq!((told.entries[0].state, told.entries[0].count), (KnownState::Known, 2), "its last day counts");
    assert_eq!((told.new, told.accepted), (0, false), "nobody asked to accept it");
    let told = report(&judged, &[known], true);
    assert!(told.accepted);
    assert_eq!(outcome_without(&judged.assertions), Outcome::Pass);
}

#[test]
fn what_is_new_or_expired_is_not_accepted() {
    let judged = two_pairs().judge();
    let id = "witness: { request_id: \"story-42-000007\" },";
    let told = report(&judged, &[entry("A11", "outcome-pair", id, "2026-12-31")], true);
    assert_eq!((told.entries[0].count, told.new, told.accepted), (1, 1, false));
    let told = report(&judged, &[entry("A11", "outcome-pair", "", "2026-06-14")], true);
    assert_eq!((told.entries[0].state, told.new, told.accepted), (KnownState::Expired, 2, false));
    let other = entry("A11", "race-sum", "", "2026-12-31");
    let told = report(&judged, &[other], true);
    assert_eq!((told.entries[0].state, told.new, told.accepted), (KnownState::Gone, 2, false));
}

#[test]
fn patterns_take_what_they_name() {
    let judged = two_pairs().judge();
    for (witness, count) in [
        ("witness: { message: \"*accounting says failed\" },", 2),
        ("witness: { request_id: \"story-42-00000*\", escrow: \"12\" },", 2),
        ("witness: { escrow: \"11\" },", 0),
        ("witness: { service: \"*\" },", 0),
    ] {
        let told = report(&judged, &[entry("A11", "outcome-pair", witness, "2026-12-31")], true);
        assert_eq!(told.entries[0].count, count, "{witness}");
    }
}

/// More witnesses of one reason than are kept: each has its words when it is held against the file.
#[test]
fn witnesses_that_are_not_kept_are_held_against_the_file_too() {
    let requests = WITNESSES_PER_REASON_MAX as u64 + 30;
    let mut files = of(requests);
    (0..requests as usize).for_each(|index| account(&mut files, index, "failed"));
    let judged = files.judge();
    let a11 = &judged.assertions.results[10];
    assert_eq!((a11.witnesses_total, a11.witnesses.len()), (requests, WITNESSES_PER_REASON_MAX));
    for (pattern, count) in [
        ("", requests),
        ("witness: { message: \"*accounting says failed\" },", requests),
        ("witness: { request_id: \"story-42-00006*\" },", 10),
        ("witness: { request_id: \"story-42-000079\" },", 1),
        ("witness: { request_id: \"story-42-000080\" },", 0),
    ] {
        let told = report(&judged, &[entry("A11", "outcome-pair", pattern, "2026-12-31")], true);
        assert_eq!((told.entries[0].count, told.new), (count, requests - count), "{pattern}");
        assert_eq!(told.accepted, count == requests, "{pattern}");
    }
}

#[test]
fn witnesses_that_are_not_found_again_are_new() {
    let mut judged = two_pairs().judge();
    judged.assertions.results[10].witnesses_total += 7;
    let all = entry("A11", "outcome-pair", "", "2026-12-31");
    let told = report(&judged, &[all], true);
    assert_eq!((told.entries[0].count, told.new, told.accepted), (2, 7, false));
}

/// Whose request an inference is costs a search: it is made for every witness when an entry asks for it.
#[test]
fn an_entry_that_names_a_request_takes_it_wherever_it_stands() {
    let requests = WITNESSES_PER_REASON_MAX as u64 * 2 + 20;
    let mut files = of(requests);
    for diff in files.snapshots.values_mut().flat_map(|s| &mut s.hosts).flat_map(|h| &mut h.escrows) {
        diff.diffs.iter_mut().for_each(|diff| diff.txs.retain(|tx| tx.kind != "finish"));
    }
    let judged = files.judge();
    let a6 = &judged.assertions.results[5];
    let reason = "started-without-finish";
    let of_reason = a6.witnesses.iter().filter(|witness| witness.reason == reason).count();
    assert_eq!(of_reason, WITNESSES_PER_REASON_MAX, "more were found than are kept");
    for index in [0, 61, requests - 1] {
        let id = format!("witness: {{ request_id: \"story-42-{index:06}\" }},");
        let told = report(&judged, &[entry("A6", reason, &id, "2026-12-31")], true);
        assert_eq!(told.entries[0].count, 1, "{index}");
    }
}

#[test]
fn accepting_hides_nothing_else() {
    let known = [entry("A11", "outcome-pair", "", "2026-12-31")];
    let mut files = two_pairs();
    files.run.resolved.scenario.minimum.cancelled = Some(2);
    let judged = files.judge();
    assert!(report(&judged, &known, true).accepted);
    assert_eq!(outcome_without(&judged.assertions), Outcome::Unknown, "something was not judged");
    let mut judged = two_pairs().judge();
    judged.assertions.results[10].missing.push("metrics of the gateway".to_owned());
    assert!(report(&judged, &known, true).accepted);
    assert_eq!(outcome_without(&judged.assertions), Outcome::Unknown, "what failed had not seen everything");
    let mut assertions = two_pairs().judge().assertions;
    assertions.results[10].minimum = assertions.results[10].evaluated + 1;
    assert_eq!(outcome_without(&assertions), Outcome::Unknown, "what failed had looked at too little");
    let mut files = two_pairs();
    files.event_in_load(EventKind::Signal { signal: "SIGINT".to_owned() });
    assert!(!report(&files.judge(), &known, true).accepted, "an interrupted run is no failed one");
    let mut files = two_pairs();
    account(&mut files, 11, "failed");
    http_error(&mut files, 11, 502);
    assert!(!report(&files.judge(), &known, true).accepted, "A2 and T are new");
}

#[test]
fn an_assertion_that_could_not_judge_lets_no_entry_go() {
    let mut files = good();
    files.run.resolved.scenario.minimum.validations = Some(99);
    let told = report(&files.judge(), &[entry("A5", "committed-twice", "", "2026-12-31")], false);
    assert_eq!(told.entries[0].state, KnownState::NotJudged);
}

#[test]
fn a_bad_file_is_refused_with_its_place_and_the_nearest_word() {
    let whole = |entry: &str| format!("version: 1\nfindings:\n{entry}");
    let good = entry("A11", "outcome-pair", "", "2026-12-31");
    let cases = [
        (whole(&good.replace("owner", "ower")), "did you mean \"owner\""),
        (whole(&good.replace("assertion: A11", "assertion: A12")), "A12"),
        (whole(&entry("A11", "x", "witness: { servce: a },", "2026-12-31")), "did you mean \"service\""),
        (whole(&good.replace("2026-12-31", "2026-02-30")), "YYYY-MM-DD"),
        (whole(&good.replace("https://example.org/1", "somewhere")), "https://"),
        (whole(&good.replace("owner: keeper,", "")), "owner"),
        (whole(&good.replace("because: it is known", "because: \"\"")), "because is empty"),
        (whole(&good.replace("A11", "V")), "invalid"),
        (whole(&good).replace("version: 1", "version: 2"), "version is 2"),
        (format!("{}version: 1\n", whole(&good)), "known.yaml"),
        ("findings: [".to_owned(), "known.yaml"),
        (String::new(), "known.yaml"),
    ];
    for (text, words) in cases {
        let error = parse("known.yaml", &text).expect_err(words);
        assert!(error.starts_with("known.yaml: ") && error.contains(words), "{words}: {error}");
    }
}

const JULY: &str = include_str!("../../../../scenarios/known/july-2026.yaml");

/// A run whose one failure is this witness, held against the shipped file: how many entries take it.
fn taken((id, reason, message, service, subject): &Shown) -> usize {
    let mut judged = good().judge();
    let mut witness = Witness::new(reason, *message);
    (witness.service, witness.subject) = (service.map(str::to_owned), subject.map(str::to_owned));
    let result =
        judged.assertions.results.iter_mut().find(|result| result.id == *id).expect("all are judged");
    *result = AssertionResult { witnesses: vec![witness], witnesses_total: 1, ..result.clone() };
    judged.assertions.verdict = Outcome::Fail;
    let known = parse("july-2026.yaml", JULY).expect("the shipped file is good");
    let told = compare(&judged, &known, TODAY, true);
    let taken = told.entries.iter().filter(|entry| entry.count > 0).count();
    assert_eq!(told.accepted, taken > 0, "{id} {reason}: {message}");
    taken
}

/// A witness: assertion, reason, message, service and subject.
type Shown = (AssertionId, &'static str, &'static str, Option<&'static str>, Option<&'static str>);

/// What the July build shows, in the words of the assertions: each has its one entry.
const SHOWN: &[(&str, Shown)] = &[
    (
        "J2",
        (A10, "no-accounting-row", "s-1-000007: the cache answered, accounting row: status 404", None, None),
    ),
    (
        "J5",
        (
            A2,
            "untouched-rejected",
            "s-1-000007 was touched by no fault and ended as rejected (overloaded): \"rate limit exceeded: too many concurrent requests\"",
            None,
            None,
        ),
    ),
    (
        "J6",
        (
            A2,
            "outside-expect",
            "s-1-000007 was touched by dead and ended as unexpected-failure (client-timeout)",
            None,
            Some("dead"),
        ),
    ),
    (
        "J6",
        (
            A8,
            "within-protocol-timeout",
            "gateway_races_open is 3 at the deadline: races",
            None,
            Some("gateway_races_open"),
        ),
    ),
    ("J6", (T, "above-limit", "3 errors of 60 sent, error_rate limit 0", None, Some("error_rate"))),
    (
        "J8",
        (
            A6,
            "waiting-in-mempool",
            "host-0 still holds finish of inference 7 after finalize",
            Some("host-0"),
            None,
        ),
    ),
    (
        "J11",
        (
            A2,
            "outside-expect",
            "s-1-000007 was touched by its cancel or a window and ended as unexpected-failure (gateway-error): \"inference: no non-probe attempt finished\"",
            None,
            None,
        ),
    ),
    ("J11", (A7, "lag", "host-0-1 has 3 of 9 diffs of escrow 7 after finalize", Some("host-0-1"), None)),
];

/// Neighbours of those findings, which nobody knows.
const NEW: &[(&str, Shown)] = &[
    ("a row without a hit", (A10, "no-accounting-row", "s-1-000007: accounting row: status 404", None, None)),
    (
        "another refusal",
        (
            A2,
            "untouched-rejected",
            "s-1-000007 was touched by no fault and ended as rejected (overloaded): \"draining\"",
            None,
            None,
        ),
    ),
    (
        "nothing touched it",
        (
            A2,
            "untouched-failed",
            "s-1-000007 was touched by no fault and ended as unexpected-failure (client-timeout)",
            None,
            None,
        ),
    ),
    (
        "locks",
        (
            A8,
            "within-protocol-timeout",
            "dapi_active_locks is 3 at the deadline: locks",
            None,
            Some("dapi_active_locks"),
        ),
    ),
    (
        "no timer runs",
        (
            A8,
            "not-drained",
            "gateway_races_open is 3 at the deadline: races",
            None,
            Some("gateway_races_open"),
        ),
    ),
    ("a latency", (T, "above-limit", "ttft_p95 is above 2s: 9 of 60 are", None, Some("ttft_p95"))),
    (
        "a validation",
        (
            A6,
            "waiting-in-mempool",
            "host-0 still holds validation of inference 7 after finalize",
            Some("host-0"),
            None,
        ),
    ),
    (
        "another error",
        (
            A2,
            "outside-expect",
            "s-1-000007 was touched by its cancel or a window and ended as unexpected-failure (gateway-error): \"inference: insufficient balance\"",
            None,
            None,
        ),
    ),
    (
        "no window",
        (
            A2,
            "outside-expect",
            "s-1-000007 was touched by dead and ended as unexpected-failure (gateway-error): \"inference: no non-probe attempt finished\"",
            None,
            Some("dead"),
        ),
    ),
    (
        "a host without a twin",
        (A7, "lag", "host-1 has 3 of 9 diffs of escrow 7 after finalize", Some("host-1"), None),
    ),
    (
        "another state",
        (
            A7,
            "state-differs",
            "escrow 7 nonce 3: state_hash of host-0-0 and host-0-1 differ",
            Some("host-0-1"),
            None,
        ),
    ),
];

#[test]
fn the_july_file_takes_its_findings_and_their_neighbours_stay_new() {
    for ((name, shown), wanted) in SHOWN.iter().map(|one| (one, 1)).chain(NEW.iter().map(|one| (one, 0))) {
        assert_eq!(taken(shown), wanted, "{name}: {shown:?}");
    }
}

/// Planted defects that are what July does: J3, J21, J6 and J22. No entry may take any other.
const JULY_DEFECTS: &[&str] = &[
    "A11.2 the gateway answers 200 and records failed",
    "A4 a host's log gets shorter",
    "A8 the scenario's deadline is below a protocol timer",
    "A9.7 a host hears no blocks any more and stays in its epoch",
];

/// A wildcard that is too wide would hide a defect that nobody knows.
#[test]
fn the_july_file_accepts_no_other_planted_defect() {
    let known = parse("july-2026.yaml", JULY).expect("the shipped file is good");
    let mut accepted = Vec::new();
    for defect in all() {
        let mut files = good();
        (defect.plant)(&mut files);
        if compare(&files.judge(), &known, TODAY, true).accepted {
            accepted.push(defect.name);
        }
    }
    assert_eq!(accepted, JULY_DEFECTS);
}

//! Every captured case is replayed on chain, allocator, model server, hosts and gateway in this process, once
//! for each personality, and what client, accounting, hosts and metrics show is held against the capture.
//! Each difference is in a table with its reason; `docs/fidelity.md` is that table and what was seen.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests fail the test; the lint exempts only test functions"
)]

#[path = "gateway_support/chain.rs"]
mod chain;
#[path = "gateway_support/compare.rs"]
mod compare;
#[path = "fidelity_support/explained.rs"]
mod explained;
#[path = "fidelity_support/node.rs"]
mod node;
#[path = "fidelity_support/page.rs"]
mod page;
#[path = "fidelity_support/replay.rs"]
mod replay;
#[path = "fidelity_support/world.rs"]
mod world;

use std::collections::BTreeSet;

use futures_util::StreamExt as _;
use refshard::personality::Personality;
use serde_json::Value;

const CAPTURES: &str = include_str!("fixtures/cases.json");

/// Differences of one replay, path by path.
struct Seen {
    case: &'static str,
    ours: Value,
    differences: Vec<String>,
}

/// Two attempts at once: now and then the finish of one comes with an answer to the other, a step takes it in, and July
/// counts the race as failed although its client was served (finding J3). The capture does not show that chance.
const BY_CHANCE: &str = "multi-ok-hybrid";
/// Replays of that case until one is without it.
const RUNS_MAX: usize = 3;

async fn replay_all(personality: Personality) -> Vec<Seen> {
    let captures: Value = serde_json::from_str(CAPTURES).unwrap();
    let only = std::env::var("FIDELITY_CASE").ok();
    let wanted = |case: &&replay::Case| only.as_deref().is_none_or(|name| case.name == name);
    // Cases wait more than they work, so several at a time cost nothing.
    futures_util::stream::iter(replay::CASES.iter().filter(wanted))
        .map(async |case| {
            let mut runs = 1;
            loop {
                let ours = replay::run(case, personality, &captures[case.name]).await;
                let captured = replay::captured(&captures[case.name]);
                let differences = compare::differences(&captured, &ours);
                let seen = Seen { case: case.name, ours, differences };
                let chance = personality == Personality::July && case.name == BY_CHANCE && runs < RUNS_MAX;
                if !chance || unexplained(personality, &seen).is_empty() {
                    return seen;
                }
                runs += 1;
            }
        })
        .buffered(8)
        .collect()
        .await
}

/// Differences of a case that no reason takes.
fn unexplained(personality: Personality, one: &Seen) -> Vec<String> {
    let open = |difference: &&String| explained::find(personality, one.case, difference).is_none();
    one.differences.iter().filter(open).map(|difference| format!("{}: {difference}", one.case)).collect()
}

fn judge(personality: Personality, seen: &[Seen]) {
    let open: Vec<String> = seen.iter().flat_map(|one| unexplained(personality, one)).collect();
    assert!(open.is_empty(), "not explained:\n{}", open.join("\n"));
    let all = seen.iter().flat_map(|one| one.differences.iter().map(|difference| (one.case, difference)));
    let used: BTreeSet<_> =
        all.filter_map(|(case, difference)| explained::find(personality, case, difference)).collect();
    if std::env::var("FIDELITY_CASE").is_err() {
        let stale: Vec<_> = explained::of(personality)
            .filter(|(place, entry)| !entry.sometimes && !used.contains(place))
            .collect();
        assert!(stale.is_empty(), "explains nothing that was seen: {stale:#?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn july_is_what_was_captured() {
    let seen = replay_all(Personality::July).await;
    judge(Personality::July, &seen);
    page::check("july", &seen.iter().map(|one| (one.case, &one.ours)).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn intended_differs_where_it_should() {
    let seen = replay_all(Personality::Intended).await;
    judge(Personality::Intended, &seen);
    page::check("intended", &seen.iter().map(|one| (one.case, &one.ours)).collect::<Vec<_>>());
}

/// A case is replayed, or the table says why not and what covers it.
#[test]
fn every_captured_case_has_its_place() {
    let captures: Value = serde_json::from_str(CAPTURES).unwrap();
    let replayed: BTreeSet<&str> = replay::CASES.iter().map(|case| case.name).collect();
    for name in captures.as_object().unwrap().keys() {
        let elsewhere = explained::ELSEWHERE.iter().any(|(case, _)| case == name);
        assert!(replayed.contains(name.as_str()) != elsewhere, "{name}");
    }
}

#[test]
fn no_reason_takes_what_makes_a_finding_of_july() {
    for (finding, case, paths) in explained::FINDINGS {
        for path in *paths {
            let difference = format!("{path}: one thing, another thing");
            let by = explained::find(Personality::July, case, &difference);
            let reason = by.map(|place| explained::EXPLAINED[place].reason);
            assert_eq!(reason, None, "{finding}: {path} of {case} would be explained away");
        }
    }
}

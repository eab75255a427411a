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

async fn replay_all(personality: Personality) -> Vec<Seen> {
    let captures: Value = serde_json::from_str(CAPTURES).unwrap();
    let only = std::env::var("FIDELITY_CASE").ok();
    let wanted = |case: &&replay::Case| only.as_deref().is_none_or(|name| case.name == name);
    // Cases wait more than they work, so several at a time cost nothing.
    futures_util::stream::iter(replay::CASES.iter().filter(wanted))
        .map(async |case| {
            let ours = replay::run(case, personality, &captures[case.name]).await;
            let captured = replay::captured(&captures[case.name]);
            let differences = compare::differences(&captured, &ours);
            Seen { case: case.name, ours, differences }
        })
        .buffered(8)
        .collect()
        .await
}

fn judge(personality: Personality, seen: &[Seen]) {
    let mut unexplained = Vec::new();
    let mut used = BTreeSet::new();
    for one in seen {
        for difference in &one.differences {
            match explained::find(personality, one.case, difference) {
                Some(place) => drop(used.insert(place)),
                None => unexplained.push(format!("{}: {difference}", one.case)),
            }
        }
    }
    assert!(unexplained.is_empty(), "not explained:\n{}", unexplained.join("\n"));
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

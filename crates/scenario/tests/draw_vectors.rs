//! Draws against committed vectors that were computed outside this project (`tests/vectors/draw-v1.json`).

#![expect(clippy::unwrap_used, reason = "a failed step of a test should end it")]

use scenario::draw::{DOMAIN, Field, ValueKey, draw, in_range, selected, selection_draw};
use scenario::identity::RequestId;
use scenario::units::Ppb;
use serde::Deserialize;

#[derive(Deserialize)]
struct Vectors {
    domain: String,
    selections: Vec<Selection>,
    sets: Vec<Set>,
    ranges: Vec<Range>,
}

#[derive(Deserialize)]
struct Selection {
    seed: u64,
    rule: String,
    purpose: String,
    request_id: String,
    message_hex: String,
    u: u64,
}

#[derive(Deserialize)]
struct Set {
    seed: u64,
    rule: String,
    purpose: String,
    scenario: String,
    requests: u64,
    fraction: String,
    selected: Vec<u64>,
}

#[derive(Deserialize)]
struct Range {
    seed: u64,
    rule: String,
    purpose: String,
    request_id: String,
    attempt: u64,
    event: u64,
    low: u64,
    high: u64,
    u: u64,
    value: u64,
}

fn vectors() -> Vectors {
    serde_json::from_str(include_str!("vectors/draw-v1.json")).unwrap()
}

#[test]
fn selection_draws_equal_the_vectors() {
    let vectors = vectors();
    assert_eq!(vectors.domain, DOMAIN);
    assert!(vectors.selections.len() >= 8);
    for case in vectors.selections {
        assert_eq!(selection_draw(case.seed, &case.rule, &case.purpose, &case.request_id), case.u);
        // The message is committed too, so that a difference shows whether encoding or hash is wrong.
        let message = hex::decode(&case.message_hex).unwrap();
        let hash = blake3::hash(&message);
        assert_eq!(u64::from_le_bytes(hash.as_bytes()[..8].try_into().unwrap()), case.u);
    }
}

#[test]
fn selected_sets_equal_the_vectors() {
    for case in vectors().sets {
        let fraction = Ppb::parse(&case.fraction).unwrap();
        let found: Vec<u64> = (0..case.requests)
            .filter(|index| {
                let id = RequestId::new(&case.scenario, case.seed, *index);
                selected(case.seed, &case.rule, &case.purpose, id.as_str(), fraction)
            })
            .collect();
        assert_eq!(found, case.selected, "seed {} rule {}", case.seed, case.rule);
    }
}

#[test]
fn ranges_equal_the_vectors() {
    for case in vectors().ranges {
        let key = ValueKey {
            seed: case.seed,
            rule: &case.rule,
            purpose: &case.purpose,
            request_id: &case.request_id,
            attempt: case.attempt,
            event: case.event,
        };
        let fields = [
            Field::Integer(case.seed),
            Field::Text(&case.rule),
            Field::Text(&case.purpose),
            Field::Text(&case.request_id),
            Field::Integer(case.attempt),
            Field::Integer(case.event),
        ];
        assert_eq!(draw(&fields), case.u);
        assert_eq!(in_range(key, case.low, case.high), case.value);
    }
}

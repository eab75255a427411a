//! What no stack can carry is told by the file alone, and refused before anything is started.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::path::Path;

use runner::input::{Overrides, load};
use runner::life::carry::cannot_carry;
use scenario::fault::{CallKind, DapiCall, Place};
use scenario::model::{Policy, Resolved, Storage};
use scenario::units::Ppb;

type Change = fn(&mut Resolved);

fn resolved() -> Resolved {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let scenario = root.join("scenarios/validation-race.yaml");
    load(&scenario, &root.join("ml-profiles"), &Overrides::default()).unwrap().resolved
}

/// A rule of the scenario becomes one for calls of the gateway or of a host at the allocator.
fn dapi(resolved: &mut Resolved, call: DapiCall, host: &str) {
    let rule = &mut resolved.scenario.faults[0];
    rule.on = CallKind::Execution;
    rule.place = Place { dapi: Some(call), host: Some(host.to_owned()), ..Place::default() };
}

fn weigh(resolved: &mut Resolved, weight: u32) {
    let place = resolved.scenario.faults[0].place.node.clone().unwrap();
    resolved.scenario.allocator.policy = Policy::SeededWeighted;
    let nodes = resolved.nodes.iter_mut();
    nodes.filter(|node| node.name == place || node.entry == place).for_each(|node| node.weight = weight);
}

fn order(resolved: &mut Resolved, with_place: bool) {
    let place = resolved.scenario.faults[0].place.node.clone().unwrap();
    resolved.scenario.allocator.policy = Policy::FixedOrder;
    let nodes =
        resolved.nodes.iter().filter(|node| with_place || (node.name != place && node.entry != place));
    resolved.scenario.allocator.order = nodes.map(|node| node.name.clone()).collect();
}

/// What is changed in a scenario of replicas, leases and faults, and the words of its refusal.
const TABLE: &[(&str, Change, Option<&str>)] = &[
    ("as it is", |_| {}, None),
    (
        "replicas on SQLite",
        |r| {
            r.scenario.devshard.storage = Storage::Sqlite;
            r.scenario.minimum.take_overs = None;
        },
        Some("devshard.replicas is 2"),
    ),
    (
        "one replica on SQLite",
        |r| {
            (r.scenario.devshard.storage, r.scenario.devshard.replicas) = (Storage::Sqlite, 1);
            r.scenario.minimum.take_overs = None;
        },
        None,
    ),
    (
        "leases on SQLite",
        |r| (r.scenario.devshard.storage, r.scenario.devshard.replicas) = (Storage::Sqlite, 1),
        Some("leases are kept on Postgres alone"),
    ),
    ("no second replica", |r| r.scenario.devshard.replicas = 1, Some("another replica")),
    (
        "no take-over is wanted",
        |r| {
            r.scenario.devshard.replicas = 1;
            r.scenario.minimum.take_overs = Some(0);
        },
        None,
    ),
    ("one participant", |r| r.scenario.devshard.participants = 1, Some("nobody who validates")),
    (
        "no validation",
        |r| r.scenario.devshard.validation_rate = Ppb::ZERO,
        Some("reaches nothing: devshard.validation_rate is 0"),
    ),
    ("the gateway's locks", |r| dapi(r, DapiCall::Acquire, "gateway"), Some("asks for no lock")),
    ("the gateway's releases", |r| dapi(r, DapiCall::Release, "gateway"), Some("asks for no lock")),
    ("the gateway's configuration", |r| dapi(r, DapiCall::RuntimeConfig, "gateway"), None),
    ("a host's locks", |r| dapi(r, DapiCall::Acquire, "host-0"), None),
    ("no weight", |r| weigh(r, 0), Some("has the weight 0")),
    ("some weight", |r| weigh(r, 1), None),
    ("out of order", |r| order(r, false), Some("is not in allocator.order")),
    ("in order", |r| order(r, true), None),
];

#[test]
fn what_the_file_shows_is_refused() {
    for (name, change, words) in TABLE {
        let mut resolved = resolved();
        change(&mut resolved);
        let why = cannot_carry(&resolved);
        match (&why, words) {
            (Some(why), Some(words)) => assert!(why.contains(words), "{name}: {why}"),
            _ => assert_eq!(why.as_deref(), *words, "{name}"),
        }
    }
}

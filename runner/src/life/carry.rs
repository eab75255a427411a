//! What no stack can carry, as the file alone shows: refused with exit 4 before anything is started (design section 7).
//! A fault that nothing can reach, or a least count that nothing can fill, would end as unknown after the whole load.

use scenario::fault::{CallKind, DapiCall};
use scenario::model::{FaultRule, Node, Policy, Resolved, Storage};

/// Everything that can't be done, as one sentence; `None` when all of it can.
#[must_use]
pub fn cannot_carry(resolved: &Resolved) -> Option<String> {
    let mut reasons: Vec<String> = [replicas(resolved), take_overs(resolved)].into_iter().flatten().collect();
    let rules = &resolved.scenario.faults;
    reasons.extend(rules.iter().filter_map(|rule| {
        let why = unreachable(rule, resolved)?;
        Some(format!("the rule {:?} reaches nothing: {why}", rule.id))
    }));
    (!reasons.is_empty()).then(|| reasons.join("; "))
}

fn replicas(resolved: &Resolved) -> Option<String> {
    let devshard = &resolved.scenario.devshard;
    (devshard.replicas > 1 && devshard.storage == Storage::Sqlite).then(|| {
        format!(
            "devshard.replicas is {}, and replicas of a participant share their sessions and leases through Postgres: \
             set `storage: postgres`",
            devshard.replicas
        )
    })
}

/// A lease is taken over by another process of the same participant, from a table that SQLite does not have.
fn take_overs(resolved: &Resolved) -> Option<String> {
    let devshard = &resolved.scenario.devshard;
    let wanted = resolved.scenario.minimum.take_overs.filter(|wanted| *wanted > 0)?;
    let why = if devshard.storage == Storage::Sqlite {
        "leases are kept on Postgres alone: set `storage: postgres`"
    } else if devshard.replicas < 2 {
        "a lease is taken over by another replica of its participant: set `devshard.replicas` to 2"
    } else {
        nobody_validates(resolved)?
    };
    Some(format!("minimum.take_overs is {wanted}, and {why}"))
}

fn nobody_validates(resolved: &Resolved) -> Option<&'static str> {
    let devshard = &resolved.scenario.devshard;
    if devshard.participants < 2 {
        return Some("one participant has nobody who validates its work");
    }
    (devshard.validation_rate.get() == 0).then_some("devshard.validation_rate is 0, so that nobody validates")
}

/// Why no call can ever meet a rule.
fn unreachable(rule: &FaultRule, resolved: &Resolved) -> Option<String> {
    if let (Some(call), Some("gateway")) = (rule.place.dapi, rule.place.host.as_deref()) {
        let locks = matches!(call, DapiCall::Acquire | DapiCall::Release);
        return locks
            .then(|| "a gateway asks for no lock, hosts do; name a host, or none for all".to_owned());
    }
    let place = rule.place.node.as_deref()?;
    if rule.on == CallKind::Validation
        && let Some(why) = nobody_validates(resolved)
    {
        return Some(why.to_owned());
    }
    let mut nodes = resolved.nodes.iter().filter(|node| node.name == place || node.entry == place);
    if nodes.any(|node| given_out(resolved, node)) {
        return None;
    }
    let how = match resolved.scenario.allocator.policy {
        Policy::FixedOrder => "is not in allocator.order",
        _ => "has the weight 0 in allocator.weights",
    };
    Some(format!("the allocator gives {place} to nobody, for it {how}"))
}

/// Whether the policy ever gives a node, as `mocks::dapi::policy` decides.
fn given_out(resolved: &Resolved, node: &Node) -> bool {
    let allocator = &resolved.scenario.allocator;
    match allocator.policy {
        Policy::RoundRobin | Policy::LeastActive => true,
        Policy::FixedOrder => allocator.order.contains(&node.name),
        Policy::SeededWeighted => node.weight > 0,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::input::{Overrides, load};

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
        rule.place = scenario::fault::Place {
            dapi: Some(call),
            host: Some(host.to_owned()),
            ..scenario::fault::Place::default()
        };
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
            resolved.nodes.iter().filter(|node| with_place == (node.name == place || node.entry == place));
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
            |r| r.scenario.devshard.validation_rate = scenario::units::Ppb::ZERO,
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
}

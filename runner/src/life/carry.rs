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

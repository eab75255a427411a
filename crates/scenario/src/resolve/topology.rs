//! Rules about the Devshard under test, service actions, validity, drain and least amounts.

use serde_json::Value;

use super::bounds::{self, within};
use super::{View, actions, expects, faults};
use crate::identity::RequestId;
use crate::model::{Devshard, Limit, Saturation, Scenario, Trigger};
use crate::read::Problems;
use crate::read::settings::group_of;
use crate::units::Micros;

/// Checks `devshard`, fills in the slots and puts short settings into their groups.
pub(super) fn check(scenario: &mut Scenario, problems: &mut Problems<'_>) {
    let devshard = &mut scenario.devshard;
    let participants = u64::from(devshard.participants);
    within("devshard.participants", participants, (1, bounds::PARTICIPANTS_MAX), problems);
    within("devshard.replicas", devshard.replicas.into(), (1, bounds::REPLICAS_MAX), problems);
    within("devshard.escrows", devshard.escrows.into(), (1, bounds::ESCROWS_MAX), problems);
    let slots = devshard.slots.unwrap_or(devshard.participants);
    if within("devshard.slots", slots.into(), (1, bounds::SLOTS_MAX), problems)
        && slots < devshard.participants
    {
        let text = format!(
            "devshard.slots is {slots}, fewer than the {participants} participants: each needs one at least"
        );
        problems.add("devshard.slots", text);
    }
    devshard.slots = Some(slots);
    if !devshard.validation_rate.get().is_multiple_of(100_000) {
        let text = "devshard.validation_rate has more than four digits: the chain carries basis points";
        problems.add("devshard.validation_rate", text.to_owned());
    }
    group_settings(devshard, problems);
}

/// `speed_policy` at the top becomes `redundancy.speed_policy`.
fn group_settings(devshard: &mut Devshard, problems: &mut Problems<'_>) {
    let short: Vec<(String, &'static str)> =
        devshard.settings.keys().filter_map(|name| Some((name.clone(), group_of(name)?))).collect();
    for (name, group) in short {
        let Some(value) = devshard.settings.remove(&name) else { continue };
        let inside = devshard.settings.entry(group).or_insert_with(|| Value::Object(serde_json::Map::new()));
        let Value::Object(inside) = inside else { continue };
        if inside.insert(name.clone(), value).is_some() {
            let path = format!("devshard.settings.{name}");
            problems.add(&path, format!("{path} is given twice, here and in {group}"));
        }
    }
}

/// Rules about `actions`.
pub(super) fn check_actions(view: &View<'_>, problems: &mut Problems<'_>) {
    let actions = &view.scenario.actions;
    if actions.len() as u64 > bounds::RULES_MAX {
        problems
            .add("actions", format!("there are {} actions, at most {}", actions.len(), bounds::RULES_MAX));
        return;
    }
    for (index, action) in actions.iter().enumerate() {
        let path = format!("actions[{index}]");
        let after = format!("{path}.after");
        match &action.after {
            Trigger::Requests(count) => {
                within(&after, *count, (1, view.requests_max), problems);
            }
            Trigger::RequestSent(id) => {
                faults::check_id(view, &RequestId::from_text(id.clone()), &after, problems);
            }
            Trigger::Nonce(0) => problems.add(&after, format!("{after}: nonces count from 1")),
            Trigger::Nonce(_) | Trigger::At(_) => {}
        }
        actions::check(view, &action.action, &format!("{path}.do"), problems);
        expects::check(&action.expect, &format!("{path}.expect"), &path, problems);
    }
}

/// Rules about `validity`, `drain` and `minimum`.
pub(super) fn check_ends(view: &View<'_>, problems: &mut Problems<'_>) {
    let scenario = view.scenario;
    let validity = &scenario.validity;
    match &validity.mock_saturation {
        Saturation::Forbidden if !validity.expect.is_empty() => {
            let text = "validity.expect is for required saturation, but mock_saturation is forbidden";
            problems.add("validity.expect", text.to_owned());
        }
        Saturation::Forbidden => {}
        Saturation::Required(nodes) => {
            let path = "validity.mock_saturation.required";
            if nodes.is_empty() {
                problems.add(path, format!("{path} names no node; write mock_saturation: forbidden instead"));
            }
            for (index, node) in nodes.iter().enumerate() {
                view.check_node(node, &format!("{path}[{index}]"), problems);
            }
            expects::check(&validity.expect, "validity.expect", "required saturation", problems);
        }
    }
    let drain = &scenario.drain;
    let samples = (1, bounds::STABLE_SAMPLES_MAX);
    within("drain.stable_samples", drain.stable_samples.into(), samples, problems);
    if drain.interval == Micros::ZERO {
        problems.add("drain.interval", "drain.interval is zero; give the time between samples".to_owned());
    }
    if drain.timeout == Limit::Time(Micros::ZERO) {
        problems.add("drain.timeout", "drain.timeout is zero: nothing can drain in no time".to_owned());
    }
    if scenario.minimum.step.is_some() && scenario.workload.search.is_none() {
        problems.add("minimum.step", "minimum.step is for a search only".to_owned());
    }
    if scenario.minimum.cancelled.is_some_and(|least| least > 0) && scenario.workload.cancel.is_none() {
        problems.add("minimum.cancelled", "minimum.cancelled needs workload.cancel".to_owned());
    }
}

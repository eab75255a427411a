//! Rules about the load: steps or search, length of the plan, repeated bodies, checks, cancels.

use std::collections::BTreeSet;

use super::bounds::{self, within};
use super::{View, expects, faults};
use crate::fault::{Close, Select};
use crate::model::{CancelPhase, Check, Limit, Scenario, Search, Step, Thresholds, Workload};
use crate::read::Problems;
use crate::units::Micros;

/// Checks `workload`, fills in `max_requests` and gives the length of the plan.
pub(super) fn check(scenario: &mut Scenario, problems: &mut Problems<'_>) -> u64 {
    let workload = &mut scenario.workload;
    let tokens = u64::from(workload.prompt.input_tokens);
    within("workload.prompt.input_tokens", tokens, (1, bounds::INPUT_TOKENS_MAX), problems);
    within("workload.max_tokens", workload.max_tokens.into(), (1, bounds::OUTPUT_TOKENS_MAX), problems);
    if workload.timeout == Limit::Time(Micros::ZERO) {
        problems
            .add("workload.timeout", "workload.timeout is zero: no request can end in no time".to_owned());
    }
    for (index, step) in workload.steps.iter().enumerate() {
        check_step(step, &format!("workload.steps[{index}]"), problems);
    }
    if let Some(search) = &workload.search {
        check_search(search, scenario.minimum.step, problems);
    }
    if let Some(recovery) = &workload.recovery {
        let path = "workload.recovery";
        let concurrency = u64::from(recovery.concurrency);
        within(&format!("{path}.concurrency"), concurrency, (1, bounds::CONCURRENCY_MAX), problems);
        within(&format!("{path}.requests"), recovery.requests, (1, bounds::REQUESTS_MAX), problems);
        if recovery.limits == Thresholds::default() {
            problems.add(path, format!("{path}.limits is empty: without a limit nothing shows the recovery"));
        }
        if workload.search.is_some() || workload.steps.iter().any(|step| step.requests.is_none()) {
            // The plan lines of the recovery must be known before the load.
            problems.add(path, format!("{path} goes with steps that count `requests` only"));
        }
    }
    match (workload.steps.is_empty(), workload.search.is_some()) {
        (true, false) => problems.add("workload", "workload needs `steps` or `search`".to_owned()),
        (false, true) => {
            let text = "workload has `steps` and `search`; it takes one of them";
            problems.add("workload.search", text.to_owned());
        }
        _ => {}
    }
    within("workload.steps", workload.steps.len() as u64, (0, bounds::STEPS_MAX), problems);
    let requests_max = length(workload, problems);
    workload.max_requests = Some(requests_max);
    check_duplicates(workload, requests_max, problems);
    check_checks(&workload.checks, problems);
    requests_max
}

fn check_step(step: &Step, path: &str, problems: &mut Problems<'_>) {
    let concurrency = u64::from(step.concurrency);
    within(&format!("{path}.concurrency"), concurrency, (1, bounds::CONCURRENCY_MAX), problems);
    match (step.requests, step.duration) {
        (Some(requests), None) => {
            within(&format!("{path}.requests"), requests, (1, bounds::REQUESTS_MAX), problems);
        }
        (None, Some(Micros::ZERO)) => {
            problems.add(&format!("{path}.duration"), format!("{path}.duration is zero"));
        }
        (None, Some(_)) => {}
        (Some(_), Some(_)) => {
            problems.add(path, format!("{path} has `requests` and `duration`; it takes one of them"));
        }
        (None, None) => problems.add(path, format!("{path} needs `requests` or `duration`")),
    }
}

fn check_search(search: &Search, least: Option<u32>, problems: &mut Problems<'_>) {
    let bounds = (1, bounds::CONCURRENCY_MAX);
    within("workload.search.from", search.from.into(), bounds, problems);
    within("workload.search.to", search.to.into(), bounds, problems);
    if search.from > search.to {
        let text = format!(
            "workload.search goes from {} down to {}; `to` is the higher one",
            search.from, search.to
        );
        problems.add("workload.search", text);
    }
    if search.requests == Some(0) {
        problems.add("workload.search.requests", "workload.search.requests is 0".to_owned());
    }
    if least.is_some_and(|least| least > search.to || least == 0) {
        let text = format!("minimum.step must be from 1 to the search's highest level {}", search.to);
        problems.add("minimum.step", text);
    }
}

/// The length of the plan: the sum of count steps, or what `max_requests` says where the sum is not known.
fn length(workload: &Workload, problems: &mut Problems<'_>) -> u64 {
    let path = "workload.max_requests";
    let steps = workload.all_steps();
    let sum = steps.iter().filter_map(|step| step.requests).fold(0, u64::saturating_add);
    let open = workload.search.is_some() || workload.steps.iter().any(|step| step.duration.is_some());
    let length = match (workload.max_requests, open) {
        (None, true) => {
            let text = "workload.max_requests is needed with duration steps and with a search: \
                        it is the length of the plan";
            problems.add("workload", text.to_owned());
            return sum.max(1);
        }
        (None, false) => sum,
        (Some(max), true) if max < sum => {
            let text = format!("{path} is {max}, fewer than the {sum} requests of the count steps");
            problems.add(path, text);
            sum
        }
        (Some(max), false) if max != sum && !workload.steps.is_empty() => {
            let text = format!(
                "{path} is {max}, but the steps make {sum} requests; leave it out or make them equal"
            );
            problems.add(path, text);
            sum
        }
        (Some(max), _) => max,
    };
    // A bad step was reported already; the sum is only looked at when it can be right.
    if length > 0 || !workload.steps.is_empty() && workload.max_requests.is_some() {
        within(path, length, (1, bounds::REQUESTS_MAX), problems);
    }
    length.clamp(1, bounds::REQUESTS_MAX)
}

fn check_duplicates(workload: &Workload, requests_max: u64, problems: &mut Problems<'_>) {
    let duplicates = &workload.duplicates;
    if !within("workload.duplicates", duplicates.len() as u64, (0, bounds::LIST_MAX), problems) {
        return;
    }
    let repeating: BTreeSet<u64> = duplicates.iter().map(|duplicate| duplicate.index).collect();
    let mut seen = BTreeSet::new();
    for (position, duplicate) in duplicates.iter().enumerate() {
        let path = format!("workload.duplicates[{position}]");
        let (index, of) = (duplicate.index, duplicate.duplicate_of);
        if index >= requests_max {
            problems
                .add(&path, format!("{path}.index is {index}, but the plan ends at {}", requests_max - 1));
        }
        if of >= index {
            problems.add(&path, format!("{path} repeats {of}, which does not come before {index}"));
        }
        if repeating.contains(&of) {
            problems
                .add(&path, format!("{path} repeats {of}, which repeats another one itself; name that one"));
        }
        if !seen.insert(index) {
            problems.add(&path, format!("{path}.index {index} is named twice"));
        }
    }
}

fn check_checks(checks: &[Check], problems: &mut Problems<'_>) {
    within("workload.checks", checks.len() as u64, (0, bounds::RULES_MAX), problems);
    for (index, check) in checks.iter().enumerate() {
        let path = format!("workload.checks[{index}]");
        let why = match check {
            Check::Contains(text) | Check::NotContains(text) if text.is_empty() => {
                "an empty text is in every answer"
            }
            Check::JsonPointer(pointer) if !pointer.starts_with('/') => "a JSON pointer begins with a slash",
            Check::LogprobsAbsent(false) => "a check that is false checks nothing; leave it out",
            Check::CompletionTokensMin(0) => "no answer has fewer than zero tokens",
            _ => continue,
        };
        problems.add(&path, format!("{path}: {why}"));
    }
}

/// Rules about `workload.oversize`.
pub(super) fn check_oversize(view: &View<'_>, problems: &mut Problems<'_>) {
    let Some(oversize) = &view.scenario.workload.oversize else { return };
    let path = "workload.oversize";
    faults::check_select(view, &oversize.select, &format!("{path}.select"), problems);
    if matches!(oversize.select, Select::Calls(_)) {
        let text = format!("{path}.select: `calls` is for dapi and chain; select a fraction, ids or all");
        problems.add(&format!("{path}.select"), text);
    }
    let tokens = (1, bounds::INPUT_TOKENS_MAX);
    within(&format!("{path}.input_tokens"), oversize.input_tokens.into(), tokens, problems);
    expects::check(&oversize.expect, &format!("{path}.expect"), path, problems);
}

/// Rules about `workload.cancel`.
pub(super) fn check_cancel(view: &View<'_>, problems: &mut Problems<'_>) {
    let Some(cancel) = &view.scenario.workload.cancel else { return };
    let path = "workload.cancel";
    faults::check_select(view, &cancel.select, "workload.cancel.select", problems);
    if matches!(cancel.select, Select::Calls(_)) {
        let text = "workload.cancel.select: `calls` is for dapi and chain; select a fraction, ids or all";
        problems.add("workload.cancel.select", text.to_owned());
    }
    check_cancel_point((cancel.phase, cancel.event, cancel.close), path, problems);
    within("workload.cancel.also", cancel.also.len() as u64, (0, bounds::RULES_MAX), problems);
    for (index, point) in cancel.also.iter().enumerate() {
        let path = format!("{path}.also[{index}]");
        check_cancel_point((point.phase, point.event, point.close), &path, problems);
    }
    expects::check(&cancel.expect, "workload.cancel.expect", path, problems);
}

fn check_cancel_point(
    (phase, event, close): (CancelPhase, Option<u64>, Close),
    path: &str,
    problems: &mut Problems<'_>,
) {
    match (phase, event) {
        (CancelPhase::NthEvent, None | Some(0)) => {
            problems.add(path, format!("{path} with phase: nth-event needs `event`, from 1"));
        }
        (CancelPhase::NthEvent, Some(_)) | (_, None) => {}
        (_, Some(_)) => {
            let event = format!("{path}.event");
            problems.add(&event, format!("{event} goes with phase: nth-event only"));
        }
    }
    if close == Close::Clean {
        let close = format!("{path}.close");
        let text = format!("{close}: a client that cancels closes by fin or rst, not clean");
        problems.add(&close, text);
    }
}

//! `runner validate` and `runner plan`: pure looks at a file.

use std::io::Write;
use std::path::Path;

use evidence::exit::Outcome;

use crate::error::RunnerError;
use crate::input::{Overrides, load};
use crate::life::preflight::{self, Machine};

/// Requests of a rule that are named, the first ones.
const SELECTED_SHOWN: usize = 12;

/// Checks a file.
///
/// # Errors
/// [`RunnerError::Usage`] with every problem found.
pub fn validate(scenario: &Path, profiles: &Path, overrides: &Overrides) -> Result<Outcome, RunnerError> {
    let loaded = load(scenario, profiles, overrides)?;
    crate::view::say(&format!(
        "{}: valid; {} requests, {} nodes, {} rules",
        scenario.display(),
        loaded.resolved.requests_max,
        loaded.resolved.nodes.len(),
        loaded.resolved.scenario.faults.len()
    ));
    Ok(Outcome::Pass)
}

/// Prints the plan, as an overview or line by line.
///
/// # Errors
/// As [`validate`].
pub fn plan(
    scenario: &Path,
    profiles: &Path,
    overrides: &Overrides,
    lines: bool,
) -> Result<Outcome, RunnerError> {
    let loaded = load(scenario, profiles, overrides)?;
    let resolved = &loaded.resolved;
    let mut out = std::io::stdout().lock();
    // A closed pipe (`| head`) is no error of ours.
    if lines {
        for line in scenario::plan::lines(resolved) {
            let text = serde_json::to_string(&line).map_err(|e| RunnerError::Internal(e.to_string()))?;
            if writeln!(out, "{text}").is_err() {
                break;
            }
        }
        return Ok(Outcome::Pass);
    }
    let mut text = format!("{} (seed {})\n", resolved.scenario.name, resolved.scenario.seed);
    text.push_str(&format!("{}\n\n", resolved.scenario.description.trim()));
    text.push_str(&format!("plan_hash      {}\n", scenario::hash::plan_hash(resolved)));
    text.push_str(&format!("scenario_hash  {}\n\n", scenario::hash::scenario_hash(resolved)));
    text.push_str("limits in force\n");
    for limit in &loaded.limits {
        text.push_str(&format!("  {:<34} {:<22} {}\n", limit.name, limit.value, limit.source));
    }
    text.push_str("\nnodes\n");
    for node in &resolved.nodes {
        text.push_str(&format!(
            "  {:<20} profile {:<18} workers {:<5} queue {:<5} weight {}\n",
            node.name, node.profile, node.behaviour.workers, node.behaviour.queue, node.weight
        ));
    }
    text.push_str("\nfault rules\n");
    if resolved.scenario.faults.is_empty() {
        text.push_str("  none\n");
    }
    let total = resolved.requests_max;
    for rule in &resolved.scenario.faults {
        let seed = resolved.scenario.seed;
        let id = |index| scenario::identity::RequestId::new(&resolved.scenario.name, seed, index);
        let selects = |index: &u64| scenario::plan::rule_selects(seed, rule, &id(*index));
        let selected: Vec<u64> = (0..total).filter(selects).collect();
        let shown: Vec<String> = selected.iter().take(SELECTED_SHOWN).map(u64::to_string).collect();
        text.push_str(&format!(
            "  {:<20} {:<22} selects {} of {total}{}{}{}\n",
            rule.id,
            rule.action.name(),
            selected.len(),
            if shown.is_empty() { "" } else { ": " },
            shown.join(", "),
            if selected.len() > SELECTED_SHOWN { ", …" } else { "" },
        ));
    }
    text.push_str("\nthis machine\n");
    let machine = Machine::look(Path::new("results"));
    text.push_str(&preflight::table(&preflight::checks(resolved, &machine)));
    drop(out.write_all(text.as_bytes()));
    Ok(Outcome::Pass)
}

//! Resolution: a scenario as written, the profiles it names and the overriding layers become one [`Resolved`].
//!
//! Every rule that a schema can't state is checked here, each with the place in the file. All problems are reported.

mod actions;
mod bounds;
mod expects;
mod faults;
mod layers;
mod limits;
mod pool;
mod topology;
mod workload;

use std::collections::BTreeMap;

use crate::error::{ScenarioError, nearest};
use crate::model::{Resolved, SCENARIO_VERSION, Scenario, Trigger};
use crate::profile::Profile;
use crate::read::{Problems, ScenarioFile};

pub use bounds::*;
pub use layers::{Overrides, Setting, Source};
pub use limits::{LimitRow, limits};
pub(crate) use pool::check_profile;

/// Resolves a scenario. `profiles` holds the profiles that [`ScenarioFile::profile_names`] asks for, by name.
///
/// # Errors
/// Every rule of design section 6 that the scenario breaks.
pub fn resolve(
    file: &ScenarioFile,
    profiles: &BTreeMap<String, Profile>,
    overrides: &Overrides,
) -> Result<Resolved, ScenarioError> {
    let mut problems = Problems::new(&file.file, &file.positions);
    let mut scenario = file.scenario.clone();
    overrides.apply(&mut scenario, &mut problems);
    head(&scenario, &mut problems);
    topology::check(&mut scenario, &mut problems);
    let nodes = pool::expand(&scenario, profiles, &mut problems);
    let requests_max = workload::check(&mut scenario, &mut problems);
    let view = View { scenario: &scenario, nodes: &nodes, requests_max };
    faults::check(&view, &mut problems);
    workload::check_cancel(&view, &mut problems);
    workload::check_oversize(&view, &mut problems);
    topology::check_actions(&view, &mut problems);
    topology::check_ends(&view, &mut problems);
    let mut rules = scenario.faults.clone();
    rules.extend(pool::failure_rules(&scenario, &nodes, &mut problems));
    problems.finish()?;
    scenario.faults = rules;
    let plan_exact = !scenario.actions.iter().any(|action| matches!(action.after, Trigger::At(_)));
    Ok(Resolved { scenario, nodes, requests_max, plan_exact })
}

/// What the rules about faults, cancels and actions look at.
struct View<'a> {
    scenario: &'a Scenario,
    nodes: &'a [crate::model::Node],
    requests_max: u64,
}

impl View<'_> {
    /// Whether a name is a pool entry or an instance.
    fn knows_node(&self, name: &str) -> bool {
        self.node_names().any(|known| known == name)
    }

    fn node_names(&self) -> impl Iterator<Item = &str> + Clone {
        let entries = self.scenario.pool.iter().map(|entry| entry.name.as_str());
        entries.chain(self.nodes.iter().map(|node| node.name.as_str()))
    }

    /// Adds a problem when the name is no pool entry and no instance.
    fn check_node(&self, name: &str, path: &str, problems: &mut Problems<'_>) {
        if !self.knows_node(name) {
            let text = format!("{path}: the pool has no node {name:?}");
            problems.add_near(path, text, nearest(name, self.node_names()));
        }
    }
}

fn head(scenario: &Scenario, problems: &mut Problems<'_>) {
    if scenario.version != SCENARIO_VERSION {
        let text =
            format!("version is {}, but this build reads version {SCENARIO_VERSION} only", scenario.version);
        problems.add("version", text);
    }
    check_name(&scenario.name, "name", problems);
}

/// Names become parts of request ids, file names and network names, so that they are plain.
fn check_name(name: &str, path: &str, problems: &mut Problems<'_>) {
    if !crate::identity::valid_name(name) {
        let shown: String = name.chars().take(60).collect();
        let text = format!(
            "{path}: {shown:?} is no name: use a to z, 0 to 9 and dashes inside, at most {} characters",
            crate::identity::SCENARIO_NAME_LEN_MAX
        );
        problems.add(path, text);
    }
}

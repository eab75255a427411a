//! Reading scenario and profile files: the only place where the runner turns a path into a scenario.

use std::collections::BTreeMap;
use std::path::Path;

use evidence::run::LimitInForce;
use scenario::model::{Node, Resolved, Scenario};
use scenario::profile::Profile;

use crate::error::RunnerError;

/// Values that override the file.
#[derive(Clone, Copy, Debug, Default)]
pub struct Overrides {
    /// Seed.
    pub seed: Option<u64>,
    /// Concurrency of every step.
    pub concurrency: Option<u32>,
}

/// A scenario as every part reads it.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// Text of the scenario file.
    pub text: String,
    /// Resolved.
    pub resolved: Resolved,
    /// Limits in force.
    pub limits: Vec<LimitInForce>,
}

/// Reads and resolves.
///
/// # Errors
/// [`RunnerError::Usage`].
pub fn load(scenario: &Path, profiles: &Path, overrides: &Overrides) -> Result<Loaded, RunnerError> {
    let text = std::fs::read_to_string(scenario)
        .map_err(|source| RunnerError::Read { path: scenario.to_path_buf(), source })?;
    let mut parsed: Scenario = serde_yaml::from_str(&text).map_err(|e| RunnerError::Usage(e.to_string()))?;
    if let Some(seed) = overrides.seed {
        parsed.seed = seed;
    }
    if let Some(concurrency) = overrides.concurrency {
        parsed.workload.steps.iter_mut().for_each(|step| step.concurrency = concurrency);
    }
    let mut nodes = Vec::new();
    let mut known: BTreeMap<String, Profile> = BTreeMap::new();
    for entry in &parsed.pool {
        let path = profiles.join(format!("{}.yaml", entry.profile));
        let text = std::fs::read_to_string(&path).map_err(|source| RunnerError::Read { path, source })?;
        let profile: Profile = serde_yaml::from_str(&text).map_err(|e| RunnerError::Usage(e.to_string()))?;
        known.insert(entry.profile.clone(), profile.clone());
        for index in 0..entry.count {
            let name = if entry.count == 1 { entry.name.clone() } else { format!("{}-{index}", entry.name) };
            let mut behaviour = profile.clone();
            behaviour.workers = entry.workers.unwrap_or(behaviour.workers);
            behaviour.queue = entry.queue.unwrap_or(behaviour.queue);
            let weight = parsed.allocator.weights.get(&entry.name).copied().unwrap_or(1);
            nodes.push(Node {
                name,
                entry: entry.name.clone(),
                profile: entry.profile.clone(),
                behaviour,
                weight,
            });
        }
    }
    let requests_max = parsed.workload.max_requests.unwrap_or(400);
    Ok(Loaded {
        text,
        resolved: Resolved { scenario: parsed, nodes, requests_max, plan_exact: true },
        limits: Vec::new(),
    })
}

//! What the engine holds of a project.

use std::collections::BTreeMap;

use crate::engine::{Answer, ContainerListed, Engine, NetworkSeen, VolumeSeen};
use crate::labels;

/// Objects of one project by key.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// Containers by service.
    pub containers: BTreeMap<String, ContainerListed>,
    /// Networks by key.
    pub networks: BTreeMap<String, NetworkSeen>,
    /// Volumes by key.
    pub volumes: BTreeMap<String, VolumeSeen>,
}

impl Observed {
    /// Looks.
    ///
    /// # Errors
    /// [`crate::error::EngineError`] of a list call.
    pub async fn look<E: Engine>(engine: &E, project: &str) -> Answer<Self> {
        let filter = format!("{}={project}", labels::PROJECT);
        let key = |all: &BTreeMap<String, String>, label: &str, name: &str| {
            all.get(label).cloned().unwrap_or_else(|| name.to_owned())
        };
        let mut observed = Self::default();
        for seen in engine.containers(Some(&filter)).await? {
            observed.containers.insert(key(&seen.labels, labels::SERVICE, &seen.name), seen);
        }
        for seen in engine.networks(Some(&filter)).await? {
            observed.networks.insert(key(&seen.labels, labels::NETWORK, &seen.name), seen);
        }
        for seen in engine.volumes(Some(&filter)).await? {
            observed.volumes.insert(key(&seen.labels, labels::VOLUME, &seen.name), seen);
        }
        Ok(observed)
    }

    /// The name of an object that does not carry this run's mark.
    #[must_use]
    pub fn foreign(&self, run_id: &str) -> Option<String> {
        let containers = self.containers.values().map(|seen| (&seen.name, &seen.labels));
        let networks = self.networks.values().map(|seen| (&seen.name, &seen.labels));
        let volumes = self.volumes.values().map(|seen| (&seen.name, &seen.labels));
        let mut all = containers.chain(networks).chain(volumes);
        all.find(|(_, labels)| labels.get(labels::RUN).map(String::as_str) != Some(run_id)).map(
            |(name, labels)| {
                labels.get(labels::RUN).map_or_else(|| name.clone(), |run| format!("{name} of run {run}"))
            },
        )
    }
}

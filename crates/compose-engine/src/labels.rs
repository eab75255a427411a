//! Labels on every object at its creation: Compose's own, so that `docker compose -p` works, and ours, so that cleanup
//! finds what belongs to a run and nothing else (design compose-engine 1).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Prefix of Compose.
pub const COMPOSE_PREFIX: &str = "com.docker.compose.";
/// Prefix of ours.
pub const OWN_PREFIX: &str = "proofload.";
/// Project of an object.
pub const PROJECT: &str = "com.docker.compose.project";
/// Service of a container.
pub const SERVICE: &str = "com.docker.compose.service";
/// Hash of what an object was made from; containers without it are invisible to `ps`, `logs` and `down`.
pub const CONFIG_HASH: &str = "com.docker.compose.config-hash";
/// Replica number from 1.
pub const NUMBER: &str = "com.docker.compose.container-number";
/// `True` or `False`, with a capital letter.
pub const ONEOFF: &str = "com.docker.compose.oneoff";
/// Key of a network.
pub const NETWORK: &str = "com.docker.compose.network";
/// Key of a volume.
pub const VOLUME: &str = "com.docker.compose.volume";
/// Run that an object belongs to: the only thing that cleanup goes by.
pub const RUN: &str = "proofload.run";
/// Who made it.
pub const OWNER: &str = "proofload.owner";
/// Unix seconds after which nobody needs it.
pub const EXPIRES: &str = "proofload.expires";
/// Kept on purpose (`--keep`): only its expiry ends it.
pub const KEPT: &str = "proofload.kept";
/// Version of these labels.
pub const SCHEMA: &str = "proofload.schema";
/// Current version.
pub const SCHEMA_VERSION: &str = "1";

/// Process that owns a run: its number is reused, its start time within one boot is not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// Host name.
    pub host: String,
    /// Identity of the boot, so that a number of before is not taken for one of now.
    pub boot: String,
    /// Process id.
    pub pid: u32,
    /// Start in clock ticks since boot.
    pub start_ticks: u64,
}

impl Owner {
    /// As a label value.
    #[must_use]
    pub fn label(&self) -> String {
        format!("{}/{}/{}/{}", self.host, self.boot, self.pid, self.start_ticks)
    }

    /// From a label value.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.rsplitn(4, '/');
        let start_ticks = parts.next()?.parse().ok()?;
        let pid = parts.next()?.parse().ok()?;
        let boot = parts.next()?.to_owned();
        Some(Self { host: parts.next()?.to_owned(), boot, pid, start_ticks })
    }
}

/// What marks a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunMark {
    /// Run id.
    pub run_id: String,
    /// Hash of the scenario, or empty.
    pub scenario_hash: String,
    /// Owner.
    pub owner: Owner,
    /// Unix seconds of the start.
    pub created_unix_s: u64,
    /// Unix seconds of the end at the latest.
    pub expires_unix_s: u64,
    /// Left up on purpose.
    pub kept: bool,
}

impl RunMark {
    /// Our labels.
    #[must_use]
    pub fn labels(&self) -> BTreeMap<String, String> {
        let mut labels = BTreeMap::from([
            (RUN.to_owned(), self.run_id.clone()),
            ("proofload.scenario-hash".to_owned(), self.scenario_hash.clone()),
            (OWNER.to_owned(), self.owner.label()),
            ("proofload.created".to_owned(), self.created_unix_s.to_string()),
            (EXPIRES.to_owned(), self.expires_unix_s.to_string()),
            (SCHEMA.to_owned(), SCHEMA_VERSION.to_owned()),
        ]);
        if self.kept {
            labels.insert(KEPT.to_owned(), "true".to_owned());
        }
        labels
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_survives_its_label() {
        let owner = Owner { host: "a/b".into(), boot: "c-d".into(), pid: 7, start_ticks: 99 };
        assert_eq!(Owner::parse(&owner.label()), Some(owner));
        assert_eq!(Owner::parse("nonsense"), None);
    }
}

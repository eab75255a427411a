//! Leftovers of dead runs: found by label, judged by owner and expiry, removed by the same teardown as a living run's.

use std::collections::BTreeMap;

use crate::down::{Ending, Removed, down};
use crate::engine::Engine;
use crate::error::ComposeError;
use crate::labels::{self, Owner};
use crate::ledger::Ledger;

/// A run that the engine holds objects of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Run id.
    pub run_id: String,
    /// Project.
    pub project: String,
    /// Owner as labelled.
    pub owner: Option<Owner>,
    /// Unix seconds.
    pub expires_unix_s: u64,
    /// Left up on purpose.
    pub kept: bool,
    /// Names of its objects.
    pub objects: Vec<String>,
}

/// What is to become of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It stays, and why.
    Stays(String),
    /// It goes, and why.
    Goes(String),
}

/// Every run that the engine holds objects of.
///
/// # Errors
/// [`ComposeError`] of the list calls.
pub async fn find<E: Engine>(engine: &E) -> Result<Vec<Found>, ComposeError> {
    let mut runs: BTreeMap<String, Found> = BTreeMap::new();
    let containers = engine.containers(Some(labels::RUN)).await?.into_iter().map(|c| (c.name, c.labels));
    let volumes = engine.volumes(Some(labels::RUN)).await?.into_iter().map(|v| (v.name, v.labels));
    let networks = engine.networks(Some(labels::RUN)).await?.into_iter().map(|n| (n.name, n.labels));
    for (name, labels) in containers.chain(volumes).chain(networks) {
        let Some(run_id) = labels.get(labels::RUN) else { continue };
        let found = runs.entry(run_id.clone()).or_insert_with(|| Found {
            run_id: run_id.clone(),
            project: labels.get(labels::PROJECT).cloned().unwrap_or_default(),
            owner: labels.get(labels::OWNER).and_then(|text| Owner::parse(text)),
            expires_unix_s: labels.get(labels::EXPIRES).and_then(|text| text.parse().ok()).unwrap_or(0),
            kept: labels.contains_key(labels::KEPT),
            objects: Vec::new(),
        });
        found.objects.push(name);
    }
    Ok(runs.into_values().collect())
}

/// What is to become of a run. `alive` says whether an owner process of this host and boot still runs.
#[must_use]
pub fn fate(found: &Found, host: &str, boot: &str, alive: impl Fn(&Owner) -> bool, now_unix_s: u64) -> Fate {
    let expired = found.expires_unix_s <= now_unix_s;
    if found.kept {
        return if expired {
            Fate::Goes("its time as a kept project is over".to_owned())
        } else {
            Fate::Stays(format!("kept for {} s more", found.expires_unix_s - now_unix_s))
        };
    }
    let Some(owner) = &found.owner else {
        return if expired {
            Fate::Goes("expired".to_owned())
        } else {
            Fate::Stays("not expired".to_owned())
        };
    };
    // Report 21: liveness is asked of the process, not of a connection. Owners elsewhere are judged by time alone.
    if owner.host != host {
        return if expired {
            Fate::Goes(format!("its owner on {} did not end it in time", owner.host))
        } else {
            Fate::Stays(format!("its owner is on {}", owner.host))
        };
    }
    if owner.boot == boot && alive(owner) {
        return Fate::Stays(format!("its owner, process {}, lives", owner.pid));
    }
    Fate::Goes(format!("its owner, process {}, is gone", owner.pid))
}

/// Removes one run's objects at once.
///
/// # Errors
/// As [`down`].
pub async fn remove<E: Engine>(engine: &E, run_id: &str) -> Result<Removed, ComposeError> {
    down(engine, run_id, Ending::Forced, &Ledger::default()).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(kept: bool, host: &str) -> Found {
        let owner = Owner { host: host.into(), boot: "b1".into(), pid: 1, start_ticks: 2 };
        Found {
            run_id: "r".into(),
            project: "p".into(),
            owner: Some(owner),
            expires_unix_s: 100,
            kept,
            objects: Vec::new(),
        }
    }

    #[test]
    fn reports_21_and_28_owner_and_expiry_decide() {
        let goes = |found: &Found, boot: &str, alive: bool, now: u64| {
            matches!(fate(found, "here", boot, |_| alive, now), Fate::Goes(_))
        };
        // A living owner keeps its run, even past the expiry: a long run is not a leak.
        assert!(!goes(&found(false, "here"), "b1", true, 500));
        assert!(goes(&found(false, "here"), "b1", false, 50));
        // A number of another boot is another process.
        assert!(goes(&found(false, "here"), "b2", true, 50));
        // Owners of another host are judged by time.
        assert!(!goes(&found(false, "there"), "b1", false, 50));
        assert!(goes(&found(false, "there"), "b1", false, 100));
        // Kept projects outlive their owner until their time is over.
        assert!(!goes(&found(true, "here"), "b1", false, 50));
        assert!(goes(&found(true, "here"), "b1", true, 100));
    }
}

//! One snapshot of everything (design section 3, steps 3 and 6).

use std::collections::BTreeMap;

use evidence::EVIDENCE_VERSION;
use evidence::rundir::{METRICS, RunDir, SNAPSHOT_FILE, SNAPSHOTS};
use evidence::snapshot::{Moment, ProcessIdentity, Snapshot};
use serde_json::Value;

use super::{Surfaces, gateway, host, keep, metrics};
use crate::control::Control;
use crate::error::RunnerError;

/// Control addresses of the three mocks.
#[derive(Clone, Debug)]
pub struct Mocks {
    /// `mock-openai`.
    pub openai: Control,
    /// `mock-dapi`.
    pub dapi: Control,
    /// `mock-chain`.
    pub chain: Control,
}

/// Takes a snapshot and writes it: `snapshots/<moment>/` and `metrics/<moment>/`.
///
/// # Errors
/// [`RunnerError::RunDir`] when it can't be written; a silent surface is no error but `missing`.
pub async fn take(
    surfaces: &Surfaces,
    mocks: &Mocks,
    moment: Moment,
    at_us: u64,
    processes: Vec<ProcessIdentity>,
    dir: &RunDir,
) -> Result<Snapshot, RunnerError> {
    let mut missing = Vec::new();
    let mut snapshot = Snapshot {
        v: EVIDENCE_VERSION,
        moment,
        at_us,
        escrows: Vec::new(),
        hosts: Vec::new(),
        leases: None,
        processes,
        gateway_metrics: BTreeMap::new(),
        host_metrics: BTreeMap::new(),
        openai: keep(&mut missing, "mock-openai/stats", mocks.openai.stats().await),
        dapi: keep(&mut missing, "mock-dapi/stats", mocks.dapi.stats().await),
        chain: keep(&mut missing, "mock-chain/stats", mocks.chain.stats().await),
        missing: Vec::new(),
    };
    let folder = format!("{SNAPSHOTS}/{}", moment.dir());
    for id in &surfaces.escrows {
        let (escrow, raw) = gateway::escrow(surfaces, id, &mut missing).await;
        dir.write_json(&format!("{folder}/gateway-escrow-{id}.json"), &raw)?;
        snapshot.escrows.push(escrow);
    }
    let admin = surfaces.json(&format!("{}/v1/admin/state", surfaces.gateway), true).await;
    if let Some(admin) = keep(&mut missing, "gateway/admin/state", admin) {
        active_requests(&mut snapshot, &admin);
        dir.write_json(&format!("{folder}/gateway-admin-state.json"), &admin)?;
    }
    let nonces: Vec<(String, u64)> = snapshot.escrows.iter().map(|e| (e.escrow.clone(), e.nonce)).collect();
    for surface in &surfaces.hosts {
        snapshot.hosts.push(host::state(surfaces, surface, &nonces, &mut missing).await);
    }
    scrape(surfaces, moment, dir, &mut snapshot, &mut missing).await?;
    snapshot.missing = missing;
    dir.write_json(&format!("{folder}/{SNAPSHOT_FILE}"), &snapshot)?;
    Ok(snapshot)
}

/// `active_requests` is only shown by the admin view when several runtimes are loaded (contract gateway 2.4.3).
fn active_requests(snapshot: &mut Snapshot, admin: &Value) {
    let runtimes = admin["devshards"].as_array().map(Vec::as_slice).unwrap_or_default();
    for escrow in &mut snapshot.escrows {
        let runtime = runtimes.iter().find(|entry| entry["id"].as_str() == Some(escrow.escrow.as_str()));
        escrow.active_requests = runtime.and_then(|entry| entry["runtime"]["active_requests"].as_u64());
    }
}

async fn scrape(
    surfaces: &Surfaces,
    moment: Moment,
    dir: &RunDir,
    snapshot: &mut Snapshot,
    missing: &mut Vec<evidence::snapshot::Missing>,
) -> Result<(), RunnerError> {
    let folder = format!("{METRICS}/{}", moment.dir());
    let text = surfaces.text(&format!("{}/metrics", surfaces.gateway)).await;
    if let Some(text) = keep(missing, "gateway/metrics", text) {
        dir.write_text(&format!("{folder}/gateway.prom"), &text)?;
        snapshot.gateway_metrics = metrics::series(&text);
    }
    for host in &surfaces.hosts {
        let text = surfaces.text(&format!("{}/metrics", host.base)).await;
        if let Some(text) = keep(missing, &format!("{}/metrics", host.service), text) {
            dir.write_text(&format!("{folder}/{}.prom", host.service), &text)?;
            snapshot.host_metrics.insert(host.service.clone(), metrics::series(&text));
        }
    }
    Ok(())
}

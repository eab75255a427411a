//! One snapshot of everything (design section 3, steps 3 and 6).

use std::path::PathBuf;

use evidence::rundir::{METRICS, RunDir, SNAPSHOT_FILE, SNAPSHOTS};
use evidence::sessions::SessionLog;
use evidence::snapshot::{Moment, Snapshot};
use scenario::control::{CONTROL_VERSION, ChainStats, DapiStats, OpenaiStats};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::ask::bound;
use super::counters::{Counted, Counters};
use super::{Surfaces, gateway, host, keep, leases};
use crate::control::Control;
use crate::error::RunnerError;
use crate::stack::Running;

/// Control of the mocks. What is absent can't be seen: its evidence is missing, never zero.
#[derive(Clone, Debug, Default)]
pub struct Mocks {
    /// The pool: one process, or one for each node.
    pub openai: Vec<OpenaiControl>,
    /// `mock-dapi`.
    pub dapi: Option<Control>,
    /// `mock-chain`.
    pub chain: Option<Control>,
    /// Folder with a folder for each mock that writes its logs there too; what a process that has ended did not show
    /// is read from it.
    pub journal: Option<PathBuf>,
    /// What processes that have ended had counted.
    pub counters: Counters,
}

/// One `mock-openai` process.
#[derive(Clone, Debug)]
pub struct OpenaiControl {
    /// Service.
    pub service: String,
    /// Instances that it serves.
    pub nodes: Vec<String>,
    /// Its control.
    pub control: Control,
}

impl Mocks {
    /// Statistics of all pool processes as one, from the start of the run.
    ///
    /// # Errors
    /// In words, when there is no pool to ask, one process doesn't answer, or an earlier one's counters are lost: a
    /// part would look like the whole.
    pub async fn openai_stats(&self) -> Result<OpenaiStats, String> {
        self.openai(|service, stats| self.counters.add_openai(service, stats)).await
    }

    /// The same of the processes that are there now: what is active and queued.
    ///
    /// # Errors
    /// As [`Mocks::openai_stats`], but for what earlier processes had counted.
    pub async fn openai_now(&self) -> Result<OpenaiStats, String> {
        self.openai(|_, _| Ok(())).await
    }

    async fn openai(
        &self,
        complete: impl Fn(&str, &mut OpenaiStats) -> Result<(), String>,
    ) -> Result<OpenaiStats, String> {
        let mut all = OpenaiStats { v: CONTROL_VERSION, ..OpenaiStats::default() };
        for pool in &self.openai {
            let failed = |error: String| format!("{}: {error}", pool.service);
            let mut stats: OpenaiStats = pool.control.stats().await.map_err(failed)?;
            complete(&pool.service, &mut stats).map_err(failed)?;
            all.nodes.extend(stats.nodes);
            all.cpu_us += stats.cpu_us;
            all.loop_gap_max_us = all.loop_gap_max_us.max(stats.loop_gap_max_us);
        }
        if self.openai.is_empty() { Err(ABSENT.to_owned()) } else { Ok(all) }
    }

    /// Statistics of the allocator from the start of the run.
    ///
    /// # Errors
    /// In words, when there is none to ask, it doesn't answer, or an earlier process's counters are lost.
    pub async fn dapi_stats(&self) -> Result<DapiStats, String> {
        let mut stats = self.dapi_now().await?;
        self.counters.add_dapi("mock-dapi", &mut stats)?;
        Ok(stats)
    }

    /// Statistics of the allocator process that is there now.
    ///
    /// # Errors
    /// In words, when there is none to ask or it doesn't answer.
    pub async fn dapi_now(&self) -> Result<DapiStats, String> {
        stats_of(self.dapi.as_ref()).await
    }

    /// What a process that is about to end has counted; `None` when it is none whose counters matter.
    pub async fn counted(&self, service: &str) -> Option<Counted> {
        let read = if let Some(pool) = self.openai.iter().find(|pool| pool.service == service) {
            pool.control.stats().await.map(Counted::Openai)
        } else if service == "mock-dapi" {
            self.dapi_now().await.map(Counted::Dapi)
        } else {
            return None;
        };
        Some(read.unwrap_or_else(Counted::Lost))
    }

    /// Whether a service is a mock, whose logs live in its process.
    #[must_use]
    pub fn serves(&self, service: &str) -> bool {
        let pool = self.openai.iter().any(|pool| pool.service == service);
        pool || ["mock-openai", "mock-dapi", "mock-chain"].contains(&service)
    }

    /// Every control with the service it belongs to.
    pub fn controls(&self) -> impl Iterator<Item = (&str, &Control)> {
        let others = [("mock-dapi", &self.dapi), ("mock-chain", &self.chain)];
        let pools = self.openai.iter().map(|pool| (pool.service.as_str(), &pool.control));
        let others = others.into_iter().filter_map(|(name, control)| Some((name, control.as_ref()?)));
        pools.chain(others)
    }

    /// Mock whose control is at a `host:port`.
    #[must_use]
    pub fn service_at(&self, origin: &str) -> Option<&str> {
        self.controls().find(|(_, control)| control.origin() == origin).map(|(name, _)| name)
    }

    /// Mock processes that a service name stands for: `mock-openai` may be one process, or one for each node.
    #[must_use]
    pub fn processes<'a>(&'a self, service: &'a str) -> Vec<&'a str> {
        if service == "mock-openai" {
            return self.openai.iter().map(|pool| pool.service.as_str()).collect();
        }
        vec![service]
    }

    /// Statistics of the chain.
    ///
    /// # Errors
    /// As [`Mocks::dapi_stats`].
    pub async fn chain_stats(&self) -> Result<ChainStats, String> {
        stats_of(self.chain.as_ref()).await
    }
}

/// Why a mock that is not there shows nothing.
pub const ABSENT: &str = "this stack gives the runner no such mock";

async fn stats_of<T: DeserializeOwned>(control: Option<&Control>) -> Result<T, String> {
    match control {
        Some(control) => control.stats().await,
        None => Err(ABSENT.to_owned()),
    }
}

/// Takes a snapshot and writes it: `snapshots/<moment>/` and `metrics/<moment>/`.
///
/// # Errors
/// [`RunnerError::RunDir`] when it can't be written; a silent surface is no error but `missing`.
pub async fn take(
    running: &Running,
    mut snapshot: Snapshot,
    sessions: &mut SessionLog,
    dir: &RunDir,
) -> Result<(), RunnerError> {
    let Running { surfaces, mocks, postgres, .. } = running;
    let mut missing = Vec::new();
    snapshot.openai = keep(&mut missing, "mock-openai/stats", mocks.openai_stats().await);
    snapshot.dapi = keep(&mut missing, "mock-dapi/stats", mocks.dapi_stats().await);
    snapshot.chain = keep(&mut missing, "mock-chain/stats", mocks.chain_stats().await);
    let folder = format!("{SNAPSHOTS}/{}", snapshot.moment.dir());
    let url = format!("{}/v1/admin/state", surfaces.gateway);
    let object = |value: &Value| value.is_object().then_some(()).ok_or("no object".to_owned());
    let admin = surfaces.json(&url, true, bound::STATE, object).await;
    let admin = keep(&mut missing, "gateway/admin/state", admin).map(|((), admin)| admin);
    if let Some(admin) = &admin {
        // Rotation opens escrows without a word to anybody else.
        surfaces.escrows.add(gateway::registered(admin));
    }
    for id in &surfaces.escrows.list() {
        let (escrow, raw) = gateway::escrow(surfaces, id, &mut missing).await;
        dir.write_json(&format!("{folder}/gateway-escrow-{id}.json"), &raw)?;
        snapshot.escrows.push(escrow);
    }
    if let Some(admin) = admin {
        active_requests(&mut snapshot, &admin);
        dir.write_json(&format!("{folder}/gateway-admin-state.json"), &admin)?;
    }
    let nonces: Vec<(String, Option<u64>)> = snapshot
        .escrows
        .iter()
        .map(|escrow| {
            // A status that could not be read says nothing about the hosts: they are asked all the same.
            let status = format!("gateway/{}/status", escrow.escrow);
            let unread = missing.iter().any(|missing| missing.what == status);
            // A runtime that was unloaded shows nonce 0: its hosts have the log all the same.
            let unloaded = escrow.nonce == 0 && was_used(dir, &escrow.escrow);
            (escrow.escrow.clone(), (!unread && !unloaded).then_some(escrow.nonce))
        })
        .collect();
    for surface in &surfaces.hosts {
        let mut state = host::state(surfaces, surface, &nonces, sessions, &mut missing).await?;
        if snapshot.moment == Moment::DrainFinal {
            let epoch = host::epoch(surfaces, surface).await;
            state.epoch = keep(&mut missing, &format!("{}/stats/shards", surface.service), epoch);
        }
        snapshot.hosts.push(state);
    }
    gateway::ask_again(surfaces, &mut snapshot, &mut missing).await;
    snapshot.leases = leases::tables(postgres, &mut missing).await;
    scrape(surfaces, dir, &mut snapshot, &mut missing).await?;
    snapshot.missing = missing;
    sessions.store(&mut snapshot)?;
    dir.write_json(&format!("{folder}/{SNAPSHOT_FILE}"), &snapshot)?;
    Ok(())
}

/// Whether an earlier snapshot of this run shows an escrow in use.
fn was_used(dir: &RunDir, escrow: &str) -> bool {
    let used = |moment: Moment| {
        let text = std::fs::read(dir.path(&format!("{SNAPSHOTS}/{}/{SNAPSHOT_FILE}", moment.dir()))).ok()?;
        let snapshot: Snapshot = serde_json::from_slice(&text).ok()?;
        Some(snapshot.escrows.iter().any(|state| state.escrow == escrow && state.nonce > 0))
    };
    [Moment::Before, Moment::DrainPassive, Moment::DrainSynced].into_iter().any(|at| used(at) == Some(true))
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
    dir: &RunDir,
    snapshot: &mut Snapshot,
    missing: &mut Vec<evidence::snapshot::Missing>,
) -> Result<(), RunnerError> {
    let folder = format!("{METRICS}/{}", snapshot.moment.dir());
    let page = surfaces.metrics(&surfaces.gateway).await;
    if let Some((text, series)) = keep(missing, "gateway/metrics", page) {
        dir.write_text(&format!("{folder}/gateway.prom"), &text)?;
        snapshot.gateway_metrics = series;
    }
    for host in &surfaces.hosts {
        let page = surfaces.metrics(&host.base).await;
        if let Some((text, series)) = keep(missing, &format!("{}/metrics", host.service), page) {
            dir.write_text(&format!("{folder}/{}.prom", host.service), &text)?;
            snapshot.host_metrics.insert(host.service.clone(), series);
        }
    }
    Ok(())
}

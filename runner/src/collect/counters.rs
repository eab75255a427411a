//! Counters of mock processes that have ended: a new process counts from 0, and totals of a run are sums over both.
//!
//! They are read just before a planned end. What could not be read then is lost for good: totals are unreadable from then
//! on, never too small.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use scenario::control::{DapiStats, NodeCounters, OpenaiStats};

/// What one process had counted when it ended.
#[derive(Clone, Debug)]
pub enum Counted {
    /// A pool process.
    Openai(OpenaiStats),
    /// The allocator.
    Dapi(DapiStats),
    /// It did not show them: why.
    Lost(String),
}

/// The sums by service; clones share them.
#[derive(Clone, Debug, Default)]
pub struct Counters(Arc<Mutex<BTreeMap<String, Counted>>>);

impl Counters {
    /// A process has ended with these counters.
    pub fn ended(&self, service: &str, counted: Counted) {
        let mut all = self.all();
        let sum = match (all.remove(service), counted) {
            (Some(lost @ Counted::Lost(_)), _) | (_, lost @ Counted::Lost(_)) => lost,
            (Some(Counted::Openai(before)), Counted::Openai(mut counted)) => {
                add_openai(&mut counted, &before);
                Counted::Openai(counted)
            }
            (before, Counted::Dapi(mut counted)) => {
                // Locks that are out end with the allocator that gave them: nobody can give them back.
                counted.expired += counted.active;
                counted.active = 0;
                if let Some(Counted::Dapi(before)) = before {
                    add_dapi(&mut counted, &before);
                }
                Counted::Dapi(counted)
            }
            (_, counted) => counted,
        };
        all.insert(service.to_owned(), sum);
    }

    /// Adds what earlier processes of this pool service had counted.
    ///
    /// # Errors
    /// Why their counters are lost.
    pub fn add_openai(&self, service: &str, stats: &mut OpenaiStats) -> Result<(), String> {
        match self.all().get(service) {
            Some(Counted::Openai(before)) => add_openai(stats, before),
            Some(Counted::Lost(why)) => return Err(lost(why)),
            Some(Counted::Dapi(_)) | None => {}
        }
        Ok(())
    }

    /// Adds what earlier processes of the allocator had counted.
    ///
    /// # Errors
    /// Why their counters are lost.
    pub fn add_dapi(&self, service: &str, stats: &mut DapiStats) -> Result<(), String> {
        match self.all().get(service) {
            Some(Counted::Dapi(before)) => add_dapi(stats, before),
            Some(Counted::Lost(why)) => return Err(lost(why)),
            Some(Counted::Openai(_)) | None => {}
        }
        Ok(())
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<String, Counted>> {
        // Each step leaves the map whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn lost(why: &str) -> String {
    format!("what an earlier process had counted when it ended is lost: {why}")
}

/// What is there now (`active`, `queued`, workers) stays that of the living process.
fn add_openai(stats: &mut OpenaiStats, before: &OpenaiStats) {
    stats.cpu_us += before.cpu_us;
    stats.loop_gap_max_us = stats.loop_gap_max_us.max(before.loop_gap_max_us);
    for old in &before.nodes {
        let Some(node) = stats.nodes.iter_mut().find(|node| node.name == old.name) else { continue };
        node.saturated_us += old.saturated_us;
        add_counters(&mut node.execution, &old.execution);
        add_counters(&mut node.validation, &old.validation);
    }
}

fn add_counters(counters: &mut NodeCounters, before: &NodeCounters) {
    counters.completed += before.completed;
    counters.client_cancelled += before.client_cancelled;
    counters.rejected += before.rejected;
    for (action, count) in &before.failed {
        *counters.failed.entry(action.clone()).or_default() += count;
    }
}

fn add_dapi(stats: &mut DapiStats, before: &DapiStats) {
    stats.acquisitions += before.acquisitions;
    stats.releases += before.releases;
    stats.rejections += before.rejections;
    stats.expired += before.expired;
    stats.double_releases += before.double_releases;
    stats.unknown_releases += before.unknown_releases;
    stats.cpu_us += before.cpu_us;
    stats.loop_gap_max_us = stats.loop_gap_max_us.max(before.loop_gap_max_us);
    for (node, count) in &before.per_node {
        *stats.per_node.entry(node.clone()).or_default() += count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use scenario::control::NodeStats;

    fn pool(completed: u64, active: u64, saturated_us: u64) -> OpenaiStats {
        let failed = BTreeMap::from([("status".to_owned(), 1)]);
        let execution = NodeCounters { completed, active, failed, ..NodeCounters::default() };
        let node = NodeStats { name: "node-a".to_owned(), execution, saturated_us, ..NodeStats::default() };
        OpenaiStats { nodes: vec![node], ..OpenaiStats::default() }
    }

    #[test]
    fn totals_are_sums_over_every_process_and_what_is_now_is_not() {
        let counters = Counters::default();
        counters.ended("mock-openai", Counted::Openai(pool(10, 3, 500)));
        counters.ended("mock-openai", Counted::Openai(pool(5, 2, 100)));
        let mut stats = pool(1, 1, 7);
        counters.add_openai("mock-openai", &mut stats).unwrap();
        let node = &stats.nodes[0];
        assert_eq!((node.execution.completed, node.execution.failed["status"]), (16, 3));
        assert_eq!((node.execution.active, node.saturated_us), (1, 607));
        let mut other = pool(1, 1, 7);
        counters.add_openai("node-b", &mut other).unwrap();
        assert_eq!(other.nodes[0].execution.completed, 1, "another service");
    }

    #[test]
    fn locks_that_were_out_end_with_their_allocator() {
        let counters = Counters::default();
        let first =
            DapiStats { acquisitions: 10, releases: 7, expired: 1, active: 2, ..DapiStats::default() };
        counters.ended("mock-dapi", Counted::Dapi(first));
        let mut stats = DapiStats { acquisitions: 4, releases: 4, ..DapiStats::default() };
        counters.add_dapi("mock-dapi", &mut stats).unwrap();
        assert_eq!((stats.acquisitions, stats.releases, stats.expired, stats.active), (14, 11, 3, 0));
        assert_eq!(
            stats.acquisitions - stats.releases - stats.expired,
            0,
            "nothing is left that anybody holds"
        );
    }

    #[test]
    fn what_was_not_read_makes_every_later_total_unreadable() {
        let counters = Counters::default();
        counters.ended("mock-openai", Counted::Lost("it was frozen".to_owned()));
        counters.ended("mock-openai", Counted::Openai(pool(5, 0, 0)));
        let why = counters.add_openai("mock-openai", &mut pool(1, 0, 0)).unwrap_err();
        assert!(why.contains("it was frozen"), "{why}");
    }
}

//! A small good run, file by file: it documents what evidence looks like. [`good`] tells the story of one run, the
//! tests spoil single facts of it in memory, and [`Files::write`] puts it down through the real types.

#![allow(dead_code, unused_imports, reason = "each test target uses its own part of the story")]

pub mod catalogue;
pub mod defects_request;
pub mod defects_run;
pub mod defects_session;
pub mod log;
pub mod story;
pub mod stream;
pub mod twins;
pub mod unknown;

use std::collections::BTreeMap;
use std::path::Path;

use evidence::accounting::JoinedRequest;
use evidence::drain::DrainSample;
use evidence::event::{Event, EventKind};
use evidence::leases::{LeaseLine, LeaseSeen};
use evidence::record::RequestRecord;
use evidence::run::RunInfo;
use evidence::rundir::{self, RunDir, RunReader};
use evidence::sessions::SessionLog;
use evidence::snapshot::{Moment, Snapshot};
use scenario::control::{DapiCallRecord, Hit, NodeCall};
use scenario::plan::PlanLine;
use serde::Serialize;
use serde_json::Value;
use tempfile::TempDir;
use verdict::judge::Judgement;

pub use story::good;

/// Name of the one run that every test writes into a directory of its own.
pub const RUN_ID: &str = "20260101T000000Z-story-abcdef";

/// The moments in the order in which they are taken.
pub const MOMENTS: [Moment; 4] =
    [Moment::Before, Moment::DrainPassive, Moment::DrainSynced, Moment::DrainFinal];

/// Everything that is written, before it is written.
#[derive(Clone, Debug)]
pub struct Files {
    pub run: RunInfo,
    pub plan: Vec<PlanLine>,
    pub records: Vec<RequestRecord>,
    pub joined: Vec<JoinedRequest>,
    pub hits: Vec<Hit>,
    /// Two entries a call: its start and its end.
    pub calls: Vec<NodeCall>,
    pub dapi: Vec<DapiCallRecord>,
    pub events: Vec<Event>,
    pub drain: Vec<DrainSample>,
    pub snapshots: BTreeMap<Moment, Snapshot>,
    pub applied: Value,
    /// What the watch of the lease tables saw; written for Postgres only.
    pub leases: Vec<LeaseSeen>,
}

impl Files {
    /// Writes the run into a fresh directory.
    pub fn write(&self) -> TempDir {
        let base = tempfile::tempdir().expect("a scratch directory");
        self.write_into(base.path());
        base
    }

    pub fn write_into(&self, base: &Path) {
        let dir = RunDir::create(base, RUN_ID).expect("a new run directory");
        let text = serde_yaml::to_string(&self.run).expect("run.yaml");
        dir.write_text(rundir::RUN, &text).expect("run.yaml");
        lines(&dir, rundir::PLAN, &self.plan);
        lines(&dir, rundir::REQUESTS, &self.records);
        lines(&dir, rundir::ACCOUNTING, &self.joined);
        lines(&dir, rundir::HITS, &self.hits);
        lines(&dir, rundir::NODE_CALLS, &self.calls);
        lines(&dir, rundir::DAPI_CALLS, &self.dapi);
        lines(&dir, rundir::EVENTS, &self.events);
        lines(&dir, rundir::DRAIN, &self.drain);
        let mut sessions = SessionLog::open(&dir).expect("the files that snapshots share");
        for (moment, snapshot) in &self.snapshots {
            let mut snapshot = snapshot.clone();
            sessions.store(&mut snapshot).expect("diffs and inferences");
            dir.write_json(&snapshot_name(*moment), &snapshot).expect("snapshot");
        }
        dir.write_json(rundir::FAULTS_APPLIED, &self.applied).expect("applied.json");
        if self.run.stack.storage == "postgres" {
            self.write_leases(&dir);
        }
    }

    fn write_leases(&self, dir: &RunDir) {
        let begin = LeaseSeen::Begin { spacing_us: 200_000, ttl_us: Some(3_000_000) };
        let participant = "host-0".to_owned();
        let end = LeaseSeen::End { participant, looks: 20, failed: 0, why: None, dropped: 0 };
        let all: Vec<LeaseLine> = [begin]
            .into_iter()
            .chain(self.leases.iter().cloned())
            .chain([end])
            .map(LeaseLine::from)
            .collect();
        lines(dir, rundir::LEASES, &all);
    }

    /// Writes and judges.
    pub fn judge(&self) -> Judgement {
        let base = self.write();
        judge_in(base.path())
    }

    /// Writes the run as version 1 of snapshots had it, with diffs and inferences inside, and judges.
    pub fn judge_as_version_1(&self) -> Judgement {
        let base = self.write();
        let dir = RunDir::existing(base.path().join(RUN_ID));
        for (moment, snapshot) in &self.snapshots {
            let snapshot = Snapshot { v: 1, ..snapshot.clone() };
            dir.write_json(&snapshot_name(*moment), &snapshot).expect("snapshot");
        }
        for shared in [rundir::DIFFS, rundir::INFERENCES] {
            std::fs::remove_file(dir.path(shared)).expect("written above");
        }
        judge_in(base.path())
    }

    pub fn snapshot(&mut self, moment: Moment) -> &mut Snapshot {
        self.snapshots.get_mut(&moment).expect("the story has every moment")
    }

    /// Applies a change to the snapshots of this moment and of every later one.
    pub fn from(&mut self, moment: Moment, change: impl Fn(&mut Snapshot)) {
        self.snapshots.range_mut(moment..).for_each(|(_, snapshot)| change(snapshot));
    }

    /// Index of the first request that the fault hit.
    pub fn first_hit(&self) -> usize {
        let id = self.hits[0].request_id.clone().expect("a node hit has an id");
        self.records.iter().position(|record| record.id.as_str() == id).expect("a hit is of a planned id")
    }

    /// Index of the n-th request that no fault touched and that streams or not.
    pub fn untouched(&self, stream: bool, nth: usize) -> usize {
        let hit = |id: &str| self.hits.iter().any(|hit| hit.request_id.as_deref() == Some(id));
        let mut fitting = self.records.iter().enumerate().filter(|(_, record)| {
            record.stream == stream
                && !hit(record.id.as_str())
                && self.joined[record.index as usize]
                    .accounting
                    .as_ref()
                    .is_some_and(|r| r.attempts.len() == 1)
        });
        fitting.nth(nth).expect("the story has enough requests").0
    }

    /// Adds an event before the end of the drain, keeping sequence numbers whole.
    pub fn event_in_load(&mut self, event: EventKind) {
        let ended = |event: &Event| matches!(event.event, EventKind::StepEnded { .. });
        let at = self.events.iter().position(ended).expect("a step ended");
        let beside = self.events[at].clone();
        self.events.insert(at, Event { event, ..beside });
        self.number_events();
    }

    /// The scenario has an action, and it took place.
    pub fn acted(&mut self, action: scenario::model::Action) {
        let actions = &mut self.run.resolved.scenario.actions;
        let (ordinal, what) = (actions.len(), format!("{:?}", action.action));
        actions.push(action);
        self.event_in_load(EventKind::ActionIntended { action: ordinal, what });
        self.event_in_load(EventKind::ActionDone { action: ordinal, error: None, read_back: None });
    }

    pub fn number_events(&mut self) {
        for (event, seq) in self.events.iter_mut().zip(1..) {
            event.seq = seq;
        }
    }
}

/// Judges the run below a directory.
pub fn judge_in(base: &Path) -> Judgement {
    verdict::judge::judge(&RunReader::new(base.join(RUN_ID))).expect("run.yaml is good")
}

/// Name of a moment's snapshot inside the run directory.
pub fn snapshot_name(moment: Moment) -> String {
    format!("{}/{}/{}", rundir::SNAPSHOTS, moment.dir(), rundir::SNAPSHOT_FILE)
}

fn lines<T: Serialize>(dir: &RunDir, name: &str, values: &[T]) {
    let mut out = dir.append(name).expect(name);
    values.iter().for_each(|value| out.write_buffered(value).expect(name));
    out.flush().expect(name);
}

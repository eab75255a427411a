//! The story at any length, written in pieces: all of it at once would not fit in memory.

use std::path::Path;

use evidence::rundir::{self, LineWriter, RunDir};
use evidence::sessions::{SessionLog, push_line};
use evidence::snapshot::{HostEscrow, Moment};

use super::log::{Session, hosts};
use super::story::{ESCROWS, Teller, events, resolved};
use super::{Files, RUN_ID, snapshot_name};

/// Requests that are held before they are written.
const HELD_MAX: usize = 1_000;

/// Writes a good run below a directory.
pub fn write(requests: u64, base: &Path) {
    let resolved = resolved(requests);
    let dir = RunDir::create(base, RUN_ID).expect("a new run directory");
    let mut out = Pieces::open(&dir);
    let mut teller = Teller::new(resolved.clone());
    ESCROWS.iter().for_each(|escrow| teller.canary(escrow));
    out.snapshot(&mut teller, Moment::Before);
    for line in scenario::plan::lines(&resolved) {
        teller.request(&line);
        lines(&mut out.plan, &[line]);
        if teller.records.len() >= HELD_MAX {
            out.flush(&mut teller);
        }
    }
    out.flush(&mut teller);
    out.snapshot(&mut teller, Moment::DrainPassive);
    for moment in [Moment::DrainSynced, Moment::DrainFinal] {
        teller.sessions.iter_mut().for_each(Session::close);
        out.snapshot(&mut teller, moment);
    }
    let rest = Files { events: events(requests), ..teller.end(Vec::new()) };
    let text = serde_yaml::to_string(&rest.run).expect("run.yaml");
    dir.write_text(rundir::RUN, &text).expect("run.yaml");
    lines(&mut dir.append(rundir::EVENTS).expect("events"), &rest.events);
    lines(&mut dir.append(rundir::DRAIN).expect("drain"), &rest.drain);
    dir.write_json(rundir::FAULTS_APPLIED, &rest.applied).expect("applied.json");
}

/// The files with a line per request or call, while they grow.
struct Pieces<'d> {
    dir: &'d RunDir,
    plan: LineWriter,
    records: LineWriter,
    joined: LineWriter,
    hits: LineWriter,
    calls: LineWriter,
    dapi: LineWriter,
    sessions: SessionLog,
}

impl<'d> Pieces<'d> {
    fn open(dir: &'d RunDir) -> Self {
        let append = |name| dir.append(name).expect(name);
        Self {
            dir,
            plan: append(rundir::PLAN),
            records: append(rundir::REQUESTS),
            joined: append(rundir::ACCOUNTING),
            hits: append(rundir::HITS),
            calls: append(rundir::NODE_CALLS),
            dapi: append(rundir::DAPI_CALLS),
            sessions: SessionLog::open(dir).expect("the files that snapshots share"),
        }
    }

    fn flush(&mut self, teller: &mut Teller) {
        lines(&mut self.records, &std::mem::take(&mut teller.records));
        lines(&mut self.joined, &std::mem::take(&mut teller.joined));
        lines(&mut self.hits, &std::mem::take(&mut teller.hits));
        lines(&mut self.calls, &std::mem::take(&mut teller.calls));
        lines(&mut self.dapi, &std::mem::take(&mut teller.dapi));
    }

    /// Every host holds every session: its diffs are written once, and each host refers to them.
    fn snapshot(&mut self, teller: &mut Teller, moment: Moment) {
        self.flush(teller);
        let mut hosts = hosts(&[]);
        for session in &teller.sessions {
            let mut log = Vec::new();
            for diff in &session.diffs {
                push_line(&mut log, self.sessions.diff(&session.escrow, diff).expect("a diff"));
            }
            for host in &mut hosts {
                let (escrow, log) = (session.escrow.clone(), log.clone());
                host.escrows.push(HostEscrow { escrow, log, ..HostEscrow::default() });
            }
        }
        let mut snapshot = teller.shown(moment, hosts);
        self.sessions.store(&mut snapshot).expect("diffs and inferences");
        self.dir.write_json(&snapshot_name(moment), &snapshot).expect("snapshot");
    }
}

fn lines<T: serde::Serialize>(out: &mut LineWriter, values: &[T]) {
    values.iter().for_each(|value| out.write_buffered(value).expect("a line"));
    out.flush().expect("lines");
}

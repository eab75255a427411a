//! Reads the evidence of one run. What is absent or damaged is named; nothing here fails.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use evidence::EVIDENCE_VERSION;
use evidence::accounting::JoinedRequest;
use evidence::drain::DrainSample;
use evidence::event::{Event, EventKind, Phase};
use evidence::record::RequestRecord;
use evidence::run::RunInfo;
use evidence::rundir::{
    ACCOUNTING, DAPI_CALLS, DRAIN, EVENTS, FAULTS_APPLIED, HITS, NODE_CALLS, PLAN, REQUESTS, RUN, RunReader,
    SNAPSHOT_FILE, SNAPSHOTS,
};
use evidence::snapshot::{Moment, Snapshot};
use scenario::control::{DapiCallRecord, Hit, NodeCall};
use scenario::plan::PlanLine;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Damaged lines that are named one by one; the rest are counted.
const BAD_LINES_NAMED_MAX: usize = 3;

/// Everything that assertions read.
#[derive(Debug)]
pub struct Evidence {
    /// `run.yaml`.
    pub run: RunInfo,
    /// Plan lines by index.
    pub plan: Vec<PlanLine>,
    /// Client records by plan index.
    pub records: BTreeMap<u64, RequestRecord>,
    /// Plan indexes with more than one record.
    pub repeated_records: BTreeSet<u64>,
    /// Joined accounting by plan index.
    pub joined: BTreeMap<u64, JoinedRequest>,
    /// Joined lines that contradict the kept one of their index.
    pub rival_rows: Vec<JoinedRequest>,
    /// Fault hits.
    pub hits: Vec<Hit>,
    /// Node calls; a call that ended appears once, with its end.
    pub calls: Vec<NodeCall>,
    /// Allocator calls.
    pub dapi: Vec<DapiCallRecord>,
    /// Events.
    pub events: Vec<Event>,
    /// Drain samples.
    pub drain: Vec<DrainSample>,
    /// Snapshots by moment.
    pub snapshots: BTreeMap<Moment, Snapshot>,
    /// Applied fault configuration.
    pub applied: Value,
    /// Why an input can't be used, by its file name.
    pub missing: BTreeMap<String, String>,
}

/// Why nothing at all can be judged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoRun(pub String);

impl Evidence {
    /// Reads a run directory.
    ///
    /// # Errors
    /// [`NoRun`] when `run.yaml` is absent, damaged or of a newer format: then nothing is known about the run.
    pub fn read(reader: &RunReader) -> Result<Self, NoRun> {
        let run = read_run(reader)?;
        let mut missing = BTreeMap::new();
        let mut plan: Vec<PlanLine> = lines(reader, PLAN, &mut missing, |line: &PlanLine| Some(line.v));
        plan.sort_by_key(|line| line.index);
        let (records, repeated_records) =
            records(lines(reader, REQUESTS, &mut missing, |record: &RequestRecord| Some(record.v)));
        let (joined, rival_rows) =
            rows(lines(reader, ACCOUNTING, &mut missing, |row: &JoinedRequest| Some(row.v)));
        let mut snapshots = BTreeMap::new();
        for moment in [Moment::Before, Moment::DrainPassive, Moment::DrainSynced, Moment::DrainFinal] {
            let name = format!("{SNAPSHOTS}/{}/{SNAPSHOT_FILE}", moment.dir());
            match reader.json::<Snapshot>(&name) {
                Ok(Some(snapshot)) if snapshot.v > EVIDENCE_VERSION => {
                    drop(missing.insert(name, newer(snapshot.v)));
                }
                Ok(Some(snapshot)) if snapshot.moment != moment => {
                    let text = format!("holds the snapshot of {}", snapshot.moment.dir());
                    drop(missing.insert(name, text));
                }
                Ok(Some(snapshot)) => drop(snapshots.insert(moment, snapshot)),
                Ok(None) => drop(missing.insert(name, "the file is absent".to_owned())),
                Err(bad) => drop(missing.insert(name, bad.why)),
            }
        }
        let events = events(reader, &mut missing);
        let applied = match reader.json(FAULTS_APPLIED) {
            Ok(Some(applied)) => applied,
            Ok(None) => {
                missing.insert(FAULTS_APPLIED.to_owned(), "the file is absent".to_owned());
                Value::Null
            }
            Err(bad) => {
                missing.insert(FAULTS_APPLIED.to_owned(), bad.why);
                Value::Null
            }
        };
        let mut drain: Vec<DrainSample> =
            lines(reader, DRAIN, &mut missing, |sample: &DrainSample| Some(sample.v));
        drain.sort_by_key(|sample| sample.at_us);
        let mut evidence = Self {
            run,
            plan,
            records,
            repeated_records,
            joined,
            rival_rows,
            hits: lines(reader, HITS, &mut missing, |_: &Hit| None),
            calls: merge_calls(lines(reader, NODE_CALLS, &mut missing, |_: &NodeCall| None)),
            dapi: lines(reader, DAPI_CALLS, &mut missing, |_: &DapiCallRecord| None),
            drain,
            applied,
            events,
            snapshots,
            missing,
        };
        evidence.note_declared_gaps();
        crate::gaps::note(&mut evidence);
        Ok(evidence)
    }

    /// Turns gaps that the runner itself declared into missing inputs.
    fn note_declared_gaps(&mut self) {
        let files = [
            ("mock-openai/hits", HITS),
            ("mock-dapi/hits", HITS),
            ("mock-chain/hits", HITS),
            ("mock-openai/calls", NODE_CALLS),
            ("mock-dapi/calls", DAPI_CALLS),
        ];
        for event in &self.events {
            if let EventKind::EvidenceMissing { what, why } = &event.event {
                let file =
                    files.iter().find(|(name, _)| name == what).map_or(what.as_str(), |(_, file)| file);
                self.missing.entry(file.to_owned()).or_insert_with(|| format!("{what}: {why}"));
            }
        }
    }

    /// A snapshot, or the name of what is missing.
    ///
    /// # Errors
    /// File name and reason, for the sheet.
    pub fn snapshot(&self, moment: Moment) -> Result<&Snapshot, String> {
        let name = format!("{SNAPSHOTS}/{}/{SNAPSHOT_FILE}", moment.dir());
        self.snapshots.get(&moment).ok_or_else(|| {
            let why = self.missing.get(&name).map_or("absent", String::as_str);
            format!("{name}: {why}")
        })
    }

    /// The missing ones of these input files, as text.
    #[must_use]
    pub fn missing_of(&self, inputs: &[&str]) -> Vec<String> {
        inputs
            .iter()
            .filter_map(|input| self.missing.get(*input).map(|why| format!("{input}: {why}")))
            .collect()
    }

    /// Hits by request id.
    #[must_use]
    pub fn hits_by_request(&self) -> HashMap<&str, Vec<&Hit>> {
        let mut map: HashMap<&str, Vec<&Hit>> = HashMap::new();
        for hit in &self.hits {
            if let Some(id) = hit.request_id.as_deref() {
                map.entry(id).or_default().push(hit);
            }
        }
        map
    }
}

fn read_run(reader: &RunReader) -> Result<RunInfo, NoRun> {
    let text = match reader.text(RUN) {
        Ok(Some(text)) => text,
        Ok(None) => return Err(NoRun(format!("{RUN} is absent: this is no run directory"))),
        Err(bad) => return Err(NoRun(format!("{RUN}: {}", bad.why))),
    };
    let run: RunInfo = serde_yaml::from_str(&text).map_err(|error| NoRun(format!("{RUN}: {error}")))?;
    if run.v > EVIDENCE_VERSION {
        let text = format!("{RUN} has format version {}, this build reads up to {EVIDENCE_VERSION}", run.v);
        return Err(NoRun(text));
    }
    Ok(run)
}

fn newer(version: u32) -> String {
    format!("format version {version}, this build reads up to {EVIDENCE_VERSION}")
}

/// Reads a JSON Lines file; damage makes the whole input unusable for a pass, what could be read is kept. Lines of a
/// newer format are not used: a field may mean something else there.
fn lines<T: DeserializeOwned>(
    reader: &RunReader,
    name: &str,
    missing: &mut BTreeMap<String, String>,
    version: fn(&T) -> Option<u32>,
) -> Vec<T> {
    let Some(lines) = reader.lines::<T>(name) else {
        missing.insert(name.to_owned(), "the file is absent".to_owned());
        return Vec::new();
    };
    let mut read = Vec::new();
    let mut bad = Vec::new();
    for (number, line) in lines.enumerate() {
        match line {
            Ok(value) => match version(&value).filter(|version| *version > EVIDENCE_VERSION) {
                Some(version) => bad.push(format!("line {}: {}", number + 1, newer(version))),
                None => read.push(value),
            },
            Err(line) => bad.push(format!("line {}: {}", line.line, line.why)),
        }
    }
    if !bad.is_empty() {
        let named = bad.iter().take(BAD_LINES_NAMED_MAX).cloned().collect::<Vec<_>>().join("; ");
        missing.insert(name.to_owned(), format!("{} damaged lines ({named})", bad.len()));
    }
    read
}

fn records(read: Vec<RequestRecord>) -> (BTreeMap<u64, RequestRecord>, BTreeSet<u64>) {
    let mut records = BTreeMap::new();
    let mut repeated = BTreeSet::new();
    for record in read {
        let index = record.index;
        if records.insert(index, record).is_some() {
            repeated.insert(index);
        }
    }
    (records, repeated)
}

/// Keeps one line per index. An equal line twice says nothing new; a different one is a second outcome.
fn rows(read: Vec<JoinedRequest>) -> (BTreeMap<u64, JoinedRequest>, Vec<JoinedRequest>) {
    let mut rows: BTreeMap<u64, JoinedRequest> = BTreeMap::new();
    let mut rivals = Vec::new();
    for row in read {
        match rows.get(&row.index) {
            Some(kept) if *kept != row => rivals.push(row),
            Some(_) => {}
            None => drop(rows.insert(row.index, row)),
        }
    }
    (rows, rivals)
}

/// Events in order, without the teardown: it can't change the verdict (design section 3), and `analyze` must see
/// what `run` saw.
fn events(reader: &RunReader, missing: &mut BTreeMap<String, String>) -> Vec<Event> {
    let mut events = lines(reader, EVENTS, missing, |event: &Event| Some(event.v));
    events.sort_by_key(|event| event.seq);
    let gap = events.iter().zip(1_u64..).find(|(event, seq)| event.seq != *seq);
    if let Some((event, seq)) = gap {
        let text = format!("sequence number {} stands where {seq} is due", event.seq);
        missing.entry(EVENTS.to_owned()).or_insert(text);
    }
    let teardown = EventKind::PhaseStarted { phase: Phase::Teardown };
    let end = events.iter().position(|event| event.event == teardown).unwrap_or(events.len());
    events.truncate(end);
    events
}

/// A call is logged at its start and again at its end: keeps the end when there is one.
fn merge_calls(read: Vec<NodeCall>) -> Vec<NodeCall> {
    let mut calls: BTreeMap<(String, u64), NodeCall> = BTreeMap::new();
    for call in read {
        let key = (call.node.clone(), call.call);
        if call.ended_us.is_some() || !calls.contains_key(&key) {
            calls.insert(key, call);
        }
    }
    calls.into_values().collect()
}

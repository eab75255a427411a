//! Reads the evidence of one run. What is absent or damaged is named; nothing here fails. Files with a line per request
//! or call are read line by line and folded into small tables.

use std::collections::BTreeMap;

use evidence::EVIDENCE_VERSION;
use evidence::drain::DrainSample;
use evidence::event::{Event, EventKind, Phase};
use evidence::raw::RawLine;
use evidence::record::ClientClass;
use evidence::run::RunInfo;
use evidence::rundir::{
    ACCOUNTING, CHAIN_CALLS, DAPI_CALLS, DIFFS, DRAIN, EVENTS, FAULTS_APPLIED, HITS, INFERENCES, NODE_CALLS,
    PLAN, REQUESTS, RUN, RunReader, SNAPSHOT_FILE, SNAPSHOTS,
};
use evidence::snapshot::{Moment, SNAPSHOT_VERSION, Snapshot};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::calls::{Allocator, CallFold, Calls, Hits, Who};
use crate::lines::{
    DapiLine, DiffLine, HitLine, InferenceLine, JoinedLine, NodeCallLine, PlanLine, RecordLine, parse,
    parse_any,
};
use crate::ordinals::OrdinalFold;
use crate::requests::{Ids, JoinedRows, Plan, Records};
use crate::sessions::Sessions;
use crate::table::{Name, Names};

/// Damaged lines that are named one by one; the rest are counted.
const BAD_LINES_NAMED_MAX: usize = 3;
/// Lines of evidence are longer: so many a file has at most. Numbers beyond that cost more and are right all the same.
const LINE_LEN_MIN: u64 = 64;

/// Everything that assertions read.
#[derive(Debug)]
pub struct Evidence {
    /// Where single lines are read again.
    pub reader: RunReader,
    /// `run.yaml`.
    pub run: RunInfo,
    /// Ordinary ids.
    pub ids: Ids,
    /// Words that evidence repeats.
    pub names: Names,
    /// The plan.
    pub plan: Plan,
    /// Client records.
    pub records: Records,
    /// Joined accounting.
    pub joined: JoinedRows,
    /// Fault hits.
    pub hits: Hits,
    /// Node calls.
    pub calls: Calls,
    /// Allocator calls.
    pub allocator: Allocator,
    /// Events.
    pub events: Vec<Event>,
    /// Drain samples.
    pub drain: Vec<DrainSample>,
    /// Snapshots by moment.
    pub snapshots: BTreeMap<Moment, Snapshot>,
    /// Diffs and inferences of all snapshots.
    pub sessions: Sessions,
    /// Applied fault configuration.
    pub applied: Value,
    /// Why an input can't be used, by its file name.
    pub missing: BTreeMap<String, String>,
    /// Files that are not what they were when the run ended, whoever reads them: then no result of the run is valid.
    pub altered: Vec<String>,
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
        let ids = Ids::new(&run.resolved.scenario.name, run.resolved.scenario.seed);
        let mut files = Files { reader, missing: BTreeMap::new(), names: Names::default() };
        let mut snapshots = files.snapshots();
        let sessions = files.sessions(&mut snapshots);
        let plan = files.plan(&ids, run.resolved.scenario.workload.prompt.input_tokens);
        let records = files.records(&ids, run.resolved.requests_max);
        let hits = files.hits(&ids);
        let mut allocator = files.allocator();
        let joined = files.joined(&ids, run.resolved.requests_max);
        let mut calls = files.calls(&run, &ids, &joined, (&hits, &records), &mut allocator);
        calls.oracle.differ_in_all(files.unlike_rules(&run, &hits));
        let events = events(reader, &mut files.missing);
        let applied = files.applied();
        let mut drain: Vec<DrainSample> =
            lines(reader, DRAIN, &mut files.missing, |sample: &DrainSample| Some(sample.v));
        drain.sort_by_key(|sample| sample.at_us);
        let Files { missing, names, .. } = files;
        let mut evidence = Self {
            reader: reader.clone(),
            run,
            ids,
            names,
            plan,
            records,
            joined,
            hits,
            calls,
            allocator,
            drain,
            applied,
            events,
            snapshots,
            sessions,
            missing,
            altered: Vec::new(),
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
            ("mock-chain/calls", CHAIN_CALLS),
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
        // On a running environment the drain ends with the passive wait: all read (b) (design section 3).
        let moment = if self.is_attached() { moment.min(Moment::DrainPassive) } else { moment };
        let name = format!("{SNAPSHOTS}/{}/{SNAPSHOT_FILE}", moment.dir());
        self.snapshots.get(&moment).ok_or_else(|| {
            let why = self.missing.get(&name).map_or("absent", String::as_str);
            format!("{name}: {why}")
        })
    }

    /// Whether the run was made on a running environment: nothing there is synced or finalized.
    #[must_use]
    pub fn is_attached(&self) -> bool {
        crate::applicability::attached(&self.run)
    }

    /// The moment whose snapshot a file name is.
    #[must_use]
    pub fn moment_of(&self, name: &str) -> Option<Moment> {
        let file = |moment: &Moment| format!("{SNAPSHOTS}/{}/{SNAPSHOT_FILE}", moment.dir()) == name;
        self.snapshots.keys().copied().find(file)
    }

    /// The missing ones of these input files, as text.
    #[must_use]
    pub fn missing_of(&self, inputs: &[&str]) -> Vec<String> {
        inputs
            .iter()
            .filter_map(|input| self.missing.get(*input).map(|why| format!("{input}: {why}")))
            .collect()
    }

    /// The id of the request with an index, as its record says, else as its plan or joined line does.
    #[must_use]
    pub fn id(&self, index: u64) -> String {
        let planned = if self.records.has(index) { None } else { self.plan.odd_id(index) };
        let odd = self.records.odd_id(index).or(planned);
        odd.map_or_else(|| self.ids.id(index), str::to_owned)
    }

    /// The id of a planned request, as the plan has it.
    #[must_use]
    pub fn planned_id(&self, index: u64) -> String {
        self.plan.odd_id(index).map_or_else(|| self.ids.id(index), str::to_owned)
    }

    /// The id of a joined line.
    #[must_use]
    pub fn joined_id(&self, index: u64) -> String {
        self.joined.odd_id(index).map_or_else(|| self.ids.id(index), str::to_owned)
    }

    /// The index of the record with an id.
    #[must_use]
    pub fn index_of(&self, id: &str) -> Option<u64> {
        let ordinary = self
            .ids
            .index(id)
            .filter(|index| self.records.has(*index) && self.records.odd_id(*index).is_none());
        ordinary.or_else(|| self.records.find_odd(id))
    }

    /// Rules that hit the request of a record: different ones, in order of their names.
    #[must_use]
    pub fn rules_of(&self, index: u64) -> Vec<&str> {
        let mut rules: Vec<&str> = self.hits_of(index).map(|hit| self.names.word(hit.rule)).collect();
        rules.sort_unstable();
        rules.dedup();
        rules
    }

    /// Hits on the request of a record. A spoilt replay carries the same marker and is no part of its request: the
    /// client was answered long before.
    pub fn hits_of(&self, index: u64) -> impl Iterator<Item = &crate::calls::Hit> {
        let who = match self.records.odd_id(index) {
            Some(odd) => self.names.find(odd).map(Who::Other),
            None => Some(Who::Index(index)),
        };
        who.into_iter().flat_map(|who| self.hits.of(who)).filter(|hit| !hit.replay)
    }

    /// A request that the gateway could not begin: its row waits for ever and names no attempt, no node worked for it,
    /// and the client was answered an error (contract gateway 10.2).
    #[must_use]
    pub fn is_prepare_failure(&self, index: u64) -> bool {
        let refused = self.records.get(index).is_some_and(|record| {
            record.client_class == ClientClass::HttpError && record.status.is_some_and(|status| status >= 400)
        });
        refused
            && self.joined.get(index).is_some_and(|joined| {
                joined.accepted
                    && self.names.maybe(joined.outcome) == Some("running")
                    && self.joined.attempts(joined).is_empty()
                    && self.joined.calls(joined).len() == 0
            })
    }

    /// The name of a word that evidence uses.
    #[must_use]
    pub fn name(&self, word: &str) -> Option<Name> {
        self.names.find(word)
    }
}

/// The files while they are read.
struct Files<'r> {
    reader: &'r RunReader,
    missing: BTreeMap<String, String>,
    names: Names,
}

impl Files<'_> {
    /// More lines than a file has.
    fn cap(&self, name: &str) -> u64 {
        self.reader.len(name) / LINE_LEN_MIN + 1
    }

    /// Reads a file line by line; damage makes the whole input unusable for a pass, what could be read is kept.
    fn each(
        &mut self,
        name: &str,
        mut take: impl FnMut(RawLine<'_>, &mut Names, &RunReader) -> Result<(), String>,
    ) {
        let Some(mut lines) = self.reader.raw_lines(name) else {
            self.missing.insert(name.to_owned(), "the file is absent".to_owned());
            return;
        };
        let mut damage = Damage::default();
        while let Some(line) = lines.next() {
            match line {
                Ok(line) => {
                    let number = line.number;
                    if let Err(why) = take(line, &mut self.names, self.reader) {
                        damage.add(number, &why);
                    }
                }
                Err(bad) => damage.add(bad.line, &bad.why),
            }
        }
        damage.note(name, &mut self.missing);
    }

    fn snapshots(&mut self) -> BTreeMap<Moment, Snapshot> {
        let mut snapshots = BTreeMap::new();
        for moment in [Moment::Before, Moment::DrainPassive, Moment::DrainSynced, Moment::DrainFinal] {
            let name = format!("{SNAPSHOTS}/{}/{SNAPSHOT_FILE}", moment.dir());
            let why = match self.reader.json::<Snapshot>(&name) {
                Ok(Some(snapshot)) if snapshot.v > SNAPSHOT_VERSION => newer(snapshot.v, SNAPSHOT_VERSION),
                Ok(Some(snapshot)) if snapshot.moment != moment => {
                    format!("holds the snapshot of {}", snapshot.moment.dir())
                }
                Ok(Some(snapshot)) => {
                    snapshots.insert(moment, snapshot);
                    continue;
                }
                Ok(None) => "the file is absent".to_owned(),
                Err(bad) => bad.why,
            };
            self.missing.insert(name, why);
        }
        snapshots
    }

    /// Version 1 held everything in the snapshots; later ones refer to two files.
    fn sessions(&mut self, snapshots: &mut BTreeMap<Moment, Snapshot>) -> Sessions {
        let mut sessions = Sessions::new(snapshots, self.cap(DIFFS).max(self.cap(INFERENCES)));
        if !snapshots.is_empty() && snapshots.values().all(|snapshot| snapshot.v == 1) {
            sessions.take_inline(snapshots, &mut self.names);
            sessions.finish_diffs(self.reader);
            return sessions;
        }
        self.each(DIFFS, |raw, names, _| {
            let line = parse::<DiffLine<'_>>(raw.bytes)
                .and_then(|line| numbered(line.v, line.n, raw.number).map(|()| line));
            match line {
                Ok(line) => sessions.take_line(&line, names),
                Err(why) => {
                    sessions.skip_line();
                    return Err(why);
                }
            }
            Ok(())
        });
        self.each(INFERENCES, |raw, names, _| {
            let line = parse::<InferenceLine<'_>>(raw.bytes)
                .and_then(|line| numbered(line.v, line.n, raw.number).map(|()| line));
            match line {
                Ok(line) => sessions.take_inference(&line.escrow, line.nonce, line.inference.as_ref(), names),
                Err(why) => {
                    sessions.skip_inference();
                    return Err(why);
                }
            }
            Ok(())
        });
        self.references(snapshots, &sessions);
        sessions.finish_diffs(self.reader);
        sessions
    }

    /// A snapshot refers to lines: those must be there.
    fn references(&mut self, snapshots: &BTreeMap<Moment, Snapshot>, sessions: &Sessions) {
        let logs = snapshots.values().flat_map(|snapshot| &snapshot.hosts).flat_map(|host| &host.escrows);
        let spans = logs.flat_map(|log| &log.log);
        let diffs = spans.map(|span| span.first.saturating_add(span.count).saturating_sub(1)).max();
        let inferences = snapshots.values().map(|snapshot| snapshot.inference_lines).max();
        for (name, wanted, there) in
            [(DIFFS, diffs, sessions.lines()), (INFERENCES, inferences, sessions.inference_lines())]
        {
            let wanted = wanted.unwrap_or_default();
            if wanted > there {
                let text = format!("snapshots refer to line {wanted}, {there} are there");
                self.missing.entry(name.to_owned()).or_insert(text);
            }
        }
    }

    fn plan(&mut self, ids: &Ids, usual_tokens: u32) -> Plan {
        let mut plan = Plan::new(self.cap(PLAN), usual_tokens);
        self.each(PLAN, |raw, _, _| {
            let line: PlanLine<'_> = parse(raw.bytes)?;
            not_newer(line.v)?;
            plan.take(&line, ids);
            Ok(())
        });
        plan
    }

    fn records(&mut self, ids: &Ids, planned: u64) -> Records {
        let mut records = Records::new(self.cap(REQUESTS).min(planned));
        self.each(REQUESTS, |raw, names, _| {
            let line: RecordLine<'_> = parse(raw.bytes)?;
            not_newer(line.v)?;
            records.take(&line, ids, names);
            Ok(())
        });
        records
    }

    fn hits(&mut self, ids: &Ids) -> Hits {
        let mut hits = Hits::default();
        self.each(HITS, |raw, names, _| {
            hits.take(&parse_any::<HitLine<'_>>(raw.bytes)?, ids, names);
            Ok(())
        });
        hits.finish();
        hits
    }

    fn allocator(&mut self) -> Allocator {
        let mut allocator = Allocator::new(self.cap(DAPI_CALLS));
        self.each(DAPI_CALLS, |raw, names, _| {
            allocator.take(&parse::<DapiLine<'_>>(raw.bytes)?, names);
            Ok(())
        });
        allocator
    }

    /// Calls of allocator and chain that are not as the rules about them select.
    fn unlike_rules(&mut self, run: &RunInfo, hits: &Hits) -> Vec<String> {
        let mut ordinals = OrdinalFold::new(&run.resolved);
        if ordinals.needs_dapi() {
            self.each(DAPI_CALLS, |raw, _, _| {
                ordinals.take_dapi(&parse_any(raw.bytes)?);
                Ok(())
            });
        }
        if ordinals.needs_chain() {
            self.each(CHAIN_CALLS, |raw, _, _| {
                ordinals.take_chain(&parse_any(raw.bytes)?);
                Ok(())
            });
        }
        ordinals.finish(hits, &self.names)
    }

    fn joined(&mut self, ids: &Ids, planned: u64) -> JoinedRows {
        let mut joined = JoinedRows::new(self.cap(ACCOUNTING).min(planned));
        self.each(ACCOUNTING, |raw, names, reader| {
            let line: JoinedLine<'_> = parse(raw.bytes)?;
            not_newer(line.v)?;
            joined.take(&line, raw.offset, ids, names, reader)
        });
        joined
    }

    fn calls(
        &mut self,
        run: &RunInfo,
        ids: &Ids,
        joined: &JoinedRows,
        seen: (&Hits, &Records),
        allocator: &mut Allocator,
    ) -> Calls {
        let mut fold = CallFold::new(run, ids, joined, seen, self.cap(NODE_CALLS));
        self.each(NODE_CALLS, |raw, names, _| {
            fold.take(&parse::<NodeCallLine<'_>>(raw.bytes)?, allocator, names);
            Ok(())
        });
        fold.finish(&self.names)
    }

    fn applied(&mut self) -> Value {
        let why = match self.reader.json(FAULTS_APPLIED) {
            Ok(Some(applied)) => return applied,
            Ok(None) => "the file is absent".to_owned(),
            Err(bad) => bad.why,
        };
        self.missing.insert(FAULTS_APPLIED.to_owned(), why);
        Value::Null
    }
}

fn read_run(reader: &RunReader) -> Result<RunInfo, NoRun> {
    let text = match reader.text(RUN) {
        Ok(Some(text)) => text,
        Ok(None) => return Err(NoRun(format!("{RUN} is absent: this is no run directory"))),
        Err(bad) => return Err(NoRun(format!("{RUN}: {}", bad.why))),
    };
    /// The version alone: a newer file may have keys that this build can't know.
    #[derive(serde::Deserialize)]
    struct Version {
        v: u32,
    }
    if let Ok(Version { v }) = serde_yaml::from_str(&text)
        && v > EVIDENCE_VERSION
    {
        return Err(NoRun(format!("{RUN} has {}", newer(v, EVIDENCE_VERSION))));
    }
    serde_yaml::from_str(&text).map_err(|error| NoRun(format!("{RUN}: {error}")))
}

fn newer(version: u32, known: u32) -> String {
    format!("format version {version}, this build reads up to {known}")
}

/// Lines of a file that could not be used.
#[derive(Debug, Default)]
struct Damage {
    named: Vec<String>,
    count: u64,
}

impl Damage {
    fn add(&mut self, line: u64, why: &str) {
        self.count += 1;
        if self.named.len() < BAD_LINES_NAMED_MAX {
            self.named.push(format!("line {line}: {why}"));
        }
    }

    fn note(self, name: &str, missing: &mut BTreeMap<String, String>) {
        if self.count > 0 {
            let text = format!("{} damaged lines ({})", self.count, self.named.join("; "));
            missing.insert(name.to_owned(), text);
        }
    }
}

/// Lines of a newer format are not used: a field may mean something else there.
fn not_newer(version: u32) -> Result<(), String> {
    if version > EVIDENCE_VERSION { Err(newer(version, EVIDENCE_VERSION)) } else { Ok(()) }
}

/// The same for lines that others refer to by their number.
fn numbered(version: u32, number: u64, place: u64) -> Result<(), String> {
    not_newer(version)?;
    if number == place { Ok(()) } else { Err(format!("it is number {number}")) }
}

/// Reads a small JSON Lines file whole.
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
    let mut damage = Damage::default();
    for (line, number) in lines.zip(1..) {
        match line {
            Ok(value) => match not_newer(version(&value).unwrap_or_default()) {
                Ok(()) => read.push(value),
                Err(why) => damage.add(number, &why),
            },
            Err(line) => damage.add(line.line, &line.why),
        }
    }
    damage.note(name, missing);
    read
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

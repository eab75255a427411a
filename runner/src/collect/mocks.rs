//! Streams the mocks' logs into the run directory while the run goes on, so that a killed runner leaves them.
//!
//! A mock keeps its newest entries in memory, and writes all of them into a folder of the run when it was given one
//! (`--journal`): what a process that has ended had not shown yet is read there. Without such a folder, or when the
//! file can't be read, the end of a process is a stated gap.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};

use evidence::rundir::{CHAIN_CALLS, DAPI_CALLS, HITS, LineWriter, NODE_CALLS, RunDir};
use scenario::control::{ChainCallRecord, DapiCallRecord, Hit, NodeCall, Page};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::snapshot::Mocks;
use crate::control::{Control, PAGE_LEN};
use crate::error::RunnerError;

/// Pages read of one log at one time; a mock can't keep the runner busy for ever.
const PAGES_MAX: u32 = 400;

/// Where reading of one log stands.
#[derive(Debug)]
struct Cursor {
    /// `hits` or `calls`.
    log: &'static str,
    next: u64,
    /// Why the latest look gave nothing; the log itself is still there.
    failed: Option<String>,
    /// What is gone for ever, in words.
    lost: Option<String>,
}

impl Cursor {
    const fn new(log: &'static str) -> Self {
        Self { log, next: 0, failed: None, lost: None }
    }
}

/// The two logs of one mock process. After a restart it numbers from 1 again: `offset` keeps numbers unique in the
/// files.
#[derive(Debug)]
struct Source {
    kind: &'static str,
    hits: Cursor,
    calls: Cursor,
    offset: u64,
    highest: u64,
    /// Which process it is: its start as its pages give it. 0: none was read yet.
    started_unix_us: u64,
}

impl Source {
    const fn new(kind: &'static str) -> Self {
        Self {
            kind,
            hits: Cursor::new("hits"),
            calls: Cursor::new("calls"),
            offset: 0,
            highest: 0,
            started_unix_us: 0,
        }
    }

    /// The same mock in a new process: what was lost stays lost.
    fn again(&self) -> Self {
        let mut again = Self { offset: self.highest, highest: self.highest, ..Self::new(self.kind) };
        again.hits.lost.clone_from(&self.hits.lost);
        again.calls.lost.clone_from(&self.calls.lost);
        again
    }
}

/// Tails hits and calls of all mocks.
#[derive(Debug)]
pub struct MockLogs {
    files: Files,
    sources: BTreeMap<String, Source>,
    /// Services that were frozen on purpose: their logs wait in them.
    frozen: BTreeSet<String>,
    /// Fault hits read so far.
    pub hits_read: u64,
}

/// What becomes of hits that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hits {
    Keep,
    PassOver,
}

/// Where the entries go.
#[derive(Debug)]
struct Files {
    hits: LineWriter,
    node_calls: LineWriter,
    dapi_calls: LineWriter,
    chain_calls: LineWriter,
}

impl MockLogs {
    /// Opens the files.
    ///
    /// # Errors
    /// [`RunnerError::RunDir`].
    pub fn open(dir: &RunDir) -> Result<Self, RunnerError> {
        let files = Files {
            hits: dir.append(HITS)?,
            node_calls: dir.append(NODE_CALLS)?,
            dapi_calls: dir.append(DAPI_CALLS)?,
            chain_calls: dir.append(CHAIN_CALLS)?,
        };
        Ok(Self { files, sources: BTreeMap::new(), frozen: BTreeSet::new(), hits_read: 0 })
    }

    /// A service was frozen: a mock among them is not asked until it is thawed, and nothing of it is missing.
    pub fn froze(&mut self, service: &str) {
        self.frozen.insert(service.to_owned());
    }

    /// Whether it was frozen and not thawed: it answers nothing.
    #[must_use]
    pub fn is_frozen(&self, service: &str) -> bool {
        self.frozen.contains(service)
    }

    /// A service goes on.
    pub fn thawed(&mut self, service: &str) {
        self.frozen.remove(service);
    }

    /// A mock process has ended: the rest of its logs is in its journal.
    ///
    /// # Errors
    /// [`RunnerError::RunDir`] when a file can't be written.
    pub fn ended(&mut self, service: &str, mocks: &Mocks) -> Result<(), RunnerError> {
        self.thawed(service);
        let Some(source) = self.sources.get_mut(service) else { return Ok(()) };
        let folder = mocks.journal.as_ref().map(|folder| folder.join(service));
        self.hits_read += match source.kind {
            "mock-openai" => rest::<NodeCall>(source, folder.as_deref(), &mut self.files)?,
            "mock-dapi" => rest::<DapiCallRecord>(source, folder.as_deref(), &mut self.files)?,
            _ => rest::<ChainCallRecord>(source, folder.as_deref(), &mut self.files)?,
        };
        Ok(())
    }

    /// A mock process was started again: its logs begin anew.
    pub fn restarted(&mut self, service: &str) {
        if let Some(source) = self.sources.get_mut(service) {
            *source = source.again();
        }
    }

    /// Reads what is new in every log.
    ///
    /// # Errors
    /// [`RunnerError::RunDir`] when a file can't be written. A mock that doesn't answer is noted.
    pub async fn read(&mut self, mocks: &Mocks) -> Result<(), RunnerError> {
        self.look(mocks, Hits::Keep).await
    }

    /// Leaves out the hits that are there by now: mocks that were there before this run have seen others, perhaps with the
    /// same requests. Calls name their run by its salt and are held against the counters of the whole process.
    ///
    /// # Errors
    /// As [`MockLogs::read`].
    pub async fn pass_over(&mut self, mocks: &Mocks) -> Result<(), RunnerError> {
        self.look(mocks, Hits::PassOver).await?;
        self.hits_read = 0;
        for source in self.sources.values_mut() {
            // What fell out of a memory before this run began is no loss of its own.
            source.hits.lost = None;
        }
        Ok(())
    }

    async fn look(&mut self, mocks: &Mocks, hits: Hits) -> Result<(), RunnerError> {
        for pool in &mocks.openai {
            self.source::<NodeCall>("mock-openai", &pool.service, &pool.control, hits).await?;
        }
        if let Some(dapi) = &mocks.dapi {
            self.source::<DapiCallRecord>("mock-dapi", "mock-dapi", dapi, hits).await?;
        }
        if let Some(chain) = &mocks.chain {
            self.source::<ChainCallRecord>("mock-chain", "mock-chain", chain, hits).await?;
        }
        Ok(())
    }

    /// Reads for the last time: what a mock that has gone away does not show is looked for in its journal.
    ///
    /// # Errors
    /// As [`MockLogs::read`].
    pub async fn finish(&mut self, mocks: &Mocks) -> Result<(), RunnerError> {
        self.read(mocks).await?;
        let silent = |source: &Source| source.hits.failed.is_some() || source.calls.failed.is_some();
        let silent: Vec<String> =
            self.sources.iter().filter(|(_, source)| silent(source)).map(|(name, _)| name.clone()).collect();
        silent.iter().try_for_each(|service| self.ended(service, mocks))
    }

    /// What could not be had, by `<mock>/<log>`, in words.
    #[must_use]
    pub fn missing(&self) -> Vec<(String, String)> {
        let logs = self.sources.values().flat_map(|source| {
            [&source.hits, &source.calls].map(|cursor| (format!("{}/{}", source.kind, cursor.log), cursor))
        });
        let mut missing: Vec<(String, String)> = Vec::new();
        for (what, cursor) in logs {
            let why = cursor.lost.iter().chain(&cursor.failed).cloned();
            missing.extend(why.map(|why| (what.clone(), why)));
        }
        missing
    }

    /// Reads both logs of a process.
    async fn source<C: Serialize + DeserializeOwned + Numbered>(
        &mut self,
        kind: &'static str,
        service: &str,
        control: &Control,
        of_hits: Hits,
    ) -> Result<(), RunnerError> {
        if self.frozen.contains(service) {
            return Ok(());
        }
        let source = self.sources.entry(service.to_owned()).or_insert_with(|| Source::new(kind));
        let offset = source.offset;
        let out = (of_hits == Hits::Keep).then_some(&mut self.files.hits);
        let hits = drain::<Hit>(control, &mut source.hits, offset, out).await?;
        let out = Some(self.files.calls(kind));
        let calls = drain::<C>(control, &mut source.calls, offset, out).await?;
        source.highest = source.highest.max(hits.highest).max(calls.highest);
        source.started_unix_us =
            calls.started_unix_us.or(hits.started_unix_us).unwrap_or(source.started_unix_us);
        self.hits_read += hits.read;
        Ok(())
    }
}

impl Files {
    fn calls(&mut self, kind: &str) -> &mut LineWriter {
        match kind {
            "mock-openai" => &mut self.node_calls,
            "mock-dapi" => &mut self.dapi_calls,
            _ => &mut self.chain_calls,
        }
    }
}

/// An entry with a number of its process.
trait Numbered {
    /// Its number in the log of its process.
    fn number(&self) -> u64;

    /// Adds the offset to every number that the process counted; gives the highest.
    fn renumber(&mut self, offset: u64) -> u64;
}

impl Numbered for Hit {
    fn number(&self) -> u64 {
        self.seq
    }

    fn renumber(&mut self, offset: u64) -> u64 {
        self.seq = self.seq.saturating_add(offset);
        self.call_seq = self.call_seq.saturating_add(offset);
        self.seq.max(self.call_seq)
    }
}

impl Numbered for NodeCall {
    fn number(&self) -> u64 {
        self.seq
    }

    fn renumber(&mut self, offset: u64) -> u64 {
        self.seq = self.seq.saturating_add(offset);
        self.call = self.call.saturating_add(offset);
        self.seq.max(self.call)
    }
}

impl Numbered for DapiCallRecord {
    fn number(&self) -> u64 {
        self.seq
    }

    fn renumber(&mut self, offset: u64) -> u64 {
        self.seq = self.seq.saturating_add(offset);
        self.seq
    }
}

impl Numbered for ChainCallRecord {
    fn number(&self) -> u64 {
        self.seq
    }

    fn renumber(&mut self, offset: u64) -> u64 {
        self.seq = self.seq.saturating_add(offset);
        self.seq
    }
}

/// What one look at a log gave.
#[derive(Debug, Default)]
struct Looked {
    read: u64,
    highest: u64,
    started_unix_us: Option<u64>,
}

async fn drain<T: Serialize + DeserializeOwned + Numbered>(
    control: &Control,
    cursor: &mut Cursor,
    offset: u64,
    mut out: Option<&mut LineWriter>,
) -> Result<Looked, RunnerError> {
    let mut looked = Looked::default();
    cursor.failed = None;
    for _ in 0..PAGES_MAX {
        let mut page: Page<T> = match control.page(cursor.log, cursor.next).await {
            Ok(page) => page,
            Err(why) => {
                cursor.failed = Some(why);
                break;
            }
        };
        looked.started_unix_us = Some(page.started_unix_us);
        let count = page.items.len() as u64;
        for item in &mut page.items {
            looked.highest = looked.highest.max(item.renumber(offset));
            if let Some(out) = &mut out {
                out.write_buffered(item)?;
            }
        }
        looked.read += count;
        // What fell out after it was read is no loss.
        let unseen = page.dropped.saturating_sub(cursor.next);
        if unseen > 0 && cursor.lost.is_none() {
            cursor.lost =
                Some(format!("{unseen} entries fell out of the mock's memory before they were read"));
        }
        cursor.next = page.next;
        if count < PAGE_LEN {
            break;
        }
    }
    if let Some(out) = out {
        out.flush()?;
    }
    Ok(looked)
}

/// Reads what a process that has ended left in its journal beyond what it had shown; gives the number of hits.
fn rest<C: Serialize + DeserializeOwned + Numbered>(
    source: &mut Source,
    folder: Option<&Path>,
    files: &mut Files,
) -> Result<u64, RunnerError> {
    let offset = source.offset;
    let file = |log: &str| {
        let folder = folder.ok_or("this stack keeps no journal of it")?;
        journal(folder, source.started_unix_us, log)
    };
    let (of_hits, of_calls) = (file("hits"), file("calls"));
    let hits = from_file::<Hit>(of_hits, &mut source.hits, offset, &mut files.hits)?;
    let out = files.calls(source.kind);
    let calls = from_file::<C>(of_calls, &mut source.calls, offset, out)?;
    source.highest = source.highest.max(hits.highest).max(calls.highest);
    Ok(hits.read)
}

/// File of a log of one process: `<start>-<log>.jsonl`. A process that never showed its start left the newest.
fn journal(folder: &Path, started_unix_us: u64, log: &str) -> Result<PathBuf, String> {
    if started_unix_us > 0 {
        return Ok(folder.join(format!("{started_unix_us}-{log}.jsonl")));
    }
    let names = std::fs::read_dir(folder).map_err(|error| error.to_string())?.flatten();
    let files = names.map(|entry| entry.path()).filter(|path| {
        path.file_name().is_some_and(|name| name.to_string_lossy().ends_with(&format!("-{log}.jsonl")))
    });
    files.max().ok_or_else(|| "it left no journal".to_owned())
}

fn from_file<T: Serialize + DeserializeOwned + Numbered>(
    file: Result<PathBuf, String>,
    cursor: &mut Cursor,
    offset: u64,
    out: &mut LineWriter,
) -> Result<Looked, RunnerError> {
    let mut looked = Looked::default();
    cursor.failed = None;
    let opened = file.and_then(|path| std::fs::File::open(path).map_err(|error| error.to_string()));
    let lines = match opened {
        Ok(file) => BufReader::new(file).split(b'\n'),
        Err(why) => {
            let text = format!("the process ended, and what it logged after the last look is gone: {why}");
            cursor.lost.get_or_insert(text);
            return Ok(looked);
        }
    };
    for line in lines {
        // A line that was cut by the end of the process was never shown to anybody.
        let Some(mut item) = line.ok().and_then(|line| serde_json::from_slice::<T>(&line).ok()) else {
            break;
        };
        if item.number() <= cursor.next {
            continue;
        }
        cursor.next = item.number();
        looked.highest = looked.highest.max(item.renumber(offset));
        out.write_buffered(&item)?;
        looked.read += 1;
    }
    out.flush()?;
    Ok(looked)
}

//! Streams the mocks' logs into the run directory while the run goes on, so that a killed runner leaves them.

use std::collections::BTreeMap;

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
    name: String,
    next: u64,
    dropped: u64,
}

impl Cursor {
    fn new(kind: &str, log: &str) -> Self {
        Self { name: format!("{kind}/{log}"), next: 0, dropped: 0 }
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
}

impl Source {
    fn new(kind: &'static str) -> Self {
        Self {
            kind,
            hits: Cursor::new(kind, "hits"),
            calls: Cursor::new(kind, "calls"),
            offset: 0,
            highest: 0,
        }
    }
}

/// Tails hits and calls of all mocks.
#[derive(Debug)]
pub struct MockLogs {
    hits: LineWriter,
    node_calls: LineWriter,
    dapi_calls: LineWriter,
    chain_calls: LineWriter,
    sources: BTreeMap<String, Source>,
    /// Fault hits read so far.
    pub hits_read: u64,
    /// What could not be read, in words, once per log.
    pub missing: Vec<(String, String)>,
}

impl MockLogs {
    /// Opens the files.
    ///
    /// # Errors
    /// [`RunnerError::RunDir`].
    pub fn open(dir: &RunDir) -> Result<Self, RunnerError> {
        Ok(Self {
            hits: dir.append(HITS)?,
            node_calls: dir.append(NODE_CALLS)?,
            dapi_calls: dir.append(DAPI_CALLS)?,
            chain_calls: dir.append(CHAIN_CALLS)?,
            sources: BTreeMap::new(),
            hits_read: 0,
            missing: Vec::new(),
        })
    }

    /// A mock process was started again: its logs begin anew.
    pub fn restarted(&mut self, service: &str) {
        if let Some(source) = self.sources.get_mut(service) {
            *source = Source { offset: source.highest, highest: source.highest, ..Source::new(source.kind) };
        }
    }

    /// Reads what is new in every log.
    ///
    /// # Errors
    /// [`RunnerError::RunDir`] when a file can't be written. A mock that doesn't answer is noted in `missing`.
    pub async fn read(&mut self, mocks: &Mocks) -> Result<(), RunnerError> {
        for pool in &mocks.openai {
            let calls = &mut self.node_calls;
            let at = ("mock-openai", pool.service.as_str(), &pool.control);
            self.hits_read +=
                read_source::<NodeCall>(at, &mut self.sources, &mut self.hits, calls, &mut self.missing)
                    .await?;
        }
        if let Some(dapi) = &mocks.dapi {
            let at = ("mock-dapi", "mock-dapi", dapi);
            let calls = &mut self.dapi_calls;
            self.hits_read += read_source::<DapiCallRecord>(
                at,
                &mut self.sources,
                &mut self.hits,
                calls,
                &mut self.missing,
            )
            .await?;
        }
        if let Some(chain) = &mocks.chain {
            let at = ("mock-chain", "mock-chain", chain);
            let calls = &mut self.chain_calls;
            self.hits_read += read_source::<ChainCallRecord>(
                at,
                &mut self.sources,
                &mut self.hits,
                calls,
                &mut self.missing,
            )
            .await?;
        }
        Ok(())
    }
}

/// An entry with a number of its process.
trait Numbered {
    /// Adds the offset to every number that the process counted; gives the highest.
    fn renumber(&mut self, offset: u64) -> u64;
}

impl Numbered for Hit {
    fn renumber(&mut self, offset: u64) -> u64 {
        self.seq += offset;
        self.call_seq += offset;
        self.seq.max(self.call_seq)
    }
}

impl Numbered for NodeCall {
    fn renumber(&mut self, offset: u64) -> u64 {
        self.seq += offset;
        self.call += offset;
        self.seq.max(self.call)
    }
}

impl Numbered for DapiCallRecord {
    fn renumber(&mut self, offset: u64) -> u64 {
        self.seq += offset;
        self.seq
    }
}

impl Numbered for ChainCallRecord {
    fn renumber(&mut self, offset: u64) -> u64 {
        self.seq += offset;
        self.seq
    }
}

/// Reads both logs of a process; gives the number of hits read.
async fn read_source<C: Serialize + DeserializeOwned + Numbered>(
    (kind, service, control): (&'static str, &str, &Control),
    sources: &mut BTreeMap<String, Source>,
    hits: &mut LineWriter,
    calls: &mut LineWriter,
    missing: &mut Vec<(String, String)>,
) -> Result<u64, RunnerError> {
    let source = sources.entry(service.to_owned()).or_insert_with(|| Source::new(kind));
    let offset = source.offset;
    let (read, highest) = drain::<Hit>(control, &mut source.hits, "hits", offset, hits, missing).await?;
    source.highest = source.highest.max(highest);
    let (_, highest) = drain::<C>(control, &mut source.calls, "calls", offset, calls, missing).await?;
    source.highest = source.highest.max(highest);
    Ok(read)
}

async fn drain<T: Serialize + DeserializeOwned + Numbered>(
    control: &Control,
    cursor: &mut Cursor,
    log: &str,
    offset: u64,
    out: &mut LineWriter,
    missing: &mut Vec<(String, String)>,
) -> Result<(u64, u64), RunnerError> {
    let (mut read, mut highest) = (0, 0);
    for _ in 0..PAGES_MAX {
        let mut page: Page<T> = match control.page(log, cursor.next).await {
            Ok(page) => page,
            Err(why) => {
                note(missing, cursor.name.clone(), why);
                break;
            }
        };
        let count = page.items.len() as u64;
        for item in &mut page.items {
            highest = highest.max(item.renumber(offset));
            out.write_buffered(item)?;
        }
        read += count;
        cursor.next = page.next;
        if page.dropped > cursor.dropped {
            cursor.dropped = page.dropped;
            let why = format!("{} entries fell out of the mock's ring", page.dropped);
            note(missing, cursor.name.clone(), why);
        }
        if count < PAGE_LEN {
            break;
        }
    }
    out.flush()?;
    Ok((read, highest))
}

/// Keeps the latest reason per log.
fn note(missing: &mut Vec<(String, String)>, what: String, why: String) {
    match missing.iter_mut().find(|(known, _)| *known == what) {
        Some((_, reason)) => *reason = why,
        None => missing.push((what, why)),
    }
}

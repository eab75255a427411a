//! Streams the mocks' logs into the run directory while the run goes on, so that a killed runner leaves them.

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
    log: &'static str,
    mock: &'static str,
    next: u64,
    dropped: u64,
}

/// Tails hits and calls of all mocks.
#[derive(Debug)]
pub struct MockLogs {
    hits: LineWriter,
    node_calls: LineWriter,
    dapi_calls: LineWriter,
    chain_calls: LineWriter,
    cursors: [Cursor; 6],
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
        let cursor = |mock, log| Cursor { log, mock, next: 0, dropped: 0 };
        Ok(Self {
            hits: dir.append(HITS)?,
            node_calls: dir.append(NODE_CALLS)?,
            dapi_calls: dir.append(DAPI_CALLS)?,
            chain_calls: dir.append(CHAIN_CALLS)?,
            cursors: [
                cursor("openai", "hits"),
                cursor("openai", "calls"),
                cursor("dapi", "hits"),
                cursor("dapi", "calls"),
                cursor("chain", "hits"),
                cursor("chain", "calls"),
            ],
            hits_read: 0,
            missing: Vec::new(),
        })
    }

    /// Reads what is new in every log.
    ///
    /// # Errors
    /// [`RunnerError::RunDir`] when a file can't be written. A mock that doesn't answer is noted in `missing`.
    pub async fn read(&mut self, mocks: &Mocks) -> Result<(), RunnerError> {
        let [openai_hits, openai_calls, dapi_hits, dapi_calls, chain_hits, chain_calls] = &mut self.cursors;
        let missing = &mut self.missing;
        for (cursor, control) in
            [(openai_hits, &mocks.openai), (dapi_hits, &mocks.dapi), (chain_hits, &mocks.chain)]
        {
            self.hits_read += drain::<Hit>(control, cursor, &mut self.hits, missing).await?;
        }
        drain::<NodeCall>(&mocks.openai, openai_calls, &mut self.node_calls, missing).await?;
        drain::<DapiCallRecord>(&mocks.dapi, dapi_calls, &mut self.dapi_calls, missing).await?;
        drain::<ChainCallRecord>(&mocks.chain, chain_calls, &mut self.chain_calls, missing).await?;
        Ok(())
    }
}

async fn drain<T: Serialize + DeserializeOwned>(
    control: &Control,
    cursor: &mut Cursor,
    out: &mut LineWriter,
    missing: &mut Vec<(String, String)>,
) -> Result<u64, RunnerError> {
    let name = format!("mock-{}/{}", cursor.mock, cursor.log);
    let mut read = 0;
    for _ in 0..PAGES_MAX {
        let page: Page<T> = match control.page(cursor.log, cursor.next).await {
            Ok(page) => page,
            Err(why) => {
                note(missing, name, why);
                break;
            }
        };
        let count = page.items.len() as u64;
        for item in &page.items {
            out.write_buffered(item)?;
        }
        read += count;
        cursor.next = page.next;
        if page.dropped > cursor.dropped {
            cursor.dropped = page.dropped;
            note(missing, name.clone(), format!("{} entries fell out of the mock's ring", page.dropped));
        }
        if count < PAGE_LEN {
            break;
        }
    }
    out.flush()?;
    Ok(read)
}

/// Keeps the latest reason per log.
fn note(missing: &mut Vec<(String, String)>, what: String, why: String) {
    match missing.iter_mut().find(|(known, _)| *known == what) {
        Some((_, reason)) => *reason = why,
        None => missing.push((what, why)),
    }
}

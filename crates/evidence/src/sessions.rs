//! `snapshots/diffs.jsonl` and `snapshots/inferences.jsonl`: what all snapshots share, stored once.
//!
//! A diff that several hosts hold, or that stands in several snapshots, is one line; a host's log in a snapshot is a
//! list of line spans. An inference is a line whenever it looks other than before; a snapshot says how many lines
//! stood when it was taken, and the last line of a nonce up to there is its state.

use std::collections::{BTreeMap, HashMap};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::EVIDENCE_VERSION;
use crate::rundir::{DIFFS, INFERENCES, LineWriter, RunDir, RunDirError, RunReader};
use crate::snapshot::{Diff, Inference, SNAPSHOT_VERSION, Snapshot};

/// One line of `snapshots/diffs.jsonl`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DiffLine {
    /// Format version.
    pub v: u32,
    /// Number of this line, from 1: a lost or moved line shows.
    pub n: u64,
    /// Escrow.
    pub escrow: String,
    /// The diff.
    pub diff: Diff,
}

/// One line of `snapshots/inferences.jsonl`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InferenceLine {
    /// Format version.
    pub v: u32,
    /// Number of this line, from 1: a lost or moved line shows.
    pub n: u64,
    /// Escrow.
    pub escrow: String,
    /// Nonce.
    pub nonce: u64,
    /// How it looks from here on; `None` when the gateway shows it no more.
    pub inference: Option<Inference>,
}

/// Lines that follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(from = "(u64, u64)", into = "(u64, u64)")]
#[schemars(with = "(u64, u64)")]
pub struct Span {
    /// Number of the first line, from 1.
    pub first: u64,
    /// How many.
    pub count: u64,
}

impl From<(u64, u64)> for Span {
    fn from((first, count): (u64, u64)) -> Self {
        Self { first, count }
    }
}

impl From<Span> for (u64, u64) {
    fn from(span: Span) -> Self {
        (span.first, span.count)
    }
}

/// Adds a line to a log.
pub fn push_line(log: &mut Vec<Span>, line: u64) {
    match log.last_mut() {
        Some(span) if span.first + span.count == line => span.count += 1,
        _ => log.push(Span { first: line, count: 1 }),
    }
}

type Digest = [u8; 16];

fn digest<T: Serialize>(value: &T) -> Digest {
    // A type of this crate always has a JSON form; an empty one only makes two values look equal to themselves.
    let text = serde_json::to_vec(value).unwrap_or_default();
    let mut digest = Digest::default();
    digest.copy_from_slice(&blake3::hash(&text).as_bytes()[..16]);
    digest
}

/// Knows every diff that has a line.
#[derive(Debug, Default)]
pub struct DiffBook {
    escrows: BTreeMap<String, u32>,
    lines: HashMap<(u32, u64, Digest), u64>,
}

impl DiffBook {
    /// The line of a diff, and whether it is a new one that must be written.
    pub fn place(&mut self, escrow: &str, diff: &Diff) -> (u64, bool) {
        let known = self.escrows.len() as u32;
        let number = match self.escrows.get(escrow) {
            Some(number) => *number,
            None => *self.escrows.entry(escrow.to_owned()).or_insert(known),
        };
        let next = self.lines.len() as u64 + 1;
        let line = *self.lines.entry((number, diff.nonce, digest(diff))).or_insert(next);
        (line, line == next)
    }
}

/// Knows how every inference looked last.
#[derive(Debug, Default)]
pub struct InferenceBook {
    latest: BTreeMap<String, BTreeMap<u64, Digest>>,
}

impl InferenceBook {
    /// What changed since the last look, in order of nonce; `None` = gone.
    pub fn changes<'a>(
        &mut self,
        escrow: &str,
        now: &'a BTreeMap<u64, Inference>,
    ) -> Vec<(u64, Option<&'a Inference>)> {
        let latest = self.latest.entry(escrow.to_owned()).or_default();
        let mut changes = Vec::new();
        latest.retain(|nonce, _| {
            let stays = now.contains_key(nonce);
            if !stays {
                changes.push((*nonce, None));
            }
            stays
        });
        for (nonce, inference) in now {
            let digest = digest(inference);
            if latest.insert(*nonce, digest) != Some(digest) {
                changes.push((*nonce, Some(inference)));
            }
        }
        changes
    }
}

/// Writes both files while a run goes on.
#[derive(Debug)]
pub struct SessionLog {
    diffs: LineWriter,
    inferences: LineWriter,
    diff_book: DiffBook,
    inference_book: InferenceBook,
}

impl SessionLog {
    /// Opens both files of a new run.
    ///
    /// # Errors
    /// [`RunDirError::Io`].
    pub fn open(dir: &RunDir) -> Result<Self, RunDirError> {
        Ok(Self {
            diffs: dir.append(DIFFS)?,
            inferences: dir.append(INFERENCES)?,
            diff_book: DiffBook::default(),
            inference_book: InferenceBook::default(),
        })
    }

    /// The line of a diff; written when it is new.
    ///
    /// # Errors
    /// [`RunDirError`]; a full disk shows here.
    pub fn diff(&mut self, escrow: &str, diff: &Diff) -> Result<u64, RunDirError> {
        let (line, new) = self.diff_book.place(escrow, diff);
        if new {
            let (v, escrow, diff) = (EVIDENCE_VERSION, escrow.to_owned(), diff.clone());
            self.diffs.write_buffered(&DiffLine { v, n: line, escrow, diff })?;
        }
        Ok(line)
    }

    /// Notes how all inferences of an escrow look now.
    ///
    /// # Errors
    /// [`RunDirError`]; a full disk shows here.
    pub fn inferences(&mut self, escrow: &str, now: &BTreeMap<u64, Inference>) -> Result<(), RunDirError> {
        for (nonce, inference) in self.inference_book.changes(escrow, now) {
            self.inferences.write_buffered(&InferenceLine {
                v: EVIDENCE_VERSION,
                n: self.inferences.lines() + 1,
                escrow: escrow.to_owned(),
                nonce,
                inference: inference.cloned(),
            })?;
        }
        Ok(())
    }

    /// Moves diffs and inferences that stand in a snapshot into the files; what is left of it is its stored form. An
    /// escrow whose inferences could not be read keeps those of the snapshot before.
    ///
    /// # Errors
    /// [`RunDirError`]; a full disk shows here.
    pub fn store(&mut self, snapshot: &mut Snapshot) -> Result<(), RunDirError> {
        snapshot.v = SNAPSHOT_VERSION;
        for escrow in &mut snapshot.escrows {
            let name = format!("gateway/{}/debug/inferences", escrow.escrow);
            let now = std::mem::take(&mut escrow.inferences);
            if !snapshot.missing.iter().any(|missing| missing.what == name) {
                self.inferences(&escrow.escrow, &now)?;
            }
        }
        for log in snapshot.hosts.iter_mut().flat_map(|host| &mut host.escrows) {
            for diff in std::mem::take(&mut log.diffs) {
                push_line(&mut log.log, self.diff(&log.escrow, &diff)?);
            }
        }
        snapshot.inference_lines = self.inferences.lines();
        self.diffs.flush()?;
        self.inferences.flush()
    }
}

/// How the inferences of all escrows looked when a snapshot was taken, one after another as they changed: the last
/// call for a nonce is its state then. Works for the snapshots of version 1 too, which hold them.
pub fn each_inference(
    reader: &RunReader,
    snapshot: &Snapshot,
    mut each: impl FnMut(&str, u64, Option<&Inference>),
) {
    for escrow in &snapshot.escrows {
        escrow.inferences.iter().for_each(|(nonce, inference)| each(&escrow.escrow, *nonce, Some(inference)));
    }
    let lines = reader.lines::<InferenceLine>(INFERENCES).into_iter().flatten();
    let until = usize::try_from(snapshot.inference_lines).unwrap_or(usize::MAX);
    for line in lines.take(until).flatten() {
        each(&line.escrow, line.nonce, line.inference.as_ref());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::{HostEscrow, HostState, Moment};

    fn diff(nonce: u64, content: &str) -> Diff {
        Diff {
            nonce,
            content: content.to_owned(),
            state_hash: "s".to_owned(),
            post_state_root: "r".to_owned(),
            txs: Vec::new(),
        }
    }

    fn host(service: &str, diffs: Vec<Diff>) -> HostState {
        let log = HostEscrow { escrow: "7".to_owned(), diffs, ..HostEscrow::default() };
        HostState {
            service: service.to_owned(),
            participant: "p".to_owned(),
            escrows: vec![log],
            epoch: None,
        }
    }

    #[test]
    fn equal_diffs_are_one_line_and_others_are_not() {
        let base = tempfile::tempdir().unwrap();
        let dir = RunDir::create(base.path(), "r").unwrap();
        let mut log = SessionLog::open(&dir).unwrap();
        let mut snapshot = Snapshot::blank(Moment::Before, 0);
        snapshot.hosts = vec![
            host("host-0", vec![diff(1, "a"), diff(2, "b"), diff(3, "c")]),
            host("host-1", vec![diff(1, "a"), diff(2, "other"), diff(3, "c")]),
        ];
        log.store(&mut snapshot).unwrap();
        let spans = |host: usize| snapshot.hosts[host].escrows[0].log.clone();
        let span = |first, count| Span { first, count };
        assert_eq!(spans(0), [span(1, 3)]);
        assert_eq!(spans(1), [span(1, 1), span(4, 1), span(3, 1)]);
        let reader = RunReader::new(dir.root());
        let lines: Vec<DiffLine> = reader.lines(DIFFS).unwrap().map(Result::unwrap).collect();
        assert_eq!(lines.len(), 4);
        assert_eq!(lines[3].diff, diff(2, "other"));
    }

    #[test]
    fn an_inference_is_a_line_when_it_changes_or_goes() {
        let base = tempfile::tempdir().unwrap();
        let dir = RunDir::create(base.path(), "r").unwrap();
        let mut log = SessionLog::open(&dir).unwrap();
        let state = |status: &str| Inference { status: status.to_owned(), ..Inference::default() };
        let at = |map: &[(u64, &str)]| map.iter().map(|(n, s)| (*n, state(s))).collect::<BTreeMap<_, _>>();
        let mut lines = Vec::new();
        for now in [at(&[(1, "pending")]), at(&[(1, "pending"), (2, "pending")]), at(&[(2, "finished")])] {
            log.inferences("7", &now).unwrap();
            lines.push(log.inferences.lines());
        }
        assert_eq!(lines, [1, 2, 4], "1 pending; 2 pending; 1 gone and 2 finished");
        log.inferences.flush().unwrap();
        let mut snapshot = Snapshot::blank(Moment::DrainFinal, 0);
        let mut seen: BTreeMap<u64, Option<String>> = BTreeMap::new();
        for (until, wanted) in [(2, "pending"), (4, "finished")] {
            snapshot.inference_lines = until;
            each_inference(&RunReader::new(dir.root()), &snapshot, |_, nonce, state| {
                seen.insert(nonce, state.map(|state| state.status.clone()));
            });
            assert_eq!(seen[&2].as_deref(), Some(wanted));
        }
        assert_eq!(seen[&1], None);
    }
}

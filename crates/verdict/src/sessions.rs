//! Sessions as all snapshots show them together: each diff once, with its transactions in eight bytes; each inference
//! by what changed. Snapshots of version 1 hold both in themselves and are taken in the same way.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::BuildHasher;
use std::num::NonZeroU64;

use evidence::rundir::{DIFFS, RunReader};
use evidence::sessions::{DiffBook, DiffLine as WholeDiff, Span, push_line};
use evidence::snapshot::{Diff, Inference, Moment, Snapshot};

use crate::lines::{DiffLine, DiffPart, InferencePart, Text, TxPart};
use crate::table::{Fast, Name, Names, Table};

/// Fingerprint of a ghost: the constant body that the gateway signs for it (contract gateway 6.5).
const GHOST_PROMPT_HASH: &str = "48808fa46173e7fbca42ea98965dc6d8be18107425af188b38fb6c31d51ad0a2";
const GHOST_INPUT_LENGTH: u64 = 59;
const GHOST_MAX_TOKENS: u64 = 1;

/// Kinds of transactions that assertions tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Start of an inference.
    Start,
    /// Its receipt.
    ConfirmStart,
    /// Its end.
    Finish,
    /// Its end without an answer.
    Timeout,
    /// A validation.
    Validation,
    /// A vote about one.
    Vote,
    /// Anything else.
    Other,
}

impl Kind {
    fn of(word: &str) -> Self {
        match word {
            "start" => Self::Start,
            "confirm_start" => Self::ConfirmStart,
            "finish" => Self::Finish,
            "timeout" => Self::Timeout,
            "validation" => Self::Validation,
            "vote" => Self::Vote,
            _ => Self::Other,
        }
    }

    /// The word in evidence.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::ConfirmStart => "confirm_start",
            Self::Finish => "finish",
            Self::Timeout => "timeout",
            Self::Validation => "validation",
            Self::Vote => "vote",
            Self::Other => "another transaction",
        }
    }
}

/// A transaction of a diff.
#[derive(Clone, Copy, Debug)]
pub struct Tx {
    /// Kind.
    pub kind: Kind,
    /// Inference that it is about.
    pub inference: Option<u64>,
    /// Proposing slot.
    pub slot: Option<u32>,
    /// It names another escrow than that of its diff.
    pub foreign: bool,
}

/// A transaction as it is kept; numbers that do not fit lie in [`Sessions::wide`].
#[derive(Clone, Copy, Debug)]
struct SmallTx {
    inference: u32,
    slot: u16,
    kind: Kind,
    foreign: bool,
}

const NONE: u32 = u32::MAX;
const WIDE: u32 = u32::MAX - 1;
const NO_SLOT: u16 = u16::MAX;
const WIDE_SLOT: u16 = u16::MAX - 1;

/// A line of the shared log.
#[derive(Clone, Copy, Debug)]
struct Line {
    nonce: u64,
    txs_end: u32,
    escrow: Option<Name>,
}

/// What differs between diffs of one nonce.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Texts {
    /// Content.
    pub content: String,
    /// State hash after it.
    pub state_hash: String,
    /// State root in it.
    pub post_state_root: String,
}

/// An inference whose key fields are not what they were.
#[derive(Clone, Debug)]
pub struct Changed {
    /// The snapshot that shows it first.
    pub moment: Moment,
    /// Escrow.
    pub escrow: Name,
    /// Nonce.
    pub nonce: u64,
}

/// All sessions.
#[derive(Debug)]
pub struct Sessions {
    lines: Vec<Line>,
    txs: Vec<SmallTx>,
    wide: HashMap<usize, (Option<u64>, Option<u32>)>,
    /// Lines whose starts are not as they must be: see A4.
    pub bad_starts: BTreeSet<u64>,
    /// Lines of the nonces that have more than one.
    pub variants: BTreeMap<(Name, u64), Vec<u64>>,
    texts: HashMap<u64, Texts>,
    inferences: BTreeMap<Name, Inferences>,
    /// Inferences whose key fields changed.
    pub changed: Vec<Changed>,
    until: Vec<(Moment, u64)>,
    inference_lines: u64,
    cap: u64,
}

/// Inferences of one escrow.
#[derive(Debug)]
struct Inferences {
    keys: Table<NonZeroU64>,
    statuses: Table<Name>,
    ghosts: BTreeSet<u64>,
}

impl Sessions {
    /// Nothing yet. `cap` is more than the files can hold.
    pub(crate) fn new(snapshots: &BTreeMap<Moment, Snapshot>, cap: u64) -> Self {
        Self {
            lines: Vec::new(),
            txs: Vec::new(),
            wide: HashMap::new(),
            bad_starts: BTreeSet::new(),
            variants: BTreeMap::new(),
            texts: HashMap::new(),
            inferences: BTreeMap::new(),
            changed: Vec::new(),
            until: snapshots.iter().map(|(moment, snapshot)| (*moment, snapshot.inference_lines)).collect(),
            inference_lines: 0,
            cap,
        }
    }

    /// Takes the inline diffs and inferences of version 1, snapshot by snapshot, and leaves references.
    pub(crate) fn take_inline(&mut self, snapshots: &mut BTreeMap<Moment, Snapshot>, names: &mut Names) {
        let mut diffs = DiffBook::default();
        self.until = snapshots.keys().copied().zip(1..).collect();
        for (snapshot, number) in snapshots.values_mut().zip(1..) {
            // Each look stands for one line: all that it shows is shown at its own moment.
            snapshot.inference_lines = number;
            self.inference_lines = number;
            for escrow in &mut snapshot.escrows {
                self.take_look(&escrow.escrow, &std::mem::take(&mut escrow.inferences), names);
            }
            for log in snapshot.hosts.iter_mut().flat_map(|host| &mut host.escrows) {
                for diff in std::mem::take(&mut log.diffs) {
                    let (line, new) = diffs.place(&log.escrow, &diff);
                    push_line(&mut log.log, line);
                    if new {
                        self.take_diff(&log.escrow, &part(&diff), names);
                        self.keep_texts(line, &diff);
                    }
                }
            }
        }
    }

    /// All inferences of an escrow as one snapshot of version 1 shows them.
    fn take_look(&mut self, escrow: &str, now: &BTreeMap<u64, Inference>, names: &mut Names) {
        let name = names.name(escrow);
        let gone: Vec<u64> = self.inferences.get(&name).map_or_else(Vec::new, |known| {
            known.statuses.iter().map(|(nonce, _)| nonce).filter(|nonce| !now.contains_key(nonce)).collect()
        });
        gone.into_iter().for_each(|nonce| self.take_at(name, nonce, None, names));
        for (nonce, inference) in now {
            let part = InferencePart {
                status: Text::from(inference.status.as_str()),
                executor_slot: inference.executor_slot,
                prompt_hash: inference.prompt_hash.as_deref().map(Text::from),
                input_length: inference.input_length,
                max_tokens: inference.max_tokens,
                started_at: inference.started_at,
            };
            self.take_at(name, *nonce, Some(&part), names);
        }
    }

    fn keep_texts(&mut self, line: u64, diff: &Diff) {
        let texts = Texts {
            content: diff.content.clone(),
            state_hash: diff.state_hash.clone(),
            post_state_root: diff.post_state_root.clone(),
        };
        self.texts.insert(line, texts);
    }

    /// Diffs that begin, confirm, end and judge nothing, each once.
    #[must_use]
    pub fn idle(&self) -> u64 {
        let numbers = self.lines.iter().zip(1_u64..).filter(|(line, _)| line.escrow.is_some());
        numbers.filter(|(_, line)| self.txs(*line).all(|tx| tx.kind == Kind::Other)).count() as u64
    }

    /// Takes a line of the shared log in.
    pub(crate) fn take_line(&mut self, line: &DiffLine<'_>, names: &mut Names) {
        self.take_diff(&line.escrow, &line.diff, names);
    }

    /// A line that can't be read keeps its number.
    pub(crate) fn skip_line(&mut self) {
        let txs_end = self.txs.len() as u32;
        self.lines.push(Line { nonce: 0, txs_end, escrow: None });
    }

    fn take_diff(&mut self, escrow: &str, diff: &DiffPart<'_>, names: &mut Names) {
        let name = names.name(escrow);
        let number = self.lines.len() as u64 + 1;
        let mut starts = 0;
        let mut bad = false;
        for tx in &diff.txs {
            let kind = Kind::of(&tx.kind);
            if kind == Kind::Start {
                starts += 1;
                bad |= tx.inference != Some(diff.nonce);
            } else {
                bad |= tx.inference > Some(diff.nonce);
            }
            let foreign = tx.escrow.as_deref().is_some_and(|named| !named.is_empty() && named != escrow);
            self.push_tx(kind, tx, foreign);
        }
        if bad || starts > 1 {
            self.bad_starts.insert(number);
        }
        self.lines.push(Line { nonce: diff.nonce, txs_end: self.txs.len() as u32, escrow: Some(name) });
    }

    fn push_tx(&mut self, kind: Kind, tx: &TxPart<'_>, foreign: bool) {
        let inference = tx.inference.map_or(NONE, |id| u32::try_from(id).unwrap_or(WIDE).min(WIDE));
        let slot = tx.slot.map_or(NO_SLOT, |slot| u16::try_from(slot).unwrap_or(WIDE_SLOT).min(WIDE_SLOT));
        if inference == WIDE || slot == WIDE_SLOT {
            self.wide.insert(self.txs.len(), (tx.inference, tx.slot));
        }
        self.txs.push(SmallTx { inference, slot, kind, foreign });
    }

    /// Finds the nonces that have more than one line, and reads what differs between these lines.
    pub(crate) fn finish_diffs(&mut self, reader: &RunReader) {
        let mut last: BTreeMap<Name, Table<NonZeroU64>> = BTreeMap::new();
        for (line, number) in self.lines.iter().zip(1_u64..) {
            let (Some(escrow), Some(mark)) = (line.escrow, NonZeroU64::new(number)) else { continue };
            let of_escrow = last.entry(escrow).or_insert_with(|| Table::new(self.cap));
            if let Some(first) = of_escrow.insert(line.nonce, mark) {
                let lines = self.variants.entry((escrow, line.nonce)).or_insert_with(|| vec![first.get()]);
                lines.push(number);
            }
        }
        let wanted: BTreeSet<u64> = self.variants.values().flatten().copied().collect();
        if wanted.is_empty() || !self.texts.is_empty() {
            self.texts.retain(|number, _| wanted.contains(number));
            return;
        }
        let lines = reader.lines::<WholeDiff>(DIFFS).into_iter().flatten();
        for (line, number) in lines.zip(1_u64..).filter(|(_, number)| wanted.contains(number)) {
            if let Ok(line) = line {
                self.keep_texts(number, &line.diff);
            }
        }
    }

    /// Takes a line of the inferences in.
    pub(crate) fn take_inference(
        &mut self,
        escrow: &str,
        nonce: u64,
        part: Option<&InferencePart<'_>>,
        names: &mut Names,
    ) {
        self.inference_lines += 1;
        let escrow = names.name(escrow);
        self.take_at(escrow, nonce, part, names);
    }

    /// A line that can't be read counts.
    pub(crate) fn skip_inference(&mut self) {
        self.inference_lines += 1;
    }

    fn take_at(&mut self, escrow: Name, nonce: u64, part: Option<&InferencePart<'_>>, names: &mut Names) {
        let number = self.inference_lines;
        let Some((moment, _)) = self.until.iter().find(|(_, until)| number <= *until) else { return };
        let after_sync = *moment > Moment::DrainSynced;
        let cap = self.cap;
        let known = self.inferences.entry(escrow).or_insert_with(|| Inferences {
            keys: Table::new(cap),
            statuses: Table::new(cap),
            ghosts: BTreeSet::new(),
        });
        if let Some(part) = part {
            let key = key(part);
            match known.keys.get(nonce) {
                Some(first) if *first != key => {
                    self.changed.push(Changed { moment: *moment, escrow, nonce });
                }
                Some(_) => {}
                None => drop(known.keys.insert(nonce, key)),
            }
        }
        if after_sync {
            return;
        }
        match part {
            Some(part) => {
                known.statuses.insert(nonce, names.name(&part.status));
                if is_ghost(part) {
                    known.ghosts.insert(nonce);
                } else if !known.ghosts.is_empty() {
                    known.ghosts.remove(&nonce);
                }
            }
            None => {
                known.statuses.remove(nonce);
                known.ghosts.remove(&nonce);
            }
        }
    }

    /// Lines of the shared log that were read.
    #[must_use]
    pub fn lines(&self) -> u64 {
        self.lines.len() as u64
    }

    /// Lines of the inferences that were read.
    #[must_use]
    pub fn inference_lines(&self) -> u64 {
        self.inference_lines
    }

    /// Nonces of a host's log with the numbers of their lines.
    pub fn log<'s>(&'s self, log: &'s [Span]) -> impl Iterator<Item = (u64, u64)> + 's {
        let numbers = log.iter().flat_map(|span| span.first..span.first.saturating_add(span.count));
        let there =
            move |number: u64| Some((number, self.lines.get(usize::try_from(number).ok()?.checked_sub(1)?)?));
        numbers.map_while(there).map(|(number, line)| (number, line.nonce))
    }

    /// Transactions of a line.
    pub fn txs(&self, number: u64) -> impl Iterator<Item = Tx> {
        let end = |number: u64| {
            let line = usize::try_from(number).ok().and_then(|at| self.lines.get(at.checked_sub(1)?));
            line.map_or(0, |line| line.txs_end as usize)
        };
        let range = end(number.saturating_sub(1))..end(number);
        range.map(|at| {
            let small = self.txs[at];
            let (inference, slot) = self.wide.get(&at).copied().unwrap_or_else(|| {
                let inference = (small.inference != NONE).then_some(u64::from(small.inference));
                (inference, (small.slot != NO_SLOT).then_some(u32::from(small.slot)))
            });
            Tx { kind: small.kind, inference, slot, foreign: small.foreign }
        })
    }

    /// What differs between the lines of one nonce.
    #[must_use]
    pub fn texts(&self, number: u64) -> Option<&Texts> {
        self.texts.get(&number)
    }

    /// Whether an inference is a ghost after sync.
    #[must_use]
    pub fn is_ghost(&self, escrow: Name, nonce: u64) -> bool {
        self.inferences.get(&escrow).is_some_and(|known| known.ghosts.contains(&nonce))
    }

    /// Inferences by status after sync.
    #[must_use]
    pub fn statuses(&self, names: &Names) -> BTreeMap<String, u64> {
        let mut counts = BTreeMap::new();
        for status in self.inferences.values().flat_map(|known| known.statuses.values()) {
            *counts.entry(names.word(*status).to_owned()).or_default() += 1;
        }
        counts
    }
}

fn part(diff: &Diff) -> DiffPart<'_> {
    let txs = diff.txs.iter().map(|tx| TxPart {
        kind: Text::from(tx.kind.as_str()),
        inference: tx.inference,
        slot: tx.slot,
        escrow: tx.escrow.as_deref().map(Text::from),
    });
    DiffPart { nonce: diff.nonce, txs: txs.collect() }
}

/// Key fields of an inference never change once it is there; this stands for them.
fn key(part: &InferencePart<'_>) -> NonZeroU64 {
    let hash = part.prompt_hash.as_deref();
    let fields = (hash, part.executor_slot, part.started_at, part.max_tokens);
    NonZeroU64::new(Fast::default().hash_one(fields)).unwrap_or(NonZeroU64::MIN)
}

fn is_ghost(part: &InferencePart<'_>) -> bool {
    part.input_length == GHOST_INPUT_LENGTH
        && part.max_tokens == GHOST_MAX_TOKENS
        && part.prompt_hash.as_deref() == Some(GHOST_PROMPT_HASH)
}

//! What plan, client records and joined accounting say about each request, in a few words per request. Texts of single
//! failures are kept; everything else about a request is read again from its line when somebody asks.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::BuildHasher;

use evidence::accounting::{JoinWay, JoinedRequest};
use evidence::record::ClientClass;
use evidence::rundir::{ACCOUNTING, RunReader};
use scenario::control::NodeOutcome;
use scenario::fault::EndingKind;
use scenario::identity::RequestId;

use crate::format::{self, Finding};
use crate::lines::{AttemptPart, JoinedLine, PlanLine, RecordLine};
use crate::small::{CallList, RecordTable};
use crate::table::{Bits, Fast, Name, Names, Table};

/// Attempts or calls of one request; more are no evidence of a gateway that works.
const PARTS_MAX: usize = u16::MAX as usize;

/// The plan: its indexes and the ids that are not the ordinary ones.
#[derive(Clone, Debug)]
pub struct Plan {
    indexes: Bits,
    lines: u64,
    odd: BTreeMap<u64, String>,
    usual_tokens: u32,
    sizes: BTreeMap<u64, u32>,
}

impl Plan {
    pub(crate) fn new(cap: u64, usual_tokens: u32) -> Self {
        Self { indexes: Bits::new(cap), lines: 0, odd: BTreeMap::new(), usual_tokens, sizes: BTreeMap::new() }
    }

    pub(crate) fn take(&mut self, line: &PlanLine<'_>, ids: &Ids) {
        self.lines += 1;
        self.indexes.insert(line.index);
        if line.prompt.input_tokens != self.usual_tokens {
            self.sizes.insert(line.index, line.prompt.input_tokens);
        }
        if ids.index(&line.id) != Some(line.index) {
            self.odd.insert(line.index, line.id.to_string());
        }
    }

    /// Lines.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.lines
    }

    /// No line at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lines == 0
    }

    /// Whether an index is planned.
    #[must_use]
    pub fn has(&self, index: u64) -> bool {
        self.indexes.contains(index)
    }

    /// Whether it is the indexes from 0 to below `wanted`, each once.
    #[must_use]
    pub fn is_whole(&self, wanted: u64) -> bool {
        self.lines == wanted && self.indexes.len() == wanted && self.indexes.below(wanted) == wanted
    }

    /// Indexes whose prompt is not of the usual size, with their tokens.
    pub fn sizes(&self) -> impl Iterator<Item = (u64, u32)> {
        self.sizes.iter().map(|(index, tokens)| (*index, *tokens))
    }

    /// Its indexes in order.
    pub fn indexes(&self) -> impl Iterator<Item = u64> {
        self.indexes.iter()
    }

    /// The id of a planned request when it is not the ordinary one of its index.
    #[must_use]
    pub fn odd_id(&self, index: u64) -> Option<&str> {
        self.odd.get(&index).map(String::as_str)
    }
}

/// Ids of planned requests follow from scenario, seed and index.
#[derive(Clone, Debug)]
pub struct Ids {
    scenario: String,
    seed: u64,
    prefix: String,
}

impl Ids {
    pub(crate) fn new(scenario: &str, seed: u64) -> Self {
        Self { scenario: scenario.to_owned(), seed, prefix: format!("{scenario}-{seed}-") }
    }

    /// The ordinary id of an index.
    #[must_use]
    pub fn id(&self, index: u64) -> String {
        RequestId::new(&self.scenario, self.seed, index).as_str().to_owned()
    }

    /// The index whose ordinary id this is.
    #[must_use]
    pub fn index(&self, id: &str) -> Option<u64> {
        let digits = id.strip_prefix(self.prefix.as_str())?;
        let plain = digits.len() == 6 || (digits.len() > 6 && !digits.starts_with('0'));
        let digits = Some(digits).filter(|digits| plain && digits.bytes().all(|byte| byte.is_ascii_digit()));
        digits?.parse().ok()
    }
}

/// A time that may be absent, in eight bytes.
#[derive(Clone, Copy, Debug)]
pub struct Span(u64);

impl Span {
    pub(crate) fn of(us: Option<u64>) -> Self {
        Self(us.unwrap_or(u64::MAX))
    }

    fn between(start: Option<u64>, end: Option<u64>) -> Self {
        Self::of(start.zip(end).map(|(start, end)| end.saturating_sub(start)))
    }

    /// Microseconds.
    #[must_use]
    pub fn us(self) -> Option<u64> {
        (self.0 != u64::MAX).then_some(self.0)
    }
}

/// A client record.
#[derive(Clone, Copy, Debug)]
pub struct Record {
    /// The planned instant, from the wall anchor of loadgen.
    pub planned: Span,
    /// TTFT from the planned instant.
    pub ttft: Span,
    /// Total latency from the planned instant.
    pub latency: Span,
    /// Nonce that the answer's own `id` names.
    pub body_nonce: Option<u64>,
    /// `X-Devshard-Id` of the answer.
    pub escrow: Option<Name>,
    /// Escrow that the answer's own `id` names.
    pub body_escrow: Option<Name>,
    /// HTTP status.
    pub status: Option<u16>,
    /// What the client saw.
    pub client_class: ClientClass,
    /// Step it ran in.
    pub step: Option<usize>,
    /// SSE or JSON.
    pub stream: bool,
    /// A body came, and its facts are known.
    pub answered: bool,
    /// How a stream ended when it did not end well.
    pub ending: Option<EndingKind>,
    /// An error answer said why.
    pub reason_given: bool,
    /// The answer bears an `X-Request-Id`.
    pub named: bool,
}

/// Escrow and nonce of an answer's own `id`: `devshard-<escrow>-<nonce>` (contract gateway 4.5). Any other id names none.
fn body_place(id: &str) -> Option<(&str, u64)> {
    let (escrow, nonce) = id.strip_prefix("devshard-")?.rsplit_once('-')?;
    Some((escrow, nonce.parse().ok()?))
}

/// Records and what is special about single ones.
#[derive(Clone, Debug)]
pub struct Records {
    table: RecordTable,
    odd: BTreeMap<u64, String>,
    /// Indexes with more than one record.
    pub repeated: BTreeSet<u64>,
    /// What is wrong with the form of an answer.
    pub format: BTreeMap<u64, Finding>,
    /// Error messages of answers that are no success.
    pub reasons: BTreeMap<u64, String>,
    /// What clients had until they cancelled.
    pub cancelled: BTreeMap<u64, Cancelled>,
}

/// A request that its client cancelled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cancelled {
    /// From the planned instant to the close, microseconds.
    pub after_us: u64,
    /// Content events that had come.
    pub content_events: u64,
}

impl Records {
    pub(crate) fn new(cap: u64) -> Self {
        Self {
            table: RecordTable::new(cap),
            odd: BTreeMap::new(),
            repeated: BTreeSet::new(),
            format: BTreeMap::new(),
            reasons: BTreeMap::new(),
            cancelled: BTreeMap::new(),
        }
    }

    pub(crate) fn take(&mut self, line: &RecordLine<'_>, ids: &Ids, names: &mut Names) {
        let index = line.index;
        let message = line.answer.as_ref().and_then(|answer| answer.error_message.as_deref());
        let place = line.response_body_id.as_deref().and_then(body_place);
        let record = Record {
            planned: Span::of(line.planned_us),
            ttft: Span::between(line.planned_us, line.first_content_us),
            latency: Span::between(line.planned_us, line.end_us),
            body_nonce: place.map(|(_, nonce)| nonce),
            escrow: line.response_devshard_id.as_ref().map(|escrow| names.name(escrow)),
            body_escrow: place.map(|(escrow, _)| names.name(escrow)),
            status: line.status,
            client_class: line.client_class,
            step: line.step,
            stream: line.stream,
            answered: line.answer.is_some(),
            ending: line.answer.as_ref().and_then(format::ending),
            reason_given: message.is_some_and(|message| !message.is_empty()),
            named: line.response_request_id.is_some(),
        };
        if self.table.insert(index, &record) {
            self.repeated.insert(index);
            // The last line of an index is the one that counts: what the earlier one left behind goes.
            self.odd.remove(&index);
            self.format.remove(&index);
            self.reasons.remove(&index);
            self.cancelled.remove(&index);
        }
        if ids.index(&line.id) != Some(index) {
            self.odd.insert(index, line.id.to_string());
        }
        if let Some(finding) = format::finding(line) {
            self.format.insert(index, finding);
        }
        if let (ClientClass::Cancelled, Some(after_us)) = (record.client_class, record.latency.us()) {
            let content_events = line.answer.as_ref().map_or(0, |answer| answer.content_events);
            self.cancelled.insert(index, Cancelled { after_us, content_events });
        }
        if let (Some(message), false) = (message, line.status.is_some_and(|s| (200..300).contains(&s))) {
            self.reasons.insert(index, message.to_owned());
        }
    }

    /// The record of an index.
    #[must_use]
    pub fn get(&self, index: u64) -> Option<Record> {
        self.table.get(index)
    }

    /// Whether an index has a record.
    #[must_use]
    pub fn has(&self, index: u64) -> bool {
        self.table.contains(index)
    }

    /// Records by index, in order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, Record)> {
        self.table.iter()
    }

    /// How many.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.table.len()
    }

    /// None at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The id in a record when it is not the ordinary one of its index.
    #[must_use]
    pub fn odd_id(&self, index: u64) -> Option<&str> {
        self.odd.get(&index).map(String::as_str)
    }

    /// The index of the record with an id that is not an ordinary one.
    #[must_use]
    pub fn find_odd(&self, id: &str) -> Option<u64> {
        self.odd.iter().find(|(_, odd)| *odd == id).map(|(index, _)| *index)
    }
}

/// An attempt of an accounting row.
#[derive(Clone, Copy, Debug)]
pub struct Attempt {
    /// Nonce.
    pub nonce: u64,
    /// Address of the host's participant, when the row names it.
    pub participant: Option<Name>,
    /// Slot; numbers beyond all groups are the highest.
    pub host_idx: u16,
    /// It won.
    pub winner: bool,
}

/// A node call as it was joined to a request.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// Number at its node.
    pub call: u64,
    /// Nonce.
    pub nonce: Option<u64>,
    /// Node.
    pub node: Name,
    /// Rule that hit it.
    pub rule: Option<Name>,
    /// Status answered.
    pub status: Option<u16>,
    /// How it ended.
    pub outcome: NodeOutcome,
}

/// A joined request with its accounting row.
#[derive(Clone, Copy, Debug)]
pub struct Joined {
    offset: u64,
    /// Stands for the request id in accounting: different marks, different ids.
    pub row_mark: u64,
    winner_nonce: u64,
    attempts_at: u32,
    calls_at: u32,
    attempts_len: u16,
    calls_len: u16,
    /// Escrow, when known.
    pub escrow: Option<Name>,
    /// Escrow of the row.
    pub row_escrow: Option<Name>,
    /// Outcome of the row; `None` without a row.
    pub outcome: Option<Name>,
    /// Decision of the race.
    pub decision: Option<Name>,
    /// Accepted by the gateway.
    pub accepted: bool,
    /// Answered from the response cache.
    pub cached: bool,
    /// The row has a completion time.
    pub completed: bool,
    /// Its row stands under another id than the answer named.
    pub split: bool,
}

/// Joined requests.
#[derive(Clone, Debug)]
pub struct JoinedRows {
    table: Table<Joined>,
    attempts: Vec<Attempt>,
    calls: CallList,
    odd: BTreeMap<u64, String>,
    /// Lines that contradict the kept one of their index.
    pub rivals: Vec<JoinedRequest>,
}

impl JoinedRows {
    pub(crate) fn new(cap: u64) -> Self {
        Self {
            table: Table::new(cap),
            attempts: Vec::new(),
            calls: CallList::default(),
            odd: BTreeMap::new(),
            rivals: Vec::new(),
        }
    }

    /// Takes a line in. Of two lines for one index the first stays; a different one is a second outcome.
    pub(crate) fn take(
        &mut self,
        line: &JoinedLine<'_>,
        offset: u64,
        ids: &Ids,
        names: &mut Names,
        reader: &RunReader,
    ) -> Result<(), String> {
        if let Some(kept) = self.table.get(line.index) {
            let whole = |offset| reader.line_at::<JoinedRequest>(ACCOUNTING, offset);
            let (kept, again) = (whole(kept.offset), whole(offset).ok_or("the line can't be read again")?);
            if kept.as_ref() != Some(&again) {
                self.rivals.push(again);
            }
            return Ok(());
        }
        let row = line.accounting.as_ref();
        let attempts = row.map(|row| row.attempts.as_slice()).unwrap_or_default();
        if attempts.len() > PARTS_MAX || line.calls.len() > PARTS_MAX {
            return Err(format!("more than {PARTS_MAX} attempts or calls"));
        }
        let joined = Joined {
            offset,
            row_mark: row.map_or(0, |row| mark(&row.request_id)),
            winner_nonce: row.and_then(|row| row.winner_nonce).unwrap_or_default(),
            attempts_at: self.attempts.len() as u32,
            calls_at: self.calls.len() as u32,
            attempts_len: attempts.len() as u16,
            calls_len: line.calls.len() as u16,
            escrow: line.escrow.as_ref().map(|escrow| names.name(escrow)),
            row_escrow: row.map(|row| names.name(&row.escrow)),
            outcome: row.map(|row| names.name(&row.outcome)),
            decision: row.and_then(|row| row.decision.as_ref()).map(|decision| names.name(decision)),
            accepted: line.accepted,
            cached: line.cached,
            completed: row.is_some_and(|row| row.completed_at.is_some()),
            split: line.ways.contains(&JoinWay::ResponseRequestId)
                && line.ways.iter().any(|way| matches!(way, JoinWay::GatewayLog | JoinWay::PerfDatabase)),
        };
        let attempt = |part: &AttemptPart<'_>| Attempt {
            nonce: part.nonce,
            participant: part.participant.as_ref().map(|address| names.name(address)),
            host_idx: u16::try_from(part.host_idx).unwrap_or(u16::MAX),
            winner: part.winner,
        };
        self.attempts.extend(attempts.iter().map(attempt));
        for part in &line.calls {
            self.calls.push(Call {
                call: part.call,
                nonce: part.nonce,
                node: names.name(&part.node),
                rule: part.rule.as_ref().map(|rule| names.name(rule)),
                status: part.status,
                outcome: part.outcome,
            });
        }
        self.table.insert(line.index, joined);
        if ids.index(&line.id) != Some(line.index) {
            self.odd.insert(line.index, line.id.to_string());
        }
        Ok(())
    }

    /// The line of an index.
    #[must_use]
    pub fn get(&self, index: u64) -> Option<&Joined> {
        self.table.get(index)
    }

    /// Lines by index, in order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &Joined)> {
        self.table.iter()
    }

    /// Attempts of its row.
    #[must_use]
    pub fn attempts(&self, joined: &Joined) -> &[Attempt] {
        let start = joined.attempts_at as usize;
        &self.attempts[start..start + usize::from(joined.attempts_len)]
    }

    /// Its node calls, by start.
    #[must_use]
    pub fn calls(&self, joined: &Joined) -> impl ExactSizeIterator<Item = Call> + Clone {
        let start = joined.calls_at as usize;
        let at = |place| self.calls.get(place).expect("places of a line are those that were pushed for it");
        (start..start + usize::from(joined.calls_len)).map(at)
    }

    /// All node calls, of one request after the other.
    pub fn all_calls(&self) -> impl ExactSizeIterator<Item = Call> {
        (0..self.calls.len()).map(|place| self.calls.get(place).expect("a place below the length"))
    }

    /// The node call at a place of [`JoinedRows::all_calls`].
    #[must_use]
    pub fn call_at(&self, place: usize) -> Option<Call> {
        self.calls.get(place)
    }

    /// The index of the request that has this one of [`JoinedRows::all_calls`].
    #[must_use]
    pub fn owner_of_call(&self, at: usize) -> Option<u64> {
        let has = |joined: &Joined| {
            let start = joined.calls_at as usize;
            (start..start + usize::from(joined.calls_len)).contains(&at)
        };
        self.table.iter().find(|(_, joined)| has(joined)).map(|(index, _)| index)
    }

    /// More than a nonce can be when every attempt has one of its own and few are left out.
    #[must_use]
    pub fn nonce_cap(&self) -> u64 {
        self.attempts.len() as u64 * 4 + 1_024
    }

    /// The id in a line when it is not the ordinary one of its index.
    #[must_use]
    pub fn odd_id(&self, index: u64) -> Option<&str> {
        self.odd.get(&index).map(String::as_str)
    }

    /// The whole line, read again.
    #[must_use]
    pub fn whole(&self, reader: &RunReader, joined: &Joined) -> Option<JoinedRequest> {
        reader.line_at(ACCOUNTING, joined.offset)
    }

    /// The nonce that stands for a request in a witness: the winner's, else its first.
    #[must_use]
    pub fn nonce(&self, joined: &Joined) -> Option<u64> {
        let first = self.attempts(joined).first().map(|attempt| attempt.nonce);
        Some(joined.winner_nonce).filter(|nonce| *nonce > 0).or(first)
    }
}

/// A short mark of a long text.
fn mark(text: &str) -> u64 {
    Fast::default().hash_one(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_is_read_from_its_ordinary_id_alone() {
        let ids = Ids::new("ml-5xx", 42);
        for index in [0, 7, 999_999, 1_000_000, u64::MAX] {
            assert_eq!(ids.index(&ids.id(index)), Some(index));
        }
        for id in
            ["ml-5xx-42-7", "ml-5xx-42-0000007", "ml-5xx-43-000007", "ml-5xx-42-00000x", "ml-5xx-42-+00007"]
        {
            assert_eq!(ids.index(id), None, "{id}");
        }
    }
}

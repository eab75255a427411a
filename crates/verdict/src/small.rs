//! Small forms of what there are millions of: client records in 36 bytes, node calls in 20. A value that does not fit is
//! kept whole beside them, so that nothing is lost and no run needs more memory for the sake of a few.

use std::collections::BTreeMap;

use evidence::record::ClientClass;
use scenario::control::NodeOutcome;
use scenario::fault::EndingKind;

use crate::requests::{Call, Record, Span};
use crate::table::{Name, Table};

/// Stands for an absent number.
const NONE: u32 = u32::MAX;
/// Stands for an absent status or step.
const NONE_SHORT: u16 = u16::MAX;

const STREAM: u8 = 1;
const ANSWERED: u8 = 2;
const REASON_GIVEN: u8 = 4;
const NAMED: u8 = 8;
/// The whole record lies beside.
const WIDE: u8 = 16;

/// A number that may be absent, in four bytes; `None` when it needs more.
fn short(value: Option<u64>) -> Option<u32> {
    value.map_or(Some(NONE), |value| u32::try_from(value).ok().filter(|value| *value != NONE))
}

fn long(value: u32) -> Option<u64> {
    (value != NONE).then_some(u64::from(value))
}

#[derive(Clone, Copy, Debug)]
struct SmallRecord {
    /// Two halves: a whole number would make each record longer than it need be.
    planned: [u32; 2],
    ttft: u32,
    latency: u32,
    body_nonce: u32,
    escrow: Option<Name>,
    body_escrow: Option<Name>,
    status: u16,
    step: u16,
    client_class: ClientClass,
    ending: Option<EndingKind>,
    flags: u8,
}

impl SmallRecord {
    fn of(record: &Record) -> Option<Self> {
        let planned = record.planned.us().unwrap_or(u64::MAX);
        let flag = |is: bool, flag: u8| if is { flag } else { 0 };
        let step = record.step.map_or(Some(NONE_SHORT), |step| u16::try_from(step).ok());
        Some(Self {
            planned: [(planned >> 32) as u32, planned as u32],
            ttft: short(record.ttft.us())?,
            latency: short(record.latency.us())?,
            body_nonce: short(record.body_nonce)?,
            escrow: record.escrow,
            body_escrow: record.body_escrow,
            status: record
                .status
                .map_or(Some(NONE_SHORT), |status| Some(status).filter(|s| *s != NONE_SHORT))?,
            step: step.filter(|step| record.step.is_none() || *step != NONE_SHORT)?,
            client_class: record.client_class,
            ending: record.ending,
            flags: flag(record.stream, STREAM)
                | flag(record.answered, ANSWERED)
                | flag(record.reason_given, REASON_GIVEN)
                | flag(record.named, NAMED),
        })
    }

    /// Stands where a record lies beside.
    const fn wide() -> Self {
        Self {
            planned: [NONE; 2],
            ttft: NONE,
            latency: NONE,
            body_nonce: NONE,
            escrow: None,
            body_escrow: None,
            status: NONE_SHORT,
            step: NONE_SHORT,
            client_class: ClientClass::Dropped,
            ending: None,
            flags: WIDE,
        }
    }

    fn whole(&self) -> Record {
        let planned = (u64::from(self.planned[0]) << 32) | u64::from(self.planned[1]);
        Record {
            planned: Span::of((planned != u64::MAX).then_some(planned)),
            ttft: Span::of(long(self.ttft)),
            latency: Span::of(long(self.latency)),
            body_nonce: long(self.body_nonce),
            escrow: self.escrow,
            body_escrow: self.body_escrow,
            status: (self.status != NONE_SHORT).then_some(self.status),
            client_class: self.client_class,
            step: (self.step != NONE_SHORT).then_some(usize::from(self.step)),
            stream: self.flags & STREAM != 0,
            answered: self.flags & ANSWERED != 0,
            ending: self.ending,
            reason_given: self.flags & REASON_GIVEN != 0,
            named: self.flags & NAMED != 0,
        }
    }
}

/// Records by index.
#[derive(Clone, Debug)]
pub(crate) struct RecordTable {
    small: Table<SmallRecord>,
    wide: BTreeMap<u64, Record>,
}

impl RecordTable {
    /// An empty table; see [`Table::new`].
    pub(crate) fn new(cap: u64) -> Self {
        Self { small: Table::new(cap), wide: BTreeMap::new() }
    }

    /// Sets a record; true when another one stood there.
    pub(crate) fn insert(&mut self, index: u64, record: &Record) -> bool {
        self.wide.remove(&index);
        let small = SmallRecord::of(record).unwrap_or_else(|| {
            self.wide.insert(index, *record);
            SmallRecord::wide()
        });
        self.small.insert(index, small).is_some()
    }

    fn whole(&self, index: u64, small: &SmallRecord) -> Record {
        let wide = if small.flags & WIDE == 0 { None } else { self.wide.get(&index) };
        wide.copied().unwrap_or_else(|| small.whole())
    }

    pub(crate) fn get(&self, index: u64) -> Option<Record> {
        self.small.get(index).map(|small| self.whole(index, small))
    }

    pub(crate) fn contains(&self, index: u64) -> bool {
        self.small.contains(index)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, Record)> {
        self.small.iter().map(|(index, small)| (index, self.whole(index, small)))
    }

    pub(crate) fn len(&self) -> u64 {
        self.small.len()
    }
}

#[derive(Clone, Copy, Debug)]
struct SmallCall {
    call: u32,
    nonce: u32,
    node: Name,
    rule: Option<Name>,
    status: u16,
    outcome: NodeOutcome,
    wide: bool,
}

/// Node calls by place.
#[derive(Clone, Debug, Default)]
pub(crate) struct CallList {
    small: Vec<SmallCall>,
    wide: BTreeMap<usize, Call>,
}

impl CallList {
    pub(crate) fn push(&mut self, call: Call) {
        let Call { node, rule, outcome, .. } = call;
        let status = call.status.map_or(Some(NONE_SHORT), |status| Some(status).filter(|s| *s != NONE_SHORT));
        let fits = short(Some(call.call)).zip(short(call.nonce)).zip(status);
        let ((number, nonce), status) = fits.unwrap_or_else(|| {
            self.wide.insert(self.small.len(), call);
            ((NONE, NONE), NONE_SHORT)
        });
        self.small.push(SmallCall { call: number, nonce, node, rule, status, outcome, wide: fits.is_none() });
    }

    pub(crate) fn get(&self, place: usize) -> Option<Call> {
        let small = self.small.get(place)?;
        let wide = if small.wide { self.wide.get(&place).copied() } else { None };
        Some(wide.unwrap_or(Call {
            call: u64::from(small.call),
            nonce: long(small.nonce),
            node: small.node,
            rule: small.rule,
            status: (small.status != NONE_SHORT).then_some(small.status),
            outcome: small.outcome,
        }))
    }

    pub(crate) fn len(&self) -> usize {
        self.small.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Names;

    fn record(us: Option<u64>, step: Option<usize>, status: Option<u16>, name: Option<Name>) -> Record {
        Record {
            planned: Span::of(us),
            ttft: Span::of(us),
            latency: Span::of(us),
            body_nonce: us,
            escrow: name,
            body_escrow: name,
            status,
            client_class: ClientClass::Ok,
            step,
            stream: step.is_some(),
            answered: status.is_some(),
            ending: status.map(|_| EndingKind::Truncated),
            reason_given: us.is_some(),
            named: name.is_some(),
        }
    }

    /// Values around every bound of the small form.
    #[test]
    fn what_goes_in_comes_out_whatever_its_size() {
        let name = Names::default().name("11");
        let numbers =
            [0, 7, u64::from(u32::MAX) - 1, u64::from(u32::MAX), u64::from(u32::MAX) + 1, u64::MAX - 1];
        let numbers: Vec<Option<u64>> = numbers.into_iter().map(Some).chain([None]).collect();
        let mut table = RecordTable::new(1_000);
        let mut calls = CallList::default();
        let mut all = Vec::new();
        for us in &numbers {
            for step in [None, Some(0), Some(65_534), Some(65_535), Some(65_536)] {
                for status in [None, Some(200), Some(65_534), Some(65_535)] {
                    let some = status.is_some().then_some(name);
                    all.push(record(*us, step, status, some));
                    let node = name;
                    let call = us.unwrap_or(3);
                    calls.push(Call {
                        call,
                        nonce: *us,
                        node,
                        rule: some,
                        status,
                        outcome: NodeOutcome::Killed,
                    });
                    let out = calls.get(calls.len() - 1).unwrap();
                    assert_eq!((out.call, out.nonce, out.node, out.rule), (call, *us, node, some));
                    assert_eq!((out.status, out.outcome), (status, NodeOutcome::Killed));
                }
            }
        }
        for (record, index) in all.iter().zip(0..) {
            assert!(!table.insert(index, record));
        }
        for (wanted, index) in all.iter().zip(0..) {
            assert_eq!(format!("{:?}", table.get(index).unwrap()), format!("{wanted:?}"));
        }
        assert_eq!((table.len(), table.iter().count()), (all.len() as u64, all.len()));
        assert!(table.insert(0, &all[1]), "another one stood there");
    }

    #[test]
    fn a_million_stay_small() {
        assert_eq!(size_of::<Option<SmallRecord>>(), 36);
        assert_eq!(size_of::<SmallCall>(), 20);
    }
}

//! What the mocks wrote down, call by call: the allocator's grants and returns, and the calls at nodes held against the
//! rules, the hits, the locks and the joined requests. Nothing of a call that is as it should be is kept.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU32;

use evidence::run::RunInfo;
use scenario::fault::{CallKind, DapiCall, FaultAction};

use crate::lines::{DapiLine, HitLine, NodeCallLine};
use crate::locks::LockBook;
use crate::oracle::{Oracle, OracleFold};
use crate::requests::{Cancelled, Ids, JoinedRows, Records};
use crate::table::{Bits, Name, Names, Table};

/// A fault hit.
#[derive(Clone, Debug)]
pub struct Hit {
    /// Node, host or chain method.
    pub place: Name,
    /// Rule.
    pub rule: Name,
    /// Request, when it has one.
    pub who: Option<Who>,
    /// Attempt at this place.
    pub attempt: u64,
    /// The call was a validation replay.
    pub replay: bool,
}

/// Whose marker a call or a hit carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Who {
    /// The ordinary id of an index.
    Index(u64),
    /// Another text.
    Other(Name),
}

impl Who {
    /// Whose id this is.
    pub(crate) fn of(id: &str, ids: &Ids, names: &mut Names) -> Self {
        ids.index(id).map_or_else(|| Self::Other(names.name(id)), Self::Index)
    }

    /// The id.
    pub(crate) fn id(self, ids: &Ids, names: &Names) -> String {
        match self {
            Self::Index(index) => ids.id(index),
            Self::Other(name) => names.word(name).to_owned(),
        }
    }
}

/// All hits, and those of each request.
#[derive(Clone, Debug, Default)]
pub struct Hits {
    all: Vec<Hit>,
    /// Positions in `all`, by request.
    order: Vec<u32>,
}

impl Hits {
    pub(crate) fn take(&mut self, line: &HitLine<'_>, ids: &Ids, names: &mut Names) {
        self.all.push(Hit {
            place: names.name(&line.place),
            rule: names.name(&line.rule),
            who: line.request_id.as_ref().map(|id| Who::of(id, ids, names)),
            attempt: line.attempt,
            replay: line.kind == Some(CallKind::Validation),
        });
    }

    pub(crate) fn finish(&mut self) {
        let with = |at: &u32| self.all[*at as usize].who.is_some();
        self.order = (0..self.all.len() as u32).filter(with).collect();
        self.order.sort_by_key(|at| self.all[*at as usize].who);
    }

    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// None at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// In the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = &Hit> {
        self.all.iter()
    }

    /// Those of a request, in the order of the file.
    pub fn of(&self, who: Who) -> impl Iterator<Item = &Hit> {
        let of = |at: &u32| self.all[*at as usize].who;
        let start = self.order.partition_point(|at| of(at) < Some(who));
        let own = self.order[start..].iter().take_while(move |at| of(at) == Some(who));
        own.map(|at| &self.all[*at as usize])
    }
}

/// The allocator's log.
#[derive(Clone, Debug)]
pub struct Allocator {
    granted: Bits,
    released: Bits,
    refused: u64,
    locks: LockBook,
}

impl Allocator {
    pub(crate) fn new(cap: u64) -> Self {
        Self { granted: Bits::new(cap), released: Bits::new(cap), refused: 0, locks: LockBook::new(cap) }
    }

    pub(crate) fn take(&mut self, line: &DapiLine<'_>, names: &mut Names) {
        match (line.call, &*line.result) {
            (DapiCall::Acquire, "granted") => {
                self.granted.insert(line.seq);
                if let (Some(lock), Some(node)) = (&line.lock, &line.node) {
                    self.locks.grant(lock, names.name(node));
                }
            }
            (DapiCall::Acquire, _) => self.refused += 1,
            (DapiCall::Release, "released") => {
                self.released.insert(line.seq);
                if line.outcome.as_deref() == Some("transport-error")
                    && let Some(lock) = &line.lock
                {
                    self.locks.give_back(lock);
                }
            }
            _ => {}
        }
    }

    /// Locks granted, each entry of the log once.
    #[must_use]
    pub fn granted(&self) -> u64 {
        self.granted.len()
    }

    /// Locks returned, each entry of the log once.
    #[must_use]
    pub fn released(&self) -> u64 {
        self.released.len()
    }

    /// Acquires that were not granted.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Different locks granted.
    #[must_use]
    pub fn locks(&self) -> u64 {
        self.locks.len()
    }

    /// Locks that no call carried, with their nodes and whether they were given back as not having reached them.
    pub fn unused(&self) -> impl Iterator<Item = (String, Name, bool)> {
        self.locks.unused()
    }
}

/// What is wrong with the lock of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LockFault {
    /// None, or one that was never granted.
    Missing(Option<String>),
    /// Granted for this node.
    OfNode(Name),
}

/// A call whose lock is not as it must be.
#[derive(Clone, Debug)]
pub struct StrayCall {
    /// Marker id.
    pub request_id: Option<String>,
    /// Node.
    pub node: Name,
    /// Nonce.
    pub seed: Option<u64>,
    /// What is wrong.
    pub fault: LockFault,
}

/// Calls at nodes, after all of them were read.
#[derive(Debug)]
pub struct Calls {
    /// Different calls.
    pub looked: u64,
    /// Ended calls by node.
    pub ended: BTreeMap<Name, u64>,
    /// Calls without the lock of their node.
    pub strays: Vec<StrayCall>,
    /// A rule of the scenario faults the allocator.
    pub dapi_faulted: bool,
    /// A joined call that the log does not have, or has otherwise: its place in [`JoinedRows::all_calls`].
    pub not_as_joined: Option<usize>,
    /// The fault oracle.
    pub oracle: Oracle,
    /// What nodes did for clients that were gone.
    pub after_cancel: AfterCancel,
}

/// Work of nodes after the client of a request had cancelled it. No clock is shared: a call begins after its request, so
/// that what it took longer than the client stayed is the least.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AfterCancel {
    /// At least so long, microseconds.
    pub least_us: u64,
    /// Content events that the client did not get: a token each.
    pub tokens: u64,
}

/// Reads the calls one after another.
pub(crate) struct CallFold<'a> {
    salt: &'a str,
    ids: &'a Ids,
    joined: &'a JoinedRows,
    seen: BTreeMap<Name, (Bits, Bits)>,
    /// Places of joined calls by node and number, from 1; a number that two requests claim is in `claims` too.
    places: BTreeMap<Name, Table<NonZeroU32>>,
    claims: HashMap<(Name, u64), Vec<u32>>,
    confirmed: Bits,
    cap: u64,
    calls: Calls,
    oracle: OracleFold<'a>,
    /// Of each, the content events that no call has sent yet.
    cancelled: BTreeMap<u64, Cancelled>,
}

impl<'a> CallFold<'a> {
    pub(crate) fn new(
        run: &'a RunInfo,
        ids: &'a Ids,
        joined: &'a JoinedRows,
        (hits, records): (&Hits, &Records),
        cap: u64,
    ) -> Self {
        let mut places: BTreeMap<Name, Table<NonZeroU32>> = BTreeMap::new();
        let mut claims: HashMap<(Name, u64), Vec<u32>> = HashMap::new();
        for (call, place) in joined.all_calls().zip(1..) {
            let Some(mark) = NonZeroU32::new(place) else { break };
            let of_node = places.entry(call.node).or_insert_with(|| Table::new(cap));
            if let Some(first) = of_node.insert(call.call, mark) {
                claims.entry((call.node, call.call)).or_insert_with(|| vec![first.get() - 1]).push(place - 1);
            }
        }
        let faults = &run.resolved.scenario.faults;
        Self {
            salt: &run.salt,
            ids,
            joined,
            seen: BTreeMap::new(),
            places,
            claims,
            confirmed: Bits::new(cap),
            cap,
            calls: Calls {
                looked: 0,
                ended: BTreeMap::new(),
                strays: Vec::new(),
                dapi_faulted: faults.iter().any(|rule| matches!(rule.action, FaultAction::Dapi(_))),
                not_as_joined: None,
                oracle: Oracle::default(),
                after_cancel: AfterCancel::default(),
            },
            cancelled: records.cancelled.clone(),
            oracle: OracleFold::new(&run.resolved, hits),
        }
    }

    /// A call is logged at its start and again at its end: each counts once, the end tells what came of it.
    pub(crate) fn take(&mut self, line: &NodeCallLine<'_>, allocator: &mut Allocator, names: &mut Names) {
        let node = names.name(&line.node);
        let cap = self.cap;
        let (seen, ended) = self.seen.entry(node).or_insert_with(|| (Bits::new(cap), Bits::new(cap)));
        let first = seen.insert(line.call);
        let end = line.ended_us.is_some() && ended.insert(line.call);
        if first {
            self.calls.looked += 1;
            self.lock(line, node, allocator);
        }
        if !end {
            return;
        }
        *self.calls.ended.entry(node).or_default() += 1;
        self.confirm(line, node, names);
        if let Some(id) = line.request_id.as_deref().filter(|_| line.salt.as_deref() == Some(self.salt)) {
            self.oracle.take(line, node, id, self.ids, names);
            self.outlives(line, id);
        }
    }

    fn outlives(&mut self, line: &NodeCallLine<'_>, id: &str) {
        let index = self.ids.index(id).filter(|_| line.kind == CallKind::Execution);
        let Some(client) = index.and_then(|index| self.cancelled.get_mut(&index)) else { return };
        let took_us = line.ended_us.unwrap_or_default().saturating_sub(line.started_us);
        let had = client.content_events.min(line.content_events);
        client.content_events -= had;
        self.calls.after_cancel.least_us += took_us.saturating_sub(client.after_us);
        self.calls.after_cancel.tokens += line.content_events - had;
    }

    fn lock(&mut self, line: &NodeCallLine<'_>, node: Name, allocator: &mut Allocator) {
        let fault = match line.lock.as_deref() {
            None => LockFault::Missing(None),
            Some(lock) => match allocator.locks.carry(lock) {
                None => LockFault::Missing(Some(lock.to_owned())),
                Some(of) if of != node => LockFault::OfNode(of),
                Some(_) => return,
            },
        };
        let request_id = line.request_id.as_deref().map(str::to_owned);
        self.calls.strays.push(StrayCall { request_id, node, seed: line.seed, fault });
    }

    /// The joined request must show the call as the log does.
    fn confirm(&mut self, line: &NodeCallLine<'_>, node: Name, names: &Names) {
        let Some(place) = self.places.get(&node).and_then(|table| table.get(line.call)) else { return };
        let only = [place.get() - 1];
        let places = self.claims.get(&(node, line.call)).map_or(&only[..], Vec::as_slice);
        let rule = line.rule.as_deref();
        for place in places.iter().copied() {
            let Some(call) = self.joined.call_at(place as usize) else { continue };
            if call.nonce == line.seed && call.status == line.status && names.maybe(call.rule) == rule {
                self.confirmed.insert(u64::from(place));
            }
        }
    }

    pub(crate) fn finish(mut self, names: &Names) -> Calls {
        let all = self.joined.all_calls().len();
        self.calls.not_as_joined = (0..all).find(|place| !self.confirmed.contains(*place as u64));
        self.calls.oracle = self.oracle.finish(self.ids, names);
        self.calls
    }
}

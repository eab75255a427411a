//! The event loop of one thread: connections, requests in flight, their deadlines, and the sends that are due. It
//! writes requests itself at their planned instants, between any two events if need be.

mod pool;
mod setup;
mod shared;

use std::collections::{BTreeSet, VecDeque};
use std::io;

use stats::Histogram;

use self::pool::{Peers, Pool};
use super::exchange::{Exchange, Flow};
use super::poller::{Interest, Poller, Ready, Waker};
use super::resolver::Resolver;
use super::slab::Slab;
use super::spare::Spare;
use super::{KeepAlive, Load, Next, Shared, Work};
use crate::classify::Failure;
use crate::clock::Clock;
use crate::connection::http2::{Event, Session};
use crate::connection::{Connection, SCRATCH_BYTES};
use crate::error::LoadgenError;
use crate::halt::Halt;
use crate::result::Wires;

/// With spinning, how long before a planned instant sleeping ends.
const SPIN_US: u64 = 80;
/// With spinning, how long before a planned instant only the clock is looked at.
const CLOCK_ONLY_US: u64 = 4;
/// Answers that are read before the requests that follow them are sent.
const STARTS_TOGETHER: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    Idle,
    Connecting,
    /// A proxy is asked for the way to the target.
    Tunnelling,
    Securing,
    /// HTTP/2 before the peer has said how many streams it grants.
    Greeting,
    Writing {
        done: usize,
    },
    Reading,
    /// HTTP/2 with any number of requests.
    Sharing,
}

enum Wire {
    One(Connection),
    Two(Box<Session>),
    /// Between the two.
    Moving,
}

struct Line {
    wire: Wire,
    route: usize,
    /// The request that uses it, or that began it.
    slot: Option<usize>,
    /// Requests that wait for it to stand.
    waiting: VecDeque<usize>,
    doing: Doing,
    interest: Interest,
    served: u64,
    /// Part of the load whose request it carried last.
    part: Option<u64>,
    /// Number of its peer.
    peer: usize,
}

impl Line {
    fn one(&mut self) -> Option<&mut Connection> {
        if let Wire::One(connection) = &mut self.wire { Some(connection) } else { None }
    }

    fn two(&mut self) -> Option<&mut Session> {
        if let Wire::Two(session) = &mut self.wire { Some(session) } else { None }
    }

    fn watch(&mut self, poller: &Poller, key: usize, interest: Interest) {
        if self.interest == interest {
            return;
        }
        let done = match &self.wire {
            Wire::One(connection) => poller.modify(connection, key, interest).is_ok(),
            Wire::Two(session) => {
                session.with_connection(|connection| poller.modify(connection, key, interest).is_ok())
            }
            Wire::Moving => false,
        };
        if done {
            self.interest = interest;
        }
    }
}

struct Slot {
    exchange: Exchange,
    line: Option<usize>,
    /// Which address is tried first, and how many were.
    address: usize,
    tried: usize,
}

/// Calls of the kernel, the cost of a request that no clock has to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Calls {
    /// Reads of sockets of HTTP/1.1.
    pub reads: u64,
    /// Writes to them.
    pub writes: u64,
    /// Waits for readiness.
    pub waits: u64,
    /// Changes of what is watched.
    pub watches: u64,
    /// Settings of the precise timer.
    pub timers: u64,
}

/// One event loop.
pub struct Reactor {
    clock: Clock,
    shared: Shared,
    poller: Poller,
    lines: Slab<Line>,
    slots: Slab<Slot>,
    /// Connections and addresses by route.
    pools: Vec<Pool>,
    peers: Peers,
    wires: Wires,
    resolver: Option<Resolver>,
    /// HTTP/2 connections with something to send.
    dirty: Vec<usize>,
    /// Kept between turns for its room.
    events: Vec<(usize, Event)>,
    /// One entry a slot at most, kept over its requests: moving a deadline back costs nothing.
    timers: BTreeSet<(u64, usize)>,
    armed: Vec<Option<u64>>,
    scratch: Box<[u8]>,
    spare: Spare,
    spin: bool,
    sent: u64,
    connections: u64,
    /// Reads and writes of sockets of HTTP/1.1.
    reads: u64,
    writes: u64,
    /// A request has ended since the load was asked last.
    ended: bool,
    next_at: Option<u64>,
    loop_turn: Histogram,
}

impl Reactor {
    /// A loop without connections.
    ///
    /// # Errors
    /// Environment when the system gives no descriptor.
    pub fn new(clock: Clock, shared: Shared, spin: bool) -> Result<Self, LoadgenError> {
        let poller = Poller::new().map_err(|error| {
            LoadgenError::Environment(format!("the event loop gets no descriptor: {error}"))
        })?;
        let pools = shared.routes.iter().map(|route| Pool::new(&route.target)).collect();
        Ok(Self {
            clock,
            shared,
            poller,
            lines: Slab::default(),
            slots: Slab::default(),
            pools,
            peers: Peers::default(),
            wires: Wires::default(),
            resolver: None,
            dirty: Vec::new(),
            events: Vec::new(),
            timers: BTreeSet::new(),
            armed: Vec::new(),
            scratch: vec![0; SCRATCH_BYTES].into_boxed_slice(),
            spare: Spare::default(),
            spin,
            sent: 0,
            connections: 0,
            reads: 0,
            writes: 0,
            ended: false,
            next_at: None,
            loop_turn: Histogram::new(),
        })
    }

    /// Wakes the loop from another thread.
    #[must_use]
    pub fn waker(&self) -> Waker {
        self.poller.waker()
    }

    /// Requests written so far.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Connections opened so far.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.connections
    }

    /// Calls of the kernel that the loop has made.
    #[must_use]
    pub fn calls(&self) -> Calls {
        let [waits, watches, timers] = self.poller.calls();
        Calls { reads: self.reads, writes: self.writes, waits, watches, timers }
    }

    /// What became of the connections since the last call.
    pub fn take_wires(&mut self) -> Wires {
        let mut wires = std::mem::take(&mut self.wires);
        wires.peers = self.peers.take();
        wires
    }

    /// Length of the turns since the last call.
    pub fn take_loop_turns(&mut self) -> Histogram {
        std::mem::take(&mut self.loop_turn)
    }

    /// Runs a load until it is over and nothing is in flight.
    pub fn run(&mut self, load: &mut dyn Load, halt: &Halt) {
        let mut ready = Vec::new();
        let mut tick_us = Some(0);
        loop {
            let now_us = self.clock.now_us();
            if halt.is_aborted() {
                self.abort(load);
            }
            if tick_us.is_some_and(|at_us| now_us >= at_us) {
                tick_us = load.tick(now_us, self.sent);
            }
            let over = self.start_due(load) && self.slots.is_empty();
            self.turn_dirty(load);
            if over {
                return;
            }
            self.expire(load);
            if self.ended {
                continue;
            }
            self.loop_turn.record(self.clock.now_us().saturating_sub(now_us));
            self.wait(tick_us, &mut ready);
            self.take_names(load);
            for (place, event) in ready.drain(..).enumerate() {
                self.on_ready(event, load);
                // A send that falls due does not wait for the rest of the events. What follows an answer that has ended
                // goes out a few at a time: the code of one kind of work stays in the caches of the core.
                let several = self.ended && place % STARTS_TOGETHER == STARTS_TOGETHER - 1;
                if several || self.next_at.is_some_and(|at_us| self.clock.now_us() >= at_us) {
                    self.start_due(load);
                }
            }
        }
    }

    fn wait(&mut self, tick_us: Option<u64>, ready: &mut Vec<Ready>) {
        let now_us = self.clock.now_us();
        let timer_us = self.timers.first().map(|(at_us, _)| *at_us);
        let mut timeout = [timer_us, tick_us].into_iter().flatten().min().map(|at| at.saturating_sub(now_us));
        if let Some(at_us) = self.next_at {
            let wake_us = if self.spin { at_us.saturating_sub(SPIN_US) } else { at_us };
            if wake_us <= now_us {
                timeout = Some(0);
            } else {
                self.poller.set_timer(wake_us, now_us);
            }
        }
        if !self.dirty.is_empty() {
            timeout = Some(0);
        }
        self.poller.wait(timeout, ready);
        if let Some(at_us) = self.next_at.filter(|_| self.spin && ready.is_empty()) {
            // So near to the instant another look at the sockets would take longer than what is left.
            let from_us = at_us.saturating_sub(CLOCK_ONLY_US);
            while (from_us..at_us).contains(&self.clock.now_us()) {
                std::hint::spin_loop();
            }
        }
    }

    /// Starts everything that the load wants now; says whether it is over.
    fn start_due(&mut self, load: &mut dyn Load) -> bool {
        loop {
            self.ended = false;
            match load.next(self.clock.now_us(), &mut self.spare) {
                Next::Start(work) => self.start(*work, load),
                Next::At(at_us) => {
                    self.next_at = Some(at_us);
                    return false;
                }
                next => {
                    self.next_at = None;
                    return matches!(next, Next::Over);
                }
            }
        }
    }

    fn start(&mut self, work: Work, load: &mut dyn Load) {
        let route = work.route;
        let exchange = Exchange::new(work, &self.shared.routes[route]);
        let slot = self.slots.insert(Slot { exchange, line: None, address: 0, tried: 0 });
        self.attempt(slot, load);
    }

    fn on_ready(&mut self, event: Ready, load: &mut dyn Load) {
        let Some(line) = self.lines.get_mut(event.key) else { return };
        match line.doing {
            // Closed by the peer, or unasked bytes: of no use either way. (TLS may have news of its own to tell.)
            Doing::Idle => self.on_idle(event.key),
            Doing::Connecting => self.on_connecting(event.key, load),
            Doing::Tunnelling => self.on_tunnelling(event.key, load),
            Doing::Securing => self.on_securing(event.key, load),
            Doing::Greeting | Doing::Sharing => self.turn(event.key, load),
            // The peer answers or closes before it has everything: the rest is not sent.
            Doing::Writing { .. } if event.readable => {
                self.set(event.key, Doing::Reading, Interest::Read);
                self.read(event.key, load);
            }
            Doing::Writing { .. } => self.write(event.key, load),
            Doing::Reading => self.read(event.key, load),
        }
    }

    /// A kept connection of HTTP/1.1 that is readable.
    fn on_idle(&mut self, key: usize) {
        let Some(line) = self.lines.get_mut(key) else { return };
        let news = line.one().map(|connection| connection.read(&mut self.scratch));
        if let Some(Err(error)) = news
            && error.kind() == io::ErrorKind::WouldBlock
        {
            // Session tickets of TLS.
            return;
        }
        self.pools[line.route].idle.retain(|idle| *idle != key);
        self.lines.remove(key);
    }

    fn set(&mut self, key: usize, doing: Doing, interest: Interest) {
        let Some(line) = self.lines.get_mut(key) else { return };
        line.doing = doing;
        line.watch(&self.poller, key, interest);
    }

    fn write(&mut self, key: usize, load: &mut dyn Load) {
        let Some(line) = self.lines.get_mut(key) else { return };
        let (Some(slot), Doing::Writing { mut done }) = (line.slot, line.doing) else { return };
        let Some(entry) = self.slots.get_mut(slot) else { return };
        let Wire::One(connection) = &mut line.wire else { return };
        loop {
            let rest = &entry.exchange.request()[done..];
            self.writes += u64::from(!rest.is_empty());
            let result =
                if rest.is_empty() { connection.flush().map(|()| 0) } else { connection.write(rest) };
            match result {
                Ok(_) if rest.is_empty() => break,
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.set(key, Doing::Writing { done }, Interest::ReadWrite);
                    self.schedule(slot);
                    return;
                }
                // The peer may have answered before it closed: reading tells.
                Err(_) => {
                    self.set(key, Doing::Reading, Interest::Read);
                    self.schedule(slot);
                    return;
                }
            }
        }
        let now_us = self.clock.now_us();
        let (first, flow) = entry.exchange.on_sent(&self.shared.routes[line.route], now_us);
        self.sent += u64::from(first);
        self.set(key, Doing::Reading, Interest::Read);
        self.follow(slot, flow, load);
    }

    fn read(&mut self, key: usize, load: &mut dyn Load) {
        let Some(line) = self.lines.get_mut(key) else { return };
        let Some(slot) = line.slot else { return };
        let Some(entry) = self.slots.get_mut(slot) else { return };
        let Wire::One(connection) = &mut line.wire else { return };
        self.reads += 1;
        let flow = match connection.read(&mut self.scratch) {
            Ok(0) => entry.exchange.on_eof(),
            Ok(count) => {
                let route = &self.shared.routes[line.route];
                let (tag, now_us) = (entry.exchange.tag(), self.clock.now_us());
                let gap = &mut |gap_us| load.event_gap(tag, gap_us);
                // An answer has begun, so there will be no second try.
                let request = entry.exchange.take_request();
                self.spare.put(request);
                entry.exchange.on_read(route, &self.scratch[..count], now_us, gap)
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                return;
            }
            Err(error) => entry.exchange.on_read_error(&error),
        };
        self.follow(slot, flow, load);
    }

    /// Does what an exchange wants.
    fn follow(&mut self, slot: usize, flow: Flow, load: &mut dyn Load) {
        match flow {
            Flow::More => self.schedule(slot),
            Flow::Done { keep } => {
                if keep {
                    self.keep(slot);
                }
                self.end(slot, None, load);
            }
            Flow::Stale => {
                self.hang_up(slot);
                if let Some(entry) = self.slots.get_mut(slot) {
                    entry.exchange.retry();
                }
                self.attempt(slot, load);
            }
            Flow::Cancel => {
                let now_us = self.clock.now_us();
                if let Some(entry) = self.slots.get_mut(slot) {
                    let close = entry.exchange.cut(now_us);
                    // A stream of HTTP/2 is reset, whichever way was asked for: others share its connection.
                    let alone = entry.line.filter(|key| {
                        self.lines.get_mut(*key).is_some_and(|line| {
                            line.slot == Some(slot) && line.waiting.is_empty() && line.one().is_some()
                        })
                    });
                    if let Some(key) = alone {
                        entry.line = None;
                        self.pools[entry.exchange.route()].forget(key);
                        if let Some(Line { wire: Wire::One(connection), .. }) = self.lines.remove(key) {
                            connection.cut(close);
                        }
                    }
                }
                self.end(slot, Some(&Failure::Cancelled), load);
            }
            Flow::Failed(failure) => self.end(slot, Some(&failure), load),
        }
    }

    /// Puts the connection of a request back, if it may serve another one.
    fn keep(&mut self, slot: usize) {
        let Some(entry) = self.slots.get_mut(slot) else { return };
        let Some(line) = entry.line.and_then(|key| self.lines.get_mut(key)) else { return };
        if line.two().is_some() {
            // The stream is over, its connection stays.
            entry.line = None;
            return;
        }
        line.served += 1;
        if let KeepAlive::Requests(most) = self.shared.routes[line.route].keep
            && line.served >= most
        {
            return;
        }
        line.slot = None;
        line.doing = Doing::Idle;
        self.pools[line.route].idle.extend(entry.line.take());
    }

    /// Lets go of the connection of a request, if it still has one; one that nobody else uses is closed.
    fn hang_up(&mut self, slot: usize) {
        let Some(entry) = self.slots.get_mut(slot) else { return };
        let route = entry.exchange.route();
        let Some(key) = entry.line.take() else {
            self.pools[route].for_name.retain(|waiting| *waiting != slot);
            return;
        };
        let Some(line) = self.lines.get_mut(key) else { return };
        line.waiting.retain(|waiting| *waiting != slot);
        if let Some(session) = line.two() {
            session.drop_stream(slot);
            self.dirty.push(key);
        }
        if line.slot != Some(slot) {
            return;
        }
        // Those that wait for the connection take it over.
        line.slot = line.waiting.pop_front();
        if line.slot.is_none() && line.doing != Doing::Sharing {
            self.pools[route].forget(key);
            self.lines.remove(key);
        }
    }

    fn end(&mut self, slot: usize, failure: Option<&Failure>, load: &mut dyn Load) {
        self.hang_up(slot);
        let Some(mut entry) = self.slots.remove(slot) else { return };
        self.spare.put(entry.exchange.take_request());
        let now_us = self.clock.now_us();
        let ended = entry.exchange.finish(failure, &self.shared.redactor, now_us);
        self.ended = true;
        load.ended(ended, now_us);
    }

    /// Sees to it that the nearest deadline of a request is met.
    fn schedule(&mut self, slot: usize) {
        let Some(entry) = self.slots.get_mut(slot) else { return };
        let (at_us, _) = entry.exchange.deadlines.next();
        if self.armed.len() <= slot {
            self.armed.resize(slot + 1, None);
        }
        match self.armed[slot] {
            // One that is early wakes once for nothing; one that is late must be moved.
            Some(armed_us) if armed_us <= at_us => return,
            Some(armed_us) => {
                self.timers.remove(&(armed_us, slot));
            }
            None => {}
        }
        self.armed[slot] = Some(at_us);
        self.timers.insert((at_us, slot));
    }

    fn expire(&mut self, load: &mut dyn Load) {
        while let Some((at_us, slot)) = self.timers.first().copied() {
            let now_us = self.clock.now_us();
            if at_us > now_us {
                return;
            }
            self.timers.pop_first();
            self.armed[slot] = None;
            if let Some(entry) = self.slots.get_mut(slot) {
                let flow = entry.exchange.on_deadline(now_us);
                self.follow(slot, flow, load);
            }
        }
    }

    /// Cuts everything that is open.
    fn abort(&mut self, load: &mut dyn Load) {
        for slot in self.slots.keys() {
            self.end(slot, Some(&Failure::Interrupted), load);
        }
    }
}

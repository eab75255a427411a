//! The event loop of one thread: connections, requests in flight, their deadlines, and the sends that are due. It
//! writes requests itself at their planned instants, between any two events if need be.

use std::collections::BTreeSet;
use std::io;

use stats::Histogram;

use super::exchange::{Exchange, Flow};
use super::poller::{Interest, Poller, Ready, Waker};
use super::slab::Slab;
use super::spare::Spare;
use super::{KeepAlive, Load, Next, Shared, Work};
use crate::classify::{Failure, Stage};
use crate::clock::Clock;
use crate::connection::{Connection, SCRATCH_BYTES};
use crate::error::LoadgenError;
use crate::halt::Halt;

/// With spinning, how long before a planned instant sleeping ends.
const SPIN_US: u64 = 80;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    Idle,
    Connecting,
    Writing { done: usize },
    Reading,
}

#[derive(Debug)]
struct Line {
    connection: Connection,
    route: usize,
    /// The request that uses it.
    slot: Option<usize>,
    doing: Doing,
    interest: Interest,
    served: u64,
}

struct Slot {
    exchange: Exchange,
    line: Option<usize>,
    /// Which address of the target is tried.
    address: usize,
}

/// One event loop.
pub struct Reactor {
    clock: Clock,
    shared: Shared,
    poller: Poller,
    lines: Slab<Line>,
    slots: Slab<Slot>,
    /// Idle connections by route; last in, first out, so that those that are not needed go stale.
    idle: Vec<Vec<usize>>,
    /// One entry a slot at most, kept over its requests: moving a deadline back costs nothing.
    timers: BTreeSet<(u64, usize)>,
    armed: Vec<Option<u64>>,
    scratch: Box<[u8]>,
    spare: Spare,
    spin: bool,
    sent: u64,
    connections: u64,
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
        let idle = shared.routes.iter().map(|_| Vec::new()).collect();
        Ok(Self {
            clock,
            shared,
            poller,
            lines: Slab::default(),
            slots: Slab::default(),
            idle,
            timers: BTreeSet::new(),
            armed: Vec::new(),
            scratch: vec![0; SCRATCH_BYTES].into_boxed_slice(),
            spare: Spare::default(),
            spin,
            sent: 0,
            connections: 0,
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
            if self.start_due(load) && self.slots.is_empty() {
                return;
            }
            self.expire(load);
            if self.ended {
                continue;
            }
            self.loop_turn.record(self.clock.now_us().saturating_sub(now_us));
            self.wait(tick_us, &mut ready);
            for event in ready.drain(..) {
                self.on_ready(event, load);
                // A send that falls due does not wait for the rest of the events.
                if self.ended || self.next_at.is_some_and(|at_us| self.clock.now_us() >= at_us) {
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
        self.poller.wait(timeout, ready);
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
        let slot = self.slots.insert(Slot { exchange, line: None, address: 0 });
        self.attempt(slot, load);
    }

    /// Sends on a kept connection, or begins a new one.
    fn attempt(&mut self, slot: usize, load: &mut dyn Load) {
        let Some(entry) = self.slots.get_mut(slot) else { return };
        let route = entry.exchange.route();
        // After a stale connection the second try is on a fresh one, so it can't be stale again.
        let kept = if entry.exchange.is_second_try() { None } else { self.idle[route].pop() };
        let Some(key) = kept else {
            entry.exchange.on_connect(&self.shared.routes[route], self.clock.now_us());
            entry.address = 0;
            self.connect(slot, load);
            return;
        };
        entry.line = Some(key);
        entry.exchange.on_send(&self.shared.routes[route], true, self.clock.now_us());
        if let Some(line) = self.lines.get_mut(key) {
            line.slot = Some(slot);
            line.doing = Doing::Writing { done: 0 };
        }
        self.write(key, load);
    }

    fn connect(&mut self, slot: usize, load: &mut dyn Load) {
        let Some(entry) = self.slots.get_mut(slot) else { return };
        let route = entry.exchange.route();
        let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
        let addresses = &self.shared.routes[route].target.addresses;
        while let Some(address) = addresses.get(entry.address) {
            match Connection::begin(*address) {
                Ok(connection) => {
                    let key = self.lines.insert(Line {
                        connection,
                        route,
                        slot: Some(slot),
                        doing: Doing::Connecting,
                        interest: Interest::ReadWrite,
                        served: 0,
                    });
                    entry.line = Some(key);
                    self.connections += 1;
                    let added = self
                        .lines
                        .get_mut(key)
                        .map(|line| self.poller.add(&line.connection, key, Interest::ReadWrite));
                    if let Some(Err(errno)) = added {
                        self.end(slot, Some(&Failure::of_io(&errno.into(), Stage::Connect)), load);
                    } else {
                        self.schedule(slot);
                    }
                    return;
                }
                Err(error) => last = error,
            }
            entry.address += 1;
        }
        self.end(slot, Some(&Failure::of_io(&last, Stage::Connect)), load);
    }

    fn on_ready(&mut self, event: Ready, load: &mut dyn Load) {
        let Some(line) = self.lines.get_mut(event.key) else { return };
        match line.doing {
            // Closed by the peer, or unasked bytes: of no use either way.
            Doing::Idle => {
                let route = line.route;
                self.idle[route].retain(|key| *key != event.key);
                self.lines.remove(event.key);
            }
            Doing::Connecting => self.on_connecting(event.key, load),
            // The peer answers or closes before it has everything: the rest is not sent.
            Doing::Writing { .. } if event.readable => {
                self.set(event.key, Doing::Reading, Interest::Read);
                self.read(event.key, load);
            }
            Doing::Writing { .. } => self.write(event.key, load),
            Doing::Reading => self.read(event.key, load),
        }
    }

    fn on_connecting(&mut self, key: usize, load: &mut dyn Load) {
        let Some(line) = self.lines.get_mut(key) else { return };
        let Some(slot) = line.slot else { return };
        let Some(entry) = self.slots.get_mut(slot) else { return };
        let now_us = self.clock.now_us();
        match line.connection.connected() {
            Ok(false) => {}
            Ok(true) => {
                entry.exchange.on_connected(now_us);
                entry.exchange.on_send(&self.shared.routes[line.route], false, now_us);
                line.doing = Doing::Writing { done: 0 };
                self.write(key, load);
            }
            Err(error) => {
                self.lines.remove(key);
                entry.line = None;
                entry.address += 1;
                if entry.address < self.shared.routes[entry.exchange.route()].target.addresses.len() {
                    self.connect(slot, load);
                } else {
                    self.end(slot, Some(&Failure::of_io(&error, Stage::Connect)), load);
                }
            }
        }
    }

    fn set(&mut self, key: usize, doing: Doing, interest: Interest) {
        let Some(line) = self.lines.get_mut(key) else { return };
        line.doing = doing;
        if line.interest != interest && self.poller.modify(&line.connection, key, interest).is_ok() {
            line.interest = interest;
        }
    }

    fn write(&mut self, key: usize, load: &mut dyn Load) {
        let Some(line) = self.lines.get_mut(key) else { return };
        let (Some(slot), Doing::Writing { mut done }) = (line.slot, line.doing) else { return };
        let Some(entry) = self.slots.get_mut(slot) else { return };
        while done < entry.exchange.request().len() {
            match line.connection.write(&entry.exchange.request()[done..]) {
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
        let flow = match line.connection.read(&mut self.scratch) {
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
                    if let Some(line) = entry.line.take().and_then(|key| self.lines.remove(key)) {
                        line.connection.cut(close);
                    }
                }
                self.end(slot, Some(&Failure::Cancelled), load);
            }
            Flow::Failed(failure) => self.end(slot, Some(&failure), load),
        }
    }

    /// Puts the connection of a request back, if it may serve another one.
    fn keep(&mut self, slot: usize) {
        let Some(key) = self.slots.get_mut(slot).and_then(|entry| entry.line) else { return };
        let Some(line) = self.lines.get_mut(key) else { return };
        line.served += 1;
        if let KeepAlive::Requests(most) = self.shared.routes[line.route].keep
            && line.served >= most
        {
            return;
        }
        line.slot = None;
        line.doing = Doing::Idle;
        self.idle[line.route].push(key);
        if let Some(entry) = self.slots.get_mut(slot) {
            entry.line = None;
        }
    }

    /// Closes the connection of a request, if it still has one.
    fn hang_up(&mut self, slot: usize) {
        let key = self.slots.get_mut(slot).and_then(|entry| entry.line.take());
        if let Some(key) = key {
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

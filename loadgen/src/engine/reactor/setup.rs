//! From a request to a connection that carries it: kept, shared, waited for, or new (name, TCP, TLS, version of HTTP).

use std::collections::VecDeque;
use std::io;

use super::{Doing, Line, Reactor, Wire};
use crate::classify::{Failure, Stage};
use crate::connection::Connection;
use crate::connection::http2::Session;
use crate::connection::transport::Dns;
use crate::engine::Load;
use crate::engine::poller::Interest;
use crate::engine::resolver::Resolver;

impl Reactor {
    /// Sends on a connection that is there, waits for one that is being made, or begins a new one.
    pub(super) fn attempt(&mut self, slot: usize, load: &mut dyn Load) {
        let Some(entry) = self.slots.get_mut(slot) else { return };
        let route = entry.exchange.route();
        // After a stale connection the second try is on a fresh one, so it can't be stale again.
        if !entry.exchange.is_second_try() {
            if let Some(key) = self.pools[route].idle.pop() {
                self.send_on(slot, key, true, load);
                return;
            }
            if let Some(key) = self.with_room(route) {
                self.open_stream(slot, key, load);
                return;
            }
        }
        if self.join_pending(slot) {
            return;
        }
        let now_us = self.clock.now_us();
        let Some(entry) = self.slots.get_mut(slot) else { return };
        let (shared, pool) = (&self.shared.routes[route], &mut self.pools[route]);
        entry.exchange.on_connect(shared, now_us);
        let needs_name = match shared.transport.dns {
            Dns::Once => false,
            Dns::PerConnection => true,
            Dns::Every(span) => pool.resolved_us.is_none_or(|last_us| now_us >= last_us + span.us()),
        };
        if needs_name {
            self.ask_name(slot, load);
        } else {
            self.connect_anew(slot, load);
        }
    }

    /// Waits for a connection that another request has begun, where requests may share it.
    fn join_pending(&mut self, slot: usize) -> bool {
        let Some(entry) = self.slots.get_mut(slot) else { return false };
        let number = entry.exchange.route();
        let (route, pool) = (&self.shared.routes[number], &self.pools[number]);
        if !route.transport.may_share() || pool.speaks_one {
            return false;
        }
        for key in &pool.pending {
            let Some(line) = self.lines.get_mut(*key) else { continue };
            if line.waiting.len() + 1 < route.transport.streams {
                line.waiting.push_back(slot);
                entry.line = Some(*key);
                entry.exchange.on_wait(route, self.clock.now_us());
                self.schedule(slot);
                return true;
            }
        }
        false
    }

    fn ask_name(&mut self, slot: usize, load: &mut dyn Load) {
        let Some(entry) = self.slots.get_mut(slot) else { return };
        let route = entry.exchange.route();
        if self.resolver.is_none() {
            match Resolver::start(self.clock, self.poller.waker()) {
                Ok(resolver) => self.resolver = Some(resolver),
                Err(error) => {
                    let failure = Failure::NoName(format!("no thread for the resolver: {error}"));
                    self.end(slot, Some(&failure), load);
                    return;
                }
            }
        }
        let pool = &mut self.pools[route];
        pool.for_name.push(slot);
        if !pool.resolving
            && let Some(resolver) = &self.resolver
        {
            pool.resolving = true;
            let target = &self.shared.routes[route].target;
            let (name, port) = target.peer();
            resolver.ask(route, name, port);
        }
        self.schedule(slot);
    }

    /// Takes what the resolver has found.
    pub(super) fn take_names(&mut self, load: &mut dyn Load) {
        while let Some(answer) = self.resolver.as_ref().and_then(Resolver::answer) {
            let pool = &mut self.pools[answer.route];
            pool.resolving = false;
            let waiting = std::mem::take(&mut pool.for_name);
            self.wires.name_lookups += 1;
            match answer.found {
                Ok(addresses) => {
                    pool.set_addresses(&addresses);
                    pool.resolved_us = Some(self.clock.now_us());
                    for slot in waiting {
                        if let Some(entry) = self.slots.get_mut(slot) {
                            entry.exchange.on_resolved(answer.took_us);
                        }
                        if !self.join_pending(slot) {
                            self.connect_anew(slot, load);
                        }
                    }
                }
                Err(why) => {
                    let failure = Failure::NoName(why);
                    waiting.into_iter().for_each(|slot| self.end(slot, Some(&failure), load));
                }
            }
        }
    }

    fn connect_anew(&mut self, slot: usize, load: &mut dyn Load) {
        let Some(entry) = self.slots.get_mut(slot) else { return };
        entry.address = self.pools[entry.exchange.route()].rotate();
        entry.tried = 0;
        self.connect(slot, VecDeque::new(), None, load);
    }

    /// Begins a connection to the next address; `waiting` share its fate. Without a further address all of them fail,
    /// by the last error.
    fn connect(
        &mut self,
        slot: usize,
        waiting: VecDeque<usize>,
        last: Option<io::Error>,
        load: &mut dyn Load,
    ) {
        let Some(entry) = self.slots.get_mut(slot) else { return };
        let route = entry.exchange.route();
        let mut last = last.unwrap_or_else(|| io::ErrorKind::AddrNotAvailable.into());
        while entry.tried < self.pools[route].addresses() {
            let Some(address) = self.pools[route].address(entry.address + entry.tried) else { break };
            entry.tried += 1;
            let begun = Connection::begin(address).and_then(|connection| {
                let line = Line {
                    wire: Wire::One(connection),
                    route,
                    slot: Some(slot),
                    waiting: VecDeque::new(),
                    doing: Doing::Connecting,
                    interest: Interest::ReadWrite,
                    served: 0,
                    part: None,
                    peer: self.peers.number(address),
                };
                let key = self.lines.insert(line);
                let Some(Line { wire: Wire::One(connection), .. }) = self.lines.get_mut(key) else {
                    return Ok(key);
                };
                if let Err(errno) = self.poller.add(&*connection, key, Interest::ReadWrite) {
                    self.lines.remove(key);
                    return Err(errno.into());
                }
                Ok(key)
            });
            match begun {
                Ok(key) => {
                    entry.line = Some(key);
                    self.connections += 1;
                    for other in &waiting {
                        if let Some(other) = self.slots.get_mut(*other) {
                            other.line = Some(key);
                        }
                    }
                    if let Some(line) = self.lines.get_mut(key) {
                        line.waiting = waiting;
                    }
                    if self.shared.routes[route].transport.may_share() && !self.pools[route].speaks_one {
                        self.pools[route].pending.push(key);
                    }
                    self.schedule(slot);
                    return;
                }
                Err(error) => last = error,
            }
        }
        let failure = match Failure::of_io(&last, Stage::Connect) {
            // Nobody knows about the target: it is the proxy that is not there.
            Failure::Refused(why) | Failure::Lost(why)
                if self.shared.routes[route].target.proxy.is_some() =>
            {
                Failure::NoProxy(format!("no connection: {why}"))
            }
            failure => failure,
        };
        self.end_all(slot, waiting, &failure, load);
    }

    fn end_all(&mut self, slot: usize, waiting: VecDeque<usize>, failure: &Failure, load: &mut dyn Load) {
        for slot in std::iter::once(slot).chain(waiting) {
            if let Some(entry) = self.slots.get_mut(slot) {
                entry.line = None;
            }
            self.end(slot, Some(failure), load);
        }
    }

    /// A connection that came to nothing, with everything that waited for it.
    pub(super) fn fail_line(&mut self, key: usize, failure: &Failure, load: &mut dyn Load) {
        let Some(line) = self.lines.remove(key) else { return };
        self.pools[line.route].forget(key);
        let mut all = line.waiting;
        all.extend(line.slot);
        if let Some(first) = all.pop_back() {
            self.end_all(first, all, failure, load);
        }
    }

    pub(super) fn on_connecting(&mut self, key: usize, load: &mut dyn Load) {
        let Some(line) = self.lines.get_mut(key) else { return };
        let (Some(slot), Wire::One(connection)) = (line.slot, &mut line.wire) else { return };
        let Some(entry) = self.slots.get_mut(slot) else { return };
        let route = line.route;
        let address = self.peers.address(line.peer);
        match connection.connected() {
            Ok(false) => {}
            Ok(true) => {
                entry.exchange.on_connected(self.clock.now_us());
                self.peers.connected(line.peer);
                address.into_iter().for_each(|at| self.pools[route].went(at, true));
                match self.shared.routes[route].target.tunnel() {
                    None => self.secure(key, load),
                    Some(asked) => {
                        connection.ask_tunnel(asked);
                        line.doing = Doing::Tunnelling;
                        self.on_tunnelling(key, load);
                    }
                }
            }
            Err(error) => {
                address.into_iter().for_each(|at| self.pools[route].went(at, false));
                self.pools[route].forget(key);
                entry.line = None;
                let waiting = std::mem::take(&mut line.waiting);
                self.lines.remove(key);
                self.connect(slot, waiting, Some(error), load);
            }
        }
    }

    /// Goes on with the tunnel through the proxy.
    pub(super) fn on_tunnelling(&mut self, key: usize, load: &mut dyn Load) {
        let Some(line) = self.lines.get_mut(key) else { return };
        let Wire::One(connection) = &mut line.wire else { return };
        match connection.tunnel(&mut self.scratch) {
            Ok(true) => {
                if let Some(entry) = line.slot.and_then(|slot| self.slots.get_mut(slot)) {
                    entry.exchange.on_tunnelled(self.clock.now_us());
                }
                self.secure(key, load);
            }
            Ok(false) => {
                let interest = if connection.wants_write() { Interest::ReadWrite } else { Interest::Read };
                line.watch(&self.poller, key, interest);
            }
            Err(why) => self.fail_line(key, &Failure::NoProxy(why), load),
        }
    }

    /// Begins TLS where there is TLS.
    fn secure(&mut self, key: usize, load: &mut dyn Load) {
        let Some(line) = self.lines.get_mut(key) else { return };
        let Wire::One(connection) = &mut line.wire else { return };
        match self.shared.routes[line.route].transport.client() {
            Ok(None) => self.choose_version(key, load),
            Ok(Some(tls)) => {
                connection.secure(tls);
                line.doing = Doing::Securing;
                self.on_securing(key, load);
            }
            Err(error) => self.fail_line(key, &Failure::NoTls(error.to_string()), load),
        }
    }

    pub(super) fn on_securing(&mut self, key: usize, load: &mut dyn Load) {
        let Some(line) = self.lines.get_mut(key) else { return };
        let (Some(slot), Wire::One(connection)) = (line.slot, &mut line.wire) else { return };
        match connection.handshake() {
            Ok(true) => {
                self.wires.tls_handshakes += 1;
                if let Some(entry) = self.slots.get_mut(slot) {
                    entry.exchange.on_secured(self.clock.now_us());
                }
                self.choose_version(key, load);
            }
            Ok(false) => {
                let interest = if connection.wants_write() { Interest::ReadWrite } else { Interest::Read };
                line.watch(&self.poller, key, interest);
            }
            Err(error) => {
                let why = match error.kind() {
                    io::ErrorKind::InvalidData => error.to_string(),
                    _ => format!("the connection ended in the handshake: {error}"),
                };
                self.fail_line(key, &Failure::NoTls(why), load);
            }
        }
    }

    /// The connection stands: which version of HTTP it speaks.
    fn choose_version(&mut self, key: usize, load: &mut dyn Load) {
        let Some(line) = self.lines.get_mut(key) else { return };
        let (Some(slot), Wire::One(connection)) = (line.slot, &mut line.wire) else { return };
        let number = line.route;
        let route = &self.shared.routes[number];
        match route.transport.is_http2(connection.alpn()) {
            Some(true) => {
                let Wire::One(connection) = std::mem::replace(&mut line.wire, Wire::Moving) else { return };
                let session = Session::new(connection, route.target.host.clone(), route.target.secure);
                line.wire = Wire::Two(Box::new(session));
                line.doing = Doing::Greeting;
                self.wires.http2_connections += 1;
                self.turn(key, load);
            }
            Some(false) => {
                self.wires.http1_connections += 1;
                let waiting = std::mem::take(&mut line.waiting);
                self.pools[number].speaks_one = true;
                self.pools[number].forget(key);
                self.send_on(slot, key, false, load);
                for slot in waiting {
                    if let Some(entry) = self.slots.get_mut(slot) {
                        entry.line = None;
                        self.attempt(slot, load);
                    }
                }
            }
            None => {
                let why = "the peer does not offer HTTP/2 (ALPN)".to_owned();
                self.fail_line(key, &Failure::NoTls(why), load);
            }
        }
    }

    /// Sends a request on a connection of HTTP/1.1.
    fn send_on(&mut self, slot: usize, key: usize, kept: bool, load: &mut dyn Load) {
        let Some(entry) = self.slots.get_mut(slot) else { return };
        let Some(line) = self.lines.get_mut(key) else { return };
        entry.line = Some(key);
        entry.exchange.on_connection(&mut line.part);
        entry.exchange.on_send(&self.shared.routes[line.route], kept, self.clock.now_us());
        line.slot = Some(slot);
        line.doing = Doing::Writing { done: 0 };
        self.peers.requested(line.peer);
        self.write(key, load);
    }
}

//! Connections of HTTP/2: many requests on one.

use super::{Doing, Reactor};
use crate::classify::Failure;
use crate::connection::http2::Event;
use crate::engine::exchange::Flow;
use crate::engine::poller::Interest;
use crate::engine::{KeepAlive, Load};

impl Reactor {
    /// A connection of HTTP/2 with room for one more stream.
    pub(super) fn with_room(&mut self, route: usize) -> Option<usize> {
        let most = self.shared.routes[route].transport.streams;
        let pool = &self.pools[route];
        if pool.shared.is_empty() {
            return None;
        }
        let lines = &mut self.lines;
        let found = pool.shared.iter().copied().find(|key| {
            let session = lines.get_mut(*key).and_then(super::Line::two);
            session.is_some_and(|session| session.has_room(most))
        });
        self.wires.streams_used_up += u64::from(found.is_none());
        found
    }

    pub(super) fn open_stream(&mut self, slot: usize, key: usize, load: &mut dyn Load) {
        let now_us = self.clock.now_us();
        let (Some(entry), Some(line)) = (self.slots.get_mut(slot), self.lines.get_mut(key)) else { return };
        let number = line.route;
        let route = &self.shared.routes[number];
        entry.exchange.on_send(route, line.served > 0, now_us);
        entry.exchange.on_stream();
        entry.exchange.on_connection(&mut line.part);
        entry.line = Some(key);
        line.served += 1;
        let (served, peer) = (line.served, line.peer);
        let Some(session) = line.two() else { return };
        if let Err(why) = session.open(slot, entry.exchange.request()) {
            session.retire();
            self.pools[number].forget(key);
            self.end(slot, Some(&Failure::Lost(why)), load);
            return;
        }
        if matches!(route.keep, KeepAlive::Requests(most) if served >= most) {
            session.retire();
            self.pools[number].forget(key);
        }
        self.wires.streams_open_max = self.wires.streams_open_max.max(session.open_streams() as u64);
        self.peers.requested(peer);
        self.dirty.push(key);
        self.schedule(slot);
    }

    /// Sends what was left to be sent.
    pub(super) fn turn_dirty(&mut self, load: &mut dyn Load) {
        let mut keys = std::mem::take(&mut self.dirty);
        keys.sort_unstable();
        keys.dedup();
        keys.into_iter().for_each(|key| self.turn(key, load));
    }

    /// Does what can be done on a connection now.
    pub(super) fn turn(&mut self, key: usize, load: &mut dyn Load) {
        let mut events = std::mem::take(&mut self.events);
        let Some(session) = self.lines.get_mut(key).and_then(super::Line::two) else { return };
        session.turn(&mut events);
        let granted = session.granted();
        if granted > 0 {
            self.share(key, granted, load);
        }
        let now_us = self.clock.now_us();
        for (slot, event) in events.drain(..) {
            self.on_event(slot, key, event, now_us, load);
        }
        self.events = events;
        self.settle(key, load);
    }

    /// The peer has said how many streams it grants: those that wait begin.
    fn share(&mut self, key: usize, granted: usize, load: &mut dyn Load) {
        let Some(line) = self.lines.get_mut(key) else { return };
        if line.doing != Doing::Greeting {
            return;
        }
        line.doing = Doing::Sharing;
        let number = line.route;
        let slots: Vec<usize> =
            line.slot.take().into_iter().chain(std::mem::take(&mut line.waiting)).collect();
        let granted = granted as u64;
        // One that sets no limit grants as many as there are.
        let limited = Some(granted).filter(|granted| *granted < u64::from(u32::MAX));
        self.wires.streams_granted_min = self.wires.streams_granted_min.into_iter().chain(limited).min();
        self.pools[number].forget(key);
        self.pools[number].shared.push(key);
        let most = self.shared.routes[number].transport.streams;
        for slot in slots {
            let session = self.lines.get_mut(key).and_then(super::Line::two);
            if session.is_some_and(|session| session.has_room(most)) {
                self.open_stream(slot, key, load);
            } else if let Some(entry) = self.slots.get_mut(slot) {
                entry.line = None;
                self.attempt(slot, load);
            }
        }
    }

    fn on_event(&mut self, slot: usize, key: usize, event: Event, now_us: u64, load: &mut dyn Load) {
        let Some(entry) = self.slots.get_mut(slot) else { return };
        // One that was cut in this turn may have left events behind.
        if entry.line != Some(key) {
            return;
        }
        let route = &self.shared.routes[entry.exchange.route()];
        let flow = match event {
            Event::Sent => {
                let (first, flow) = entry.exchange.on_sent(route, now_us);
                self.sent += u64::from(first);
                flow
            }
            Event::Head(head) => {
                // An answer has begun, so there will be no second try.
                let request = entry.exchange.take_request();
                self.spare.put(request);
                entry.exchange.on_stream_head(route, *head, now_us)
            }
            Event::Data(data) => {
                let tag = entry.exchange.tag();
                entry.exchange.on_stream_data(route, &data, now_us, &mut |gap_us| load.event_gap(tag, gap_us))
            }
            Event::End => entry.exchange.on_stream_end(now_us),
            Event::Failed(broken) => {
                self.wires.streams_reset += u64::from(!broken.connection_died);
                entry.exchange.on_broken(&broken)
            }
        };
        if flow == Flow::More {
            self.schedule(slot);
        } else {
            self.follow(slot, flow, load);
        }
    }

    /// After a turn: what becomes of the connection, and what its socket is watched for.
    fn settle(&mut self, key: usize, load: &mut dyn Load) {
        let Some(line) = self.lines.get_mut(key) else { return };
        let (number, greeting) = (line.route, line.doing == Doing::Greeting);
        let Some(session) = line.two() else { return };
        let over = session.dead().is_some();
        if over && greeting {
            let why = session.dead().unwrap_or_default().to_owned();
            self.fail_line(key, &Failure::BadHttp(format!("HTTP/2 did not come up: {why}")), load);
            return;
        }
        if session.is_closing() {
            let empty = session.open_streams() == 0;
            self.pools[number].forget(key);
            if over || (empty && !session.wants_turn()) {
                self.lines.remove(key);
                return;
            }
        }
        if session.wants_turn() {
            self.dirty.push(key);
        }
        let interest = if session.wants_write() { Interest::ReadWrite } else { Interest::Read };
        line.watch(&self.poller, key, interest);
    }
}

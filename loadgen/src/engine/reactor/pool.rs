//! Connections and addresses of one route.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use crate::result::Peer;
use crate::target::Target;

/// One address of a target.
#[derive(Clone, Copy, Debug)]
struct Address {
    at: SocketAddr,
    /// The last connection to it failed; others are tried first.
    bad: bool,
}

/// What a route has.
#[derive(Debug, Default)]
pub(super) struct Pool {
    /// Idle connections of HTTP/1.1; last in, first out, so that those that are not needed go stale.
    pub(super) idle: Vec<usize>,
    /// Connections of HTTP/2.
    pub(super) shared: Vec<usize>,
    /// Connections that don't stand yet and may turn out to be HTTP/2.
    pub(super) pending: Vec<usize>,
    /// The peer has chosen HTTP/1.1.
    pub(super) speaks_one: bool,
    addresses: Vec<Address>,
    next: usize,
    /// When the name was last resolved.
    pub(super) resolved_us: Option<u64>,
    /// The resolver is at it.
    pub(super) resolving: bool,
    /// Requests that wait for the resolver.
    pub(super) for_name: Vec<usize>,
}

impl Pool {
    pub(super) fn new(target: &Target) -> Self {
        let mut pool = Self::default();
        pool.set_addresses(&target.addresses);
        pool
    }

    /// What the resolver said; what is known of an address stays known.
    pub(super) fn set_addresses(&mut self, found: &[SocketAddr]) {
        let bad = |at: &SocketAddr| self.addresses.iter().any(|known| known.at == *at && known.bad);
        self.addresses = found.iter().map(|at| Address { at: *at, bad: bad(at) }).collect();
    }

    /// How many addresses there are.
    pub(super) fn addresses(&self) -> usize {
        self.addresses.len()
    }

    /// Where the next connection begins: all addresses in turn, those that failed last left out while others are left.
    pub(super) fn rotate(&mut self) -> usize {
        let count = self.addresses.len().max(1);
        for _ in 0..count {
            let index = self.next % count;
            self.next = (index + 1) % count;
            if self.addresses.get(index).is_some_and(|address| !address.bad) {
                return index;
            }
        }
        let index = self.next % count;
        self.next = (index + 1) % count;
        index
    }

    /// The address at a place, counted round.
    pub(super) fn address(&self, place: usize) -> Option<SocketAddr> {
        self.addresses.get(place % self.addresses.len().max(1)).map(|address| address.at)
    }

    /// Notes how a connection to an address went.
    pub(super) fn went(&mut self, at: SocketAddr, well: bool) {
        self.addresses.iter_mut().filter(|address| address.at == at).for_each(|address| address.bad = !well);
    }

    /// Takes a connection out of all lists.
    pub(super) fn forget(&mut self, key: usize) {
        for list in [&mut self.idle, &mut self.shared, &mut self.pending] {
            list.retain(|listed| *listed != key);
        }
    }
}

/// Counts by address.
#[derive(Debug, Default)]
pub(super) struct Peers(Vec<(SocketAddr, Peer)>);

impl Peers {
    /// The number of an address.
    pub(super) fn number(&mut self, at: SocketAddr) -> usize {
        if let Some(found) = self.0.iter().position(|(known, _)| *known == at) {
            return found;
        }
        self.0.push((at, Peer::default()));
        self.0.len() - 1
    }

    pub(super) fn address(&self, number: usize) -> Option<SocketAddr> {
        self.0.get(number).map(|(at, _)| *at)
    }

    pub(super) fn connected(&mut self, number: usize) {
        self.0.get_mut(number).into_iter().for_each(|(_, peer)| peer.connections += 1);
    }

    pub(super) fn requested(&mut self, number: usize) {
        self.0.get_mut(number).into_iter().for_each(|(_, peer)| peer.requests += 1);
    }

    /// The counts so far; the numbers stay.
    pub(super) fn take(&mut self) -> BTreeMap<String, Peer> {
        let counts = self.0.iter_mut().map(|(at, peer)| (at.to_string(), std::mem::take(peer)));
        counts.filter(|(_, peer)| peer.connections + peer.requests > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_take_turns_and_a_bad_one_is_left_out() {
        let at = |last: u8| SocketAddr::from(([127, 0, 0, last], 80));
        let mut pool = Pool::default();
        pool.set_addresses(&[at(1), at(2), at(3)]);
        let mut next = || {
            let place = pool.rotate();
            pool.address(place)
        };
        assert_eq!([next(), next(), next(), next()], [1, 2, 3, 1].map(|last| Some(at(last))));
        pool.went(at(2), false);
        let mut next = || {
            let place = pool.rotate();
            pool.address(place)
        };
        assert_eq!([next(), next(), next()], [3, 1, 3].map(|last| Some(at(last))));
        pool.set_addresses(&[at(2), at(4)]);
        assert_eq!(pool.rotate(), 1, "what is known of an address outlives a resolution");
        pool.went(at(4), false);
        let places = [pool.rotate(), pool.rotate()];
        assert!(places.contains(&0) && places.contains(&1), "all are bad: all are tried");
    }
}

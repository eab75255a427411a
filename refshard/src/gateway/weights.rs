//! How much of the hosts' capacity is there: weights of the public API, quarantined hosts, the caps that follow
//! (contract gateway 4.3).

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use super::Gateway;
use super::counts::number;
use super::limiter::{self, Caps};
use super::quarantine::Mode;
use crate::clock;

/// Weight of the hosts of all active escrows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weight {
    /// Of all hosts.
    pub full: u64,
    /// Of those that may be asked.
    pub current: u64,
    pub hosts: u64,
    pub available: u64,
    /// Hosts whose weight the public API has named.
    pub matched: u64,
    /// Participants that the public API has named, hosts or not.
    pub observed: u64,
}

impl Weight {
    /// Current over full; 1 without hosts.
    #[must_use]
    pub fn scale(&self) -> f64 {
        if self.full == 0 { 1.0 } else { number(self.current) / number(self.full) }
    }
}

impl Gateway {
    /// Weight of this moment. A host without a named weight counts 1.
    #[must_use]
    pub(super) fn weight(&self) -> Weight {
        let view = self.gate.view();
        let now_ns = clock::unix_ns();
        let residents = self.residents();
        let hosts: BTreeSet<&str> = residents
            .iter()
            .filter(|escrow| escrow.active.load(Ordering::Acquire))
            .flat_map(|escrow| escrow.by_slot.iter().map(|participant| participant.address.as_str()))
            .collect();
        let mut weight = Weight { observed: view.weights.len() as u64, ..Weight::default() };
        for host in hosts {
            let named = view.weights.get(host).copied();
            let own = named.unwrap_or(1);
            weight.hosts += 1;
            weight.matched += u64::from(named.is_some());
            weight.full += own;
            if self.quarantine.of(host, now_ns).mode != Mode::Probe {
                weight.available += 1;
                weight.current += own;
            }
        }
        weight
    }

    /// Caps of a model at this moment: settings, replaced by the weight once weights are known. July also
    /// takes away the share of quarantined hosts, down to nothing (finding J5).
    #[must_use]
    pub(super) fn caps(&self, model: &str) -> Caps {
        let settings = self.settings();
        let mut caps = limiter::caps(&settings, model);
        let weight = self.weight();
        if weight.matched > 0 {
            let per_10000 = settings.max_concurrent_requests_per_10000_weight;
            caps.requests = Some(weight.current.saturating_mul(per_10000) / 10_000);
        } else if self.is_july() && weight.current < weight.full {
            caps.requests = caps.requests.map(|cap| cap.saturating_mul(weight.current) / weight.full.max(1));
        }
        caps
    }

    /// Whether the admin has put a participant on the list of hosts that may not win.
    #[must_use]
    pub(super) fn is_suspicious(&self, address: &str) -> bool {
        let listed = self.store.suspicious().unwrap_or_default();
        listed.iter().any(|(key, ..)| key == address)
    }
}

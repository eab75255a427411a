//! Sessions of the story: what stands in the diffs of an escrow, and what a snapshot shows at each moment.
//!
//! Each request starts one nonce. Its receipt, its finish and one validation enter with later diffs; a closing diff
//! after the load brings what is left, another one ends the session.

use std::collections::BTreeMap;

use evidence::snapshot::{Diff, GatewayEscrow, HostEscrow, HostState, Inference, Tx};

/// Slots of each escrow; slot n belongs to `participant-n`, and inference i is executed by slot i mod 3.
pub const SLOTS: u64 = 3;

/// A session while it grows.
#[derive(Clone, Debug, Default)]
pub struct Session {
    pub escrow: String,
    pub diffs: Vec<Diff>,
    /// Transactions that enter with the next diff.
    waiting: Vec<Tx>,
    /// Inferences, and whether they ended by timeout.
    inferences: BTreeMap<u64, bool>,
}

/// Address of a slot's owner.
pub fn owner(slot: u64) -> String {
    format!("participant-{slot}")
}

pub fn tx(kind: &str, inference: Option<u64>, slot: Option<u64>, escrow: Option<&str>) -> Tx {
    Tx {
        kind: kind.to_owned(),
        inference,
        slot: slot.map(|slot| slot as u32),
        valid: (kind == "validation").then_some(true),
        escrow: escrow.map(str::to_owned),
        digest: format!("{kind}-{}", inference.unwrap_or_default()),
    }
}

impl Session {
    pub fn new(escrow: &str) -> Self {
        Self { escrow: escrow.to_owned(), ..Self::default() }
    }

    /// Starts an inference with a new nonce. One that times out has no receipt and no finish.
    pub fn start(&mut self, times_out: bool) -> u64 {
        let nonce = self.diffs.len() as u64 + 1;
        self.diff(tx("start", Some(nonce), None, None));
        self.inferences.insert(nonce, times_out);
        let executor = nonce % SLOTS;
        if times_out {
            self.waiting.push(tx("timeout", Some(nonce), None, None));
        } else {
            let escrow = Some(self.escrow.clone());
            let escrow = escrow.as_deref();
            self.waiting.push(tx("confirm_start", Some(nonce), None, None));
            self.waiting.push(tx("finish", Some(nonce), Some(executor), escrow));
            self.waiting.push(tx("validation", Some(nonce), Some(validator(nonce)), escrow));
        }
        nonce
    }

    /// Closes a round: a diff that starts nothing and brings what waits.
    pub fn close(&mut self) {
        self.diff(tx("finalize_round", None, None, None));
    }

    fn diff(&mut self, first: Tx) {
        let nonce = self.diffs.len() as u64 + 1;
        let mut txs = vec![first];
        txs.append(&mut self.waiting);
        self.diffs.push(Diff {
            nonce,
            content: format!("content-{}-{nonce}", self.escrow),
            state_hash: format!("hash-{}-{nonce}", self.escrow),
            post_state_root: format!("root-{}-{nonce}", self.escrow),
            txs,
        });
    }

    /// What the gateway shows.
    pub fn gateway(&self) -> GatewayEscrow {
        GatewayEscrow {
            escrow: self.escrow.clone(),
            nonce: self.diffs.len() as u64,
            phase: "active".to_owned(),
            balance: Some(1_000_000),
            group: (0..SLOTS).map(owner).collect(),
            pending: Vec::new(),
            inferences: self
                .inferences
                .iter()
                .map(|(nonce, late)| (*nonce, inference(*nonce, *late)))
                .collect(),
            highest_quorum_nonce: Some(self.diffs.len() as u64),
            active_requests: Some(0),
            refusal_timeout_s: Some(60),
            execution_timeout_s: Some(1_200),
        }
    }
}

/// Slot that validates an inference: the one after its executor.
pub fn validator(inference: u64) -> u64 {
    (inference + 1) % SLOTS
}

fn inference(nonce: u64, timed_out: bool) -> Inference {
    Inference {
        status: if timed_out { "timed_out" } else { "finished" }.to_owned(),
        executor_slot: (nonce % SLOTS) as u32,
        prompt_hash: Some(format!("prompt-{nonce}")),
        response_hash: (!timed_out).then(|| format!("response-{nonce}")),
        input_length: 64,
        max_tokens: 32,
        started_at: 1_700_000_000 + nonce,
        actual_cost: 40,
        ..Inference::default()
    }
}

/// Every host holds every session whole.
pub fn hosts(sessions: &[Session]) -> Vec<HostState> {
    let escrow = |session: &Session| HostEscrow {
        escrow: session.escrow.clone(),
        diffs: session.diffs.clone(),
        ..HostEscrow::default()
    };
    (0..SLOTS)
        .map(|slot| HostState {
            service: format!("host-{slot}"),
            participant: owner(slot),
            escrows: sessions.iter().map(escrow).collect(),
            epoch: None,
        })
        .collect()
}

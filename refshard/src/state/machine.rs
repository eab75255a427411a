//! Steps: order of nonces, atomic application, composition of new ones, roll back by journal.

use std::collections::BTreeMap;

use wire::devshard::{DevshardTx, Tx, TxKind};

use super::root::{self, LiveSum};
use super::types::{HostStats, Inference, Phase, SessionParams, StateError, StateRoot};

/// Whether signatures inside entries are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Everything that comes from somebody else.
    Verify,
    /// Replay of one's own durable log, whose roots are compared instead.
    OwnLog,
}

/// A step that [`Session::compose`] has made and applied.
#[derive(Clone, Debug, PartialEq)]
pub struct Composed {
    /// Its nonce.
    pub nonce: u64,
    /// Its entries, in order.
    pub txs: Vec<DevshardTx>,
    /// Root after it.
    pub root: StateRoot,
    /// Proposals that did not fit, with the reason; they are in no step.
    pub dropped: Vec<(Tx, StateError)>,
}

/// Everything of a session but its inferences: small, so that a roll back copies it whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Scalars {
    pub nonce: u64,
    pub balance: u64,
    pub fees: u64,
    pub phase: Phase,
    pub finalize_nonce: Option<u64>,
    pub stats: Vec<HostStats>,
    pub sealed_acc: [u8; 32],
    pub live_sum: LiveSum,
}

/// What a change overwrote.
#[derive(Debug)]
enum Undo {
    Live(u64, Option<Box<Inference>>),
    Sealed(u64),
}

/// One session's state. Equal for everybody who has applied the same steps.
#[derive(Debug)]
pub struct Session {
    pub(super) params: SessionParams,
    pub(super) now: Scalars,
    pub(super) live: BTreeMap<u64, Inference>,
    pub(super) sealed: BTreeMap<u64, Inference>,
    journal: Vec<Undo>,
}

impl Session {
    /// A session at nonce 0. The creation fee is taken at once.
    #[must_use]
    pub fn new(params: SessionParams) -> Self {
        let fee = params.config.create_devshard_fee.min(params.initial_balance);
        let now = Scalars {
            nonce: 0,
            balance: params.initial_balance - fee,
            fees: fee,
            phase: Phase::Active,
            finalize_nonce: None,
            stats: vec![HostStats::default(); params.group.len()],
            sealed_acc: [0; 32],
            live_sum: LiveSum::default(),
        };
        Self { params, now, live: BTreeMap::new(), sealed: BTreeMap::new(), journal: Vec::new() }
    }

    /// What the session began with.
    #[must_use]
    pub const fn params(&self) -> &SessionParams {
        &self.params
    }

    /// Latest step.
    #[must_use]
    pub const fn nonce(&self) -> u64 {
        self.now.nonce
    }

    /// Current phase.
    #[must_use]
    pub const fn phase(&self) -> Phase {
        self.now.phase
    }

    /// Money that is neither spent nor reserved.
    #[must_use]
    pub const fn balance(&self) -> u64 {
        self.now.balance
    }

    /// Fees so far.
    #[must_use]
    pub const fn fees(&self) -> u64 {
        self.now.fees
    }

    /// Step that began the finalization.
    #[must_use]
    pub const fn finalize_nonce(&self) -> Option<u64> {
        self.now.finalize_nonce
    }

    /// Statistics by slot.
    #[must_use]
    pub fn host_stats(&self) -> &[HostStats] {
        &self.now.stats
    }

    /// One inference, live or sealed.
    #[must_use]
    pub fn inference(&self, id: u64) -> Option<&Inference> {
        self.live.get(&id).or_else(|| self.sealed.get(&id))
    }

    /// Live inferences by id.
    #[must_use]
    pub const fn live(&self) -> &BTreeMap<u64, Inference> {
        &self.live
    }

    /// Sealed inferences by id.
    #[must_use]
    pub const fn sealed(&self) -> &BTreeMap<u64, Inference> {
        &self.sealed
    }

    /// Root of the current state.
    #[must_use]
    pub fn root(&self) -> StateRoot {
        root::state_root(&self.params, &self.now.stats, self.now.fees, &self.rest_hash(), self.now.phase)
    }

    /// Part of the root that a settlement gives as one value.
    #[must_use]
    pub fn rest_hash(&self) -> [u8; 32] {
        root::rest_hash(self.now.balance, &self.now.sealed_acc, self.now.live_sum)
    }

    /// Applies step `nonce`; `claimed_root` is compared when given. Steps up to the current nonce are
    /// skipped without a look at them, as the real host does. Returns whether the step was new.
    ///
    /// # Errors
    /// When the step is out of order, one of its entries does not fit, or the root differs. The state
    /// is then as before.
    pub fn apply(
        &mut self,
        nonce: u64,
        txs: &[DevshardTx],
        claimed_root: Option<&[u8]>,
        trust: Trust,
    ) -> Result<bool, StateError> {
        if nonce <= self.now.nonce {
            return Ok(false);
        }
        if nonce != self.now.nonce + 1 {
            return Err(StateError::Nonce { expected: self.now.nonce + 1, got: nonce });
        }
        let before = self.now.clone();
        let result = self.apply_all(nonce, txs, trust).and_then(|()| self.compare_root(claimed_root));
        self.settle_journal(before, result.is_ok(), 0);
        result.map(|()| true)
    }

    /// Makes the next step out of `proposed` entries of hosts, each only if it fits, in the order
    /// confirm, finish, validation, vote, and `own` entries of the user, all of which must fit.
    ///
    /// # Errors
    /// When an own entry does not fit or the fee cannot be paid. Nothing has changed then.
    pub fn compose(&mut self, proposed: Vec<Tx>, own: Vec<Tx>, trust: Trust) -> Result<Composed, StateError> {
        let nonce = self.now.nonce + 1;
        let before = self.now.clone();
        let mut dropped = Vec::new();
        let mut txs = Vec::new();
        let mut proposed = proposed;
        proposed.sort_by_key(|tx| (order_of(tx.kind()), tx.inference_id()));
        let result = self.begin(nonce).and_then(|()| {
            for tx in proposed {
                match self.apply_or_undo(nonce, &tx, trust) {
                    Ok(()) => txs.push(DevshardTx::from(tx)),
                    Err(error) => dropped.push((tx, error)),
                }
            }
            one_start(nonce, own.iter())?;
            for tx in own {
                self.effect(nonce, &tx, trust)?;
                txs.push(DevshardTx::from(tx));
            }
            self.end(nonce);
            Ok(())
        });
        self.settle_journal(before, result.is_ok(), 0);
        result.map(|()| Composed { nonce, txs, root: self.root(), dropped })
    }

    /// Whether `tx` would change the state if the next step carried it: the residue test of contract
    /// hosts 10. The state stays as it is.
    pub fn would_apply(&mut self, tx: &Tx, trust: Trust) -> bool {
        let before = self.now.clone();
        let nonce = before.nonce + 1;
        let applies = self.effect(nonce, tx, trust).is_ok() && !self.journal.is_empty();
        self.settle_journal(before, false, 0);
        applies
    }

    fn apply_all(&mut self, nonce: u64, txs: &[DevshardTx], trust: Trust) -> Result<(), StateError> {
        self.begin(nonce)?;
        // Entries of a kind that this build does not know are skipped (contract hosts 3.5).
        let known = || txs.iter().filter_map(|entry| entry.tx.as_ref());
        one_start(nonce, known())?;
        for tx in known() {
            self.effect(nonce, tx, trust)?;
        }
        self.end(nonce);
        Ok(())
    }

    fn begin(&mut self, nonce: u64) -> Result<(), StateError> {
        if self.now.phase == Phase::Active {
            let fee = self.params.config.fee_per_nonce;
            self.take(fee)?;
            self.now.fees += fee;
        }
        self.now.nonce = nonce;
        Ok(())
    }

    fn end(&mut self, nonce: u64) {
        match self.now.phase {
            Phase::Active => self.auto_seal(nonce),
            Phase::Finalizing => {
                let group = self.params.group.len() as u64;
                if self.now.finalize_nonce.is_some_and(|begun| nonce >= begun + group) {
                    self.seal_everything(nonce);
                    self.now.phase = Phase::Settlement;
                }
            }
            Phase::Settlement => {}
        }
    }

    fn apply_or_undo(&mut self, nonce: u64, tx: &Tx, trust: Trust) -> Result<(), StateError> {
        let before = self.now.clone();
        let mark = self.journal.len();
        let result = self.effect(nonce, tx, trust);
        if result.is_err() {
            self.settle_journal(before, false, mark);
        }
        result
    }

    fn compare_root(&self, claimed: Option<&[u8]>) -> Result<(), StateError> {
        let computed = self.root();
        match claimed {
            Some(claimed) if claimed != computed => {
                Err(StateError::Root { claimed: hex::encode(claimed), computed: hex::encode(computed) })
            }
            _ => Ok(()),
        }
    }

    /// Ends a change: forgets the journal, or runs it backwards down to `mark`.
    fn settle_journal(&mut self, before: Scalars, keep: bool, mark: usize) {
        if keep {
            self.journal.truncate(mark);
            return;
        }
        for undo in self.journal.drain(mark..).rev() {
            match undo {
                Undo::Live(id, Some(old)) => drop(self.live.insert(id, *old)),
                Undo::Live(id, None) => drop(self.live.remove(&id)),
                Undo::Sealed(id) => drop(self.sealed.remove(&id)),
            }
        }
        self.now = before;
    }

    pub(super) fn take(&mut self, amount: u64) -> Result<(), StateError> {
        let have = self.now.balance;
        self.now.balance = have.checked_sub(amount).ok_or(StateError::Balance { need: amount, have })?;
        Ok(())
    }

    /// Writes a live record, journalled, with the sum of digests kept in step.
    pub(super) fn put(&mut self, id: u64, record: Inference) {
        self.now.live_sum.add(id, &record);
        let old = self.live.insert(id, record);
        if let Some(old) = &old {
            self.now.live_sum.remove(id, old);
        }
        self.journal.push(Undo::Live(id, old.map(Box::new)));
    }

    /// Moves a live record to the sealed ones.
    pub(super) fn seal_one(&mut self, nonce: u64, id: u64) {
        let Some(old) = self.live.remove(&id) else { return };
        self.now.live_sum.remove(id, &old);
        self.now.sealed_acc = root::fold_sealed(&self.now.sealed_acc, nonce, id, &old);
        self.sealed.insert(id, Inference { sealed_nonce: Some(nonce), ..old.clone() });
        self.journal.push(Undo::Live(id, Some(Box::new(old))));
        self.journal.push(Undo::Sealed(id));
    }
}

fn one_start<'a>(nonce: u64, mut txs: impl Iterator<Item = &'a Tx>) -> Result<(), StateError> {
    let is_start = |tx: &&Tx| tx.kind() == TxKind::Start;
    if txs.by_ref().find(is_start).is_some() && txs.any(|tx| is_start(&tx)) {
        return Err(StateError::TwoStarts(nonce));
    }
    Ok(())
}

const fn order_of(kind: TxKind) -> u8 {
    match kind {
        TxKind::ConfirmStart => 0,
        TxKind::Finish => 1,
        TxKind::Timeout => 2,
        TxKind::Validation => 3,
        TxKind::Vote => 4,
        TxKind::RevealSeed => 5,
        TxKind::Start => 6,
        TxKind::FinalizeRound => 7,
    }
}

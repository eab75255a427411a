//! One served escrow: the only place that numbers, signs and stores its steps (contract gateway 6.1, 6.2),
//! what hosts have proposed for the next step, and which host knows how much.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use wire::devshard::{
    DevshardTx, MsgStartInference, Tx, decode_diff, decode_tx, diff_signed_bytes, encode_diff_txs, encode_tx,
    state_signed_bytes,
};

use super::defects::Defect;
use super::log::{Line, host_label};
use super::normalize::Chat;
use super::store::{Store, StoreError};
use crate::personality::Personality;
use crate::signing::{Signer, sha256, signer_of};
use crate::state::{Phase, Session, SessionParams, StateError, Trust};
use crate::transport::{Base64, Diff, Payload, Receipt};

/// How long a request waits for the nonce of a host that it may use before it passes one by.
const HOLD: Duration = Duration::from_millis(200);

/// What a ghost asks for, so that it can be told from work: bytes, tokens, and the SHA-256 of
/// `{"max_tokens":1,"messages":[{"content":".","role":"user"}]}` (contract gateway 6.5).
const GHOST_INPUT_LENGTH: u64 = 59;
const GHOST_MAX_TOKENS: u64 = 1;
const GHOST_PROMPT: &[u8] = br#"{"max_tokens":1,"messages":[{"content":".","role":"user"}]}"#;

/// Signatures that wait to be checked; of more, the oldest are forgotten, since only the newest nonces
/// matter to a quorum.
const UNCHECKED_MAX: usize = 1024;

/// Why a step could not be made.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// The money does not suffice.
    #[error("local apply: mandatory start inference: insufficient escrow balance")]
    Balance,
    /// The session refused.
    #[error("local apply: {0}")]
    State(StateError),
    /// The step could not be stored; nobody has seen it.
    #[error("persist diff: {0}")]
    Store(#[from] StoreError),
    /// Every participant has been tried.
    #[error("redundancy: request has tried every host in escrow")]
    Exhausted,
    /// Nobody is left who may be asked.
    #[error("redundancy: no currently-available host outside the request's exclude set")]
    Unavailable,
}

impl From<StateError> for StepError {
    fn from(error: StateError) -> Self {
        match error {
            StateError::Balance { .. } => Self::Balance,
            other => Self::State(other),
        }
    }
}

/// A participant of the group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Participant {
    /// Its address.
    pub address: String,
    /// Base URL with route prefix.
    pub url: String,
    /// Its first slot.
    pub slot: u32,
}

/// A nonce that belongs to an attempt.
#[derive(Clone, Debug)]
pub struct Started {
    pub nonce: u64,
    pub slot: u32,
    pub participant: Participant,
    pub payload: Payload,
}

#[derive(Debug)]
struct Inner {
    state: Session,
    pending: Vec<Tx>,
    seen: HashSet<[u8; 32]>,
    diffs: Vec<Diff>,
    acked: BTreeMap<String, u64>,
    signatures: BTreeMap<u64, BTreeMap<u32, Vec<u8>>>,
    /// Signatures that came with answers of chats and wait to be checked: nonce, address, bytes.
    unchecked: VecDeque<(u64, String, Vec<u8>)>,
}

/// A resident escrow.
#[derive(Debug)]
pub struct Escrow {
    pub params: SessionParams,
    pub model: String,
    /// By slot.
    pub by_slot: Vec<Participant>,
    pub active: AtomicBool,
    pub active_requests: AtomicU64,
    pub reserved_tokens: AtomicU64,
    pub cleanups: AtomicU64,
    signer: Signer,
    store: Arc<Store>,
    personality: Personality,
    defect: Defect,
    advanced: Notify,
    inner: Mutex<Inner>,
}

impl Escrow {
    /// The session as the database has it, every step replayed and its root compared.
    ///
    /// # Errors
    /// When the database cannot be read or a step does not give its stored root.
    pub fn load(
        params: SessionParams,
        model: String,
        urls: &[String],
        signer: Signer,
        store: Arc<Store>,
        (personality, defect): (Personality, Defect),
    ) -> Result<Self, StepError> {
        let escrow_id = params.escrow_id.clone();
        let mut state = Session::new(params.clone());
        let diffs = store.diffs(&escrow_id)?;
        let mut seen = HashSet::new();
        for diff in &diffs {
            let content = decode_diff(&diff.txs.0)
                .map_err(|_| StateError::Nonce { expected: state.nonce() + 1, got: diff.nonce })?;
            state.apply(diff.nonce, &content.txs, Some(&diff.post_state_root.0), Trust::OwnLog)?;
            seen.extend(content.txs.iter().map(|tx| sha256(&encode_tx(tx))));
        }
        let mut signatures: BTreeMap<u64, BTreeMap<u32, Vec<u8>>> = BTreeMap::new();
        for (nonce, slot, sig) in store.signatures(&escrow_id)? {
            signatures.entry(nonce).or_default().insert(slot, sig);
        }
        let by_slot: Vec<Participant> = params
            .group
            .iter()
            .zip(urls)
            .map(|(address, url)| Participant {
                address: address.clone(),
                url: url.clone(),
                slot: params.first_slot_of(address).unwrap_or_default(),
            })
            .collect();
        // July believes a host up to date that has signed; here every host is asked again, so that what it
        // still holds is not forgotten.
        let acked = match personality {
            Personality::Intended => BTreeMap::new(),
            Personality::July => acknowledged(&by_slot, &signatures),
        };
        let inner =
            Inner { state, pending: Vec::new(), seen, diffs, acked, signatures, unchecked: VecDeque::new() };
        Ok(Self {
            params,
            model,
            by_slot,
            active: AtomicBool::new(true),
            active_requests: AtomicU64::new(0),
            reserved_tokens: AtomicU64::new(0),
            cleanups: AtomicU64::new(0),
            signer,
            store,
            personality,
            defect,
            advanced: Notify::new(),
            inner: Mutex::new(inner),
        })
    }

    /// The escrow's id.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.params.escrow_id
    }

    /// Every participant once, by first slot.
    #[must_use]
    pub fn participants(&self) -> Vec<&Participant> {
        let mut seen = BTreeSet::new();
        self.by_slot.iter().filter(|participant| seen.insert(participant.address.as_str())).collect()
    }

    /// Why no new request is taken; `None` when one is.
    #[must_use]
    pub fn unavailable(&self) -> Option<&'static str> {
        if !self.active.load(Ordering::Acquire) {
            return Some("inactive");
        }
        match self.with_state(Session::phase) {
            Phase::Active => None,
            Phase::Finalizing => Some("phase=finalizing"),
            Phase::Settlement => Some("phase=settlement"),
        }
    }

    /// Whether client requests or their clean-up still run.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.active_requests.load(Ordering::Acquire) > 0 || self.cleanups.load(Ordering::Acquire) > 0
    }

    /// Starts `chat` on the next nonce whose host is neither in `exclude` nor in `avoid`. A nonce of an avoided
    /// host is passed by at once, one of an excluded host when no other request takes it in time.
    ///
    /// # Errors
    /// When every participant is excluded or the step cannot be made.
    pub async fn start(
        &self,
        chat: &Chat,
        exclude: &HashSet<String>,
        avoid: &HashSet<String>,
        now_s: impl Fn() -> i64,
    ) -> Result<Started, StepError> {
        if self.by_slot.iter().all(|participant| exclude.contains(&participant.address)) {
            return Err(StepError::Exhausted);
        }
        let unusable = |address: &String| exclude.contains(address) || avoid.contains(address);
        if self.by_slot.iter().all(|participant| unusable(&participant.address)) {
            return Err(StepError::Unavailable);
        }
        loop {
            let advanced = self.advanced.notified();
            let blocked_at = {
                let mut inner = self.lock();
                let nonce = inner.state.nonce() + 1;
                let slot = self.params.executor_slot(nonce);
                let participant = &self.by_slot[slot as usize];
                if avoid.contains(&participant.address) {
                    self.pass_by(&mut inner, "participant_throttled_no_send")?;
                    continue;
                }
                if !exclude.contains(&participant.address) {
                    return self.start_at(&mut inner, nonce, slot, chat, now_s());
                }
                nonce
            };
            if tokio::time::timeout(HOLD, advanced).await.is_err() {
                let mut inner = self.lock();
                if inner.state.nonce() + 1 == blocked_at {
                    self.pass_by(&mut inner, "no_compatible_request_after_stale")?;
                }
            }
        }
    }

    /// Uses up one nonce without a call. July starts an inference nobody is asked for, which stays pending
    /// for ever; here the step starts nothing.
    fn pass_by(&self, inner: &mut Inner, reason: &'static str) -> Result<(), StepError> {
        let nonce = inner.state.nonce() + 1;
        if self.personality == Personality::July {
            let ghost = MsgStartInference {
                inference_id: nonce,
                prompt_hash: sha256(GHOST_PROMPT).to_vec(),
                model: self.model.clone(),
                input_length: GHOST_INPUT_LENGTH,
                max_tokens: GHOST_MAX_TOKENS,
                // Milliseconds where every other start has seconds: a slip of that build.
                started_at: i64::try_from(crate::clock::unix_ns() / 1_000_000).unwrap_or(i64::MAX),
            };
            let host = &self.by_slot[self.params.executor_slot(nonce) as usize].address;
            Line::process("stage=ghost_probe_skipped")
                .field("escrow", self.id())
                .field("nonce", nonce)
                .field("host", host_label(host))
                .field("kind", if reason == "participant_throttled_no_send" { 3 } else { 2 })
                .field("reason", reason)
                .emit();
            // Without money for the ghost the nonce is used up all the same.
            if self.step(inner, vec![Tx::StartInference(ghost)]).is_ok() {
                return Ok(());
            }
        }
        self.step(inner, Vec::new())
    }

    /// The participant whose turn comes after `nonce`, other than `but`; none in a group of one.
    #[must_use]
    pub fn next_after(&self, nonce: u64, but: &str) -> Option<&Participant> {
        let size = self.by_slot.len() as u64;
        (1..=size)
            .map(|step| &self.by_slot[self.params.executor_slot(nonce + step) as usize])
            .find(|participant| participant.address != but)
    }

    /// Brings what is pending into a last step before the session leaves memory. July forgets it (finding J8).
    pub fn close(&self) {
        self.check_signatures();
        let waits = !self.pending().is_empty() && self.with_state(Session::phase) == Phase::Active;
        if self.personality == Personality::Intended
            && waits
            && let Err(error) = self.compose(Vec::new())
        {
            Line::process("runtime_retire_step_failed")
                .field("escrow", self.id())
                .field("error", error)
                .emit();
        }
    }

    fn start_at(
        &self,
        inner: &mut Inner,
        nonce: u64,
        slot: u32,
        chat: &Chat,
        now_s: i64,
    ) -> Result<Started, StepError> {
        let payload = Payload {
            prompt: Base64(chat.body.clone()),
            model: chat.model.clone(),
            input_length: chat.input_length(),
            max_tokens: chat.max_tokens,
            started_at: now_s,
        };
        let start = MsgStartInference {
            inference_id: nonce,
            prompt_hash: sha256(&chat.body).to_vec(),
            model: chat.model.clone(),
            input_length: payload.input_length,
            max_tokens: payload.max_tokens,
            started_at: payload.started_at,
        };
        self.step(inner, vec![Tx::StartInference(start)])?;
        Ok(Started { nonce, slot, participant: self.by_slot[slot as usize].clone(), payload })
    }

    /// Makes a step of what hosts proposed and of `own` entries. Returns its nonce.
    ///
    /// # Errors
    /// When the step cannot be made.
    pub fn compose(&self, own: Vec<Tx>) -> Result<u64, StepError> {
        let mut inner = self.lock();
        self.step(&mut inner, own)?;
        Ok(inner.state.nonce())
    }

    fn step(&self, inner: &mut Inner, own: Vec<Tx>) -> Result<(), StepError> {
        let composed = inner.state.compose(inner.pending.clone(), own, Trust::Verify)?;
        // What came before its predecessor waits for it; the rest fits no more and is forgotten.
        // July forgets that too (contract gateway 6.2).
        let keeps = self.personality == Personality::Intended;
        let early = |error: &StateError| keeps && matches!(error, StateError::WrongStatus { got: 0, .. });
        inner.pending =
            composed.dropped.into_iter().filter(|(_, error)| early(error)).map(|(tx, _)| tx).collect();
        let diff = self.sign(composed.nonce, &composed.txs, &composed.root);
        if let Err(error) = self.store.add_diff(self.id(), &diff) {
            // Memory is ahead of the database now; nobody has seen the step, and nothing may follow it.
            self.active.store(false, Ordering::Release);
            return Err(error.into());
        }
        inner.diffs.push(diff);
        self.advanced.notify_waiters();
        Ok(())
    }

    fn sign(&self, nonce: u64, txs: &[DevshardTx], root: &[u8]) -> Diff {
        let txs = encode_diff_txs(nonce, txs);
        let user_sig = self.signer.sign(&diff_signed_bytes(&txs, self.id(), root));
        Diff { nonce, txs: Base64(txs), user_sig: Base64(user_sig), post_state_root: Base64(root.to_vec()) }
    }

    /// Steps up to `nonce` that a participant has not acknowledged.
    #[must_use]
    pub fn catch_up(&self, participant: &Participant, nonce: u64) -> Vec<Diff> {
        let inner = self.lock();
        let acked = inner.acked.get(&participant.address).copied().unwrap_or_default();
        let place = |nonce: u64| usize::try_from(nonce).unwrap_or(usize::MAX).min(inner.diffs.len());
        let missing = inner.diffs.get(place(acked)..place(nonce)).unwrap_or_default();
        missing.iter().map(|diff| self.shown(diff, participant)).collect()
    }

    /// What a host gets to see of a step: the step, unless a defect is planted.
    fn shown(&self, diff: &Diff, participant: &Participant) -> Diff {
        let executor = self.params.executor_slot(diff.nonce);
        if !self.defect.reuses_nonce(self.id(), diff.nonce) || self.by_slot[executor as usize] == *participant
        {
            return diff.clone();
        }
        let mut txs = decode_diff(&diff.txs.0).map(|content| content.txs).unwrap_or_default();
        txs.push(DevshardTx::from(Tx::RevealSeed(wire::devshard::MsgRevealSeed::default())));
        self.sign(diff.nonce, &txs, &diff.post_state_root.0)
    }

    /// Whether every participant has acknowledged every step.
    #[must_use]
    pub fn is_behind(&self, participant: &Participant) -> bool {
        let inner = self.lock();
        inner.acked.get(&participant.address).copied().unwrap_or_default() < inner.state.nonce()
    }

    /// Takes in the first event of a host's answer. Returns whether the signature over the state is the
    /// host's over our own state at that nonce; for an execution it is looked at later.
    pub fn receipt(&self, participant: &Participant, receipt: &Receipt, started: Option<&Started>) -> bool {
        if let (Some(started), Some(sig), Some(confirmed_at)) =
            (started, &receipt.receipt, receipt.confirmed_at)
        {
            let confirm = wire::devshard::MsgConfirmStart {
                inference_id: started.nonce,
                executor_sig: sig.0.clone(),
                confirmed_at,
            };
            self.propose(Tx::ConfirmStart(confirm));
        }
        let mut inner = self.lock();
        let acked = inner.acked.entry(participant.address.clone()).or_default();
        *acked = (*acked).max(receipt.nonce);
        let Some(sig) = &receipt.state_sig else { return true };
        if started.is_some() {
            // Checking costs more than all else in a short chat, and nobody needs it before a quorum is
            // counted.
            if inner.unchecked.len() >= UNCHECKED_MAX {
                inner.unchecked.pop_front();
            }
            inner.unchecked.push_back((receipt.nonce, participant.address.clone(), sig.0.clone()));
            return true;
        }
        drop(inner);
        self.check_signature(receipt.nonce, &participant.address, &sig.0)
    }

    /// Whether `sig` is the participant's over our state at `nonce`; it then counts.
    fn check_signature(&self, nonce: u64, address: &str, sig: &[u8]) -> bool {
        let place = usize::try_from(nonce).unwrap_or(usize::MAX);
        let root = place.checked_sub(1).and_then(|place| {
            let inner = self.lock();
            Some(inner.diffs.get(place)?.post_state_root.clone())
        });
        let Some(root) = root else { return false };
        let signed = state_signed_bytes(&root.0, self.id(), nonce);
        if signer_of(&signed, sig).ok().as_deref() != Some(address) {
            return false;
        }
        let mut inner = self.lock();
        let known = inner.signatures.entry(nonce).or_default();
        for (slot, owner) in (0_u32..).zip(&self.params.group) {
            if owner == address && known.insert(slot, sig.to_vec()).is_none() {
                // A lost signature is asked for again; it must not fail what brought it.
                let _ = self.store.add_signature(self.id(), nonce, slot, sig);
            }
        }
        true
    }

    fn check_signatures(&self) {
        let waiting = std::mem::take(&mut self.lock().unchecked);
        for (nonce, address, sig) in waiting {
            if !self.check_signature(nonce, &address, &sig) {
                super::log::Line::process("escrow_participant_state_blocked")
                    .field("escrow", self.id())
                    .field("nonce", nonce)
                    .field("participant_key", address)
                    .emit();
            }
        }
    }

    /// Takes in what a host has in its mempool; what cannot be read or is known is skipped.
    pub fn absorb(&self, mempool: &[Base64]) {
        for entry in mempool {
            if let Ok(DevshardTx { tx: Some(tx) }) = decode_tx(&entry.0) {
                if matches!(&tx, Tx::FinishInference(finish) if self.defect.forgets(self.id(), finish.inference_id))
                {
                    continue;
                }
                self.propose(tx);
            }
        }
    }

    fn propose(&self, tx: Tx) {
        let digest = sha256(&encode_tx(&DevshardTx::from(tx.clone())));
        let mut inner = self.lock();
        if inner.seen.insert(digest) {
            inner.pending.push(tx);
        }
    }

    /// Whether the finish of a nonce waits for a step. July asks this, and so misses one that another
    /// request's answer has brought and a step has taken in already (finding J3).
    #[must_use]
    pub fn awaits_finish(&self, nonce: u64) -> bool {
        let waits = |tx: &Tx| matches!(tx, Tx::FinishInference(finish) if finish.inference_id == nonce);
        self.lock().pending.iter().any(waits)
    }

    /// Whether the finish of a nonce is known, sequenced or waiting.
    #[must_use]
    pub fn has_finish(&self, nonce: u64) -> bool {
        let inner = self.lock();
        let waits = |tx: &Tx| matches!(tx, Tx::FinishInference(finish) if finish.inference_id == nonce);
        inner.state.inference(nonce).is_some_and(|record| record.status.is_terminal())
            || inner.pending.iter().any(waits)
    }

    /// Kinds and ids of what waits for the next step.
    #[must_use]
    pub fn pending(&self) -> Vec<Tx> {
        self.lock().pending.clone()
    }

    /// Weight that has signed the state, by nonce.
    #[must_use]
    pub fn signature_weights(&self) -> BTreeMap<u64, u64> {
        self.check_signatures();
        let inner = self.lock();
        inner.signatures.iter().map(|(nonce, slots)| (*nonce, slots.len() as u64)).collect()
    }

    /// Signatures over the state at one nonce, by slot.
    #[must_use]
    pub fn signatures_at(&self, nonce: u64) -> BTreeMap<u32, Vec<u8>> {
        self.check_signatures();
        self.lock().signatures.get(&nonce).cloned().unwrap_or_default()
    }

    /// Runs `read` on the state.
    pub fn with_state<T>(&self, read: impl FnOnce(&Session) -> T) -> T {
        read(&self.lock().state)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // State changes are atomic by journal, so a panic elsewhere leaves them whole.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The highest nonce that each participant has signed.
fn acknowledged(
    by_slot: &[Participant],
    signatures: &BTreeMap<u64, BTreeMap<u32, Vec<u8>>>,
) -> BTreeMap<String, u64> {
    let mut acked = BTreeMap::new();
    for (nonce, slots) in signatures {
        for slot in slots.keys() {
            if let Some(participant) = by_slot.get(*slot as usize) {
                acked.insert(participant.address.clone(), *nonce);
            }
        }
    }
    acked
}

/// Counts one in a counter of an escrow as long as it lives.
#[derive(Debug)]
pub struct Guard {
    escrow: Arc<Escrow>,
    tokens: u64,
    cleanup: bool,
}

impl Guard {
    /// A client request.
    #[must_use]
    pub fn request(escrow: &Arc<Escrow>, tokens: u64) -> Self {
        escrow.active_requests.fetch_add(1, Ordering::AcqRel);
        escrow.reserved_tokens.fetch_add(tokens, Ordering::AcqRel);
        Self { escrow: escrow.clone(), tokens, cleanup: false }
    }

    /// Work after the client's answer.
    #[must_use]
    pub fn cleanup(escrow: &Arc<Escrow>) -> Self {
        escrow.cleanups.fetch_add(1, Ordering::AcqRel);
        Self { escrow: escrow.clone(), tokens: 0, cleanup: true }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.cleanup {
            self.escrow.cleanups.fetch_sub(1, Ordering::AcqRel);
        } else {
            self.escrow.active_requests.fetch_sub(1, Ordering::AcqRel);
            self.escrow.reserved_tokens.fetch_sub(self.tokens, Ordering::AcqRel);
        }
    }
}

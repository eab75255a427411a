//! One session on a host: its copy of the state, its mempool, what it is executing. Every step is in the
//! database before anybody is told about it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use wire::devshard::{
    DevshardTx, MsgConfirmStart, Tx, decode_diff, decode_tx, diff_signed_bytes, encode_tx,
    receipt_signed_bytes, state_signed_bytes,
};

use super::mempool::Mempool;
use super::store::{Store, StoreError, StoredSession};
use crate::personality::Personality;
use crate::signing::{Signer, sha256, signer_of};
use crate::state::{Inference, Phase, Session, SessionParams, StateError, Status, Trust};
use crate::transport::{Base64, ChatRequest, Diff, DiffRecord, Payload, Receipt};

/// Requests of one sender per second, and how many more at once (contract hosts 2.1).
const RATE_PER_S: f64 = 100.0;
const RATE_BURST: f64 = 200.0;
/// Failed tries after which a validation is given up.
const VALIDATION_TRIES_MAX: u32 = 5;

/// Why a request was refused before any receipt.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// A field of the transport cannot be read.
    #[error("{0}")]
    Decode(String),
    /// A step does not fit.
    #[error("apply diff nonce {nonce}: {source}")]
    Apply {
        /// The step.
        nonce: u64,
        /// Why.
        source: StateError,
    },
    /// A step is not signed by the user.
    #[error("apply diff nonce {0}: invalid user signature")]
    UserSignature(u64),
    /// The session has reached the chain's limit.
    #[error(
        "nonce exceeds chain max_nonce limit: nonce {nonce} exceeds active cap {cap} (reserved {reserved} for finalization/settlement)"
    )]
    MaxNonce {
        /// The step.
        nonce: u64,
        /// Last allowed one.
        cap: u64,
        /// What is kept for the end.
        reserved: u64,
    },
    /// The payload is not what was started.
    #[error("payload of inference {id} does not match its start: {problem}")]
    Payload {
        /// The inference.
        id: u64,
        /// What differs.
        problem: &'static str,
    },
    /// Hosts take no new work (`devshard_requests_enabled`).
    #[error("devshard requests are disabled")]
    Disabled,
    /// The database refused; memory is ahead of it and must be thrown away.
    #[error("persist diff nonce {nonce}: {source}")]
    Persist {
        /// The step.
        nonce: u64,
        /// What SQLite said.
        source: StoreError,
    },
    /// The database refused something else.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What a chat request asks of this host, decided before the receipt is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan {
    /// Nothing to execute here; the reason is a word of contract hosts 9.3.
    Nothing(&'static str),
    /// The same inference is running.
    AlreadyExecuting,
    /// The answer is there.
    Cached(Vec<u8>),
    /// To be executed now.
    Execute(Payload),
}

/// Decision on a chat request.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// First event.
    pub receipt: Receipt,
    /// What follows.
    pub plan: Plan,
    /// The request in question; 0 when there is none.
    pub inference_id: u64,
}

/// A finished inference that this host might have to validate.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Its id.
    pub id: u64,
    /// The record at the time.
    pub record: Inference,
}

/// Settings of the allocator that limit a session.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Highest nonce; 0 sets none.
    pub max_nonce: u64,
    /// Whether new work is taken.
    pub requests_enabled: bool,
}

#[derive(Debug)]
struct Inner {
    state: Session,
    mempool: Mempool,
    executing: BTreeSet<u64>,
    /// Finished or challenged inferences that no draw has decided about yet.
    undecided: BTreeSet<u64>,
    /// Tries of validations that are under way or have failed.
    tries: BTreeMap<u64, u32>,
    allowance: HashMap<String, (f64, Instant)>,
}

/// A session and the host's part in it.
#[derive(Debug)]
pub struct HostSession {
    /// What the session began with.
    pub params: SessionParams,
    /// Chain epoch in which it was made.
    pub epoch_id: u64,
    /// Own slots; empty when the host is not in the group.
    pub slots: Vec<u32>,
    signer: Arc<Signer>,
    store: Arc<Store>,
    personality: Personality,
    inner: Mutex<Inner>,
}

impl Inner {
    /// A sequenced entry that gives validators something to decide about.
    fn note(&mut self, tx: &Tx) {
        if let Tx::FinishInference(_) | Tx::Validation(_) = tx
            && let Some(id) = tx.inference_id()
        {
            self.undecided.insert(id);
        }
    }
}

impl HostSession {
    /// The session as the database has it: every step replayed, its root compared.
    ///
    /// # Errors
    /// When the database cannot be read, or a step does not give its stored root.
    pub fn load(
        stored: StoredSession,
        signer: Arc<Signer>,
        store: Arc<Store>,
        personality: Personality,
    ) -> Result<Self, SessionError> {
        let session = Self::empty(stored, signer, store, personality);
        {
            let mut inner = session.lock();
            session.replay(&mut inner)?;
            // July keeps its mempool in memory alone and loses it with the process.
            if personality == Personality::Intended {
                session.read_mempool(&mut inner)?;
            }
            let disputed =
                |record: &Inference| matches!(record.status, Status::Finished | Status::Challenged);
            let live = inner.state.live().iter();
            inner.undecided = live.filter(|(_, record)| disputed(record)).map(|(id, _)| *id).collect();
        }
        Ok(session)
    }

    /// A session at nonce 0, whatever the database has.
    #[must_use]
    pub fn empty(
        stored: StoredSession,
        signer: Arc<Signer>,
        store: Arc<Store>,
        personality: Personality,
    ) -> Self {
        let StoredSession { epoch_id, params } = stored;
        let own = |slot: &u32| params.address_of(*slot) == Some(signer.address());
        let slots = (0..u32::try_from(params.group.len()).unwrap_or(u32::MAX)).filter(own).collect();
        let inner = Inner {
            state: Session::new(params.clone()),
            mempool: Mempool::default(),
            executing: BTreeSet::new(),
            undecided: BTreeSet::new(),
            tries: BTreeMap::new(),
            allowance: HashMap::new(),
        };
        Self { params, epoch_id, slots, signer, store, personality, inner: Mutex::new(inner) }
    }

    /// Takes in what another replica has written to the shared database meanwhile. July never looks again
    /// after its start (finding J11).
    ///
    /// # Errors
    /// When the database cannot be read, or a step does not give its stored root.
    pub fn refresh(&self) -> Result<(), SessionError> {
        if self.personality == Personality::July {
            return Ok(());
        }
        let mut inner = self.lock();
        self.replay(&mut inner)?;
        self.read_mempool(&mut inner)
    }

    /// Applies the stored steps that are new here.
    fn replay(&self, inner: &mut Inner) -> Result<(), SessionError> {
        let first = inner.state.nonce() + 1;
        for record in self.store.diffs(&self.params.escrow_id, first, u64::MAX)? {
            let nonce = record.diff.nonce;
            let txs =
                decode_diff(&record.diff.txs.0).map_err(|error| SessionError::Decode(error.to_string()))?;
            inner
                .state
                .apply(nonce, &txs.txs, Some(&record.state_hash.0), Trust::OwnLog)
                .map_err(|source| SessionError::Apply { nonce, source })?;
            for tx in txs.txs.iter().filter_map(|entry| entry.tx.as_ref()) {
                inner.note(tx);
            }
        }
        Ok(())
    }

    /// Brings the mempool to what the database has.
    fn read_mempool(&self, inner: &mut Inner) -> Result<(), SessionError> {
        let stored = self.store.mempool(&self.params.escrow_id)?;
        let known: BTreeSet<&[u8]> = stored.iter().map(Vec::as_slice).collect();
        for bytes in inner.mempool.encoded() {
            if !known.contains(bytes.0.as_slice()) {
                inner.mempool.remove(&bytes.0);
            }
        }
        for bytes in &stored {
            let entry = decode_tx(bytes).map_err(|error| SessionError::Decode(error.to_string()))?;
            mempool_insert(&mut inner.mempool, entry);
        }
        Ok(())
    }

    /// Takes one request out of the sender's allowance; false when it is used up.
    #[must_use]
    pub fn allow(&self, sender: &str, now: Instant) -> bool {
        let mut inner = self.lock();
        let (tokens, at) = inner.allowance.entry(sender.to_owned()).or_insert((RATE_BURST, now));
        let earned = now.saturating_duration_since(*at).as_secs_f64() * RATE_PER_S;
        *tokens = (*tokens + earned).min(RATE_BURST);
        *at = now;
        if *tokens < 1.0 {
            return false;
        }
        *tokens -= 1.0;
        true
    }

    /// Applies and stores the steps that are new here.
    ///
    /// # Errors
    /// When one of them does not fit; those before it stay applied.
    pub fn apply(&self, diffs: &[Diff], limits: Limits) -> Result<(), SessionError> {
        let mut inner = self.lock();
        diffs.iter().try_for_each(|diff| self.apply_one(&mut inner, diff, limits))
    }

    /// Applies the steps of a chat request and decides what to do about its payload. `now_s` is the
    /// receipt's time in Unix seconds.
    ///
    /// # Errors
    /// When a step does not fit, the payload is not what was started, or the database refuses.
    pub fn prepare(
        &self,
        request: &ChatRequest,
        limits: Limits,
        now_s: i64,
    ) -> Result<Prepared, SessionError> {
        let mut inner = self.lock();
        if request.payload.is_some() && !limits.requests_enabled {
            return Err(SessionError::Disabled);
        }
        request.diffs.iter().try_for_each(|diff| self.apply_one(&mut inner, diff, limits))?;
        let (plan, confirm) = self.plan(&mut inner, request, now_s)?;
        let (nonce, root) = (inner.state.nonce(), inner.state.root());
        let sig = self.signer.sign(&state_signed_bytes(&root, &self.params.escrow_id, nonce));
        self.store.add_signature(&self.params.escrow_id, nonce, &self.slots, &sig)?;
        let (receipt, confirmed_at) = confirm.map(|tx| (tx.executor_sig, tx.confirmed_at)).unzip();
        Ok(Prepared {
            receipt: Receipt {
                state_sig: Some(sig.into()),
                state_hash: root.to_vec().into(),
                nonce,
                receipt: receipt.map(Base64),
                confirmed_at,
            },
            inference_id: if request.payload.is_some() { request.nonce } else { 0 },
            plan,
        })
    }

    fn apply_one(&self, inner: &mut Inner, diff: &Diff, limits: Limits) -> Result<(), SessionError> {
        let nonce = diff.nonce;
        if nonce <= inner.state.nonce() {
            return Ok(());
        }
        let content = decode_diff(&diff.txs.0).map_err(|error| SessionError::Decode(error.to_string()))?;
        self.check_limits(&inner.state, nonce, &content.txs, limits)?;
        let signed = diff_signed_bytes(&diff.txs.0, &self.params.escrow_id, &diff.post_state_root.0);
        if signer_of(&signed, &diff.user_sig.0).ok().as_deref() != Some(self.params.creator.as_str()) {
            return Err(SessionError::UserSignature(nonce));
        }
        inner
            .state
            .apply(nonce, &content.txs, Some(&diff.post_state_root.0), Trust::Verify)
            .map_err(|source| SessionError::Apply { nonce, source })?;
        let sequenced: Vec<Vec<u8>> = content.txs.iter().map(encode_tx).collect();
        let record = DiffRecord { diff: diff.clone(), state_hash: inner.state.root().to_vec().into() };
        self.store
            .add_diff(&self.params.escrow_id, &record, &sequenced)
            .map_err(|source| SessionError::Persist { nonce, source })?;
        for bytes in &sequenced {
            inner.mempool.remove(bytes);
        }
        for tx in content.txs.iter().filter_map(|entry| entry.tx.as_ref()) {
            inner.note(tx);
        }
        Ok(())
    }

    fn check_limits(
        &self,
        state: &Session,
        nonce: u64,
        txs: &[DevshardTx],
        limits: Limits,
    ) -> Result<(), SessionError> {
        let works = |tx: &DevshardTx| {
            matches!(
                tx.tx,
                Some(
                    Tx::StartInference(_)
                        | Tx::TimeoutInference(_)
                        | Tx::Validation(_)
                        | Tx::ValidationVote(_)
                )
            )
        };
        let work = txs.iter().any(works);
        if work && !limits.requests_enabled {
            return Err(SessionError::Disabled);
        }
        if limits.max_nonce == 0 {
            return Ok(());
        }
        // Room is kept for the finalize step and one round over the group.
        let reserved = self.params.group.len() as u64 + 1;
        let cap = limits.max_nonce.saturating_sub(reserved);
        let active = state.phase() == Phase::Active && work;
        if nonce > limits.max_nonce || (active && nonce > cap) {
            return Err(SessionError::MaxNonce { nonce, cap, reserved });
        }
        Ok(())
    }

    fn plan(
        &self,
        inner: &mut Inner,
        request: &ChatRequest,
        now_s: i64,
    ) -> Result<(Plan, Option<MsgConfirmStart>), SessionError> {
        let Some(payload) = &request.payload else { return Ok((Plan::Nothing("payload_absent"), None)) };
        let id = request.nonce;
        // A receipt rests on applied state alone, never on the request's own copy of the step.
        let Some(record) = inner.state.inference(id).cloned() else {
            return Ok((Plan::Nothing("target_diff_absent"), None));
        };
        if !self.slots.contains(&record.executor_slot) {
            return Ok((Plan::Nothing("not_executor"), None));
        }
        check_payload(id, payload, &record)?;
        let confirm = self.confirm(inner, id, &record, now_s)?;
        if inner.executing.contains(&id) {
            return Ok((Plan::AlreadyExecuting, Some(confirm)));
        }
        if let Some((_, response)) = self.store.payload(&self.params.escrow_id, id)? {
            return Ok((Plan::Cached(response), Some(confirm)));
        }
        inner.executing.insert(id);
        Ok((Plan::Execute(payload.clone()), Some(confirm)))
    }

    /// The receipt of an inference: the one given before, or a new one that goes into the mempool.
    fn confirm(
        &self,
        inner: &mut Inner,
        id: u64,
        record: &Inference,
        now_s: i64,
    ) -> Result<MsgConfirmStart, SessionError> {
        let waiting = inner.mempool.txs().find_map(|tx| match tx {
            Tx::ConfirmStart(confirm) if confirm.inference_id == id => Some(confirm.clone()),
            _ => None,
        });
        if let Some(confirm) = waiting {
            return Ok(confirm);
        }
        let sequenced = record.status != Status::Pending;
        let confirmed_at = if sequenced { record.confirmed_at } else { now_s };
        let start = wire::devshard::MsgStartInference {
            inference_id: id,
            prompt_hash: record.prompt_hash.clone(),
            model: record.model.clone(),
            input_length: record.input_length,
            max_tokens: record.max_tokens,
            started_at: record.started_at,
        };
        let signed = receipt_signed_bytes(&start, &self.params.escrow_id, confirmed_at);
        let confirm =
            MsgConfirmStart { inference_id: id, executor_sig: self.signer.sign(&signed), confirmed_at };
        if !sequenced {
            self.propose_into(inner, Tx::ConfirmStart(confirm.clone()))?;
        }
        Ok(confirm)
    }

    /// Puts an entry into the mempool, database first.
    ///
    /// # Errors
    /// When the database refuses.
    pub fn propose(&self, tx: Tx) -> Result<(), StoreError> {
        self.propose_into(&mut self.lock(), tx)
    }

    fn propose_into(&self, inner: &mut Inner, tx: Tx) -> Result<(), StoreError> {
        self.store.add_mempool(&self.params.escrow_id, &encode_tx(&DevshardTx::from(tx.clone())))?;
        inner.mempool.insert(tx);
        Ok(())
    }

    /// The execution of `id` is over, however it went.
    pub fn executed(&self, id: u64) {
        self.lock().executing.remove(&id);
    }

    /// Whole mempool as it goes over the wire.
    #[must_use]
    pub fn mempool(&self) -> Vec<Base64> {
        self.lock().mempool.encoded()
    }

    /// Number of entries in the mempool.
    #[must_use]
    pub fn mempool_len(&self) -> usize {
        self.lock().mempool.len()
    }

    /// Whether an own entry in the mempool speaks about the inference: `confirm` or finish.
    #[must_use]
    pub fn has_evidence(&self, id: u64, confirm_counts: bool) -> bool {
        self.lock().mempool.txs().any(|tx| match tx {
            Tx::FinishInference(finish) => finish.inference_id == id,
            Tx::ConfirmStart(confirm) => confirm_counts && confirm.inference_id == id,
            _ => false,
        })
    }

    /// Runs `read` on the state.
    pub fn with_state<T>(&self, read: impl FnOnce(&Session) -> T) -> T {
        read(&self.lock().state)
    }

    /// Takes out the inferences about which a draw has to decide, and marks them as being validated.
    /// `draw` is asked for finished ones; challenged ones are mandatory.
    pub fn take_candidates(&self, draw: impl Fn(u64, &Inference) -> bool) -> Vec<Candidate> {
        let mut inner = self.lock();
        let inner = &mut *inner;
        let mut taken = Vec::new();
        for id in std::mem::take(&mut inner.undecided) {
            let Some(record) = inner.state.live().get(&id) else { continue };
            let mandatory = record.status == Status::Challenged;
            let mine = self.slots.contains(&record.executor_slot)
                || self.params.address_of(record.executor_slot) == Some(self.signer.address());
            let spoken = self.slots.iter().any(|slot| record.validated_by.contains(slot))
                || inner.mempool.txs().any(|tx| {
                    matches!(tx, Tx::Validation(_) | Tx::ValidationVote(_)) && tx.inference_id() == Some(id)
                });
            let open = mandatory || record.status == Status::Finished;
            if self.slots.is_empty() || mine || spoken || !open || inner.tries.contains_key(&id) {
                continue;
            }
            if mandatory || draw(id, record) {
                inner.tries.insert(id, 1);
                taken.push(Candidate { id, record: record.clone() });
            }
        }
        taken
    }

    /// Gives a candidate back: somebody else validates it, or nobody does after all.
    pub fn drop_candidate(&self, id: u64, forget: bool) {
        let mut inner = self.lock();
        if forget {
            inner.tries.remove(&id);
        } else {
            inner.tries.insert(id, VALIDATION_TRIES_MAX);
        }
    }

    /// The record of a stale lease's inference, when it still waits for this participant's opinion.
    #[must_use]
    pub fn open_candidate(&self, id: u64) -> Option<Candidate> {
        let inner = self.lock();
        let record = inner.state.live().get(&id)?;
        let spoken = self.slots.iter().any(|slot| record.validated_by.contains(slot))
            || inner.mempool.txs().any(|tx| {
                matches!(tx, Tx::Validation(_) | Tx::ValidationVote(_)) && tx.inference_id() == Some(id)
            });
        let open = matches!(record.status, Status::Finished | Status::Challenged);
        (open && !spoken).then(|| Candidate { id, record: record.clone() })
    }

    /// A validation has failed: whether to try it again.
    #[must_use]
    pub fn retry_validation(&self, id: u64) -> bool {
        let mut inner = self.lock();
        let tries = inner.tries.entry(id).or_insert(0);
        *tries += 1;
        *tries <= VALIDATION_TRIES_MAX
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // State changes are atomic by journal, so a panic elsewhere leaves them whole.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn mempool_insert(mempool: &mut Mempool, entry: DevshardTx) {
    if let Some(tx) = entry.tx {
        mempool.insert(tx);
    }
}

fn check_payload(id: u64, payload: &Payload, record: &Inference) -> Result<(), SessionError> {
    let problem = if sha256(&payload.prompt.0).as_slice() != record.prompt_hash {
        "prompt_hash"
    } else if payload.model != record.model {
        "model"
    } else if payload.input_length != record.input_length || payload.max_tokens != record.max_tokens {
        "lengths"
    } else if payload.started_at != record.started_at {
        "started_at"
    } else if record.status == Status::TimedOut {
        "it has timed out"
    } else {
        return Ok(());
    };
    Err(SessionError::Payload { id, problem })
}

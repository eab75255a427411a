//! Validation of other hosts' answers: the draw, the payload fetch, the replay, the opinion (contract
//! hosts 5). Without Postgres there are no leases: every acquire is granted.

use std::sync::Arc;
use std::time::Duration;

use axum::http::HeaderMap;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use wire::devshard::{MsgValidation, MsgValidationVote, Tx, proposer_signed_bytes};
use wire::keys::Address;
use wire::transport::payload_request_text;

use super::Host;
use super::answer::ANSWER_MAX;
use super::body::replay_body;
use super::execute::{Call, read_body};
use super::judge::Claim as Claimed;
use super::leases::{Lease, LeaseError, Work};
use super::session::{Candidate, HostSession};
use crate::clock;
use crate::logline::{Level, LogLine};
use crate::personality::Personality;
use crate::planted::On;
use crate::signing::{sha256, signer_of};
use crate::state::{Inference, Status};
use crate::transport::{PayloadResponse, REQUEST_ID_HEADER};

/// Waiting validations of one host; more are dropped and counted.
const QUEUE_MAX: f64 = 20_000.0;
/// Pause before a failed validation is tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(500);
const FETCH_TIMEOUT: Duration = Duration::from_secs(30);
/// Similarity to exceed where neither chain nor allocator sets one.
const THRESHOLD_DEFAULT: f64 = 0.9;

/// Draws among the inferences that have become final since the last look, and queues the drawn ones.
pub fn collect(host: &Arc<Host>, session: &Arc<HostSession>) {
    if !host.limits().requests_enabled || session.slots.is_empty() {
        return;
    }
    let escrow_id = session.params.escrow_id.as_str();
    let seed = seed_of(&host.signer.sign(escrow_id.as_bytes()));
    let drawn = session.take_candidates(|id, record| is_drawn(seed, id, record, session));
    for candidate in drawn {
        let depth = [("escrow_id", escrow_id)];
        if host.metrics.value("devshard_validation_queue_depth", &depth) >= QUEUE_MAX {
            host.metrics.count("devshard_validation_queue_drops_total", &[]);
            stage(host, "validation_picked", "error");
            continue;
        }
        host.metrics.add("devshard_validation_queue_depth", &depth, 1.0);
        stage(host, "validation_picked", "queued");
        tokio::spawn(work(host.clone(), session.clone(), candidate));
    }
}

/// First eight bytes of the host's signature over the escrow id, top bit cleared, never 0: replicas with
/// one key draw alike.
fn seed_of(signature: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    bytes.iter_mut().zip(signature).for_each(|(byte, from)| *byte = *from);
    (u64::from_be_bytes(bytes) & (u64::MAX >> 1)).max(1)
}

fn is_drawn(seed: u64, id: u64, record: &Inference, session: &HostSession) -> bool {
    let executor = session.params.address_of(record.executor_slot).unwrap_or_default();
    let others = session.params.group.len() as u64 - u64::from(session.params.weight_of(executor));
    let digest = sha256(format!("{seed}:{id}").as_bytes());
    let draw = u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]]);
    let rate = u64::from(session.params.config.validation_rate) * session.slots.len() as u64;
    let limit = (1_u64 << 32).saturating_mul(rate) / (10_000 * others.max(1));
    u64::from(draw) < limit
}

/// Goes on with work whose lease has been taken over.
pub fn spawn_held(host: &Arc<Host>, session: Arc<HostSession>, candidate: Candidate, lease: Lease) {
    let depth = [("escrow_id", session.params.escrow_id.as_str())];
    host.metrics.add("devshard_validation_queue_depth", &depth, 1.0);
    tokio::spawn(held(host.clone(), session, candidate, Some(lease)));
}

/// Who may do the work now.
enum Claim {
    /// This host; with a lease where there are any.
    Ours(Option<Lease>),
    /// Another replica.
    Others,
    /// It could not be found out.
    Unknown(String),
}

async fn claim(host: &Host, session: &HostSession, id: u64) -> Claim {
    let Some(leases) = &host.leases else { return Claim::Ours(None) };
    // July files the row under the chain's epoch, later builds under the escrow's.
    let epoch_id = match host.config.personality {
        Personality::Intended => session.epoch_id,
        Personality::July => host.chain.epoch(),
    };
    let work = Work { epoch_id, escrow_id: session.params.escrow_id.clone(), inference_id: id };
    match leases.acquire(&work).await {
        Ok(Some(lease)) => Claim::Ours(Some(lease)),
        Ok(None) if host.defect.ignores_leases(On::Nonce(&session.params.escrow_id, id)) => Claim::Ours(None),
        Ok(None) => Claim::Others,
        Err(error) => Claim::Unknown(error.to_string()),
    }
}

async fn work(host: Arc<Host>, session: Arc<HostSession>, candidate: Candidate) {
    let july = host.config.personality == Personality::July;
    let lease = loop {
        match claim(&host, &session, candidate.id).await {
            Claim::Ours(lease) => break lease,
            Claim::Others => {
                // Whoever dies holding it is followed by the retry loop. July counts the loss as a fault and
                // tries again with the next request.
                if july {
                    stage(&host, "validation_started", "ok");
                    failed(&host, &session, candidate.id, "validate_err", "leased by another instance");
                } else {
                    LogLine::new(Level::Info, "devshardd: validation leased by another instance")
                        .field("escrow", &session.params.escrow_id)
                        .field("inference", candidate.id)
                        .emit();
                }
                session.drop_candidate(candidate.id, july);
                return unqueue(&host, &session);
            }
            Claim::Unknown(error) => {
                failed(&host, &session, candidate.id, "validate_err", &error);
                if !session.retry_validation(candidate.id) {
                    return unqueue(&host, &session);
                }
                tokio::time::sleep(RETRY_PAUSE).await;
            }
        }
    };
    held(host, session, candidate, lease).await;
}

async fn held(host: Arc<Host>, session: Arc<HostSession>, candidate: Candidate, lease: Option<Lease>) {
    let permit = host.validations.acquire().await;
    loop {
        stage(&host, "validation_started", "ok");
        match opinion(&host, &session, &candidate).await {
            Ok(valid) => {
                stage(&host, "validation_finished", "ok");
                submit(&host, &session, &candidate, valid, lease.as_ref()).await;
                break;
            }
            Err((reason, error)) => failed(&host, &session, candidate.id, reason, &error),
        }
        if !session.retry_validation(candidate.id) {
            give_back(&host, lease.as_ref()).await;
            break;
        }
        tokio::time::sleep(RETRY_PAUSE).await;
    }
    drop(permit);
    unqueue(&host, &session);
}

/// A failed validation leaves its row to others; July keeps it until its time has passed.
async fn give_back(host: &Host, lease: Option<&Lease>) {
    if let (Some(leases), Some(lease), Personality::Intended) = (&host.leases, lease, host.config.personality)
        && let Err(error) = leases.release(lease).await
    {
        LogLine::new(Level::Warn, "devshardd: validation lease not released").field("error", error).emit();
    }
}

fn failed(host: &Host, session: &HostSession, id: u64, reason: &'static str, error: &str) {
    stage(host, "validation_finished", "error");
    host.metrics.count("devshard_validation_orphan_total", &[("reason", reason)]);
    LogLine::new(Level::Error, "validate failed")
        .field("escrow_id", &session.params.escrow_id)
        .field("stage", "validation_finished")
        .field("where", "host.validate")
        .field("reason", reason)
        .field("error", error)
        .field("inference_id", id)
        .emit();
}

fn unqueue(host: &Host, session: &HostSession) {
    let depth = [("escrow_id", session.params.escrow_id.as_str())];
    host.metrics.add("devshard_validation_queue_depth", &depth, -1.0);
}

/// Publishes an opinion together with the end of its lease; a late one is abandoned.
async fn submit(
    host: &Arc<Host>,
    session: &Arc<HostSession>,
    candidate: &Candidate,
    valid: bool,
    lease: Option<&Lease>,
) {
    let (Some(leases), Some(lease)) = (&host.leases, lease) else {
        return publish(host, session, candidate, valid);
    };
    if host.defect.submits_late(&host.occasions, On::Nonce(&session.params.escrow_id, candidate.id)) {
        tokio::time::sleep(Duration::from_millis(2 * host.config.lease_ttl_ms)).await;
        publish(host, session, candidate, valid);
        return;
    }
    let submitted = leases
        .submit(lease, || {
            publish(host, session, candidate, valid);
            Ok::<(), LeaseError>(())
        })
        .await;
    let line = |message: &str| {
        LogLine::new(Level::Info, message)
            .field("escrow", &session.params.escrow_id)
            .field("inference", candidate.id)
    };
    match submitted {
        Ok(true) => {}
        Ok(false) => line("devshardd: validation lease no longer owned; abandon submit").emit(),
        Err(error) => line("devshardd: mark validation submitted failed").field("error", error).emit(),
    }
}

async fn opinion(
    host: &Arc<Host>,
    session: &Arc<HostSession>,
    candidate: &Candidate,
) -> Result<bool, (&'static str, String)> {
    let Candidate { id, record } = candidate;
    let payload = fetch(host, session, *id, record).await.map_err(|error| ("payload_fetch_err", error))?;
    let honest = sha256(&payload.prompt_payload.0).as_slice() == record.prompt_hash
        && sha256(&payload.response_payload.0).as_slice() == record.response_hash;
    if !honest {
        LogLine::new(Level::Warn, "devshardd: hash mismatch — submitting immediate invalidation")
            .field("escrow", &session.params.escrow_id)
            .field("inference", id)
            .emit();
        return Ok(false);
    }
    let bad = |reason: &'static str| move |error: String| (reason, error);
    let claim = Claimed::read(&payload.response_payload.0)
        .map_err(|error| bad("original_parse_err")(error.to_string()))?;
    if !claim.has_numeric_tokens() {
        return Ok(false);
    }
    let settings = host.nodes.settings();
    let tokens = claim.enforced_tokens();
    let body = replay_body(&payload.prompt_payload.0, *id, &settings.logprobs_mode, &tokens)
        .map_err(|error| bad("validation_build_err")(error.to_string()))?;
    let request_id = format!("validate-{id}");
    let call = Call { host, path: "validate", model: &record.model, body: &body, request_id: &request_id };
    let response = call.run(None).await.map_err(|failure| (failure.reason, failure.error))?;
    // 400 and 422 say that the replay cannot be made, which is nobody's fault.
    if matches!(response.status().as_u16(), 400 | 422) {
        return Ok(true);
    }
    let replay = read_body(response, ANSWER_MAX)
        .await
        .map_err(|error| bad("validation_read_err")(error.to_string()))?;
    let threshold = threshold_of(host, &record.model).await;
    claim.holds(&replay, threshold).map_err(|error| bad("validation_parse_err")(error.to_string()))
}

async fn threshold_of(host: &Host, model: &str) -> f64 {
    if let Ok(Some(threshold)) = host.chain.validation_threshold(model).await {
        return threshold;
    }
    let settings = host.nodes.settings();
    let set = settings.validation_thresholds.iter().find(|threshold| threshold.model_id == model);
    set.map_or(THRESHOLD_DEFAULT, |set| super::chain::threshold(set.threshold_value, set.threshold_exponent))
}

async fn fetch(
    host: &Host,
    session: &HostSession,
    id: u64,
    record: &Inference,
) -> Result<PayloadResponse, String> {
    let executor = session.params.address_of(record.executor_slot).unwrap_or_default();
    let base = host.chain.participant_url(executor).await.map_err(|error| error.to_string())?;
    let url = format!(
        "{}{}/sessions/{}/payloads?inference_id={id}",
        base.trim_end_matches('/'),
        host.config.route_prefix,
        session.params.escrow_id
    );
    let timestamp_ns = clock::unix_ns();
    let validator = host.signer.key().address();
    let signed =
        payload_request_text(&id.to_string(), session.epoch_id, timestamp_ns.cast_signed(), &validator);
    let signature = host.signer.sign(signed.as_bytes());
    let response = host
        .http
        .get(url)
        .timeout(FETCH_TIMEOUT)
        .header("X-Validator-Address", host.signer.address())
        .header("X-Timestamp", timestamp_ns)
        .header("X-Epoch-Id", session.epoch_id)
        .header("Authorization", STANDARD.encode(&signature[..64]))
        .header(REQUEST_ID_HEADER, format!("validate-{id}"))
        .send()
        .await
        .map_err(|error| error.to_string())?;
    if !response.status().is_success() {
        return Err(format!("executor answered {}", response.status()));
    }
    let bytes = read_body(response, 3 * ANSWER_MAX).await.map_err(|error| error.to_string())?;
    serde_json::from_slice(&bytes).map_err(|error| error.to_string())
}

/// Checks the signed headers of a payload fetch; gives the validator's address.
///
/// # Errors
/// The text for a 401.
pub fn check_payload_request(
    headers: &HeaderMap,
    inference_id: u64,
    group: &[String],
    now_ns: u64,
) -> Result<String, String> {
    let text = |name: &str| {
        headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .ok_or_else(|| format!("{name} header required"))
    };
    let validator = text("X-Validator-Address")?.to_owned();
    let timestamp: u64 = text("X-Timestamp")?.parse().map_err(|_| "invalid timestamp".to_owned())?;
    let epoch_id: u64 = text("X-Epoch-Id")?.parse().map_err(|_| "invalid epoch".to_owned())?;
    let signature = STANDARD.decode(text("Authorization")?).map_err(|_| "invalid signature".to_owned())?;
    if now_ns.saturating_sub(timestamp) > 60_000_000_000 {
        return Err("timestamp too old".into());
    }
    if timestamp.saturating_sub(now_ns) > 10_000_000_000 {
        return Err("timestamp in the future".into());
    }
    if !group.contains(&validator) {
        return Err("validator is not a group member".into());
    }
    // The signature comes without its recovery id; one of the two must give the address.
    let address = Address::parse(&validator).map_err(|error| error.to_string())?;
    let signed = payload_request_text(&inference_id.to_string(), epoch_id, timestamp.cast_signed(), &address);
    let made_by_validator = (0..2).any(|recovery| {
        let full: Vec<u8> = signature.iter().copied().chain([recovery]).collect();
        signer_of(signed.as_bytes(), &full).is_ok_and(|signer| signer == validator)
    });
    if made_by_validator { Ok(validator) } else { Err("invalid signature".into()) }
}

fn publish(host: &Arc<Host>, session: &Arc<HostSession>, candidate: &Candidate, valid: bool) {
    let id = candidate.id;
    let status = session.with_state(|state| state.live().get(&id).map(|record| record.status));
    let Some(slot) = session.slots.first().copied() else { return };
    let escrow_id = session.params.escrow_id.clone();
    // The current status decides, not the one at the time of the draw.
    let tx = match status {
        Some(Status::Finished) => Tx::Validation(MsgValidation {
            inference_id: id,
            validator_slot: slot,
            valid,
            proposer_sig: Vec::new(),
            escrow_id,
        }),
        Some(Status::Challenged) => Tx::ValidationVote(MsgValidationVote {
            inference_id: id,
            voter_slot: slot,
            vote_valid: valid,
            proposer_sig: Vec::new(),
            escrow_id,
        }),
        _ => {
            return LogLine::new(Level::Info, "validation skipped after status changed")
                .field("escrow_id", &session.params.escrow_id)
                .field("inference_id", id)
                .emit();
        }
    };
    let signed = proposer_signed_bytes(&tx).unwrap_or_default();
    let planted = On::Nonce(&session.params.escrow_id, id);
    let own = host.defect.own_signature(&host.signer, &signed);
    let signature = own.unwrap_or_else(|| host.signer.sign(&signed));
    let mut proposals = vec![with_signature(&tx, signature)];
    if let Some(second) = host.defect.second_signature(&host.signer, &signed, planted) {
        proposals.push(with_signature(&tx, second));
    }
    for proposal in proposals {
        let stored = session.propose(proposal);
        stage(host, "vote_published", if stored.is_ok() { "ok" } else { "error" });
        let kind = if matches!(tx, Tx::Validation(_)) { "validation" } else { "validation_vote" };
        LogLine::new(Level::Info, "validation tx published")
            .field("escrow_id", &session.params.escrow_id)
            .field("stage", "vote_published")
            .field("where", "host.publish_validation")
            .field("inference_id", id)
            .field("validator_slot", slot)
            .field("validation_tx", kind)
            .field("validation_result", if valid { "valid" } else { "invalid" })
            .emit();
    }
}

fn with_signature(tx: &Tx, signature: Vec<u8>) -> Tx {
    match tx.clone() {
        Tx::Validation(message) => Tx::Validation(MsgValidation { proposer_sig: signature, ..message }),
        Tx::ValidationVote(message) => {
            Tx::ValidationVote(MsgValidationVote { proposer_sig: signature, ..message })
        }
        other => other,
    }
}

fn stage(host: &Host, stage: &'static str, status: &'static str) {
    host.metrics.count("devshard_validation_total", &[("stage", stage), ("status", status)]);
}

//! `POST /sessions/:id/verify-timeout`: this host's opinion on a request that did not end (contract hosts 7.2).

use axum::http::StatusCode;
use wire::devshard::{TimeoutReason, timeout_vote_signed_bytes};

use super::auth::Refusal;
use super::session::{HostSession, Limits};
use crate::signing::{Signer, sha256};
use crate::state::{Inference, Status};
use crate::transport::{VerifyTimeoutRequest, VerifyTimeoutResponse};

/// Gives the vote. Catch-up steps are applied and their failures ignored, as on the real host.
///
/// # Errors
/// 400 for an unknown reason, 503 while requests are disabled, 500 when the inference is unknown or in
/// another status.
pub fn vote(
    session: &HostSession,
    signer: &Signer,
    request: &VerifyTimeoutRequest,
    limits: Limits,
    now_s: i64,
) -> Result<VerifyTimeoutResponse, Refusal> {
    let (reason, wanted) = match request.reason.as_str() {
        "refused" => (TimeoutReason::Refused, Status::Pending),
        "execution" => (TimeoutReason::Execution, Status::Started),
        other => {
            let text = format!("unknown timeout reason: {other}");
            return Err(Refusal::new(StatusCode::BAD_REQUEST, text));
        }
    };
    if !limits.requests_enabled {
        let text = "devshard requests are disabled";
        let refusal = Refusal::new(StatusCode::SERVICE_UNAVAILABLE, text);
        return Err(Refusal { class: "requests_disabled", ..refusal });
    }
    let _ = session.apply(&request.diffs, limits);
    let id = request.inference_id;
    let internal = |text: String| Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, text);
    let record = session
        .with_state(|state| state.inference(id).cloned())
        .ok_or_else(|| internal(format!("inference {id} not found")))?;
    if record.status != wanted {
        let text = format!("inference {id}: expected {}, got {}", wanted.name(), record.status as u8);
        return Err(internal(text));
    }
    let config = &session.params.config;
    let (since, wait) = match reason {
        TimeoutReason::Refused => (record.started_at, config.refusal_timeout),
        _ => (record.confirmed_at, config.execution_timeout),
    };
    let due = now_s >= since.saturating_add(i64::from(wait));
    let refused = reason == TimeoutReason::Refused;
    let evidence = session.has_evidence(id, refused);
    let accept = due && !evidence && (!refused || payload_matches(request, &record));
    let voter_slot = session
        .params
        .first_slot_of(signer.address())
        .ok_or_else(|| internal(format!("this host has no slot in session {}", session.params.escrow_id)))?;
    let signed = timeout_vote_signed_bytes(&session.params.escrow_id, id, reason, accept);
    Ok(VerifyTimeoutResponse { accept, signature: signer.sign(&signed).into(), voter_slot })
}

fn payload_matches(request: &VerifyTimeoutRequest, record: &Inference) -> bool {
    request.payload.as_ref().is_some_and(|payload| {
        sha256(&payload.prompt.0).as_slice() == record.prompt_hash
            && payload.model == record.model
            && payload.started_at == record.started_at
    })
}

//! Sessions as hosts store them: diffs and mempools, decoded (contract hosts 2.3 and 4.1).

use evidence::snapshot::{Diff, HostEscrow, HostState, Missing, Tx};
use scenario::digest::blake3_hex;
use serde_json::Value;
use wire::devshard::{decode_diff_base64, decode_tx_base64, encode_tx};
use wire::proto::devshard::DevshardTx;
use wire::proto::devshard::devshard_tx;

use super::{HostSurface, Surfaces, keep};

/// Answer of a host that was never contacted for an escrow (contract hosts 2.1, newer builds).
const NO_SESSION: &str = "session not found";

/// Reads every escrow of one host. Only escrows that the gateway shows with a nonce are asked for: on a July host a
/// GET of a foreign session would create it (contract hosts 2.1).
pub async fn state(
    surfaces: &Surfaces,
    host: &HostSurface,
    escrows: &[(String, u64)],
    missing: &mut Vec<Missing>,
) -> HostState {
    let mut state = HostState {
        service: host.service.clone(),
        participant: host.participant.clone(),
        escrows: Vec::with_capacity(escrows.len()),
    };
    for (id, nonce) in escrows {
        if *nonce == 0 {
            continue;
        }
        let base = format!("{}{}/sessions/{id}", host.base, surfaces.session_prefix);
        let what = format!("{}/{id}", host.service);
        let diffs = surfaces.json(&format!("{base}/diffs?from=1&to={nonce}"), false).await;
        if diffs.as_ref().is_err_and(|why| why.contains(NO_SESSION)) {
            // The gateway has not contacted this host for the escrow yet: an empty log, not a missing one.
            state.escrows.push(HostEscrow { escrow: id.clone(), ..HostEscrow::default() });
            continue;
        }
        let diffs = keep(missing, &format!("{what}/diffs"), diffs.and_then(|value| read_diffs(&value)));
        let mempool = surfaces.json(&format!("{base}/mempool"), false).await;
        let mempool =
            keep(missing, &format!("{what}/mempool"), mempool.and_then(|value| read_mempool(&value)));
        if let (Some(diffs), Some(mempool)) = (diffs, mempool) {
            state.escrows.push(HostEscrow { escrow: id.clone(), diffs, mempool });
        }
    }
    state
}

fn read_diffs(value: &Value) -> Result<Vec<Diff>, String> {
    let list = value.as_array().ok_or("diffs are not a list")?;
    list.iter().map(read_diff).collect()
}

fn read_diff(entry: &Value) -> Result<Diff, String> {
    let diff = &entry["diff"];
    let nonce = diff["nonce"].as_u64().ok_or("a diff without nonce")?;
    let txs = diff["txs"].as_str().unwrap_or_default();
    let user_sig = diff["user_sig"].as_str().unwrap_or_default();
    let content = decode_diff_base64(txs).map_err(|error| format!("diff {nonce}: {error}"))?;
    Ok(Diff {
        nonce,
        content: blake3_hex(format!("{txs}\n{user_sig}").as_bytes()),
        state_hash: entry["state_hash"].as_str().unwrap_or_default().to_owned(),
        post_state_root: diff["post_state_root"].as_str().unwrap_or_default().to_owned(),
        txs: content.txs.iter().map(read_tx).collect(),
    })
}

fn read_mempool(value: &Value) -> Result<Vec<Tx>, String> {
    let list = value["txs"].as_array().ok_or("a mempool without txs")?;
    let decode = |entry: &Value| {
        let text = entry.as_str().ok_or("a mempool entry is not text")?;
        decode_tx_base64(text).map(|tx| read_tx(&tx)).map_err(|error| format!("mempool: {error}"))
    };
    list.iter().map(decode).collect()
}

/// What an assertion needs of a transaction.
fn read_tx(tx: &DevshardTx) -> Tx {
    use devshard_tx::Tx as Kind;
    let (slot, valid, escrow) = match &tx.tx {
        Some(Kind::FinishInference(m)) => (Some(m.executor_slot), None, Some(m.escrow_id.clone())),
        Some(Kind::Validation(m)) => (Some(m.validator_slot), Some(m.valid), Some(m.escrow_id.clone())),
        Some(Kind::ValidationVote(m)) => (Some(m.voter_slot), Some(m.vote_valid), Some(m.escrow_id.clone())),
        _ => (None, None, None),
    };
    Tx {
        kind: tx.kind().map_or("unknown", |kind| kind.name()).to_owned(),
        inference: tx.inference_id(),
        slot,
        valid,
        escrow,
        digest: blake3_hex(&encode_tx(tx))[..16].to_owned(),
    }
}

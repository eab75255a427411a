//! Sessions as hosts store them: diffs and mempools, decoded (contract hosts 2.3 and 4.1).

use evidence::rundir::RunDirError;
use evidence::sessions::{SessionLog, Span, push_line};
use evidence::snapshot::{Diff, HostEscrow, HostState, Missing, Tx};
use scenario::digest::blake3_hex;
use serde_json::Value;
use wire::devshard::{decode_diff_base64, decode_tx_base64, encode_tx};
use wire::proto::devshard::DevshardTx;
use wire::proto::devshard::devshard_tx;

use super::ask::bound;
use super::{HostSurface, Missed, Surfaces, keep};

/// Answer of a host that was never contacted for an escrow (contract hosts 2.1, newer builds).
const NO_SESSION: &str = "session not found";

/// Diffs asked for at once: an answer must stay far below the bound of one. A diff takes about 1 kB, one with many
/// validations a few more.
const PAGE_LEN: u64 = 500;
/// Pages of one log; more is no session of a test.
const PAGES_MAX: u64 = 40_000;

/// Reads every escrow of one host. An escrow that the gateway shows at nonce 0 is not asked for: on a July host a GET
/// of a foreign session would create it (contract hosts 2.1). `None` = the gateway did not say.
///
/// # Errors
/// [`RunDirError`] when diffs can't be written; what can't be read is in `missing`.
pub async fn state(
    surfaces: &Surfaces,
    host: &HostSurface,
    escrows: &[(String, Option<u64>)],
    sessions: &mut SessionLog,
    missing: &mut Vec<Missing>,
) -> Result<HostState, RunDirError> {
    let mut state = HostState {
        service: host.service.clone(),
        participant: host.participant.clone(),
        escrows: Vec::with_capacity(escrows.len()),
        epoch: None,
    };
    for (id, nonce) in escrows.iter().filter(|(_, nonce)| *nonce != Some(0)) {
        let base = format!("{}{}/sessions/{id}", host.base, surfaces.session_prefix);
        let what = format!("{}/{id}", host.service);
        let log = match log(surfaces, &base, id, *nonce, sessions).await {
            // The gateway has not contacted this host for the escrow yet: an empty log, not a missing one.
            Err(Unread::Why(why)) if why.contains(NO_SESSION) => {
                state.escrows.push(HostEscrow { escrow: id.clone(), ..HostEscrow::default() });
                continue;
            }
            Err(Unread::RunDir(error)) => return Err(error),
            Err(Unread::Why(why)) => keep(missing, &format!("{what}/diffs"), Err::<Vec<Span>, _>(why)),
            Ok(log) => Some(log),
        };
        let mempool = surfaces.json(&format!("{base}/mempool"), false, bound::STATE, read_mempool).await;
        let mempool = keep(missing, &format!("{what}/mempool"), mempool);
        if let (Some(log), Some((mempool, _))) = (log, mempool) {
            let escrow = id.clone();
            state.escrows.push(HostEscrow { escrow, log, mempool, ..HostEscrow::default() });
        }
    }
    Ok(state)
}

/// Epoch that a host's statistics name.
///
/// # Errors
/// When they can't be read or name none.
pub async fn epoch(surfaces: &Surfaces, host: &HostSurface) -> Result<u64, Missed> {
    let url = format!("{}{}/stats/shards", host.base, surfaces.session_prefix);
    let read = |shown: &Value| shown["current_epoch_id"].as_u64().ok_or("no current epoch".to_owned());
    Ok(surfaces.json(&url, false, bound::STATE, read).await?.0)
}

/// Why a log was not read.
enum Unread {
    /// The host did not give it.
    Why(String),
    /// It could not be kept.
    RunDir(RunDirError),
}

/// Reads the log of one session page by page up to the gateway's nonce, and on while pages are full: what a host has
/// beyond that nonce is for the verdict. Without one, until nothing more comes.
async fn log(
    surfaces: &Surfaces,
    base: &str,
    escrow: &str,
    nonce: Option<u64>,
    sessions: &mut SessionLog,
) -> Result<Vec<Span>, Unread> {
    let mut log = Vec::new();
    let mut came = PAGE_LEN;
    for page in 0..PAGES_MAX {
        let from = page * PAGE_LEN + 1;
        let to = from + PAGE_LEN - 1;
        let over = match nonce {
            Some(nonce) => from > nonce && came < PAGE_LEN,
            None => came == 0,
        };
        if over {
            break;
        }
        let url = format!("{base}/diffs?from={from}&to={to}");
        let answer = surfaces.json(&url, false, bound::DIFFS, read_diffs).await;
        let (diffs, _) = answer.map_err(|missed| Unread::Why(missed.to_string()))?;
        came = diffs.len() as u64;
        for diff in &diffs {
            push_line(&mut log, sessions.diff(escrow, diff).map_err(Unread::RunDir)?);
        }
    }
    Ok(log)
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

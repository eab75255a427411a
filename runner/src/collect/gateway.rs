//! Per-escrow state of the gateway (contract gateway 2.4).

use std::collections::BTreeMap;

use evidence::snapshot::{GatewayEscrow, Inference, Missing, Snapshot, Tx};
use serde_json::Value;

use super::ask::bound;
use super::{Surfaces, keep};

/// Reads one escrow through `/devshard/{id}`, which works however many runtimes are loaded (contract gateway 0.3).
pub async fn escrow(surfaces: &Surfaces, id: &str, missing: &mut Vec<Missing>) -> (GatewayEscrow, Value) {
    let base = format!("{}/devshard/{id}/v1", surfaces.gateway);
    let mut raw = serde_json::Map::new();
    let mut escrow = GatewayEscrow { escrow: id.to_owned(), ..GatewayEscrow::default() };
    for name in ["status", "state", "debug/pending", "debug/inferences", "debug/signatures"] {
        let len_max = match name {
            "status" => bound::SMALL,
            "debug/inferences" => bound::inferences(surfaces.requests_max),
            _ => bound::STATE,
        };
        // With the key an escrow that is not served any more is read from disk (contract gateway 2.2).
        let take = |value: &Value| read(&mut escrow, name, value);
        let answer = surfaces.json(&format!("{base}/{name}"), true, len_max, take).await;
        if let Some(((), value)) = keep(missing, &format!("gateway/{id}/{name}"), answer) {
            raw.insert(name.to_owned(), value);
        }
    }
    (escrow, Value::Object(raw))
}

/// The gateway goes on while its hosts are read: where a host has more diffs than the gateway had shown, its nonce is read
/// once more, and the later answer stands. Where none comes the nonce is not known.
pub async fn ask_again(surfaces: &Surfaces, snapshot: &mut Snapshot, missing: &mut Vec<Missing>) {
    let mut longest: BTreeMap<&str, u64> = BTreeMap::new();
    for log in snapshot.hosts.iter().flat_map(|host| &host.escrows) {
        let len: u64 = log.log.iter().map(|span| span.count).sum();
        let known = longest.entry(&log.escrow).or_default();
        *known = len.max(*known);
    }
    for escrow in &mut snapshot.escrows {
        let held = longest.get(escrow.escrow.as_str()).copied().unwrap_or_default();
        if escrow.nonce == 0 || held <= escrow.nonce {
            continue;
        }
        let url = format!("{}/devshard/{}/v1/status", surfaces.gateway, escrow.escrow);
        let nonce = |value: &Value| value["nonce"].as_u64().ok_or("no nonce".to_owned());
        let answer = surfaces.json(&url, true, bound::SMALL, nonce).await;
        if let Some((nonce, _)) = keep(missing, &format!("gateway/{}/status", escrow.escrow), answer) {
            escrow.nonce = nonce.max(escrow.nonce);
        }
    }
}

/// Ids of every escrow that the gateway knows, served or not.
#[must_use]
pub fn registered(admin: &Value) -> Vec<String> {
    let entries = admin["devshards"].as_array().map(Vec::as_slice).unwrap_or_default();
    entries.iter().filter_map(|entry| entry["id"].as_str().map(str::to_owned)).collect()
}

/// Takes one answer into the normalised form. What an assertion would read as zero or as none must be there.
fn read(escrow: &mut GatewayEscrow, name: &str, value: &Value) -> Result<(), String> {
    if !value.is_object() {
        return Err("no object".to_owned());
    }
    match name {
        "status" => status(escrow, value)?,
        "state" => escrow.group = group(value)?,
        "debug/pending" => escrow.pending = pending(value)?,
        "debug/inferences" => escrow.inferences = inferences(value)?,
        _ => escrow.highest_quorum_nonce = value["highest_quorum_nonce"].as_u64(),
    }
    Ok(())
}

fn status(escrow: &mut GatewayEscrow, value: &Value) -> Result<(), String> {
    escrow.nonce = value["nonce"].as_u64().ok_or("no nonce")?;
    value["phase"].as_str().ok_or("no phase")?.clone_into(&mut escrow.phase);
    escrow.balance = value["balance"].as_u64();
    escrow.refusal_timeout_s = value["config"]["refusal_timeout"].as_u64();
    escrow.execution_timeout_s = value["config"]["execution_timeout"].as_u64();
    Ok(())
}

fn group(value: &Value) -> Result<Vec<String>, String> {
    let slots = value["group"].as_array().ok_or("no group")?;
    let address = |slot: &Value| slot["validator_address"].as_str().unwrap_or_default().to_owned();
    Ok(slots.iter().map(address).collect())
}

/// The list of what waits: `null` and a list are both normal (contract gateway 2.4.5), its absence is not.
///
/// # Errors
/// In words.
pub fn waiting(value: &Value) -> Result<&[Value], String> {
    match value.get("pending") {
        Some(Value::Null) => Ok(&[]),
        Some(Value::Array(entries)) => Ok(entries),
        _ => Err("no list of what is pending".to_owned()),
    }
}

fn pending(value: &Value) -> Result<Vec<Tx>, String> {
    let entries = waiting(value)?
        .iter()
        .map(|entry| Tx {
            kind: entry["type"].as_str().unwrap_or_default().to_owned(),
            inference: entry["id"].as_u64(),
            slot: None,
            valid: None,
            escrow: None,
            digest: String::new(),
        })
        .collect();
    Ok(entries)
}

fn inferences(value: &Value) -> Result<BTreeMap<u64, Inference>, String> {
    let map = match value.get("inferences") {
        Some(Value::Object(map)) => map,
        Some(Value::Null) => return Ok(BTreeMap::new()),
        _ => return Err("no inferences".to_owned()),
    };
    let slots = |value: &Value| -> Vec<u32> {
        let list = value.as_array().map(Vec::as_slice).unwrap_or_default();
        list.iter().filter_map(|slot| u32::try_from(slot.as_u64()?).ok()).collect()
    };
    let text = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    let number = |value: &Value| value.as_u64().unwrap_or_default();
    let small = |value: &Value| u32::try_from(number(value)).unwrap_or(u32::MAX);
    let inferences = map
        .iter()
        .filter_map(|(nonce, entry)| {
            let inference = Inference {
                status: entry["status"].as_str().unwrap_or_default().to_owned(),
                executor_slot: small(&entry["executor_slot"]),
                prompt_hash: text(&entry["prompt_hash"]),
                response_hash: text(&entry["response_hash"]),
                input_length: number(&entry["input_length"]),
                max_tokens: number(&entry["max_tokens"]),
                started_at: number(&entry["started_at"]),
                actual_cost: number(&entry["actual_cost"]),
                votes_valid: small(&entry["votes_valid"]),
                votes_invalid: small(&entry["votes_invalid"]),
                validated_by: slots(&entry["validated_by"]),
            };
            Some((nonce.parse().ok()?, inference))
        })
        .collect();
    Ok(inferences)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_captured_inference_is_read_whole() {
        // Shape of fixture ok-stream, accounting-after.json.
        let value = json!({"inferences": {"10": {"actual_cost": 0, "executor_slot": 0, "input_length": 165,
            "max_tokens": 32, "prompt_hash": "30d3", "response_hash": "", "started_at": 1_795_990_531_u64,
            "status": "pending", "validated_by": null, "votes_invalid": 0, "votes_valid": 0}},
            "total_inferences": 7});
        let read = inferences(&value).unwrap();
        assert_eq!(read[&10].status, "pending");
        assert_eq!(read[&10].response_hash, None);
        assert_eq!(read[&10].validated_by, Vec::<u32>::new());
        assert_eq!(pending(&json!({"nonce": 3, "pending": null})), Ok(vec![]));
        assert_eq!(
            pending(&json!({"pending": [{"type": "finish", "id": 10}]})).unwrap()[0].inference,
            Some(10)
        );
    }

    #[test]
    fn another_form_is_no_escrow_without_anything() {
        let mut escrow = GatewayEscrow::default();
        for name in ["status", "state", "debug/pending", "debug/inferences", "debug/signatures"] {
            for value in [json!([]), json!("busy"), json!(null)] {
                assert!(read(&mut escrow, name, &value).is_err(), "{name} {value}");
            }
        }
        for name in ["status", "state", "debug/pending", "debug/inferences"] {
            assert!(read(&mut escrow, name, &json!({"ok": true})).is_err(), "{name}");
        }
        assert!(read(&mut escrow, "status", &json!({"nonce": "7", "phase": "active"})).is_err());
    }
}

//! Joins each planned request to node calls, nonces, escrow and gateway accounting (design section 5, "Join").
//!
//! Primary way: marker → node call → `seed` = nonce, with the escrow from `X-Devshard-Id`, else from the terminal log
//! line of the host that made the call (found by the call's `X-Request-Id`). The accounting row is found by the
//! answer's `X-Request-Id`, else by the id that the gateway's log, or its perf database, has for escrow and nonce.

use std::collections::{BTreeMap, HashMap};

use evidence::EVIDENCE_VERSION;
use evidence::accounting::{AccountingRow, Attempt, JoinWay, JoinedCall, JoinedRequest, ROW_UNREAD};
use evidence::record::RequestRecord;
use evidence::run::RunInfo;
use evidence::rundir::{DAPI_CALLS, LOGS, NODE_CALLS, REQUESTS, RunDir, RunReader, SNAPSHOT_FILE, SNAPSHOTS};
use evidence::sessions::each_inference;
use evidence::snapshot::{Moment, Snapshot};
use futures_util::StreamExt;
use scenario::control::{DapiCallRecord, NodeCall};
use scenario::fault::{CallKind, DapiCall};
use serde_json::Value;

use super::ask::bound;
use super::{Missed, Surfaces, perf};

/// Accounting lookups at the same time.
const LOOKUPS_AT_ONCE: usize = 16;

/// Everything that the join reads.
#[derive(Debug, Default)]
pub struct JoinInput {
    /// Salt of the run: calls with another salt belong to somebody else.
    pub salt: String,
    /// Client records in plan order.
    pub records: Vec<RequestRecord>,
    /// Index of the plan line whose body a line repeats.
    pub duplicates: HashMap<u64, u64>,
    /// Ended node calls.
    pub calls: Vec<NodeCall>,
    /// Allocator calls.
    pub dapi: Vec<DapiCallRecord>,
    /// Text of the gateway's log.
    pub gateway_log: String,
    /// Accounting ids by escrow and nonce, as the gateway's perf database has them.
    pub perf: perf::Ids,
    /// Text of all host logs.
    pub host_logs: String,
    /// Status after sync, by escrow and nonce.
    pub statuses: Statuses,
}

/// Statuses of inferences by escrow and nonce.
pub type Statuses = HashMap<String, HashMap<u64, String>>;

/// Largest log that is searched for ids.
const LOG_LEN_MAX: u64 = 512 * 1024 * 1024;

impl JoinInput {
    /// Reads what the run directory holds so far. What can't be read is absent here and named by the verdict, which
    /// reads the same files.
    #[must_use]
    pub fn read(dir: &RunDir, info: &RunInfo) -> Self {
        let reader = RunReader::new(dir.root());
        let duplicates = &info.resolved.scenario.workload.duplicates;
        let mut input = Self {
            salt: info.salt.clone(),
            records: all(&reader, REQUESTS),
            duplicates: duplicates.iter().map(|entry| (entry.index, entry.duplicate_of)).collect(),
            calls: all::<NodeCall>(&reader, NODE_CALLS),
            dapi: all(&reader, DAPI_CALLS),
            gateway_log: String::new(),
            perf: perf::Ids::new(),
            host_logs: String::new(),
            statuses: statuses(&reader),
        };
        input.calls.retain(|call| call.ended_us.is_some());
        input.records.sort_by_key(|record| record.index);
        let Ok(entries) = std::fs::read_dir(dir.path(LOGS)) else { return input };
        for path in entries.flatten().map(|entry| entry.path()) {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let small = path.metadata().is_ok_and(|about| about.len() <= LOG_LEN_MAX);
            let target = match name.as_str() {
                "gateway.log" => &mut input.gateway_log,
                name if name.starts_with("host-") => &mut input.host_logs,
                _ => continue,
            };
            if let (true, Ok(bytes)) = (small, std::fs::read(&path)) {
                target.push_str(&String::from_utf8_lossy(&bytes));
            }
        }
        input
    }
}

fn all<T: serde::de::DeserializeOwned>(reader: &RunReader, name: &str) -> Vec<T> {
    reader.lines(name).map(|lines| lines.flatten().collect()).unwrap_or_default()
}

/// What the pure part found about one request.
#[derive(Clone, Debug)]
struct Found {
    joined: JoinedRequest,
    /// Escrow and request id under which its row is looked for.
    lookup: Option<(String, String)>,
    /// The id that the gateway's own records have for one of its nonces, and which records: July keeps rows under ids
    /// that no answer names.
    recorded: Option<(String, JoinWay)>,
}

/// Joins all requests; accounting rows are read from the gateway.
pub async fn join(surfaces: &Surfaces, mut input: JoinInput) -> Vec<JoinedRequest> {
    let unread = match &surfaces.perf_db {
        // Builds that join ids themselves keep no such database: nothing is lost then.
        Some(path) if path.exists() => perf::ids(path).map(|ids| input.perf = ids).err(),
        _ => None,
    };
    let input = &input;
    let mut found = walk(input);
    let lookups = found.iter().enumerate().filter_map(|(at, f)| Some((at, f.lookup.clone()?)));
    let mut rows = read_rows(surfaces, lookups.collect()).await;
    let split: Vec<(usize, (String, String))> = found
        .iter()
        .enumerate()
        .filter(|(at, _)| rows.get(at).is_some_and(Result::is_err))
        .filter_map(|(at, f)| {
            let (escrow, id) = f.lookup.clone()?;
            let (recorded, _) = f.recorded.clone().filter(|(recorded, _)| *recorded != id)?;
            Some((at, (escrow, recorded)))
        })
        .collect();
    for (at, row) in read_rows(surfaces, split).await.into_iter().filter(|(_, row)| row.is_ok()) {
        let found = &mut found[at];
        found.joined.ways.extend(found.recorded.as_ref().map(|(_, way)| *way));
        rows.insert(at, row);
    }
    if let Some(why) = unread {
        let without = found.iter_mut().enumerate().filter(|(at, _)| !rows.get(at).is_some_and(Result::is_ok));
        without.for_each(|(_, f)| f.joined.missing.push(format!("perf database: {why}")));
    }
    repeated(&mut found, &rows, input);
    found.into_iter().enumerate().map(|(at, f)| finish(f, rows.get(&at), &input.statuses)).collect()
}

async fn read_rows(
    surfaces: &Surfaces,
    lookups: Vec<(usize, (String, String))>,
) -> HashMap<usize, Result<AccountingRow, Missed>> {
    futures_util::stream::iter(lookups)
        .map(|(at, (escrow, id))| async move { (at, row(surfaces, &escrow, &id).await) })
        .buffer_unordered(LOOKUPS_AT_ONCE)
        .collect()
        .await
}

async fn row(surfaces: &Surfaces, escrow: &str, id: &str) -> Result<AccountingRow, Missed> {
    let url = format!("{}/devshard/{escrow}/v1/requests/{id}", surfaces.gateway);
    let named = |value: &Value| match value["request_id"].as_str() {
        Some(_) => Ok(read_row(escrow, value)),
        None => Err("no request_id".to_owned()),
    };
    Ok(surfaces.json(&url, true, bound::SMALL, named).await?.0)
}

/// Reads a row of contract gateway 2.4.6.
fn read_row(escrow: &str, value: &Value) -> AccountingRow {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let attempts = value["attempts"].as_array().map(Vec::as_slice).unwrap_or_default();
    let attempt = |entry: &Value| Attempt {
        nonce: entry["nonce"].as_u64().unwrap_or_default(),
        host_idx: u32::try_from(entry["host_idx"].as_u64().unwrap_or_default()).unwrap_or(u32::MAX),
        participant: text(&entry["participant_key"]),
        winner: entry["winner"].as_bool().unwrap_or_default(),
        status: text(&entry["status"]),
    };
    AccountingRow {
        request_id: text(&value["request_id"]).unwrap_or_default(),
        escrow: escrow.to_owned(),
        outcome: text(&value["outcome"]).unwrap_or_default(),
        decision: text(&value["decision"]),
        winner_nonce: value["winner_nonce"].as_u64().filter(|nonce| *nonce > 0),
        attempts: attempts.iter().map(attempt).collect(),
        started_at: text(&value["started_at"]),
        completed_at: text(&value["completed_at"]),
    }
}

/// Statuses as the snapshot after sync shows them.
fn statuses(reader: &RunReader) -> Statuses {
    let mut statuses = Statuses::new();
    let name = format!("{SNAPSHOTS}/{}/{SNAPSHOT_FILE}", Moment::DrainSynced.dir());
    let Ok(Some(snapshot)) = reader.json::<Snapshot>(&name) else { return statuses };
    each_inference(reader, &snapshot, |escrow, nonce, inference| {
        let of_escrow = statuses.entry(escrow.to_owned()).or_default();
        match inference {
            Some(inference) => drop(of_escrow.insert(nonce, inference.status.clone())),
            None => drop(of_escrow.remove(&nonce)),
        }
    });
    statuses
}

/// The pure part: everything but the accounting rows.
fn walk(input: &JoinInput) -> Vec<Found> {
    let lock_host: HashMap<&str, &str> = input
        .dapi
        .iter()
        .filter(|call| call.call == DapiCall::Acquire)
        .filter_map(|call| Some((call.lock.as_deref()?, call.host.as_str())))
        .collect();
    let mut calls: HashMap<&str, Vec<&NodeCall>> = HashMap::new();
    for call in &input.calls {
        let ours = call.salt.as_deref() == Some(input.salt.as_str()) && call.kind == CallKind::Execution;
        if let (true, Some(id)) = (ours, call.request_id.as_deref()) {
            calls.entry(id).or_default().push(call);
        }
    }
    let hosts = host_terminals(&input.host_logs);
    let gateway = gateway_nonces(&input.gateway_log);
    input.records.iter().map(|record| one(record, input, &calls, &lock_host, &hosts, &gateway)).collect()
}

fn one(
    record: &RequestRecord,
    input: &JoinInput,
    calls: &HashMap<&str, Vec<&NodeCall>>,
    lock_host: &HashMap<&str, &str>,
    hosts: &HashMap<String, (String, u64)>,
    gateway: &HashMap<(String, u64), String>,
) -> Found {
    let mut ways = Vec::new();
    let mut missing = Vec::new();
    // A repeated body carries the other request's marker: it is joined by response ids alone.
    let repeated = input.duplicates.contains_key(&record.index);
    let own = if repeated { None } else { calls.get(record.id.as_str()) };
    let mut own: Vec<&NodeCall> = own.map(|list| list.to_vec()).unwrap_or_default();
    own.sort_by_key(|call| (call.started_us, call.call));
    if !own.is_empty() {
        ways.push(JoinWay::Marker);
    }
    let mut escrow = record.response_devshard_id.clone();
    if escrow.is_some() {
        ways.push(JoinWay::DevshardId);
    } else if let Some((found, _)) =
        own.iter().find_map(|call| hosts.get(call.x_request_id.as_deref().unwrap_or_default()))
    {
        escrow = Some(found.clone());
        ways.push(JoinWay::HostLog);
    }
    let nonces: Vec<u64> = own.iter().filter_map(|call| call.seed).collect();
    if escrow.is_some() && !nonces.is_empty() {
        ways.push(JoinWay::SeedNonce);
    }
    let recorded = escrow.as_ref().and_then(|escrow| recorded_id(escrow, &nonces, gateway, &input.perf));
    let mut request = record.response_request_id.clone();
    if request.is_some() {
        ways.push(JoinWay::ResponseRequestId);
    } else if let Some((id, way)) = &recorded {
        ways.push(*way);
        request = Some(id.clone());
    }
    let accepted = accepted(record, !own.is_empty());
    if accepted && escrow.is_none() {
        missing.push("escrow: no X-Devshard-Id and no host log line for its node calls".to_owned());
    }
    if accepted && request.is_none() {
        let text =
            "accounting id: no X-Request-Id, and neither gateway log nor perf database names its nonces";
        missing.push(text.to_owned());
    }
    let lookup = if accepted { escrow.clone().zip(request) } else { None };
    let joined = JoinedRequest {
        v: EVIDENCE_VERSION,
        index: record.index,
        id: record.id.as_str().to_owned(),
        accepted,
        cached: false,
        escrow,
        accounting: None,
        calls: own.iter().map(|call| joined_call(call, lock_host)).collect(),
        inferences: Vec::new(),
        ways,
        missing,
    };
    Found { joined, lookup, recorded }
}

/// The accounting id that the gateway's log has for one of these nonces, else the one of its perf database.
fn recorded_id(
    escrow: &str,
    nonces: &[u64],
    log: &HashMap<(String, u64), String>,
    perf: &perf::Ids,
) -> Option<(String, JoinWay)> {
    let of = |ids: &HashMap<(String, u64), String>| {
        nonces.iter().find_map(|nonce| ids.get(&(escrow.to_owned(), *nonce)).cloned())
    };
    let logged = of(log).map(|id| (id, JoinWay::GatewayLog));
    logged.or_else(|| of(perf).map(|id| (id, JoinWay::PerfDatabase)))
}

/// A repeated body that missed the cache ran a race of its own, and its calls carry the marker of the request that it
/// repeats: they go to the line whose attempts name their nonces. Where both lines name a nonce, each in an escrow of
/// its own, the terminal line of the host tells whose call it is.
fn repeated(found: &mut [Found], rows: &HashMap<usize, Result<AccountingRow, Missed>>, input: &JoinInput) {
    let places: HashMap<u64, usize> = found.iter().map(|f| f.joined.index).zip(0..).collect();
    let request_ids: HashMap<(&str, u64), &str> = input
        .calls
        .iter()
        .filter_map(|call| Some(((call.node.as_str(), call.call), call.x_request_id.as_deref()?)))
        .collect();
    let hosts = if input.duplicates.is_empty() { HashMap::new() } else { host_terminals(&input.host_logs) };
    for (copy, original) in &input.duplicates {
        let (Some(copy), Some(original)) = (places.get(copy).copied(), places.get(original).copied()) else {
            continue;
        };
        let row = |at: usize| rows.get(&at).and_then(|row| row.as_ref().ok());
        let Some(of_copy) = row(copy) else { continue };
        let names = |row: &AccountingRow, nonce| row.attempts.iter().any(|attempt| attempt.nonce == nonce);
        let moves = |call: &JoinedCall| {
            let Some(nonce) = call.nonce.filter(|nonce| names(of_copy, *nonce)) else { return false };
            let other = row(original).filter(|row| names(row, nonce));
            let at_host = request_ids.get(&(call.node.as_str(), call.call)).and_then(|id| hosts.get(*id));
            match (other, at_host) {
                (None, _) => true,
                (Some(other), Some((escrow, _))) => *escrow == of_copy.escrow && *escrow != other.escrow,
                (Some(_), None) => false,
            }
        };
        let calls = std::mem::take(&mut found[original].joined.calls);
        let (moved, kept): (Vec<_>, Vec<_>) = calls.into_iter().partition(moves);
        found[original].joined.calls = kept;
        if !moved.is_empty() {
            found[copy].joined.ways.push(JoinWay::SeedNonce);
            found[copy].joined.calls.extend(moved);
        }
    }
}

/// Accepted as contract gateway 10.2 has it: a node saw it, or an answer that only a started race gives: 200, 502 or
/// 504 with the escrow named. Pre-checks (400, 401, 404, 409, 413, 429, 503) never start a race.
fn accepted(record: &RequestRecord, seen_by_node: bool) -> bool {
    let answered = matches!(record.status, Some(200 | 502 | 504)) && record.response_devshard_id.is_some();
    seen_by_node || answered
}

fn joined_call(call: &NodeCall, lock_host: &HashMap<&str, &str>) -> JoinedCall {
    let outcome = match serde_json::to_value(call.outcome) {
        Ok(Value::String(text)) => text,
        _ => String::new(),
    };
    JoinedCall {
        call: call.call,
        node: call.node.clone(),
        nonce: call.seed,
        lock: call.lock.clone(),
        host: call.lock.as_deref().and_then(|lock| lock_host.get(lock)).map(|host| (*host).to_owned()),
        outcome,
        status: call.status,
        rule: call.rule.clone(),
        started_us: call.started_us,
    }
}

fn finish(found: Found, row: Option<&Result<AccountingRow, Missed>>, statuses: &Statuses) -> JoinedRequest {
    let mut joined = found.joined;
    match row {
        Some(Ok(row)) => joined.accounting = Some(row.clone()),
        // The gateway says that it has none.
        Some(Err(why @ Missed::Status(400 | 404, _))) => {
            joined.missing.push(format!("accounting row: {why}"));
        }
        Some(Err(why)) => joined.missing.push(format!("{ROW_UNREAD}: {why}")),
        None => {}
    }
    let row = joined.accounting.as_ref();
    joined.cached = row.is_some_and(|row| row.outcome == "cached");
    let mut nonces: Vec<u64> = joined.calls.iter().filter_map(|call| call.nonce).collect();
    nonces.extend(row.into_iter().flat_map(|row| row.attempts.iter().map(|attempt| attempt.nonce)));
    nonces.sort_unstable();
    nonces.dedup();
    if let Some(escrow) = &joined.escrow {
        for nonce in nonces {
            match statuses.get(escrow).and_then(|of_escrow| of_escrow.get(&nonce)) {
                Some(status) => joined.inferences.push((nonce, status.clone())),
                None => joined.missing.push(format!("inference {nonce} of escrow {escrow} after sync")),
            }
        }
    }
    joined
}

/// `key=value` words of a log line; quoted values lose their quotes.
fn words(line: &str) -> BTreeMap<&str, &str> {
    line.split_ascii_whitespace()
        .filter_map(|word| word.split_once('='))
        .map(|(key, value)| (key, value.trim_matches('"')))
        .collect()
}

/// Host request id → (escrow, inference) from terminal lines (contract hosts 9.4).
fn host_terminals(text: &str) -> HashMap<String, (String, u64)> {
    text.lines()
        .filter(|line| line.contains("stage=terminal"))
        .filter_map(|line| {
            let words = words(line);
            let inference = words.get("inference_id")?.parse().ok()?;
            Some(((*words.get("request_id")?).to_owned(), ((*words.get("escrow_id")?).to_owned(), inference)))
        })
        .collect()
}

/// (escrow, nonce) → gateway request id from attempt lines (contract gateway 8).
fn gateway_nonces(text: &str) -> HashMap<(String, u64), String> {
    text.lines()
        .filter(|line| line.contains("nonce=") && line.contains("request="))
        .filter_map(|line| {
            let words = words(line);
            let nonce = words.get("nonce")?.parse().ok()?;
            Some((((*words.get("escrow")?).to_owned(), nonce), (*words.get("request")?).to_owned()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use scenario::control::NodeOutcome;
    use scenario::identity::RequestId;

    fn call(id: &str, node: &str, seed: u64, salt: &str) -> NodeCall {
        NodeCall {
            seq: 1,
            call: seed,
            node: node.to_owned(),
            started_us: seed,
            ended_us: Some(seed + 1),
            first_content_us: None,
            request_id: Some(id.to_owned()),
            salt: Some(salt.to_owned()),
            seed: Some(seed),
            x_request_id: Some(format!("req-{seed}")),
            lock: Some(format!("l{seed}")),
            kind: CallKind::Execution,
            attempt: 1,
            stream: false,
            status: Some(200),
            outcome: NodeOutcome::Completed,
            rule: None,
            content_events: 3,
        }
    }

    #[test]
    fn a_request_without_an_answer_is_joined_by_logs() {
        let record = RequestRecord::blank(0, RequestId::from_text("s-1-000000"), true);
        let input = JoinInput {
            salt: "salt".to_owned(),
            records: vec![record],
            calls: vec![
                call("s-1-000000", "node-a", 7, "salt"),
                call("s-1-000000", "node-b", 9, "other run"),
            ],
            gateway_log: "x request=req-g stage=prepared escrow=3 nonce=7 host=1\n".to_owned(),
            host_logs:
                "t stage=terminal where=request.terminal escrow_id=3 inference_id=7 request_id=req-7\n"
                    .to_owned(),
            ..JoinInput::default()
        };
        let found = walk(&input);
        assert_eq!(found[0].lookup, Some(("3".to_owned(), "req-g".to_owned())));
        assert_eq!(found[0].joined.calls.len(), 1, "another salt is another run");
        assert!(found[0].joined.accepted);
        assert!(found[0].joined.ways.contains(&JoinWay::HostLog));
    }

    #[test]
    fn the_perf_database_names_what_the_log_has_lost() {
        let mut record = RequestRecord::blank(0, RequestId::from_text("s-1-000000"), true);
        record.response_devshard_id = Some("3".to_owned());
        record.response_request_id = Some("req-a".to_owned());
        record.status = Some(200);
        let mut input = JoinInput {
            salt: "salt".to_owned(),
            records: vec![record],
            calls: vec![call("s-1-000000", "node-a", 7, "salt")],
            perf: perf::Ids::from([(("3".to_owned(), 7), "req-b".to_owned())]),
            ..JoinInput::default()
        };
        assert_eq!(walk(&input)[0].recorded, Some(("req-b".to_owned(), JoinWay::PerfDatabase)));
        input.gateway_log = "x request=req-c stage=prepared escrow=3 nonce=7 host=1\n".to_owned();
        assert_eq!(walk(&input)[0].recorded, Some(("req-c".to_owned(), JoinWay::GatewayLog)));
        input.perf = perf::Ids::from([(("4".to_owned(), 7), "req-b".to_owned())]);
        input.gateway_log.clear();
        assert_eq!(walk(&input)[0].recorded, None, "a nonce is unique only within its escrow");
    }

    #[test]
    fn calls_of_a_repeated_body_go_to_the_row_that_names_their_nonce() {
        let record = |index: u64| {
            let mut record = RequestRecord::blank(index, RequestId::new("s", 1, index), false);
            record.status = Some(200);
            record.response_devshard_id = Some("3".to_owned());
            record.response_request_id = Some(format!("req-{index}"));
            record
        };
        let input = JoinInput {
            salt: "salt".to_owned(),
            records: vec![record(0), record(1)],
            duplicates: HashMap::from([(1, 0)]),
            calls: vec![call("s-1-000000", "node-a", 7, "salt"), call("s-1-000000", "node-a", 9, "salt")],
            ..JoinInput::default()
        };
        let row = |nonce| {
            let attempt = Attempt { nonce, winner: true, ..Attempt::default() };
            Ok(AccountingRow { escrow: "3".to_owned(), attempts: vec![attempt], ..AccountingRow::default() })
        };
        let mut found = walk(&input);
        assert_eq!(found[0].joined.calls.len(), 2, "both carry the marker of the first");
        repeated(&mut found, &HashMap::from([(0, row(7)), (1, row(9))]), &input);
        let nonces = |at: usize| found[at].joined.calls.iter().map(|call| call.nonce).collect::<Vec<_>>();
        assert_eq!((nonces(0), nonces(1)), (vec![Some(7)], vec![Some(9)]));
        // A cache hit has a row without attempts: nothing moves.
        let mut found = walk(&input);
        let cached = Ok(AccountingRow { outcome: "cached".to_owned(), ..AccountingRow::default() });
        repeated(&mut found, &HashMap::from([(0, row(7)), (1, cached)]), &input);
        assert_eq!(found[0].joined.calls.len(), 2);
    }

    #[test]
    fn a_pre_check_is_not_accepted() {
        let mut record = RequestRecord::blank(0, RequestId::from_text("s-1-000000"), false);
        record.status = Some(429);
        assert!(!accepted(&record, false));
        record.status = Some(502);
        assert!(!accepted(&record, false), "no escrow named");
        record.response_devshard_id = Some("1".to_owned());
        assert!(accepted(&record, false));
    }
}

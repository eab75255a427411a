//! Joins each planned request to node calls, nonces, escrow and gateway accounting (design section 5, "Join").
//!
//! Primary way: marker → node call → `seed` = nonce, with the escrow from `X-Devshard-Id`, else from the terminal log
//! line of the host that made the call (found by the call's `X-Request-Id`). The accounting row is found by the
//! answer's `X-Request-Id`, else by the id that the gateway's log, or its perf database, has for escrow and nonce.
//!
//! It goes part by part over the plan, and writes each part before the next is read: what is held in memory follows the
//! length of a part, never that of the run.

mod part;

use std::collections::{BTreeMap, HashMap, HashSet};

use evidence::EVIDENCE_VERSION;
use evidence::accounting::{AccountingRow, Attempt, JoinWay, JoinedCall, JoinedRequest, ROW_UNREAD};
use evidence::rundir::{LineWriter, RunDirError};
use futures_util::StreamExt;
use scenario::control::NodeCall;
use serde_json::Value;

use super::ask::bound;
use super::{Missed, Surfaces, perf};
use part::{Client, Part, Place, Recorded};
pub use part::{PART_LEN, Source};

/// Accounting lookups at the same time.
const LOOKUPS_AT_ONCE: usize = 16;

/// Accounting rows by place in the part.
type Rows = HashMap<usize, Result<AccountingRow, Missed>>;

/// What was found about one request.
#[derive(Clone, Debug)]
struct Found {
    joined: JoinedRequest,
    /// Nonces of its own calls.
    nonces: Vec<u64>,
    /// Accounting id that the answer, or else the gateway's own records, name.
    request: Option<String>,
}

impl Found {
    /// Escrow and nonce of its calls.
    fn places(&self) -> impl Iterator<Item = Place> {
        let escrow = self.joined.escrow.iter();
        escrow.flat_map(|escrow| self.nonces.iter().map(|nonce| (escrow.clone(), *nonce)))
    }

    /// Escrow and request id under which its row is looked for.
    fn lookup(&self) -> Option<(String, String)> {
        let request = self.request.clone().filter(|_| self.joined.accepted)?;
        self.joined.escrow.clone().zip(Some(request))
    }

    /// The accounting id that the gateway's log has for one of its nonces, else the one of its perf database.
    fn recorded(&self, recorded: &Recorded) -> Option<(String, JoinWay)> {
        let of = |ids: &perf::Ids| self.places().find_map(|place| ids.get(&place).cloned());
        let logged = of(&recorded.log).map(|id| (id, JoinWay::GatewayLog));
        logged.or_else(|| of(&recorded.perf).map(|id| (id, JoinWay::PerfDatabase)))
    }
}

/// Joins all requests and writes them; accounting rows are read from the gateway. Gives the most entries that were held
/// at one time.
///
/// # Errors
/// [`RunDirError`] when a line can't be written.
pub async fn join(surfaces: &Surfaces, source: &Source, out: &mut LineWriter) -> Result<usize, RunDirError> {
    let mut held_max = 0;
    for which in source.parts() {
        let part = source.read(&which);
        let (joined, held) = join_part(surfaces, source, &part).await;
        held_max = held_max.max(held);
        for line in &joined {
            out.write_buffered(line)?;
        }
    }
    out.flush()?;
    Ok(held_max)
}

async fn join_part(surfaces: &Surfaces, source: &Source, part: &Part) -> (Vec<JoinedRequest>, usize) {
    let mut found = walk(part, source);
    let unnamed = found.iter().filter(|f| f.joined.accepted && f.request.is_none());
    let first = source.recorded(&unnamed.flat_map(Found::places).collect());
    found.iter_mut().for_each(|f| name(f, &first));
    let lookups = found.iter().enumerate().filter_map(|(at, f)| Some((at, f.lookup()?)));
    let mut rows = read_rows(surfaces, lookups.collect()).await;
    let second = by_other_ids(surfaces, source, &mut found, &mut rows).await;
    let held = part.held() + first.held() + second.held();
    if let Some(why) = first.unread.or(second.unread) {
        let without = found.iter_mut().enumerate().filter(|(at, _)| !rows.get(at).is_some_and(Result::is_ok));
        without.for_each(|(_, f)| f.joined.missing.push(format!("perf database: {why}")));
    }
    let held = held + by_cache(source, &mut found, &rows);
    repeated(&mut found, &rows, part, source);
    let wanted: HashSet<Place> =
        found.iter().enumerate().flat_map(|(at, f)| inferences(&f.joined, row_of(&rows, at))).collect();
    let statuses = source.statuses(&wanted);
    let held = held + found.len() + rows.len() + statuses.len();
    let joined = found.into_iter().enumerate().map(|(at, f)| finish(f.joined, rows.get(&at), &statuses));
    (joined.collect(), held)
}

/// July keeps rows under ids that no answer names: where no row was found, the gateway's own records are asked for those.
async fn by_other_ids(
    surfaces: &Surfaces,
    source: &Source,
    found: &mut [Found],
    rows: &mut Rows,
) -> Recorded {
    let refused: Vec<usize> = rows.iter().filter(|(_, row)| row.is_err()).map(|(at, _)| *at).collect();
    let recorded = source.recorded(&refused.iter().flat_map(|at| found[*at].places()).collect());
    let mut ways = HashMap::new();
    let mut lookups = Vec::new();
    for at in refused {
        if let (Some((escrow, id)), Some((other, way))) = (found[at].lookup(), found[at].recorded(&recorded))
            && id != other
        {
            ways.insert(at, way);
            lookups.push((at, (escrow, other)));
        }
    }
    for (at, row) in read_rows(surfaces, lookups).await.into_iter().filter(|(_, row)| row.is_ok()) {
        found[at].joined.ways.extend(ways.get(&at));
        rows.insert(at, row);
    }
    recorded
}

/// July's accounting knows nothing of an answer from the cache: its alias leads to an id that has no row. A request that
/// no node saw, whose row the gateway denies, is looked for among the hits in the gateway's own records. Gives how many
/// entries were held.
fn by_cache(source: &Source, found: &mut [Found], rows: &Rows) -> usize {
    let denied = |at: &usize| matches!(rows.get(at), Some(Err(Missed::Status(404, _))));
    let without = found.iter().enumerate().filter(|(at, f)| denied(at) && f.joined.calls.is_empty());
    let wanted: HashSet<String> = without.filter_map(|(_, f)| f.request.clone()).collect();
    let hits = source.cache_hits(&wanted);
    for f in found.iter_mut().filter(|f| f.request.as_ref().is_some_and(|id| hits.contains(id))) {
        f.joined.cached = true;
        f.joined.ways.push(JoinWay::CacheRecord);
    }
    wanted.len() + hits.len()
}

fn row_of(rows: &Rows, at: usize) -> Option<&AccountingRow> {
    rows.get(&at).and_then(|row| row.as_ref().ok())
}

async fn read_rows(surfaces: &Surfaces, lookups: Vec<(usize, (String, String))>) -> Rows {
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

/// The pure part: everything but what the gateway is asked for.
fn walk(part: &Part, source: &Source) -> Vec<Found> {
    let mut calls: HashMap<&str, Vec<&NodeCall>> = HashMap::new();
    for call in &part.calls {
        if let Some(id) = call.request_id.as_deref() {
            calls.entry(id).or_default().push(call);
        }
    }
    let of = |client: &Client| {
        // A repeated body carries the other request's marker: it is joined by response ids alone.
        let own = calls.get(client.id.as_str()).filter(|_| !source.duplicates.contains_key(&client.index));
        own.cloned().unwrap_or_default()
    };
    part.clients.iter().map(|client| one(client, of(client), part)).collect()
}

fn one(client: &Client, mut own: Vec<&NodeCall>, part: &Part) -> Found {
    let mut ways = Vec::new();
    own.sort_by_key(|call| (call.started_us, call.call));
    if !own.is_empty() {
        ways.push(JoinWay::Marker);
    }
    let mut escrow = client.response_devshard_id.clone();
    if escrow.is_some() {
        ways.push(JoinWay::DevshardId);
    } else if let Some((found, _)) =
        own.iter().find_map(|call| part.terminals.get(call.x_request_id.as_deref().unwrap_or_default()))
    {
        escrow = Some(found.clone());
        ways.push(JoinWay::HostLog);
    }
    let nonces: Vec<u64> = own.iter().filter_map(|call| call.seed).collect();
    if escrow.is_some() && !nonces.is_empty() {
        ways.push(JoinWay::SeedNonce);
    }
    if client.response_request_id.is_some() {
        ways.push(JoinWay::ResponseRequestId);
    }
    let joined = JoinedRequest {
        v: EVIDENCE_VERSION,
        index: client.index,
        id: client.id.clone(),
        accepted: accepted(client, !own.is_empty()),
        cached: false,
        escrow,
        accounting: None,
        calls: own.iter().map(|call| joined_call(call, &part.lock_host)).collect(),
        inferences: Vec::new(),
        ways,
        missing: Vec::new(),
    };
    Found { joined, nonces, request: client.response_request_id.clone() }
}

/// Gives a request that no answer named the id that the gateway's own records have, and says what is missing.
fn name(found: &mut Found, recorded: &Recorded) {
    if found.request.is_none()
        && let Some((id, way)) = found.recorded(recorded)
    {
        found.joined.ways.push(way);
        found.request = Some(id);
    }
    if !found.joined.accepted {
        return;
    }
    if found.joined.escrow.is_none() {
        let text = "escrow: no X-Devshard-Id and no host log line for its node calls";
        found.joined.missing.push(text.to_owned());
    }
    if found.request.is_none() {
        let text =
            "accounting id: no X-Request-Id, and neither gateway log nor perf database names its nonces";
        found.joined.missing.push(text.to_owned());
    }
}

/// A repeated body that missed the cache ran a race of its own, and its calls carry the marker of the request that it
/// repeats: they go to the line whose attempts name their nonces. Where both lines name a nonce, each in an escrow of
/// its own, the terminal line of the host tells whose call it is.
fn repeated(found: &mut [Found], rows: &Rows, part: &Part, source: &Source) {
    let places: HashMap<u64, usize> = found.iter().map(|f| f.joined.index).zip(0..).collect();
    let request_ids: HashMap<(&str, u64), &str> = part
        .calls
        .iter()
        .filter_map(|call| Some(((call.node.as_str(), call.call), call.x_request_id.as_deref()?)))
        .collect();
    for (copy, original) in &source.duplicates {
        let (Some(copy), Some(original)) = (places.get(copy).copied(), places.get(original).copied()) else {
            continue;
        };
        let Some(of_copy) = row_of(rows, copy) else { continue };
        let names = |row: &AccountingRow, nonce| row.attempts.iter().any(|attempt| attempt.nonce == nonce);
        let moves = |call: &JoinedCall| {
            let Some(nonce) = call.nonce.filter(|nonce| names(of_copy, *nonce)) else { return false };
            let other = row_of(rows, original).filter(|row| names(row, nonce));
            let at_host =
                request_ids.get(&(call.node.as_str(), call.call)).and_then(|id| part.terminals.get(*id));
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
fn accepted(client: &Client, seen_by_node: bool) -> bool {
    let answered = matches!(client.status, Some(200 | 502 | 504)) && client.response_devshard_id.is_some();
    seen_by_node || answered
}

fn joined_call(call: &NodeCall, lock_host: &HashMap<String, String>) -> JoinedCall {
    let outcome = match serde_json::to_value(call.outcome) {
        Ok(Value::String(text)) => text,
        _ => String::new(),
    };
    JoinedCall {
        call: call.call,
        node: call.node.clone(),
        nonce: call.seed,
        lock: call.lock.clone(),
        host: call.lock.as_deref().and_then(|lock| lock_host.get(lock)).cloned(),
        outcome,
        status: call.status,
        rule: call.rule.clone(),
        started_us: call.started_us,
    }
}

/// The inferences of a request, by the nonces of its calls and of its row.
fn inferences(joined: &JoinedRequest, row: Option<&AccountingRow>) -> Vec<Place> {
    let Some(escrow) = &joined.escrow else { return Vec::new() };
    let mut nonces: Vec<u64> = joined.calls.iter().filter_map(|call| call.nonce).collect();
    nonces.extend(row.into_iter().flat_map(|row| row.attempts.iter().map(|attempt| attempt.nonce)));
    nonces.sort_unstable();
    nonces.dedup();
    nonces.into_iter().map(|nonce| (escrow.clone(), nonce)).collect()
}

fn finish(
    mut joined: JoinedRequest,
    row: Option<&Result<AccountingRow, Missed>>,
    statuses: &HashMap<Place, String>,
) -> JoinedRequest {
    match row {
        Some(Ok(row)) => joined.accounting = Some(row.clone()),
        // The gateway says that it has none.
        Some(Err(why @ Missed::Status(400 | 404, _))) => {
            joined.missing.push(format!("accounting row: {why}"));
        }
        Some(Err(why)) => joined.missing.push(format!("{ROW_UNREAD}: {why}")),
        None => {}
    }
    joined.cached |= joined.accounting.as_ref().is_some_and(|row| row.outcome == "cached");
    for place in inferences(&joined, joined.accounting.as_ref()) {
        match statuses.get(&place) {
            Some(status) => joined.inferences.push((place.1, status.clone())),
            None => {
                let (escrow, nonce) = place;
                joined.missing.push(format!("inference {nonce} of escrow {escrow} after sync"));
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

#[cfg(test)]
mod tests;

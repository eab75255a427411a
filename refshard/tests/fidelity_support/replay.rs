//! The cases: with which stack, in which order, and what is looked at afterwards.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::StreamExt as _;
use refshard::personality::Personality;
use serde_json::{Map, Value, json};

use super::node::marks;
use super::world::{ADMIN, World};

/// How the requests of a case are sent.
#[derive(Clone, Copy, Debug)]
pub enum Drive {
    /// One after the other.
    InTurn,
    /// The first two together, then the rest.
    TwoAtOnce,
    /// So many copies of the first one at once, with different words.
    Burst(usize),
    /// The client leaves: before anything comes, or after so many chunks.
    Leave(Option<usize>),
    /// The host is lost after so many chunks of the first one.
    LoseHost(usize),
    /// The host is lost before the first one.
    NoHost,
    /// A deactivation while the first one runs.
    Deactivate,
    /// All in turn, then finalize.
    Finalize,
}

#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub name: &'static str,
    pub hosts: usize,
    pub drive: Drive,
    /// Settings, JSON.
    pub settings: &'static str,
    /// Marks for the nodes of single hosts, as in `0:503` or `*:503`.
    pub modes: &'static str,
    /// The losers of each race go on after the answer and are waited for, as the capture's drain did.
    pub races_end: bool,
}

const fn single(name: &'static str) -> Case {
    Case { name, hosts: 1, drive: Drive::InTurn, settings: "{}", modes: "", races_end: false }
}

const fn driven(name: &'static str, drive: Drive) -> Case {
    Case { drive, ..single(name) }
}

const fn multi(name: &'static str, modes: &'static str) -> Case {
    Case { hosts: 3, modes, ..single(name) }
}

/// A busy machine must not reach the limit of JSON answers.
const PATIENT: &str =
    r#"{"redundancy":{"non_stream_no_content_timeout_ms":60000,"non_stream_max_attempt_wait_ms":60000}}"#;
const HYBRID: &str = r#"{"redundancy":{"speed_policy":"hybrid"}}"#;

pub const CASES: &[Case] = &[
    single("ok-stream"),
    single("ok-nonstream"),
    single("ok-nonstream-logprobs"),
    single("ok-nonstream-nologprobs-false"),
    single("ok-stream-role-usage"),
    single("ok-direct-path-nonstream"),
    single("ok-direct-path-stream"),
    single("max-tokens-admin-key"),
    single("max-tokens-missing"),
    single("max-tokens-too-large"),
    single("slow-nonstream-8s"),
    single("slow-stream-first-token-6s"),
    single("slow-stream-headers-8s"),
    single("stream-nodone"),
    single("stream-nousage"),
    single("stream-nousage-nologprobs"),
    single("stream-partial-close"),
    single("stream-partial-cut"),
    single("stream-partial-reset"),
    single("cache-partial-replayed"),
    single("cache-stream-replay"),
    driven("cache-two-concurrent-same-prompt", Drive::TwoAtOnce),
    driven("cancel-before-first-byte", Drive::Leave(None)),
    driven("cancel-nonstream", Drive::Leave(None)),
    driven("cancel-mid-stream", Drive::Leave(Some(3))),
    driven("cancel-mid-stream-rst", Drive::Leave(Some(3))),
    driven("deactivate-while-running", Drive::Deactivate),
    driven("finalize-settle", Drive::Finalize),
    driven("host-killed-mid-stream", Drive::LoseHost(20)),
    driven("host-unreachable", Drive::NoHost),
    Case { modes: "max_nonce=6", ..single("host-max-nonce") },
    single("insufficient-balance"),
    single("ml-400-nonstream"),
    single("ml-503-nonstream"),
    single("ml-503-stream"),
    single("ml-errevent-stream"),
    single("ml-nousage-nonstream"),
    single("ml-reset-stream"),
    Case { settings: PATIENT, ..driven("burst-50-default-limits", Drive::Burst(50)) },
    Case {
        settings: r#"{"model_limits":[{"model_id":"test-model","access_mode":"open","max_concurrent_requests":10}],
            "redundancy":{"non_stream_no_content_timeout_ms":60000,"non_stream_max_attempt_wait_ms":60000}}"#,
        ..driven("burst-50-model-limit-10", Drive::Burst(50))
    },
    Case { modes: "weight=1000", settings: PATIENT, ..driven("burst-50-weight-1000", Drive::Burst(50)) },
    Case { modes: "weight=4000", settings: PATIENT, ..driven("burst-50-weight-4000", Drive::Burst(50)) },
    Case { modes: "weight=30000", settings: PATIENT, ..driven("burst-50-weight-30000", Drive::Burst(50)) },
    multi("multi-ok-legacy", ""),
    Case { settings: HYBRID, ..multi("multi-ok-hybrid", "") },
    multi("multi-all-ml-503-stream", "*:503"),
    multi("multi-one-ml-503-legacy", "1:503"),
    Case { settings: HYBRID, ..multi("multi-one-ml-503-hybrid", "1:503") },
    Case { races_end: true, ..multi("multi-one-ml-slow-first-token-fresh", "2:slowtok=14") },
    multi("validation-big-token-ids", ""),
    multi("validation-text-tokens", ""),
    multi("validation-null-logprobs", ""),
];

/// What a capture says, in the form of [`run`]'s answer.
pub fn captured(capture: &Value) -> Value {
    let client: Vec<Value> = capture["requests"]
        .as_array()
        .unwrap()
        .iter()
        .map(|request| {
            let mut entry = Map::new();
            for name in ["status", "end", "content_type", "request_id", "devshard_id", "events", "json"] {
                if let Some(value) = request.get(name) {
                    entry.insert(name.to_owned(), value.clone());
                }
            }
            Value::Object(entry)
        })
        .collect();
    let mut seen = json!({
        "client": client.into_iter().enumerate().map(|(at, one)| (at.to_string(), one)).collect::<Map<_, _>>(),
        "accounting": {
            "header_lookups": capture["after"]["header_lookups"].as_array().and_then(|all| all.first()),
            "outcomes": tally(capture["drained"]["outcomes"].as_array().unwrap().iter()),
            "row": capture["after"]["row"],
        },
        "drained": capture["drained"]["statuses"],
        "counters": capture["counters"],
    });
    if let Some(outcomes) = capture["outcomes"].as_array() {
        let counts = outcomes.iter().map(|one| (one["status"].to_string(), one["count"].clone()));
        seen["statuses"] = Value::Object(counts.collect());
    }
    seen
}

fn tally<'a>(words: impl Iterator<Item = &'a Value>) -> Value {
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    for word in words {
        *counts.entry(word.as_str().unwrap_or("?").to_owned()).or_default() += 1;
    }
    json!(counts)
}

/// Plays a case and tells what client, accounting, hosts and metrics show.
pub async fn run(case: &Case, personality: Personality, capture: &Value) -> Value {
    let settings: Value = serde_json::from_str(case.settings).unwrap();
    let world = World::start(personality, case.hosts, settings).await;
    set_modes(&world, case.modes).await;
    let before = counters(&world).await;
    let requests = capture["requests"].as_array().unwrap();
    let answers = send(&world, case, requests).await;
    settle(&world, case).await;
    let escrow = escrow_of(&requests[0]["path"]).unwrap_or_else(|| "1".to_owned());
    let rows = rows(&world, &escrow);
    let mut row = Value::Null;
    if let Some((id, at)) = rows.first() {
        row = world.get(&format!("/devshard/{at}/v1/requests/{id}")).await.1;
    }
    let mut lookup = Value::Null;
    if let Some(id) = answers.iter().find_map(|answer| answer["id"].as_str()) {
        let at = answers.iter().find_map(|answer| answer["at"].as_str()).unwrap_or("1").to_owned();
        lookup = world.get(&format!("/devshard/{at}/v1/requests/{id}")).await.0.into();
    }
    // Pooled requests are spread over the escrows.
    let mut escrows: Vec<&String> = rows.iter().map(|(_, at)| at).chain([&escrow]).collect();
    escrows.sort();
    escrows.dedup();
    if !matches!(case.drive, Drive::Finalize) {
        for _ in 0..3 {
            for at in &escrows {
                world.post(&format!("/devshard/{at}/v1/debug/sync-hosts"), json!({})).await;
            }
        }
    }
    let mut outcomes = Vec::new();
    for (id, at) in rows.iter().take(4) {
        let (_, row) = world.get(&format!("/devshard/{at}/v1/requests/{id}")).await;
        outcomes.push(row["outcome"].clone());
    }
    let mut statuses = Vec::new();
    for at in &escrows {
        let (_, inferences) = world.get(&format!("/devshard/{at}/v1/debug/inferences")).await;
        let records = inferences["inferences"].as_object().cloned().unwrap_or_default();
        statuses.extend(records.values().map(|record| record["status"].clone()));
    }
    let after = counters(&world).await;
    let mut seen = json!({
        "client": shown(case, &answers),
        "accounting": { "header_lookups": lookup, "outcomes": tally(outcomes.iter()), "row": row },
        "drained": tally(statuses.iter()),
        "counters": grown(&before, &after),
    });
    if matches!(case.drive, Drive::Burst(_)) {
        let mut counts: BTreeMap<String, u64> = BTreeMap::new();
        for answer in &answers {
            *counts.entry(answer["status"].to_string()).or_default() += 1;
        }
        seen["statuses"] = json!(counts);
    }
    seen
}

/// The answers that the capture has too: of a burst one per status.
fn shown(case: &Case, answers: &[Value]) -> Value {
    let mut list: Vec<Value> = answers.to_vec();
    if matches!(case.drive, Drive::Burst(_)) {
        list.sort_by_key(|answer| answer["status"].as_u64());
        list.dedup_by_key(|answer| answer["status"].as_u64());
    }
    for answer in &mut list {
        let answer = answer.as_object_mut().unwrap();
        answer.remove("id");
        answer.remove("at");
    }
    Value::Object(list.into_iter().enumerate().map(|(at, one)| (at.to_string(), one)).collect())
}

fn escrow_of(path: &Value) -> Option<String> {
    Some(path.as_str()?.strip_prefix("/devshard/")?.split('/').next()?.to_owned())
}

async fn set_modes(world: &World, modes: &str) {
    if let Some(max) = modes.strip_prefix("max_nonce=") {
        let max = max.parse().unwrap();
        world.max_nonce.iter().for_each(|limit| limit.store(max, std::sync::atomic::Ordering::SeqCst));
        tokio::time::sleep(Duration::from_millis(700)).await;
    } else if let Some(weight) = modes.strip_prefix("weight=") {
        public_api(world, weight.parse().unwrap()).await;
    } else if let Some((host, mode)) = modes.split_once(':') {
        for (index, node) in world.nodes.iter().enumerate() {
            if host == "*" || host.parse() == Ok(index) {
                *node.mode.lock().unwrap() = marks(&format!("[ml:{mode}]"));
            }
        }
    }
}

/// A public API that reports this weight for every host; waits until the gateway has seen it.
async fn public_api(world: &World, weight: u64) {
    let keys: Vec<String> = world.chain.urls.lock().unwrap().keys().cloned().collect();
    let listed: Vec<Value> = keys.iter().map(|key| json!({ "index": key, "weight": weight })).collect();
    let participants = json!({ "active_participants": { "participants": listed } });
    let epochs = json!({ "block_height": "150", "phase": "Inference", "latest_epoch": { "index": "1" },
        "epoch_stages": { "set_new_validators": "180" } });
    let router = axum::Router::new()
        .route("/v1/epochs/latest", axum::routing::get(move || async move { axum::Json(epochs) }))
        .route(
            "/v1/epochs/current/participants",
            axum::routing::get(move || async move { axum::Json(participants) }),
        );
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    world.post("/v1/admin/settings", json!({ "public_api": base })).await;
    for _ in 0..200 {
        let (_, state) = world.get("/v1/admin/state").await;
        if state["capacity"]["observed_current_weight_keys"].as_u64() > Some(0) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the weight was never seen");
}

async fn send(world: &World, case: &Case, requests: &[Value]) -> Vec<Value> {
    let mut answers = Vec::new();
    match case.drive {
        Drive::InTurn | Drive::Finalize => {
            for request in requests {
                answers.push(one(world, request, Stop::Never).await);
            }
        }
        Drive::NoHost => {
            world.doors.iter().for_each(super::world::Door::lose);
            for request in requests {
                answers.push(one(world, request, Stop::Never).await);
            }
        }
        Drive::TwoAtOnce => {
            let (first, second) =
                tokio::join!(one(world, &requests[0], Stop::Never), one(world, &requests[1], Stop::Never));
            answers.extend([first, second]);
            answers.push(one(world, &requests[2], Stop::Never).await);
        }
        Drive::Burst(count) => {
            let copies: Vec<Value> = (0..count)
                .map(|copy| {
                    let mut request = requests[0].clone();
                    let body = request["body"].as_str().unwrap().replace(" 0 [", &format!(" {copy} ["));
                    // Long enough that none is over before all have come, however busy the machine is.
                    let body = body.replace("[ml:slow=1]", "[ml:slow=6]");
                    request["body"] = body.into();
                    request
                })
                .collect();
            let all = copies.iter().map(|request| one(world, request, Stop::Never));
            answers = futures_util::future::join_all(all).await;
        }
        Drive::Leave(chunks) => {
            let stop = chunks.map_or(Stop::Early, Stop::After);
            answers.push(one(world, &requests[0], stop).await);
        }
        Drive::LoseHost(chunks) => answers.push(one(world, &requests[0], Stop::Lose(chunks)).await),
        Drive::Deactivate => {
            let escrow = escrow_of(&requests[0]["path"]).unwrap();
            let acts = async {
                tokio::time::sleep(Duration::from_millis(200)).await;
                world.post(&format!("/v1/admin/devshards/{escrow}/deactivate"), json!({})).await;
                one(world, &requests[0], Stop::Never).await
            };
            let (answer, refused) = tokio::join!(one(world, &requests[0], Stop::Never), acts);
            assert_eq!(refused["status"], 409);
            answers.push(answer);
        }
    }
    answers
}

/// When the client does something in the middle.
#[derive(Clone, Copy, Debug)]
enum Stop {
    Never,
    Early,
    After(usize),
    Lose(usize),
}

async fn one(world: &World, request: &Value, stop: Stop) -> Value {
    let path = request["path"].as_str().unwrap();
    let mut ask = world.client.post(format!("{}{path}", world.base));
    if request["admin"] == true {
        ask = ask.bearer_auth(ADMIN);
    }
    ask = ask.header("content-type", "application/json").body(request["body"].as_str().unwrap().to_owned());
    let gone = json!({ "status": null, "end": "cancelled-by-client", "content_type": null,
        "request_id": false, "devshard_id": false });
    let sent = match stop {
        Stop::Early => {
            let sent = tokio::time::timeout(Duration::from_millis(100), ask.send()).await;
            assert!(sent.is_err(), "the client was to leave before anything came");
            return gone;
        }
        _ => ask.send().await.unwrap(),
    };
    let header = |name: &str| sent.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
    let (status, id, at) = (sent.status().as_u16(), header("x-request-id"), header("x-devshard-id"));
    let content_type = header("content-type");
    let (text, end) = body(world, sent, stop).await;
    let mut seen = json!({ "status": status, "end": end, "content_type": content_type, "request_id": id.is_some(),
        "devshard_id": at.is_some(), "id": id, "at": at });
    if content_type.as_deref() == Some("text/event-stream") {
        seen["events"] = events(&text);
    } else if let Ok(document) = serde_json::from_str::<Value>(&text) {
        seen["json"] = document;
    }
    seen
}

async fn body(world: &World, sent: reqwest::Response, stop: Stop) -> (String, &'static str) {
    let mut stream = sent.bytes_stream();
    let mut text = String::new();
    loop {
        let chunks = text.matches("\"content\":\"w").count();
        match stop {
            Stop::After(most) if chunks >= most => return (text, "cancelled-by-client"),
            Stop::Lose(most) if chunks >= most => world.doors.iter().for_each(super::world::Door::lose),
            _ => {}
        }
        match stream.next().await {
            Some(Ok(bytes)) => text.push_str(&String::from_utf8_lossy(&bytes)),
            Some(Err(_)) => return (text, "eof-truncated"),
            None => return (text, "clean"),
        }
    }
}

/// Kinds of events and how many of each.
fn events(text: &str) -> Value {
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for data in text.split("\n\n").filter_map(|event| event.strip_prefix("data: ")) {
        let kind = if data.trim() == "[DONE]" {
            "done"
        } else {
            let event: Value = serde_json::from_str(data).unwrap();
            let choice = event.pointer("/choices/0").cloned();
            match choice {
                _ if event.get("error").is_some() => "error",
                None => "usage",
                Some(choice) if choice["finish_reason"].is_string() => "finish",
                Some(choice) if choice["delta"]["content"].as_str().is_some_and(|text| !text.is_empty()) => {
                    "content"
                }
                Some(_) => "role",
            }
        };
        *counts.entry(kind).or_default() += 1;
    }
    json!(counts)
}

/// Waits until the escrows are idle, and finalizes where that belongs to the case.
async fn settle(world: &World, case: &Case) {
    // A lost host leaves races that wait for the protocol; what is looked at is the moment after the answer.
    if !matches!(case.drive, Drive::LoseHost(_)) {
        for _ in 0..400 {
            let (_, state) = world.get("/v1/admin/state").await;
            let busy =
                |one: &Value| one.pointer("/runtime/active_requests").and_then(Value::as_u64) > Some(0);
            if !state["devshards"].as_array().unwrap().iter().any(busy) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        tokio::time::sleep(Duration::from_millis(150)).await;
    }
    if case.races_end {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
        while running(world) > 0 {
            assert!(tokio::time::Instant::now() < deadline, "{}: a race never ends", case.name);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    if matches!(case.drive, Drive::Deactivate) {
        tokio::time::sleep(Duration::from_millis(200)).await;
        world.post("/v1/admin/devshards/4/activate", json!({})).await;
    }
    if matches!(case.drive, Drive::Finalize) {
        let (status, _) = world.post("/devshard/3/v1/finalize", json!({})).await;
        assert_eq!(status, 200);
    }
}

/// Races without an outcome.
fn running(world: &World) -> i64 {
    let database = rusqlite::Connection::open(world.directory.path().join("perf.db")).unwrap();
    let count = "SELECT COUNT(*) FROM request_accounting WHERE outcome = 'running'";
    database.query_row(count, [], |row| row.get(0)).unwrap()
}

/// Ids and escrows of the races in order, out of the accounting database: the only way that works with split
/// ids too.
fn rows(world: &World, escrow: &str) -> Vec<(String, String)> {
    let database = rusqlite::Connection::open(world.directory.path().join("perf.db")).unwrap();
    let mut select =
        database.prepare("SELECT request_id, escrow_id FROM request_accounting ORDER BY started_ns").unwrap();
    let rows = select.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    let mut rows: Vec<(String, String)> = rows.map(Result::unwrap).collect();
    // The races of the case's own escrow come first.
    rows.sort_by_key(|(_, at)| at != escrow);
    rows
}

/// Families that a case is compared by.
const FAMILIES: [&str; 14] = [
    "devshard_gateway_requests_total",
    "devshard_gateway_attempt_failures_total",
    "devshard_gateway_timeout_actions_total",
    "devshard_gateway_limit_rejections_total",
    "devshard_speculative_attempt_starts_total",
    "devshard_interruption_total",
    "devshard_request_terminal_total",
    "devshard_receipt_orphan_total",
    "devshard_mlnode_attempts_total",
    "devshard_validation_total",
    "devshard_validation_orphan_total",
    "devshard_gateway_user_requests_with_hidden_failure_total",
    "devshard_gateway_participant_quarantine_transitions_total",
    "devshard_gateway_participant_transport_errors_total",
];
/// Labels that name a place, not an event.
const PLACES: [&str; 8] =
    ["participant_key", "model", "node_id", "escrow_id", "host_idx", "visibility", "severity", "path_kind"];

async fn counters(world: &World) -> BTreeMap<String, f64> {
    let mut sums = BTreeMap::new();
    for line in world.metrics().await.iter().flat_map(|text| text.lines()) {
        let Some((name, rest)) = line.split_once('{') else { continue };
        if !FAMILIES.contains(&name) {
            continue;
        }
        let (labels, value) = rest.rsplit_once("} ").unwrap();
        let mut values: Vec<&str> = labels
            .split("\",")
            .filter_map(|label| label.trim_end_matches('"').split_once("=\""))
            .filter(|(label, _)| !PLACES.contains(label))
            .map(|(_, value)| value)
            .collect();
        values.sort_unstable();
        let series = format!("{name}{{{}}}", values.join(","));
        *sums.entry(series).or_insert(0.0) += value.parse::<f64>().unwrap();
    }
    sums
}

fn grown(before: &BTreeMap<String, f64>, after: &BTreeMap<String, f64>) -> Value {
    let grown = after.iter().filter_map(|(series, value)| {
        let grown = value - before.get(series).unwrap_or(&0.0);
        #[expect(clippy::cast_possible_truncation, reason = "counts of a short test")]
        let grown = grown as i64;
        (grown != 0).then(|| (series.clone(), Value::from(grown)))
    });
    Value::Object(grown.collect())
}

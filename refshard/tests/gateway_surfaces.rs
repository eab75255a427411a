//! Surfaces: rejections in a table, reads against the captures, acts of the admin.

mod gateway_support;

use gateway_support::compare::differences;
use gateway_support::{ADMIN, Behaviour, MODEL, Stack, body, header};
use serde::Deserialize;
use serde_json::{Value, json};

/// A captured answer: method, path, status, headers that count, body.
#[derive(Debug, Deserialize)]
struct Captured {
    name: String,
    method: String,
    path: String,
    #[serde(default)]
    authorization: Option<String>,
    #[serde(default)]
    request: String,
    status: u16,
    content_type: String,
    nosniff: bool,
    devshard_id: bool,
    body: Value,
}

/// Fixture auth-and-errors: status, headers and the shape of the body of every rejection.
#[tokio::test(flavor = "multi_thread")]
async fn rejections_are_those_of_the_captures() {
    let all: Vec<Captured> = serde_json::from_str(include_str!("fixtures/rejections.json")).unwrap();
    assert!(all.len() > 20);
    let open = Stack::start(1).await;
    let closed = Stack::with(1, json!({ "model_limits": [] })).await;
    for case in all {
        let stack =
            if case.name.contains("not-listed") || case.name.contains("no-auth") { &closed } else { &open };
        let method = case.method.parse().unwrap();
        let mut request = stack.client.request(method, format!("{}{}", stack.base, case.path));
        match case.authorization.as_deref() {
            Some("admin") => request = request.bearer_auth(ADMIN),
            Some(other) => request = request.header("authorization", other),
            None => {}
        }
        let answer = request.body(case.request).send().await.unwrap();
        let name = &case.name;
        assert_eq!(answer.status().as_u16(), case.status, "{name}");
        assert_eq!(header(&answer, "content-type"), case.content_type, "{name}");
        assert_eq!(header(&answer, "x-content-type-options") == "nosniff", case.nosniff, "{name}");
        assert_eq!(!header(&answer, "x-devshard-id").is_empty(), case.devshard_id, "{name}");
        assert_eq!(header(&answer, "x-request-id"), "", "{name}: a rejection names no request");
        let text = answer.text().await.unwrap();
        let ours = serde_json::from_str(&text).unwrap_or(Value::String(text));
        assert_eq!(differences(&case.body, &ours), Vec::<String>::new(), "{name}");
    }
}

/// Fixtures surfaces-single and ok-stream: keys, types and enumerations of the reads.
#[tokio::test(flavor = "multi_thread")]
async fn reads_have_the_shape_of_the_captures() {
    let captures: Value = serde_json::from_str(include_str!("fixtures/reads.json")).unwrap();
    let stack = Stack::start(1).await;
    for number in 0..3 {
        stack.chat(&format!("chat {number}"), number % 2 == 0).await.text().await.unwrap();
    }
    let answer = stack.chat("the last", true).await;
    let id = header(&answer, "x-request-id");
    answer.text().await.unwrap();
    stack.accounting(&id, "1").await;
    let request = format!("/devshard/1/v1/requests/{id}");
    let mut compared = 0;
    let single = [
        ("status", "/devshard/1/v1/status"),
        ("status", "/v1/status"),
        ("state", "/devshard/1/v1/state"),
        ("state", "/v1/state"),
        ("pending", "/devshard/1/v1/debug/pending"),
        ("debug-state-running", "/devshard/1/v1/debug/state"),
        ("inferences", "/devshard/1/v1/debug/inferences"),
        ("signatures", "/devshard/1/v1/debug/signatures"),
        ("models", "/v1/models"),
        ("models", "/devshard/1/v1/models"),
        ("admin-settings", "/v1/admin/settings"),
        ("admin-state", "/v1/admin/state"),
        ("admin-state", "/v1/admin/devshards"),
        ("participants", "/v1/admin/devshards/1/participants"),
        ("request", &request),
    ];
    for (name, path) in single {
        let (status, ours) = stack.get(path).await;
        assert_eq!(status, 200, "{path}");
        assert_eq!(differences(&captures[name], &ours), Vec::<String>::new(), "{path}");
        compared += 1;
    }
    let (_, ours) = stack.get("/devshard/1/v1/debug/inferences").await;
    let record =
        |document: &Value| document["inferences"].as_object().unwrap().values().next().unwrap().clone();
    assert_eq!(differences(&record(&captures["inferences"]), &record(&ours)), Vec::<String>::new());
    assert_eq!(compared, single.len());

    let several = Stack::start(2).await;
    several.chat("one", false).await.text().await.unwrap();
    let (_, ours) = several.get("/v1/status").await;
    assert_eq!(differences(&captures["status-two-runtimes"], &ours), Vec::<String>::new());
    let (status, ours) = several.get("/v1/state").await;
    assert_eq!(status, 400);
    assert_eq!(differences(&captures["top-state-two-runtimes"], &ours), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn no_answer_shows_a_key() {
    let stack = Stack::start(1).await;
    for path in ["/v1/admin/state", "/v1/admin/devshards", "/v1/admin/settings", "/v1/status"] {
        let (_, answer) = stack.get(path).await;
        let text = answer.to_string();
        assert!(!text.contains(&gateway_support::CREATOR[50..]) && !text.contains(ADMIN), "{path}: {text}");
        assert!(!text.contains("\"private_key\""), "{path}");
    }
}

/// Fixture burst-50-model-limit-10.
#[tokio::test(flavor = "multi_thread")]
async fn the_limiter_lets_ten_of_fifty_through() {
    let limits = json!({ "model_limits": [
        { "model_id": MODEL, "access_mode": "open", "max_concurrent_requests": 10 }
    ] });
    let stack = Stack::with(1, limits).await;
    stack.hosts.iter().for_each(|host| host.behave(Behaviour::Slow(800)));
    let texts: Vec<String> = (0..50).map(|number| format!("burst {number}")).collect();
    let answers = futures_util::future::join_all(texts.iter().map(|text| stack.chat(text, false))).await;
    let count = |status: u16| answers.iter().filter(|answer| answer.status() == status).count();
    assert_eq!((count(200), count(429)), (10, 40));
    let refused = answers.into_iter().find(|answer| answer.status() == 429).unwrap();
    assert_eq!(header(&refused, "content-type"), "text/plain; charset=utf-8");
    assert_eq!(header(&refused, "x-request-id"), "");
    let series = "devshard_gateway_limit_rejections_total{reason=\"max_concurrent_requests\"}";
    assert_eq!(stack.metric(series).await, 40.0);
    assert_eq!(stack.metric("devshard_gateway_inflight_requests").await, 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_are_changed_in_part_and_kept() {
    let mut stack = Stack::start(1).await;
    let (status, settings) = stack
        .post("/v1/admin/settings", json!({ "redundancy": { "receipt_timeout_ms": 77, "x": 1 }, "y": 2 }))
        .await;
    assert_eq!((status, settings["redundancy"]["receipt_timeout_ms"].as_u64()), (200, Some(77)));
    assert!(settings.get("y").is_none());
    let (status, _) =
        stack.post("/v1/admin/settings", json!({ "redundancy": { "receipt_timeout_ms": 0 } })).await;
    assert_eq!(status, 400);
    stack.restart().await;
    let (_, settings) = stack.get("/v1/admin/settings").await;
    assert_eq!(settings["redundancy"]["receipt_timeout_ms"], 77);
    stack.post("/v1/admin/settings", json!({ "disabled": { "enabled": true, "new_url": "http://b" } })).await;
    let answer = stack.client.get(format!("{}/v1/status", stack.base)).send().await.unwrap();
    assert_eq!(answer.status(), 308);
}

/// Fixture finalize-settle with three hosts.
#[tokio::test(flavor = "multi_thread")]
async fn finalize_takes_a_round_of_the_group_and_settle_reaches_the_chain() {
    let stack = Stack::start(1).await;
    let (status, _) = stack.get("/devshard/1/v1/finalize").await;
    assert_eq!(status, 409);
    for number in 0..2 {
        stack.chat(&format!("chat {number}"), true).await.text().await.unwrap();
    }
    // The last race may still write its last line: finalize refuses until then.
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    let (status, payload) = stack.post("/devshard/1/v1/finalize", json!({})).await;
    assert_eq!(status, 200, "{payload}");
    assert_eq!(payload["nonce"], 2 + 3 + 1);
    assert_eq!(payload["signatures"].as_array().unwrap().len(), 3);
    let captures: Value = serde_json::from_str(include_str!("fixtures/reads.json")).unwrap();
    assert_eq!(differences(&captures["finalize"], &payload), Vec::<String>::new());
    let (_, again) = stack.post("/devshard/1/v1/finalize", json!({})).await;
    assert_eq!(again, payload);
    let (status, _) = stack.get("/devshard/1/v1/finalize").await;
    assert_eq!(status, 200);
    let (_, inferences) = stack.get("/devshard/1/v1/debug/inferences").await;
    let statuses = inferences["inferences"].as_object().unwrap().values().map(|one| one["status"].clone());
    assert!(statuses.into_iter().all(|status| status == "finished"));
    let refused = stack.chat_at("/devshard/1/v1/chat/completions", "late", true).await;
    assert_eq!(refused.status(), 409);
    assert_eq!(stack.chat("late", true).await.status(), 502);

    for number in 1..=2 {
        let (status, settled) = stack.post("/v1/admin/devshards/1/settle", json!({})).await;
        assert_eq!((status, settled["tx_hash"].as_str()), (200, Some(format!("HASH{number}").as_str())));
        assert_eq!(differences(&captures["settle"], &settled), Vec::<String>::new());
    }
    let settlements = stack.chain.settlements.lock().unwrap().clone();
    assert_eq!((settlements.len(), settlements[0].nonce), (2, 6));
}

/// Fixture deactivate-while-running.
#[tokio::test(flavor = "multi_thread")]
async fn deactivation_waits_for_what_runs() {
    let stack = Stack::start(2).await;
    stack.hosts.iter().for_each(|host| host.behave(Behaviour::Slow(700)));
    let running = stack.chat_at("/devshard/1/v1/chat/completions", "one", true);
    let acts = async {
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        let (status, answer) = stack.post("/v1/admin/devshards/1/deactivate", json!({})).await;
        assert_eq!((status, answer), (200, json!({ "active": false, "id": "1" })));
        for path in ["/devshard/1/v1/finalize", "/v1/admin/devshards/1/settle"] {
            assert_eq!(stack.post(path, json!({})).await.0, 409, "{path}");
        }
        assert_eq!(stack.chat_at("/devshard/1/v1/chat/completions", "two", true).await.status(), 409);
    };
    let (answer, ()) = futures_util::future::join(running, acts).await;
    assert_eq!(answer.status(), 200);
    answer.text().await.unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    let (_, state) = stack.get("/v1/admin/state").await;
    assert!(state["devshards"][0].get("runtime").is_none(), "{state}");
    let answer = stack.client.get(format!("{}/devshard/1/v1/status", stack.base)).send().await.unwrap();
    assert_eq!(header(&answer, "x-devshard-metadata-only"), "1");
    let request = stack.client.get(format!("{}/devshard/1/v1/state", stack.base)).bearer_auth(ADMIN);
    assert_eq!(header(&request.send().await.unwrap(), "x-devshard-readonly"), "1");
    let (status, answer) = stack.post("/v1/admin/devshards/1/activate", json!({})).await;
    assert_eq!((status, answer), (200, json!({ "active": true, "id": "1", "model": MODEL })));
    stack.hosts.iter().for_each(|host| host.behave(Behaviour::Normal));
    assert_eq!(stack.chat_at("/devshard/1/v1/chat/completions", "three", true).await.status(), 200);
}

/// Fixture insufficient-balance, but with an outcome: nothing that was accepted stays running.
#[tokio::test(flavor = "multi_thread")]
async fn an_escrow_without_money_says_so_and_leaves() {
    let stack = Stack::start(9).await;
    let request = stack.client.post(format!("{}/devshard/9/v1/chat/completions", stack.base));
    let mut chat = body("one", false);
    chat["max_tokens"] = json!(3000);
    let answer = request.json(&chat).send().await.unwrap();
    assert_eq!(answer.status(), 502);
    let id = header(&answer, "x-request-id");
    let text = answer.text().await.unwrap();
    assert!(text.contains("insufficient escrow balance"), "{text}");
    let row = stack.accounting(&id, "9").await;
    assert_eq!((row["outcome"].as_str(), row["attempts"].as_array().unwrap().len()), (Some("failed"), 0));
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    let again = stack.chat_at("/devshard/9/v1/chat/completions", "two", false).await;
    assert_eq!(again.status(), 404);
}

//! The rest of the gateway's surfaces: reads for machines, escrows that come and go, quarantine, weights, speed
//! policies, rotation.

#![expect(clippy::unwrap_used, reason = "a failed step of a test should end it")]

mod gateway_support;

use std::time::Duration;

use gateway_support::compare::differences;
use gateway_support::{ADMIN, Behaviour, MODEL, Stack, header};
use serde_json::{Value, json};

fn captures() -> Value {
    serde_json::from_str(include_str!("fixtures/reads.json")).unwrap()
}

async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    for _ in 0..400 {
        if holds().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("not within eight seconds: {what}");
}

/// Fixtures surfaces-single and surfaces-multi.
#[tokio::test(flavor = "multi_thread")]
async fn reads_for_machines_have_the_shape_of_the_captures() {
    let stack = Stack::with(1, json!({ "redundancy": { "speed_policy": "hybrid" } })).await;
    for number in 0..3 {
        stack.chat(&format!("chat {number}"), true).await.text().await.unwrap();
    }
    eventually("the losers are settled", async || {
        let (_, perf) = stack.get("/devshard/1/v1/debug/perf").await;
        perf["pairwise"].as_array().is_some_and(|pairs| !pairs.is_empty())
    })
    .await;
    let captures = captures();
    for (name, path) in [
        ("perf", "/devshard/1/v1/debug/perf"),
        ("perf", "/v1/debug/perf"),
        ("pairwise", "/devshard/1/v1/debug/pairwise"),
        ("rotation", "/v1/debug/rotation"),
        ("memstats", "/v1/debug/memstats"),
        ("suspicious", "/v1/admin/suspicious-hosts"),
    ] {
        let (status, ours) = stack.get(path).await;
        assert_eq!(status, 200, "{path}");
        assert_eq!(differences(&captures[name], &ours), Vec::<String>::new(), "{path}");
    }
    let page = stack.client.get(format!("{}/devshard/1/", stack.base)).send().await.unwrap();
    assert_eq!(header(&page, "content-type"), "text/html; charset=utf-8");
    assert_eq!(header(&page, "x-devshard-id"), "1");
    let document = stack.client.get(format!("{}/devshard/1/openapi.json", stack.base)).send().await.unwrap();
    assert_eq!(header(&document, "content-type"), "application/json");
    let document: Value = document.json().await.unwrap();
    assert!(document["paths"]["/v1/chat/completions"]["post"].is_object());
}

#[tokio::test(flavor = "multi_thread")]
async fn escrows_are_created_deactivated_deleted_and_added_again() {
    let stack = Stack::start(1).await;
    let captures = captures();
    let (status, made) = stack.post("/v1/admin/escrows", json!({ "amount": 1_000_000_000 })).await;
    assert_eq!((status, made["escrow_id"].as_u64()), (200, Some(2)), "{made}");
    assert_eq!(differences(&captures["create-escrow"], &made), Vec::<String>::new());
    assert_eq!(stack.chat_at("/devshard/2/v1/chat/completions", "new", false).await.status(), 200);
    assert_eq!(stack.post("/v1/admin/devshards", json!({ "id": "2" })).await.0, 409);
    let delete = async |id: &str| {
        let request = stack.client.delete(format!("{}/v1/admin/devshards/{id}", stack.base));
        let answer = request.bearer_auth(ADMIN).send().await.unwrap();
        (answer.status().as_u16(), answer.json::<Value>().await.unwrap())
    };
    let (status, refused) = delete("2").await;
    assert_eq!(status, 409);
    assert_eq!(differences(&captures["delete-active"], &refused), Vec::<String>::new());
    stack.post("/v1/admin/devshards/2/deactivate", json!({})).await;
    let (status, gone) = delete("2").await;
    assert_eq!((status, &gone), (200, &captures["delete"]));
    assert_eq!(delete("2").await.0, 404);
    assert_eq!(stack.get("/devshard/2/v1/status").await.0, 404);
    let foreign = json!({ "id": 2, "private_key": "11".repeat(32) });
    assert_eq!(stack.post("/v1/admin/devshards", foreign).await.0, 400);
    // Its hosts still have the steps of the deleted session, so only a fresh escrow can be added.
    let (_, made) =
        stack.post("/v1/admin/escrows", json!({ "amount": 1_000_000_000, "register": false })).await;
    assert_eq!((made["escrow_id"].as_u64(), made["registered"].as_bool()), (Some(3), Some(false)));
    let (status, added) = stack.post("/v1/admin/devshards", json!({ "id": "3" })).await;
    assert_eq!((status, added["active"].as_bool(), added["model"].as_str()), (200, Some(true), Some(MODEL)));
    assert_eq!(stack.chat_at("/devshard/3/v1/chat/completions", "added", true).await.status(), 200);
    assert_eq!(stack.post("/v1/admin/devshards", json!({ "id": "77" })).await.0, 400);
}

/// A session that is read although nobody is served from it shows what it is by now, not what an earlier read found.
#[tokio::test(flavor = "multi_thread")]
async fn a_retired_session_is_read_as_it_is_by_now() {
    let stack = Stack::start(1).await;
    let served = async |text: &str| {
        let answer = stack.chat_at("/devshard/1/v1/chat/completions", text, false).await;
        assert_eq!(answer.status(), 200);
        stack.post("/v1/admin/devshards/1/deactivate", json!({})).await;
        let url = format!("{}/devshard/1/v1/status", stack.base);
        let read = async || stack.client.get(&url).bearer_auth(ADMIN).send().await.unwrap();
        eventually("it is read only", async || read().await.headers().contains_key("x-devshard-readonly"))
            .await;
        let status: Value = read().await.json().await.unwrap();
        status["nonce"].as_u64().unwrap()
    };
    let first = served("one").await;
    assert_eq!(stack.post("/v1/admin/devshards", json!({ "id": "1" })).await.0, 200);
    assert!(served("two").await > first, "more steps than {first}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_imported_with_steps_and_accounting() {
    let mut stack = Stack::start(1).await;
    let answer = stack.chat("one", false).await;
    let id = header(&answer, "x-request-id");
    answer.text().await.unwrap();
    stack.accounting(&id, "1").await;
    let nonce = stack.get("/devshard/1/v1/status").await.1["nonce"].clone();
    let old = stack.move_files().await;
    // A fresh gateway that serves nothing yet.
    stack.post("/v1/admin/devshards/1/deactivate", json!({})).await;
    let request = stack.client.delete(format!("{}/v1/admin/devshards/1", stack.base));
    assert_eq!(request.bearer_auth(ADMIN).send().await.unwrap().status(), 200);
    let file = |name: &str| old.path().join(name).display().to_string();
    let import = json!({ "id": "1", "active": true, "storage_path": file("gateway.db"),
        "perf_path": file("perf.db") });
    let (status, imported) = stack.post("/v1/admin/devshards/import", import).await;
    assert_eq!((status, &imported["accounting_records_imported"]), (200, &json!(1)), "{imported}");
    assert_eq!(imported["accounting_attempts_imported"], 1);
    assert_eq!(stack.get("/devshard/1/v1/status").await.1["nonce"], nonce);
    assert_eq!(stack.accounting(&id, "1").await["outcome"], "success");
    assert_eq!(stack.chat_at("/devshard/1/v1/chat/completions", "two", true).await.status(), 200);
}

/// One 429 of a host is enough; here others serve, and the host is asked again soon.
#[tokio::test(flavor = "multi_thread")]
async fn a_throttled_host_is_quarantined_passed_by_and_asked_again() {
    let stack = Stack::start(1).await;
    stack.hosts[1].behave(Behaviour::Http(429));
    assert_eq!(stack.chat("one", false).await.status(), 200, "another host serves");
    let (_, view) = stack.get("/v1/admin/devshards/1/participants").await;
    assert_eq!((view["blocked_count"].as_u64(), view["quarantined_count"].as_u64()), (Some(1), Some(1)));
    let blocked = |view: &Value| {
        view["participants"].as_array().unwrap().iter().find(|one| one["blocked"] == true).cloned()
    };
    let entry = blocked(&view).unwrap();
    assert_eq!(entry["quarantine_mode"], "probe");
    assert!(entry["quarantine_remaining_ms"].as_u64() > Some(3_000_000), "{entry}");
    let transitions = "devshard_gateway_participant_quarantine_transitions_total{mode=\"probe\"";
    assert_eq!(stack.metric(transitions).await, 1.0);
    assert_eq!(stack.metric("devshard_gateway_capacity_total_weight ").await, 2.0);
    let before = stack.hosts[1].executed.lock().unwrap().len();
    for number in 0..3 {
        assert_eq!(stack.chat(&format!("passed by {number}"), false).await.status(), 200);
    }
    assert_eq!(stack.hosts[1].executed.lock().unwrap().len(), before);
    // It answers again; a request of one of the next seconds finds out.
    stack.hosts[1].behave(Behaviour::Normal);
    let mut number = 0;
    eventually("the quarantine ends with a success", async || {
        number += 1;
        assert_eq!(stack.chat(&format!("probe {number}"), false).await.status(), 200);
        stack.get("/v1/admin/devshards/1/participants").await.1["blocked_count"] == 0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn quarantine_survives_a_restart_and_is_lifted_by_the_admin() {
    let mut stack = Stack::start(1).await;
    stack.hosts[1].behave(Behaviour::Http(503));
    assert_eq!(stack.chat("one", false).await.status(), 200);
    stack.restart().await;
    let (_, view) = stack.get("/v1/admin/devshards/1/participants").await;
    assert_eq!(view["blocked_count"], 1);
    let key = json!({ "participant_key": stack.hosts[1].address() });
    let (status, answer) = stack.post("/v1/admin/participants/unquarantine", key.clone()).await;
    assert_eq!((status, answer["cleared"].as_bool()), (200, Some(true)));
    assert_eq!(stack.get("/v1/admin/devshards/1/participants").await.1["blocked_count"], 0);
    assert_eq!(stack.post("/v1/admin/participants/unquarantine", key).await.1["cleared"], false);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listed_host_wins_only_when_nobody_else_answers() {
    let stack = Stack::start(1).await;
    let listed = json!({ "participant_keys": [stack.hosts[1].address()], "note": "slow" });
    let (status, answer) = stack.post("/v1/admin/suspicious-hosts", listed.clone()).await;
    assert_eq!((status, answer["suspicious_hosts"].as_array().map(Vec::len)), (200, Some(1)));
    let answer = stack.chat("one", true).await;
    let id = header(&answer, "x-request-id");
    answer.text().await.unwrap();
    let row = stack.accounting(&id, "1").await;
    assert_eq!((&row["decision"], row["winner_nonce"].as_u64()), (&json!("primary_suspicious"), Some(2)));
    for host in [0, 2] {
        stack.hosts[host].behave(Behaviour::Http(500));
    }
    let answer = stack.chat("two", false).await;
    assert_eq!(answer.status(), 200, "a complete answer is never held back");
    let request = stack.client.delete(format!("{}/v1/admin/suspicious-hosts", stack.base));
    let request = request.bearer_auth(ADMIN).json(&listed);
    let answer: Value = request.send().await.unwrap().json().await.unwrap();
    assert_eq!(answer["suspicious_hosts"], Value::Null);
}

/// Fixtures burst-50-weight-4000 and burst-20-weights-gone.
#[tokio::test(flavor = "multi_thread")]
async fn weights_come_and_go() {
    let stack = Stack::start(1).await;
    let api = gateway_support::public_api::start().await;
    api.weigh(&stack.hosts.iter().map(|host| host.address().to_owned()).collect::<Vec<_>>(), 4000);
    stack.post("/v1/admin/settings", json!({ "public_api": api.base })).await;
    let cap = async || {
        let (_, state) = stack.get("/v1/admin/state").await;
        state["limiter"]["models"][MODEL]["effective_max_concurrent_requests"].as_u64()
    };
    eventually("three hosts of 4000 allow 6", async || cap().await == Some(6)).await;
    stack.hosts.iter().for_each(|host| host.behave(Behaviour::Slow(600)));
    let texts: Vec<String> = (0..20).map(|number| format!("burst {number}")).collect();
    let burst = async || {
        let all = texts.iter().map(|text| stack.chat(text, false));
        let answers = futures_util::future::join_all(all).await;
        answers.iter().filter(|answer| answer.status() == 200).count()
    };
    assert_eq!(burst().await, 6);
    api.weigh(&[], 0);
    stack.post("/v1/admin/settings", json!({})).await;
    eventually("the general cap is back", async || cap().await == Some(500)).await;
    assert_eq!(burst().await, 20);
}

/// Fixtures multi-ok-legacy and multi-ok-hybrid.
#[tokio::test(flavor = "multi_thread")]
async fn a_fresh_pair_is_sampled_under_hybrid_and_never_under_legacy() {
    for (policy, nonces) in [("legacy", 4), ("hybrid", 8), ("pairwise", 8)] {
        let stack = Stack::with(1, json!({ "redundancy": { "speed_policy": policy } })).await;
        for number in 0..4 {
            stack.chat(&format!("chat {number}"), number % 2 == 0).await.text().await.unwrap();
        }
        let nonce = stack.get("/devshard/1/v1/status").await.1["nonce"].as_u64().unwrap();
        assert_eq!(nonce, nonces, "{policy}");
        let sampled =
            stack.metric("devshard_speculative_attempt_starts_total{reason=\"pairwise_ab_sample\"}");
        assert_eq!(sampled.await, if policy == "legacy" { 0.0 } else { 4.0 });
    }
}

/// Fixture multi-one-ml-503-legacy: retried at first, doubled afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn an_unresponsive_primary_gets_company_at_once() {
    let stack = Stack::start(1).await;
    stack.hosts[1].behave(Behaviour::Empty);
    for number in 0..4 {
        assert_eq!(stack.chat(&format!("chat {number}"), true).await.status(), 200);
        tokio::time::sleep(Duration::from_millis(60)).await;
    }
    let starts = async |reason: &str| {
        stack.metric(&format!("devshard_speculative_attempt_starts_total{{reason=\"{reason}\"}}")).await
    };
    assert_eq!(starts("attempt_failed").await, 1.0);
    assert_eq!(starts("primary_unresponsive").await, 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn logprobs_are_shown_to_whom_they_were_asked_for() {
    let stack = Stack::start(1).await;
    stack.hosts.iter().for_each(|host| host.behave(Behaviour::Logprobs));
    let ask = async |extra: Value| {
        let mut body = gateway_support::body("same words", false);
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let request = stack.client.post(format!("{}/v1/chat/completions", stack.base));
        let answer: Value = request.json(&body).send().await.unwrap().json().await.unwrap();
        answer["choices"][0]["logprobs"].clone()
    };
    assert_eq!(ask(json!({})).await, Value::Null);
    let two = ask(json!({ "logprobs": true, "top_logprobs": 2 })).await;
    assert_eq!(two["content"][0]["top_logprobs"].as_array().unwrap().len(), 2, "not the cached answer");
    assert_eq!(ask(json!({ "logprobs": false })).await, Value::Null);
}

/// Contract mocks 4.7: temporary escrows before the switch, regular ones after it, each settled in turn.
#[tokio::test(flavor = "multi_thread")]
async fn escrows_rotate_around_the_end_of_an_epoch() {
    let stack = Stack::start(1).await;
    let api = gateway_support::public_api::start().await;
    api.at(150, 1);
    stack.chat("before", false).await.text().await.unwrap();
    let model = json!({ "model_id": MODEL, "temp_count": 1, "target_count": 2, "amount": 1_000_000_000_u64,
        "private_key_env": refshard::gateway::CREATOR_KEY_VARIABLE });
    let rotation =
        json!({ "enabled": true, "settlement_enabled": true, "pre_poc_blocks": 50, "models": [model] });
    stack.post("/v1/admin/settings", json!({ "public_api": api.base, "escrow_rotation": rotation })).await;
    let active = async || -> Vec<(String, String)> {
        let (_, state) = stack.get("/v1/admin/state").await;
        let all = state["devshards"].as_array().unwrap().clone();
        all.iter()
            .filter(|one| one["active"] == true)
            .map(|one| {
                let text = |name: &str| one[name].as_str().unwrap_or_default().to_owned();
                (text("id"), text("rotation_role"))
            })
            .collect()
    };
    eventually("a temporary escrow serves and the old one is settled", async || {
        active().await == [("2".to_owned(), "temp".to_owned())]
            && stack.chain.settlements.lock().unwrap().len() == 1
    })
    .await;
    assert_eq!(stack.chat("between", true).await.status(), 200);
    api.at(310, 2);
    stack.post("/v1/admin/settings", json!({})).await;
    eventually("two regular ones serve and the temporary one is settled", async || {
        let roles: Vec<String> = active().await.into_iter().map(|(_, role)| role).collect();
        roles == ["regular", "regular"] && stack.chain.settlements.lock().unwrap().len() == 2
    })
    .await;
    assert_eq!(stack.chat("after", true).await.status(), 200);
    let (_, shown) = stack.get("/v1/debug/rotation").await;
    let stages: Vec<_> = shown["latest"].as_array().unwrap().iter().map(|one| one["stage"].clone()).collect();
    assert_eq!(stages, ["prepare_temp", "finish_regular"]);
    assert!(shown["latest"].as_array().unwrap().iter().all(|one| one["completed"] == true), "{shown}");
}

/// Contract gateway 4.3: no requests while the chain proves its compute.
#[tokio::test(flavor = "multi_thread")]
async fn a_proof_of_compute_blocks_requests() {
    let stack = Stack::start(1).await;
    let api = gateway_support::public_api::start().await;
    api.phase("PoCGenerate");
    stack.post("/v1/admin/settings", json!({ "public_api": api.base })).await;
    eventually("the phase is seen", async || {
        stack.get("/devshard/1/v1/status").await.1["block_reason"] == "poc"
    })
    .await;
    let answer = stack.chat_at("/devshard/1/v1/chat/completions", "one", true).await;
    assert_eq!((answer.status().as_u16(), header(&answer, "x-devshard-id").as_str()), (503, "1"));
}

/// An escrow is settled while requests come; each of them has an outcome, and the other escrow serves on.
#[tokio::test(flavor = "multi_thread")]
async fn a_settlement_under_load_loses_nothing() {
    let stack = Stack::start(2).await;
    stack.hosts.iter().for_each(|host| host.behave(Behaviour::Slow(60)));
    let load = async {
        let mut answers = Vec::new();
        for round in 0..6 {
            let texts: Vec<String> = (0..6).map(|number| format!("load {round} {number}")).collect();
            let all = texts.iter().map(|text| stack.chat(text, false));
            for answer in futures_util::future::join_all(all).await {
                answers.push((
                    answer.status().as_u16(),
                    header(&answer, "x-request-id"),
                    header(&answer, "x-devshard-id"),
                ));
            }
        }
        answers
    };
    let settle = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        stack.post("/v1/admin/devshards/1/deactivate", json!({})).await;
        let mut status = 0;
        eventually("it is settled once it is idle", async || {
            status = stack.post("/v1/admin/devshards/1/settle", json!({})).await.0;
            assert!([200, 409].contains(&status), "{status}");
            status == 200
        })
        .await;
    };
    let (answers, ()) = futures_util::future::join(load, settle).await;
    assert!(answers.iter().all(|(status, ..)| *status == 200), "{answers:?}");
    assert!(answers.iter().any(|(.., at)| at == "1") && answers.iter().any(|(.., at)| at == "2"));
    for (_, id, at) in &answers {
        let (_, row) = stack.get(&format!("/devshard/{at}/v1/requests/{id}")).await;
        assert_eq!(row["outcome"], "success", "{id} in {at}");
    }
    let settlement = stack.chain.settlements.lock().unwrap()[0].clone();
    assert_eq!(settlement.host_stats.iter().map(|stats| stats.missed).sum::<u32>(), 0);
    let (_, inferences) = stack.get("/devshard/1/v1/debug/inferences").await;
    let mut statuses = inferences["inferences"].as_object().unwrap().values().map(|one| &one["status"]);
    assert!(statuses.all(|status| status == "finished"), "nothing that was done is lost");
}

/// The chain is asked at the start of a session and at its end; in between, and for a restart, nobody needs it.
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_comes_up_again_while_the_chain_is_away() {
    let mut stack = Stack::start(1).await;
    stack.chat("one", false).await.text().await.unwrap();
    stack.restart_without_chain().await;
    let answer = stack.chat("two", true).await;
    assert_eq!(answer.status(), 200);
    assert!(answer.text().await.unwrap().ends_with("data: [DONE]\n\n"));
    assert_eq!(stack.post("/v1/admin/escrows", json!({ "amount": 5_000_000 })).await.0, 502);
    assert_eq!(stack.post("/devshard/1/v1/debug/sync-hosts", json!({})).await.0, 200);
}

//! The control surface: configuration, logs, metrics.

use scenario::control::{Hit, MockConfig, NodeCall, Page};
use scenario::fault::NodeFault;
use serde_json::{Value, json};

use crate::support::{Stand, config, fast, marked, rule};

#[tokio::test]
async fn a_configuration_is_read_back_with_its_hash() {
    let stand = Stand::new(config(vec![fast()], vec![])).await;
    let next = config(vec![fast()], vec![rule(NodeFault::Status(502))]);
    let applied = stand.put_config(&next).await;
    assert_eq!((applied.hash.as_str(), applied.revision), (next.hash().as_str(), 2));
    let read: MockConfig = stand.get("/control/v1/config").await;
    assert_eq!((&read, read.hash()), (&next, applied.hash));
    assert_eq!(stand.chat("node-0", &marked(1, false)).await.status, Some(502));
    stand.put_config(&config(vec![fast()], vec![])).await;
    assert_eq!(stand.chat("node-0", &marked(1, false)).await.status, Some(200));
}

#[tokio::test]
async fn a_bad_configuration_changes_nothing() {
    let stand = Stand::new(config(vec![fast(), fast()], vec![])).await;
    let good =
        serde_json::to_value(config(vec![fast(), fast()], vec![rule(NodeFault::Status(503))])).unwrap();
    let edits: [(&str, Value, &str); 10] = [
        ("/v", json!(2), "this build reads 1"),
        ("/nodes/1/name", json!("node-0"), "twice"),
        ("/nodes/1/name", json!("other"), "can't change"),
        ("/nodes/1/name", json!("../x"), "a name is"),
        ("/nodes/0/behaviour/workers", json!(0), "workers"),
        ("/rules/0/nodes", json!(["node-9"]), "node-0, node-1"),
        ("/rules/0/nodes", json!([]), "is empty"),
        ("/rules/0/action", json!({ "status": 200 }), "400 to 599"),
        ("/rules/0/action", json!({ "oversize_event": u64::MAX }), "at most"),
        ("/rules/0/select", json!({ "calls": [1] }), "not by `calls`"),
    ];
    for (path, value, expected) in edits {
        let mut bad = good.clone();
        *bad.pointer_mut(path).unwrap() = value;
        let (status, answer) = stand.put(bad.to_string()).await;
        let error = answer["error"].as_str().unwrap();
        assert!(status == 400 && error.contains(expected), "{path}: {error}");
    }
    for garbage in ["", "[]", "{\"mock\":\"openai\",\"v\":1}", "{\"mock\":\"dapi\"}"] {
        assert_eq!(stand.put(garbage.to_owned()).await.0, 400);
    }
    let mut misspelt = good;
    misspelt["rule"] = json!([]);
    assert_eq!(stand.put(misspelt.to_string()).await.0, 400);
    let read: MockConfig = stand.get("/control/v1/config").await;
    assert_eq!(read, config(vec![fast(), fast()], vec![]));
}

#[tokio::test]
async fn logs_are_paged_and_what_falls_out_is_counted() {
    let stand = Stand::with_log(config(vec![fast()], vec![rule(NodeFault::Status(503))]), 4).await;
    for index in 0..6 {
        stand.chat("node-0", &marked(index, false)).await;
    }
    let first: Page<Hit> = stand.get("/control/v1/hits?after=0&limit=3").await;
    assert_eq!(first.items.iter().map(|hit| hit.seq).collect::<Vec<_>>(), [3, 4, 5]);
    assert_eq!((first.dropped, first.next), (2, 5));
    let second: Page<Hit> = stand.get(&format!("/control/v1/hits?after={}", first.next)).await;
    assert_eq!((second.items.len(), second.items[0].seq, second.next), (1, 6, 6));
    let calls: Page<NodeCall> = stand.get("/control/v1/calls").await;
    assert_eq!((calls.items.len(), calls.dropped), (4, 8));
    assert_eq!(calls.started_unix_us, first.started_unix_us);
    assert!(stand.get_text("/metrics").await.contains("proofload_openai_calls_dropped_total 8\n"));
}

#[tokio::test]
async fn metrics_say_what_stats_say() {
    let stand = Stand::new(config(vec![fast()], vec![rule(NodeFault::OmitDone(true))])).await;
    stand.chat("node-0", &marked(1, true)).await;
    stand.ended(1).await;
    let page = stand.get_text("/metrics").await;
    let expected =
        "proofload_openai_failed_total{node=\"node-0\",kind=\"execution\",action=\"omit_done\"} 1\n";
    assert!(page.contains(expected), "{page}");
    assert!(page.contains("proofload_openai_active{node=\"node-0\",kind=\"execution\"} 0\n"), "{page}");
    assert!(stand.stats().await.cpu_us > 0);
    assert_eq!(stand.get_text("/healthz").await, "ok");
}

#[tokio::test]
async fn the_pool_has_no_admin_actions() {
    let stand = Stand::new(config(vec![fast()], vec![])).await;
    let answer = reqwest::Client::new().post(stand.url("/control/v1/act"));
    let answer = answer.body("{\"act\":\"advance-epoch\"}").send().await.unwrap();
    assert_eq!(answer.status().as_u16(), 400);
}

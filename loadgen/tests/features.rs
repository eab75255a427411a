//! Keys of a profile, each by what a server or the files of a run see of it.

mod common;

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use common::program::{ANSWER_TIME, Ran, base, loadgen, mock, run, run_file, seen};
use common::{Server, good_answer, json_answer};
use evidence::record::ClientClass;
use loadgen::result::{Counts, Figure};
use serde_json::{Value, json};

fn total(ran: &Ran) -> &Counts {
    &ran.result.total.counts
}

#[test]
fn an_over_saturated_target_ends_the_run_with_the_reason() {
    let server = Server::good(Duration::from_millis(100));
    let mut profile = base(&server.url());
    profile["stages"] = json!([{"rate": 200, "duration": "30s"}, {"rate": 1, "duration": "30s"}]);
    profile["openloop_max_inflight"] = 1.into();
    profile["oversaturation"] = "300ms".into();
    profile["health"]["achieved"] = "0".into();
    let ran = run("run", &profile, &[]);
    let stopped = ran.result.stages[0].stopped.as_deref().unwrap();
    assert!(stopped.contains("over-saturated"), "{stopped}");
    assert_eq!((ran.code, ran.result.stages.len()), (Some(1), 1), "{}", ran.text);
    assert!(total(&ran).class(ClientClass::NotOffered) > 1_000, "{:?}", total(&ran));
}

#[test]
fn goodput_counts_what_keeps_every_limit() {
    let server = Server::start(|peer| {
        while let Some(request) = peer.request() {
            let slow = request.number % 2 == 1;
            std::thread::sleep(if slow { Duration::from_millis(2_500) } else { ANSWER_TIME });
            if !peer.send(good_answer(false)) {
                return;
            }
        }
    });
    let mut profile = base(&server.url());
    profile["stages"] = json!([{"concurrency": 4, "requests": 8}]);
    profile["slo"] = json!({"latency": "2s"});
    let ran = run("run", &profile, &[]);
    assert_eq!(total(&ran).ok(), 8, "{}", ran.text);
    let good = total(&ran).good.unwrap();
    assert!((1..=4).contains(&good), "the four slow ones are no good ones: {good}");
    assert_eq!(ran.result.total.value(Figure::Goodput), Some(good as f64 / 8.0));
}

#[test]
fn a_data_set_is_said_line_by_line() {
    let (server, requests) = seen(|_, stream| good_answer(stream));
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("set.jsonl"), "{\"q\": \"one\"}\n{\"q\": \"two\"}\n").unwrap();
    let mut profile = base(&server.url());
    profile["cache_mode"] = "natural".into();
    profile["stages"] = json!([{"concurrency": 1, "requests": 3}]);
    profile["scenarios"] =
        json!([{"name": "set", "content": {"mode": "dataset", "file": "set.jsonl", "field": "q"}}]);
    let file = dir.path().join("p.json");
    std::fs::write(&file, profile.to_string()).unwrap();
    let ran = run_file("run", &file, &dir.path().join("out"), &[]);
    assert_eq!(ran.code, Some(0), "{}", ran.text);
    let said = |(_, body): (String, Value)| body["messages"][0]["content"].as_str().unwrap().to_owned();
    assert_eq!(requests.try_iter().map(said).collect::<Vec<_>>(), ["one", "two", "one"]);
}

#[test]
fn a_seeded_share_of_clients_leaves_at_its_phase() {
    let server = mock();
    let mut profile = base(&server.url());
    profile["stages"] = json!([{"rate": 80, "duration": "500ms"}]);
    profile["scenarios"] = json!([{"name": "leaving", "stream": true,
        "cancel": {"share": "0.5", "phase": "first-content", "close": "rst"}}]);
    let left = |ran: &Ran| -> BTreeSet<String> {
        let cancelled = ran.records.iter().filter(|record| record.class == ClientClass::Cancelled);
        cancelled.map(|record| record.conversation.clone().into_owned()).collect()
    };
    let ran = run("run", &profile, &[]);
    assert_eq!(ran.code, Some(0), "who leaves by plan has not failed: {}", ran.text);
    let first = left(&ran);
    assert!((10..=30).contains(&first.len()), "{first:?}");
    assert_eq!(total(&ran).class(ClientClass::Cancelled), first.len() as u64);
    assert_eq!(left(&run("run", &profile, &["--threads", "2"])), first, "the seed decides, not the threads");
}

#[test]
fn warm_up_and_cool_down_are_marked_and_left_out() {
    let server = mock();
    let mut profile = base(&server.url());
    profile["stages"] = json!([{"rate": 50, "duration": "2s"}]);
    (profile["warmup"], profile["cooldown"]) = ("500ms".into(), "500ms".into());
    let ran = run("run", &profile, &[]);
    let outside = &ran.result.stages[0].outside;
    // The 25th to the 75th arrival are planned from 0.5 s to 1.5 s.
    assert_eq!((total(&ran).planned, outside.planned), (51, 49), "{}", ran.text);
    assert_eq!(ran.records.iter().filter(|record| record.steady).count(), 51);
    let rate = ran.result.total.value(Figure::PlannedRps).unwrap();
    assert!((rate - 51.0).abs() < 0.01, "over the steady second alone: {rate}");
}

#[test]
fn poisson_arrivals_follow_the_seed() {
    let server = mock();
    let mut profile = base(&server.url());
    profile["stages"] = json!([{"rate": 100, "duration": "500ms", "arrival": "poisson"}]);
    let planned = |flags: &[&str]| -> Vec<u64> {
        let ran = run("run", &profile, flags);
        let started_us = ran.result.stages[0].started_us;
        let mut all: Vec<u64> =
            ran.records.iter().filter_map(|record| Some(record.planned_us? - started_us)).collect();
        all.sort_unstable();
        all
    };
    let first = planned(&[]);
    assert!(first.len() > 20);
    let gaps: BTreeSet<u64> = first.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(gaps.len() > first.len() / 2, "no even grid: {gaps:?}");
    assert_eq!(planned(&["--threads", "2"]), first);
    assert_ne!(planned(&["--seed", "7"]), first);
}

#[test]
fn a_kept_body_differs_in_its_marker_only() {
    let (server, requests) = seen(|_, stream| good_answer(stream));
    let mut profile = base(&server.url());
    profile["stages"] = json!([{"concurrency": 1, "requests": 3}]);
    profile["scenarios"] =
        json!([{"name": "long", "content": {"mode": "sized", "approx_input_tokens": 200}}]);
    let mut texts = |reuse: bool| -> (BTreeSet<String>, BTreeSet<String>) {
        profile["reuse_body"] = reuse.into();
        assert_eq!(run("run", &profile, &[]).code, Some(0));
        let all: Vec<String> = requests
            .try_iter()
            .map(|(_, body)| body["messages"][0]["content"].as_str().unwrap().to_owned())
            .collect();
        let cut = |text: &String| text.split_once("] ").unwrap().1.to_owned();
        (all.iter().cloned().collect(), all.iter().map(cut).collect())
    };
    let (whole, without) = texts(true);
    assert_eq!((whole.len(), without.len()), (3, 1));
    // Four characters a token; the last one has no blank.
    assert_eq!(without.first().unwrap().len(), 200 * 4 - 1);
    let (whole, without) = texts(false);
    assert_eq!((whole.len(), without.len()), (3, 3));
}

#[test]
fn connections_are_closed_after_their_share() {
    for (each, connections) in [(5, 4), (1, 20)] {
        let server = Server::good(Duration::ZERO);
        let mut profile = base(&server.url());
        profile["stages"] = json!([{"concurrency": 1, "requests": 20}]);
        profile["connections"] = json!({"requests_per_connection": each});
        let ran = run("run", &profile, &[]);
        assert_eq!(total(&ran).ok(), 20, "{}", ran.text);
        assert_eq!(server.connections.load(Ordering::SeqCst), connections, "{each} a connection");
        assert_eq!(ran.result.total.value(Figure::RequestsPerConnection), Some(f64::from(each)));
    }
}

#[test]
fn connections_of_the_warm_up_count_where_they_are_used() {
    let server = Server::good(Duration::from_millis(2));
    let mut profile = base(&server.url());
    profile["warmup"] = json!("300ms");
    profile["stages"] = json!([{"concurrency": 3, "duration": "900ms"}]);
    let ran = run("run", &profile, &[]);
    let counts = total(&ran);
    assert_eq!((counts.connections, counts.connections_used), (0, 3), "{}", ran.text);
    let each = ran.result.total.value(Figure::RequestsPerConnection);
    assert_eq!(each, Some(counts.sent as f64 / 3.0));
}

#[test]
fn tool_calls_are_answers_and_finish_reasons_can_be_asked_for() {
    let answer = json!({"id": "c", "object": "chat.completion", "choices": [{"index": 0, "finish_reason": "tool_calls",
        "message": {"role": "assistant", "content": null, "tool_calls": [{"id": "t", "type": "function",
        "function": {"name": "f", "arguments": "{}"}}]}}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 5, "total_tokens": 6}});
    let (server, _requests) = seen(move |_, _| json_answer(&answer.to_string()));
    let mut profile = base(&server.url());
    profile["stages"] = json!([{"concurrency": 1, "requests": 3}]);
    let mut ran = |checks: Value| {
        profile["scenarios"] = json!([{"name": "tools", "checks": checks}]);
        run("run", &profile, &[])
    };
    let good =
        ran(json!({"finish_reason": ["tool_calls"], "min_completion_tokens": 5, "max_completion_tokens": 5,
        "json": {"/choices/0/message/tool_calls/0/function/name": "f"}, "not_contains": ["sorry"]}));
    assert_eq!((good.code, total(&good).ok()), (Some(0), 3), "{}", good.text);
    for (checks, name) in [
        (json!({"finish_reason": ["stop"]}), "finish_reason"),
        (json!({"max_completion_tokens": 4}), "completion_tokens_max"),
        (json!({"json": {"/choices/0/message/content": "x"}}), "json"),
        (json!({"not_contains": ["tool_calls"]}), "not_contains"),
        (json!({"regex": ["^sure"]}), "regex"),
    ] {
        let bad = ran(checks);
        assert_eq!(total(&bad).class(ClientClass::CheckFailed), 3, "{name}: {}", bad.text);
        assert_eq!(total(&bad).details, [(format!("check {name}"), 3)].into());
    }
}

#[test]
fn a_spinning_and_pinned_thread_sends_the_same_plan() {
    let server = mock();
    let mut profile = base(&server.url());
    profile["stages"] = json!([{"rate": 100, "duration": "500ms"}]);
    profile["connections"] = json!({"spin": true, "pin": true});
    let ran = run("run", &profile, &[]);
    assert_eq!((total(&ran).planned, total(&ran).sent), (50, 50), "{}", ran.text);
}

#[test]
fn lines_come_while_a_run_goes_on_unless_they_are_switched_off() {
    let server = mock();
    let dir = tempfile::tempdir().unwrap();
    let mut profile = base(&server.url());
    profile["stages"] = json!([{"rate": 50, "duration": "1s"}]);
    for (interval, wanted) in [("200ms", true), ("0", false)] {
        profile["live_interval"] = interval.into();
        let file = dir.path().join("p.json");
        std::fs::write(&file, profile.to_string()).unwrap();
        let ended = loadgen("run", &file, &dir.path().join(interval), &[]);
        let said = String::from_utf8(ended.stderr).unwrap();
        let lines = said.lines().filter(|line| line.contains("stage 1 (50/s)") && line.contains("in flight"));
        assert_eq!(lines.count() >= 2, wanted, "{interval}: {said}");
    }
}

//! The bounded drain gives work the time it needs, and no more than the scenario allows.

use serde_json::Value;

use crate::support::{Run, lines};

/// Replays take two seconds and more, and the last of them begin when a sync tells hosts of the last answers.
const LATE_REPLAYS: &str = "\
version: 1
name: late-replays
description: >
  The last replays begin when a sync tells hosts of the last answers.
seed: 42
devshard:
  participants: 3
  slots: 3
  escrows: 1
  storage: sqlite
  validation_rate: 1
  settings: { speed_policy: legacy }
pool:
  - { name: node-a, profile: fast, workers: 32, queue: 64 }
  - { name: node-b, profile: fast, workers: 32, queue: 64 }
workload:
  stream_ratio: 0.5
  prompt: { input_tokens: 64 }
  max_tokens: 16
  timeout: protocol
  steps: [ { concurrency: 4, requests: 12 } ]
faults:
  - id: long-replay-a
    where: { node: node-a }
    on: validation
    select: { all: true }
    do: { delay_headers: 2500ms }
    expect: [ { class: success } ]
  - id: long-replay-b
    where: { node: node-b }
    on: validation
    select: { all: true }
    do: { delay_headers: 2500ms }
    expect: [ { class: success } ]
thresholds: { error_rate: 0 }
validity: { schedule_lateness_p99: 10s, mock_saturation: forbidden }
drain: { timeout: 90s, stable_samples: 2, interval: 200ms }
minimum: { validations: 6 }
";

/// A round of sync that is asked while hosts still work on the round before is lost: twelve of them pass quickly, and
/// what comes after the last one was once told as left over.
#[test]
fn a_round_of_sync_waits_for_the_work_that_it_brought() {
    let run = Run::of(LATE_REPLAYS, &[]).expect(0);
    let samples = lines(&run.dir().join("drain.jsonl"));
    let synced: Vec<_> = samples.iter().filter(|sample| sample["part"] == "synced").collect();
    assert!(synced.len() >= 2 && synced.last().unwrap()["ended"] == "stable", "{synced:?}");
    for sample in &synced {
        assert_eq!(sample["signals"]["host_validation_queue"], 0.0, "{synced:?}");
    }
    // They did begin by the sync: the first round took as long as a replay.
    let passive = samples.iter().rfind(|sample| sample["part"] == "passive").unwrap();
    let took_us = synced[0]["at_us"].as_u64().unwrap() - passive["at_us"].as_u64().unwrap();
    assert!(took_us >= 2_000_000, "{took_us}: no replay began by the sync");
    // What was found meanwhile waits at the hosts: a sync with nothing to bring to anybody does nothing, and only finalize
    // collects (case multi-validation-collection).
    let waiting = |moment: &str| -> Vec<Value> {
        let snapshot = run.json(&format!("snapshots/{moment}/snapshot.json"));
        let hosts = snapshot["hosts"].as_array().unwrap().clone();
        let escrows = hosts.iter().flat_map(|host| host["escrows"].as_array().unwrap().clone());
        escrows.flat_map(|escrow| escrow["mempool"].as_array().unwrap().clone()).collect()
    };
    let left = waiting("drain-synced");
    assert!(!left.is_empty() && left.iter().all(|entry| entry["kind"] == "validation"), "{left:?}");
    assert_eq!(waiting("drain-final"), Vec::<Value>::new());
}

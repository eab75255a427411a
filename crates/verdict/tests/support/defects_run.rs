//! Defects of the run as a whole: A8, A9, T, V.

use evidence::assertion::AssertionId::{A2, A5, A8, A9, T, V};
use evidence::event::EventKind;
use evidence::snapshot::{Lease, Moment};
use scenario::model::{Limit, Saturation, Step};
use scenario::units::Micros;
use serde_json::json;

use super::Files;
use super::catalogue::{Defect, account, http_error, in_diff, last_nonce};
use super::log::{owner, tx, validator};

/// The passive wait ends at its deadline with one signal above zero.
fn stuck(files: &mut Files, signal: &str) {
    for sample in &mut files.drain {
        sample.signals.insert(signal.to_owned(), Some(1.0));
        sample.stable = 0;
    }
    files.drain.last_mut().expect("the story has it").ended = Some("deadline".to_owned());
}

pub fn health(files: &mut Files, key: &str, value: u64) {
    for event in &mut files.events {
        if let EventKind::LoadEnded { health, .. } = &mut event.event {
            health[key] = json!(value);
        }
    }
}

/// A mock of ours did not get to run for so long during the load.
pub fn frozen(files: &mut Files, mock: &str, gap_us: u64) {
    files.from(Moment::DrainPassive, |snapshot| {
        let gap = match mock {
            "mock-openai" => &mut snapshot.openai.as_mut().expect("the story has it").loop_gap_max_us,
            "mock-dapi" => &mut snapshot.dapi.as_mut().expect("the story has it").loop_gap_max_us,
            _ => &mut snapshot.chain.as_mut().expect("the story has it").loop_gap_max_us,
        };
        *gap = Some(gap_us);
    });
}

/// Puts the first content of some requests one microsecond above the limit of 20 ms.
pub fn slow(files: &mut Files, count: usize) {
    for record in files.records.iter_mut().take(count) {
        record.first_content_us = record.first_content_us.map(|us| us + 1);
    }
}

/// The watch of health saw these looks fail.
pub fn failed_looks(service: &str, ready: bool, failed_at_us: &[u64]) -> EventKind {
    let (service, detail) = (service.to_owned(), Some("503 Service Unavailable".to_owned()));
    EventKind::Probe { service, ready, detail, failed_at_us: failed_at_us.to_vec() }
}

/// The chain is in the next epoch at the end, and all hosts name it.
pub fn epoch_moves(files: &mut Files) {
    let last = files.snapshot(Moment::DrainFinal);
    let chain = last.chain.as_mut().expect("the story has it");
    chain.epoch += 1;
    let epoch = Some(chain.epoch);
    last.hosts.iter_mut().for_each(|host| host.epoch = epoch);
}

fn node_b_refuses(files: &mut Files) {
    files.from(Moment::DrainPassive, |snapshot| {
        snapshot.openai.as_mut().expect("the story has it").nodes[2].saturated_us = 60_000;
    });
}

pub static DEFECTS: &[Defect] = &[
    Defect {
        name: "A8.1 an in-flight gauge stays at one",
        fires: &[(A8, "not-drained")],
        plant: |files| {
            stuck(files, "gateway_inflight_requests");
            "gateway_inflight_requests".to_owned()
        },
    },
    Defect {
        name: "A8 the scenario's deadline is below a protocol timer",
        fires: &[(A8, "within-protocol-timeout")],
        plant: |files| {
            files.run.resolved.scenario.drain.timeout = Limit::Time(Micros::from_s(5));
            stuck(files, "gateway_attempts_open");
            "gateway_attempts_open".to_owned()
        },
    },
    Defect {
        name: "A8.2 a pending lease without expiry",
        fires: &[(A8, "lease-pending")],
        plant: |files| {
            files.snapshot(Moment::DrainSynced).leases = Some(vec![Lease {
                epoch: 1,
                escrow: "11".to_owned(),
                inference: 5,
                owner: "participant-0".to_owned(),
                status: "pending".to_owned(),
                claimed_unix_us: 1,
            }]);
            "lease of inference 5".to_owned()
        },
    },
    Defect {
        name: "A8.4 a gauge flips and is never zero long enough",
        fires: &[(A8, "not-drained")],
        plant: |files| {
            files.drain[2].signals.insert("node_queued_calls".to_owned(), Some(1.0));
            files.drain.last_mut().expect("the story has it").ended = Some("deadline".to_owned());
            "node_queued_calls".to_owned()
        },
    },
    Defect {
        name: "A8.4 a gauge is zero in the samples and one in the snapshot after them",
        fires: &[(A8, "not-drained")],
        plant: |files| {
            let gauge = "devshard_gateway_inflight_requests".to_owned();
            files.snapshot(Moment::DrainSynced).gateway_metrics.insert(gauge, 1.0);
            "gateway_inflight_requests was zero when the wait ended".to_owned()
        },
    },
    Defect {
        name: "A8.6 one lock is out while the gauge says zero",
        fires: &[(A8, "locks-not-returned")],
        plant: |files| {
            files.from(Moment::DrainPassive, |snapshot| {
                snapshot.dapi.as_mut().expect("the story has it").releases -= 1;
            });
            "1 are out (gauge: 0)".to_owned()
        },
    },
    Defect {
        name: "A8 transactions wait at the gateway after sync",
        fires: &[(A8, "pending-left")],
        plant: |files| {
            let waiting = tx("finish", Some(5), None, None);
            files.snapshot(Moment::DrainSynced).escrows[1].pending.push(waiting);
            "escrow 12".to_owned()
        },
    },
    Defect {
        name: "A9.1 a host is killed",
        fires: &[(A9, "ended")],
        plant: |files| {
            let (service, pid) = ("host-1".to_owned(), 104);
            let (code, signal, planned) = (None, Some(9), false);
            files.event_in_load(EventKind::ProcessExited { service, pid, code, signal, planned });
            "host-1 ended by itself: signal 9".to_owned()
        },
    },
    Defect {
        name: "A9.7 a host hears no blocks any more and stays in its epoch",
        fires: &[(A9, "subscription-lost")],
        plant: |files| {
            epoch_moves(files);
            let behind = files.snapshot(Moment::DrainFinal).hosts[1].epoch.as_mut().expect("set above");
            *behind -= 1;
            "host-1 is in epoch".to_owned()
        },
    },
    Defect {
        name: "A9.2 health flaps",
        fires: &[(A9, "not-ready")],
        plant: |files| {
            let service = "ref-gateway".to_owned();
            files.event_in_load(EventKind::Probe {
                service,
                ready: false,
                detail: None,
                failed_at_us: Vec::new(),
            });
            "ref-gateway became unready".to_owned()
        },
    },
    Defect {
        name: "A9.5 health is lost under load and comes back by itself",
        fires: &[(A9, "health-lost")],
        plant: |files| {
            files.event_in_load(failed_looks("host-1", true, &[700_000, 950_000, 1_200_000]));
            "host-1 failed 3 looks at its health in a row".to_owned()
        },
    },
    Defect {
        name: "A9.4 another process under the same name, seen by its identity alone",
        fires: &[(A9, "restarted")],
        plant: |files| {
            files.from(Moment::DrainPassive, |snapshot| {
                snapshot
                    .processes
                    .iter_mut()
                    .find(|p| p.service == "host-2")
                    .expect("the story has it")
                    .start_ticks += 7;
            });
            "host-2".to_owned()
        },
    },
    Defect {
        name: "A9.6 the process inside is replaced, seen by its start metric",
        fires: &[(A9, "restarted")],
        plant: |files| {
            let process = &mut files.snapshot(Moment::DrainSynced).processes[3];
            process.metric_start = Some("999.5".to_owned());
            "host-0".to_owned()
        },
    },
    Defect {
        name: "A9 a service becomes ready twice",
        fires: &[(A9, "restarted")],
        plant: |files| {
            let ready = |kind: &&EventKind| matches!(kind, EventKind::ProcessReady { service, .. } if service == "host-1");
            let mut again =
                files.events.iter().map(|event| &event.event).find(ready).expect("the story has it").clone();
            if let EventKind::ProcessReady { pid, .. } = &mut again {
                *pid += 1_000;
            }
            files.event_in_load(again);
            "host-1".to_owned()
        },
    },
    Defect {
        name: "A9 a service is down at the end",
        fires: &[(A9, "not-ready")],
        plant: |files| {
            files.snapshot(Moment::DrainFinal).processes[0].ready = false;
            "mock-chain".to_owned()
        },
    },
    Defect {
        name: "T.1 the p95 is one microsecond above its limit",
        fires: &[(T, "above-limit")],
        plant: |files| {
            slow(files, 2);
            "ttft_p95".to_owned()
        },
    },
    Defect {
        name: "T.2 one slow request breaks the p99",
        fires: &[(T, "above-limit")],
        plant: |files| {
            files.records[5].end_us = files.records[5].end_us.map(|us| us + 1);
            "latency_p99".to_owned()
        },
    },
    Defect {
        name: "T.3 one error above the limit",
        fires: &[(T, "above-limit"), (A2, "untouched-failed")],
        plant: |files| {
            account(files, 7, "failed");
            http_error(files, 7, 502);
            "1 errors of 24 sent".to_owned()
        },
    },
    Defect {
        name: "T too few successes per second",
        fires: &[(T, "above-limit")],
        plant: |files| {
            files.run.resolved.scenario.thresholds.success_rps_min = Some(1_000);
            "success_rps_min".to_owned()
        },
    },
    Defect {
        name: "V.1 requests go out late",
        fires: &[(V, "generator-lateness")],
        plant: |files| {
            health(files, "lateness_p99_us", 50_001);
            "50001 us".to_owned()
        },
    },
    Defect {
        name: "V.1 the generator is out of CPU",
        fires: &[(V, "generator-cpu")],
        plant: |files| {
            health(files, "cpu_us", 800_001);
            "800001 us CPU".to_owned()
        },
    },
    Defect {
        name: "V.1 the generator did not get to run for most of the load",
        fires: &[(V, "generator-stalled")],
        plant: |files| {
            health(files, "stalled_us", 500_001);
            "did not get to run for 500001 of 1000000 us".to_owned()
        },
    },
    Defect {
        name: "V.1 the generator stood still for longer than the limit",
        fires: &[(V, "generator-frozen")],
        plant: |files| {
            health(files, "loop_gap_max_us", 1_000_001);
            "loadgen did not get to run for 1000001 us in one piece".to_owned()
        },
    },
    Defect {
        name: "V the wall clock was set back during the load",
        fires: &[(V, "clock-jump")],
        plant: |files| {
            files.event_in_load(EventKind::ClockMoved { by_us: -250_001 });
            "the wall clock moved by 250001 us".to_owned()
        },
    },
    Defect {
        name: "V the allocator was frozen from outside",
        fires: &[(V, "mock-frozen")],
        plant: |files| {
            frozen(files, "mock-dapi", 3_000_000);
            "mock-dapi did not get to run for 3000000 us in one piece".to_owned()
        },
    },
    Defect {
        name: "V a frozen pool beside what no absence explains: both are told",
        fires: &[(A5, "committed-twice"), (V, "mock-frozen")],
        plant: |files| {
            frozen(files, "mock-openai", 3_000_000);
            let again = tx("validation", Some(1), Some(validator(1)), Some("11"));
            let last = last_nonce(files, Moment::DrainFinal, "11");
            in_diff(files, "11", last, |txs| txs.push(again.clone()));
            format!("{} committed its validation of 1", owner(validator(1)))
        },
    },
    Defect {
        name: "V.2 callers wait at a node for most of the load",
        fires: &[(V, "mock-saturated")],
        plant: |files| {
            node_b_refuses(files);
            "node-b".to_owned()
        },
    },
    Defect {
        name: "V.3 records were lost",
        fires: &[(V, "records-lost")],
        plant: |files| {
            for event in &mut files.events {
                if let EventKind::LoadEnded { records_dropped, .. } = &mut event.event {
                    *records_dropped = 2;
                }
            }
            "2 client records".to_owned()
        },
    },
    Defect {
        name: "V.4 no file descriptor left",
        fires: &[(V, "generator-fds")],
        plant: |files| {
            health(files, "fds_exhausted", 3);
            "3 requests found no file descriptor".to_owned()
        },
    },
    Defect {
        name: "V no port left",
        fires: &[(V, "generator-ports")],
        plant: |files| {
            health(files, "ports_exhausted", 3);
            "3 requests found no local port".to_owned()
        },
    },
    Defect {
        name: "V.5 a node that had to saturate did not",
        fires: &[(V, "saturation-absent")],
        plant: |files| {
            let required = Saturation::Required(vec!["node-b".to_owned()]);
            files.run.resolved.scenario.validity.mock_saturation = required;
            "node-b".to_owned()
        },
    },
    Defect {
        name: "V a step fell short of its requests",
        fires: &[(V, "too-few-requests")],
        plant: |files| {
            files.run.resolved.scenario.workload.steps[0].requests = Some(25);
            "24 of 25".to_owned()
        },
    },
    Defect {
        name: "V a duration step did not hold its concurrency",
        fires: &[(V, "concurrency-not-held")],
        plant: |files| {
            let duration = Some(Micros::from_s(1));
            files.run.resolved.scenario.workload.steps[0] = Step { concurrency: 5, requests: None, duration };
            "at most 4 of 5".to_owned()
        },
    },
    Defect {
        name: "V.8 limits broken behind a generator that was late: invalid, not slow",
        fires: &[(V, "generator-lateness"), (T, "above-limit")],
        plant: |files| {
            health(files, "lateness_p99_us", 90_000);
            slow(files, 2);
            "90000 us".to_owned()
        },
    },
    Defect {
        name: "V.7 saturation beside a correctness failure: both are told",
        fires: &[(A8, "pending-left"), (V, "mock-saturated")],
        plant: |files| {
            node_b_refuses(files);
            let waiting = tx("finish", Some(5), None, None);
            files.snapshot(Moment::DrainSynced).escrows[1].pending.push(waiting);
            "escrow 12".to_owned()
        },
    },
];

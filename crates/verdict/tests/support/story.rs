//! The story: requests come one after another; every second goes to node-b first, where a seeded share is answered
//! 503 and then asked again at node-a-0 under the same nonce. Request 3 needs a second attempt on another host.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use evidence::EVIDENCE_VERSION;
use evidence::accounting::{AccountingRow, Attempt, JoinWay, JoinedCall, JoinedRequest};
use evidence::drain::{DrainPart, DrainSample, SIGNALS};
use evidence::event::{Event, EventKind, Phase};
use evidence::record::{AnswerFacts, ClientClass, RequestRecord, TokenSource, Tokens};
use evidence::run::{RunInfo, Stack};
use evidence::snapshot::{HostState, Moment, ProcessIdentity, Snapshot};
use scenario::control::{
    ChainStats, DapiCallRecord, DapiStats, Hit, NodeCall, NodeOutcome, NodeStats, OpenaiStats,
};
use scenario::draw::selected;
use scenario::fault::{CallKind, DapiCall, Select};
use scenario::model::{Node, Resolved, Scenario};
use scenario::plan::PlanLine;
use scenario::profile::Profile;
use serde_json::json;

use super::log::{SLOTS, Session, hosts, owner, validator};
use super::{Files, RUN_ID};

/// Salt of the run, in every marker.
pub const SALT: &str = "abcdefghijkl";
/// The rule of the story.
pub const RULE: &str = "node-b-503";
/// Escrows that share the load.
pub const ESCROWS: [&str; 2] = ["11", "12"];
/// Pool instances.
pub const NODES: [&str; 3] = ["node-a-0", "node-a-1", "node-b"];
/// Services that must stay up.
pub const SERVICES: [&str; 7] =
    ["mock-chain", "mock-dapi", "mock-openai", "host-0", "host-1", "host-2", "ref-gateway"];
/// The request that needs two attempts.
pub const TWO_ATTEMPTS: u64 = 3;

const SCENARIO: &str = "
version: 1
name: story
description: One node answers 503 to a seeded share of requests.
seed: 42
devshard: { participants: 3, slots: 3, escrows: 2 }
pool:
  - { name: node-a, profile: fast, count: 2 }
  - { name: node-b, profile: fast }
workload:
  stream_ratio: 0.5
  prompt: { input_tokens: 64 }
  max_tokens: 32
  steps: [ { concurrency: 4, requests: REQUESTS } ]
faults:
  - id: node-b-503
    where: { node: node-b }
    select: { fraction: 0.5 }
    do: { status: 503 }
    expect: [ { class: masked-fault, because: rotated-to-other-node } ]
thresholds: { error_rate: 0, ttft_p95: 20ms, latency_p99: 100ms }
validity: { schedule_lateness_p99: 50ms, loadgen_cpu_share: 0.8, mock_saturation: forbidden }
drain: { timeout: protocol, stable_samples: 3, interval: 500ms }
minimum: { fault_hits: 3, validations: 5 }
";

/// A good run of 24 requests.
pub fn good() -> Files {
    static GOOD: LazyLock<Files> = LazyLock::new(|| of(24));
    GOOD.clone()
}

/// A good run of any length.
pub fn of(requests: u64) -> Files {
    let resolved = resolved(requests);
    let plan: Vec<PlanLine> = scenario::plan::lines(&resolved).collect();
    let mut teller = Teller::new(resolved);
    ESCROWS.iter().for_each(|escrow| teller.canary(escrow));
    teller.snapshot(Moment::Before);
    plan.iter().for_each(|line| teller.request(line));
    teller.snapshot(Moment::DrainPassive);
    teller.sessions.iter_mut().for_each(Session::close);
    teller.snapshot(Moment::DrainSynced);
    teller.sessions.iter_mut().for_each(Session::close);
    teller.snapshot(Moment::DrainFinal);
    teller.end(plan)
}

pub(super) fn resolved(requests: u64) -> Resolved {
    let text = SCENARIO.replace("REQUESTS", &requests.to_string());
    let scenario: Scenario = serde_yaml::from_str(&text).expect("the scenario of the story");
    let behaviour: Profile = serde_yaml::from_str("{ttft: 20ms, token_interval: 1ms, workers: 8, queue: 32}")
        .expect("the profile of the story");
    let node = |name: &&str| Node {
        name: (*name).to_owned(),
        entry: name.trim_end_matches("-0").trim_end_matches("-1").to_owned(),
        profile: "fast".to_owned(),
        behaviour: behaviour.clone(),
        weight: 1,
    };
    let nodes = NODES.iter().map(node).collect();
    Resolved { scenario, nodes, requests_max: requests, plan_exact: true }
}

/// Collects what every part of the stack would have written down.
pub(super) struct Teller {
    resolved: Resolved,
    pub(super) sessions: Vec<Session>,
    pub(super) records: Vec<RequestRecord>,
    pub(super) joined: Vec<JoinedRequest>,
    pub(super) hits: Vec<Hit>,
    pub(super) calls: Vec<NodeCall>,
    pub(super) dapi: Vec<DapiCallRecord>,
    snapshots: BTreeMap<Moment, Snapshot>,
    races: u64,
    calls_made: u64,
    dapi_calls: u64,
    nodes: Vec<NodeStats>,
    allocator: DapiStats,
}

impl Teller {
    pub(super) fn new(resolved: Resolved) -> Self {
        Self {
            resolved,
            sessions: ESCROWS.map(Session::new).into(),
            records: Vec::new(),
            joined: Vec::new(),
            hits: Vec::new(),
            calls: Vec::new(),
            dapi: Vec::new(),
            snapshots: BTreeMap::new(),
            races: 0,
            calls_made: 0,
            dapi_calls: 0,
            nodes: NODES
                .iter()
                .map(|name| NodeStats {
                    name: (*name).to_owned(),
                    workers: 8,
                    queue: 32,
                    ..NodeStats::default()
                })
                .collect(),
            allocator: DapiStats { v: 1, ..DapiStats::default() },
        }
    }

    fn session(&mut self, escrow: &str) -> &mut Session {
        self.sessions.iter_mut().find(|session| session.escrow == escrow).expect("a known escrow")
    }

    /// A chat outside the plan: it has no marker.
    pub(super) fn canary(&mut self, escrow: &str) {
        let nonce = self.session(escrow).start(false);
        self.races += 1;
        self.call(None, "node-a-0", nonce, CallKind::Execution, None);
        self.call(None, "node-a-1", nonce, CallKind::Validation, None);
    }

    /// One planned request from plan line to accounting.
    pub(super) fn request(&mut self, line: &PlanLine) {
        let id = line.id.as_str();
        let escrow = ESCROWS[line.index as usize % ESCROWS.len()];
        let mut attempts = Vec::new();
        if line.index == TWO_ATTEMPTS {
            attempts.push(attempt(self.session(escrow).start(true), false));
        }
        let nonce = self.session(escrow).start(false);
        attempts.push(attempt(nonce, true));
        self.races += 1;
        let node = if line.index.is_multiple_of(2) { "node-b" } else { "node-a-1" };
        let hit = node == "node-b" && self.selects(id);
        let mut calls = vec![self.call(Some(id), node, nonce, CallKind::Execution, hit.then_some(RULE))];
        if hit {
            calls.push(self.call(Some(id), "node-a-0", nonce, CallKind::Execution, None));
        }
        self.call(Some(id), "node-a-1", nonce, CallKind::Validation, None);
        let rid = format!("rid-{}", line.index);
        self.records.push(record(line, &rid, (escrow, nonce)));
        self.joined.push(JoinedRequest {
            v: EVIDENCE_VERSION,
            index: line.index,
            id: id.to_owned(),
            accepted: true,
            cached: false,
            escrow: Some(escrow.to_owned()),
            inferences: attempts.iter().map(|a| (a.nonce, a.status.clone().expect("set above"))).collect(),
            accounting: Some(AccountingRow {
                request_id: rid,
                escrow: escrow.to_owned(),
                outcome: "success".to_owned(),
                decision: Some("winner".to_owned()),
                winner_nonce: Some(nonce),
                attempts,
                started_at: Some("2026-01-01T00:00:00Z".to_owned()),
                completed_at: Some("2026-01-01T00:00:01Z".to_owned()),
            }),
            calls,
            ways: vec![JoinWay::Marker, JoinWay::SeedNonce, JoinWay::DevshardId, JoinWay::ResponseRequestId],
            missing: Vec::new(),
        });
    }

    /// The same draw that a mock makes for itself.
    fn selects(&self, id: &str) -> bool {
        let rule = &self.resolved.scenario.faults[0];
        let Select::Fraction(fraction) = rule.select else { return false };
        selected(self.resolved.scenario.seed, &rule.id, "fault", id, fraction)
    }

    /// A call at a node with everything around it: acquire, start, hit, end, release.
    fn call(
        &mut self,
        id: Option<&str>,
        node: &str,
        nonce: u64,
        kind: CallKind,
        rule: Option<&str>,
    ) -> JoinedCall {
        self.calls_made += 1;
        let number = self.calls_made;
        let slot = if kind == CallKind::Execution { nonce % SLOTS } else { validator(nonce) };
        let (lock, host) = (format!("lock-{number}"), format!("host-{slot}"));
        self.allocator(DapiCall::Acquire, "granted", &host, &lock, node);
        let started_us = number * 1_000;
        let start = NodeCall {
            seq: number * 2 - 1,
            call: number,
            node: node.to_owned(),
            started_us,
            ended_us: None,
            first_content_us: None,
            request_id: id.map(str::to_owned),
            salt: id.map(|_| SALT.to_owned()),
            seed: Some(nonce),
            x_request_id: Some(format!("host-request-{number}")),
            lock: Some(lock.clone()),
            kind,
            attempt: 1,
            stream: true,
            status: None,
            outcome: NodeOutcome::Running,
            rule: None,
            content_events: 0,
        };
        let end = NodeCall {
            seq: start.seq + 1,
            ended_us: Some(started_us + 900),
            status: Some(if rule.is_some() { 503 } else { 200 }),
            outcome: if rule.is_some() { NodeOutcome::Faulted } else { NodeOutcome::Completed },
            rule: rule.map(str::to_owned),
            content_events: if rule.is_some() { 0 } else { 32 },
            ..start.clone()
        };
        if let Some(rule) = rule {
            self.hits.push(Hit {
                seq: self.hits.len() as u64 + 1,
                at_us: started_us + 1,
                place: node.to_owned(),
                rule: rule.to_owned(),
                action: "status".to_owned(),
                kind: Some(kind),
                request_id: id.map(str::to_owned),
                attempt: 1,
                call_seq: start.seq,
            });
        }
        self.count(&end);
        let joined = JoinedCall {
            call: number,
            node: node.to_owned(),
            nonce: Some(nonce),
            lock: Some(lock.clone()),
            host: Some(host.clone()),
            outcome: if rule.is_some() { "faulted" } else { "completed" }.to_owned(),
            status: end.status,
            rule: end.rule.clone(),
            started_us,
        };
        self.calls.extend([start, end]);
        self.allocator(DapiCall::Release, "released", &host, &lock, node);
        joined
    }

    fn allocator(&mut self, call: DapiCall, result: &str, host: &str, lock: &str, node: &str) {
        self.dapi_calls += 1;
        let seq = self.dapi_calls;
        match call {
            DapiCall::Acquire => self.allocator.acquisitions += 1,
            _ => self.allocator.releases += 1,
        }
        self.dapi.push(DapiCallRecord {
            seq,
            at_us: seq * 500,
            call,
            host: host.to_owned(),
            ordinal: seq.div_ceil(2),
            lock: Some(lock.to_owned()),
            node: Some(node.to_owned()),
            excluded: Vec::new(),
            result: result.to_owned(),
            outcome: (call == DapiCall::Release).then(|| "success".to_owned()),
            rule: None,
        });
    }

    /// What all parts show now.
    fn snapshot(&mut self, moment: Moment) {
        let snapshot = self.shown(moment, hosts(&self.sessions));
        self.snapshots.insert(moment, snapshot);
    }

    /// The same with these hosts.
    pub(super) fn shown(&self, moment: Moment, hosts: Vec<HostState>) -> Snapshot {
        let races = "devshard_gateway_requests_total{outcome=\"success\"}".to_owned();
        let host_metrics = |slot| {
            (format!("host-{slot}"), BTreeMap::from([("devshard_validation_queue_depth".to_owned(), 0.0)]))
        };
        Snapshot {
            escrows: self.sessions.iter().map(Session::gateway).collect(),
            hosts,
            processes: SERVICES.iter().zip(100..).map(|(service, pid)| process(service, pid)).collect(),
            gateway_metrics: BTreeMap::from([(races, self.races as f64)]),
            host_metrics: (0..SLOTS).map(host_metrics).collect(),
            openai: Some(OpenaiStats {
                v: 1,
                nodes: self.nodes.clone(),
                cpu_us: 1_000,
                loop_gap_max_us: Some(30_000),
            }),
            dapi: Some(self.allocator.clone()),
            chain: Some(ChainStats { v: 1, epoch: 1, ..ChainStats::default() }),
            ..Snapshot::blank(moment, 1_000_000 * (1 + moment as u64))
        }
    }

    fn count(&mut self, call: &NodeCall) {
        let node = self.nodes.iter_mut().find(|node| node.name == call.node).expect("a known node");
        let counters = match call.kind {
            CallKind::Execution => &mut node.execution,
            CallKind::Validation => &mut node.validation,
        };
        match call.outcome {
            NodeOutcome::Faulted => *counters.failed.entry("status".to_owned()).or_default() += 1,
            _ => counters.completed += 1,
        }
    }

    pub(super) fn end(self, plan: Vec<PlanLine>) -> Files {
        let requests = plan.len() as u64;
        Files {
            run: run_info(self.resolved),
            plan,
            records: self.records,
            joined: self.joined,
            hits: self.hits,
            calls: self.calls,
            dapi: self.dapi,
            events: events(requests),
            drain: drain(),
            snapshots: self.snapshots,
            leases: Vec::new(),
            applied: json!({"mock-openai": {"hash": "h", "answered": "h", "read_back": "h"}}),
        }
    }
}

fn attempt(nonce: u64, winner: bool) -> Attempt {
    Attempt {
        nonce,
        host_idx: (nonce % SLOTS) as u32,
        participant: Some(owner(nonce % SLOTS)),
        winner,
        status: Some(if winner { "finished" } else { "timed_out" }.to_owned()),
    }
}

/// What loadgen writes about an answer that was good: 20 ms to the first content, 100 ms in all.
fn record(line: &PlanLine, rid: &str, (escrow, nonce): (&str, u64)) -> RequestRecord {
    let planned = line.index * 1_000;
    let answer = AnswerFacts {
        ending: line.stream.then(|| "done".to_owned()),
        events: if line.stream { 34 } else { 0 },
        content_events: if line.stream { 32 } else { 0 },
        done_count: u64::from(line.stream),
        finish_reasons: BTreeMap::from([(0, "stop".to_owned())]),
        choices: 1,
        json_object: (!line.stream).then_some(true),
        body_complete: true,
        content_chars: 128,
        ..AnswerFacts::default()
    };
    RequestRecord {
        step: Some(0),
        planned_us: Some(planned),
        released_us: Some(planned),
        sent_us: Some(planned + 50),
        headers_us: Some(planned + 19_000),
        first_byte_us: Some(planned + 19_500),
        first_event_us: line.stream.then_some(planned + 19_500),
        first_content_us: Some(planned + 20_000),
        last_content_us: Some(planned + 99_000),
        end_us: Some(planned + 100_000),
        status: Some(200),
        content_type: Some(if line.stream { "text/event-stream" } else { "application/json" }.to_owned()),
        response_request_id: Some(rid.to_owned()),
        response_devshard_id: Some(escrow.to_owned()),
        response_body_id: Some(format!("devshard-{escrow}-{nonce}")),
        answer: Some(answer),
        tokens: Some(Tokens { prompt: Some(64), completion: 32, source: TokenSource::Usage }),
        bytes_out: 400,
        bytes_in: 4_000,
        client_class: ClientClass::Ok,
        ..RequestRecord::blank(line.index, line.id.clone(), line.stream)
    }
}

fn process(service: &str, pid: u32) -> ProcessIdentity {
    ProcessIdentity {
        service: service.to_owned(),
        pid,
        start_ticks: u64::from(pid) * 10,
        metric_start: Some(format!("{pid}.5")),
        ready: true,
    }
}

fn run_info(resolved: Resolved) -> RunInfo {
    RunInfo {
        v: EVIDENCE_VERSION,
        run_id: RUN_ID.to_owned(),
        build: "story".to_owned(),
        started_unix_us: 1_767_225_600_000_000,
        scenario_file: "scenarios/story.yaml".to_owned(),
        scenario_file_blake3: "00".to_owned(),
        plan_hash: "plan".to_owned(),
        scenario_hash: "scenario".to_owned(),
        salt: SALT.to_owned(),
        resolved,
        stack: Stack {
            provider: "embedded".to_owned(),
            devshard: "reference".to_owned(),
            personality: Some("intended".to_owned()),
            defect: None,
            storage: "sqlite".to_owned(),
            isolation: "loopback".to_owned(),
            hosts_by: None,
        },
        programs: BTreeMap::new(),
        limits: Vec::new(),
        rules_off: Vec::new(),
        repro_of: None,
        machine: BTreeMap::new(),
    }
}

/// The stream of the dispatcher from start to teardown.
pub(super) fn events(requests: u64) -> Vec<Event> {
    let mut kinds = vec![phase(Phase::Prepare), phase(Phase::Start)];
    kinds.extend(SERVICES.iter().zip(100..).map(|(service, pid)| EventKind::ProcessReady {
        service: (*service).to_owned(),
        pid,
        start_ticks: u64::from(pid) * 10,
        addresses: BTreeMap::new(),
        build: "story".to_owned(),
    }));
    kinds.extend([phase(Phase::Faults), phase(Phase::Before), phase(Phase::Load)]);
    let health = json!({"cpu_us": 100_000, "wall_us": 1_000_000, "lateness_p50_us": 40, "lateness_p99_us": 60,
        "lateness_max_us": 90, "rss_bytes": 9_000_000, "open_fds": 40, "ports_exhausted": 0, "fds_exhausted": 0,
        "stalled_us": 1_000});
    kinds.extend([
        EventKind::StepStarted { step: 0, concurrency: 4 },
        EventKind::StepEnded {
            step: 0,
            started_us: 0,
            ended_us: requests * 1_000 + 100_000,
            released: requests,
            in_flight_min: 3,
            in_flight_max: 4,
        },
        EventKind::LoadEnded { records: requests, records_dropped: 0, partial: false, health },
        exited("loadgen", false),
        phase(Phase::Drain),
    ]);
    for what in ["sync", "finalize"] {
        kinds.extend(ESCROWS.iter().map(|escrow| EventKind::DrainStep {
            what: what.to_owned(),
            escrow: (*escrow).to_owned(),
            status: Some(200),
            detail: None,
        }));
    }
    kinds.extend([phase(Phase::Collect), phase(Phase::Judge), phase(Phase::Teardown)]);
    kinds.extend(SERVICES.iter().map(|service| exited(service, true)));
    let event = |(event, seq): (EventKind, u64)| Event {
        v: EVIDENCE_VERSION,
        seq,
        at_us: seq * 10_000,
        unix_us: 0,
        event,
    };
    kinds.into_iter().zip(1..).map(event).collect()
}

fn phase(phase: Phase) -> EventKind {
    EventKind::PhaseStarted { phase }
}

fn exited(service: &str, planned: bool) -> EventKind {
    EventKind::ProcessExited { service: service.to_owned(), pid: 1, code: Some(0), signal: None, planned }
}

/// The passive wait: one busy sample, then zero three times.
fn drain() -> Vec<DrainSample> {
    let sample = |number: u64| DrainSample {
        v: EVIDENCE_VERSION,
        at_us: 2_000_000 + number * 500_000,
        part: DrainPart::Passive,
        signals: SIGNALS
            .iter()
            .map(|signal| (signal.name.to_owned(), Some(if number == 0 { 1.0 } else { 0.0 })))
            .collect(),
        stable: number as u32,
        ended: (number == 3).then(|| "stable".to_owned()),
        deadline_us: Some(60_000_000),
        step: None,
    };
    (0..4).map(sample).collect()
}

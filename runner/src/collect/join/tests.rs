use std::path::PathBuf;

use evidence::record::RequestRecord;
use evidence::rundir::{ACCOUNTING, DAPI_CALLS, LOGS, NODE_CALLS, REQUESTS, RunDir, RunReader};
use scenario::control::{DapiCallRecord, NodeOutcome};
use scenario::fault::{CallKind, DapiCall};
use scenario::identity::RequestId;

use super::part::{gateway_nonce, host_terminal};
use super::*;
use crate::collect::Escrows;
use crate::collect::ask::Ask;

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

/// A run directory that is read in parts of a length.
struct Stored {
    _base: tempfile::TempDir,
    dir: RunDir,
}

impl Stored {
    fn new(records: &[RequestRecord], calls: &[NodeCall]) -> Self {
        let base = tempfile::tempdir().unwrap();
        let dir = RunDir::create(base.path(), "r").unwrap();
        let mut out = dir.append(REQUESTS).unwrap();
        records.iter().for_each(|record| out.write(record).unwrap());
        let mut out = dir.append(NODE_CALLS).unwrap();
        for call in calls {
            // A call is written when it begins and when it ends.
            out.write(&NodeCall { ended_us: None, ..call.clone() }).unwrap();
            out.write(call).unwrap();
        }
        Self { _base: base, dir }
    }

    fn log(&self, name: &str, lines: &str) {
        std::fs::create_dir_all(self.dir.path(LOGS)).unwrap();
        std::fs::write(self.dir.path(&format!("{LOGS}/{name}.log")), lines).unwrap();
    }

    fn source(&self, duplicates: &[(u64, u64)], perf_db: Option<PathBuf>, part_len: u64) -> Source {
        let duplicates = duplicates.iter().copied().collect();
        Source::of(&self.dir, "salt".to_owned(), duplicates, perf_db, part_len)
    }

    /// Everything as one part, and what the gateway's own records have for it.
    fn found(&self, source: &Source) -> (Part, Vec<Found>, Recorded) {
        let parts = source.parts();
        assert_eq!(parts.len(), 1);
        let part = source.read(&parts[0]);
        let found = walk(&part, source);
        let recorded = source.recorded(&found.iter().flat_map(Found::places).collect());
        (part, found, recorded)
    }
}

fn answered(index: u64) -> RequestRecord {
    let mut record = RequestRecord::blank(index, RequestId::new("s", 1, index), false);
    record.status = Some(200);
    record.response_devshard_id = Some("3".to_owned());
    record.response_request_id = Some(format!("req-{index}"));
    record
}

#[test]
fn a_request_without_an_answer_is_joined_by_logs() {
    let record = RequestRecord::blank(0, RequestId::new("s", 1, 0), true);
    let calls = [call("s-1-000000", "node-a", 7, "salt"), call("s-1-000000", "node-b", 9, "other run")];
    let stored = Stored::new(&[record], &calls);
    stored.log("gateway", "x request=req-g stage=prepared escrow=3 nonce=7 host=1\n");
    stored.log(
        "host-1",
        "t stage=terminal where=request.terminal escrow_id=3 inference_id=7 request_id=req-7\n",
    );
    let (_, mut found, recorded) = stored.found(&stored.source(&[], None, 10));
    name(&mut found[0], &recorded);
    assert_eq!(found[0].lookup(), Some(("3".to_owned(), "req-g".to_owned())));
    assert_eq!(found[0].joined.calls.len(), 1, "another salt is another run");
    assert!(found[0].joined.accepted && found[0].joined.missing.is_empty());
    assert!(found[0].joined.ways.contains(&JoinWay::HostLog));
    assert!(found[0].joined.ways.contains(&JoinWay::GatewayLog));
}

#[test]
fn the_perf_database_names_what_the_log_has_lost() {
    let stored = Stored::new(&[answered(0)], &[call("s-1-000000", "node-a", 7, "salt")]);
    let path = stored.dir.path("perf.db");
    let database = rusqlite::Connection::open(&path).unwrap();
    let table = "CREATE TABLE request_accounting_attempts (request_id TEXT, escrow_id TEXT, nonce INTEGER);
        INSERT INTO request_accounting_attempts VALUES ('req-b', '3', 7), ('req-x', '4', 7);";
    database.execute_batch(table).unwrap();
    let source = stored.source(&[], Some(path), 10);
    let (_, found, recorded) = stored.found(&source);
    assert_eq!(found[0].recorded(&recorded), Some(("req-b".to_owned(), JoinWay::PerfDatabase)));
    assert_eq!(
        recorded.perf.len(),
        1,
        "a nonce is unique only within its escrow, and only this one is wanted"
    );
    stored.log("gateway", "x request=req-c stage=prepared escrow=3 nonce=7 host=1\n");
    let (_, found, recorded) = stored.found(&source);
    assert_eq!(found[0].recorded(&recorded), Some(("req-c".to_owned(), JoinWay::GatewayLog)));
}

#[test]
fn calls_of_a_repeated_body_go_to_the_row_that_names_their_nonce() {
    let calls = [call("s-1-000000", "node-a", 7, "salt"), call("s-1-000000", "node-a", 9, "salt")];
    let stored = Stored::new(&[answered(0), answered(1)], &calls);
    let source = stored.source(&[(1, 0)], None, 1);
    assert_eq!(source.parts().len(), 3, "those that share calls are one part");
    let part = source.read(&source.parts()[0]);
    let row = |nonce| {
        let attempt = Attempt { nonce, winner: true, ..Attempt::default() };
        Ok(AccountingRow { escrow: "3".to_owned(), attempts: vec![attempt], ..AccountingRow::default() })
    };
    let mut found = walk(&part, &source);
    assert_eq!(found[0].joined.calls.len(), 2, "both carry the marker of the first");
    repeated(&mut found, &HashMap::from([(0, row(7)), (1, row(9))]), &part, &source);
    let nonces = |at: usize| found[at].joined.calls.iter().map(|call| call.nonce).collect::<Vec<_>>();
    assert_eq!((nonces(0), nonces(1)), (vec![Some(7)], vec![Some(9)]));
    // A cache hit has a row without attempts: nothing moves.
    let mut found = walk(&part, &source);
    let cached = Ok(AccountingRow { outcome: "cached".to_owned(), ..AccountingRow::default() });
    repeated(&mut found, &HashMap::from([(0, row(7)), (1, cached)]), &part, &source);
    assert_eq!(found[0].joined.calls.len(), 2);
}

#[test]
fn a_pre_check_is_not_accepted() {
    let mut client = Client { status: Some(429), ..Client::default() };
    assert!(!accepted(&client, false));
    client.status = Some(502);
    assert!(!accepted(&client, false), "no escrow named");
    client.response_devshard_id = Some("1".to_owned());
    assert!(accepted(&client, false));
}

#[test]
fn log_lines_are_read_word_by_word() {
    assert_eq!(
        gateway_nonce("x request=req-g escrow=\"3\" nonce=7"),
        Some((("3".to_owned(), 7), "req-g".to_owned()))
    );
    assert_eq!(gateway_nonce("x request=req-g nonce=7"), None);
    assert_eq!(host_terminal("stage=begun escrow_id=3 inference_id=7 request_id=r"), None);
}

/// Joins a run of so many requests, of which every tenth was not answered, in parts of ten; gives what was held.
async fn held(requests: u64) -> (usize, Vec<JoinedRequest>) {
    let record = |index| {
        if index % 10 == 3 {
            RequestRecord::blank(index, RequestId::new("s", 1, index), false)
        } else {
            answered(index)
        }
    };
    // They end in another order than that of the plan.
    let records: Vec<RequestRecord> = (0..requests).rev().map(record).collect();
    let calls: Vec<NodeCall> =
        (0..requests).map(|index| call(&format!("s-1-{index:06}"), "node-a", index + 1, "salt")).collect();
    let stored = Stored::new(&records, &calls);
    let mut out = stored.dir.append(DAPI_CALLS).unwrap();
    for call in &calls {
        out.write(&grant(call)).unwrap();
    }
    let terminal = |call: &NodeCall| {
        let (id, nonce) = (call.x_request_id.as_deref().unwrap(), call.call);
        format!("t stage=terminal escrow_id=3 inference_id={nonce} request_id={id}\n")
    };
    stored.log("host-0", &calls.iter().map(terminal).collect::<String>());
    let attempt = |call: &NodeCall| format!("x request=g-{} escrow=3 nonce={}\n", call.call, call.call);
    stored.log("gateway", &calls.iter().map(attempt).collect::<String>());
    // Nobody answers there: every row stays unread, and the gateway's own records are asked for all of them.
    let surfaces = Surfaces {
        ask: Ask::new().unwrap(),
        gateway: "http://127.0.0.1:9".to_owned(),
        admin_key: String::new(),
        hosts: Vec::new(),
        session_prefix: String::new(),
        escrows: Escrows::first(1),
        requests_max: requests,
        perf_db: None,
    };
    let mut out = stored.dir.append(ACCOUNTING).unwrap();
    let held = join(&surfaces, &stored.source(&[], None, 10), &mut out).await.unwrap();
    let lines = RunReader::new(stored.dir.root()).lines::<JoinedRequest>(ACCOUNTING).unwrap();
    (held, lines.map(Result::unwrap).collect())
}

fn grant(call: &NodeCall) -> DapiCallRecord {
    DapiCallRecord {
        seq: call.call,
        call: DapiCall::Acquire,
        host: "host-2".to_owned(),
        lock: call.lock.clone(),
        at_us: 0,
        ordinal: call.call,
        node: Some(call.node.clone()),
        excluded: Vec::new(),
        result: "granted".to_owned(),
        outcome: None,
        rule: None,
    }
}

#[tokio::test]
async fn what_is_held_follows_the_part_and_not_the_run() {
    let (short, _) = held(20).await;
    let (long, lines) = held(400).await;
    assert_eq!(short, long, "twenty times as many requests");
    assert!(lines.iter().map(|line| line.index).eq(0..400), "every request, in order");
    assert!(lines.iter().all(|line| line.accepted && line.escrow.as_deref() == Some("3")));
    assert!(
        lines.iter().all(|line| line.calls.len() == 1 && line.calls[0].host.as_deref() == Some("host-2"))
    );
}

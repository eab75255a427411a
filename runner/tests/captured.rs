//! What the July build answered, fed to our collectors: they must give the records that the captures say (fixtures
//! real-july; rows and reads lie with the reference Devshard, which is held against the same captures).

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::{BTreeMap, HashMap};

use evidence::accounting::{JoinWay, JoinedRequest};
use evidence::record::RequestRecord;
use evidence::rundir::{ACCOUNTING, LOGS, NODE_CALLS, REQUESTS, RunDir, RunReader};
use evidence::sessions::SessionLog;
use evidence::snapshot::{Moment, Snapshot};
use runner::collect::ask::Ask;
use runner::collect::join::{PART_LEN, Source, join};
use runner::collect::{Escrows, HostSurface, Surfaces, gateway, host, metrics};
use scenario::control::{NodeCall, NodeOutcome};
use scenario::fault::CallKind;
use scenario::identity::RequestId;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

fn fixture(path: &str) -> Value {
    let path = format!("{}/{path}", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn lines(value: &Value) -> String {
    value.as_array().unwrap().iter().map(|line| format!("{}\n", line.as_str().unwrap())).collect()
}

/// A server that answers what it was given by path, and 404 for the rest, as the captured gateway does.
async fn serve(answers: BTreeMap<String, String>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let answers = answers.clone();
            tokio::spawn(async move { drop(answer(stream, &answers).await) });
        }
    });
    address
}

async fn answer(mut stream: TcpStream, answers: &BTreeMap<String, String>) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    let head = String::from_utf8_lossy(&head);
    let path = head.split(' ').nth(1).unwrap_or_default();
    let (status, body) = match answers.get(path) {
        Some(body) => ("200 OK", body.clone()),
        None => ("404 Not Found", json!({"error": {"message": "request not found"}}).to_string()),
    };
    let length = body.len();
    let text = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}");
    stream.write_all(text.as_bytes()).await
}

fn surfaces(address: &str) -> Surfaces {
    Surfaces {
        ask: Ask::new().unwrap(),
        gateway: address.to_owned(),
        admin_key: "key".to_owned(),
        hosts: Vec::new(),
        session_prefix: String::new(),
        escrows: Escrows::first(1),
        requests_max: 100,
        perf_db: None,
    }
}

fn call(id: &RequestId, nonce: u64) -> NodeCall {
    NodeCall {
        seq: 1,
        call: 1,
        node: "node-a".to_owned(),
        started_us: 1,
        ended_us: Some(2),
        first_content_us: None,
        request_id: Some(id.as_str().to_owned()),
        salt: Some("salt".to_owned()),
        seed: Some(nonce),
        x_request_id: None,
        lock: None,
        kind: CallKind::Execution,
        attempt: 1,
        stream: false,
        status: Some(200),
        outcome: NodeOutcome::Completed,
        rule: None,
        content_events: 1,
    }
}

/// A client whose answer named an id that accounting does not know.
fn client(id: &RequestId, index: u64, escrow: &str) -> RequestRecord {
    let mut record = RequestRecord::blank(index, id.clone(), false);
    record.status = Some(200);
    record.response_devshard_id = Some(escrow.to_owned());
    record.response_request_id = Some("req-of-the-answer".to_owned());
    record
}

/// What the join makes of a run with these records, calls, and logs of gateway and host.
async fn joined(
    address: &str,
    records: &[RequestRecord],
    calls: &[NodeCall],
    [gateway, host]: [&str; 2],
) -> Vec<JoinedRequest> {
    let work = tempfile::tempdir().unwrap();
    let dir = RunDir::create(work.path(), "run").unwrap();
    let mut out = dir.append(REQUESTS).unwrap();
    records.iter().for_each(|record| out.write(record).unwrap());
    let mut out = dir.append(NODE_CALLS).unwrap();
    calls.iter().for_each(|call| out.write(call).unwrap());
    std::fs::create_dir_all(dir.path(LOGS)).unwrap();
    for (name, text) in [("gateway", gateway), ("host-0", host)] {
        std::fs::write(dir.path(&format!("{LOGS}/{name}.log")), text).unwrap();
    }
    let source = Source::of(&dir, "salt".to_owned(), HashMap::new(), None, PART_LEN);
    let mut out = dir.append(ACCOUNTING).unwrap();
    join(&surfaces(address), &source, &mut out).await.unwrap();
    RunReader::new(dir.root()).lines(ACCOUNTING).unwrap().map(Result::unwrap).collect()
}

#[tokio::test]
async fn every_captured_accounting_row_is_found_and_read() {
    let cases = fixture("../refshard/tests/fixtures/cases.json");
    let mut answers = BTreeMap::new();
    let (mut records, mut calls, mut gateway_log) = (Vec::new(), Vec::new(), String::new());
    let mut rows = Vec::new();
    for (case, capture) in cases.as_object().unwrap() {
        let row = &capture["after"]["row"];
        let (Some(request), Some(attempt)) = (row["request_id"].as_str(), row["attempts"].get(0)) else {
            continue;
        };
        // Escrow ids of the captures repeat: each row gets an escrow of its own here.
        let (index, escrow) = (rows.len() as u64, format!("9{}", rows.len()));
        let id = RequestId::new("captured", 42, index);
        let nonce = attempt["nonce"].as_u64().unwrap();
        answers.insert(format!("/devshard/{escrow}/v1/requests/{request}"), row.to_string());
        records.push(client(&id, index, &escrow));
        calls.push(call(&id, nonce));
        gateway_log.push_str(&format!("request={request} stage=prepared escrow={escrow} nonce={nonce}\n"));
        rows.push((case.clone(), row.clone()));
    }
    assert!(rows.len() > 60, "{} captured rows", rows.len());
    let address = serve(answers).await;
    let joined = joined(&address, &records, &calls, [&gateway_log, ""]).await;
    assert_eq!(joined.len(), rows.len());
    for ((case, row), joined) in rows.iter().zip(&joined) {
        let read = joined.accounting.as_ref().unwrap_or_else(|| panic!("{case}: {:?}", joined.missing));
        assert!(joined.ways.contains(&JoinWay::GatewayLog), "{case}");
        assert_eq!(row["outcome"], json!(read.outcome), "{case}");
        assert_eq!(row["outcome"], cases[case]["after"]["outcomes"][0], "{case}");
        assert_eq!(row["request_id"], json!(read.request_id), "{case}");
        assert_eq!(row["decision"].as_str(), read.decision.as_deref(), "{case}");
        assert_eq!(row["completed_at"].as_str(), read.completed_at.as_deref(), "{case}");
        assert_eq!(row["winner_nonce"].as_u64().filter(|nonce| *nonce > 0), read.winner_nonce, "{case}");
        let attempts = row["attempts"].as_array().unwrap();
        assert_eq!(attempts.len(), read.attempts.len(), "{case}");
        for (captured, read) in attempts.iter().zip(&read.attempts) {
            assert_eq!(captured["nonce"], json!(read.nonce), "{case}");
            assert_eq!(captured["host_idx"], json!(read.host_idx), "{case}");
            assert_eq!(captured["participant_key"].as_str(), read.participant.as_deref(), "{case}");
            assert_eq!(captured["winner"], json!(read.winner), "{case}");
            assert_eq!(captured["status"].as_str(), read.status.as_deref(), "{case}");
        }
    }
}

#[tokio::test]
async fn captured_log_lines_lead_from_the_node_to_the_row() {
    let july = fixture("tests/fixtures/real-july.json");
    let row = fixture("../refshard/tests/fixtures/cases.json")["ok-stream"]["after"]["row"].clone();
    let request = "req-1795990531592089476-88";
    assert_eq!(row["request_id"], request);
    let id = RequestId::new("captured", 42, 0);
    // The client left before any header: host log, then gateway log, are the only way.
    let record = RequestRecord::blank(0, id.clone(), true);
    let mut call = call(&id, 10);
    call.x_request_id = Some("req-1795990531593451459-10".to_owned());
    let logs = [lines(&july["gateway_log"]), lines(&july["host_log"])];
    let path = format!("/devshard/1/v1/requests/{request}");
    let address = serve(BTreeMap::from([(path, row.to_string())])).await;
    let mut joined = joined(&address, &[record], &[call], [&logs[0], &logs[1]]).await;
    let joined = joined.remove(0);
    assert_eq!(joined.escrow.as_deref(), Some("1"));
    assert_eq!(joined.accounting.unwrap().outcome, "success");
    assert!(joined.ways.contains(&JoinWay::HostLog) && joined.ways.contains(&JoinWay::GatewayLog));
}

/// The truncated answer of the capture and its replay: accounting denies both ids, the log joins the first by its nonce
/// and calls the second a hit (fixture cache-partial-replayed).
#[tokio::test]
async fn a_captured_cache_hit_is_joined_by_the_gateways_log() {
    let july = fixture("tests/fixtures/real-july.json");
    let row =
        fixture("../refshard/tests/fixtures/cases.json")["cache-partial-replayed"]["after"]["row"].clone();
    let race = row["request_id"].as_str().unwrap();
    let nonce = row["attempts"][0]["nonce"].as_u64().unwrap();
    let address = serve(BTreeMap::from([(format!("/devshard/1/v1/requests/{race}"), row.to_string())])).await;
    let ids = [0, 1].map(|index| RequestId::new("captured", 42, index));
    let mut records = [0, 1].map(|index| client(&ids[index as usize], index, "1"));
    records[0].response_request_id = Some("req-1795990634937181315-528".to_owned());
    records[1].response_request_id = Some("req-1795990634960751509-531".to_owned());
    let log = format!(
        "{}request={race} stage=prepared escrow=1 nonce={nonce}\n",
        lines(&july["gateway_cache_log"])
    );
    let joined = joined(&address, &records, &[call(&ids[0], nonce)], [&log, ""]).await;
    assert!(!joined[0].cached && joined[0].accounting.is_some(), "{:?}", joined[0].missing);
    assert!(joined[1].cached && joined[1].accounting.is_none(), "{:?}", joined[1].missing);
    assert!(joined[1].ways.contains(&JoinWay::CacheRecord) && joined[1].missing[0].contains("404"));
}

#[tokio::test]
async fn captured_reads_of_a_gateway_become_an_escrow() {
    let reads = fixture("../refshard/tests/fixtures/reads.json");
    let names = [
        ("status", "status"),
        ("state", "state"),
        ("pending", "debug/pending"),
        ("inferences", "debug/inferences"),
        ("signatures", "debug/signatures"),
    ];
    let answers =
        names.map(|(name, path)| (format!("/devshard/1/v1/{path}"), reads[name].to_string())).into_iter();
    let address = serve(answers.collect()).await;
    let mut missing = Vec::new();
    let (escrow, raw) = gateway::escrow(&surfaces(&address), "1", &mut missing).await;
    assert!(missing.is_empty(), "{missing:?}");
    assert_eq!(raw.as_object().unwrap().len(), names.len());
    assert_eq!((escrow.nonce, escrow.phase.as_str(), escrow.balance), (162, "active", Some(999_603_700)));
    assert_eq!((escrow.refusal_timeout_s, escrow.execution_timeout_s), (Some(60), Some(1_200)));
    assert_eq!(escrow.group, ["gonka1reya3555qcwe8l6aqqzqxdxaazpcrfhlkgcwdy"]);
    let pending: Vec<_> = escrow.pending.iter().map(|tx| (tx.kind.as_str(), tx.inference)).collect();
    assert_eq!(pending, [("confirm_start", Some(10)), ("finish", Some(10))]);
    assert_eq!(escrow.highest_quorum_nonce, Some(162));
    let first = &escrow.inferences[&1];
    assert_eq!((first.status.as_str(), first.actual_cost, first.executor_slot), ("finished", 1_300, 0));
    assert_eq!((first.input_length, first.started_at), (172, 1_795_990_444));
    assert!(first.response_hash.as_deref().unwrap().starts_with("7eed22e7"));
}

#[tokio::test]
async fn captured_diffs_and_mempools_of_a_host_are_decoded() {
    let july = fixture("tests/fixtures/real-july.json");
    let answers = BTreeMap::from([
        // One page is asked for, beyond the nonce of the gateway: what a host has more is for the verdict.
        ("/sessions/1/diffs?from=1&to=500".to_owned(), july["diffs"].to_string()),
        ("/sessions/1/mempool".to_owned(), july["mempool"].to_string()),
    ]);
    let address = serve(answers).await;
    let work = tempfile::tempdir().unwrap();
    let dir = RunDir::create(work.path(), "run").unwrap();
    let mut sessions = SessionLog::open(&dir).unwrap();
    let surface = HostSurface {
        service: "host-0".to_owned(),
        base: address.clone(),
        participant: "gonka1reya3555qcwe8l6aqqzqxdxaazpcrfhlkgcwdy".to_owned(),
    };
    let mut missing = Vec::new();
    let escrows = [("1".to_owned(), Some(3)), ("2".to_owned(), Some(0))];
    let state =
        host::state(&surfaces(&address), &surface, &escrows, &mut sessions, &mut missing).await.unwrap();
    assert!(missing.is_empty(), "{missing:?}");
    // Escrow 2 stands at nonce 0: asking for it would create it.
    let [escrow] = state.escrows.as_slice() else { panic!("{:?}", state.escrows) };
    let waiting: Vec<_> =
        escrow.mempool.iter().map(|tx| (tx.kind.as_str(), tx.inference, tx.slot, tx.valid)).collect();
    let expected = [
        ("validation", Some(3), Some(2), Some(true)),
        ("confirm_start", Some(11), None, None),
        ("finish", Some(11), Some(2), None),
    ];
    assert_eq!(waiting, expected);
    sessions.store(&mut Snapshot::blank(Moment::Before, 0)).unwrap();
    let text = std::fs::read_to_string(dir.path(evidence::rundir::DIFFS)).unwrap();
    let kinds: Vec<(u64, Vec<String>)> = text
        .lines()
        .map(|line| {
            let line: Value = serde_json::from_str(line).unwrap();
            let txs = line["diff"]["txs"].as_array().unwrap().iter();
            let kinds = txs.map(|tx| tx["kind"].as_str().unwrap().to_owned()).collect();
            (line["diff"]["nonce"].as_u64().unwrap(), kinds)
        })
        .collect();
    let of = |kinds: &[&str]| kinds.iter().map(|kind| (*kind).to_owned()).collect::<Vec<_>>();
    assert_eq!(kinds, [(1, of(&["start"])), (2, of(&["confirm_start", "finish"])), (3, of(&["start"]))]);
}

#[test]
fn captured_metrics_give_the_counted_sums() {
    let july = fixture("tests/fixtures/real-july.json");
    let gateway = metrics::series(&lines(&july["gateway_metrics"])).unwrap();
    let sum = |series, metric, labels: &[&str]| metrics::sum(series, metric, labels);
    let close = |left: f64, right: f64| (left - right).abs() < f64::EPSILON;
    assert!(close(sum(&gateway, "devshard_gateway_requests_total", &["outcome=\"success\""]), 129.0));
    assert!(close(sum(&gateway, "devshard_gateway_requests_total", &[]), 131.0));
    let open = sum(&gateway, "devshard_gateway_attempts_started_total", &[])
        - sum(&gateway, "devshard_gateway_attempts_terminal_total", &[]);
    assert!(close(open, 0.0));
    let host = metrics::series(&lines(&july["host_metrics"])).unwrap();
    assert!(close(sum(&host, "devshard_mlnode_attempts_total", &["path=\"execute\""]), 129.0));
    assert!(close(sum(&host, "devshard_request_terminal_total", &["reason=\"ok\""]), 129.0));
}

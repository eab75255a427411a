//! Cancel points as the server sees them: where the client left, and by FIN or RST.

#![expect(clippy::unwrap_used, reason = "a test that can't go on must stop")]

mod common;

use std::io::{Read as _, Write as _};
use std::sync::Mutex;
use std::sync::mpsc;
use std::time::Duration;

use common::{JSON_BODY, SSE_BODY, SSE_HEAD, Server, chunk, good_answer, json_answer, line, run_lines};
use evidence::record::{ClientClass, RequestRecord};
use loadgen::connection::Connection;
use loadgen::engine::KeepAlive;
use scenario::fault::Close;
use scenario::model::CancelPhase;
use scenario::pipe::LoadLimits;
use scenario::plan::CancelPoint;
use scenario::units::Micros;

const LIMIT: Micros = Micros::from_s(60);
/// Longer than any client needs to leave, on a machine however busy.
const PATIENCE: Duration = Duration::from_secs(60);

fn exchange(server: &Server, stream: bool, point: CancelPoint) -> RequestRecord {
    let limits = LoadLimits {
        connect: LIMIT,
        headers: LIMIT,
        first_byte: LIMIT,
        idle: LIMIT,
        total: LIMIT,
        drain: LIMIT,
    };
    let mut line = line(0, stream);
    line.cancel = Some(point);
    let body = scenario::prompt::body(&line, "abcdefghijkl", "m");
    *run_lines(&server.url(), vec![(line, body)], limits, KeepAlive::Reuse).remove(0).record
}

fn point(phase: CancelPhase, event: u64, after_ms: u64, close: Close) -> CancelPoint {
    CancelPoint { phase, event, after: Micros::from_ms(after_ms), close }
}

/// A server that sends the pieces with a pause between them, then reports how the client closed. Where the client is
/// to leave it waits for as long as that takes.
fn slow_server(pieces: Vec<String>, leaves_after: usize) -> (Server, mpsc::Receiver<(usize, &'static str)>) {
    let (report, reports) = mpsc::channel();
    let report = Mutex::new(report);
    let server = Server::start(move |peer| {
        peer.request();
        let mut sent = 0;
        for piece in &pieces {
            // The client's close is seen in the pause before the next piece.
            let pause = if sent == leaves_after { PATIENCE } else { Duration::from_millis(30) };
            let how = peer.how_closed(pause);
            if how != "open" {
                let _ = report.lock().unwrap().send((sent, how));
                return;
            }
            peer.send(piece);
            sent += 1;
        }
        let how = peer.how_closed(PATIENCE);
        let _ = report.lock().unwrap().send((sent, how));
    });
    (server, reports)
}

fn stream_pieces() -> Vec<String> {
    let events = SSE_BODY.split_inclusive("\n\n").map(chunk);
    [SSE_HEAD.to_owned(), chunk("data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\"}}]}\n\n")]
        .into_iter()
        .chain(events)
        .chain(["0\r\n\r\n".to_owned()])
        .collect()
}

fn json_pieces() -> Vec<String> {
    let answer = json_answer(JSON_BODY);
    let body = answer.len() - JSON_BODY.len();
    vec![answer[..body].to_owned(), answer[body..body + 10].to_owned(), answer[body + 10..].to_owned()]
}

#[test]
fn the_server_sees_where_and_how_a_client_leaves() {
    // Pieces of the stream: 1 = head, 2 = role event, 3 = first content, 4 = second content.
    for (phase, event, stream, pieces) in [
        (CancelPhase::BeforeHeaders, 0, true, 0),
        (CancelPhase::AfterHeaders, 0, true, 1),
        (CancelPhase::NthEvent, 1, true, 2),
        (CancelPhase::FirstContent, 0, true, 3),
        (CancelPhase::NthEvent, 3, true, 4),
        (CancelPhase::BeforeHeaders, 0, false, 0),
        (CancelPhase::AfterHeaders, 0, false, 1),
        (CancelPhase::FirstContent, 0, false, 2),
    ] {
        for (close, word) in [(Close::Fin, "fin"), (Close::Rst, "rst"), (Close::Clean, "fin")] {
            let (server, reports) = slow_server(if stream { stream_pieces() } else { json_pieces() }, pieces);
            let record = exchange(&server, stream, point(phase, event, 0, close));
            let name = format!("{phase:?} {event} stream={stream} {close:?}");
            assert_eq!(reports.recv_timeout(PATIENCE).unwrap(), (pieces, word), "{name}");
            assert_eq!(record.client_class, ClientClass::Cancelled, "{name}");
            let fact = record.cancel.unwrap();
            assert_eq!((fact.phase, fact.close), (phase, close), "{name}");
            let at = fact.at_us.unwrap();
            assert!(record.sent_us.unwrap() <= at && at <= record.end_us.unwrap(), "{name}");
            assert_eq!(record.headers_us.is_some(), pieces >= 1, "{name}");
            if phase == CancelPhase::NthEvent {
                assert_eq!(
                    record.answer.unwrap().events,
                    event,
                    "{name}: nothing after the point is counted"
                );
            }
        }
    }
}

/// One connection with more in its receive buffer than the client took: head read, body unread.
#[test]
fn a_fin_stays_a_fin_although_bytes_are_unread() {
    for (close, word) in [(Close::Fin, "fin"), (Close::Rst, "rst")] {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let connection = Connection::begin(listener.local_addr().unwrap()).unwrap();
        let mut server = listener.accept().unwrap().0;
        server.write_all(&[b'x'; 30_000]).unwrap();
        // The bytes are in the client's buffer before it leaves.
        std::thread::sleep(Duration::from_millis(50));
        connection.cut(close);
        server.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        // Long enough for an RST that follows a FIN to be seen too.
        std::thread::sleep(Duration::from_millis(50));
        let how = match server.read(&mut [0; 16]) {
            Ok(0) => "fin",
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => "rst",
            other => panic!("{other:?}"),
        };
        assert_eq!(how, word);
        // A FIN leaves the other direction open: only an RST makes the first write fail.
        assert_eq!(server.write(b"x").is_ok(), word == "fin");
    }
}

#[test]
fn a_time_after_the_phase_is_waited_for() {
    let (server, reports) = slow_server(stream_pieces(), 1);
    let record = exchange(&server, true, point(CancelPhase::AfterHeaders, 0, 90, Close::Fin));
    assert_eq!(reports.recv_timeout(PATIENCE).unwrap().1, "fin");
    let waited = record.cancel.unwrap().at_us.unwrap() - record.headers_us.unwrap();
    assert!((90_000..60_000_000).contains(&waited), "{waited}");
    let (server, _reports) = slow_server(stream_pieces(), 0);
    let record = exchange(&server, true, point(CancelPhase::BeforeHeaders, 0, 20, Close::Rst));
    assert_eq!(record.client_class, ClientClass::Cancelled);
    assert!(record.headers_us.is_none());
}

#[test]
fn a_request_that_ended_first_is_not_cancelled() {
    for (stream, point) in [
        (true, point(CancelPhase::NthEvent, 1_000, 0, Close::Fin)),
        (true, point(CancelPhase::FirstContent, 0, 50_000, Close::Rst)),
        (false, point(CancelPhase::NthEvent, 1, 0, Close::Fin)),
        (false, point(CancelPhase::BeforeHeaders, 0, 50_000, Close::Fin)),
    ] {
        let server = Server::start(|peer| {
            while let Some(request) = peer.request() {
                peer.send(good_answer(request.is_stream()));
            }
        });
        let record = exchange(&server, stream, point);
        assert_eq!(record.client_class, ClientClass::Ok, "{point:?}");
        assert_eq!(record.cancel.unwrap().at_us, None, "{point:?}");
    }
}

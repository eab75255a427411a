//! HTTP/2 and TLS against servers in this process: what a peer may do to streams, connections and certificates.

mod common;

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use common::secure::{Certified, Http2, Say, TlsServer};
use common::{Server, good_answer, line, run_over};
use evidence::record::ClientClass as C;
use loadgen::connection::transport::{Http, Options};
use loadgen::engine::{Ended, KeepAlive};
use loadgen::result::Wires;
use scenario::fault::Close;
use scenario::model::CancelPhase;
use scenario::pipe::LoadLimits;
use scenario::plan::CancelPoint;
use scenario::units::Micros;

fn limits() -> LoadLimits {
    let long = Micros::from_s(60);
    LoadLimits {
        connect: long,
        headers: long,
        first_byte: long,
        idle: long,
        total: long,
        drain: Micros::ZERO,
    }
}

fn two() -> Options {
    Options { http: Http::Two, ..Options::default() }
}

/// Sends so many requests, every second one streamed.
fn send(url: &str, count: u64, at_once: usize, options: &Options) -> (Vec<Ended>, Wires) {
    send_with(url, count, at_once, options, KeepAlive::Reuse, (limits(), None))
}

fn send_with(
    url: &str,
    count: u64,
    at_once: usize,
    options: &Options,
    keep: KeepAlive,
    (limits, cancel): (LoadLimits, Option<CancelPoint>),
) -> (Vec<Ended>, Wires) {
    let lines = (0..count).map(|index| {
        let mut line = line(index, index % 2 == 1);
        line.cancel = cancel;
        let body = scenario::prompt::body(&line, "abcdefghijkl", "m");
        (line, body)
    });
    run_over(url, lines.collect(), limits, keep, options, at_once)
}

fn all_ok(ended: &[Ended], http2: bool) {
    for one in ended {
        assert_eq!(one.record.client_class, C::Ok, "{:?}", one.record);
        assert_eq!(one.http2, http2, "{:?}", one.record);
    }
}

#[test]
fn h2c_carries_many_requests_on_one_connection() {
    let server = Http2::start(Some(16), |_| Say::Good);
    let (ended, wires) = send(&server.url(), 40, 8, &two());
    all_ok(&ended, true);
    assert_eq!((ended.len(), wires.http2_connections, wires.http1_connections), (40, 1, 0));
    assert_eq!(wires.streams_granted_min, Some(16));
    assert!(wires.streams_open_max <= 8, "{wires:?}");
    let peer = &wires.peers[&server.address.to_string()];
    assert_eq!((peer.connections, peer.requests), (1, 40));
    // Records are as complete as those of HTTP/1.1.
    let mut opened = 0;
    for one in &ended {
        let record = &one.record;
        opened += u64::from(record.connect_us.is_some());
        assert!(record.response_body_id.as_deref().unwrap().starts_with("devshard-1-"));
        assert_eq!(record.response_devshard_id.as_deref(), Some("7"));
        let mut instants = vec![record.planned_us, record.released_us, record.sent_us, record.headers_us];
        instants.extend([
            record.first_byte_us,
            record.first_content_us,
            record.last_content_us,
            record.end_us,
        ]);
        assert!(instants.iter().all(Option::is_some) && instants.is_sorted(), "{record:?}");
        assert_eq!(record.answer.as_ref().unwrap().events > 0, record.stream);
    }
    assert_eq!(opened, 1, "only one of them opened the connection");
    // The path, the key header and the body arrive as over HTTP/1.1; what belongs to HTTP/1.1 alone does not.
    let seen = server.seen.lock().unwrap();
    assert!(seen.iter().all(|(head, body)| {
        head.starts_with("POST /v1/chat/completions")
            && !head.contains("\nhost:")
            && body.contains("\"model\":\"m\"")
    }));
    assert!(seen[0].0.contains("x-request-id: test-1-"), "{}", seen[0].0);
}

#[test]
fn a_peer_that_grants_few_streams_gets_more_connections() {
    let server = Http2::start(Some(3), |_| Say::After(Duration::from_millis(30)));
    let (ended, wires) = send(&server.url(), 40, 8, &two());
    all_ok(&ended, true);
    assert_eq!(wires.streams_granted_min, Some(3));
    assert_eq!(wires.streams_open_max, 3, "{wires:?}");
    assert!(wires.http2_connections >= 3 && wires.streams_used_up > 0, "{wires:?}");
    // The own limit works in the same way.
    let server = Http2::start(None, |_| Say::After(Duration::from_millis(30)));
    let (ended, wires) = send(&server.url(), 20, 4, &Options { streams: 2, ..two() });
    all_ok(&ended, true);
    assert_eq!((wires.streams_granted_min, wires.streams_open_max), (None, 2), "{wires:?}");
    assert!(wires.http2_connections >= 2, "{wires:?}");
}

#[test]
fn a_connection_is_rotated_after_its_share_of_requests() {
    let server = Http2::start(None, |_| Say::Good);
    let (ended, wires) = send_with(&server.url(), 12, 1, &two(), KeepAlive::Requests(4), (limits(), None));
    all_ok(&ended, true);
    assert_eq!(wires.http2_connections, 3, "{wires:?}");
}

#[test]
fn a_cancel_resets_its_stream_and_leaves_the_others_alone() {
    for close in [Close::Fin, Close::Rst] {
        let server = Http2::start(None, |_| Say::Endless);
        let point = CancelPoint { phase: CancelPhase::FirstContent, event: 0, after: Micros::ZERO, close };
        let (ended, wires) =
            send_with(&server.url(), 6, 3, &two(), KeepAlive::Reuse, (limits(), Some(point)));
        for one in &ended {
            assert_eq!(one.record.client_class, C::Cancelled, "{:?}", one.record);
            assert!(one.record.cancel.unwrap().at_us.is_some());
            assert!(one.record.first_content_us.is_some() && one.record.sent_us.is_some());
        }
        assert_eq!(wires.http2_connections, 1, "the connection outlives its cancelled streams: {wires:?}");
        // The server sees a reset and no lost connection.
        server.wait_for_resets(5);
    }
}

#[test]
fn what_a_peer_does_to_a_stream_has_its_class() {
    for (say, class) in [
        (Say::Reset, C::ConnectionLost),
        (Say::HeadThenReset, C::Truncated),
        (Say::HeadThenEnd, C::Truncated),
        (Say::Status(503), C::HttpError),
        (Say::Garbage, C::Malformed),
    ] {
        let server = Http2::start(None, move |_| say);
        let (ended, _) = send(&server.url(), 2, 1, &two());
        // The second one is a stream.
        assert_eq!(ended[1].record.client_class, class, "{say:?}: {:?}", ended[1].record);
        assert!(ended[1].record.detail.is_some() && !ended[1].record.reconnected, "{say:?}");
    }
}

#[test]
fn silence_has_a_class_for_each_place_on_a_stream_too() {
    let short = Micros::from_ms(200);
    for (say, limits, class) in [
        (Say::Never, LoadLimits { headers: short, ..limits() }, C::HeadersTimeout),
        (Say::HeadOnly, LoadLimits { first_byte: short, ..limits() }, C::FirstByteTimeout),
        (Say::Endless, LoadLimits { idle: short, ..limits() }, C::IdleTimeout),
        (Say::Never, LoadLimits { total: short, ..limits() }, C::TotalTimeout),
    ] {
        let server = Http2::start(None, move |_| say);
        let (ended, wires) = send_with(&server.url(), 2, 2, &two(), KeepAlive::Reuse, (limits, None));
        assert!(ended.iter().all(|one| one.record.client_class == class), "{say:?} {class:?}: {ended:?}");
        assert_eq!(wires.http2_connections, 1, "the connection is none the worse");
    }
}

#[test]
fn refused_streams_and_goaway_are_tried_once_more_elsewhere() {
    // The first connection refuses its second stream.
    let server = Http2::start(None, |number| if number == 1 { Say::Refuse } else { Say::Good });
    let (ended, wires) = send(&server.url(), 3, 1, &two());
    all_ok(&ended, true);
    assert_eq!(ended.iter().map(|one| one.record.reconnected).collect::<Vec<_>>(), [false, true, false]);
    assert_eq!(wires.http2_connections, 2);
    // One that is refused again is lost, and not tried for ever.
    let server = Http2::start(None, |_| Say::Refuse);
    let (ended, _) = send(&server.url(), 1, 1, &two());
    assert_eq!((ended[0].record.client_class, ended[0].record.reconnected), (C::ConnectionLost, true));
    // A connection that says goodbye after each answer is replaced, and nothing is lost.
    let server = Http2::start(None, |_| Say::GoodThenGoAway);
    let (ended, wires) = send(&server.url(), 6, 2, &two());
    all_ok(&ended, true);
    assert!(wires.http2_connections >= 2, "{wires:?}");
}

#[test]
fn a_peer_without_http2_is_malformed_and_no_hang() {
    let server = Server::start(|peer| {
        peer.send("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
    });
    let (ended, _) = send(&server.url(), 3, 3, &two());
    for one in ended {
        assert_eq!(one.record.client_class, C::Malformed, "{:?}", one.record);
        assert!(one.record.detail.as_deref().unwrap().contains("HTTP/2"), "{:?}", one.record);
    }
}

#[test]
fn a_body_larger_than_the_windows_arrives_whole() {
    let server = Http2::start(None, |_| Say::Good);
    let line = line(0, false);
    let mut body = scenario::prompt::body(&line, "abcdefghijkl", "m");
    body.resize(3 << 20, b' ');
    let (ended, _) = run_over(&server.url(), vec![(line, body)], limits(), KeepAlive::Reuse, &two(), 1);
    all_ok(&ended, true);
    assert!(ended[0].record.sent_us.is_some());
    assert_eq!(server.seen.lock().unwrap()[0].1.len(), 3 << 20);
}

#[test]
fn tls_carries_http_1_and_the_handshake_has_its_time() {
    let certified = Certified::new("localhost");
    let server = TlsServer::start(&certified, &[b"http/1.1"], |peer| {
        while let Some(request) = peer.request() {
            peer.send(good_answer(request.is_stream()));
        }
    });
    let options = Options { ca: Some(certified.ca()), ..Options::default() };
    let (ended, wires) = send(&server.url(), 20, 4, &options);
    all_ok(&ended, false);
    assert_eq!(wires.tls_handshakes, wires.http1_connections);
    assert!((1..=4).contains(&wires.http1_connections), "connections are kept: {wires:?}");
    let opened: Vec<&Ended> = ended.iter().filter(|one| one.record.connect_us.is_some()).collect();
    assert!(!opened.is_empty() && opened.iter().all(|one| one.record.tls_us.is_some()), "{opened:?}");
    assert!(ended.iter().all(|one| one.record.connect_us.is_some() || one.record.tls_us.is_none()));
}

#[test]
fn alpn_decides_when_nothing_is_demanded() {
    let certified = Certified::new("localhost");
    let server = Http2::start_secure(&certified, None, |_| Say::Good);
    let options = Options { ca: Some(certified.ca()), ..Options::default() };
    let (ended, wires) = send(&server.url(), 20, 4, &options);
    all_ok(&ended, true);
    assert_eq!((wires.http2_connections, wires.tls_handshakes), (1, 1), "{wires:?}");
    // Demanded and not offered.
    let server = TlsServer::start(&certified, &[b"http/1.1"], |_| {});
    let (ended, _) = send(&server.url(), 1, 1, &Options { http: Http::Two, ..options.clone() });
    assert_eq!(ended[0].record.client_class, C::TlsFailed, "{:?}", ended[0].record);
    // Forbidden and offered.
    let server = Http2::start_secure(&certified, None, |_| Say::Good);
    let (ended, _) = send(&server.url(), 1, 1, &Options { http: Http::One, ..options });
    assert_eq!(ended[0].record.client_class, C::TlsFailed, "{:?}", ended[0].record);
}

#[test]
fn certificates_are_checked_unless_told_otherwise() {
    let good = |peer: &mut common::secure::TlsPeer| {
        while let Some(request) = peer.request() {
            peer.send(good_answer(request.is_stream()));
        }
    };
    let (certified, other) = (Certified::new("localhost"), Certified::new("elsewhere.example"));
    let trusting = |certified: &Certified| Options { ca: Some(certified.ca()), ..Options::default() };
    let server = TlsServer::start(&certified, &[], good);
    for (name, options) in [("unknown root", trusting(&other)), ("system roots", Options::default())] {
        let (ended, _) = send(&server.url(), 1, 1, &options);
        let record = &ended[0].record;
        assert_eq!(record.client_class, C::TlsFailed, "{name}: {record:?}");
        assert!(record.detail.as_deref().unwrap().contains("certificate"), "{name}: {record:?}");
        assert!(record.sent_us.is_none() && record.connect_us.is_some(), "{name}: {record:?}");
    }
    let wrong_name = TlsServer::start(&other, &[], good);
    let (ended, _) = send(&wrong_name.url(), 1, 1, &trusting(&other));
    assert_eq!(ended[0].record.client_class, C::TlsFailed, "{:?}", ended[0].record);
    let (ended, _) = send(&wrong_name.url(), 2, 1, &Options { insecure: true, ..Options::default() });
    all_ok(&ended, false);
}

#[test]
fn tls_that_never_comes_up_has_its_class_in_time() {
    let certified = Certified::new("localhost");
    let options = Options { ca: Some(certified.ca()), ..Options::default() };
    let secure = |server: &Server| format!("https://localhost:{}", server.address.port());
    // A peer that speaks no TLS, one that closes, one that is silent.
    let plain = Server::start(|peer| {
        peer.send("HTTP/1.1 400 Bad Request\r\n\r\n");
    });
    let closing = Server::start(|peer| drop(peer.stream.flush()));
    for server in [&plain, &closing] {
        let (ended, _) = send(&secure(server), 2, 2, &options);
        assert!(ended.iter().all(|one| one.record.client_class == C::TlsFailed), "{ended:?}");
    }
    let silent = Server::start(|_| std::thread::sleep(Duration::from_secs(120)));
    let limits = LoadLimits { connect: Micros::from_ms(200), ..limits() };
    let (ended, _) = send_with(&secure(&silent), 3, 3, &options, KeepAlive::Reuse, (limits, None));
    assert!(ended.iter().all(|one| one.record.client_class == C::ConnectTimeout), "{ended:?}");
}

#[test]
fn tls_cut_without_a_goodbye_is_a_cut_body() {
    let certified = Certified::new("localhost");
    let until_close = Arc::new(AtomicU64::new(0));
    let orderly = Arc::clone(&until_close);
    let server = TlsServer::start(&certified, &[], move |peer| {
        peer.request();
        let length = format!("Content-Length: {}", common::JSON_BODY.len());
        peer.send(good_answer(false).replace(&length, "Connection: close"));
        if orderly.load(Ordering::SeqCst) == 1 {
            peer.goodbye();
        }
    });
    let options = Options { ca: Some(certified.ca()), ..Options::default() };
    let (ended, _) = send(&server.url(), 1, 1, &options);
    assert_eq!(ended[0].record.client_class, C::Truncated, "{:?}", ended[0].record);
    until_close.store(1, Ordering::SeqCst);
    let (ended, _) = send(&server.url(), 1, 1, &options);
    assert_eq!(ended[0].record.client_class, C::Ok, "{:?}", ended[0].record);
}

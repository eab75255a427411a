//! Servers that misbehave, one way each: every way has its own class, in bounded time.

#![expect(clippy::unwrap_used, reason = "a test that can't go on must stop")]

mod common;

use std::time::{Duration, Instant};

use common::{
    JSON_BODY, Peer, SSE_BODY, SSE_HEAD, Server, chunk, good_answer, json_answer, line, run_lines, sse_answer,
};
use evidence::record::{ClientClass as C, RequestRecord};
use loadgen::engine::KeepAlive;
use scenario::pipe::LoadLimits;
use scenario::units::Micros;

/// Limits that no machine reaches, however busy; each test of silence shortens the one that it is about.
fn patient() -> LoadLimits {
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

/// Sends requests one after another on one pool.
fn exchange_all(url: &str, streams: &[bool], body_bytes: usize, limits: LoadLimits) -> Vec<RequestRecord> {
    let lines = (0..).zip(streams).map(|(index, stream)| {
        let line = line(index, *stream);
        let mut body = scenario::prompt::body(&line, "abcdefghijkl", "m");
        body.resize(body.len().max(body_bytes), b' ');
        (line, body)
    });
    run_lines(url, lines.collect(), limits, KeepAlive::Reuse).into_iter().map(|ended| *ended.record).collect()
}

/// A server that answers one request by `act` and then closes.
fn once(act: impl Fn(&mut Peer) + Send + Sync + 'static) -> Server {
    Server::start(move |peer| {
        if peer.request().is_some() {
            act(peer);
        }
    })
}

fn check(
    name: &str,
    stream: bool,
    class: C,
    act: impl Fn(&mut Peer) + Send + Sync + 'static,
) -> RequestRecord {
    check_within(name, stream, class, patient(), act)
}

fn check_within(
    name: &str,
    stream: bool,
    class: C,
    limits: LoadLimits,
    act: impl Fn(&mut Peer) + Send + Sync + 'static,
) -> RequestRecord {
    let server = once(act);
    let start = Instant::now();
    let record = exchange_all(&server.url(), &[stream], 0, limits).remove(0);
    assert!(start.elapsed() < Duration::from_secs(50), "the nearest limit ends a request: {record:?}");
    assert_eq!(record.client_class, class, "{name}: {record:?}");
    assert_eq!(record.detail.is_none(), class == C::Ok, "{name}: {record:?}");
    assert!(record.end_us.is_some(), "{name}");
    if class != C::Ok && record.bytes_in > 0 {
        assert_eq!(record.excerpt.as_ref().unwrap().bytes, record.bytes_in, "{name}");
    }
    record
}

/// Longer than any limit; nobody waits for its end.
fn wait() {
    std::thread::sleep(Duration::from_secs(120));
}

#[test]
fn connections_that_end_before_the_headers() {
    check("close", false, C::ConnectionLost, |_| {});
    check("reset", true, C::ConnectionLost, |peer| peer.reset_on_close());
    check("close inside the head", false, C::ConnectionLost, |peer| {
        peer.send("HTTP/1.1 200 OK\r\nContent-Ty");
    });
    let refused = {
        let server = Server::good(Duration::ZERO);
        server.url()
    };
    let record = exchange_all(&refused, &[false], 0, patient()).remove(0);
    assert_eq!(record.client_class, C::ConnectRefused, "{record:?}");
    assert!(record.sent_us.is_none() && record.connect_us.is_none());
}

#[test]
fn heads_that_break_the_grammar() {
    check("garbage", false, C::Malformed, |peer| {
        peer.send("220 smtp.example.org ESMTP\r\n");
        wait();
    });
    check("head bomb", false, C::Malformed, |peer| {
        peer.send("HTTP/1.1 200 OK\r\n");
        while peer.send("X-Pad: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n") {}
    });
    check("one endless header", true, C::Malformed, |peer| {
        peer.send("HTTP/1.1 200 OK\r\nX-Pad: ");
        while peer.send("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa") {}
    });
    check("endless 1xx", false, C::Malformed, |peer| while peer.send("HTTP/1.1 102 Wait\r\n\r\n") {});
    check("switch", false, C::Malformed, |peer| {
        peer.send("HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n");
        wait();
    });
    check("two lengths", false, C::Malformed, |peer| {
        peer.send("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab");
    });
}

#[test]
fn interim_responses_are_skipped() {
    let record = check("1xx", true, C::Ok, |peer| {
        peer.send("HTTP/1.1 100 Continue\r\n\r\n");
        std::thread::sleep(Duration::from_millis(20));
        peer.send("HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n");
        peer.send(good_answer(true));
    });
    assert_eq!(record.status, Some(200));
}

#[test]
fn silence_has_a_class_for_each_place() {
    let short = Micros::from_ms(200);
    let limits = LoadLimits { headers: short, ..patient() };
    check_within("headers", false, C::HeadersTimeout, limits, |_| wait());
    check_within("dripping headers", false, C::HeadersTimeout, limits, |peer| {
        for byte in "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n".bytes() {
            peer.send([byte]);
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    let limits = LoadLimits { first_byte: short, ..patient() };
    check_within("first byte", true, C::FirstByteTimeout, limits, |peer| {
        peer.send(SSE_HEAD);
        wait();
    });
    let limits = LoadLimits { idle: short, ..patient() };
    let record = check_within("inside the body", true, C::IdleTimeout, limits, |peer| {
        peer.send(SSE_HEAD);
        peer.send(chunk(&SSE_BODY[..700]));
        wait();
    });
    assert!(record.first_content_us.is_some() && record.answer.unwrap().content_events >= 1);
    let limits = LoadLimits { total: Micros::from_ms(700), ..patient() };
    check_within("dripping body", true, C::TotalTimeout, limits, |peer| {
        peer.send(SSE_HEAD);
        while peer.send(chunk(": wait\n\n")) {
            std::thread::sleep(Duration::from_millis(50));
        }
    });
}

#[test]
fn a_body_without_end_is_cut_at_the_total_limit() {
    for stream in [false, true] {
        let limits = LoadLimits { total: Micros::from_ms(700), ..patient() };
        let record = check_within("endless", stream, C::TotalTimeout, limits, move |peer| {
            peer.send(if stream {
                "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: "
            } else {
                "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n\""
            });
            let piece = vec![b'x'; 256 * 1024];
            while peer.send(&piece) {}
        });
        let excerpt = record.excerpt.unwrap();
        assert!(excerpt.head.len() <= 2048 && excerpt.tail.len() <= 1024);
    }
}

#[test]
fn a_large_body_is_read_to_its_end_in_bounded_memory() {
    const BYTES: u64 = 512 << 20;
    let before = loadgen::health::Usage::now().rss_bytes;
    for stream in [false, true] {
        let server = once(move |peer| {
            let kind = if stream { "text/event-stream" } else { "application/json" };
            let start = if stream { "data: xxxxxxxxxx" } else { "                " };
            peer.send(format!(
                "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {BYTES}\r\n\r\n{start}"
            ));
            let piece = vec![b' '; 1 << 20];
            if (1..512).all(|_| peer.send(&piece)) {
                peer.send(&piece[start.len()..]);
            }
        });
        let record = exchange_all(&server.url(), &[stream], 0, patient()).remove(0);
        assert_eq!((record.client_class, record.bytes_in), (C::Malformed, BYTES), "{record:?}");
        assert!(record.detail.unwrap().contains("large"));
        assert!(record.answer.unwrap().body_complete);
    }
    // Other tests of this program run beside, with bodies of their own; the whole would be twice 512 MB.
    let after = loadgen::health::Usage::now().rss_bytes;
    assert!(after.saturating_sub(before) < 256 << 20, "{before} to {after}");
}

#[test]
fn bodies_that_end_early() {
    check("FIN inside a chunk", true, C::Truncated, |peer| {
        peer.send(SSE_HEAD);
        peer.send(&chunk(SSE_BODY)[..900]);
    });
    let record = check("FIN instead of the last chunk", true, C::Truncated, |peer| {
        peer.send(SSE_HEAD);
        peer.send(chunk(SSE_BODY));
    });
    let answer = record.answer.unwrap();
    assert_eq!((answer.ending.as_deref(), answer.body_complete), (Some("done"), false));
    check("RST inside the body", true, C::Truncated, |peer| {
        peer.send(SSE_HEAD);
        peer.send(chunk(&SSE_BODY[..700]));
        // A reset takes what the client has not read yet.
        std::thread::sleep(Duration::from_secs(1));
        peer.reset_on_close();
    });
    check("length not reached", false, C::Truncated, |peer| {
        let answer = json_answer(JSON_BODY);
        peer.send(&answer[..answer.len() - 5]);
    });
    check("length too short", false, C::Malformed, |peer| {
        let length = format!("Content-Length: {}", JSON_BODY.len());
        peer.send(json_answer(JSON_BODY).replace(&length, "Content-Length: 40"));
    });
    check("empty stream", true, C::Truncated, |peer| {
        peer.send(format!("{SSE_HEAD}0\r\n\r\n"));
    });
    check("no DONE", true, C::Truncated, |peer| {
        peer.send(sse_answer(SSE_BODY.strip_suffix("data: [DONE]\n\n").unwrap()));
    });
    check("DONE alone", true, C::Truncated, |peer| {
        peer.send(sse_answer("data: [DONE]\n\n"));
    });
}

#[test]
fn bodies_that_break_their_coding() {
    for (name, bytes) in [
        ("no size", "zz\r\nhello\r\n0\r\n\r\n"),
        ("huge size", "ffffffffffffffffff\r\n"),
        ("size too small", "2\r\nhello\r\n0\r\n\r\n"),
        ("size too large", "9\r\nhello\r\n0\r\n\r\nxxxxxxxxxxx"),
    ] {
        check(name, true, C::Malformed, move |peer| {
            peer.send(format!("{SSE_HEAD}{bytes}"));
        });
    }
    check("gzip", false, C::Malformed, |peer| {
        peer.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n");
    });
}

#[test]
fn answers_that_are_not_chat_answers() {
    for (name, stream, class, answer) in [
        ("not JSON", false, C::Malformed, json_answer("{\"choices\":[")),
        ("no choices", false, C::Malformed, json_answer("{}")),
        ("an array", false, C::Malformed, json_answer("[]")),
        ("error in 200", false, C::InBandError, json_answer("{\"error\":{\"message\":\"m\"}}")),
        ("JSON for a stream", true, C::Malformed, json_answer(JSON_BODY)),
        ("a stream for JSON", false, C::Malformed, sse_answer(SSE_BODY)),
        ("bad event", true, C::Malformed, sse_answer(&format!("data: {{\n\n{SSE_BODY}"))),
        ("text type", false, C::Malformed, json_answer(JSON_BODY).replace("application/json", "text/plain")),
        (
            "error event",
            true,
            C::InBandError,
            sse_answer("data: {\"error\":{\"message\":\"m\",\"code\":503}}\n\ndata: [DONE]\n\n"),
        ),
        (
            "empty answer",
            false,
            C::CheckFailed,
            json_answer(r#"{"choices":[{"index":0,"message":{"content":""},"finish_reason":"stop"}]}"#),
        ),
        ("204", false, C::Malformed, "HTTP/1.1 204 No Content\r\n\r\n".to_owned()),
        (
            "429",
            false,
            C::HttpError,
            "HTTP/1.1 429 Busy\r\nRetry-After: 3\r\nContent-Length: 3\r\n\r\nno\n".to_owned(),
        ),
        ("until close", false, C::Ok, {
            let length = format!("Content-Length: {}", JSON_BODY.len());
            json_answer(JSON_BODY).replace(&length, "Connection: close")
        }),
    ] {
        let record = check(name, stream, class, move |peer| {
            peer.send(&answer);
        });
        if name == "429" {
            assert_eq!(record.retry_after.as_deref(), Some("3"));
            assert_eq!(record.excerpt.unwrap().head, "no\n");
        }
    }
}

#[test]
fn an_early_answer_counts_although_the_request_was_not_taken() {
    // The server answers on the head alone and reads nothing of a body that fills all buffers.
    let server = Server::start(|peer| {
        peer.send("HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\n{}");
        wait();
    });
    let record = exchange_all(&server.url(), &[false], 32 << 20, patient()).remove(0);
    assert_eq!((record.client_class, record.status), (C::HttpError, Some(413)), "{record:?}");
    assert!(record.sent_us.is_none(), "its last byte never left");
}

#[test]
fn a_stale_connection_is_replaced_once_and_noted() {
    // Each connection answers one request and dies at the second one without an answer.
    let server = Server::start(|peer| {
        if peer.request().is_some() {
            peer.send(good_answer(false));
            peer.request();
        }
    });
    let records = exchange_all(&server.url(), &[false, false, false], 0, patient());
    assert!(records.iter().all(|record| record.client_class == C::Ok), "{records:?}");
    assert_eq!(records.iter().map(|record| record.reconnected).collect::<Vec<_>>(), [false, true, true]);
    assert!(records[1].connect_us.is_some());
    // One that fails on a fresh connection is not sent again.
    let server = Server::start(|peer| {
        peer.request();
    });
    let records = exchange_all(&server.url(), &[false], 0, patient());
    assert_eq!((records[0].client_class, records[0].reconnected), (C::ConnectionLost, false));
    assert_eq!(server.requests.load(std::sync::atomic::Ordering::SeqCst), 1);
}

#[test]
fn a_kept_connection_that_answered_in_part_is_not_retried() {
    let server = Server::start(|peer| {
        if peer.request().is_some() {
            peer.send(good_answer(false));
            peer.request();
            peer.send("HTTP/1.1 2");
        }
    });
    let records = exchange_all(&server.url(), &[false, false], 0, patient());
    assert_eq!((records[1].client_class, records[1].reconnected), (C::ConnectionLost, false));
}

#[test]
fn connections_are_kept_only_when_their_answer_was_whole() {
    let counted = |answer: &'static str, streams: &[bool]| {
        let server = Server::start(move |peer| while peer.request().is_some() && peer.send(answer) {});
        exchange_all(&server.url(), streams, 0, patient());
        server.connections.load(std::sync::atomic::Ordering::SeqCst)
    };
    assert_eq!(counted("HTTP/1.1 500 E\r\nContent-Length: 2\r\n\r\n{}", &[false; 5]), 1);
    assert_eq!(counted("HTTP/1.1 500 E\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}", &[false; 5]), 5);
    assert_eq!(counted("HTTP/1.1 500 E\r\nContent-Length: 2\r\n\r\n{}extra", &[false; 5]), 5);
}

#[test]
fn a_stream_cut_at_every_byte_is_the_same_answer() {
    // Every byte is a write of its own; the server sends them as fast as it can.
    let record = check("byte by byte", true, C::Ok, |peer| {
        peer.send(SSE_HEAD);
        for byte in SSE_BODY.bytes() {
            peer.send([b"1\r\n".as_slice(), &[byte], b"\r\n"].concat());
        }
        peer.send("0\r\n\r\n");
    });
    let whole = check("at once", true, C::Ok, |peer| {
        peer.send(good_answer(true));
    });
    assert_eq!(record.answer, whole.answer);
    assert_eq!(record.tokens, whole.tokens);
    assert!(record.first_content_us.unwrap() <= record.last_content_us.unwrap());
}

#[test]
fn a_connection_that_never_stands_is_a_connect_timeout() {
    // A listener that accepts nobody: once its queue is full, the kernel drops what knocks.
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    socket.listen(0).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    let fill = || std::net::TcpStream::connect_timeout(&address, Duration::from_millis(100));
    let waiting: Vec<_> = std::iter::from_fn(|| fill().ok()).take(16).collect();
    assert!(waiting.len() < 16, "the queue is full");
    let limits = LoadLimits { connect: Micros::from_ms(150), ..patient() };
    let record = exchange_all(&format!("http://{address}"), &[false], 0, limits).remove(0);
    assert_eq!(record.client_class, C::ConnectTimeout, "{record:?}");
    assert!(record.sent_us.is_none());
}

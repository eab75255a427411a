//! Input that no client should send: answered or closed, bounded, and the node goes on.

use std::time::{Duration, Instant};

use proptest::prelude::{ProptestConfig, any, proptest};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::support::{End, Stand, config, fast, marked, post_bytes};

async fn stand() -> Stand {
    Stand::new(config(vec![fast()], vec![])).await
}

async fn alive(stand: &Stand) {
    assert_eq!(stand.chat("node-0", &marked(1, false)).await.status, Some(200));
}

#[tokio::test]
async fn health_and_unknown_paths() {
    let stand = stand().await;
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").into_bytes();
    let health = stand.exchange("node-0", &get("/healthz")).await;
    assert_eq!((health.status, health.body.as_slice()), (Some(200), &b"ok"[..]));
    assert_eq!(stand.exchange("node-0", &get("/nothing")).await.status, Some(404));
    assert_eq!(stand.exchange("node-0", &get("/v1/chat/completions")).await.status, Some(405));
}

#[tokio::test]
async fn bad_requests_have_their_status() {
    let stand = stand().await;
    let huge_head = format!("GET / HTTP/1.1\r\nX: {}\r\n\r\n", "a".repeat(70_000)).into_bytes();
    let many_lines = format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(101)).into_bytes();
    let endless_head = [b"GET / HTTP/1.1\r\nX: ".to_vec(), vec![b'a'; 80_000]].concat();
    let huge_body = b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 4194305\r\n\r\n".to_vec();
    let overflow =
        b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n".to_vec();
    let huge_chunk =
        b"POST /v1/chat/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffff\r\n".to_vec();
    let bad_chunk =
        b"POST /v1/chat/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n".to_vec();
    for (bytes, status) in [
        (huge_head, 431),
        (many_lines, 431),
        (endless_head, 431),
        (huge_body, 413),
        (overflow, 400),
        (huge_chunk, 413),
        (bad_chunk, 400),
        (b"GET / HTTP/1.0\r\n\r\n".to_vec(), 505),
        (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n".to_vec(), 400),
        (post_bytes("/v1/chat/completions", b"\xff\xfe", ""), 400),
        (post_bytes("/v1/chat/completions", b"{\"messages\":[]", ""), 400),
    ] {
        let seen = stand.exchange("node-0", &bytes).await;
        assert_eq!(seen.status, Some(status), "{:?}", String::from_utf8_lossy(&bytes[..bytes.len().min(60)]));
        assert!(seen.json()["error"]["message"].is_string());
    }
    alive(&stand).await;
    let page = stand.get_text("/metrics").await;
    assert!(page.contains("proofload_openai_bad_requests_total{node=\"node-0\"} 2\n"), "{page}");
    assert!(page.contains("proofload_openai_unreadable_requests_total 9\n"), "{page}");
}

#[tokio::test]
async fn a_chunked_body_and_expect_continue_are_understood() {
    let stand = stand().await;
    let body = marked(4, false).to_string();
    let (left, right) = body.split_at(20);
    let chunked = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n{:x};e=1\r\n{left}\r\n{:X}\r\n{right}\r\n0\r\nT: x\r\n\r\n",
        left.len(),
        right.len()
    );
    assert_eq!(stand.exchange("node-0", chunked.as_bytes()).await.status, Some(200));
    let mut connection = stand.connect("node-0").await;
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    connection.write_all(head.as_bytes()).await.unwrap();
    let mut go_on = [0_u8; 25];
    connection.read_exact(&mut go_on).await.unwrap();
    assert_eq!(&go_on, b"HTTP/1.1 100 Continue\r\n\r\n");
    connection.write_all(body.as_bytes()).await.unwrap();
    assert_eq!(crate::support::read_answer(&mut connection).await.status, Some(200));
}

#[tokio::test]
async fn a_body_of_four_mebibytes_is_read() {
    let stand = stand().await;
    let filler = "a".repeat((4 << 20) - 100);
    let body = serde_json::json!({ "messages": [{ "role": "user", "content": filler }] }).to_string();
    assert_eq!(
        stand.exchange("node-0", &post_bytes("/v1/chat/completions", body.as_bytes(), "")).await.status,
        Some(200)
    );
}

#[tokio::test]
async fn a_slow_head_is_given_up_and_holds_no_worker() {
    let stand = stand().await;
    let mut connection = stand.connect("node-0").await;
    let start = Instant::now();
    let mut bytes = Vec::new();
    let seen = loop {
        // One byte now and then: each is progress, the time for the whole head is not renewed by it.
        let _may_be_closed = connection.write_all(b"G").await;
        let mut piece = [0_u8; 256];
        match tokio::time::timeout(Duration::from_millis(250), connection.read(&mut piece)).await {
            Ok(Ok(count)) if count > 0 => bytes.extend_from_slice(&piece[..count]),
            Ok(_) => break String::from_utf8_lossy(&bytes).into_owned(),
            Err(_) => assert!(start.elapsed() < Duration::from_secs(20), "never given up"),
        }
        if start.elapsed() < Duration::from_millis(600) {
            alive(&stand).await;
        }
    };
    assert!(seen.starts_with("HTTP/1.1 408 "), "{seen}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn random_bytes_are_answered_or_closed(bytes in proptest::collection::vec(any::<u8>(), 1..600), tail in any::<bool>()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let stand = stand().await;
            let mut connection = stand.connect("node-0").await;
            connection.write_all(&bytes).await.unwrap();
            if tail {
                let _may_be_closed = connection.write_all(b"\r\n\r\n").await;
            }
            let _may_be_closed = connection.shutdown().await;
            let seen = crate::support::read_answer(&mut connection).await;
            assert!(seen.end != End::Open || seen.status.is_some());
            alive(&stand).await;
        });
    }

    #[test]
    fn random_json_bodies_are_answered(body in "[{}\\[\\]\":,a-z0-9 \\\\]{0,80}") {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let stand = stand().await;
            let bytes = post_bytes("/v1/chat/completions", body.as_bytes(), "");
            let seen = stand.exchange("node-0", &bytes).await;
            assert!(matches!(seen.status, Some(200 | 400)), "{body}: {:?}", seen.status);
        });
    }
}

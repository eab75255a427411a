//! A proxy that was asked for: whole URLs for `http://`, a tunnel for `https://`, its own times and its own class; and
//! none that only the environment names.

#![expect(clippy::unwrap_used, reason = "a test that can't go on must stop")]

mod common;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use common::Server;
use common::program::{base, run, seen};
use common::secure::{Certified, TlsServer};
use evidence::record::ClientClass;
use loadgen::connection::request::KEY_VARIABLE;
use loadgen::result::Metric;
use serde_json::json;

/// The head that a client sends first.
fn head(stream: &mut TcpStream) -> String {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|count| count > 0) {
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}

fn pipe(mut from: TcpStream, mut to: TcpStream) {
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut from, &mut to);
        let _ = to.shutdown(std::net::Shutdown::Both);
    });
}

/// A proxy that answers CONNECT so, and opens the tunnel when that is a 200; gives its URL and what it was asked.
fn tunnelling(answer: &'static str) -> (String, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (sender, asked) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let head = head(&mut stream);
            let target = head.split(' ').nth(1).unwrap().to_owned();
            let _ = sender.send(head);
            // In two parts: an answer may come in pieces.
            let (start, rest) = answer.split_at(9);
            stream.write_all(start.as_bytes()).unwrap();
            std::thread::sleep(std::time::Duration::from_millis(5));
            let _ = stream.write_all(rest.as_bytes());
            if answer.contains(" 200 ") && answer.ends_with("\r\n\r\n") {
                let there = TcpStream::connect(target).unwrap();
                pipe(stream.try_clone().unwrap(), there.try_clone().unwrap());
                pipe(there, stream);
            }
        }
    });
    (url, asked)
}

#[test]
fn plain_requests_ask_the_proxy_for_the_whole_url() {
    let (server, requests) = seen(|_, stream| common::good_answer(stream));
    let mut profile = base("http://gateway.invalid:8081/v1/chat/completions");
    profile["stages"] = json!([{"concurrency": 1, "requests": 3}]);
    // The name of the target is the proxy's to resolve.
    let ran = run("run", &profile, &["--proxy", &server.url()]);
    assert_eq!(ran.code, Some(0), "{}", ran.text);
    let (head, _) = requests.try_iter().next().unwrap();
    let start =
        "POST http://gateway.invalid:8081/v1/chat/completions HTTP/1.1\r\nHost: gateway.invalid:8081\r\n";
    assert!(head.starts_with(start), "{head}");
    assert!(
        ran.result.run.notes.iter().any(|note| note.contains("through the proxy")),
        "{:?}",
        ran.result.run.notes
    );
}

#[test]
fn secure_requests_go_through_a_tunnel_that_has_its_own_time() {
    let certified = Certified::new("localhost");
    let target = TlsServer::start(&certified, &[], |peer| {
        while peer.request().is_some() {
            peer.send(common::good_answer(false));
        }
    });
    let (proxy, asked) = tunnelling("HTTP/1.1 200 Connection established\r\n\r\n");
    let mut profile = base(&target.url());
    profile["connections"] = json!({"ca": certified.ca(), "proxy": proxy});
    profile["stages"] = json!([{"concurrency": 2, "requests": 6}]);
    let ran = run("run", &profile, &[]);
    assert_eq!(ran.code, Some(0), "{}", ran.text);
    let authority = target.url().replace("https://", "");
    let head = asked.try_iter().next().unwrap();
    assert!(head.starts_with(&format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n")), "{head}");
    assert!(!head.contains("sk-test"), "the key is the target's alone: {head}");
    let opened = ran.records.iter().filter(|record| record.proxy_us.is_some()).count();
    assert_eq!(opened, 2, "once a connection");
    let least_us = |metric| ran.result.total.distributions.get(metric).min_us().unwrap();
    assert!(least_us(Metric::Proxy) >= 5_000, "the proxy took its time: {} us", least_us(Metric::Proxy));
    assert_eq!(ran.result.total.distributions.get(Metric::Tls).count(), 2);
}

#[test]
fn what_a_proxy_refuses_is_its_own_class() {
    let closed = {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        format!("http://{}", listener.local_addr().unwrap())
    };
    let answers = [
        ("HTTP/1.1 407 Who are you\r\nContent-Length: 0\r\n\r\n", "407"),
        ("HTTP/1.1 200 ok\r\n\r\nsurplus", "bytes of its own"),
        ("SSH-2.0-x\r\n\r\n", "not HTTP/1"),
    ];
    let proxies = answers.map(|(answer, words)| (tunnelling(answer).0, words));
    for (proxy, words) in proxies.into_iter().chain([(closed, "no connection")]) {
        let mut profile = base("https://gateway.invalid:8081/");
        profile["connections"] = json!({"insecure": true});
        profile["stages"] = json!([{"concurrency": 1, "requests": 2}]);
        let ran = run("run", &profile, &["--proxy", &proxy]);
        for record in &ran.records {
            assert_eq!(record.class, ClientClass::ProxyFailed, "{words}: {}", ran.text);
            assert!(record.detail.as_ref().unwrap().contains(words), "{words}: {:?}", record.detail);
        }
        assert_eq!(ran.records.len(), 2);
    }
}

#[test]
fn variables_of_the_environment_are_no_proxy_and_bad_ones_are_usage() {
    let server = Server::good(common::program::ANSWER_TIME);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("p.json");
    let mut profile = base(&server.url());
    profile["stages"] = json!([{"concurrency": 1, "requests": 2}]);
    std::fs::write(&file, profile.to_string()).unwrap();
    let ended = |flags: &[&str]| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_loadgen"));
        program.args(["run", file.to_str().unwrap(), "--output", dir.path().to_str().unwrap()]).args(flags);
        for name in ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"] {
            program.env(name, "http://127.0.0.1:1");
        }
        program.env(KEY_VARIABLE, "sk-test-key-1234").stdin(Stdio::null()).output().unwrap()
    };
    let plain = ended(&[]);
    assert_eq!(plain.status.code(), Some(0), "{}", String::from_utf8_lossy(&plain.stderr));
    for flags in [["--proxy", "socks5://127.0.0.1:1"], ["--proxy", "http://h:1/path"]] {
        let refused = ended(&flags);
        assert_eq!(refused.status.code(), Some(2), "{}", String::from_utf8_lossy(&refused.stderr));
    }
}

//! A server that only writes prepared bytes, on one thread and one event loop, so that what is measured is the client:
//! `cargo run --profile demo -p loadgen --example bench_server -- KIND [NUMBER] [seconds to live]`. It prints its address.
//! Kinds: `json` (2.7 kB with log probabilities), `json-small` (0.3 kB, no log probabilities), `sse` (NUMBER events, each
//! written with a call of its own, as servers of models do), `h2` (`json-small` over HTTP/2 by prior knowledge; its own cost
//! is not that of the others, so only clients of this kind compare with each other) and `late`: `json-small` asked for NUMBER times a second by a
//! client that is to keep that rate. When the last connection of such a client has gone, it prints how late the
//! requests came, in the same way for every client.

use std::collections::HashMap;
use std::error::Error;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Response;
use loadgen::engine::poller::{Interest, Poller};

const LISTENER: usize = usize::MAX >> 1;
const LARGE: &str = include_str!("../tests/fixtures/ok-nonstream.json");
const SMALL: &str = r#"{"id":"c-1","object":"chat.completion","created":1,"model":"bench-model","choices":[{"index":0,"message":{"role":"assistant","content":"arc bay cab dam ear fan gem hat ice jam key lab map nut oak pan"},"finish_reason":"stop"}],"usage":{"prompt_tokens":16,"completion_tokens":16,"total_tokens":32}}"#;

struct Answer {
    head: Vec<u8>,
    events: Vec<Vec<u8>>,
}

fn document(body: &str) -> Answer {
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    Answer { head: head.into_bytes(), events: Vec::new() }
}

fn stream(chunks: usize) -> Answer {
    let chunk = |text: String| format!("{:x}\r\n{text}\r\n", text.len()).into_bytes();
    let event = |delta: &str, reason: &str| {
        chunk(format!(
            "data: {{\"id\":\"c-1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"bench-model\",\
             \"choices\":[{{\"index\":0,\"delta\":{{{delta}}},\"finish_reason\":{reason}}}]}}\n\n"
        ))
    };
    let mut events: Vec<Vec<u8>> = (0..chunks).map(|_| event("\"content\":\"token \"", "null")).collect();
    let mut last = event("", "\"stop\"");
    last.extend_from_slice(&chunk("data: [DONE]\n\n".to_owned()));
    last.extend_from_slice(b"0\r\n\r\n");
    events.push(last);
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
    Answer { head: head.into(), events }
}

/// Instants at which requests came, against the even grid that a client was told to keep.
struct Arrivals {
    rate: u64,
    start: Instant,
    at_ns: Vec<u64>,
}

impl Arrivals {
    fn note(&mut self) {
        self.at_ns.push(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX));
    }

    /// Lateness against the grid through the most punctual request, the first second left out; then forgets all.
    fn tell(&mut self) -> Option<String> {
        let skipped = usize::try_from(self.rate).ok()?;
        let steady = self.at_ns.get(skipped..).filter(|steady| !steady.is_empty())?;
        let gap_ns = 1_000_000_000 / self.rate;
        let offset = |(index, at_ns): (u64, &u64)| i128::from(*at_ns) - i128::from(index * gap_ns);
        let offsets: Vec<i128> = (0_u64..).zip(steady).map(offset).collect();
        let first = offsets.iter().min().copied()?;
        let mut late: Vec<i128> = offsets.iter().map(|offset| offset - first).collect();
        late.sort_unstable();
        let at = |share: usize| late[(late.len() * share / 1000).min(late.len() - 1)] as f64 / 1_000.0;
        let text = format!(
            "lateness_us p50 {:.1} p99 {:.1} p99.9 {:.1} n {}",
            at(500),
            at(990),
            at(999),
            late.len()
        );
        self.at_ns.clear();
        Some(text)
    }
}

fn serve(stream: &mut TcpStream, buffer: &mut [u8], answer: &Answer) -> Option<bool> {
    match stream.read(buffer) {
        // Every request of a bench fits into one read.
        Ok(count) if count > 0 => {}
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Some(false),
        _ => return None,
    }
    // Answers are far smaller than a socket buffer.
    let sent = stream.write_all(&answer.head).is_ok()
        && answer.events.iter().all(|event| stream.write_all(event).is_ok());
    sent.then_some(true)
}

/// The streams of one HTTP/2 connection.
async fn serve_streams(stream: tokio::net::TcpStream, body: &'static str) {
    let mut builder = h2::server::Builder::new();
    builder.max_concurrent_streams(1_000);
    let Ok(mut connection) = builder.handshake::<_, Bytes>(stream).await else { return };
    while let Some(Ok((request, mut respond))) = connection.accept().await {
        tokio::spawn(async move {
            let mut incoming = request.into_body();
            while let Some(Ok(data)) = incoming.data().await {
                let _ = incoming.flow_control().release_capacity(data.len());
            }
            let head = Response::builder().header("content-type", "application/json").body(());
            if let Ok(mut out) = respond.send_response(head.expect("a plain head"), false) {
                let _ = out.send_data(Bytes::from_static(body.as_bytes()), true);
            }
        });
    }
}

fn serve_http2(body: &'static str, seconds: u64) -> Result<(), Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        println!("http://{}", listener.local_addr()?);
        std::io::stdout().flush()?;
        let end = tokio::time::sleep(Duration::from_secs(seconds));
        tokio::pin!(end);
        loop {
            tokio::select! {
                () = &mut end => return Ok(()),
                accepted = listener.accept() => {
                    let (stream, _) = accepted?;
                    stream.set_nodelay(true)?;
                    tokio::spawn(serve_streams(stream, body));
                }
            }
        }
    })
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let kind = args.next().unwrap_or_default();
    let number: u64 = args.next().unwrap_or_else(|| "64".to_owned()).parse()?;
    let seconds = args.next().unwrap_or_else(|| "600".to_owned()).parse()?;
    if kind == "h2" {
        return serve_http2(SMALL, seconds);
    }
    let answer = match kind.as_str() {
        "sse" => stream(usize::try_from(number)?),
        "json-small" | "late" => document(SMALL),
        _ => document(LARGE),
    };
    let start = Instant::now();
    let mut arrivals = (kind == "late").then_some(Arrivals { rate: number.max(1), start, at_ns: Vec::new() });
    let listener = TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    println!("http://{}", listener.local_addr()?);
    std::io::stdout().flush()?;
    let mut poller = Poller::new()?;
    poller.add(&listener, LISTENER, Interest::Read)?;
    let (mut streams, mut ready, mut buffer) = (HashMap::new(), Vec::new(), vec![0; 64 * 1024]);
    let mut next = 0_usize;
    while start.elapsed() < Duration::from_secs(seconds) {
        poller.wait(Some(500_000), &mut ready);
        for event in ready.drain(..) {
            if event.key == LISTENER {
                while let Ok((connection, _)) = listener.accept() {
                    connection.set_nonblocking(true)?;
                    connection.set_nodelay(true)?;
                    poller.add(&connection, next, Interest::Read)?;
                    streams.insert(next, connection);
                    next += 1;
                }
                continue;
            }
            let Some(stream) = streams.get_mut(&event.key) else { continue };
            match serve(stream, &mut buffer, &answer) {
                Some(true) => arrivals.iter_mut().for_each(Arrivals::note),
                Some(false) => {}
                None => {
                    streams.remove(&event.key);
                    if let Some(text) =
                        arrivals.as_mut().filter(|_| streams.is_empty()).and_then(Arrivals::tell)
                    {
                        println!("{text}");
                    }
                }
            }
        }
    }
    Ok(())
}

//! Prints how many events per second one core parses, with and without reading the JSON.
//!
//! `cargo run --profile demo -p sse --example sse_throughput [seconds per line]`

use std::time::{Duration, Instant};

use sse::{ChatStream, Parser};

/// What a client gets from one read call of a socket.
const READ_BYTES: usize = 16 << 10;

/// A stream of chunks with log probabilities, the size of those of a real gateway.
fn long_stream(chunk: &str, events: usize) -> Vec<u8> {
    format!("data: {chunk}\n\n").repeat(events).into_bytes()
}

/// Runs `pass`, which says how many events it saw, for about `time` and prints the rate.
fn measure(name: &str, stream: &[u8], time: Duration, mut pass: impl FnMut(&[u8]) -> u64) {
    let start = Instant::now();
    let (mut events, mut bytes) = (0, 0_u64);
    while start.elapsed() < time {
        events += pass(stream);
        bytes += stream.len() as u64;
    }
    let seconds = start.elapsed().as_secs_f64();
    let (rate, mebibytes) = (events as f64 / seconds, bytes as f64 / seconds / f64::from(1 << 20));
    println!("{name:<34} {rate:>12.0} events/s {mebibytes:>8.0} MiB/s");
}

fn main() {
    let seconds = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(2.0);
    let time = Duration::from_secs_f64(seconds);
    let short = r#"{"choices":[{"delta":{"content":"word "},"finish_reason":null,"index":0}],"id":"c-1"}"#;
    let entry = r#"{"bytes":[65],"logprob":-1.1,"token":"5102"}"#;
    let logprobs = format!(r#"{{"content":[{{"token":"5102","top_logprobs":[{}]}}]}}"#, [entry; 8].join(","));
    let long = short.replace(r#","index""#, &format!(r#","logprobs":{logprobs},"index""#));
    for (size, chunk) in [("short", short), ("with log probabilities", &long)] {
        let stream = long_stream(chunk, 2000);
        println!("{size}: {} bytes per event", stream.len() / 2000);
        measure("  events only", &stream, time, |stream| {
            let mut parser = Parser::new();
            stream.chunks(READ_BYTES).for_each(|read| parser.feed(read, |_| {}));
            parser.counts().events
        });
        measure("  events and chat facts", &stream, time, |stream| {
            let mut chat = ChatStream::new();
            stream.chunks(READ_BYTES).for_each(|read| chat.feed(read, |_, _| {}));
            chat.finish().content_events
        });
        measure("  the same, one event per read", &stream, time, |stream| {
            let mut chat = ChatStream::new();
            stream.chunks(stream.len() / 2000).for_each(|read| chat.feed(read, |_, _| {}));
            chat.finish().content_events
        });
        measure("  the same, 7 bytes per read", &stream, time, |stream| {
            let mut chat = ChatStream::new();
            stream.chunks(7).for_each(|read| chat.feed(read, |_, _| {}));
            chat.finish().content_events
        });
    }
}

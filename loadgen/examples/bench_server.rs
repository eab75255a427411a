//! A server that only writes prepared bytes, on one thread and one event loop, so that what is measured is the client:
//! `cargo run --profile demo -p loadgen --example bench_server -- [json|sse] [chunks] [seconds to live]`. It prints its
//! address. `sse` writes each event with a call of its own, as servers of models do.

use std::collections::HashMap;
use std::error::Error;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use loadgen::engine::poller::{Interest, Poller};

const LISTENER: usize = usize::MAX >> 1;

struct Answer {
    head: Vec<u8>,
    events: Vec<Vec<u8>>,
}

fn answer(stream: bool, chunks: usize) -> Answer {
    if !stream {
        let body = include_str!("../tests/fixtures/ok-nonstream.json");
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        return Answer { head: head.into_bytes(), events: Vec::new() };
    }
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

fn serve(stream: &mut TcpStream, buffer: &mut [u8], answer: &Answer) -> bool {
    match stream.read(buffer) {
        // Every request of a bench fits into one read.
        Ok(count) if count > 0 => {}
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return true,
        _ => return false,
    }
    // Answers are far smaller than a socket buffer.
    stream.write_all(&answer.head).is_ok()
        && answer.events.iter().all(|event| stream.write_all(event).is_ok())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let stream = args.next().as_deref() == Some("sse");
    let chunks = args.next().unwrap_or_else(|| "64".to_owned()).parse()?;
    let seconds = args.next().unwrap_or_else(|| "600".to_owned()).parse()?;
    let answer = answer(stream, chunks);
    let listener = TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    println!("http://{}", listener.local_addr()?);
    std::io::stdout().flush()?;
    let mut poller = Poller::new()?;
    poller.add(&listener, LISTENER, Interest::Read)?;
    let (mut streams, mut ready, mut buffer) = (HashMap::new(), Vec::new(), vec![0; 64 * 1024]);
    let mut next = 0_usize;
    let end = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < end {
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
            } else if let Some(stream) = streams.get_mut(&event.key)
                && !serve(stream, &mut buffer, &answer)
            {
                streams.remove(&event.key);
            }
        }
    }
    Ok(())
}

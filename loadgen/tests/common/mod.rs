//! A server that does exactly what a test tells it, on a port of the kernel's choice, and helpers for plans and jobs.
#![allow(
    dead_code,
    clippy::allow_attributes,
    clippy::unwrap_used,
    missing_docs,
    reason = "each test program uses its own part of this module"
)]

pub mod program;
pub mod secure;

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use evidence::record::RequestRecord;
use evidence::redact::Redactor;
use loadgen::checks::Check;
use loadgen::clock::Clock;
use loadgen::connection::request::HeadTemplate;
use loadgen::connection::transport::{Options, Transport};
use loadgen::engine::reactor::Reactor;
use loadgen::engine::spare::Spare;
use loadgen::engine::{Ended, KeepAlive, Load, Next, Route, Shared, Work};
use loadgen::halt::Halt;
use loadgen::protocol::openai_chat::OpenAiChat;
use loadgen::result::Wires;
use loadgen::target::Target;
use scenario::identity::RequestId;
use scenario::pipe::LoadLimits;
use scenario::plan::{PLAN_VERSION, PlanLine, PromptRecipe};

pub const JSON_BODY: &str = include_str!("../fixtures/ok-nonstream.json");
pub const SSE_BODY: &str = include_str!("../fixtures/ok-stream.txt");

/// One connection as the handler sees it.
pub struct Peer {
    pub stream: TcpStream,
    buffer: Vec<u8>,
    pub requests: Arc<AtomicU64>,
}

/// What a request was.
#[derive(Debug)]
pub struct Request {
    pub head: String,
    pub body: Vec<u8>,
    /// Number of the request at this server, from 0.
    pub number: u64,
}

impl Request {
    /// A whole request from the start of a buffer.
    pub fn take(buffer: &mut Vec<u8>, number: u64) -> Option<Self> {
        let end = buffer.windows(4).position(|window| window == b"\r\n\r\n")?;
        let head = String::from_utf8_lossy(&buffer[..end]).into_owned();
        let length: usize = head
            .lines()
            .find_map(|line| line.strip_prefix("Content-Length: "))
            .and_then(|text| text.parse().ok())
            .unwrap_or_default();
        let body = buffer.get(end + 4..end + 4 + length)?.to_vec();
        buffer.drain(..end + 4 + length);
        Some(Self { head, body, number })
    }

    pub fn is_stream(&self) -> bool {
        String::from_utf8_lossy(&self.body).contains("\"stream\":true")
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (key, value) = line.split_once(": ")?;
            key.eq_ignore_ascii_case(name).then_some(value)
        })
    }
}

impl Peer {
    /// The next request; `None` when the client closed.
    pub fn request(&mut self) -> Option<Request> {
        let mut chunk = [0; 16 * 1024];
        loop {
            if let Some(mut request) = Request::take(&mut self.buffer, 0) {
                request.number = self.requests.fetch_add(1, Ordering::SeqCst);
                return Some(request);
            }
            match self.stream.read(&mut chunk) {
                Ok(0) | Err(_) => return None,
                Ok(count) => self.buffer.extend_from_slice(&chunk[..count]),
            }
        }
    }

    pub fn send(&mut self, text: impl AsRef<[u8]>) -> bool {
        self.stream.write_all(text.as_ref()).is_ok()
    }

    /// RST instead of FIN at the close.
    pub fn reset_on_close(&self) {
        let socket = socket2::SockRef::from(&self.stream);
        socket.set_linger(Some(Duration::ZERO)).unwrap();
    }

    /// How the client closed: `fin`, `rst`, or `open` when it did not within the time.
    pub fn how_closed(&mut self, limit: Duration) -> &'static str {
        self.stream.set_read_timeout(Some(limit)).unwrap();
        let mut chunk = [0; 1024];
        loop {
            match self.stream.read(&mut chunk) {
                Ok(0) => return "fin",
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return "rst",
                Err(_) => return "open",
            }
        }
    }
}

/// A server that ends when it is dropped.
pub struct Server {
    pub address: SocketAddr,
    pub requests: Arc<AtomicU64>,
    pub connections: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Runs `handler` in a thread for each connection.
    pub fn start(handler: impl Fn(&mut Peer) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, requests) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let connections = Arc::new(AtomicU64::new(0));
        let handler = Arc::new(handler);
        let shared = (Arc::clone(&stop), Arc::clone(&requests), Arc::clone(&connections));
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if shared.0.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(stream) = stream else { continue };
                stream.set_nodelay(true).unwrap();
                shared.2.fetch_add(1, Ordering::SeqCst);
                let handler = Arc::clone(&handler);
                let requests = Arc::clone(&shared.1);
                std::thread::spawn(move || handler(&mut Peer { stream, buffer: Vec::new(), requests }));
            }
        });
        Self { address, requests, connections, stop, thread: Some(thread) }
    }

    /// Answers every request well, JSON and SSE.
    pub fn good(delay: Duration) -> Self {
        Self::start(move |peer| {
            while let Some(request) = peer.request() {
                std::thread::sleep(delay);
                if !peer.send(good_answer(request.is_stream())) {
                    return;
                }
            }
        })
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

pub fn json_answer(body: &str) -> String {
    format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nX-Request-Id: req-1-2\r\nX-Devshard-Id: 7\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

pub const SSE_HEAD: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nX-Request-Id: req-1-3\r\n\
    X-Devshard-Id: 7\r\nTransfer-Encoding: chunked\r\n\r\n";

pub fn chunk(text: &str) -> String {
    format!("{:x}\r\n{text}\r\n", text.len())
}

pub fn sse_answer(body: &str) -> String {
    format!("{SSE_HEAD}{}0\r\n\r\n", chunk(body))
}

pub fn good_answer(stream: bool) -> String {
    if stream { sse_answer(SSE_BODY) } else { json_answer(JSON_BODY) }
}

pub fn line(index: u64, stream: bool) -> PlanLine {
    PlanLine {
        v: PLAN_VERSION,
        index,
        id: RequestId::new("test", 1, index),
        stream,
        max_tokens: 8,
        cancel: None,
        rules: Vec::new(),
        prompt: PromptRecipe { seed: 1, index, input_tokens: 4 },
        prompt_digest: String::new(),
        duplicate_of: None,
        checks: Vec::new(),
    }
}

/// A load that sends lines in their order, so many at a time.
pub struct OneByOne {
    head: HeadTemplate,
    lines: VecDeque<(PlanLine, Vec<u8>)>,
    pub ended: Vec<Ended>,
    open: usize,
    at_once: usize,
}

impl Load for OneByOne {
    fn next(&mut self, now_us: u64, spare: &mut Spare) -> Next {
        if self.open >= self.at_once {
            return Next::Blocked;
        }
        let Some((line, body)) = self.lines.pop_front() else { return Next::Over };
        self.open += 1;
        let mut request = spare.take();
        self.head.write(line.id.as_str(), &body, &mut request);
        let blank = RequestRecord::blank(line.index, line.id, line.stream);
        let record = RequestRecord { planned_us: Some(now_us), released_us: Some(now_us), ..blank };
        Next::Start(Box::new(Work {
            tag: line.index,
            route: 0,
            part: 0,
            record: Box::new(record),
            cancel: line.cancel,
            checks: line.checks.iter().map(Check::from).collect(),
            keep_content: false,
            digest: true,
            request,
        }))
    }

    fn ended(&mut self, ended: Ended, _now_us: u64) {
        self.open -= 1;
        self.ended.push(ended);
    }

    fn event_gap(&mut self, _tag: u64, _gap_us: u64) {}

    fn tick(&mut self, _now_us: u64, _sent: u64) -> Option<u64> {
        None
    }
}

/// Sends lines one after another over one event loop; gives everything that was seen.
pub fn run_lines(
    url: &str,
    lines: Vec<(PlanLine, Vec<u8>)>,
    limits: LoadLimits,
    keep: KeepAlive,
) -> Vec<Ended> {
    run_over(url, lines, limits, keep, &Options::default(), 1).0
}

/// The same over other connections, so many lines at a time.
pub fn run_over(
    url: &str,
    lines: Vec<(PlanLine, Vec<u8>)>,
    limits: LoadLimits,
    keep: KeepAlive,
    options: &Options,
    at_once: usize,
) -> (Vec<Ended>, Wires) {
    run_to(Target::resolve(url).unwrap(), lines, limits, keep, options, at_once)
}

/// The same to a target whose name may be resolved later.
pub fn run_to(
    target: Target,
    lines: Vec<(PlanLine, Vec<u8>)>,
    limits: LoadLimits,
    keep: KeepAlive,
    options: &Options,
    at_once: usize,
) -> (Vec<Ended>, Wires) {
    let (mut reactor, mut load) = prepared(target, lines, (limits, keep), options, at_once);
    reactor.run(&mut load, &Halt::default());
    (load.ended, reactor.take_wires())
}

/// An event loop and a load for it.
pub fn prepared(
    target: Target,
    lines: Vec<(PlanLine, Vec<u8>)>,
    (limits, keep): (LoadLimits, KeepAlive),
    options: &Options,
    at_once: usize,
) -> (Reactor, OneByOne) {
    let head = HeadTemplate::new(&target, None);
    let transport = Transport::new(&target, options).unwrap();
    let load = OneByOne { head: head.clone(), lines: lines.into(), ended: Vec::new(), open: 0, at_once };
    let route = Route { target, head, protocol: &OpenAiChat, limits, keep, transport };
    let shared = Shared { routes: vec![route], redactor: Redactor::default() };
    (Reactor::new(Clock::start(), shared, false).unwrap(), load)
}

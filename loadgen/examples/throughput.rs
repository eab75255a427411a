//! Requests a second of the whole send path (plan, pool, parser, record file) against a server that only writes
//! prepared bytes: `cargo run --profile demo -p loadgen --example throughput -- [connections] [requests] [json|sse]`.
//! The CPU figure is that of the load thread alone.

use std::error::Error;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

use evidence::redact::Redactor;
use loadgen::clock::Clock;
use loadgen::connection::request::HeadTemplate;
use loadgen::connection::transport::{Options, Transport};
use loadgen::engine::plan_load::{Parts, PlanLoad};
use loadgen::engine::reactor::Reactor;
use loadgen::engine::{KeepAlive, Route, Shared};
use loadgen::halt::Halt;
use loadgen::plan_source::PlanSource;
use loadgen::protocol::openai_chat::OpenAiChat;
use loadgen::record_writer::{Overflow, RecordWriter};
use loadgen::target::Target;
use loadgen::{body, summary};
use rustix::time::{ClockId, clock_gettime};
use scenario::identity::RequestId;
use scenario::model::Step;
use scenario::pipe::LoadLimits;
use scenario::plan::{PLAN_VERSION, PlanLine, PromptRecipe};
use scenario::units::Micros;

const JSON: &str = include_str!("../tests/fixtures/ok-nonstream.json");
const SSE: &str = include_str!("../tests/fixtures/ok-stream.txt");

fn serve(mut stream: TcpStream, answer: &[u8]) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = vec![0; 16 * 1024];
    // Every request of this program fits into one read.
    while stream.read(&mut buffer)? > 0 {
        stream.write_all(answer)?;
    }
    Ok(())
}

fn answer(stream: bool) -> Vec<u8> {
    let (kind, body) = if stream { ("text/event-stream", SSE) } else { ("application/json", JSON) };
    format!("HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n{body}", body.len())
        .into_bytes()
}

fn line(index: u64, stream: bool) -> PlanLine {
    PlanLine {
        v: PLAN_VERSION,
        index,
        id: RequestId::new("bench", 1, index),
        stream,
        max_tokens: 8,
        cancel: None,
        rules: Vec::new(),
        prompt: PromptRecipe { seed: 1, index, input_tokens: 16 },
        prompt_digest: String::new(),
        duplicate_of: None,
        checks: Vec::new(),
    }
}

fn cpu_us() -> i64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec * 1_000_000 + time.tv_nsec / 1_000
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let connections: u32 = args.next().unwrap_or_else(|| "64".to_owned()).parse()?;
    let requests: u64 = args.next().unwrap_or_else(|| "200000".to_owned()).parse()?;
    let stream = args.next().as_deref() == Some("sse");
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let url = format!("http://{}", listener.local_addr()?);
    std::thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            std::thread::spawn(move || serve(connection, &answer(stream)));
        }
    });
    let folder = std::env::temp_dir().join(format!("loadgen-throughput-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let limit = Micros::from_s(30);
    let limits = LoadLimits {
        connect: limit,
        headers: limit,
        first_byte: limit,
        idle: limit,
        total: limit,
        drain: limit,
    };
    let clock = Clock::start();
    let target = Target::resolve(&url)?;
    let transport = Transport::new(&target, &Options::default())?;
    let head = HeadTemplate::new(&target, None);
    let (writer, _failed) = RecordWriter::open(&folder.join("requests.jsonl"), Overflow::Wait)?;
    let halt = Arc::new(Halt::default());
    let mut load = PlanLoad::new(Parts {
        clock,
        head: head.clone(),
        plan: PlanSource::made(requests, Box::new(move |index| line(index, stream))),
        body: body::from_plan("abcdefghijkl".to_owned(), "m".to_owned()),
        writer,
        halt: Arc::clone(&halt),
        observer: Box::new(|_| {}),
        pulse: None,
    });
    let route = Route { target, head, protocol: &OpenAiChat, limits, keep: KeepAlive::Reuse, transport };
    let mut reactor =
        Reactor::new(clock, Shared { routes: vec![route], redactor: Redactor::default() }, false)?;
    let step = Step { concurrency: connections, requests: Some(requests), duration: None };
    let before = cpu_us();
    load.begin(0, &step);
    reactor.run(&mut load, &halt);
    load.end(&step, reactor.sent())?;
    let spent = cpu_us() - before;
    let (_, tally) = load.close()?;
    print!("{}", summary::text(&tally, clock.now_us(), false));
    println!("CPU of the load thread        {} ns a request", spent * 1_000 / i64::try_from(requests)?);
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}

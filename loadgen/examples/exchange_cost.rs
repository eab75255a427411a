//! Requests one after another through everything of loadgen but sockets and event loop: plan, body, head, answer, figures,
//! record. No clock and no other thread decides about a step, so that an instruction counter gives the same number on
//! every machine: `valgrind --tool=callgrind target/debug/examples/exchange_cost [json|sse] [requests]`.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use evidence::redact::Redactor;
use loadgen::clock::Clock;
use loadgen::connection::request::HeadTemplate;
use loadgen::connection::transport::{Options, Transport};
use loadgen::engine::conversation::Writer;
use loadgen::engine::exchange::Exchange;
use loadgen::engine::live::Live;
use loadgen::engine::profile_load::{Parts, ProfileLoad};
use loadgen::engine::spare::Spare;
use loadgen::engine::{KeepAlive, Load as _, Next, Route};
use loadgen::halt::Halt;
use loadgen::profile::model::Profile;
use loadgen::profile::resolve;
use loadgen::protocol::Protocol as _;
use loadgen::protocol::openai_chat::OpenAiChat;
use loadgen::record_writer::{Overflow, RecordWriter};
use loadgen::target::Target;
use scenario::pipe::Shard;
use serde_json::json;

const JSON: &str = include_str!("../tests/fixtures/ok-nonstream.json");
const SSE: &str = include_str!("../tests/fixtures/ok-stream.txt");
/// Bytes of an answer that come with one read.
const READ_BYTES: usize = 1024;

fn answer(stream: bool) -> String {
    let (kind, body) = if stream { ("text/event-stream", SSE) } else { ("application/json", JSON) };
    format!("HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let stream = args.next().as_deref() == Some("sse");
    let requests: u64 = args.next().unwrap_or_else(|| "1000".to_owned()).parse()?;
    let url = "http://127.0.0.1:9";
    let profile: Profile = serde_json::from_value(json!({
        "name": "cost",
        "defaults": {"target": url, "protocol": "openai-chat", "model": "m", "max_tokens": 8, "stream": stream},
        "stages": [{"concurrency": 1, "requests": requests}],
        "reuse_body": true,
    }))?;
    let plan = Arc::new(resolve(&profile, Path::new(".")).map_err(|error| error.to_string())?);
    let target = Target::of_call(url, OpenAiChat.path())?;
    let head = HeadTemplate::new(&target, None);
    let folder = std::env::temp_dir().join(format!("loadgen-cost-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let (writer, _failed) = RecordWriter::open(&folder.join("records.jsonl"), Overflow::Wait)?;
    let mut load = ProfileLoad::new(Parts {
        clock: Clock::start(),
        stages: plan.stages.clone(),
        requests: Writer::new(Arc::clone(&plan), vec![head.clone()], "abcdefghijkl"),
        writer,
        halt: Arc::new(Halt::default()),
        shard: Shard { shard: 0, of: 1 },
        live: Arc::new(Live::default()),
        speaks: false,
        begin_us: None,
        director: None,
        plan: Arc::clone(&plan),
    });
    let transport = Transport::new(&target, &Options::default())?;
    let (limits, keep) = (plan.limits, KeepAlive::Reuse);
    let route = Route { target, head, protocol: &OpenAiChat, limits, keep, transport };
    let (redactor, mut spare, answer) = (Redactor::default(), Spare::default(), answer(stream));
    let mut now_us = 0;
    loop {
        let work = match load.next(now_us, &mut spare) {
            Next::Start(work) => work,
            Next::Over => break,
            next => return Err(format!("one user who never waits, and yet {next:?}").into()),
        };
        let tag = work.tag;
        let mut exchange = Exchange::new(*work, &route);
        exchange.on_send(&route, true, now_us);
        exchange.on_sent(&route, now_us);
        spare.put(exchange.take_request());
        for piece in answer.as_bytes().chunks(READ_BYTES) {
            now_us += 100;
            exchange.on_read(&route, piece, now_us, &mut |gap_us| load.event_gap(tag, gap_us));
        }
        load.ended(exchange.finish(None, &redactor, now_us), now_us);
    }
    let outcome = load.close()?;
    let ok: u64 = outcome.stages.iter().map(|(_, part)| part.total().counts.ok()).sum();
    std::fs::remove_dir_all(&folder)?;
    println!("{ok} ok");
    if ok == requests { Ok(()) } else { Err("an answer was not taken for a good one".into()) }
}

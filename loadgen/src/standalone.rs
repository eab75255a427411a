//! `loadgen --gateway-url …`: the controls of the specification without a runner. The plan is made on the way, seeded
//! exactly like that of a scenario; the result is `requests.jsonl` and a summary for people.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use evidence::exit::Outcome;
use evidence::record::ClientClass;
use evidence::redact::Redactor;
use scenario::draw::selected;
use scenario::fault::Close;
use scenario::identity::{RequestId, SALT_LEN, valid_name};
use scenario::model::{CancelPhase, Step};
use scenario::pipe::{LoadLimits, LoadgenLine};
use scenario::plan::{CANCEL_DRAW, CancelPoint, PLAN_VERSION, PlanLine, PromptRecipe, STREAM_DRAW};
use scenario::units::{Micros, Ppb};
use tokio::task::LocalSet;

use crate::body;
use crate::clock::Clock;
use crate::connection::request::{ClientKey, HeadTemplate, KEY_VARIABLE};
use crate::connection::transport::{CA_UNUSED, Http, Options, Transport};
use crate::engine::plan_load::Parts;
use crate::engine::plan_thread::PlanThread;
use crate::engine::{KeepAlive, Route, Shared};
use crate::error::LoadgenError;
use crate::halt::Halt;
use crate::health;
use crate::plan_source::PlanSource;
use crate::protocol::openai_chat::OpenAiChat;
use crate::record_writer::{Overflow, RecordWriter, Written};
use crate::summary;
use crate::supervisor;
use crate::tally::Tally;
use crate::target::Target;

/// File of the records in the output directory.
const RECORDS_FILE: &str = "requests.jsonl";
/// File of the summary in the output directory.
const SUMMARY_FILE: &str = "summary.txt";
const CONNECT_LIMIT: Micros = Micros::from_s(10);
/// After Ctrl-C, time for open requests.
const DRAIN_LIMIT: Micros = Micros::from_s(10);

/// Flags of the standalone mode.
#[derive(Clone, Debug, Args)]
pub struct Flags {
    /// Base URL of the gateway, http://host:port or https://…; /v1/chat/completions below it is called.
    #[arg(long, value_name = "URL")]
    pub gateway_url: String,
    /// Requests in flight at the same time.
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub concurrency: u32,
    /// Ends after this time, for example 30s; open requests are waited for.
    #[arg(long, value_name = "TIME", value_parser = Micros::parse, conflicts_with = "requests")]
    #[arg(required_unless_present = "requests")]
    pub duration: Option<Micros>,
    /// Ends after exactly this many requests.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub requests: Option<u64>,
    /// Share of streamed (SSE) requests, 0 to 1.
    #[arg(long, value_name = "SHARE", value_parser = Ppb::parse, default_value = "0.5")]
    pub stream_ratio: Ppb,
    /// Size of the prompt in tokens, four characters each.
    #[arg(long, value_name = "TOKENS", default_value_t = 64)]
    pub request_size: u32,
    /// Output tokens asked for.
    #[arg(long, value_name = "TOKENS", default_value_t = 32)]
    pub max_tokens: u32,
    /// Limit of a whole request, for example 60s; also of its headers, first byte and silences.
    #[arg(long, value_name = "TIME", value_parser = Micros::parse, default_value = "60s")]
    pub timeout: Micros,
    /// Where selected clients leave: before-headers, after-headers, first-content or nth-event.
    #[arg(long, value_name = "PHASE", value_parser = phase, requires = "cancel_fraction")]
    pub cancel_phase: Option<CancelPhase>,
    /// Share of requests that leave at --cancel-phase, 0 to 1.
    #[arg(long, value_name = "SHARE", value_parser = Ppb::parse, requires = "cancel_phase")]
    pub cancel_fraction: Option<Ppb>,
    /// For nth-event: which event, from 1.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub cancel_event: u64,
    /// Name of the run, [a-z0-9-]; request ids begin with it.
    #[arg(long, value_name = "NAME", default_value = "load", value_parser = run_id)]
    pub run_id: String,
    /// Seed of all choices.
    #[arg(long, value_name = "N", default_value_t = 42)]
    pub seed: u64,
    /// Directory for requests.jsonl and summary.txt; made when missing.
    #[arg(long, value_name = "DIR")]
    pub output: PathBuf,
    /// Model name sent.
    #[arg(long, value_name = "NAME")]
    pub model: String,
    /// Version of HTTP: auto, 1.1 or 2 (by prior knowledge to http://).
    #[arg(long, value_name = "VERSION", value_parser = Http::parse, default_value = "auto")]
    pub http: Http,
    /// PEM file with root certificates beside those of the system.
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// Believe any certificate; the summary says so.
    #[arg(long)]
    pub insecure: bool,
}

fn phase(text: &str) -> Result<CancelPhase, String> {
    serde_json::from_value(serde_json::Value::String(text.to_owned()))
        .map_err(|_| "one of before-headers, after-headers, first-content, nth-event".to_owned())
}

fn run_id(text: &str) -> Result<String, String> {
    if valid_name(text) {
        Ok(text.to_owned())
    } else {
        Err("a name is [a-z0-9-], at most 40 characters".to_owned())
    }
}

/// Runs the load and gives the exit code: 0 when every request did what was asked of it, 1 when one failed, 3 when
/// the generator itself was the limit, 4 when nothing was sent, 130 after a signal.
#[must_use]
pub fn run(flags: &Flags) -> u8 {
    match try_run(flags) {
        Ok(outcome) => outcome.code(),
        Err(error) => {
            eprintln!("loadgen: {error}");
            error.outcome().code()
        }
    }
}

fn try_run(flags: &Flags) -> Result<Outcome, LoadgenError> {
    let clock = Clock::start();
    for (name, span) in [("--timeout", Some(flags.timeout)), ("--duration", flags.duration)] {
        if span.is_some_and(|span| span.us() == 0) {
            return Err(LoadgenError::Usage(format!("{name} is 0; give a time above it")));
        }
    }
    let target = Target::resolve(&flags.gateway_url)?;
    let key = ClientKey::from_env()?;
    health::make_room(u64::from(flags.concurrency))?;
    let records = prepare(&flags.output)?;
    let (writer, write_failed) = RecordWriter::open(&records, Overflow::Wait)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| LoadgenError::Environment(format!("the runtime can't start: {error}")))?;
    let halt = Arc::new(Halt::default());
    let head = HeadTemplate::new(&target, key.as_ref());
    let redactor = Redactor::new(key.iter().map(|key| key.secret().to_owned()));
    let maker = flags.clone();
    let parts = Parts {
        clock,
        head: head.clone(),
        plan: PlanSource::made(
            flags.requests.unwrap_or(u64::MAX),
            Box::new(move |index| line(&maker, index)),
        ),
        body: body::from_plan(salt(&clock), flags.model.clone()),
        writer,
        halt: Arc::clone(&halt),
        observer: Box::new(report),
        pulse: None,
    };
    let options =
        Options { http: flags.http, ca: flags.ca.clone(), insecure: flags.insecure, ..Options::default() };
    let transport = Transport::new(&target, &options)?;
    if flags.ca.is_some() && !target.secure {
        eprintln!("loadgen: {CA_UNUSED}");
    }
    let (limits, keep) = (limits(flags), KeepAlive::Reuse);
    let route = Route { target, head, protocol: &OpenAiChat, limits, keep, transport };
    let engine = PlanThread::start(parts, Shared { routes: vec![route], redactor })?;
    if key.is_none() {
        eprintln!("loadgen: no client key ({KEY_VARIABLE} is not set)");
    }
    let (written, tally) = LocalSet::new().block_on(&runtime, drive(engine, flags, &halt, write_failed))?;
    if let Some(message) = written.error {
        return Err(LoadgenError::Environment(message));
    }
    let mut text = summary::text(&tally, clock.now_us(), halt.is_stopped());
    if flags.insecure {
        text.insert_str(0, "CERTIFICATES WERE NOT CHECKED (--insecure): who answered is not known\n");
    }
    crate::terminal::say(&text);
    let path = flags.output.join(SUMMARY_FILE);
    std::fs::write(&path, &text)
        .map_err(|error| LoadgenError::Environment(format!("{}: {error}", path.display())))?;
    Ok(outcome(&tally, halt.is_stopped()))
}

async fn drive(
    engine: PlanThread,
    flags: &Flags,
    halt: &Arc<Halt>,
    write_failed: crate::record_writer::WriteFailed,
) -> Result<(Written, Tally), LoadgenError> {
    let signals = supervisor::Signals::listen()?;
    let supervisor = tokio::task::spawn_local(supervisor::run(supervisor::Inputs {
        commands: None,
        signals,
        write_failed,
        halt: Arc::clone(halt),
        drain: DRAIN_LIMIT.duration(),
    }));
    let step = Step { concurrency: flags.concurrency, requests: flags.requests, duration: flags.duration };
    let mut result = engine.run_step(0, &step).await.map(|_| ());
    // A load by time has no planned number, so that nothing of it can be left over.
    if result.is_ok() && flags.requests.is_some() {
        result = engine.write_rest().await;
    }
    supervisor.abort();
    let _ = supervisor.await;
    let closed = engine.close()?;
    result.map(|()| closed)
}

/// One request of the plan; the draws are those of a scenario of this name and seed.
fn line(flags: &Flags, index: u64) -> PlanLine {
    let id = RequestId::new(&flags.run_id, flags.seed, index);
    let drawn =
        |(rule, purpose): (&str, &str), share| selected(flags.seed, rule, purpose, id.as_str(), share);
    let cancel = match (flags.cancel_phase, flags.cancel_fraction) {
        (Some(phase), Some(share)) if drawn(CANCEL_DRAW, share) => {
            let event = if phase == CancelPhase::NthEvent { flags.cancel_event } else { 0 };
            Some(CancelPoint { phase, event, after: Micros::ZERO, close: Close::Fin })
        }
        _ => None,
    };
    PlanLine {
        v: PLAN_VERSION,
        index,
        stream: drawn(STREAM_DRAW, flags.stream_ratio),
        max_tokens: flags.max_tokens,
        cancel,
        rules: Vec::new(),
        prompt: PromptRecipe { seed: flags.seed, index, input_tokens: flags.request_size },
        // Nobody compares the plan of a standalone run; the digest is left to those who write plans.
        prompt_digest: String::new(),
        duplicate_of: None,
        checks: Vec::new(),
        id,
    }
}

fn limits(flags: &Flags) -> LoadLimits {
    LoadLimits {
        connect: CONNECT_LIMIT.min(flags.timeout),
        headers: flags.timeout,
        first_byte: flags.timeout,
        idle: flags.timeout,
        total: flags.timeout,
        drain: DRAIN_LIMIT,
    }
}

/// New for every run, so that no response cache answers for an earlier one.
fn salt(clock: &Clock) -> String {
    let seed = format!("{}/{}", clock.wall_anchor_unix_us(), std::process::id());
    blake3::hash(seed.as_bytes()).to_hex()[..SALT_LEN].to_owned()
}

/// Makes the directory; gives the path of the records. Records of an earlier run are never mixed with new ones.
fn prepare(output: &Path) -> Result<PathBuf, LoadgenError> {
    std::fs::create_dir_all(output)
        .map_err(|error| LoadgenError::Environment(format!("{}: {error}", output.display())))?;
    let records = output.join(RECORDS_FILE);
    if records.exists() {
        return Err(LoadgenError::Usage(format!(
            "{} exists already; give another --output, results are never overwritten",
            records.display()
        )));
    }
    Ok(records)
}

fn report(line: LoadgenLine) {
    if let LoadgenLine::Progress { at_us, sent, done, in_flight, classes, .. } = line {
        let ok = classes.get("ok").copied().unwrap_or_default();
        let at_s = at_us / 1_000_000;
        eprintln!("loadgen: {at_s} s, sent {sent}, done {done}, in flight {in_flight}, ok {ok}");
    }
}

fn outcome(tally: &Tally, stopped: bool) -> Outcome {
    let count = |class| tally.count(class);
    let limited =
        count(ClientClass::GeneratorPorts) + count(ClientClass::GeneratorFds) + count(ClientClass::Dropped);
    if stopped {
        Outcome::Interrupted
    } else if tally.done == 0 {
        Outcome::Unknown
    } else if limited > 0 {
        Outcome::Invalid
    } else if count(ClientClass::Ok) + count(ClientClass::Cancelled) < tally.done {
        Outcome::Fail
    } else {
        Outcome::Pass
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outcome_follows_the_classes() {
        let with = |classes: &[(ClientClass, u64)]| Tally {
            done: classes.iter().map(|(_, count)| count).sum(),
            classes: classes.iter().copied().collect(),
            ..Tally::default()
        };
        use ClientClass as C;
        for (classes, stopped, expected) in [
            (&[(C::Ok, 3), (C::Cancelled, 1)][..], false, Outcome::Pass),
            (&[(C::Ok, 3), (C::Truncated, 1)], false, Outcome::Fail),
            (&[(C::Ok, 3), (C::Truncated, 1), (C::GeneratorPorts, 1)], false, Outcome::Invalid),
            (&[], false, Outcome::Unknown),
            (&[(C::Ok, 3)], true, Outcome::Interrupted),
        ] {
            assert_eq!(outcome(&with(classes), stopped), expected, "{classes:?}");
        }
    }
}

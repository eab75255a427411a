//! `loadgen run PROFILE` and `loadgen search PROFILE`: threads, signals, result, files.

pub mod director;
pub mod judge;
pub mod preflight;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use evidence::exit::Outcome;
use evidence::redact::Redactor;
use scenario::build::BUILD_ID;
use scenario::error::{Position, Problem, ScenarioError};
use scenario::identity::SALT_LEN;
use scenario::pipe::Shard;
use scenario::units::Micros;
use tokio::task::LocalSet;

use crate::clock::Clock;
use crate::connection::request::{ClientKey, HeadTemplate};
use crate::connection::transport::{Dns, Http, Transport};
use crate::engine::conversation::Writer;
use crate::engine::live::Live;
use crate::engine::profile_load::{Director, Outcome as ThreadOutcome, Parts, ProfileLoad};
use crate::engine::reactor::Reactor;
use crate::engine::stage::StagePart;
use crate::engine::{KeepAlive, Route, Shared};
use crate::error::LoadgenError;
use crate::halt::Halt;
use crate::health;
use crate::output;
use crate::profile::model::Profile;
use crate::profile::resolve::StagePlan;
use crate::profile::{self, Resolved, Wrong};
use crate::record_writer::{Overflow, RecordWriter, WriteFailed};
use crate::result::{Figures, Health, OverTime, RESULT_VERSION, RunInfo, RunResult, Verdict, Wires};
use crate::supervisor;
use crate::target::Target;
use crate::terminal;

/// Bytes of a profile that are read.
const PROFILE_BYTES_MAX: u64 = 16 << 20;

/// Flags of `run` and `search`; each lies over what the file says.
#[derive(Clone, Debug, Args)]
pub struct RunFlags {
    /// Profile file, JSON or YAML; `-` reads it from standard input, and files that it names are looked for here.
    #[arg(value_name = "PROFILE")]
    pub profile: PathBuf,
    /// Directory for results; made when missing.
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub output: PathBuf,
    /// URL of the call, in place of the defaults'.
    #[arg(long, value_name = "URL")]
    pub target: Option<String>,
    /// Model name, in place of the defaults'.
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
    /// Length of every stage that has one, for example 5s.
    #[arg(long, value_name = "TIME", value_parser = Micros::parse)]
    pub duration: Option<Micros>,
    /// Warm-up of every stage.
    #[arg(long, value_name = "TIME", value_parser = Micros::parse)]
    pub warmup: Option<Micros>,
    /// Seed of all choices.
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Name of the run.
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Threads that send.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(profile::THREADS_MAX)))]
    pub threads: Option<u32>,
    /// The i-th of n shares of the plan, from 0: `0/2` and `1/2` on two machines make one load.
    #[arg(long, value_name = "I/N", value_parser = shard, default_value = "0/1")]
    pub shard: Shard,
    /// Text that keeps response caches out of reruns; new for every run when not given.
    #[arg(long, value_name = "TEXT")]
    pub salt: Option<String>,
    /// Version of HTTP: auto, 1.1 or 2 (by prior knowledge to http://).
    #[arg(long, value_name = "VERSION", value_parser = Http::parse)]
    pub http: Option<Http>,
    /// PEM file with root certificates beside those of the system.
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// Believe any certificate; every report says so.
    #[arg(long)]
    pub insecure: bool,
    /// HTTP proxy, http://host:port; variables of the environment are ignored.
    #[arg(long, value_name = "URL")]
    pub proxy: Option<String>,
    /// Keep each thread that sends on a core of its own.
    #[arg(long)]
    pub pin: bool,
    /// No progress lines.
    #[arg(long)]
    pub quiet: bool,
    /// Reads and checks the profile, says what it means, and sends nothing.
    #[arg(long)]
    pub dry_run: bool,
}

fn shard(text: &str) -> Result<Shard, String> {
    let parts = text.split_once('/').and_then(|(shard, of)| Some((shard.parse().ok()?, of.parse().ok()?)));
    match parts {
        Some((shard, of)) if shard < of => Ok(Shard { shard, of }),
        _ => Err("write i/n, i from 0 and below n".to_owned()),
    }
}

/// Runs a profile and gives the exit code: 0 held, 1 a threshold broke, 2 usage, 3 the generator was the limit, 4 too
/// little happened, 5 environment, 130 after a signal.
#[must_use]
pub fn run(flags: &RunFlags, search: bool) -> u8 {
    match try_run(flags, search) {
        Ok(outcome) => outcome.code(),
        Err(error) => {
            eprintln!("loadgen: {error}");
            error.outcome().code()
        }
    }
}

fn try_run(flags: &RunFlags, search: bool) -> Result<Outcome, LoadgenError> {
    let clock = Clock::start();
    let (profile, mut plan) = read(flags, search)?;
    let machine = health::machine();
    let mut notes = preflight::check(&mut plan, &machine)?;
    notes.extend(preflight::without_effect(&plan));
    notes.extend(
        plan.connections.proxy.iter().map(|proxy| format!("connections go through the proxy {proxy}")),
    );
    notes.iter().for_each(|note| eprintln!("loadgen: {note}"));
    if flags.dry_run {
        // All that a run would refuse; names are not resolved, since nothing is to leave this machine.
        routes(&plan, Names::Left)?;
        let (stages, scenarios) = (plan.stages.len(), plan.scenarios.len());
        crate::terminal::say(&format!("{stages} stages, {scenarios} scenarios, plan {}\n", plan.plan_digest));
        return Ok(Outcome::Pass);
    }
    let plan = Arc::new(plan);
    let stamp = stamp(&clock);
    std::fs::create_dir_all(&flags.output)
        .map_err(|error| LoadgenError::Environment(format!("{}: {error}", flags.output.display())))?;
    let records_file = format!("results-{stamp}.jsonl");
    let halt = Arc::new(Halt::default());
    let (stages, director) = direct(&plan, &profile, search)?;
    let salt = flags.salt.clone().unwrap_or_else(|| salt(&clock));
    let start = Start { clock, plan: Arc::clone(&plan), halt: Arc::clone(&halt), salt, shard: flags.shard };
    let (threads, failures) = start.threads(&flags.output.join(&records_file), &stages, director)?;
    let mut parts = supervise(&start, threads, failures)?;
    let mut first = parts.remove(0);
    for part in parts {
        absorb(&mut first, part);
    }
    if let Some(message) = first.written.error {
        return Err(LoadgenError::Environment(message));
    }
    let interrupted = halt.is_stopped();
    let mut result = blank(&start, &machine, &notes, (&stamp, &records_file), &first);
    result.run.partial = interrupted;
    result.search = first.director.as_ref().and_then(|director| director.found());
    result.over_time = first.over_time;
    judge::complete(&mut result, &plan, first.stages, interrupted);
    terminal::end();
    let files = output::write_all(&flags.output, &result)?;
    crate::terminal::say(&output::text(&result));
    files.iter().for_each(|path| eprintln!("loadgen: wrote {}", path.display()));
    Ok(result.verdict.outcome)
}

/// The profile with the flags laid over it, and what it means.
fn read(flags: &RunFlags, search: bool) -> Result<(Profile, Resolved), LoadgenError> {
    let path = &flags.profile;
    let usage = |why: String| LoadgenError::Usage(format!("profile {}: {why}", path.display()));
    let bytes = crate::input::read_or_stdin(path, PROFILE_BYTES_MAX).map_err(usage)?;
    let file = path.display().to_string();
    let (mut profile, places): (Profile, _) = scenario::read::parse_as(&bytes, &file, "a profile")
        .map_err(|error| LoadgenError::Usage(error.to_string()))?;
    lay_over(&mut profile, flags);
    if search {
        profile.stages.clear();
        if profile.search.is_none() {
            return Err(usage("there is no section search".to_owned()));
        }
    } else {
        profile.search = None;
    }
    let folder = path.parent().unwrap_or_else(|| Path::new("."));
    let placed = |wrong: Vec<Wrong>| {
        let problem = |wrong: Wrong| {
            let Position { line, column } = places.of(&wrong.path);
            Problem {
                file: file.clone(),
                line,
                column,
                message: wrong.to_string(),
                path: wrong.path,
                suggestion: None,
            }
        };
        let mut problems: Vec<Problem> = wrong.into_iter().map(problem).collect();
        problems.sort_by_key(|problem| (problem.line, problem.column));
        LoadgenError::Usage(ScenarioError { problems }.to_string())
    };
    let mut plan = profile::check(&profile, folder).map_err(placed)?;
    if flags.quiet {
        plan.live_us = None;
    }
    plan.connections.http = flags.http.unwrap_or(plan.connections.http);
    plan.connections.insecure |= flags.insecure;
    plan.pin |= flags.pin;
    if flags.proxy.is_some() {
        plan.connections.proxy.clone_from(&flags.proxy);
    }
    if flags.ca.is_some() {
        plan.connections.ca.clone_from(&flags.ca);
    }
    // What is decided between stages needs all figures in one place.
    if search || plan.abort_on_fail || plan.abort_within_us.is_some() {
        plan.threads = 1;
    }
    Ok((profile, plan))
}

fn lay_over(profile: &mut Profile, flags: &RunFlags) {
    if let Some(target) = &flags.target {
        profile.defaults.target = Some(target.clone());
        profile.scenarios.iter_mut().for_each(|scenario| {
            // A scenario's own address is of the same machine in nearly all cases; its path stays its own.
            scenario.target = None;
        });
    }
    if flags.model.is_some() {
        profile.defaults.model.clone_from(&flags.model);
    }
    for stage in &mut profile.stages {
        if stage.duration.is_some() {
            stage.duration = flags.duration.or(stage.duration);
        }
        stage.warmup = if flags.warmup.is_some() { flags.warmup } else { stage.warmup };
    }
    profile.warmup = flags.warmup.or(profile.warmup);
    profile.seed = flags.seed.or(profile.seed);
    if flags.name.is_some() {
        profile.name.clone_from(&flags.name);
    }
    profile.connections.threads = flags.threads.unwrap_or(profile.connections.threads);
}

type Directed = (Vec<StagePlan>, Option<Box<dyn Director + Send>>);

fn direct(plan: &Arc<Resolved>, profile: &Profile, search: bool) -> Result<Directed, LoadgenError> {
    if let Some(given) = plan.search.clone().filter(|_| search) {
        let warmup_us = profile.warmup.map_or(0, Micros::us);
        let (searching, first) =
            director::Searching::new(Arc::clone(plan), given, warmup_us, profile.arrival)?;
        return Ok((vec![first], Some(Box::new(searching))));
    }
    let early = plan.abort_on_fail || plan.abort_within_us.is_some();
    let director: Option<Box<dyn Director + Send>> =
        if early { Some(Box::new(director::Thresholds { plan: Arc::clone(plan) })) } else { None };
    Ok((plan.stages.clone(), director))
}

struct Start {
    clock: Clock,
    plan: Arc<Resolved>,
    halt: Arc<Halt>,
    salt: String,
    shard: Shard,
}

type Thread = std::thread::JoinHandle<Result<(ThreadOutcome, stats::Histogram, Wires), LoadgenError>>;

/// Whether names are resolved before the load where the profile wants that.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Names {
    Asked,
    Left,
}

/// Routes, one a scenario, and what must never be written down.
fn routes(plan: &Resolved, names: Names) -> Result<(Shared, Vec<HeadTemplate>), LoadgenError> {
    let key = ClientKey::from_env()?;
    let mut secrets: Vec<String> = key.iter().map(|key| key.secret().to_owned()).collect();
    let (mut routes, mut heads) = (Vec::new(), Vec::new());
    for scenario in &plan.scenarios {
        let mut target = Target::of_call(&scenario.target, scenario.protocol.path())?;
        if let Some(proxy) = &plan.connections.proxy {
            target = target.through(proxy)?;
        }
        if plan.connections.dns == Dns::Once && names == Names::Asked {
            target = target.resolved()?;
        }
        let transport = Transport::new(&target, &plan.connections)?;
        let (name, prefix) = scenario.protocol.key_header();
        let given = key.as_ref().map(|key| (name, prefix, key));
        let mut headers = scenario.headers.clone();
        if key.is_some() {
            // A placeholder in the file gives way to the key of the environment.
            headers.retain(|header, _| !header.eq_ignore_ascii_case(name));
        }
        for (header, value) in &scenario.headers {
            if header.eq_ignore_ascii_case("authorization") || header.eq_ignore_ascii_case("x-api-key") {
                secrets.push(value.trim_start_matches("Bearer ").to_owned());
            }
        }
        let head = HeadTemplate::of_profile(&target, &headers, given)?;
        heads.push(head.clone());
        let keep = plan.requests_per_connection.map_or(KeepAlive::Reuse, KeepAlive::Requests);
        let (protocol, limits) = (scenario.protocol, plan.limits);
        routes.push(Route { target, head, protocol, limits, keep, transport });
    }
    Ok((Shared { routes, redactor: Redactor::new(secrets) }, heads))
}

impl Start {
    fn threads(
        &self,
        records: &Path,
        stages: &[StagePlan],
        director: Option<Box<dyn Director + Send>>,
    ) -> Result<(Vec<Thread>, Vec<WriteFailed>), LoadgenError> {
        let live = Arc::new(Live::default());
        let (mut prepared, mut failures) = (Vec::new(), Vec::new());
        let mut director = director;
        let count = u64::from(self.plan.threads);
        for number in 0..count {
            let (shared, heads) = routes(&self.plan, Names::Asked)?;
            // All threads append whole lines to one file.
            let (writer, failed) = RecordWriter::open(records, Overflow::Drop)?;
            failures.push(failed);
            let parts = Parts {
                clock: self.clock,
                plan: Arc::clone(&self.plan),
                stages: stages.to_vec(),
                requests: Writer::new(Arc::clone(&self.plan), heads, &self.salt),
                writer,
                halt: Arc::clone(&self.halt),
                shard: Shard { shard: self.shard.shard + number * self.shard.of, of: self.shard.of * count },
                live: Arc::clone(&live),
                speaks: number == 0,
                begin_us: None,
                director: director.take(),
            };
            let reactor = Reactor::new(self.clock, shared, self.plan.spin)?;
            self.halt.tell(reactor.waker());
            prepared.push((parts, reactor));
        }
        // Everything is ready: the plan begins now, for all threads at the same instant.
        let begin_us = self.clock.now_us();
        let threads = (0_u64..).zip(prepared).map(|(number, (mut parts, reactor))| {
            parts.begin_us = Some(begin_us);
            self.thread(number, parts, reactor)
        });
        Ok((threads.collect::<Result<_, _>>()?, failures))
    }

    fn thread(&self, number: u64, parts: Parts, mut reactor: Reactor) -> Result<Thread, LoadgenError> {
        let (halt, pin) = (Arc::clone(&self.halt), self.plan.pin);
        let thread = std::thread::Builder::new().name(format!("load-{number}")).spawn(move || {
            if pin {
                health::pin_thread(number)?;
            }
            let mut load = ProfileLoad::new(parts);
            reactor.run(&mut load, &halt);
            let core_wait_us = health::core_wait_us();
            let mut outcome = load.close()?;
            outcome.core_wait_us = core_wait_us;
            Ok((outcome, reactor.take_loop_turns(), reactor.take_wires()))
        });
        thread.map_err(|error| LoadgenError::Environment(format!("no thread for the load: {error}")))
    }
}

/// Waits for the threads while signals are looked after; the first result has the loop turns of all.
fn supervise(
    start: &Start,
    threads: Vec<Thread>,
    failures: Vec<WriteFailed>,
) -> Result<Vec<ThreadOutcome>, LoadgenError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| LoadgenError::Environment(format!("the runtime can't start: {error}")))?;
    let (done, finished) = tokio::sync::oneshot::channel();
    let waiter = std::thread::spawn(move || {
        let results: Vec<_> = threads.into_iter().map(std::thread::JoinHandle::join).collect();
        let _ = done.send(());
        results
    });
    let drain = start.plan.limits.drain.duration();
    LocalSet::new().block_on(&runtime, async {
        let signals = supervisor::Signals::listen()?;
        // The first file error of any thread ends the run; a channel whose thread has ended says nothing.
        let (failed, write_failed) = tokio::sync::oneshot::channel();
        let mut failed = Some(failed);
        tokio::task::spawn_local(async move {
            for failure in failures {
                if let (Ok(message), Some(failed)) = (failure.await, failed.take()) {
                    let _ = failed.send(message);
                }
            }
            std::future::pending::<()>().await;
        });
        let watch = tokio::task::spawn_local(supervisor::run(supervisor::Inputs {
            commands: None,
            signals,
            write_failed,
            halt: Arc::clone(&start.halt),
            drain,
        }));
        let _ = finished.await;
        watch.abort();
        Ok::<(), LoadgenError>(())
    })?;
    let gone = || LoadgenError::Internal("a thread of the load panicked".to_owned());
    let results = waiter.join().map_err(|_| gone())?;
    let mut outcomes = Vec::new();
    let (mut turns, mut wires) = (stats::Histogram::new(), Wires::default());
    for result in results {
        let (outcome, loop_turns, of_thread) = result.map_err(|_| gone())??;
        turns.merge(&loop_turns);
        wires.merge(&of_thread);
        outcomes.push(outcome);
    }
    wires.insecure = start.plan.connections.insecure;
    if let Some(first) = outcomes.first_mut() {
        (first.loop_turn, first.wires) = (turns, wires);
    }
    Ok(outcomes)
}

/// Adds what another thread of the same run counted.
fn absorb(first: &mut ThreadOutcome, other: ThreadOutcome) {
    for ((_, own), (_, theirs)) in first.stages.iter_mut().zip(&other.stages) {
        StagePart::merge(own, theirs);
    }
    first.over_time.merge(&other.over_time);
    first.written.records += other.written.records;
    first.written.dropped += other.written.dropped;
    first.written.error = first.written.error.take().or(other.written.error);
    first.rss_max_bytes = first.rss_max_bytes.max(other.rss_max_bytes);
    first.core_wait_us = first.core_wait_us.zip(other.core_wait_us).map(|(own, theirs)| own + theirs);
}

fn blank(
    start: &Start,
    machine: &crate::result::Machine,
    notes: &[String],
    (stamp, records_file): (&str, &str),
    first: &ThreadOutcome,
) -> RunResult {
    let usage = health::Usage::now();
    let wall_us = start.clock.now_us();
    let plan = &start.plan;
    let mut targets: Vec<String> = plan
        .scenarios
        .iter()
        .filter_map(|scenario| {
            let uri: http::Uri = scenario.target.parse().ok()?;
            Some(format!("{}://{}", uri.scheme_str()?, uri.authority()?))
        })
        .collect();
    targets.sort();
    targets.dedup();
    RunResult {
        v: RESULT_VERSION,
        run: RunInfo {
            name: plan.name.clone(),
            stamp: stamp.to_owned(),
            build: BUILD_ID.to_owned(),
            seed: plan.seed,
            plan_digest: plan.plan_digest.clone(),
            targets,
            shards: vec![format!("{}/{}", start.shard.shard, start.shard.of)],
            started_unix_us: start.clock.wall_anchor_unix_us(),
            wall_us,
            partial: false,
            records: first.written.records,
            records_dropped: first.written.dropped,
            records_file: records_file.to_owned(),
            notes: notes.to_vec(),
        },
        machine: machine.clone(),
        stages: Vec::new(),
        scenarios: Vec::new(),
        total: Figures::default(),
        over_time: OverTime::default(),
        health: Health {
            cpu_us: usage.cpu_us,
            wall_us,
            threads: plan.threads,
            rss_bytes: usage.rss_bytes,
            rss_max_bytes: first.rss_max_bytes.max(usage.rss_bytes),
            open_fds: usage.open_fds,
            fds_limit: health::fds_limit(),
            core_wait_us: first.core_wait_us,
            loop_turn: first.loop_turn.clone(),
            saturation: Vec::new(),
        },
        wires: first.wires.clone(),
        thresholds: Vec::new(),
        search: None,
        verdict: Verdict { outcome: Outcome::Internal, reasons: Vec::new() },
    }
}

/// UTC in the names of files.
fn stamp(clock: &Clock) -> String {
    let seconds = i64::try_from(clock.wall_anchor_unix_us() / 1_000_000).unwrap_or_default();
    let format = time::macros::format_description!("[year][month][day]T[hour][minute][second]Z");
    let at = time::OffsetDateTime::from_unix_timestamp(seconds).unwrap_or(time::OffsetDateTime::UNIX_EPOCH);
    at.format(&format).unwrap_or_default()
}

/// New for every run, so that no response cache answers for an earlier one.
fn salt(clock: &Clock) -> String {
    let seed = format!("{}/{}", clock.wall_anchor_unix_us(), std::process::id());
    blake3::hash(seed.as_bytes()).to_hex()[..SALT_LEN].to_owned()
}

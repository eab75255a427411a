//! The race of one request: attempts on different participants until one answers, the client's answer, and
//! the outcome in accounting. A race is a task of its own: a client that leaves does not end it (contract
//! gateway 4.8, 4.9).

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::http::StatusCode;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

mod ends;
mod plan;

use super::Gateway;
use super::accounting::{AttemptRow, Outcome};
use super::attempt::{Context, End, Event};
use super::cache::Key;
use super::escrow::{Escrow, Guard, Started, StepError};
use super::limiter::Permit;
use super::log::{Line, host_label};
use super::normalize::Chat;
use super::policy;
use super::quarantine::Mode;
use super::respond::error_body;
use super::settings::Redundancy;
use super::timeouts;
use crate::clock;
use crate::planted::On;

/// What the client's handler gets to hear.
#[derive(Debug)]
pub enum Out {
    /// The stream begins.
    Stream,
    /// More of the stream.
    Frame(Bytes),
    /// A whole JSON answer.
    Json(Bytes),
    /// There will be no answer.
    Fail(StatusCode, Value),
}

/// A request that has passed all checks.
#[derive(Debug)]
pub struct Request {
    pub id: String,
    pub chat: Chat,
    pub key: Key,
    pub permit: Permit,
    pub out: mpsc::Sender<Out>,
}

/// An attempt as the race sees it.
#[derive(Debug)]
pub struct Attempt {
    pub reason: &'static str,
    pub begun: Instant,
    pub sent_s: i64,
    pub started: Option<Started>,
    pub confirmed_at: Option<i64>,
    pub receipt_after: Option<Duration>,
    pub content_after: Option<Duration>,
    pub took: Duration,
    pub end: Option<End>,
    /// What was held against its participant when it began.
    pub mode: Mode,
    /// It wins only when nobody else can.
    no_winner: bool,
    buffered: Vec<Bytes>,
    pub chunks: u64,
    checked: bool,
    task: Option<JoinHandle<()>>,
}

impl Attempt {
    /// Its role in accounting.
    pub const fn role(&self) -> &'static str {
        if self.is_primary() { "primary" } else { "secondary" }
    }

    const fn is_primary(&self) -> bool {
        matches!(self.reason.as_bytes(), b"primary")
    }

    pub fn succeeded(&self) -> bool {
        self.end.as_ref().is_some_and(|end| end.failure.is_none())
    }

    /// Label of the failure of an attempt that did not succeed.
    pub fn failure(&self) -> &'static str {
        self.end.as_ref().and_then(|end| end.failure).unwrap_or("client_cancelled")
    }
}

/// One race.
#[derive(Debug)]
pub struct Race {
    pub gateway: Arc<Gateway>,
    pub escrow: Arc<Escrow>,
    pub id: String,
    pub attempts: Vec<Attempt>,
    pub winner: Option<usize>,
    pub outcome: Option<Outcome>,
    pub number: u64,
    /// Plan of the race (contract gateway 5.3); the ordinary one until the primary has its nonce.
    pub decision: &'static str,
    chat: Arc<Chat>,
    key: Key,
    settings: Redundancy,
    out: Option<mpsc::Sender<Out>>,
    written: Vec<u8>,
    client_gone: bool,
    exhausted: bool,
    settled: bool,
    /// The end marker has gone out; an error may no longer follow it.
    done_sent: bool,
    /// Place in the limiter and in the escrow's load; given back just before the client's answer ends, so
    /// that its next request finds it free.
    held: Option<(Permit, Guard)>,
    events: mpsc::Sender<Event>,
}

/// Runs the race to its last act.
pub async fn run(gateway: Arc<Gateway>, escrow: Arc<Escrow>, request: Request) {
    let Request { id, chat, key, permit, out } = request;
    let guard = Guard::request(&escrow, chat.limiter_tokens());
    let cleanup = Guard::cleanup(&escrow);
    let (events, mut inbox) = mpsc::channel(256);
    let settings = gateway.settings().redundancy.clone();
    let number = gateway.next_race();
    let chat = Arc::new(chat);
    let mut race = Race {
        gateway,
        escrow,
        id,
        attempts: Vec::new(),
        winner: None,
        outcome: None,
        number,
        decision: "receipt_timeout",
        chat,
        key,
        settings,
        out: Some(out),
        written: Vec::new(),
        client_gone: false,
        exhausted: false,
        settled: false,
        done_sent: false,
        held: Some((permit, guard)),
        events,
    };
    if race.open().await {
        race.foreground(&mut inbox).await;
        if race.winner.is_some() || race.outcome.is_some() {
            race.out = None;
            race.background(&mut inbox).await;
            if race.outcome == Some(Outcome::Failed) {
                timeouts::settle(&race).await;
                race.settle();
            } else {
                race.settle();
                timeouts::settle(&race).await;
            }
        } else {
            // Nobody answered: the protocol's timeouts come first, then the client's error.
            timeouts::settle(&race).await;
            race.fail_unanswered().await;
        }
    }
    drop(cleanup);
}

impl Race {
    /// What a planted defect of this race takes effect on.
    fn planted_on(&self) -> On<'_> {
        On::Body(&self.chat.body)
    }

    fn line(&self, stage: &str) -> Line {
        Line::request(&self.id, stage).field("escrow", self.escrow.id())
    }

    fn attempt_line(&self, stage: &str, place: usize) -> Line {
        let line = self.line(stage);
        match &self.attempts[place].started {
            Some(started) => {
                line.field("nonce", started.nonce).field("host", host_label(&started.participant.address))
            }
            None => line,
        }
    }

    /// Opens the row; without one there is no race.
    async fn open(&mut self) -> bool {
        let (length, model) = (self.chat.input_length(), self.chat.model.clone());
        self.line("runner_started").field("input_tokens", length).field("model", &model).emit();
        let now_ns = clock::unix_ns();
        if let Err(error) = self.gateway.accounting.begin(&self.id, self.escrow.id(), &model, now_ns) {
            let body = error_body(&format!("accounting: {error}"));
            self.fail(StatusCode::INTERNAL_SERVER_ERROR, body).await;
            return false;
        }
        if self.gateway.defect.fails(self.number, self.planted_on()) {
            self.outcome = Some(Outcome::Failed);
            let body = error_body("inference: no non-probe attempt finished");
            self.settle();
            self.fail(StatusCode::BAD_GATEWAY, body).await;
            return false;
        }
        self.launch("primary");
        true
    }

    /// Begins an attempt in a task of its own, since it may have to wait for a nonce.
    fn launch(&mut self, reason: &'static str) {
        let place = self.attempts.len();
        let exclude: HashSet<String> = self
            .attempts
            .iter()
            .filter_map(|attempt| Some(attempt.started.as_ref()?.participant.address.clone()))
            .collect();
        let avoid = self.avoided(&exclude);
        let context = Context {
            gateway: self.gateway.clone(),
            escrow: self.escrow.clone(),
            place,
            stream: self.chat.stream,
            logprobs: self.chat.logprobs,
            events: self.events.clone(),
        };
        let chat = self.chat.clone();
        let task = tokio::spawn(async move {
            match context.escrow.start(&chat, &exclude, &avoid, clock::unix_s).await {
                Ok(started) => {
                    let _ = context.events.send(Event::Started(place, Box::new(started.clone()))).await;
                    context.run(started).await;
                }
                Err(error) => drop(context.events.send(Event::NotStarted(place, error)).await),
            }
        });
        self.attempts.push(Attempt {
            reason,
            begun: clock::instant(),
            sent_s: clock::unix_s(),
            started: None,
            confirmed_at: None,
            receipt_after: None,
            content_after: None,
            took: Duration::ZERO,
            end: None,
            mode: Mode::None,
            no_winner: false,
            buffered: Vec::new(),
            chunks: 0,
            checked: false,
            task: Some(task),
        });
    }

    /// Until the client has its answer or nobody is left who could give one.
    async fn foreground(&mut self, inbox: &mut mpsc::Receiver<Event>) {
        let begun = clock::instant();
        let limit = if self.chat.stream {
            self.settings.streaming_attempt_hard_timeout_ms
        } else {
            self.settings.non_stream_no_content_timeout_ms
        };
        let limit = begun + Duration::from_millis(limit);
        loop {
            let wake = self.next_check().map_or(limit, |check| check.min(limit));
            tokio::select! {
                event = inbox.recv() => {
                    let Some(event) = event else { return };
                    if self.take(event).await {
                        return;
                    }
                    if self.winner.is_none() && self.live() == 0 && !self.waits_for_nothing() {
                        return;
                    }
                }
                () = tokio::time::sleep_until(wake.into()) => {
                    if clock::instant() >= limit {
                        self.give_up().await;
                        return;
                    }
                    self.check_late();
                }
            }
        }
    }

    /// Losers may run on for a while and are then cut.
    async fn background(&mut self, inbox: &mut mpsc::Receiver<Event>) {
        let patience = Duration::from_millis(self.settings.secondary_wait_after_winner_ms);
        let limit = clock::instant() + patience;
        if self.live() > 0 {
            self.line("request_returned_while_speculation_pending").field("pending", self.live()).emit();
        }
        while self.live() > 0 {
            match tokio::time::timeout_at(limit.into(), inbox.recv()).await {
                Ok(Some(event)) => drop(self.take(event).await),
                Ok(None) => return,
                Err(_) => break,
            }
        }
        for place in 0..self.attempts.len() {
            if self.attempts[place].end.is_none()
                && let Some(task) = self.attempts[place].task.take()
            {
                task.abort();
                self.attempts[place].took = self.attempts[place].begun.elapsed();
                self.attempt_line("speculative_attempt_canceled", place).field("reason", "winner").emit();
            }
        }
    }

    fn live(&self) -> usize {
        self.attempts.iter().filter(|attempt| attempt.end.is_none()).count()
    }

    /// Takes one event; true when the client has its answer.
    async fn take(&mut self, event: Event) -> bool {
        match event {
            Event::Started(place, started) => self.started(place, *started),
            Event::NotStarted(place, error) => return self.not_started(place, &error).await,
            Event::Receipt(place, confirmed_at) => {
                let attempt = &mut self.attempts[place];
                attempt.confirmed_at = Some(confirmed_at);
                let after = attempt.begun.elapsed();
                attempt.receipt_after = Some(after);
                self.attempt_line("receipt_received", place).field("elapsed_ms", after.as_millis()).emit();
            }
            Event::Chunk(place, frame, has_content) => self.chunk(place, frame, has_content).await,
            Event::Done(place) => self.marked(place).await,
            Event::Ended(place, end) => return self.ended(place, end).await,
        }
        false
    }

    fn started(&mut self, place: usize, started: Started) {
        let row = AttemptRow {
            nonce: started.nonce,
            host_idx: started.slot,
            participant_key: started.participant.address.clone(),
            created_ns: clock::unix_ns(),
        };
        if let Err(error) = self.gateway.accounting.attempt(&self.id, self.escrow.id(), &row) {
            self.line("accounting_failed").field("error", error).emit();
        }
        self.attempts[place].started = Some(started);
        self.attempts[place].sent_s = clock::unix_s();
        self.judge_participant(place);
        self.gateway.count_attempt_start(self, place);
        let plan = (place == 0).then(|| self.plan());
        if let Some(plan) = plan {
            self.decision = plan.decision;
            self.attempt_line("decision_made", place)
                .field("decision", plan.decision)
                .field("delay_ms", self.settings.receipt_timeout_ms)
                .field("max_attempts", self.escrow.participants().len())
                .field("group_size", self.escrow.by_slot.len())
                .emit();
            self.gateway.metrics.count("devshard_speculative_decisions_total", &[("reason", plan.decision)]);
        }
        self.attempt_line("prepared", place).emit();
        self.attempt_line("started", place).emit();
        match plan {
            Some(plan) if plan.at_once => {
                self.line("secondary_immediate_start").field("reason", plan.decision).emit();
                self.escalate(plan.decision);
            }
            Some(_) => {}
            None if self.attempts[place].no_winner => drop(self.escalate("suspicious_host")),
            None => {}
        }
    }

    /// No nonce: the end of the race only when nothing else is under way.
    async fn not_started(&mut self, place: usize, error: &StepError) -> bool {
        self.exhausted = true;
        self.attempts[place].end = Some(End {
            failure: Some("unknown"),
            message: error.to_string(),
            error: None,
            document: None,
            finished: false,
            has_content: false,
        });
        if place > 0 {
            self.line("picker_exhausted").field("error", error).emit();
            return false;
        }
        self.line("runner_prepare_failed").field("error", error).emit();
        self.outcome = Some(Outcome::Failed);
        // July leaves the row open (finding J16).
        if self.gateway.is_july() {
            self.settled = true;
        } else {
            self.settle();
        }
        self.fail(StatusCode::BAD_GATEWAY, error_body(&format!("prepare: {error}"))).await;
        if matches!(error, StepError::Balance) {
            // An escrow without money serves nobody: it leaves, and the next request finds it unknown.
            self.gateway.deactivate(self.escrow.id());
        }
        true
    }

    async fn chunk(&mut self, place: usize, frame: Bytes, has_content: bool) {
        self.attempts[place].chunks += 1;
        let frame = self.planted_talk(place, frame);
        if self.winner == Some(place) {
            self.frame(frame).await;
            return;
        }
        if self.winner.is_some() {
            return;
        }
        self.attempts[place].buffered.push(frame);
        if has_content {
            if self.is_held_back(place) {
                let attempt = &mut self.attempts[place];
                attempt.content_after.get_or_insert(attempt.begun.elapsed());
                return;
            }
            self.forward(place).await;
        }
    }

    /// The attempt wins and what it has said goes out.
    async fn forward(&mut self, place: usize) {
        self.win(place);
        self.attempt_line("stream_forwarding_started", place).emit();
        self.send(Out::Stream).await;
        for frame in std::mem::take(&mut self.attempts[place].buffered) {
            self.frame(frame).await;
        }
    }

    fn win(&mut self, place: usize) {
        self.winner = Some(place);
        let after = self.attempts[place].begun.elapsed();
        self.attempts[place].content_after = Some(after);
        self.attempt_line("winner_selected", place).emit();
        self.attempt_line("first_token", place).field("route", "winner").emit();
    }

    async fn ended(&mut self, place: usize, end: End) -> bool {
        self.attempts[place].took = self.attempts[place].begun.elapsed();
        let mut line = match end.failure {
            None => self.attempt_line("send_completed", place),
            Some(reason) => self.attempt_line("send_failed", place).field("failure_reason", reason),
        };
        if end.failure.is_some() {
            line = line.field("error", &end.message);
        }
        line.field("output_chunks", self.attempts[place].chunks).emit();
        let failed = end.failure.is_some();
        self.attempts[place].end = Some(end);
        self.learn(place);
        let first = self.outcome.is_none();
        if failed {
            if self.winner == Some(place) && first {
                self.winner_failed(place).await;
                return true;
            }
            if self.winner.is_none() && first {
                // While another attempt runs, nobody is added for this one.
                let replaced = self.live() == 0 && self.escalate("attempt_failed");
                return !replaced && self.promote().await;
            }
            return false;
        }
        if self.winner.is_none() && first {
            if self.is_held_back(place) {
                self.attempt_line("suspicious_winner_deferred", place).emit();
                return self.promote().await;
            }
            if self.chat.stream {
                self.forward(place).await;
            } else {
                self.win(place);
            }
        }
        if self.winner == Some(place) && first {
            self.deliver(place).await;
            return true;
        }
        false
    }

    /// A further attempt on another participant, unless one is about to start or all have been tried.
    fn escalate(&mut self, reason: &'static str) -> bool {
        if self.attempts.iter().any(|attempt| attempt.started.is_none() && attempt.end.is_none()) {
            return true;
        }
        if self.exhausted || self.attempts.len() >= self.escrow.participants().len() {
            self.line("escalation_skipped").field("reason", "attempt_limit").emit();
            return false;
        }
        self.gateway.metrics.count("devshard_speculative_attempt_starts_total", &[("reason", reason)]);
        self.launch(reason);
        true
    }

    /// When an attempt has to be looked at next: the receipt timer, and for streams then the first token.
    fn next_check(&self) -> Option<Instant> {
        if self.winner.is_some() {
            return None;
        }
        let open =
            |attempt: &&Attempt| attempt.end.is_none() && !attempt.checked && attempt.started.is_some();
        self.attempts.iter().filter(open).map(|attempt| attempt.begun + self.check_after(attempt)).min()
    }

    fn check_after(&self, attempt: &Attempt) -> Duration {
        let has_receipt = attempt.confirmed_at.is_some();
        policy::check_after(&self.settings, self.chat.input_length(), self.chat.stream, has_receipt)
    }

    fn check_late(&mut self) {
        let now = clock::instant();
        for place in 0..self.attempts.len() {
            let attempt = &self.attempts[place];
            let due = attempt.started.is_some()
                && attempt.end.is_none()
                && !attempt.checked
                && now >= attempt.begun + self.check_after(attempt);
            if !due {
                continue;
            }
            let reason = match (attempt.confirmed_at, self.chat.stream && attempt.chunks == 0) {
                (None, _) => Some("receipt_timeout"),
                (Some(_), true) => Some("first_token_timeout"),
                (Some(_), false) => None,
            };
            self.attempts[place].checked = true;
            if let Some(reason) = reason {
                self.escalate(reason);
            }
        }
    }

    fn nonce_of(&self, place: usize) -> u64 {
        self.attempts[place].started.as_ref().map_or(0, |started| started.nonce)
    }

    /// The model.
    pub fn model(&self) -> &str {
        &self.chat.model
    }

    /// Bytes of the normalised request.
    pub fn input_length(&self) -> u64 {
        self.chat.input_length()
    }
}

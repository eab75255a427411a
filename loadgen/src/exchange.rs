//! One request from its release to its record: the single send path of all modes.

use std::cell::{Cell, RefCell};
use std::pin::pin;

use evidence::record::RequestRecord;
use evidence::redact::Redactor;
use scenario::pipe::LoadLimits;
use scenario::plan::PlanLine;

use crate::answer::{Answer, Finished};
use crate::cancel::{CancelWatch, Progress, Step};
use crate::checks;
use crate::classify::{self, Failure, Seen, Stage};
use crate::clock::Clock;
use crate::connection::pool::Pool;
use crate::connection::request::HeadTemplate;
use crate::connection::response::{Framing, Head, HeadReader, Piece};
use crate::connection::timeouts::{Deadlines, Expiry, Phase};
use crate::connection::{Connection, SCRATCH_BYTES, Stop, Written};
use crate::halt::Halt;
use crate::target::Target;

/// What all requests of a run share.
#[derive(Debug)]
pub struct Wire {
    /// The clock.
    pub clock: Clock,
    /// Where to.
    pub target: Target,
    /// The common part of the heads.
    pub head: HeadTemplate,
    /// Time limits.
    pub limits: LoadLimits,
    /// Takes the client key out of what a server echoes.
    pub redactor: Redactor,
    /// Requests written since the start.
    pub sent: Cell<u64>,
    pool: RefCell<Pool>,
    scratch: RefCell<Box<[u8]>>,
}

impl Wire {
    /// A wire without connections.
    #[must_use]
    pub fn new(
        clock: Clock,
        target: Target,
        head: HeadTemplate,
        limits: LoadLimits,
        redactor: Redactor,
    ) -> Self {
        Self {
            clock,
            target,
            head,
            limits,
            redactor,
            sent: Cell::new(0),
            pool: RefCell::default(),
            scratch: RefCell::new(vec![0; SCRATCH_BYTES].into_boxed_slice()),
        }
    }

    /// Runs one request. `record` has its planned and released instants; everything else is filled in here.
    pub async fn exchange(
        &self,
        line: &PlanLine,
        body: &[u8],
        record: RequestRecord,
        halt: &Halt,
        out: &mut Vec<u8>,
    ) -> Box<RequestRecord> {
        let released_us = record.released_us.unwrap_or_default();
        let total_us = released_us.saturating_add(self.limits.total.us());
        let mut exchange = Exchange {
            wire: self,
            line,
            record: Box::new(record),
            cancel: CancelWatch::new(line.cancel),
            deadlines: Deadlines::new(self.clock, total_us),
            answer: None,
            body_complete: false,
            last_us: released_us,
        };
        self.head.write(line.id.as_str(), body, out);
        exchange.record.bytes_out = body.len() as u64;
        let result = {
            let drive = pin!(exchange.drive(out));
            tokio::select! {
                biased;
                result = drive => result,
                () = halt.aborted() => Err(Failure::Interrupted),
            }
        };
        exchange.finish(result.err().as_ref())
    }
}

/// Why an attempt on one connection ended.
enum Break {
    /// A kept connection had been closed; nothing was received.
    Stale,
    /// The own cancel point.
    Cancel,
    /// Anything else.
    Failed(Failure),
}

impl Break {
    fn of(stop: &Stop, stage: Stage) -> Self {
        match stop {
            Stop::Expired(Expiry::Cancel) => Self::Cancel,
            Stop::Expired(expiry) => Self::Failed(Failure::TimedOut(*expiry)),
            Stop::Io(error) => Self::Failed(Failure::of_io(error, stage)),
        }
    }
}

struct Exchange<'a> {
    wire: &'a Wire,
    line: &'a PlanLine,
    record: Box<RequestRecord>,
    cancel: CancelWatch,
    deadlines: Deadlines,
    answer: Option<Answer>,
    body_complete: bool,
    /// Instant of the last read.
    last_us: u64,
}

impl Exchange<'_> {
    async fn drive(&mut self, request: &[u8]) -> Result<(), Failure> {
        loop {
            // After a stale connection the second attempt is on a fresh one, so it can't be stale again.
            let kept = if self.record.reconnected { None } else { self.wire.pool.borrow_mut().take() };
            let was_kept = kept.is_some();
            let mut connection = match kept {
                Some(connection) => connection,
                None => self.connect().await?,
            };
            match self.attempt(&mut connection, request, was_kept).await {
                Ok(reusable) => {
                    if reusable {
                        self.wire.pool.borrow_mut().put(connection);
                    }
                    return Ok(());
                }
                Err(Break::Stale) => self.record.reconnected = true,
                Err(Break::Cancel) => {
                    self.cancel.cut(self.wire.clock.now_us());
                    connection.cut(self.cancel.close());
                    return Err(Failure::Cancelled);
                }
                Err(Break::Failed(failure)) => return Err(failure),
            }
        }
    }

    async fn connect(&mut self) -> Result<Connection, Failure> {
        let clock = self.wire.clock;
        let start_us = clock.now_us();
        self.deadlines.enter(Phase::Connect, start_us.saturating_add(self.wire.limits.connect.us()));
        match Connection::open(&self.wire.target, &mut self.deadlines).await {
            Ok(connection) => {
                self.record.connect_us = Some(clock.now_us() - start_us);
                Ok(connection)
            }
            Err(Stop::Expired(expiry)) => Err(Failure::TimedOut(expiry)),
            Err(Stop::Io(error)) => Err(Failure::of_io(&error, Stage::Connect)),
        }
    }

    /// One try on one connection; says whether the connection can be kept.
    async fn attempt(
        &mut self,
        connection: &mut Connection,
        request: &[u8],
        was_kept: bool,
    ) -> Result<bool, Break> {
        let all_sent = self.send(connection, request).await?;
        let (head, rest) = self.read_head(connection, was_kept).await?;
        self.note_head(&head);
        let keep_alive = head.keep_alive && all_sent;
        let clean_end = self.read_body(connection, head, &rest).await?;
        self.body_complete = true;
        Ok(keep_alive && clean_end)
    }

    /// Writes the request; `false` when the peer answered or closed before it had all of it.
    async fn send(&mut self, connection: &mut Connection, request: &[u8]) -> Result<bool, Break> {
        let clock = self.wire.clock;
        self.deadlines.enter(Phase::Headers, clock.now_us().saturating_add(self.wire.limits.headers.us()));
        let all_sent = match connection.write_all(request, &mut self.deadlines).await {
            Ok(written) => written == Written::All,
            // The peer may have answered before it closed: the read that follows tells.
            Err(Stop::Io(_)) => false,
            Err(expired) => return Err(Break::of(&expired, Stage::Head)),
        };
        if all_sent {
            let now_us = clock.now_us();
            if self.record.sent_us.replace(now_us).is_none() {
                self.wire.sent.set(self.wire.sent.get() + 1);
            }
            self.deadlines.enter(Phase::Headers, now_us.saturating_add(self.wire.limits.headers.us()));
            self.look(Progress { sent: true, ..Progress::default() })?;
        }
        Ok(all_sent)
    }

    async fn read_head(
        &mut self,
        connection: &mut Connection,
        was_kept: bool,
    ) -> Result<(Head, Vec<u8>), Break> {
        let mut reader = HeadReader::default();
        loop {
            let stale = was_kept && reader.is_empty();
            let count = match connection.read(&self.wire.scratch, &mut self.deadlines).await {
                Ok(0) | Err(Stop::Io(_)) if stale => return Err(Break::Stale),
                Ok(0) => return Err(Break::Failed(Failure::Lost("closed by the peer".to_owned()))),
                Ok(count) => count,
                Err(stop) => return Err(Break::of(&stop, Stage::Head)),
            };
            self.last_us = self.wire.clock.now_us();
            let scratch = self.wire.scratch.borrow();
            match reader.feed(&scratch[..count]) {
                Ok(Some(done)) => return Ok(done),
                Ok(None) => self.check_deadlines()?,
                Err(bad) => return Err(Break::Failed(Failure::BadHttp(bad.to_string()))),
            }
        }
    }

    fn note_head(&mut self, head: &Head) {
        let record = &mut self.record;
        record.headers_us = Some(self.last_us);
        record.status = Some(head.status);
        record.content_type.clone_from(&head.content_type);
        record.response_request_id.clone_from(&head.request_id);
        record.response_devshard_id.clone_from(&head.devshard_id);
        record.retry_after.clone_from(&head.retry_after);
        let good = (200..300).contains(&head.status);
        let stream = match &head.content_type {
            Some(text) => classify::is_event_stream(text) || (good && self.line.stream && !is_json(text)),
            None => good && self.line.stream,
        };
        self.answer = Some(Answer::new(stream, checks::needs(&self.line.checks, stream)));
    }

    /// Reads the body to its end; says whether nothing came after it.
    async fn read_body(
        &mut self,
        connection: &mut Connection,
        mut head: Head,
        rest: &[u8],
    ) -> Result<bool, Break> {
        let limits = self.wire.limits;
        self.deadlines.enter(Phase::FirstByte, self.last_us.saturating_add(limits.first_byte.us()));
        self.look(Progress { sent: true, headers: true, ..Progress::default() })?;
        if let Some(clean) = self.take(&mut head.framing, rest)? {
            return Ok(clean);
        }
        loop {
            if self.record.first_byte_us.is_some() {
                self.deadlines.enter(Phase::Idle, self.last_us.saturating_add(limits.idle.us()));
            }
            let count = match connection.read(&self.wire.scratch, &mut self.deadlines).await {
                Ok(0) if head.framing.ends_with_connection() => return Ok(false),
                Ok(0) => {
                    return Err(Break::Failed(Failure::BodyCut("closed by the peer".to_owned())));
                }
                Ok(count) => count,
                Err(stop) => return Err(Break::of(&stop, Stage::Body)),
            };
            self.last_us = self.wire.clock.now_us();
            let scratch = self.wire.scratch.borrow();
            if let Some(clean) = self.take(&mut head.framing, &scratch[..count])? {
                return Ok(clean);
            }
            self.check_deadlines()?;
        }
    }

    /// Takes what one read gave; `Some` at the end of the body, with whether nothing is left over.
    fn take(&mut self, framing: &mut Framing, mut input: &[u8]) -> Result<Option<bool>, Break> {
        loop {
            match framing.next(&mut input) {
                Ok(Piece::Data(data)) => self.feed(data)?,
                Ok(Piece::More) => return Ok(None),
                Ok(Piece::End) => return Ok(Some(input.is_empty())),
                Err(bad) => return Err(Break::Failed(Failure::BadHttp(bad.to_string()))),
            }
        }
    }

    fn feed(&mut self, data: &[u8]) -> Result<(), Break> {
        if !self.cancel.watches_body() {
            if let Some(answer) = &mut self.answer {
                answer.feed(data, self.last_us, &mut self.record);
            }
            return Ok(());
        }
        // Line by line, so that nothing after the cancel point is taken for received.
        for line in data.split_inclusive(|byte| matches!(byte, b'\n' | b'\r')) {
            let Some(answer) = &mut self.answer else { return Ok(()) };
            answer.feed(line, self.last_us, &mut self.record);
            let content = self.record.first_content_us.is_some();
            let events = answer.events();
            self.look(Progress { sent: true, headers: true, content, events })?;
        }
        Ok(())
    }

    fn look(&mut self, progress: Progress) -> Result<(), Break> {
        match self.cancel.look(progress) {
            Step::Wait => Ok(()),
            Step::CutAfter(0) => Err(Break::Cancel),
            Step::CutAfter(after_us) => {
                self.deadlines.cancel_at(self.wire.clock.now_us().saturating_add(after_us));
                Ok(())
            }
        }
    }

    /// A peer that never falls silent would otherwise never meet a timer.
    fn check_deadlines(&self) -> Result<(), Break> {
        match self.deadlines.passed(self.last_us) {
            None | Some(Expiry::Phase(Phase::FirstByte | Phase::Idle)) => Ok(()),
            Some(Expiry::Cancel) => Err(Break::Cancel),
            Some(expiry) => Err(Break::Failed(Failure::TimedOut(expiry))),
        }
    }

    /// The record of an exchange that has ended, however it ended.
    fn finish(mut self, failure: Option<&Failure>) -> Box<RequestRecord> {
        let record = &mut self.record;
        record.end_us = Some(if failure.is_none() { self.last_us } else { self.wire.clock.now_us() });
        record.cancel = self.cancel.fact();
        let excerpt = self.answer.as_ref().filter(|_| record.bytes_in > 0).map(Answer::excerpt);
        let finished = self.answer.map(|answer| answer.finish(self.body_complete)).unwrap_or_default();
        let came = record.bytes_in > 0 || self.body_complete;
        if failure.is_none() {
            record.failed_checks = checks::failed(&self.line.checks, &finished, self.line.stream);
        }
        let Finished { facts, ending, tokens, id, too_large, .. } = finished;
        let (class, detail) = classify::classify(Seen {
            failure,
            status: record.status,
            stream: self.line.stream,
            content_type: record.content_type.as_deref(),
            answer: came.then_some(&facts),
            ending,
            too_large,
            failed_checks: &record.failed_checks,
        });
        if class != evidence::record::ClientClass::CheckFailed {
            record.failed_checks.clear();
        }
        record.client_class = class;
        record.detail = detail;
        record.tokens = tokens;
        record.response_body_id = id;
        record.answer = came.then_some(facts);
        record.excerpt = excerpt.filter(|_| class != evidence::record::ClientClass::Ok);
        redact(record, &self.wire.redactor);
        self.record
    }
}

fn is_json(content_type: &str) -> bool {
    content_type.trim_start().to_ascii_lowercase().starts_with("application/json")
}

/// A server may echo the client key; it must reach no file.
fn redact(record: &mut RequestRecord, redactor: &Redactor) {
    let clean = |text: &mut String| {
        if let std::borrow::Cow::Owned(clean) = redactor.text(text) {
            *text = clean;
        }
    };
    let texts = [
        &mut record.content_type,
        &mut record.response_request_id,
        &mut record.response_devshard_id,
        &mut record.response_body_id,
        &mut record.retry_after,
        &mut record.detail,
    ];
    texts.into_iter().flatten().for_each(clean);
    if let Some(excerpt) = &mut record.excerpt {
        clean(&mut excerpt.head);
        clean(&mut excerpt.tail);
    }
    if let Some(answer) = &mut record.answer {
        answer.error_message.iter_mut().for_each(clean);
        answer.error_code.iter_mut().for_each(clean);
        answer.finish_reasons.values_mut().for_each(clean);
    }
}

//! One request from its release to its record, free of sockets: what happened comes in, what to do comes out. The
//! single send path of all modes and transports.

use evidence::record::{ClientClass, RequestRecord};
use evidence::redact::Redactor;

use super::{Ended, Route, Work};
use crate::answer::{self, Answer};
use crate::cancel::{CancelWatch, Progress, Step};
use crate::checks;
use crate::classify::{self, Failure, Seen, Stage};
use crate::connection::http2::Broken;
use crate::connection::response::{Framing, Head, HeadReader, Piece};
use crate::connection::timeouts::{Deadlines, Expiry, Phase};

/// What the event loop is to do after something happened.
#[derive(Debug, PartialEq, Eq)]
pub enum Flow {
    /// Go on.
    More,
    /// The answer is whole.
    Done {
        /// The connection may carry another request.
        keep: bool,
    },
    /// The kept connection had been closed before a byte came: once more, on a new one.
    Stale,
    /// Cut the connection at the own cancel point.
    Cancel,
    /// It failed.
    Failed(Failure),
}

enum Reading {
    Head(HeadReader),
    Body(Framing),
}

/// A request while it runs.
pub struct Exchange {
    work: Work,
    cancel: CancelWatch,
    /// Deadlines; the event loop waits for the nearest.
    pub deadlines: Deadlines,
    reading: Reading,
    answer: Option<Answer>,
    body_complete: bool,
    all_sent: bool,
    /// The connection had been used before.
    was_kept: bool,
    start_us: Option<u64>,
    connect_start_us: u64,
    connected_us: u64,
    proxy_us: Option<u64>,
    http2: bool,
    first_on_connection: bool,
    cancel_reached_us: Option<u64>,
    /// Instant of the last read.
    last_us: u64,
}

impl Exchange {
    /// A request that nothing has happened to.
    #[must_use]
    pub fn new(work: Work, route: &Route) -> Self {
        let released_us = work.record.released_us.unwrap_or_default();
        Self {
            cancel: CancelWatch::new(work.cancel),
            deadlines: Deadlines::new(released_us.saturating_add(route.limits.total.us())),
            reading: Reading::Head(HeadReader::default()),
            answer: None,
            body_complete: false,
            all_sent: false,
            was_kept: false,
            start_us: None,
            connect_start_us: 0,
            connected_us: 0,
            proxy_us: None,
            http2: false,
            first_on_connection: false,
            cancel_reached_us: None,
            last_us: released_us,
            work,
        }
    }

    /// Number of its route.
    #[must_use]
    pub fn route(&self) -> usize {
        self.work.route
    }

    /// Number that the load knows it by.
    #[must_use]
    pub fn tag(&self) -> u64 {
        self.work.tag
    }

    /// Head and body.
    #[must_use]
    pub fn request(&self) -> &[u8] {
        &self.work.request
    }

    /// The buffer of the request, once no second try can need it.
    pub fn take_request(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.work.request)
    }

    /// Whether the request went out a second time.
    #[must_use]
    pub fn is_second_try(&self) -> bool {
        self.work.record.reconnected
    }

    /// A connection is begun at this instant.
    pub fn on_connect(&mut self, route: &Route, now_us: u64) {
        self.start_us.get_or_insert(now_us);
        self.connect_start_us = now_us;
        self.was_kept = false;
        self.deadlines.enter(Phase::Connect, now_us.saturating_add(route.limits.connect.us()));
    }

    /// It waits for a connection that another request has begun.
    pub fn on_wait(&mut self, route: &Route, now_us: u64) {
        self.start_us.get_or_insert(now_us);
        self.was_kept = false;
        self.deadlines.enter(Phase::Connect, now_us.saturating_add(route.limits.connect.us()));
    }

    /// The name of the target was resolved for it.
    pub fn on_resolved(&mut self, took_us: u64) {
        self.work.record.dns_us = Some(took_us);
    }

    /// The connection stands.
    pub fn on_connected(&mut self, now_us: u64) {
        self.connected_us = now_us;
        self.work.record.connect_us = Some(now_us.saturating_sub(self.connect_start_us));
    }

    /// The tunnel through the proxy stands.
    pub fn on_tunnelled(&mut self, now_us: u64) {
        self.proxy_us = Some(now_us.saturating_sub(self.connected_us));
        self.connected_us = now_us;
    }

    /// TLS is up, if there is TLS.
    pub fn on_secured(&mut self, now_us: u64) {
        self.work.record.tls_us = Some(now_us.saturating_sub(self.connected_us));
    }

    /// It goes out on a connection; gives its part of the load, and takes the one that the connection served last.
    pub fn on_connection(&mut self, last: &mut Option<u64>) {
        self.first_on_connection = last.replace(self.work.part) != Some(self.work.part);
    }

    /// The first byte of the request is about to be written; `kept` on a connection that was used before.
    pub fn on_send(&mut self, route: &Route, kept: bool, now_us: u64) {
        self.start_us.get_or_insert(now_us);
        self.was_kept = kept;
        self.deadlines.enter(Phase::Headers, now_us.saturating_add(route.limits.headers.us()));
    }

    /// The last byte of the request is in the kernel. Says whether it is the first time.
    pub fn on_sent(&mut self, route: &Route, now_us: u64) -> (bool, Flow) {
        self.all_sent = true;
        let first = self.work.record.sent_us.replace(now_us).is_none();
        self.deadlines.enter(Phase::Headers, now_us.saturating_add(route.limits.headers.us()));
        (first, self.look(Progress { sent: true, ..Progress::default() }, now_us))
    }

    /// Bytes came. `on_gap` gets the time between events with output.
    pub fn on_read(&mut self, route: &Route, bytes: &[u8], now_us: u64, on_gap: &mut dyn FnMut(u64)) -> Flow {
        self.last_us = now_us;
        let mut input = bytes;
        if let Reading::Head(reader) = &mut self.reading {
            match reader.feed(input) {
                Ok(Some((head, taken))) => {
                    input = &input[taken..];
                    let flow = self.on_head(route, head);
                    if flow != Flow::More {
                        return flow;
                    }
                }
                Ok(None) => return self.overdue(),
                Err(bad) => return Flow::Failed(Failure::BadHttp(bad.to_string())),
            }
        }
        let flow = self.take(input, on_gap);
        if flow != Flow::More {
            return flow;
        }
        if self.work.record.first_byte_us.is_some() {
            self.deadlines.enter(Phase::Idle, self.last_us.saturating_add(route.limits.idle.us()));
        }
        self.overdue()
    }

    /// Complete headers, from whatever transport; `framing` says how the body ends.
    pub fn on_head(&mut self, route: &Route, head: Head) -> Flow {
        let record = &mut self.work.record;
        record.headers_us = Some(self.last_us);
        record.status = Some(head.status);
        let good = (200..300).contains(&head.status);
        let asked = record.stream;
        let stream = match &head.content_type {
            Some(text) => classify::is_event_stream(text) || (good && asked && !is_json(text)),
            None => good && asked,
        };
        record.content_type = head.content_type;
        record.response_request_id = head.request_id;
        record.response_devshard_id = head.devshard_id;
        record.retry_after = head.retry_after;
        let mut keep = checks::needs(&self.work.checks, stream);
        keep.content |= self.work.keep_content;
        keep.digest = self.work.digest;
        self.answer = Some(Answer::new(route.protocol, stream, keep));
        self.all_sent &= head.keep_alive;
        self.reading = Reading::Body(head.framing);
        self.deadlines.enter(Phase::FirstByte, self.last_us.saturating_add(route.limits.first_byte.us()));
        self.look(Progress { sent: true, headers: true, ..Progress::default() }, self.last_us)
    }

    /// The peer closed its side.
    pub fn on_eof(&mut self) -> Flow {
        match &self.reading {
            Reading::Head(reader) if self.was_kept && reader.is_empty() => Flow::Stale,
            Reading::Head(_) => Flow::Failed(Failure::Lost("closed by the peer".to_owned())),
            Reading::Body(framing) if framing.ends_with_connection() => {
                self.body_complete = true;
                Flow::Done { keep: false }
            }
            Reading::Body(_) => Flow::Failed(Failure::BodyCut("closed by the peer".to_owned())),
        }
    }

    /// Reading failed.
    pub fn on_read_error(&mut self, error: &std::io::Error) -> Flow {
        match &self.reading {
            Reading::Head(reader) if self.was_kept && reader.is_empty() => Flow::Stale,
            Reading::Head(_) => Flow::Failed(Failure::of_io(error, Stage::Head)),
            Reading::Body(_) => Flow::Failed(Failure::of_io(error, Stage::Body)),
        }
    }

    /// Headers of an HTTP/2 stream.
    pub fn on_stream_head(&mut self, route: &Route, head: Head, now_us: u64) -> Flow {
        self.last_us = now_us;
        self.on_head(route, head)
    }

    /// A part of the body of an HTTP/2 stream.
    pub fn on_stream_data(
        &mut self,
        route: &Route,
        data: &[u8],
        now_us: u64,
        on_gap: &mut dyn FnMut(u64),
    ) -> Flow {
        let flow = self.on_data(data, now_us, on_gap);
        if flow != Flow::More {
            return flow;
        }
        self.deadlines.enter(Phase::Idle, now_us.saturating_add(route.limits.idle.us()));
        self.overdue()
    }

    /// The end of an HTTP/2 stream.
    pub fn on_stream_end(&mut self, now_us: u64) -> Flow {
        self.last_us = now_us;
        self.body_complete = true;
        Flow::Done { keep: true }
    }

    /// An HTTP/2 stream that ended early.
    pub fn on_broken(&mut self, broken: &Broken) -> Flow {
        match &self.reading {
            Reading::Head(_) => {
                // Once more only where the peer can't have begun, as with a kept connection of HTTP/1.1.
                let untouched = broken.unprocessed || (self.was_kept && broken.connection_died);
                if untouched && !self.is_second_try() {
                    return Flow::Stale;
                }
                Flow::Failed(Failure::Lost(broken.why.clone()))
            }
            Reading::Body(_) => Flow::Failed(Failure::BodyCut(broken.why.clone())),
        }
    }

    /// It travels as an HTTP/2 stream.
    pub fn on_stream(&mut self) {
        self.http2 = true;
    }

    /// Takes back the state of a first try on a stale connection.
    pub fn retry(&mut self) {
        self.work.record.reconnected = true;
        self.all_sent = false;
        self.reading = Reading::Head(HeadReader::default());
    }

    /// What a deadline that has passed at this instant means.
    #[must_use]
    pub fn on_deadline(&self, now_us: u64) -> Flow {
        match self.deadlines.passed(now_us) {
            None => Flow::More,
            Some(Expiry::Cancel) => Flow::Cancel,
            Some(expiry) => Flow::Failed(Failure::TimedOut(expiry)),
        }
    }

    /// Bytes of the body; the end of what one read gave.
    fn take(&mut self, mut input: &[u8], on_gap: &mut dyn FnMut(u64)) -> Flow {
        loop {
            let Reading::Body(framing) = &mut self.reading else { return Flow::More };
            match framing.next(&mut input) {
                Ok(Piece::Data(data)) => {
                    let flow = self.on_data(data, self.last_us, on_gap);
                    if flow != Flow::More {
                        return flow;
                    }
                }
                Ok(Piece::More) => return Flow::More,
                Ok(Piece::End) => {
                    self.body_complete = true;
                    return Flow::Done { keep: self.all_sent && input.is_empty() };
                }
                Err(bad) => return Flow::Failed(Failure::BadHttp(bad.to_string())),
            }
        }
    }

    /// Bytes of the body without any framing.
    pub fn on_data(&mut self, data: &[u8], now_us: u64, on_gap: &mut dyn FnMut(u64)) -> Flow {
        self.last_us = now_us;
        let Some(answer) = &mut self.answer else { return Flow::More };
        if !self.cancel.watches_body() {
            answer.feed(data, now_us, &mut self.work.record, on_gap);
            return Flow::More;
        }
        // Line by line, so that nothing after the cancel point is taken for received.
        for line in data.split_inclusive(|byte| matches!(byte, b'\n' | b'\r')) {
            let Some(answer) = &mut self.answer else { return Flow::More };
            answer.feed(line, now_us, &mut self.work.record, on_gap);
            let content = self.work.record.first_content_us.is_some();
            let events = answer.events();
            let flow = self.look(Progress { sent: true, headers: true, content, events }, now_us);
            if flow != Flow::More {
                return flow;
            }
        }
        Flow::More
    }

    fn look(&mut self, progress: Progress, now_us: u64) -> Flow {
        match self.cancel.look(progress) {
            Step::Wait => Flow::More,
            Step::CutAfter(after_us) => {
                self.cancel_reached_us = Some(now_us);
                if after_us == 0 {
                    return Flow::Cancel;
                }
                self.deadlines.cancel_at(now_us.saturating_add(after_us));
                Flow::More
            }
        }
    }

    /// A peer that never falls silent would otherwise be heard past its limits.
    fn overdue(&self) -> Flow {
        match self.deadlines.passed(self.last_us) {
            None | Some(Expiry::Phase(Phase::FirstByte | Phase::Idle)) => Flow::More,
            Some(_) => self.on_deadline(self.last_us),
        }
    }

    /// Notes the moment of the own cut; gives how the connection is to be closed.
    pub fn cut(&mut self, now_us: u64) -> scenario::fault::Close {
        self.cancel.cut(now_us);
        self.cancel.close()
    }

    /// The record of a request that has ended, however it ended.
    #[must_use]
    pub fn finish(mut self, failure: Option<&Failure>, redactor: &Redactor, now_us: u64) -> Ended {
        let Work { tag, mut record, checks, .. } = self.work;
        record.end_us = Some(if failure.is_none() { self.last_us } else { now_us });
        record.cancel = self.cancel.fact();
        let answer = self.answer.take().map(|answer| answer.finish(self.body_complete));
        let (mut finished, builder) = answer.unwrap_or_default();
        let came = record.bytes_in > 0 || self.body_complete;
        if failure.is_none() {
            record.failed_checks = checks::failed(&checks, &finished, record.stream);
        }
        let (class, detail) = classify::classify(Seen {
            failure,
            status: record.status,
            stream: record.stream,
            content_type: record.content_type.as_deref(),
            answer: came.then_some(&finished.facts),
            ending: finished.ending,
            too_large: finished.too_large,
            failed_checks: &record.failed_checks,
        });
        if class != ClientClass::CheckFailed {
            record.failed_checks.clear();
        }
        if class != ClientClass::Ok && record.bytes_in > 0 {
            record.excerpt = Some(answer::excerpt(&finished, &builder));
        }
        record.client_class = crate::defect::class_of(class, record.id.as_str());
        record.detail = detail;
        record.tokens = finished.tokens;
        record.response_body_id = finished.id.take();
        record.answer = came.then_some(finished.facts);
        redact(&mut record, redactor);
        Ended {
            tag,
            record,
            content: finished.content,
            output_events: finished.output_events,
            start_us: self.start_us,
            http2: self.http2,
            proxy_us: self.proxy_us,
            first_on_connection: self.first_on_connection,
            cancel_reached_us: self.cancel_reached_us,
        }
    }
}

fn is_json(content_type: &str) -> bool {
    let start = content_type.trim_start().as_bytes();
    const JSON: &[u8] = b"application/json";
    start.len() >= JSON.len() && start[..JSON.len()].eq_ignore_ascii_case(JSON)
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

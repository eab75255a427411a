//! Carries a script out on a connection: bytes, waits, hits.

use std::time::Duration;

use scenario::fault::Close;
use tokio::time::{Instant, sleep_until};

use super::answer::Answer;
use super::http::{Connection, Gone, push_answer, push_chunk, push_chunk_size};
use super::script::{Script, Step};
use crate::clock::instant;

/// Size of the pieces in which filler is written.
const FILLER: [u8; 16 << 10] = [b'x'; 16 << 10];

/// Told what happens while a script is played.
pub trait Witness {
    /// The rule takes effect.
    fn hit(&mut self);
    /// Headers with this status are written.
    fn status(&mut self, status: u16);
    /// Content is written; `whole_event` when it is a whole content event of a stream.
    fn content(&mut self, whole_event: bool);
}

/// What a script is played with.
#[derive(Debug)]
pub struct Player<'a, W> {
    connection: &'a mut Connection,
    answer: Option<&'a Answer>,
    /// The JSON document.
    body: &'a [u8],
    witness: &'a mut W,
    /// End of the last wait: waits are counted from each other, so that lateness does not add up.
    due: Option<Instant>,
    event: Vec<u8>,
    keep_alive: bool,
}

impl<'a, W: Witness> Player<'a, W> {
    /// Plays on `connection`. Steps that need an answer or a JSON document are only in scripts made from them.
    pub fn new(
        connection: &'a mut Connection,
        answer: Option<&'a Answer>,
        body: &'a [u8],
        keep_alive: bool,
        witness: &'a mut W,
    ) -> Self {
        Self { connection, answer, body, witness, due: None, event: Vec::new(), keep_alive }
    }

    /// Writes everything; the caller closes as the script says.
    ///
    /// # Errors
    /// [`Gone`] when the client closes first.
    pub async fn play(mut self, script: &Script) -> Result<(), Gone> {
        for step in &script.steps {
            match step {
                Step::Wait(0) => {}
                Step::Wait(time_us) => self.wait(*time_us).await?,
                Step::Hit => self.witness.hit(),
                Step::Oversize(bytes) => self.oversize(*bytes).await?,
                Step::Filler(bytes) => self.filler(*bytes).await?,
                other => {
                    self.push(other, script.close);
                    self.connection.flush_if_large().await?;
                }
            }
        }
        self.connection.flush().await
    }

    async fn wait(&mut self, time_us: u64) -> Result<(), Gone> {
        self.connection.flush().await?;
        let due = self.due.unwrap_or_else(instant) + Duration::from_micros(time_us);
        self.due = Some(due);
        tokio::select! {
            () = sleep_until(due) => Ok(()),
            gone = self.connection.closed_by_client() => Err(gone),
        }
    }

    fn push(&mut self, step: &Step, close: Close) {
        match step {
            Step::Head { content_type, length } => self.push_head(content_type, *length, close),
            Step::ErrorAnswer(status) => {
                self.witness.status(*status);
                let body = error_body(*status, "answered by a fault rule", "fault_rule", None);
                let extra = connection_header(self.keep_alive);
                push_answer(&mut self.connection.out, *status, "application/json", extra, body.as_bytes());
            }
            Step::Body { from, to } => {
                if *from == 0 {
                    self.witness.content(false);
                }
                self.connection.out.extend_from_slice(&self.body[*from..*to]);
            }
            Step::Terminator => self.connection.out.extend_from_slice(b"0\r\n\r\n"),
            Step::Done => push_chunk(&mut self.connection.out, b"data: [DONE]\n\n"),
            event => self.push_event(event),
        }
    }

    fn push_event(&mut self, step: &Step) {
        let Some(answer) = self.answer else { return };
        self.event.clear();
        match step {
            Step::Content(index) => {
                self.witness.content(true);
                answer.content_event(*index, &mut self.event);
            }
            Step::ContentPart { index, bytes } => {
                self.witness.content(false);
                answer.content_event(*index, &mut self.event);
                self.event.truncate(*bytes);
            }
            Step::Malformed(index) => {
                self.witness.content(false);
                answer.malformed_event(*index, &mut self.event);
            }
            Step::Finish => answer.finish_event(&mut self.event),
            Step::Usage => answer.usage_event(&mut self.event),
            Step::ErrorEvent => answer.error_event(&mut self.event),
            _ => return,
        }
        push_chunk(&mut self.connection.out, &self.event);
    }

    fn push_head(&mut self, content_type: &str, length: Option<u64>, close: Close) {
        self.witness.status(200);
        let out = &mut self.connection.out;
        out.extend_from_slice(b"HTTP/1.1 200 OK\r\nContent-Type: ");
        out.extend_from_slice(content_type.as_bytes());
        // A cut connection is not announced: the client is to find out.
        let announced = connection_header(self.keep_alive || close != Close::Clean);
        match length {
            Some(length) => {
                out.extend_from_slice(format!("\r\n{announced}Content-Length: {length}\r\n\r\n").as_bytes());
            }
            None => {
                out.extend_from_slice(b"\r\nCache-Control: no-cache\r\n");
                out.extend_from_slice(announced.as_bytes());
                out.extend_from_slice(b"Transfer-Encoding: chunked\r\n\r\n");
            }
        }
    }

    /// One event of exactly this many bytes, at least of its frame, written in pieces.
    async fn oversize(&mut self, bytes: u64) -> Result<(), Gone> {
        let Some(answer) = self.answer else { return Ok(()) };
        let (head, tail) = answer.padded_event();
        let frame = (head.len() + tail.len()) as u64;
        let filler = bytes.saturating_sub(frame);
        self.witness.content(true);
        push_chunk_size(&mut self.connection.out, frame + filler);
        self.connection.out.extend_from_slice(head.as_bytes());
        self.filler(filler).await?;
        self.connection.out.extend_from_slice(tail.as_bytes());
        self.connection.out.extend_from_slice(b"\r\n");
        Ok(())
    }

    async fn filler(&mut self, bytes: u64) -> Result<(), Gone> {
        let mut left = usize::try_from(bytes).unwrap_or(usize::MAX);
        while left > 0 {
            let piece = left.min(FILLER.len());
            self.connection.out.extend_from_slice(&FILLER[..piece]);
            left -= piece;
            self.connection.flush_if_large().await?;
        }
        Ok(())
    }
}

/// Header that announces the end of a connection, if it ends.
#[must_use]
pub fn connection_header(keep_alive: bool) -> &'static str {
    if keep_alive { "" } else { "Connection: close\r\n" }
}

/// An error document as OpenAI servers write it, keys sorted.
#[must_use]
pub fn error_body(status: u16, message: &str, kind: &str, param: Option<&str>) -> String {
    let (message, param) = (serde_json::Value::from(message), serde_json::Value::from(param));
    format!(r#"{{"error":{{"code":{status},"message":{message},"param":{param},"type":"{kind}"}}}}"#)
}

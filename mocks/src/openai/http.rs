//! HTTP/1.1 on one connection, byte for byte under our control: what is written, when, and how it is closed.

use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use thiserror::Error;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};

use crate::clock::instant;

/// Largest request head.
pub const HEAD_BYTES_MAX: usize = 64 << 10;
/// Largest request body (contract mocks 3.1).
pub const BODY_BYTES_MAX: usize = 4 << 20;
/// Most header lines.
const HEADERS_MAX: usize = 100;
/// Time for a head from its first byte on.
const HEAD_TIME: Duration = Duration::from_secs(10);
/// Time for a body from the end of its head on.
const BODY_TIME: Duration = Duration::from_secs(30);
/// Time that a kept connection may be silent.
const IDLE_TIME: Duration = Duration::from_secs(600);
/// Time that a client may leave our bytes unread.
const WRITE_TIME: Duration = Duration::from_secs(300);
/// Time that sent bytes get to reach the reader before a RST, which discards what is still on the way.
const BEFORE_RST: Duration = Duration::from_millis(5);
/// Time that a client gets to close after our FIN.
const AFTER_FIN: Duration = Duration::from_millis(500);
/// Bytes that wait to be written at most before they are.
const OUT_HIGH: usize = 64 << 10;
/// Bytes that a client may send ahead while it is being answered.
const AHEAD_MAX: usize = HEAD_BYTES_MAX + BODY_BYTES_MAX;

/// A request.
#[derive(Debug)]
pub struct Request {
    /// Method.
    pub method: String,
    /// Path with query.
    pub path: String,
    /// Header `X-Request-Id`.
    pub x_request_id: Option<String>,
    /// Whether the client keeps the connection.
    pub keep_alive: bool,
    /// Body.
    pub body: Bytes,
}

/// Why there is no next request.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum NoRequest {
    /// The connection has ended between two requests, or with half of one.
    #[error("the client has closed")]
    Closed,
    /// The request can't be read; the connection is answered with this status and closed.
    #[error("{status}: {reason}")]
    Refused {
        /// Status.
        status: u16,
        /// What is wrong.
        reason: &'static str,
    },
}

/// The client has closed while it was being answered.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("the client has closed")]
pub struct Gone;

struct Head {
    method: String,
    path: String,
    x_request_id: Option<String>,
    keep_alive: bool,
    expects_continue: bool,
    length: Length,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Length {
    Known(usize),
    Chunked,
}

/// One connection.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    inbox: BytesMut,
    written: bool,
    /// Bytes to be written by the next [`Connection::flush`].
    pub out: Vec<u8>,
}

const fn refused(status: u16, reason: &'static str) -> NoRequest {
    NoRequest::Refused { status, reason }
}

impl Connection {
    /// Takes a fresh connection over.
    #[must_use]
    pub fn new(stream: TcpStream) -> Self {
        // Without it a kernel may hold single events back; a failure only costs time.
        let _best_effort = stream.set_nodelay(true);
        Self {
            stream,
            inbox: BytesMut::with_capacity(4 << 10),
            written: false,
            out: Vec::with_capacity(4 << 10),
        }
    }

    /// Reads the next request.
    ///
    /// # Errors
    /// [`NoRequest`] when the client closes or the request can't be read.
    pub async fn next_request(&mut self) -> Result<Request, NoRequest> {
        let head = self.read_head().await?;
        if head.expects_continue && self.inbox.is_empty() {
            self.out.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
            self.flush().await.map_err(|Gone| NoRequest::Closed)?;
        }
        let deadline = instant() + BODY_TIME;
        let body = match head.length {
            Length::Known(length) => self.read_known(length, deadline).await?,
            Length::Chunked => self.read_chunked(deadline).await?,
        };
        let Head { method, path, x_request_id, keep_alive, .. } = head;
        Ok(Request { method, path, x_request_id, keep_alive, body })
    }

    async fn read_head(&mut self) -> Result<Head, NoRequest> {
        let mut deadline = None;
        loop {
            if !self.inbox.is_empty()
                && let Some((head, bytes)) = parse_head(&self.inbox)?
            {
                self.inbox.advance(bytes);
                return Ok(head);
            }
            if self.inbox.len() > HEAD_BYTES_MAX {
                return Err(refused(431, "the request head is longer than 64 KiB"));
            }
            if self.inbox.is_empty() {
                self.fill(instant() + IDLE_TIME).await?.ok_or(NoRequest::Closed)?;
            } else {
                let deadline = *deadline.get_or_insert_with(|| instant() + HEAD_TIME);
                self.fill(deadline).await?.ok_or(refused(408, "the request head took too long"))?;
            }
        }
    }

    async fn read_known(&mut self, length: usize, deadline: Instant) -> Result<Bytes, NoRequest> {
        if length > BODY_BYTES_MAX {
            return Err(refused(413, "the request body is longer than 4 MiB"));
        }
        while self.inbox.len() < length {
            self.fill(deadline).await?.ok_or(refused(408, "the request body took too long"))?;
        }
        Ok(self.inbox.split_to(length).freeze())
    }

    async fn read_chunked(&mut self, deadline: Instant) -> Result<Bytes, NoRequest> {
        let mut body = BytesMut::new();
        loop {
            let line = self.read_line(deadline).await?;
            let digits = line.split(|byte| *byte == b';').next().unwrap_or_default();
            let size = std::str::from_utf8(digits)
                .ok()
                .and_then(|digits| usize::from_str_radix(digits.trim(), 16).ok())
                .ok_or(refused(400, "a chunk size is no hexadecimal number"))?;
            if size == 0 {
                // Trailer lines carry nothing that is needed here.
                while !self.read_line(deadline).await?.is_empty() {}
                return Ok(body.freeze());
            }
            if size.saturating_add(body.len()) > BODY_BYTES_MAX {
                return Err(refused(413, "the request body is longer than 4 MiB"));
            }
            body.extend_from_slice(&self.read_known(size, deadline).await?);
            if !self.read_line(deadline).await?.is_empty() {
                return Err(refused(400, "a chunk is longer than its size says"));
            }
        }
    }

    /// A line of the chunked framing, without its end.
    async fn read_line(&mut self, deadline: Instant) -> Result<Bytes, NoRequest> {
        const LINE_MAX: usize = 4 << 10;
        loop {
            if let Some(end) = self.inbox.iter().take(LINE_MAX).position(|byte| *byte == b'\n') {
                let mut line = self.inbox.split_to(end + 1);
                line.truncate(end);
                if line.last() == Some(&b'\r') {
                    line.truncate(end - 1);
                }
                return Ok(line.freeze());
            }
            if self.inbox.len() >= LINE_MAX {
                return Err(refused(400, "a line of the chunked body is too long"));
            }
            self.fill(deadline).await?.ok_or(refused(408, "the request body took too long"))?;
        }
    }

    /// Reads what is there, or waits for it; `None` when the deadline passes first.
    async fn fill(&mut self, deadline: Instant) -> Result<Option<()>, NoRequest> {
        loop {
            match self.stream.try_read_buf(&mut self.inbox) {
                Ok(0) => return Err(NoRequest::Closed),
                Ok(_) => return Ok(Some(())),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(_) => return Err(NoRequest::Closed),
            }
            match timeout_at(deadline, self.stream.readable()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return Err(NoRequest::Closed),
                Err(_) => return Ok(None),
            }
        }
    }

    /// Writes everything in [`Connection::out`].
    ///
    /// # Errors
    /// [`Gone`] when the client has closed or does not read.
    pub async fn flush(&mut self) -> Result<(), Gone> {
        let mut written = 0;
        while written < self.out.len() {
            match self.stream.try_write(&self.out[written..]) {
                Ok(count) => {
                    written += count;
                    self.written = true;
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    let writable = timeout(WRITE_TIME, self.stream.writable()).await;
                    writable.map_err(|_| Gone)?.map_err(|_| Gone)?;
                }
                Err(_) => return Err(Gone),
            }
        }
        self.out.clear();
        Ok(())
    }

    /// Writes when much has gathered.
    ///
    /// # Errors
    /// As [`Connection::flush`].
    pub async fn flush_if_large(&mut self) -> Result<(), Gone> {
        if self.out.len() >= OUT_HIGH { self.flush().await } else { Ok(()) }
    }

    /// Ends when the client has closed its side. What it sends meanwhile is kept for the next request.
    pub async fn closed_by_client(&mut self) -> Gone {
        loop {
            if self.inbox.len() >= AHEAD_MAX {
                // Reading on would not be bounded; the end will show when we write.
                return std::future::pending().await;
            }
            match self.stream.try_read_buf(&mut self.inbox) {
                Ok(0) => return Gone,
                Ok(_) => continue,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(_) => return Gone,
            }
            if self.stream.readable().await.is_err() {
                return Gone;
            }
        }
    }

    /// Closes by FIN, and waits shortly for the client, since a close with unread bytes would send RST instead.
    pub async fn close_by_fin(mut self) {
        if rustix::net::shutdown(&self.stream, rustix::net::Shutdown::Write).is_ok() {
            self.inbox.clear();
            let _either_way = timeout(AFTER_FIN, self.closed_by_client()).await;
        }
    }

    /// Closes by RST. Bytes already written get a moment to arrive.
    pub async fn close_by_rst(self) {
        if self.written {
            tokio::time::sleep(BEFORE_RST).await;
        }
        // On a connection that the client has reset already there is nothing left to do.
        let _best_effort = socket2::SockRef::from(&self.stream).set_linger(Some(Duration::ZERO));
    }
}

/// A head at the start of the bytes and its length, or `None` when more bytes are needed.
fn parse_head(bytes: &[u8]) -> Result<Option<(Head, usize)>, NoRequest> {
    let mut lines = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut parsed = httparse::Request::new(&mut lines);
    let length = match parsed.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => return Err(refused(431, "more than 100 header lines")),
        Err(_) => return Err(refused(400, "this is no HTTP request")),
    };
    if length > HEAD_BYTES_MAX {
        return Err(refused(431, "the request head is longer than 64 KiB"));
    }
    if parsed.version != Some(1) {
        return Err(refused(505, "only HTTP/1.1 is spoken here"));
    }
    let mut head = Head {
        method: parsed.method.unwrap_or_default().to_owned(),
        path: parsed.path.unwrap_or_default().to_owned(),
        x_request_id: None,
        keep_alive: true,
        expects_continue: false,
        length: Length::Known(0),
    };
    let mut known = None;
    for line in parsed.headers.iter() {
        read_header(line, &mut head, &mut known)?;
    }
    if let Some(known) = known {
        if head.length == Length::Chunked {
            return Err(refused(400, "both Content-Length and Transfer-Encoding"));
        }
        head.length = Length::Known(known);
    }
    Ok(Some((head, length)))
}

fn read_header(
    line: &httparse::Header<'_>,
    head: &mut Head,
    known: &mut Option<usize>,
) -> Result<(), NoRequest> {
    let is = |name: &str| line.name.eq_ignore_ascii_case(name);
    let value = line.value.trim_ascii();
    if is("content-length") {
        let length = std::str::from_utf8(value)
            .ok()
            .filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))
            .and_then(|digits| digits.parse::<u64>().ok())
            .ok_or(refused(400, "Content-Length is no number"))?;
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        if known.is_some_and(|earlier| earlier != length) {
            return Err(refused(400, "two different Content-Length headers"));
        }
        *known = Some(length);
    } else if is("transfer-encoding") {
        if !value.eq_ignore_ascii_case(b"chunked") {
            return Err(refused(501, "the only Transfer-Encoding is chunked"));
        }
        head.length = Length::Chunked;
    } else if is("connection") {
        head.keep_alive = !value.to_ascii_lowercase().windows(5).any(|word| word == b"close");
    } else if is("expect") {
        head.expects_continue = value.eq_ignore_ascii_case(b"100-continue");
    } else if is("x-request-id") {
        // Bounded: it goes into every log entry.
        head.x_request_id = Some(String::from_utf8_lossy(&value[..value.len().min(256)]).into_owned());
    }
    Ok(())
}

/// Adds a chunk made of parts.
pub fn push_chunk(out: &mut Vec<u8>, bytes: &[u8]) {
    push_chunk_size(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

/// Adds the size line of a chunk.
pub fn push_chunk_size(out: &mut Vec<u8>, size: u64) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = (64 - size.leading_zeros()).div_ceil(4).max(1);
    for position in (0..digits).rev() {
        let digit = usize::try_from((size >> (4 * position)) & 0xf).expect("four bits fit");
        out.push(DIGITS[digit]);
    }
    out.extend_from_slice(b"\r\n");
}

/// Adds a whole answer with a body.
pub fn push_answer(out: &mut Vec<u8>, status: u16, content_type: &str, extra_headers: &str, body: &[u8]) {
    let head = format!(
        "HTTP/1.1 {status} {}\r\nContent-Type: {content_type}\r\n{extra_headers}Content-Length: {}\r\n\r\n",
        reason_phrase(status),
        body.len()
    );
    out.extend_from_slice(head.as_bytes());
    out.extend_from_slice(body);
}

fn reason_phrase(status: u16) -> &'static str {
    http::StatusCode::from_u16(status).ok().and_then(|status| status.canonical_reason()).unwrap_or("Unknown")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunk_sizes_are_hexadecimal() {
        for size in [0, 1, 9, 15, 16, 255, 256, 0x1_0000, u64::MAX] {
            let mut out = Vec::new();
            push_chunk_size(&mut out, size);
            assert_eq!(String::from_utf8(out).unwrap(), format!("{size:x}\r\n"));
        }
    }

    #[test]
    fn smuggled_lengths_are_refused() {
        let head =
            |headers: &str| parse_head(format!("POST / HTTP/1.1\r\n{headers}\r\n").as_bytes()).map(|_| ());
        assert!(head("Content-Length: 3\r\n").is_ok());
        for bad in [
            "Content-Length: 3\r\nContent-Length: 4\r\n",
            "Content-Length: +3\r\n",
            "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n",
            "Transfer-Encoding: gzip, chunked\r\n",
        ] {
            assert!(head(bad).is_err(), "{bad}");
        }
    }
}

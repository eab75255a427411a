//! Response heads on httparse, and the framing of bodies by content length, chunks or the end of the connection.

use std::mem::MaybeUninit;

use thiserror::Error;

/// Largest head, interim responses included.
pub const HEAD_BYTES_MAX: usize = 64 * 1024;
const HEADERS_MAX: usize = 128;
const CHUNK_LINE_BYTES_MAX: u32 = 4 * 1024;
const TRAILER_BYTES_MAX: u32 = 16 * 1024;
/// Bytes kept of a header that goes into a record.
const VALUE_BYTES_MAX: usize = 256;

/// HTTP that breaks its grammar. The texts go into records as they are.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum BadHttp {
    /// The first bytes are no status line of HTTP/1.
    #[error("the answer is not HTTP/1: it starts with {0:?}")]
    NotHttp(String),
    /// Grammar of the head.
    #[error("the response head breaks its grammar: {0}")]
    Head(&'static str),
    /// Too large.
    #[error("the response head is larger than {HEAD_BYTES_MAX} bytes or has more than {HEADERS_MAX} headers")]
    HeadTooLarge,
    /// Content lengths that contradict each other or are no number.
    #[error("the content length is not one number")]
    ContentLength,
    /// A transfer coding that is not `chunked`.
    #[error("the transfer coding is not chunked")]
    TransferCoding,
    /// Chunk size line.
    #[error("a chunk size is not a hexadecimal number that fits, followed by CRLF")]
    ChunkSize,
    /// Chunk end.
    #[error("a chunk does not end with CRLF where its size says")]
    ChunkEnd,
    /// Trailer section.
    #[error("the trailer section is too large or breaks its grammar")]
    Trailer,
    /// 101 without an upgrade asked for.
    #[error("the server switched protocols, which nobody asked for")]
    Switched,
}

/// How a body ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Framing {
    /// After this many more bytes.
    Length(u64),
    /// After the last chunk.
    Chunked(Chunks),
    /// With the connection.
    UntilClose,
}

/// A complete final head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// Status.
    pub status: u16,
    /// How the body ends.
    pub framing: Framing,
    /// The connection may carry another request afterwards.
    pub keep_alive: bool,
    /// `Content-Type`, bounded.
    pub content_type: Option<String>,
    /// `X-Request-Id`, bounded.
    pub request_id: Option<String>,
    /// `X-Devshard-Id`, bounded.
    pub devshard_id: Option<String>,
    /// `Retry-After`, bounded.
    pub retry_after: Option<String>,
}

/// Bytes of a head until it is complete.
#[derive(Debug, Default)]
pub struct HeadReader {
    bytes: Vec<u8>,
    /// Where the search for the end goes on, so that a dripping head costs no square of its length.
    searched: usize,
    interim_bytes: usize,
}

impl HeadReader {
    /// Whether any byte of an answer has come.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty() && self.interim_bytes == 0
    }

    /// Adds bytes; once the head is complete, gives it and how many of these bytes belong to it. Interim responses
    /// (1xx) are skipped. A head that comes in one piece is not copied.
    ///
    /// # Errors
    /// [`BadHttp`] as soon as no more bytes could make it right.
    pub fn feed(&mut self, input: &[u8]) -> Result<Option<(Head, usize)>, BadHttp> {
        if self.is_empty() {
            check_start(input)?;
            if let Some(end) = find_end(input, 0).filter(|end| *end <= HEAD_BYTES_MAX) {
                let head = parse(&input[..end])?;
                if head.status >= 200 {
                    return Ok(Some((head, end)));
                }
            }
        }
        self.bytes.extend_from_slice(input);
        loop {
            check_start(&self.bytes)?;
            let Some(end) = find_end(&self.bytes, self.searched.saturating_sub(3)) else {
                self.searched = self.bytes.len();
                return if self.bytes.len() + self.interim_bytes > HEAD_BYTES_MAX {
                    Err(BadHttp::HeadTooLarge)
                } else {
                    Ok(None)
                };
            };
            if end + self.interim_bytes > HEAD_BYTES_MAX {
                return Err(BadHttp::HeadTooLarge);
            }
            let parsed = parse(&self.bytes[..end])?;
            match parsed.status {
                101 => return Err(BadHttp::Switched),
                100..=199 => {
                    self.interim_bytes += end;
                    self.bytes.drain(..end);
                    self.searched = 0;
                }
                // What follows the head came with these bytes: earlier ones held no complete head.
                _ => return Ok(Some((parsed, input.len() - (self.bytes.len() - end)))),
            }
        }
    }
}

/// Length of the head with its blank line, searched from an offset. Bare LF counts, as it does for httparse.
fn find_end(bytes: &[u8], from: usize) -> Option<usize> {
    for at in memchr::memchr_iter(b'\n', &bytes[from..]) {
        let rest = &bytes[from + at + 1..];
        if rest.starts_with(b"\n") {
            return Some(from + at + 2);
        }
        if rest.starts_with(b"\r\n") {
            return Some(from + at + 3);
        }
    }
    None
}

/// Fails early on what can't become HTTP/1, instead of waiting for a blank line that never comes.
fn check_start(bytes: &[u8]) -> Result<(), BadHttp> {
    const START: &[u8] = b"HTTP/1.";
    let length = bytes.len().min(START.len());
    if bytes[..length] == START[..length] {
        return Ok(());
    }
    let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(32)]).into_owned();
    Err(BadHttp::NotHttp(shown))
}

fn parse(bytes: &[u8]) -> Result<Head, BadHttp> {
    // Not filled beforehand: that would be 4 KB a request.
    let mut headers = [const { MaybeUninit::uninit() }; HEADERS_MAX];
    let mut response = httparse::Response::new(&mut []);
    let config = httparse::ParserConfig::default();
    match config.parse_response_with_uninit_headers(&mut response, bytes, &mut headers) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) => return Err(BadHttp::Head("it ends inside a line")),
        Err(httparse::Error::TooManyHeaders) => return Err(BadHttp::HeadTooLarge),
        Err(httparse::Error::HeaderName) => return Err(BadHttp::Head("header name")),
        Err(httparse::Error::HeaderValue) => return Err(BadHttp::Head("header value")),
        Err(httparse::Error::Status) => return Err(BadHttp::Head("status")),
        Err(_) => return Err(BadHttp::Head("status line or line end")),
    }
    let status = response.code.unwrap_or_default();
    let mut facts = Facts::default();
    for header in response.headers.iter() {
        facts.add(header)?;
    }
    let framing = match (status, facts.chunked, facts.length) {
        (100..=199 | 204 | 304, ..) => Framing::Length(0),
        (_, true, _) => Framing::Chunked(Chunks::default()),
        (_, false, Some(length)) => Framing::Length(length),
        (_, false, None) => Framing::UntilClose,
    };
    let by_version = response.version == Some(1);
    let keep_alive = if facts.close { false } else { by_version || facts.keep_alive }
        && framing != Framing::UntilClose
        // Both framings at once: a proxy in between may see another end than we do.
        && !(facts.chunked && facts.length.is_some());
    Ok(Head {
        status,
        framing,
        keep_alive,
        content_type: facts.content_type,
        request_id: facts.request_id,
        devshard_id: facts.devshard_id,
        retry_after: facts.retry_after,
    })
}

/// What the headers say.
#[derive(Default)]
struct Facts {
    chunked: bool,
    length: Option<u64>,
    close: bool,
    keep_alive: bool,
    content_type: Option<String>,
    request_id: Option<String>,
    devshard_id: Option<String>,
    retry_after: Option<String>,
}

impl Facts {
    fn add(&mut self, header: &httparse::Header<'_>) -> Result<(), BadHttp> {
        let is = |name: &str| header.name.eq_ignore_ascii_case(name);
        if is("content-length") {
            let length = content_length(header.value).ok_or(BadHttp::ContentLength)?;
            if self.length.is_some_and(|other| other != length) {
                return Err(BadHttp::ContentLength);
            }
            self.length = Some(length);
        } else if is("transfer-encoding") {
            if self.chunked || !header.value.trim_ascii().eq_ignore_ascii_case(b"chunked") {
                return Err(BadHttp::TransferCoding);
            }
            self.chunked = true;
        } else if is("connection") {
            for token in header.value.split(|byte| *byte == b',') {
                self.close |= token.trim_ascii().eq_ignore_ascii_case(b"close");
                self.keep_alive |= token.trim_ascii().eq_ignore_ascii_case(b"keep-alive");
            }
        } else if is("content-type") {
            self.content_type.get_or_insert_with(|| bounded(header.value));
        } else if is("x-request-id") {
            self.request_id.get_or_insert_with(|| bounded(header.value));
        } else if is("x-devshard-id") {
            self.devshard_id.get_or_insert_with(|| bounded(header.value));
        } else if is("retry-after") {
            self.retry_after.get_or_insert_with(|| bounded(header.value));
        }
        Ok(())
    }
}

fn content_length(value: &[u8]) -> Option<u64> {
    let value = value.trim_ascii();
    let digits = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
    // A sign or a list would be read differently by different proxies.
    if digits { std::str::from_utf8(value).ok()?.parse().ok() } else { None }
}

/// A header value for a record.
pub(super) fn bounded(value: &[u8]) -> String {
    let text = String::from_utf8_lossy(value);
    text[..text.floor_char_boundary(VALUE_BYTES_MAX)].to_owned()
}

/// A step through a body.
#[derive(Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// Bytes of the body.
    Data(&'a [u8]),
    /// The input is used up and the body goes on.
    More,
    /// The body is complete; what is left of the input does not belong to it.
    End,
}

impl Framing {
    /// Takes the next piece from the front of `input`.
    ///
    /// # Errors
    /// [`BadHttp`] when the chunked coding is broken.
    pub fn next<'a>(&mut self, input: &mut &'a [u8]) -> Result<Piece<'a>, BadHttp> {
        match self {
            Self::Length(0) => Ok(Piece::End),
            Self::Length(left) => {
                let piece = take(input, *left);
                *left -= piece.len() as u64;
                Ok(if piece.is_empty() { Piece::More } else { Piece::Data(piece) })
            }
            Self::UntilClose => {
                let piece = take(input, u64::MAX);
                Ok(if piece.is_empty() { Piece::More } else { Piece::Data(piece) })
            }
            Self::Chunked(chunks) => chunks.next(input),
        }
    }

    /// Whether the end of the connection is the proper end of the body here.
    #[must_use]
    pub fn ends_with_connection(&self) -> bool {
        matches!(self, Self::UntilClose)
    }
}

fn take<'a>(input: &mut &'a [u8], at_most: u64) -> &'a [u8] {
    let length = usize::try_from(at_most).unwrap_or(usize::MAX).min(input.len());
    let (piece, rest) = input.split_at(length);
    *input = rest;
    piece
}

/// State of the chunked coding (RFC 9112, 7.1), byte by byte outside of data.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Chunks {
    state: ChunkState,
    size: u64,
    line_bytes: u32,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum ChunkState {
    #[default]
    SizeFirst,
    Size,
    Extension,
    SizeLf,
    Data,
    DataCr,
    DataLf,
    TrailerStart,
    Trailer,
    TrailerLf,
    LastLf,
    Done,
}

impl Chunks {
    fn next<'a>(&mut self, input: &mut &'a [u8]) -> Result<Piece<'a>, BadHttp> {
        loop {
            match self.state {
                ChunkState::Done => return Ok(Piece::End),
                ChunkState::Data => {
                    let piece = take(input, self.size);
                    self.size -= piece.len() as u64;
                    if self.size == 0 {
                        self.state = ChunkState::DataCr;
                    }
                    return Ok(if piece.is_empty() { Piece::More } else { Piece::Data(piece) });
                }
                _ => {
                    let Some((byte, rest)) = input.split_first() else { return Ok(Piece::More) };
                    *input = rest;
                    self.state = self.step(*byte)?;
                }
            }
        }
    }

    fn step(&mut self, byte: u8) -> Result<ChunkState, BadHttp> {
        use ChunkState as S;
        let next = match (self.state, byte) {
            (S::SizeFirst | S::Size, _) if byte.is_ascii_hexdigit() => {
                let digit = char::from(byte).to_digit(16).unwrap_or_default();
                self.size = self.size.checked_mul(16).ok_or(BadHttp::ChunkSize)? + u64::from(digit);
                S::Size
            }
            (S::Size, b';' | b' ' | b'\t') => S::Extension,
            (S::Extension, b'\r') | (S::Size, b'\r') => S::SizeLf,
            (S::Extension, b'\n') => return Err(BadHttp::ChunkSize),
            (S::Extension, _) => S::Extension,
            (S::SizeLf, b'\n') => {
                self.line_bytes = 0;
                return Ok(if self.size == 0 { S::TrailerStart } else { S::Data });
            }
            (S::DataCr, b'\r') => S::DataLf,
            (S::DataLf, b'\n') => S::SizeFirst,
            (S::DataCr | S::DataLf, _) => return Err(BadHttp::ChunkEnd),
            (S::TrailerStart, b'\r') => S::LastLf,
            (S::TrailerStart | S::Trailer, b'\n') => return Err(BadHttp::Trailer),
            (S::Trailer, b'\r') => S::TrailerLf,
            (S::TrailerStart | S::Trailer, _) => S::Trailer,
            (S::TrailerLf, b'\n') => S::TrailerStart,
            (S::LastLf, b'\n') => S::Done,
            (S::TrailerLf | S::LastLf, _) => return Err(BadHttp::Trailer),
            _ => return Err(BadHttp::ChunkSize),
        };
        self.line_bytes += 1;
        match next {
            S::Size | S::Extension if self.line_bytes > CHUNK_LINE_BYTES_MAX => Err(BadHttp::ChunkSize),
            S::Trailer if self.line_bytes > TRAILER_BYTES_MAX => Err(BadHttp::Trailer),
            S::SizeFirst => {
                self.line_bytes = 0;
                Ok(next)
            }
            _ => Ok(next),
        }
    }
}

#[cfg(test)]
mod tests;

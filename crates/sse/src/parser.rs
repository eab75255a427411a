//! The byte-level parser: lines, fields and events by the HTML standard, any cut of the input.
//!
//! Field lines of the open event are collected raw in one buffer and an event borrows from it. Raw
//! bytes are kept so that an unfinished event can be shown as it came, and so that UTF-8 is judged
//! on whole lines only.

use std::borrow::Cow;
use std::ops::Range;

use memchr::{memchr, memchr2};
use serde::{Deserialize, Serialize};

/// Limit of one event in bytes unless the caller sets another.
pub const DEFAULT_EVENT_BYTES_MAX: usize = 1 << 20;

/// Bytes of an oversized event that its error carries as a witness.
const TOO_LARGE_HEAD_BYTES_MAX: usize = 256;

/// Buffer capacity that survives [`Parser::reset`]: one giant event must not make every later
/// stream on the same connection heavy.
const KEPT_CAPACITY_BYTES: usize = 16 << 10;

const BOM: &[u8; 3] = b"\xEF\xBB\xBF";

/// One dispatched event; borrows from the parser, so it lives for one callback.
#[derive(Debug, Clone, Copy)]
pub struct Event<'a> {
    index: u64,
    event_type: &'a [u8],
    data: &'a [u8],
    text: Option<&'a str>,
    last_event_id: &'a [u8],
    valid_utf8: bool,
}

impl<'a> Event<'a> {
    /// Position in the stream, from 0; oversized events take a position too.
    pub fn index(&self) -> u64 {
        self.index
    }

    /// Value of the last `event` field, `message` when there was none or it was empty.
    pub fn event_type(&self) -> &'a [u8] {
        if self.event_type.is_empty() { b"message" } else { self.event_type }
    }

    /// Values of all `data` fields joined by LF, as they came.
    pub fn data(&self) -> &'a [u8] {
        self.data
    }

    /// The data as text; None when it is not valid UTF-8.
    pub fn text(&self) -> Option<&'a str> {
        self.text
    }

    /// The data as the standard decodes it: illegal sequences become U+FFFD. Allocates only then.
    pub fn text_lossy(&self) -> Cow<'a, str> {
        self.text.map_or_else(|| String::from_utf8_lossy(self.data), Cow::Borrowed)
    }

    /// Value of the last `id` field of this or an earlier event; empty when there was none.
    pub fn last_event_id(&self) -> &'a [u8] {
        self.last_event_id
    }

    /// False when any field line of this event is not valid UTF-8, unknown fields included.
    pub fn valid_utf8(&self) -> bool {
        self.valid_utf8
    }
}

/// An event grew over the limit. Reported once, when the limit is crossed; the rest of the event
/// is skipped, none of its `data`, `event` and `id` fields counts, and parsing goes on after it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "event {index} is larger than {limit_bytes} bytes: treat the stream as broken or raise the event limit"
)]
pub struct EventTooLarge {
    /// Position in the stream, counted like [`Event::index`].
    pub index: u64,
    /// The limit that was crossed.
    pub limit_bytes: usize,
    /// The first bytes of the event, at most 256.
    pub head: Vec<u8>,
}

/// What was left after the last event boundary when the input ended. It is not an event: the
/// standard drops it, and a tester wants to see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unfinished<'a> {
    /// Its field lines as they came, joined by LF, comments left out; at most the event limit.
    pub raw: &'a [u8],
    /// True when it had crossed the limit, so that `raw` is only its beginning.
    pub too_large: bool,
}

/// What the parser has seen so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Events dispatched.
    pub events: u64,
    /// Complete comment lines, those inside oversized events included.
    pub comments: u64,
    /// Events dropped because they crossed the limit.
    pub oversize_events: u64,
    /// Full size of those events: their field lines joined by LF.
    pub oversize_bytes: u64,
}

/// What the bytes since the last line end belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Line {
    /// Nothing read yet: a line end now is a blank line.
    Start,
    Field,
    /// Never stored and never charged to an event, so an endless keep-alive costs nothing.
    Comment,
}

/// Where the data of the open event is.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Data {
    None,
    /// The usual case, one `data` line: a range of `block`, not copied again.
    One(Range<usize>),
    /// Several lines: in `joined`.
    Joined,
}

/// Parser of one stream. Feed it every read; it keeps what is incomplete.
///
/// The size of an event is the length of its field lines joined by LF. An event of exactly the
/// limit passes.
#[derive(Debug)]
pub struct Parser {
    limit_bytes: usize,
    /// Bytes of a byte order mark matched at the start; None once that is decided.
    bom_matched: Option<usize>,
    /// The last byte read was a CR, so a LF that comes next belongs to the same line end.
    after_cr: bool,
    line: Line,
    /// Raw field lines of the open event, joined by LF.
    block: Vec<u8>,
    line_start: usize,
    data: Data,
    joined: Vec<u8>,
    event_type: Range<usize>,
    id: Option<Range<usize>>,
    last_event_id: Vec<u8>,
    retry_ms: Option<u64>,
    /// The open event has crossed the limit; its bytes are counted and skipped.
    too_large: bool,
    next_index: u64,
    counts: Counts,
}

impl Default for Parser {
    fn default() -> Self {
        Self::with_limit(DEFAULT_EVENT_BYTES_MAX)
    }
}

impl Parser {
    /// A parser with the default event limit of 1 MiB.
    pub fn new() -> Self {
        Self::default()
    }

    /// A parser that drops events larger than `limit_bytes`.
    pub fn with_limit(limit_bytes: usize) -> Self {
        Self {
            limit_bytes,
            bom_matched: Some(0),
            after_cr: false,
            line: Line::Start,
            block: Vec::new(),
            line_start: 0,
            data: Data::None,
            joined: Vec::new(),
            event_type: 0..0,
            id: None,
            last_event_id: Vec::new(),
            retry_ms: None,
            too_large: false,
            next_index: 0,
            counts: Counts::default(),
        }
    }

    /// Reads one piece of the stream, of any length and cut anywhere, and hands every event that
    /// it completes to `on_item` in order. Nothing is left waiting: an event is handed out with
    /// the line end that closes it, for a CR without waiting for a possible LF.
    pub fn feed(&mut self, bytes: &[u8], mut on_item: impl FnMut(Result<Event<'_>, EventTooLarge>)) {
        let mut rest = self.skip_bom(bytes, &mut on_item);
        while let Some(&first) = rest.first() {
            if std::mem::take(&mut self.after_cr) && first == b'\n' {
                rest = &rest[1..];
                continue;
            }
            let Some(at) = memchr2(b'\r', b'\n', rest) else {
                self.extend_line(rest, &mut on_item);
                return;
            };
            self.extend_line(&rest[..at], &mut on_item);
            self.after_cr = rest[at] == b'\r';
            rest = &rest[at + 1..];
            self.end_line(&mut on_item);
        }
    }

    /// The input has ended: what is left of an event that no blank line closed, if any. A comment
    /// that was cut is no event and is not reported. Calling it again gives the same answer.
    pub fn finish(&mut self) -> Option<Unfinished<'_>> {
        if let Some(matched) = self.bom_matched.take() {
            // Part of a byte order mark is all there was. With a limit below two bytes its error
            // has nobody to go to, but it is counted.
            self.extend_line(&BOM[..matched], &mut |_| {});
        }
        let open = !self.block.is_empty() || self.too_large;
        open.then_some(Unfinished { raw: &self.block, too_large: self.too_large })
    }

    /// Makes the parser new for another stream and keeps its buffers.
    pub fn reset(&mut self) {
        let mut fresh = Self::with_limit(self.limit_bytes);
        for (kept, used) in [
            (&mut fresh.block, &mut self.block),
            (&mut fresh.joined, &mut self.joined),
            (&mut fresh.last_event_id, &mut self.last_event_id),
        ] {
            used.clear();
            used.shrink_to(KEPT_CAPACITY_BYTES);
            *kept = std::mem::take(used);
        }
        *self = fresh;
    }

    /// What was seen so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The reconnection time of the last valid `retry` field, in milliseconds. By the standard it
    /// belongs to the stream and takes effect with its line, not with an event.
    pub fn retry_ms(&self) -> Option<u64> {
        self.retry_ms
    }

    /// Steps over a byte order mark, which may arrive in pieces and counts at the very start only.
    fn skip_bom<'b>(
        &mut self,
        bytes: &'b [u8],
        on_item: &mut impl FnMut(Result<Event<'_>, EventTooLarge>),
    ) -> &'b [u8] {
        let Some(mut matched) = self.bom_matched else { return bytes };
        let mut rest = bytes;
        while let Some((&first, tail)) = rest.split_first() {
            if first != BOM[matched] {
                self.bom_matched = None;
                // It was none: what matched so far is the beginning of the first line.
                self.extend_line(&BOM[..matched], on_item);
                return rest;
            }
            rest = tail;
            matched += 1;
            if matched == BOM.len() {
                self.bom_matched = None;
                return rest;
            }
        }
        self.bom_matched = Some(matched);
        rest
    }

    /// Adds bytes, which hold no line end, to the current line.
    fn extend_line(&mut self, bytes: &[u8], on_item: &mut impl FnMut(Result<Event<'_>, EventTooLarge>)) {
        let Some(&first) = bytes.first() else { return };
        if self.line == Line::Start {
            if first == b':' {
                self.line = Line::Comment;
            } else {
                self.line = Line::Field;
                if !self.block.is_empty() || self.too_large {
                    self.keep(b"\n", on_item);
                }
                self.line_start = self.block.len();
            }
        }
        if self.line == Line::Field {
            self.keep(bytes, on_item);
        }
    }

    /// Stores bytes of the open event, or only counts them once it is too large. What is stored
    /// never exceeds the limit, even inside one call with a huge read.
    fn keep(&mut self, bytes: &[u8], on_item: &mut impl FnMut(Result<Event<'_>, EventTooLarge>)) {
        if self.too_large {
            self.counts.oversize_bytes += bytes.len() as u64;
            return;
        }
        let room = self.limit_bytes - self.block.len();
        if bytes.len() <= room {
            self.block.extend_from_slice(bytes);
            return;
        }
        self.counts.oversize_events += 1;
        self.counts.oversize_bytes += (self.block.len() + bytes.len()) as u64;
        self.block.extend_from_slice(&bytes[..room]);
        self.too_large = true;
        let head = self.block[..self.block.len().min(TOO_LARGE_HEAD_BYTES_MAX)].to_vec();
        let index = self.next_index;
        self.next_index += 1;
        on_item(Err(EventTooLarge { index, limit_bytes: self.limit_bytes, head }));
    }

    fn end_line(&mut self, on_item: &mut impl FnMut(Result<Event<'_>, EventTooLarge>)) {
        match std::mem::replace(&mut self.line, Line::Start) {
            Line::Start => self.end_event(on_item),
            Line::Comment => self.counts.comments += 1,
            Line::Field if self.too_large => {}
            Line::Field => self.end_field(),
        }
    }

    /// Interprets the field line that has just been completed.
    fn end_field(&mut self) {
        let line = &self.block[self.line_start..];
        // Without a colon the whole line is the name and the value is empty.
        let name_len = memchr(b':', line).unwrap_or(line.len());
        let mut value_at = (name_len + 1).min(line.len());
        // One space is part of the syntax; a second one is part of the value.
        if line.get(value_at) == Some(&b' ') {
            value_at += 1;
        }
        let value = &line[value_at..];
        let range = self.line_start + value_at..self.block.len();
        match &line[..name_len] {
            b"data" => self.add_data(range),
            b"event" => self.event_type = range,
            b"id" if memchr(0, value).is_none() => self.id = Some(range),
            b"retry" if !value.is_empty() && value.iter().all(u8::is_ascii_digit) => {
                // Digits beyond u64 are no usable time: the field is ignored like other garbage.
                let parsed = std::str::from_utf8(value).ok().and_then(|digits| digits.parse().ok());
                self.retry_ms = parsed.or(self.retry_ms);
            }
            _ => {}
        }
    }

    fn add_data(&mut self, value: Range<usize>) {
        match std::mem::replace(&mut self.data, Data::Joined) {
            Data::None => {
                self.data = Data::One(value);
                return;
            }
            Data::One(first) => {
                self.joined.clear();
                self.joined.extend_from_slice(&self.block[first]);
            }
            Data::Joined => {}
        }
        self.joined.push(b'\n');
        self.joined.extend_from_slice(&self.block[value]);
    }

    /// A blank line: hands out the open event if it has data, then forgets it.
    fn end_event(&mut self, on_item: &mut impl FnMut(Result<Event<'_>, EventTooLarge>)) {
        if !self.too_large {
            // The id outlives its event, also one that has no data and is not dispatched.
            if let Some(range) = self.id.take() {
                self.last_event_id.clear();
                self.last_event_id.extend_from_slice(&self.block[range]);
            }
            if let Some(event) = self.open_event() {
                on_item(Ok(event));
                self.counts.events += 1;
                self.next_index += 1;
            }
        }
        self.block.clear();
        self.data = Data::None;
        self.event_type = 0..0;
        self.id = None;
        self.too_large = false;
    }

    fn open_event(&self) -> Option<Event<'_>> {
        let whole = std::str::from_utf8(&self.block).ok();
        let (data, text) = match &self.data {
            Data::None => return None,
            // The block is judged once; a field value starts and ends beside ASCII or at its end.
            Data::One(range) => (&self.block[range.clone()], whole.and_then(|text| text.get(range.clone()))),
            Data::Joined => (&self.joined[..], None),
        };
        Some(Event {
            index: self.next_index,
            event_type: &self.block[self.event_type.clone()],
            data,
            text: text.or_else(|| std::str::from_utf8(data).ok()),
            last_event_id: &self.last_event_id,
            valid_utf8: whole.is_some(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn capacity(parser: &Parser) -> usize {
        parser.block.capacity() + parser.joined.capacity() + parser.last_event_id.capacity()
    }

    /// Feeds and says how many events and how many errors came.
    fn count(parser: &mut Parser, bytes: &[u8]) -> (usize, usize) {
        let (mut events, mut errors) = (0, 0);
        parser.feed(bytes, |item| if item.is_ok() { events += 1 } else { errors += 1 });
        (events, errors)
    }

    #[test]
    fn memory_stays_bounded_whatever_comes() {
        let limit_bytes = 1000;
        let flood: Vec<Vec<u8>> = vec![
            vec![b'x'; 100_000],
            b"data: ".repeat(20_000),
            b"data\n".repeat(20_000),
            b":".repeat(100_000),
            b"id: 123456789\r\n".repeat(8_000),
            [b"id: ".to_vec(), vec![b'7'; 990], b"\n\n".to_vec()].concat().repeat(100),
        ];
        for bytes in flood {
            for cut in [1, 7, bytes.len()] {
                let mut parser = Parser::with_limit(limit_bytes);
                for piece in bytes.chunks(cut) {
                    count(&mut parser, piece);
                }
                // Three buffers of at most the limit; a vector may have doubled once.
                assert!(capacity(&parser) <= 3 * 2 * limit_bytes, "{} bytes kept", capacity(&parser));
            }
        }
    }

    #[test]
    fn a_running_stream_does_not_allocate() {
        let mut parser = Parser::new();
        let round = b"id: 5\nevent: e\ndata: abc\ndata: def\n\ndata: {\"x\":1}\n\n: ping\n\n";
        count(&mut parser, round);
        let warm = capacity(&parser);
        for cut in 1..round.len() {
            round.chunks(cut).for_each(|piece| {
                count(&mut parser, piece);
            });
        }
        assert_eq!(capacity(&parser), warm);
    }

    #[test]
    fn the_default_limit_is_a_mebibyte_and_the_error_says_what_to_do() {
        let mut line = b"data: ".to_vec();
        line.resize(DEFAULT_EVENT_BYTES_MAX, b'x');
        let mut parser = Parser::new();
        assert_eq!(count(&mut parser, &[&line[..], b"\n\n"].concat()), (1, 0));
        let mut errors = Vec::new();
        parser.feed(&[&line[..], b"y\n\ndata: next\n\n"].concat(), |item| errors.extend(item.err()));
        let [error] = &errors[..] else { panic!("{errors:?}") };
        assert_eq!(error.head, &line[..TOO_LARGE_HEAD_BYTES_MAX]);
        assert_eq!(
            error.to_string(),
            "event 1 is larger than 1048576 bytes: treat the stream as broken or raise the event limit"
        );
        assert_eq!(parser.counts().events, 2);
        assert_eq!(parser.counts().oversize_bytes, DEFAULT_EVENT_BYTES_MAX as u64 + 1);
    }

    #[test]
    fn reset_forgets_the_stream_and_sheds_a_giant_event() {
        let mut parser = Parser::with_limit(1 << 20);
        parser.feed(b"id: 1\nretry: 5\ndata: a\n\n: c\ndata: b\r", |_| {});
        count(&mut parser, &vec![b'x'; 1 << 19]);
        parser.reset();
        assert!(capacity(&parser) <= 3 * KEPT_CAPACITY_BYTES);
        assert_eq!((parser.counts(), parser.retry_ms(), parser.finish()), (Counts::default(), None, None));
        parser.reset();
        // The CR of the old stream is forgotten too: this LF is a line end, and the mark is a mark.
        let mut ids = Vec::new();
        parser.feed(b"\xEF\xBB\xBFdata: x\n\n", |item| {
            ids.extend(item.map(|event| (event.index(), event.last_event_id().len())));
        });
        assert_eq!(ids, [(0, 0)]);
    }

    #[test]
    fn a_retry_beyond_all_numbers_is_ignored() {
        let mut parser = Parser::new();
        parser.feed(b"retry: 5\nretry: 99999999999999999999\n", |_| {});
        assert_eq!(parser.retry_ms(), Some(5));
    }

    #[test]
    fn finish_may_be_asked_twice() {
        let mut parser = Parser::new();
        parser.feed(b"data: a\ndat", |_| {});
        let expected = Some(Unfinished { raw: b"data: a\ndat", too_large: false });
        assert_eq!(parser.finish(), expected);
        assert_eq!(parser.finish(), expected);
    }
}

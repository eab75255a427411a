//! The body of an answer while it comes: grammar facts, instants of its parts, joined content, and a bounded excerpt.
//! What is small is kept as bytes and hashed only when somebody needs the hash; hashers cost 2 KB each.

use evidence::record::{Excerpt, RequestRecord};

use crate::protocol::{Finished, Part, Protocol, StreamReader};

/// Largest JSON body that is parsed; what is longer is counted and digested, not kept.
pub const JSON_BYTES_MAX: usize = 16 << 20;
/// Joined content and raw bytes that are kept when a check asks for them.
const KEPT_BYTES_MAX: usize = 16 << 20;
const EXCERPT_HEAD_BYTES: usize = 2048;
const EXCERPT_TAIL_BYTES: usize = 1024;
/// Bytes that are kept as they are before a hasher takes them.
const HASH_LATER_BYTES: usize = 1024;

/// What a check needs beside facts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Keep {
    /// The joined content.
    pub content: bool,
    /// The bytes of the body.
    pub raw: bool,
    /// The digest of the joined content.
    pub digest: bool,
}

#[derive(Debug)]
enum Reader {
    Stream(Box<dyn StreamReader>),
    Document { too_large: bool },
}

/// An answer while it comes.
#[derive(Debug)]
pub struct Answer {
    protocol: &'static dyn Protocol,
    reader: Reader,
    keep: Keep,
    raw: Vec<u8>,
    content: ContentBuilder,
    /// Of a stream; a document that is kept whole has its excerpt in `raw`.
    excerpt: ExcerptBuilder,
    last_output_us: Option<u64>,
}

impl Answer {
    /// A reader for an SSE answer or for one JSON document.
    #[must_use]
    pub fn new(protocol: &'static dyn Protocol, stream: bool, keep: Keep) -> Self {
        let reader =
            if stream { Reader::Stream(protocol.stream()) } else { Reader::Document { too_large: false } };
        Self {
            protocol,
            reader,
            keep,
            raw: Vec::new(),
            content: ContentBuilder { keep: keep.content, digest: keep.digest, ..ContentBuilder::default() },
            excerpt: ExcerptBuilder::default(),
            last_output_us: None,
        }
    }

    /// Takes bytes that were read at `now_us` and notes in the record which parts came with them. `on_gap` gets the
    /// time between two events with output.
    pub fn feed(
        &mut self,
        bytes: &[u8],
        now_us: u64,
        record: &mut RequestRecord,
        on_gap: &mut dyn FnMut(u64),
    ) {
        record.bytes_in += bytes.len() as u64;
        record.first_byte_us.get_or_insert(now_us);
        match &mut self.reader {
            Reader::Stream(stream) => {
                self.excerpt.add(bytes);
                if self.keep.raw && self.raw.len() + bytes.len() <= KEPT_BYTES_MAX {
                    self.raw.extend_from_slice(bytes);
                }
                let (content, last_output_us) = (&mut self.content, &mut self.last_output_us);
                stream.feed(bytes, &mut |part| match part {
                    Part::Event { reasoning, output } => {
                        record.first_event_us.get_or_insert(now_us);
                        if reasoning {
                            record.first_reasoning_us.get_or_insert(now_us);
                        }
                        if output {
                            record.first_content_us.get_or_insert(now_us);
                            record.last_content_us = Some(now_us);
                        }
                        if (reasoning || output)
                            && let Some(last_us) = last_output_us.replace(now_us)
                        {
                            on_gap(now_us.saturating_sub(last_us));
                        }
                    }
                    Part::Text(text) => content.add(text),
                });
            }
            Reader::Document { too_large } => {
                record.first_content_us.get_or_insert(now_us);
                record.last_content_us = Some(now_us);
                if *too_large {
                    self.excerpt.add(bytes);
                } else if self.raw.len() + bytes.len() > JSON_BYTES_MAX {
                    *too_large = true;
                    self.excerpt.add(&self.raw);
                    self.excerpt.add(bytes);
                    self.raw = Vec::new();
                } else {
                    self.raw.extend_from_slice(bytes);
                }
            }
        }
    }

    /// Events so far.
    #[must_use]
    pub fn events(&self) -> u64 {
        match &self.reader {
            Reader::Stream(stream) => stream.events(),
            Reader::Document { .. } => 0,
        }
    }

    /// The answer has ended, `complete` when its framing says so.
    #[must_use]
    pub fn finish(mut self, complete: bool) -> (Finished, ExcerptBuilder) {
        let content = &mut self.content;
        let mut finished = match &mut self.reader {
            Reader::Stream(stream) => stream.finish(),
            Reader::Document { too_large: true } => {
                let mut finished = Finished { too_large: true, ..Finished::default() };
                (finished.facts.json_object, finished.facts.json_errors) = (Some(false), 1);
                finished
            }
            Reader::Document { .. } => self.protocol.document(&self.raw, &mut |text| content.add(text)),
        };
        finished.facts.body_complete = complete;
        finished.facts.content_chars = content.chars;
        finished.facts.content_blake3 =
            (content.chars > 0 && content.digest).then(|| content.hash.finish().to_hex().to_string());
        finished.content = std::mem::take(&mut content.kept);
        finished.raw = self.raw;
        (finished, self.excerpt)
    }
}

/// The excerpt of a finished answer.
#[must_use]
pub fn excerpt(finished: &Finished, builder: &ExcerptBuilder) -> Excerpt {
    if builder.bytes > 0 || finished.raw.is_empty() {
        return builder.finish();
    }
    let mut whole = ExcerptBuilder::default();
    whole.add(&finished.raw);
    whole.finish()
}

/// Joined content: its length and digest, and the text when somebody asks for it.
#[derive(Debug, Default)]
struct ContentBuilder {
    chars: u64,
    hash: LateHash,
    keep: bool,
    digest: bool,
    kept: String,
}

impl ContentBuilder {
    fn add(&mut self, text: &str) {
        self.chars += text.chars().count() as u64;
        if self.digest {
            self.hash.update(text.as_bytes());
        }
        if self.keep && self.kept.len() + text.len() <= KEPT_BYTES_MAX {
            self.kept.push_str(text);
        }
    }
}

/// A digest that takes the memory of a hasher only from some length on.
#[derive(Debug)]
enum LateHash {
    Bytes(Vec<u8>),
    Hasher(Box<blake3::Hasher>),
}

impl Default for LateHash {
    fn default() -> Self {
        Self::Bytes(Vec::new())
    }
}

impl LateHash {
    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Bytes(kept) if kept.len() + bytes.len() <= HASH_LATER_BYTES => {
                kept.extend_from_slice(bytes);
            }
            Self::Bytes(kept) => {
                let mut hasher = Box::new(blake3::Hasher::new());
                hasher.update(kept).update(bytes);
                *self = Self::Hasher(hasher);
            }
            Self::Hasher(hasher) => {
                hasher.update(bytes);
            }
        }
    }

    fn finish(&self) -> blake3::Hash {
        match self {
            Self::Bytes(kept) => blake3::hash(kept),
            Self::Hasher(hasher) => hasher.finalize(),
        }
    }
}

/// First and last bytes, length and digest of a body of any size.
#[derive(Debug, Default)]
pub struct ExcerptBuilder {
    head: Vec<u8>,
    tail: Vec<u8>,
    bytes: u64,
    /// From the moment on when head and tail no longer hold everything.
    hash: Option<Box<blake3::Hasher>>,
}

impl ExcerptBuilder {
    fn add(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        if let Some(hash) = &mut self.hash {
            hash.update(bytes);
        } else if self.head.len() + self.tail.len() + bytes.len() > EXCERPT_HEAD_BYTES + EXCERPT_TAIL_BYTES {
            let mut hash = Box::new(blake3::Hasher::new());
            hash.update(&self.head).update(&self.tail).update(bytes);
            self.hash = Some(hash);
        }
        let (start, rest) = bytes.split_at(bytes.len().min(EXCERPT_HEAD_BYTES - self.head.len()));
        self.head.extend_from_slice(start);
        let rest = &rest[rest.len().saturating_sub(EXCERPT_TAIL_BYTES)..];
        let surplus = (self.tail.len() + rest.len()).saturating_sub(EXCERPT_TAIL_BYTES);
        self.tail.drain(..surplus);
        self.tail.extend_from_slice(rest);
    }

    fn finish(&self) -> Excerpt {
        let hash = match &self.hash {
            Some(hash) => hash.finalize(),
            None => blake3::Hasher::new().update(&self.head).update(&self.tail).finalize(),
        };
        Excerpt {
            head: String::from_utf8_lossy(&self.head).into_owned(),
            tail: String::from_utf8_lossy(&self.tail).into_owned(),
            bytes: self.bytes,
            blake3: hash.to_hex().to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::openai_chat::OpenAiChat;
    use evidence::record::AnswerFacts;
    use scenario::identity::RequestId;

    fn blank() -> RequestRecord {
        RequestRecord::blank(0, RequestId::new("s", 1, 0), true)
    }

    fn parts(answer: Answer) -> (Excerpt, AnswerFacts) {
        let (finished, builder) = answer.finish(true);
        (excerpt(&finished, &builder), finished.facts)
    }

    const STREAM: &[u8] = include_bytes!("../tests/fixtures/ok-stream.txt");

    #[test]
    fn a_stream_gives_the_same_facts_at_any_cut() {
        let whole = {
            let mut answer = Answer::new(&OpenAiChat, true, Keep::default());
            answer.feed(STREAM, 5, &mut blank(), &mut |_| {});
            parts(answer)
        };
        assert_eq!(whole.1.ending.as_deref(), Some("done"));
        for cut in 0..STREAM.len() {
            let mut answer = Answer::new(&OpenAiChat, true, Keep::default());
            let mut record = blank();
            answer.feed(&STREAM[..cut], 5, &mut record, &mut |_| {});
            answer.feed(&STREAM[cut..], 9, &mut record, &mut |_| {});
            assert_eq!(parts(answer), whole, "cut at {cut}");
            assert_eq!(record.bytes_in, STREAM.len() as u64);
        }
    }

    #[test]
    fn an_excerpt_is_bounded_and_says_the_whole() {
        let body: Vec<u8> = (0..100_000_u32).map(|i| b'a' + u8::try_from(i % 26).unwrap()).collect();
        for step in [1, 7, 1000, 4096, 100_000] {
            let mut excerpt = ExcerptBuilder::default();
            body.chunks(step).for_each(|piece| excerpt.add(piece));
            let got = excerpt.finish();
            assert_eq!(got.head.as_bytes(), &body[..2048], "step {step}");
            assert_eq!(got.tail.as_bytes(), &body[body.len() - 1024..], "step {step}");
            assert_eq!((got.bytes, got.blake3), (100_000, blake3::hash(&body).to_hex().to_string()));
        }
        let mut short = ExcerptBuilder::default();
        short.add(b"short");
        assert_eq!((short.finish().head.as_str(), short.finish().tail.as_str()), ("short", ""));
    }

    #[test]
    fn a_document_that_is_too_large_is_counted_and_not_kept() {
        let mut answer = Answer::new(&OpenAiChat, false, Keep::default());
        let mut record = blank();
        let piece = vec![b' '; 1 << 20];
        for _ in 0..20 {
            answer.feed(&piece, 1, &mut record, &mut |_| {});
        }
        assert_eq!(record.bytes_in, 20 << 20);
        assert_eq!(answer.raw.capacity(), 0);
        let finished = answer.finish(true).0;
        assert!(finished.too_large);
        assert_eq!(finished.facts.json_object, Some(false));
    }

    #[test]
    fn reasoning_and_content_have_their_own_instants() {
        let mut answer = Answer::new(&OpenAiChat, true, Keep { content: true, ..Keep::default() });
        let mut record = blank();
        let event = |delta: &str| format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{delta}}}]}}\n\n");
        answer.feed(event(r#"{"role":"assistant","content":""}"#).as_bytes(), 1, &mut record, &mut |_| {});
        answer.feed(event(r#"{"reasoning_content":"hm"}"#).as_bytes(), 2, &mut record, &mut |_| {});
        answer.feed(event(r#"{"content":"a"}"#).as_bytes(), 3, &mut record, &mut |_| {});
        answer.feed(event(r#"{"content":"é"}"#).as_bytes(), 4, &mut record, &mut |_| {});
        assert_eq!((record.first_event_us, record.first_reasoning_us), (Some(1), Some(2)));
        assert_eq!((record.first_content_us, record.last_content_us), (Some(3), Some(4)));
        let finished = answer.finish(true).0;
        assert_eq!((finished.content.as_str(), finished.facts.content_chars), ("aé", 2));
    }

    #[test]
    fn gaps_are_between_events_with_output() {
        let mut answer = Answer::new(&OpenAiChat, true, Keep::default());
        let mut record = blank();
        let event = |delta: &str| format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{delta}}}]}}\n\n");
        let mut gaps = Vec::new();
        for (at, delta) in
            [(1, r#"{"role":"assistant"}"#), (5, r#"{"content":"a"}"#), (7, "{}"), (12, r#"{"content":"b"}"#)]
        {
            answer.feed(event(delta).as_bytes(), at, &mut record, &mut |gap| gaps.push(gap));
        }
        assert_eq!(gaps, [7]);
    }
}

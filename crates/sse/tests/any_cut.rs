//! Properties that say "any": any cut, any bytes, any comments. The parser is held against a plain
//! model that sees the whole input at once and splits it into lines first.

use proptest::collection::vec;
use proptest::prelude::*;
use sse::{ChatStream, Counts, Parser};

/// What a run shows from outside. An item is an event, or None for one that was too large.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Run {
    items: Vec<Option<Shown>>,
    unfinished: Option<(Vec<u8>, bool)>,
    counts: Counts,
    retry_ms: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Shown {
    event_type: Vec<u8>,
    data: Vec<u8>,
    last_event_id: Vec<u8>,
    valid_utf8: bool,
}

fn run<'b>(parser: &mut Parser, pieces: impl IntoIterator<Item = &'b [u8]>) -> Run {
    let mut items = Vec::new();
    for piece in pieces {
        parser.feed(piece, |item| {
            items.push(item.ok().map(|event| {
                assert_eq!(
                    event.text().map(str::as_bytes),
                    std::str::from_utf8(event.data()).ok().map(str::as_bytes)
                );
                Shown {
                    event_type: event.event_type().to_vec(),
                    data: event.data().to_vec(),
                    last_event_id: event.last_event_id().to_vec(),
                    valid_utf8: event.valid_utf8(),
                }
            }));
        });
    }
    let unfinished = parser.finish().map(|left| (left.raw.to_vec(), left.too_large));
    Run { items, unfinished, counts: parser.counts(), retry_ms: parser.retry_ms() }
}

/// All lines of the input that have a line end, and what is left after the last one.
fn lines(mut rest: &[u8]) -> (Vec<&[u8]>, &[u8]) {
    let mut found = Vec::new();
    while let Some(at) = rest.iter().position(|byte| matches!(byte, b'\r' | b'\n')) {
        found.push(&rest[..at]);
        let end = if rest[at..].starts_with(b"\r\n") { 2 } else { 1 };
        rest = &rest[at + end..];
    }
    (found, rest)
}

/// The model: the standard's prose over complete lines, no states and no cuts.
fn model(input: &[u8], limit_bytes: usize) -> Run {
    let input = input.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(input);
    let (lines, tail) = lines(input);
    let mut out = Run { items: vec![], unfinished: None, counts: Counts::default(), retry_ms: None };
    let (mut block, mut data, mut event_type, mut id) = (vec![], vec![], vec![], None);
    let mut last_event_id = vec![];
    for line in lines {
        if line.is_empty() {
            let size = block.join(&b'\n').len();
            if size > limit_bytes {
                out.counts.oversize_events += 1;
                out.counts.oversize_bytes += size as u64;
                out.items.push(None);
            } else {
                last_event_id = id.unwrap_or(last_event_id);
                if !data.is_empty() {
                    out.counts.events += 1;
                    out.items.push(Some(Shown {
                        event_type: if event_type.is_empty() { b"message".to_vec() } else { event_type },
                        data: data.join(&b'\n'),
                        last_event_id: last_event_id.clone(),
                        valid_utf8: block.iter().all(|line: &&[u8]| std::str::from_utf8(line).is_ok()),
                    }));
                }
            }
            (block, data, event_type, id) = (vec![], vec![], vec![], None);
            continue;
        }
        if line.starts_with(b":") {
            out.counts.comments += 1;
            continue;
        }
        block.push(line);
        if block.join(&b'\n').len() > limit_bytes {
            continue;
        }
        let (name, value) = match line.iter().position(|byte| *byte == b':') {
            Some(at) => (&line[..at], line[at + 1..].strip_prefix(b" ").unwrap_or(&line[at + 1..])),
            None => (line, &b""[..]),
        };
        match name {
            b"data" => data.push(value),
            b"event" => event_type = value.to_vec(),
            b"id" if !value.contains(&0) => id = Some(value.to_vec()),
            b"retry" if value.iter().all(u8::is_ascii_digit) => {
                let digits = std::str::from_utf8(value).expect("digits are ASCII");
                out.retry_ms = digits.parse().ok().or(out.retry_ms);
            }
            _ => {}
        }
    }
    if !tail.is_empty() && !tail.starts_with(b":") {
        block.push(tail);
    }
    let raw = block.join(&b'\n');
    let too_large = raw.len() > limit_bytes;
    if too_large {
        out.counts.oversize_events += 1;
        out.counts.oversize_bytes += raw.len() as u64;
        out.items.push(None);
    }
    out.unfinished = (!raw.is_empty()).then(|| (raw[..raw.len().min(limit_bytes)].to_vec(), too_large));
    out
}

/// Pieces of the input after the given lengths, going round; a zero gives an empty read.
fn cut<'b>(input: &'b [u8], lengths: &[usize]) -> Vec<&'b [u8]> {
    let (mut pieces, mut rest) = (Vec::new(), input);
    for length in lengths.iter().copied().chain(std::iter::once(usize::MAX)) {
        let (piece, tail) = rest.split_at(length.min(rest.len()));
        pieces.push(piece);
        rest = tail;
    }
    pieces
}

/// Bytes that look enough like a stream to reach every corner of the grammar.
fn streamlike() -> impl Strategy<Value = Vec<u8>> {
    let word = prop_oneof![
        8 => proptest::sample::select(vec![
            &b"data"[..], b"data:", b"data: ", b"event:", b"id:", b"id: 7", b"retry: 12", b"retry:", b"foo: bar",
            b":", b": ping", b" ", b"x", b"\0", b"[DONE]", b"{\"choices\":[]}", b"{\"error\":\"e\"}",
            b"data: [DONE]\n\n", b"\xEF\xBB\xBF", b"\xEF\xBB", b"\xF0\x9F\x98\x80", b"\xF0\x9F", b"\xFF", b"\xE2\x80\xA8",
            b"\xC2\x85", b"0123456789abcdef",
        ]).prop_map(<[u8]>::to_vec),
        6 => proptest::sample::select(vec![&b"\n"[..], b"\r", b"\r\n", b"\n\n", b"\r\r", b"\r\n\r\n"])
            .prop_map(<[u8]>::to_vec),
        1 => vec(any::<u8>(), 0..4),
    ];
    vec(word, 0..60).prop_map(|words| words.concat())
}

fn any_input() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![4 => streamlike(), 1 => vec(any::<u8>(), 0..400)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_cut_gives_what_the_whole_gives(
        input in any_input(),
        lengths in vec(0_usize..9, 0..80),
        limit_bytes in prop_oneof![0_usize..40, Just(1 << 20)],
    ) {
        let expected = model(&input, limit_bytes);
        prop_assert_eq!(&run(&mut Parser::with_limit(limit_bytes), [&input[..]]), &expected);
        prop_assert_eq!(&run(&mut Parser::with_limit(limit_bytes), input.chunks(1)), &expected);
        // A used parser is as good as a new one after `reset`.
        let mut parser = Parser::with_limit(limit_bytes);
        prop_assert_eq!(&run(&mut parser, cut(&input, &lengths)), &expected);
        parser.reset();
        prop_assert_eq!(&run(&mut parser, cut(&input, &lengths)), &expected);
    }

    #[test]
    fn any_cut_gives_the_same_facts(input in any_input(), lengths in vec(0_usize..9, 0..80)) {
        let facts = |pieces: Vec<&[u8]>| {
            let mut stream = ChatStream::with_limit(64);
            let mut kinds = Vec::new();
            for piece in pieces {
                stream.feed(piece, |what, _| kinds.push(what));
            }
            (stream.finish(), kinds)
        };
        let whole = facts(vec![&input]);
        prop_assert_eq!(&facts(input.chunks(1).collect()), &whole);
        prop_assert_eq!(&facts(cut(&input, &lengths)), &whole);
        // Stored facts are the facts: nothing is lost on the way through a file.
        let stored = serde_json::to_string(&whole.0).expect("facts are plain data");
        let read: sse::StreamFacts = serde_json::from_str(&stored).expect("what was written can be read");
        prop_assert_eq!(read.ending(), whole.0.ending());
        prop_assert_eq!(read, whole.0);
    }

    #[test]
    fn comments_never_become_events(
        before in vec("[a-z:]{0,6}", 0..4),
        comments in vec("[a-z: \u{2028}]{0,12}", 1..8),
        end in proptest::sample::select(vec!["\n", "\r", "\r\n"]),
    ) {
        let comment_lines: String = comments.iter().map(|text| format!(":{text}{end}")).collect();
        let only = run(&mut Parser::new(), [comment_lines.as_bytes()]);
        prop_assert!(only.items.is_empty() && only.unfinished.is_none());
        prop_assert_eq!(only.counts.comments, comments.len() as u64);

        // Put after every line of an event they change its meaning by nothing.
        let lines: Vec<String> = before.iter().map(|text| format!("data:{text}{end}")).collect();
        let plain = run(&mut Parser::new(), [format!("{}{end}", lines.concat()).as_bytes()]);
        let noisy: String = lines.iter().map(|line| format!("{line}{comment_lines}")).collect();
        let noisy = run(&mut Parser::new(), [format!("{noisy}{end}").as_bytes()]);
        prop_assert_eq!(noisy.items, plain.items);
    }

    #[test]
    fn any_body_is_described(body in vec(any::<u8>(), 0..200)) {
        let facts = sse::BodyFacts::of(&body);
        prop_assert_eq!(facts.bytes, body.len() as u64);
        prop_assert!(facts.json || !facts.is_object);
    }
}

//! The committed corpus, every stream at several cut sizes: events, facts and ending as its file says.

#![expect(clippy::unwrap_used, reason = "everything here is test code: a panic is its way to fail")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use sse::{ChatStream, DEFAULT_EVENT_BYTES_MAX, Ending, EventKind, Parser, StreamFacts};

/// One expectation file; corpus/README.md describes it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    version: u32,
    about: String,
    #[serde(default)]
    #[expect(dead_code, reason = "where the rule comes from is for human readers")]
    source: Option<String>,
    #[serde(default)]
    limit_bytes: Option<usize>,
    events: Vec<ExpectedItem>,
    #[serde(default)]
    comments: u64,
    #[serde(default)]
    retry_ms: Option<u64>,
    #[serde(default)]
    unfinished: Option<String>,
    #[serde(default)]
    unfinished_hex: Option<String>,
    #[serde(default)]
    unfinished_too_large: bool,
    #[serde(default)]
    oversize_bytes: u64,
    #[serde(default)]
    chat: Option<ExpectedChat>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExpectedItem {
    #[serde(default)]
    too_large: bool,
    #[serde(default)]
    data: Option<String>,
    #[serde(default)]
    data_hex: Option<String>,
    #[serde(default = "message")]
    event: String,
    #[serde(default)]
    last_event_id: String,
    #[serde(default = "yes")]
    valid_utf8: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExpectedChat {
    kinds: Vec<EventKind>,
    first_reasoning: Option<u64>,
    first_content: Option<u64>,
    first_output: Option<u64>,
    ending: Ending,
    facts: serde_json::Value,
}

fn message() -> String {
    "message".to_owned()
}

fn yes() -> bool {
    true
}

fn from_hex(digits: &str) -> Vec<u8> {
    assert!(digits.len().is_multiple_of(2), "{digits}");
    (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect()
}

fn text_or_hex(text: Option<&String>, hex: Option<&String>) -> Option<Vec<u8>> {
    assert!(text.is_none() || hex.is_none(), "both a text and its hex form");
    text.map(|text| text.clone().into_bytes()).or_else(|| hex.map(|digits| from_hex(digits)))
}

/// An event, or None for one that was too large, in a form that can be compared.
type Item = Option<(Vec<u8>, Vec<u8>, Vec<u8>, bool)>;

fn check_grammar(case: &Case, raw: &[u8], cut: usize) {
    let limit = case.limit_bytes.unwrap_or(DEFAULT_EVENT_BYTES_MAX);
    let mut parser = Parser::with_limit(limit);
    let mut items: Vec<Item> = Vec::new();
    for piece in raw.chunks(cut) {
        parser.feed(piece, |item| match item {
            Ok(event) => {
                assert_eq!(event.index(), items.len() as u64);
                items.push(Some((
                    event.event_type().to_vec(),
                    event.data().to_vec(),
                    event.last_event_id().to_vec(),
                    event.valid_utf8(),
                )));
            }
            Err(dropped) => {
                assert_eq!((dropped.index, dropped.limit_bytes), (items.len() as u64, limit));
                items.push(None);
            }
        });
    }
    let unfinished = parser.finish().map(|left| (left.raw.to_vec(), left.too_large));

    let expected_items: Vec<Item> = case
        .events
        .iter()
        .map(|item| {
            let data = text_or_hex(item.data.as_ref(), item.data_hex.as_ref());
            assert_ne!(data.is_some(), item.too_large, "an item has data or is too large");
            let (event, id) = (item.event.clone().into_bytes(), item.last_event_id.clone().into_bytes());
            data.map(|data| (event, data, id, item.valid_utf8))
        })
        .collect();
    let expected_unfinished = text_or_hex(case.unfinished.as_ref(), case.unfinished_hex.as_ref());
    assert_eq!(items, expected_items);
    assert_eq!(unfinished, expected_unfinished.map(|raw| (raw, case.unfinished_too_large)));
    assert_eq!(parser.retry_ms(), case.retry_ms);
    let counts = parser.counts();
    assert_eq!(counts.comments, case.comments);
    assert_eq!(counts.oversize_bytes, case.oversize_bytes);
    assert_eq!(counts.events + counts.oversize_events, items.len() as u64);
    assert_eq!(counts.events, items.iter().flatten().count() as u64);
}

fn check_chat(case: &Case, expected: &ExpectedChat, raw: &[u8], cut: usize) {
    let mut stream = ChatStream::with_limit(case.limit_bytes.unwrap_or(DEFAULT_EVENT_BYTES_MAX));
    let mut kinds = Vec::new();
    let (mut reasoning, mut content, mut output) = (None, None, None);
    for piece in raw.chunks(cut) {
        stream.feed(piece, |what, _| {
            kinds.push(what.kind);
            for (seen, first) in
                [(what.reasoning, &mut reasoning), (what.content, &mut content), (what.output(), &mut output)]
            {
                if seen {
                    first.get_or_insert(what.index);
                }
            }
        });
    }
    let facts = stream.finish();
    let expected_facts = StreamFacts::deserialize(&expected.facts).unwrap();
    assert_eq!(facts, expected_facts);
    assert_eq!(kinds, expected.kinds);
    assert_eq!(
        (reasoning, content, output),
        (expected.first_reasoning, expected.first_content, expected.first_output)
    );
    assert_eq!(facts.ending(), expected.ending);
}

/// A misspelt fact would otherwise be read as "empty value expected".
fn check_fact_names(expected: &ExpectedChat) {
    let known = serde_json::to_value(StreamFacts::default()).unwrap();
    for name in expected.facts.as_object().unwrap().keys() {
        assert!(known.get(name).is_some(), "unknown fact {name}");
    }
}

fn stream_files() -> Vec<PathBuf> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let mut files: Vec<PathBuf> = fs::read_dir(corpus)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_dir())
        .flat_map(|group| fs::read_dir(group).unwrap().map(|entry| entry.unwrap().path()))
        .collect();
    files.sort();
    let stems: BTreeSet<PathBuf> = files.iter().map(|path| path.with_extension("")).collect();
    assert_eq!(files.len(), 2 * stems.len(), "every stream has its expectation and the other way round");
    files.retain(|path| path.extension().is_some_and(|extension| extension == "sse"));
    files
}

#[test]
fn every_stream_gives_what_its_file_says_at_any_cut() {
    let files = stream_files();
    assert!(files.len() >= 160, "only {} streams found", files.len());
    let mut failed = Vec::new();
    for path in files {
        let raw = fs::read(&path).unwrap();
        let text = fs::read_to_string(path.with_extension("json")).unwrap();
        let case: Case = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        assert_eq!(case.version, 1, "{}", path.display());
        assert!(!case.about.is_empty(), "{}", path.display());
        for cut in [1, 2, 3, 7, raw.len().max(1)] {
            let run = std::panic::catch_unwind(|| {
                check_grammar(&case, &raw, cut);
                if let Some(expected) = &case.chat {
                    check_fact_names(expected);
                    check_chat(&case, expected, &raw, cut);
                }
            });
            if run.is_err() {
                failed.push(format!("{} cut {cut}", path.display()));
            }
        }
    }
    assert!(failed.is_empty(), "failed:\n{}", failed.join("\n"));
}

/// Every word of the vocabulary occurs, so that a reader of the corpus meets them all.
#[test]
fn the_corpus_shows_every_kind_and_every_ending() {
    let (mut kinds, mut endings) = (BTreeSet::new(), BTreeSet::new());
    for path in stream_files() {
        let text = fs::read_to_string(path.with_extension("json")).unwrap();
        let case: Case = serde_json::from_str(&text).unwrap();
        let Some(chat) = case.chat else { continue };
        kinds.extend(chat.kinds.iter().map(|kind| format!("{kind:?}")));
        endings.insert(format!("{:?}", chat.ending));
    }
    assert_eq!((kinds.len(), endings.len()), (12, 9), "{kinds:?} {endings:?}");
}

//! What must hold for any id, any secret and any bytes.

#![expect(clippy::unwrap_used, reason = "a failed step of a test should end it")]

use std::fs;

use evidence::names::{FILE_STEM_LEN_MAX, file_stem};
use evidence::record::RequestRecord;
use evidence::redact::{REDACTED, Redactor};
use evidence::rundir::{BadLine, LINE_LEN_MAX, RunDir, RunReader};
use percent_encoding::percent_decode_str;
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Value, json};

/// Ids of people with bad intentions: any text, and texts of the characters that move in a file system.
fn id() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<String>(),
        "[./\\\\~%_a-cA-C0-2\u{0}\n-]{0,12}",
        "(\\.\\./|%2E|é|a){0,200}",
        "[a-z0-9-]{90,140}",
    ]
}

/// What real secrets look like: hex keys, base64 tokens, passwords with anything in them, numbers.
fn secret() -> impl Strategy<Value = String> {
    prop_oneof![
        "[0-9a-f]{32}[a-f]",
        "[A-Za-z][A-Za-z0-9+/=_.-]{15,63}",
        "[a-z]{8,12}",
        "[1-9][0-9]{8,17}",
        "[a-z\"\\\\/\n\té😀]{8,12}",
    ]
}

/// The same text in JSON as some other writer escapes it: every n-th character as `\uXXXX`, once or inside a string.
fn escaped(text: &str, every: usize, nested: bool) -> String {
    let mut out = String::new();
    for (at, character) in text.chars().enumerate() {
        if every > 0 && at % every == 0 {
            let mut units = [0; 2];
            character.encode_utf16(&mut units).iter().for_each(|unit| out += &format!("\\u{unit:04x}"));
        } else {
            let quoted = serde_json::to_string(&character).unwrap();
            out += &quoted[1..quoted.len() - 1];
        }
    }
    let once = format!("{{\"k\":\"{out}\"}}");
    if nested { serde_json::to_string(&once).unwrap() } else { once }
}

/// Text with secrets anywhere in it: alone, repeated, touching each other, inside words.
fn text(secrets: Vec<String>) -> impl Strategy<Value = String> {
    let part = prop_oneof!["[ -~é\n]{0,12}", prop::sample::select(secrets)];
    vec(part, 0..5).prop_map(|parts| parts.concat())
}

/// Any JSON whose strings, keys and numbers may hold secrets.
fn document(secrets: Vec<String>) -> impl Strategy<Value = Value> {
    let numbers: Vec<u64> =
        secrets.iter().filter_map(|secret| secret.parse().ok()).chain([1, 7_000_000_000]).collect();
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        prop::sample::select(numbers).prop_map(Value::from),
        text(secrets.clone()).prop_map(Value::from),
    ];
    let key = prop_oneof![
        "[A-Z]{1,7}",
        text(secrets),
        Just("Password".to_owned()),
        Just("authorization".to_owned()),
        Just("X-Api-Key".to_owned()),
    ];
    leaf.prop_recursive(4, 40, 5, move |inner| {
        prop_oneof![
            vec(inner.clone(), 0..5).prop_map(Value::from),
            vec((key.clone(), inner), 0..5).prop_map(|pairs| Value::Object(pairs.into_iter().collect())),
        ]
    })
}

fn secrets_and_document() -> impl Strategy<Value = (Vec<String>, Value)> {
    vec(secret(), 1..4).prop_flat_map(|secrets| (Just(secrets.clone()), document(secrets)))
}

/// The strings of a value, keys included, as a reader sees them.
fn strings(value: &Value, out: &mut Vec<String>) {
    match value {
        Value::String(text) => out.push(text.clone()),
        Value::Array(items) => items.iter().for_each(|item| strings(item, out)),
        Value::Object(map) => map.iter().for_each(|(key, inner)| {
            out.push(key.clone());
            strings(inner, out);
        }),
        Value::Number(number) => out.push(number.to_string()),
        _ => {}
    }
}

fn leaks(value: &Value, secrets: &[String]) -> bool {
    let mut found = Vec::new();
    strings(value, &mut found);
    found.iter().any(|text| secrets.iter().any(|secret| text.contains(secret.as_str())))
}

/// Whatever says something under keys that name a secret, lists and objects included.
fn named_secrets_are_gone(value: &Value) -> bool {
    fn blotted(value: &Value) -> bool {
        match value {
            Value::Object(map) => map.values().all(blotted),
            Value::Array(items) => items.iter().all(blotted),
            Value::String(text) => text.is_empty() || text == REDACTED,
            Value::Number(_) => false,
            Value::Null | Value::Bool(_) => true,
        }
    }
    match value {
        Value::Object(map) => map.iter().all(|(key, inner)| {
            let named =
                ["password", "authorization", "x-api-key"].contains(&key.to_ascii_lowercase().as_str());
            if named { blotted(inner) } else { named_secrets_are_gone(inner) }
        }),
        Value::Array(items) => items.iter().all(named_secrets_are_gone),
        _ => true,
    }
}

/// Reads bytes as a JSON Lines file of values.
fn read_lines(bytes: &[u8]) -> Vec<Result<Value, BadLine>> {
    let base = tempfile::tempdir().unwrap();
    fs::write(base.path().join("x.jsonl"), bytes).unwrap();
    RunReader::new(base.path()).lines("x.jsonl").unwrap().collect()
}

fn cut_off(line: &Result<Value, BadLine>) -> bool {
    line.as_ref().is_err_and(|bad| bad.why.contains("cut off"))
}

/// Bytes that look like JSON Lines often enough.
fn any_file() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        vec(any::<u8>(), 0..20),
        Just(b"\n".to_vec()),
        Just(b"\r\n".to_vec()),
        Just(b"{\"a\":1}\n".to_vec()),
        Just(b"{\"a\":".to_vec()),
        Just("[".repeat(3_000).into_bytes()),
        Just("\"é".as_bytes()[..2].to_vec()),
    ];
    vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config(2_000))]

    #[test]
    fn a_stem_is_one_bounded_name(id in id()) {
        let stem = file_stem(&id);
        prop_assert!(!stem.is_empty() && stem.len() <= FILE_STEM_LEN_MAX, "{} bytes", stem.len());
        prop_assert!(!stem.contains('/') && !stem.contains('\\') && !stem.contains(".."), "{stem}");
        prop_assert!(stem.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_%~.".contains(&byte)), "{stem}");
        prop_assert!(!stem.starts_with('.'), "{stem} is hidden");
    }

    /// A short stem decodes to its id, so two ids can't share one; a long stem has the mark that short ones never have.
    #[test]
    fn a_short_stem_gives_its_id_back(id in id()) {
        let stem = file_stem(&id);
        if stem.contains('~') {
            prop_assert!(id.is_empty() || id.len() * 3 > FILE_STEM_LEN_MAX, "{id:?} is short");
        } else {
            prop_assert_eq!(percent_decode_str(&stem).decode_utf8().unwrap(), id);
        }
    }

    #[test]
    fn different_ids_have_different_stems(head in "[a-z/.é]{0,200}", one in id(), other in id()) {
        prop_assume!(one != other);
        prop_assert_ne!(file_stem(&one), file_stem(&other));
        prop_assert_ne!(file_stem(&format!("{head}{one}")), file_stem(&format!("{head}{other}")));
    }
}

proptest! {
    #![proptest_config(config(500))]

    #[test]
    fn no_value_keeps_a_secret((secrets, before) in secrets_and_document()) {
        let redactor = Redactor::new(secrets.clone());
        let mut value = before;
        redactor.json(&mut value);
        prop_assert!(!leaks(&value, &secrets), "{value}");
        prop_assert!(named_secrets_are_gone(&value), "{value}");
        let once = value.clone();
        redactor.json(&mut value);
        prop_assert_eq!(value, once, "a second pass finds nothing");
    }

    /// A text file that holds JSON of somebody else's writing, once or twice wrapped.
    #[test]
    fn escapes_do_not_hide_a_secret(secret in secret(), every in 0_usize..4, nested: bool) {
        let clean = Redactor::new([secret.clone()]).text(&escaped(&secret, every, nested)).into_owned();
        let read = serde_json::from_str::<Value>(&clean);
        prop_assert!(read.is_ok(), "still JSON: {clean}");
        let mut found = read.unwrap();
        if let Some(inner) = found.as_str() {
            let inner = serde_json::from_str::<Value>(inner);
            prop_assert!(inner.is_ok(), "still JSON inside: {clean}");
            found = inner.unwrap();
        }
        prop_assert!(!leaks(&found, std::slice::from_ref(&secret)), "{secret:?}: {clean}");
    }

    #[test]
    fn innocent_text_is_not_touched(text in "[G-Z é\n]{0,60}", key in "[0-9a-f]{32}") {
        let redactor = Redactor::new([key]);
        prop_assert_eq!(redactor.text(&text), text.as_str());
    }

    /// The way through the files: whole file, appended line and text.
    #[test]
    fn no_file_keeps_a_secret((secrets, value) in secrets_and_document()) {
        let base = tempfile::tempdir().unwrap();
        let mut dir = RunDir::create(base.path(), "r").unwrap();
        dir.set_redactor(Redactor::new(secrets.clone()));
        dir.write_json("x.json", &value).unwrap();
        dir.write_text("x.txt", &value.to_string()).unwrap();
        dir.append("x.jsonl").unwrap().write(&value).unwrap();
        for name in ["x.json", "x.txt", "x.jsonl"] {
            let written = fs::read_to_string(dir.path(name)).unwrap();
            prop_assert!(secrets.iter().all(|secret| !written.contains(secret.as_str())), "{name}: {written}");
            // A reader of the JSON sees no secret either: an escape does not bring it back.
            if name != "x.txt" {
                let read: Value = serde_json::from_str(&written).unwrap();
                prop_assert!(!leaks(&read, &secrets), "{name}: {read}");
            }
        }
        let read = RunReader::new(dir.root()).lines::<Value>("x.jsonl").unwrap().next().unwrap();
        prop_assert!(read.is_ok(), "the line is still JSON");
    }
}

proptest! {
    #![proptest_config(config(500))]

    #[test]
    fn any_bytes_are_read_to_their_end(bytes in any_file()) {
        let read = read_lines(&bytes);
        let ends = bytes.iter().filter(|byte| **byte == b'\n').count();
        let tail = bytes.last().is_some_and(|byte| *byte != b'\n');
        prop_assert_eq!(read.len(), ends + usize::from(tail), "one answer a line");
        prop_assert_eq!(read.last().is_some_and(cut_off), tail, "a tail without its end is reported");
        for (line, number) in read.iter().zip(1_u64..) {
            if let Err(bad) = line {
                prop_assert_eq!((bad.line, bad.file.as_str()), (number, "x.jsonl"));
            }
        }
        // Each whole line is judged alone: damage before it changes nothing.
        for (line, bytes) in read.iter().zip(bytes.split_inclusive(|byte| *byte == b'\n')) {
            if bytes.ends_with(b"\n") {
                let alone = serde_json::from_slice::<Value>(bytes).ok();
                prop_assert_eq!(line.as_ref().ok(), alone.as_ref());
            }
        }
    }

    #[test]
    fn a_cut_file_gives_its_whole_lines_and_says_so(lines in 1_usize..6, cut in any::<prop::sample::Index>()) {
        let record = |index: u64| {
            let id = serde_json::from_value(json!(format!("ml-5xx-42-{index:06}"))).unwrap();
            serde_json::to_string(&RequestRecord::blank(index, id, true)).unwrap() + "\n"
        };
        let whole: String = (0..lines as u64).map(record).collect();
        let cut = &whole.as_bytes()[..cut.index(whole.len() + 1)];
        let complete = cut.iter().filter(|byte| **byte == b'\n').count();
        let base = tempfile::tempdir().unwrap();
        fs::write(base.path().join("r.jsonl"), cut).unwrap();
        let reader = RunReader::new(base.path());
        let read: Vec<_> = reader.lines::<RequestRecord>("r.jsonl").unwrap().collect();
        let kept: Vec<u64> = read.iter().filter_map(|line| Some(line.as_ref().ok()?.index)).collect();
        prop_assert_eq!(kept, (0..complete as u64).collect::<Vec<_>>());
        let truncated = cut.last().is_some_and(|byte| *byte != b'\n');
        prop_assert_eq!(read.len(), complete + usize::from(truncated));
        if truncated {
            prop_assert!(read[complete].as_ref().is_err_and(|bad| bad.why.contains("cut off")));
        }
    }
}

#[test]
fn a_line_beyond_the_bound_ends_the_reading() {
    let mut bytes = b"1\n".to_vec();
    bytes.resize(2 + LINE_LEN_MAX + 1, b' ');
    bytes.extend_from_slice(b"\n2\n");
    let read = read_lines(&bytes);
    assert_eq!(read.len(), 2);
    assert_eq!(read[0], Ok(json!(1)));
    assert!(read[1].as_ref().is_err_and(|bad| bad.line == 2 && bad.why.contains("longer")));
}

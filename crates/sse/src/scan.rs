//! A fast reader for the JSON that servers of models write. It reads what is plainly well-formed and gives up on all
//! else (escapes that make surrogates, fractions where a whole number is wanted, deep nesting, any error): what it has
//! given up on is read by `serde_json`, which decides. So it can't accept anything that `serde_json` refuses, and the
//! types of crate-private module `json` say what is wanted, for both.

use std::borrow::Cow;
use std::fmt;

use serde::de::value::{BorrowedStrDeserializer, CowStrDeserializer};
use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde::forward_to_deserialize_any;

/// Nesting that is skipped; a deeper one is no answer of a model.
const DEPTH_MAX: u32 = 64;
/// Digits that fit into `u64` whatever they are.
const DIGITS_MAX: usize = 19;

/// Bytes that end a run of plain characters in a string.
const ENDS_RUN: [bool; 256] = {
    let mut ends = [false; 256];
    let mut byte = 0;
    while byte < b' ' as usize {
        ends[byte] = true;
        byte += 1;
    }
    (ends[b'"' as usize], ends[b'\\' as usize]) = (true, true);
    ends
};

/// Reads a whole document; `None` = this reader gave up, which says nothing about the document.
pub(crate) fn read<'de, T: Deserialize<'de>>(text: &'de str) -> Option<T> {
    let mut scanner = Scanner { text, bytes: text.as_bytes(), at: 0 };
    let value = T::deserialize(&mut scanner).ok()?;
    scanner.skip_blanks();
    (scanner.at == scanner.bytes.len()).then_some(value)
}

/// No error of the document: only that another reader must look at it.
#[derive(Debug)]
struct GaveUp;

impl fmt::Display for GaveUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("left to another reader")
    }
}

impl std::error::Error for GaveUp {}

impl Error for GaveUp {
    fn custom<T: fmt::Display>(_message: T) -> Self {
        Self
    }
}

type Read<T> = Result<T, GaveUp>;

struct Scanner<'de> {
    text: &'de str,
    bytes: &'de [u8],
    at: usize,
}

impl<'de> Scanner<'de> {
    /// The next byte that is no blank; it is not taken. 0 at the end, which begins nothing.
    #[inline]
    fn peek(&mut self) -> u8 {
        self.skip_blanks();
        self.here()
    }

    #[inline]
    fn here(&self) -> u8 {
        byte_at(self.bytes, self.at)
    }

    fn skip_blanks(&mut self) {
        self.at = after_blanks(self.bytes, self.at);
    }

    fn expect(&mut self, byte: u8) -> Read<()> {
        if self.peek() != byte {
            return Err(GaveUp);
        }
        self.at += 1;
        Ok(())
    }

    fn literal(&mut self, word: &str) -> Read<()> {
        self.at = literal_end(self.bytes, self.at, word.as_bytes()).ok_or(GaveUp)?;
        Ok(())
    }

    /// Steps to the next byte of a string that ends it or needs a look.
    #[inline]
    fn string_run(&mut self) -> u8 {
        self.at = run_end(self.bytes, self.at);
        // The end of the text, like every control character, is no proper end.
        self.here()
    }

    /// A string at its opening quote.
    fn string(&mut self) -> Read<Cow<'de, str>> {
        self.expect(b'"')?;
        let start = self.at;
        match self.string_run() {
            b'"' => {
                let text = self.text.get(start..self.at).ok_or(GaveUp)?;
                self.at += 1;
                Ok(Cow::Borrowed(text))
            }
            b'\\' => self.escaped(start).map(Cow::Owned),
            _ => Err(GaveUp),
        }
    }

    /// The rest of a string whose first escape is here.
    fn escaped(&mut self, mut start: usize) -> Read<String> {
        let mut text = String::new();
        loop {
            text.push_str(self.text.get(start..self.at).ok_or(GaveUp)?);
            self.at += 1;
            match self.bytes[self.at - 1] {
                b'"' => return Ok(text),
                b'\\' => text.push(self.escape()?),
                _ => return Err(GaveUp),
            }
            start = self.at;
            self.string_run();
            if self.at == self.bytes.len() {
                return Err(GaveUp);
            }
        }
    }

    /// The character of an escape, after its backslash.
    fn escape(&mut self) -> Read<char> {
        let kind = self.here();
        self.at += 1;
        Ok(match kind {
            b'"' | b'\\' | b'/' => char::from(kind),
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            // Halves of a pair are left to the other reader.
            b'u' => char::from_u32(self.hex4()?).ok_or(GaveUp)?,
            _ => return Err(GaveUp),
        })
    }

    fn hex4(&mut self) -> Read<u32> {
        let digits = self.bytes.get(self.at..self.at + 4).ok_or(GaveUp)?;
        let value = digits.iter().try_fold(0, |value, digit| {
            let digit = char::from(*digit).to_digit(16).ok_or(GaveUp)?;
            Ok(value << 4 | digit)
        })?;
        self.at += 4;
        Ok(value)
    }

    /// A whole number without sign; anything else that is a number is left to the other reader.
    fn unsigned(&mut self) -> Read<u64> {
        let start = self.at;
        let mut value: u64 = 0;
        while self.here().is_ascii_digit() && self.at - start < DIGITS_MAX {
            value = value * 10 + u64::from(self.here() - b'0');
            self.at += 1;
        }
        let leading_zero = self.bytes[start] == b'0' && self.at - start > 1;
        let goes_on = matches!(self.here(), b'0'..=b'9' | b'.' | b'e' | b'E');
        if leading_zero || goes_on { Err(GaveUp) } else { Ok(value) }
    }

    /// Steps over any value, checked like every other but kept nowhere.
    fn skip_value(&mut self) -> Read<()> {
        self.at = value_end(self.bytes, self.at).ok_or(GaveUp)?;
        Ok(())
    }
}

/// A byte; 0 at the end, which begins and continues nothing.
#[inline]
fn byte_at(bytes: &[u8], at: usize) -> u8 {
    bytes.get(at).copied().unwrap_or_default()
}

/// The next place from here on that is no blank. Servers write few of them.
#[inline]
fn after_blanks(bytes: &[u8], mut at: usize) -> usize {
    while byte_at(bytes, at) <= b' ' && matches!(byte_at(bytes, at), b' ' | b'\n' | b'\r' | b'\t') {
        at += 1;
    }
    at
}

/// Where the next byte of a string is that ends it or needs a look.
#[inline]
fn run_end(bytes: &[u8], mut at: usize) -> usize {
    while bytes.get(at).is_some_and(|byte| !ENDS_RUN[usize::from(*byte)]) {
        at += 1;
    }
    at
}

/// The end of a string from behind its opening quote.
#[inline]
fn string_end(bytes: &[u8], mut at: usize) -> Option<usize> {
    loop {
        at = run_end(bytes, at);
        match byte_at(bytes, at) {
            b'"' => return Some(at + 1),
            b'\\' => match byte_at(bytes, at + 1) {
                b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => at += 2,
                b'u' if bytes.get(at + 2..at + 6)?.iter().all(u8::is_ascii_hexdigit) => at += 6,
                _ => return None,
            },
            _ => return None,
        }
    }
}

/// The end of at least one digit.
#[inline]
fn digits_end(bytes: &[u8], start: usize) -> Option<usize> {
    let mut at = start;
    while byte_at(bytes, at).is_ascii_digit() {
        at += 1;
    }
    (at > start).then_some(at)
}

#[inline]
fn number_end(bytes: &[u8], mut at: usize) -> Option<usize> {
    at += usize::from(byte_at(bytes, at) == b'-');
    at = if byte_at(bytes, at) == b'0' { at + 1 } else { digits_end(bytes, at)? };
    if byte_at(bytes, at) == b'.' {
        at = digits_end(bytes, at + 1)?;
    }
    if matches!(byte_at(bytes, at), b'e' | b'E') {
        at += 1 + usize::from(matches!(byte_at(bytes, at + 1), b'+' | b'-'));
        at = digits_end(bytes, at)?;
    }
    // A further digit would follow a leading 0.
    (!byte_at(bytes, at).is_ascii_digit()).then_some(at)
}

/// The end of a key and its colon, blanks before and between allowed.
#[inline]
fn key_end(bytes: &[u8], at: usize) -> Option<usize> {
    let at = after_blanks(bytes, at);
    if byte_at(bytes, at) != b'"' {
        return None;
    }
    let at = after_blanks(bytes, string_end(bytes, at + 1)?);
    (byte_at(bytes, at) == b':').then_some(at + 1)
}

fn literal_end(bytes: &[u8], at: usize, word: &[u8]) -> Option<usize> {
    bytes[at..].starts_with(word).then_some(at + word.len())
}

/// The end of any value. Log probabilities are the bulk of a real answer and pass through here, so the place is a local
/// number and not a field.
fn value_end(bytes: &[u8], mut at: usize) -> Option<usize> {
    // One bit a level: 1 = an object.
    let (mut kinds, mut depth) = (0_u64, 0_u32);
    loop {
        at = after_blanks(bytes, at);
        at = match byte_at(bytes, at) {
            b'"' => string_end(bytes, at + 1)?,
            b'-' | b'0'..=b'9' => number_end(bytes, at)?,
            open @ (b'{' | b'[') => {
                if depth == DEPTH_MAX {
                    return None;
                }
                let object = open == b'{';
                (kinds, depth) = (kinds << 1 | u64::from(object), depth + 1);
                at = after_blanks(bytes, at + 1);
                if byte_at(bytes, at) != open + 2 {
                    at = if object { key_end(bytes, at)? } else { at };
                    continue;
                }
                at
            }
            b't' => literal_end(bytes, at, b"true")?,
            b'f' => literal_end(bytes, at, b"false")?,
            b'n' => literal_end(bytes, at, b"null")?,
            _ => return None,
        };
        // A value is over: what it stands in goes on or is over too.
        loop {
            if depth == 0 {
                return Some(at);
            }
            let object = kinds & 1 == 1;
            at = after_blanks(bytes, at);
            let byte = byte_at(bytes, at);
            at += 1;
            if byte == b',' {
                at = if object { key_end(bytes, at)? } else { at };
                break;
            }
            if byte != if object { b'}' } else { b']' } {
                return None;
            }
            (kinds, depth) = (kinds >> 1, depth - 1);
        }
    }
}

impl<'de> Deserializer<'de> for &mut Scanner<'de> {
    type Error = GaveUp;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Read<V::Value> {
        match self.peek() {
            b'"' => match self.string()? {
                Cow::Borrowed(text) => visitor.visit_borrowed_str(text),
                Cow::Owned(text) => visitor.visit_string(text),
            },
            b'0'..=b'9' => visitor.visit_u64(self.unsigned()?),
            b'n' => {
                self.literal("null")?;
                visitor.visit_unit()
            }
            b't' => {
                self.literal("true")?;
                visitor.visit_bool(true)
            }
            b'f' => {
                self.literal("false")?;
                visitor.visit_bool(false)
            }
            open @ (b'{' | b'[') => {
                self.at += 1;
                let entries = Entries { close: open + 2, first: true, scanner: &mut *self };
                if open == b'{' { visitor.visit_map(entries) } else { visitor.visit_seq(entries) }
            }
            _ => Err(GaveUp),
        }
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Read<V::Value> {
        self.skip_value()?;
        visitor.visit_unit()
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map struct enum identifier
    }
}

/// The entries of an object or a list, after its opening bracket.
struct Entries<'a, 'de> {
    scanner: &'a mut Scanner<'de>,
    close: u8,
    first: bool,
}

impl Entries<'_, '_> {
    /// Steps to the next entry; `false` after the last one. Visitors of this crate take all entries.
    fn step(&mut self) -> Read<bool> {
        let next = self.scanner.peek();
        if next == self.close {
            self.scanner.at += 1;
            return Ok(false);
        }
        if !std::mem::take(&mut self.first) {
            self.scanner.expect(b',')?;
        }
        Ok(true)
    }
}

impl<'de> SeqAccess<'de> for Entries<'_, 'de> {
    type Error = GaveUp;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Read<Option<T::Value>> {
        if !self.step()? {
            return Ok(None);
        }
        seed.deserialize(&mut *self.scanner).map(Some)
    }
}

impl<'de> MapAccess<'de> for Entries<'_, 'de> {
    type Error = GaveUp;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Read<Option<K::Value>> {
        if !self.step()? {
            return Ok(None);
        }
        let key = match self.scanner.string()? {
            Cow::Borrowed(key) => seed.deserialize(BorrowedStrDeserializer::<GaveUp>::new(key))?,
            Cow::Owned(key) => seed.deserialize(CowStrDeserializer::<GaveUp>::new(Cow::Owned(key)))?,
        };
        self.scanner.expect(b':')?;
        Ok(Some(key))
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Read<T::Value> {
        seed.deserialize(&mut *self.scanner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::Payload;
    use proptest::prelude::*;
    use serde_json::Value;

    /// What the other reader says; it is the one that decides.
    fn serde<'a>(text: &'a str) -> Payload<'a> {
        Payload::parse_slowly(text)
    }

    fn agrees(text: &str) {
        if let Some(found) = Payload::parse_fast(text) {
            assert_eq!(found, serde(text), "{text}");
        }
        if let Some(found) = read::<Value>(text) {
            assert_eq!(Some(found), serde_json::from_str(text).ok(), "{text}");
        }
    }

    #[test]
    fn answers_of_servers_are_read_without_giving_up() {
        for text in [
            include_str!("../tests/fixtures/ok-nonstream.json"),
            include_str!("../tests/fixtures/ml-503-nonstream.json"),
            r#"{"id":"c","choices":[{"index":0,"delta":{"content":"a\n\"b\" é \u00e9"},"finish_reason":null}]}"#,
            r#" { "choices" : [ ] , "usage" : { "prompt_tokens" : 12 , "x" : [ -0.5e+3 , true , { } ] } } "#,
        ] {
            let found = Payload::parse_fast(text);
            assert!(found.is_some(), "{text}");
            assert_eq!(found, Some(serde(text)));
        }
    }

    #[test]
    fn what_is_not_plain_is_left_to_the_other_reader() {
        let deep = format!("{}1{}", "[".repeat(65), "]".repeat(65));
        let skipped = format!(r#"{{"other":{deep}}}"#);
        for text in [
            "",
            "{",
            "[1,]",
            "{\"a\":1,}",
            "[,1]",
            "01",
            "1.",
            "-",
            "1e",
            "nul",
            "tru",
            "\"a",
            "\"\\",
            "\"\\u12\"",
            "{} x",
            "\"\\ud83d\\ude00\"",
            "{\"a\" 1}",
            "{1:2}",
            "[1 2]",
            "\"\u{1}\"",
            "1.5",
            "-1",
            "18446744073709551616",
            "[{\"a\":1]}",
            "[\"\\x\"]",
            "{\"other\":[01]}",
            "{\"other\":[1}}",
            "{\"other\":\"\\u12g4\"}",
            "{\"other\":{\"a\":1,}}",
            "{\"other\":-}",
            "\u{feff}{}",
            &skipped,
        ] {
            assert!(Payload::parse_fast(text).is_none(), "{text}");
            agrees(text);
        }
    }

    /// Any document, with blanks where they may stand.
    fn document() -> impl Strategy<Value = String> {
        let word = prop_oneof![
            Just("choices"),
            Just("delta"),
            Just("message"),
            Just("content"),
            Just("usage"),
            Just("prompt_tokens"),
            Just("error"),
            Just("index"),
            Just("id"),
            Just("finish_reason"),
            Just("logprobs"),
            Just("tool_calls"),
            Just(r"cont\u0065nt"),
        ];
        let leaf = prop_oneof![
            Just("null".to_owned()),
            any::<bool>().prop_map(|value| value.to_string()),
            any::<i64>().prop_map(|value| value.to_string()),
            any::<u64>().prop_map(|value| value.to_string()),
            any::<f64>()
                .prop_filter("finite", |value| value.is_finite())
                .prop_map(|value| format!("{value:e}")),
            ".{0,8}".prop_map(|text| serde_json::to_string(&text).unwrap_or_default()),
            r#"(\\[nrt"/u\\]|[a-z0-9é]){0,6}"#.prop_map(|text| format!("\"{text}\"")),
        ];
        leaf.prop_recursive(5, 40, 6, move |inner| {
            let blank = prop_oneof![Just(""), Just(" "), Just("\r\n\t")];
            let list = (prop::collection::vec(inner.clone(), 0..6), blank.clone())
                .prop_map(|(items, blank)| format!("[{blank}{}{blank}]", items.join(&format!("{blank},"))));
            let object =
                (prop::collection::vec((word.clone(), inner), 0..6), blank).prop_map(|(entries, blank)| {
                    let entries: Vec<String> = entries
                        .into_iter()
                        .map(|(key, value)| format!("\"{key}\"{blank}:{blank}{value}"))
                        .collect();
                    format!("{{{}{blank}}}", entries.join(","))
                });
            prop_oneof![list, object]
        })
    }

    proptest! {
        #[test]
        fn any_document_is_read_as_the_other_reader_does(text in document()) {
            agrees(&text);
        }

        #[test]
        fn any_damage_is_seen_as_the_other_reader_does(text in document(), at: prop::sample::Index, with in "[\\[\\]{}\",:\\\\0-9eE.u+ -]{0,2}") {
            let at = text.floor_char_boundary(at.index(text.len() + 1));
            let rest = text[at..].char_indices().nth(1).map_or(text.len(), |(next, _)| at + next);
            agrees(&format!("{}{with}{}", &text[..at], &text[rest..]));
            agrees(&text[..at]);
        }
    }
}

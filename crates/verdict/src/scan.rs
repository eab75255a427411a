//! A quick way through lines that our own writers made: keys in their known order, texts without escapes. Whatever else
//! a line looks like, the scan gives up, and the line is read by serde: that decides what is damage and says why.

use serde::de::value::{BorrowedStrDeserializer, Error};

use crate::table::same;

/// Objects and lists inside each other; more is no line of ours.
const DEPTH_MAX: u8 = 16;
/// Ones at the begin of each byte, and at its end.
const LOW: u64 = u64::from_le_bytes([0x01; 8]);
const HIGH: u64 = u64::from_le_bytes([0x80; 8]);

/// Marks the bytes of a word that are `byte`. Above the first mark there may be wrong ones.
const fn equal(word: u64, byte: u8) -> u64 {
    let differs = word ^ (LOW * byte as u64);
    differs.wrapping_sub(LOW) & !differs & HIGH
}

/// Marks the bytes of a word that are below a space. Above the first mark there may be wrong ones.
const fn control(word: u64) -> u64 {
    word.wrapping_sub(LOW * 0x20) & !word & HIGH
}

/// The first byte that is marked. Most texts are short: eight bytes at a time beat a vector search.
#[inline]
fn first(bytes: &[u8], marks: impl Fn(u64) -> u64) -> Option<usize> {
    let (words, rest) = bytes.as_chunks::<8>();
    for (word, at) in words.iter().zip(0..) {
        let marked = marks(u64::from_le_bytes(*word));
        if marked != 0 {
            return Some(at * 8 + marked.trailing_zeros() as usize / 8);
        }
    }
    // What follows the end is no mark of any kind.
    let mut last = [b'.'; 8];
    last[..rest.len()].copy_from_slice(rest);
    let marked = marks(u64::from_le_bytes(last));
    (marked != 0).then(|| words.len() * 8 + marked.trailing_zeros() as usize / 8)
}

/// The first quote or escape.
#[inline]
fn stop(bytes: &[u8]) -> Option<usize> {
    first(bytes, |word| equal(word, b'"') | equal(word, b'\\'))
}

/// The first quote, escape or control character.
#[inline]
fn text_stop(bytes: &[u8]) -> Option<usize> {
    first(bytes, |word| equal(word, b'"') | equal(word, b'\\') | control(word))
}

/// A line, and how far it was read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scan<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// What a scan can read: the inside of an object, its keys in the order in which they are written.
pub(crate) trait Scanned<'a>: Sized {
    /// Reads the fields; what stands behind the last one is passed over by the caller.
    fn scan(scan: &mut Scan<'a>) -> Option<Self>;
}

/// Reads a whole line, or gives up.
pub(crate) fn line<'a, T: Scanned<'a>>(bytes: &'a [u8]) -> Option<T> {
    let mut scan = Scan { bytes, at: 0 };
    let read = scan.object()?;
    (scan.at == bytes.len()).then_some(read)
}

impl<'a> Scan<'a> {
    #[inline]
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    #[inline]
    fn take(&mut self, byte: u8) -> Option<()> {
        (self.peek()? == byte).then(|| self.at += 1)
    }

    /// Whether these bytes come next; takes them if so.
    #[inline]
    fn takes(&mut self, word: &[u8]) -> bool {
        let there = self.bytes[self.at..].starts_with(word);
        self.at += if there { word.len() } else { 0 };
        there
    }

    /// An object of its own.
    #[inline]
    pub(crate) fn object<T: Scanned<'a>>(&mut self) -> Option<T> {
        self.take(b'{')?;
        let read = T::scan(self)?;
        while self.peek()? != b'}' {
            self.pass_field()?;
        }
        self.at += 1;
        Some(read)
    }

    /// A list of objects.
    pub(crate) fn list<T: Scanned<'a>>(&mut self) -> Option<Vec<T>> {
        self.each(Self::object)
    }

    /// A list.
    pub(crate) fn each<T>(&mut self, read: impl Fn(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        self.take(b'[')?;
        let mut all = Vec::new();
        while self.peek()? != b']' {
            all.push(read(self)?);
            self.comma()?;
        }
        self.at += 1;
        Some(all)
    }

    /// Between two values: a comma, or the end that the caller sees next.
    #[inline]
    fn comma(&mut self) -> Option<()> {
        match self.peek()? {
            b',' => {
                self.at += 1;
                // Nothing ends behind a comma.
                (!matches!(self.peek()?, b'}' | b']')).then_some(())
            }
            b'}' | b']' => Some(()),
            _ => None,
        }
    }

    /// Whether this key comes next; its value is then what is read.
    #[inline]
    pub(crate) fn at_key(&mut self, key: &str) -> bool {
        let (rest, end) = (&self.bytes[self.at..], key.len() + 1);
        // The end first: another key has rarely the same length.
        let there = rest.len() > end + 1
            && rest[end] == b'"'
            && rest[end + 1] == b':'
            && rest[0] == b'"'
            && same(&rest[1..end], key.as_bytes());
        self.at += if there { key.len() + 3 } else { 0 };
        there
    }

    /// Goes to a key, past the fields before it, and reads its value.
    #[inline]
    pub(crate) fn field<T>(&mut self, key: &str, read: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        while !self.at_key(key) {
            self.pass_field()?;
        }
        let value = read(self)?;
        self.comma()?;
        Some(value)
    }

    /// The value of a key that must come next.
    pub(crate) fn field_next<T>(
        &mut self,
        key: &str,
        read: impl FnOnce(&mut Self) -> Option<T>,
    ) -> Option<T> {
        self.maybe(key, read)?
    }

    /// The value of a key that is left out when it has none.
    #[inline]
    pub(crate) fn maybe<T>(
        &mut self,
        key: &str,
        read: impl FnOnce(&mut Self) -> Option<T>,
    ) -> Option<Option<T>> {
        if !self.at_key(key) {
            return Some(None);
        }
        let value = read(self)?;
        self.comma()?;
        Some(Some(value))
    }

    /// `null`, or a value.
    #[inline]
    pub(crate) fn or_null<T>(&mut self, read: impl FnOnce(&mut Self) -> Option<T>) -> Option<Option<T>> {
        if self.peek()? == b'n' { self.takes(b"null").then_some(None) } else { read(self).map(Some) }
    }

    /// A whole number without sign.
    #[inline]
    pub(crate) fn number(&mut self) -> Option<u64> {
        let mut value: u64 = 0;
        let start = self.at;
        while let Some(digit @ b'0'..=b'9') = self.peek() {
            value = value.checked_mul(10)?.checked_add(u64::from(digit - b'0'))?;
            self.at += 1;
        }
        let plain = self.at - start == 1 || (self.at > start && self.bytes[start] != b'0');
        (plain && !matches!(self.peek(), Some(b'.' | b'e' | b'E'))).then_some(value)
    }

    /// A smaller one.
    #[inline]
    pub(crate) fn small<T: TryFrom<u64>>(&mut self) -> Option<T> {
        T::try_from(self.number()?).ok()
    }

    /// `true` or `false`.
    #[inline]
    pub(crate) fn truth(&mut self) -> Option<bool> {
        if self.takes(b"true") { Some(true) } else { self.takes(b"false").then_some(false) }
    }

    /// A text without escapes.
    #[inline]
    pub(crate) fn text(&mut self) -> Option<&'a str> {
        self.take(b'"')?;
        let rest = &self.bytes[self.at..];
        let end = text_stop(rest)?;
        self.at += end + 1;
        std::str::from_utf8(&rest[..end]).ok().filter(|_| rest[end] == b'"')
    }

    /// A word of a closed list.
    pub(crate) fn word<T: serde::Deserialize<'a>>(&mut self) -> Option<T> {
        let text: BorrowedStrDeserializer<'a, Error> = BorrowedStrDeserializer::new(self.text()?);
        T::deserialize(text).ok()
    }

    /// Passes a value over.
    pub(crate) fn pass(&mut self) -> Option<()> {
        self.pass_in(0)
    }

    #[inline]
    fn pass_field(&mut self) -> Option<()> {
        self.pass_text()?;
        self.take(b':')?;
        self.pass()?;
        self.comma()
    }

    #[inline]
    fn pass_text(&mut self) -> Option<()> {
        self.take(b'"')?;
        loop {
            let rest = self.bytes.get(self.at..)?;
            let end = stop(rest)?;
            let escape = rest[end] == b'\\';
            self.at += end + if escape { 2 } else { 1 };
            if !escape {
                return Some(());
            }
        }
    }

    fn pass_in(&mut self, depth: u8) -> Option<()> {
        match self.peek()? {
            b'"' => self.pass_text(),
            b'n' => self.takes(b"null").then_some(()),
            b't' | b'f' => self.truth().map(drop),
            b'-' | b'0'..=b'9' => {
                let of_number = |byte: &u8| matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E');
                self.at += self.bytes[self.at..].iter().take_while(|byte| of_number(byte)).count();
                Some(())
            }
            open @ (b'{' | b'[') if depth < DEPTH_MAX => {
                self.at += 1;
                let close = if open == b'{' { b'}' } else { b']' };
                while self.peek()? != close {
                    if open == b'{' {
                        self.pass_text()?;
                        self.take(b':')?;
                    }
                    self.pass_in(depth + 1)?;
                    self.comma()?;
                }
                self.at += 1;
                Some(())
            }
            _ => None,
        }
    }

    /// Entries of an object, passed over.
    pub(crate) fn entries(&mut self) -> Option<usize> {
        self.take(b'{')?;
        let mut count = 0;
        while self.peek()? != b'}' {
            self.pass_field()?;
            count += 1;
        }
        self.at += 1;
        Some(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Eq)]
    struct Part<'a>(u64, &'a str, Option<bool>);

    impl<'a> Scanned<'a> for Part<'a> {
        fn scan(scan: &mut Scan<'a>) -> Option<Self> {
            Some(Self(
                scan.field("n", Scan::number)?,
                scan.field("t", Scan::text)?,
                scan.field("b", |scan| scan.or_null(Scan::truth))?,
            ))
        }
    }

    #[test]
    fn ordinary_lines_are_read_past_what_nobody_asks_for() {
        for text in [
            r#"{"n":7,"t":"x y","b":true}"#,
            r#"{"a":[1,{"n":2},"]"],"n":7,"m":-1.5e3,"t":"x y","q":"\"}","b":true,"z":{}}"#,
        ] {
            assert_eq!(line(text.as_bytes()), Some(Part(7, "x y", Some(true))), "{text}");
        }
        assert_eq!(line(br#"{"n":0,"t":"","b":null}"#), Some(Part(0, "", None)));
    }

    #[test]
    fn anything_unusual_is_left_to_serde() {
        for text in [
            r#"{"n":7,"t":"x","b":true"#,
            r#"{"n":7,"t":"x","b":true}}"#,
            r#"{"n":7,"t":"x","b":true,}"#,
            r#"{"n":07,"t":"x","b":true}"#,
            r#"{"n":7.0,"t":"x","b":true}"#,
            r#"{"n":-7,"t":"x","b":true}"#,
            r#"{"n":18446744073709551616,"t":"x","b":true}"#,
            r#"{"n":7,"t":"\u0078","b":true}"#,
            r#"{"n":7,"t":7,"b":true}"#,
            r#"{"t":"x","n":7,"b":true}"#,
            r#"{ "n":7,"t":"x","b":true}"#,
            r#"{"n":7 "t":"x","b":true}"#,
            r#"{"n":7,"t":"x","b":nil}"#,
            "",
            "{",
            "#",
        ] {
            assert_eq!(line::<Part<'_>>(text.as_bytes()), None, "{text}");
        }
        assert_eq!(line::<Part<'_>>(b"{\"n\":7,\"t\":\"\xff\",\"b\":true}"), None);
    }

    #[test]
    fn eight_bytes_at_a_time_find_what_one_at_a_time_finds() {
        // Every byte at every place, beside bytes that differ from a mark by a bit or a borrow.
        for byte in 0..=u8::MAX {
            for len in 0..20 {
                for at in 0..len {
                    for around in [b'a', b'#', b'!', b'[', b']', 0x7f, 0x80, 0xa2, 0xff, b' '] {
                        let mut text = vec![around; len];
                        text[at] = byte;
                        let plain = text.iter().position(|byte| matches!(byte, b'"' | b'\\'));
                        assert_eq!(stop(&text), plain, "{text:?}");
                        let plain = text.iter().position(|byte| matches!(byte, b'"' | b'\\' | 0..0x20));
                        assert_eq!(text_stop(&text), plain, "{text:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_cut_line_is_left_to_serde_wherever_it_is_cut() {
        let long = "x".repeat(3 * 8 + 1);
        let text = format!(r#"{{"a":[1,{{"q":"{long}\""}}],"n":7,"t":"x","m":"{long}","b":true,"z":"\""}}"#);
        assert_eq!(line(text.as_bytes()), Some(Part(7, "x", Some(true))));
        for end in 0..text.len() {
            assert_eq!(line::<Part<'_>>(&text.as_bytes()[..end]), None, "{}", &text[..end]);
        }
    }
}

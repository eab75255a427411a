//! A JSON object written straight into a buffer, for the record of each request. Keys come as they stand in the file, with
//! quotes, comma and colon, so that nothing of them is looked at again.

use serde::Serialize;

/// A record that writes itself as one JSON object.
pub trait Line {
    /// Appends the object, without a line end.
    ///
    /// # Errors
    /// Of serde; what was appended by then is to be taken back.
    fn write_to(&self, out: &mut Vec<u8>) -> serde_json::Result<()>;
}

impl Line for evidence::record::RequestRecord {
    fn write_to(&self, out: &mut Vec<u8>) -> serde_json::Result<()> {
        serde_json::to_writer(out, self)
    }
}

/// An object while it is written.
pub struct JsonLine<'a> {
    out: &'a mut Vec<u8>,
    digits: itoa::Buffer,
}

impl<'a> JsonLine<'a> {
    /// The first key, with its bracket, and its value.
    pub fn begin(out: &'a mut Vec<u8>, key: &str, value: u64) -> Self {
        let mut line = Self { out, digits: itoa::Buffer::new() };
        line.number(key, Some(value));
        line
    }

    #[inline]
    fn push(&mut self, text: &str) {
        self.out.extend_from_slice(text.as_bytes());
    }

    /// A number or null. Inlined, so that the length of the key is known where it is copied.
    #[inline]
    pub fn number(&mut self, key: &str, value: Option<u64>) {
        self.push(key);
        match value {
            Some(value) => self.out.extend_from_slice(self.digits.format(value).as_bytes()),
            None => self.push("null"),
        }
    }

    /// A truth value.
    #[inline]
    pub fn truth(&mut self, key: &str, value: bool) {
        self.push(key);
        self.push(if value { "true" } else { "false" });
    }

    /// A text or null.
    ///
    /// # Errors
    /// Of serde.
    #[inline]
    pub fn text(&mut self, key: &str, value: Option<&str>) -> serde_json::Result<()> {
        let Some(text) = value else {
            self.push(key);
            self.push("null");
            return Ok(());
        };
        if !is_plain(text) {
            return self.value(key, &text);
        }
        self.push(key);
        self.out.push(b'"');
        self.push(text);
        self.out.push(b'"');
        Ok(())
    }

    /// A word that needs no escape, or null.
    #[inline]
    pub fn word(&mut self, key: &str, value: Option<&str>) {
        self.push(key);
        match value {
            Some(word) => {
                self.out.push(b'"');
                self.push(word);
                self.out.push(b'"');
            }
            None => self.push("null"),
        }
    }

    /// Anything that serde can write.
    ///
    /// # Errors
    /// Of serde.
    pub fn value(&mut self, key: &str, value: &impl Serialize) -> serde_json::Result<()> {
        self.push(key);
        serde_json::to_writer(&mut *self.out, value)
    }

    /// Closes the object.
    pub fn end(self) {
        self.out.push(b'}');
    }
}

/// Nothing in it needs an escape.
fn is_plain(text: &str) -> bool {
    // Without an early end, so that the compiler looks at many bytes at once.
    text.bytes().fold(true, |plain, byte| plain & (byte >= b' ') & (byte != b'"') & (byte != b'\\'))
}

//! One log line per event, in the logfmt shape of the real programs, on standard error (contract hosts 9.1).

use std::fmt::{Display, Write as _};
use std::io::Write as _;

use scenario::build::BUILD_ID;
use time::OffsetDateTime;

use crate::clock;

/// Severity, as written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Normal events.
    Info,
    /// Something is off, work goes on.
    Warn,
    /// Work was lost or refused.
    Error,
}

/// A line under construction.
#[derive(Debug)]
pub struct LogLine(String);

impl LogLine {
    /// Begins a line with time, level and message.
    #[must_use]
    pub fn new(level: Level, message: &str) -> Self {
        let level = match level {
            Level::Info => "INFO",
            Level::Warn => "WARN",
            Level::Error => "ERROR",
        };
        let mut line = format!("time={} level={level} msg=", rfc3339_ms(clock::unix_ns()));
        quote(&mut line, &format!("[{BUILD_ID}] {message}"));
        Self(line)
    }

    /// Adds one field.
    #[must_use]
    pub fn field(mut self, name: &str, value: impl Display) -> Self {
        let _ = write!(self.0, " {name}=");
        quote(&mut self.0, &value.to_string());
        self
    }

    /// Writes the line. A closed standard error loses it: there is nowhere else to say so.
    pub fn emit(mut self) {
        self.0.push('\n');
        let _ = std::io::stderr().lock().write_all(self.0.as_bytes());
    }
}

/// Unix nanoseconds as `2026-07-20T10:11:12.345Z`.
#[must_use]
pub fn rfc3339_ms(unix_ns: u64) -> String {
    let at =
        OffsetDateTime::from_unix_timestamp_nanos(i128::from(unix_ns)).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let (year, month, day) = at.to_calendar_date();
    let (hour, minute, second, milli) = at.to_hms_milli();
    let month = u8::from(month);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milli:03}Z")
}

fn quote(line: &mut String, value: &str) {
    let plain = |c: char| !c.is_whitespace() && !c.is_control() && c != '"' && c != '=';
    if !value.is_empty() && value.chars().all(plain) {
        line.push_str(value);
    } else {
        let _ = write!(line, "{value:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_quoted_only_where_needed() {
        let line = LogLine::new(Level::Info, "devshard request terminal")
            .field("stage", "terminal")
            .field("error", "a \"b\"\nc")
            .field("empty", "");
        let text = line.0;
        assert!(text.contains(" level=INFO msg=\"["), "{text}");
        assert!(text.ends_with(r#" stage=terminal error="a \"b\"\nc" empty="""#), "{text}");
    }

    #[test]
    fn times_are_utc_with_milliseconds() {
        assert_eq!(rfc3339_ms(1_784_542_272_345_678_901), "2026-07-20T10:11:12.345Z");
    }
}

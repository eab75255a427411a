//! Log lines in the gateway's form on standard error: `2026/07/20 10:11:12 request=… stage=… k=v`
//! (contract gateway 8).

use std::fmt::{Display, Write as _};
use std::io::Write as _;

use time::OffsetDateTime;

use crate::clock;

/// A line under construction.
#[derive(Debug)]
pub struct Line(String);

impl Line {
    /// A line of one request.
    #[must_use]
    pub fn request(request_id: &str, stage: &str) -> Self {
        Self::bare().field("request", request_id).field("stage", stage)
    }

    /// A line of the process.
    #[must_use]
    pub fn process(message: &str) -> Self {
        let mut line = Self::bare();
        line.0.push(' ');
        line.0.push_str(message);
        line
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

    fn bare() -> Self {
        let at = OffsetDateTime::from_unix_timestamp(clock::unix_s()).unwrap_or(OffsetDateTime::UNIX_EPOCH);
        let (year, month, day) = at.to_calendar_date();
        let (hour, minute, second) = at.to_hms();
        Self(format!("{year:04}/{:02}/{day:02} {hour:02}:{minute:02}:{second:02}", u8::from(month)))
    }
}

/// Last eight characters of an address, as `host=` shows it.
#[must_use]
pub fn host_label(address: &str) -> &str {
    address.get(address.len().saturating_sub(8)..).unwrap_or(address)
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
    fn a_line_has_the_form_of_the_captures() {
        let line = Line::request("req-1-2", "prepared")
            .field("escrow", "9")
            .field("error", "a \"b\"")
            .field("e", "");
        let text = line.0;
        let (time, rest) = text.split_at(19);
        assert_eq!(time.matches(['/', ':', ' ']).count(), 5, "{time}");
        assert_eq!(rest, r#" request=req-1-2 stage=prepared escrow=9 error="a \"b\"" e="""#);
        assert_eq!(host_label("gonka1abcdefgh"), "abcdefgh");
    }
}

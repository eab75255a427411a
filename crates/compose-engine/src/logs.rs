//! Log pieces joined to lines: the engine cuts lines at 16 KiB, and puts a time stamp in front of every piece when asked
//! (design compose-engine 11).

use std::collections::BTreeMap;

use crate::engine::{LogPiece, Output};

/// Longest line kept whole; the rest of a longer one is dropped and counted.
pub const LINE_BYTES_MAX: usize = 1024 * 1024;

/// A whole line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Which output.
    pub output: Output,
    /// The engine's time stamp of its first piece, when asked for.
    pub stamp: Option<String>,
    /// Text.
    pub text: String,
}

#[derive(Debug, Default)]
struct Part {
    stamp: Option<String>,
    bytes: Vec<u8>,
    open: bool,
}

/// Joins pieces, each output apart.
#[derive(Debug, Default)]
pub struct Lines {
    stamped: bool,
    parts: BTreeMap<Output, Part>,
    /// Bytes beyond [`LINE_BYTES_MAX`].
    pub dropped_bytes: u64,
}

impl Lines {
    /// A joiner for pieces that begin with a time stamp.
    #[must_use]
    pub fn stamped() -> Self {
        Self { stamped: true, ..Self::default() }
    }

    /// Takes a piece and gives the lines that it ends.
    pub fn take(&mut self, piece: &LogPiece) -> Vec<Line> {
        let mut lines = Vec::new();
        let mut rest: &[u8] = &piece.bytes;
        while !rest.is_empty() {
            let end = rest.iter().position(|byte| *byte == b'\n');
            let (chunk, ended) = end.map_or((rest, false), |end| (&rest[..end], true));
            rest = &rest[end.map_or(rest.len(), |end| end + 1)..];
            let part = self.parts.entry(piece.output).or_default();
            let (stamp, body) = if self.stamped { split_stamp(chunk) } else { (None, chunk) };
            if !part.open {
                part.stamp = stamp;
                part.open = true;
            }
            let room = LINE_BYTES_MAX.saturating_sub(part.bytes.len()).min(body.len());
            part.bytes.extend_from_slice(&body[..room]);
            self.dropped_bytes += (body.len() - room) as u64;
            if ended {
                lines.push(finish(piece.output, std::mem::take(part)));
            }
        }
        lines
    }

    /// Lines that never ended: a program that died in the middle of one.
    pub fn rest(&mut self) -> Vec<Line> {
        let parts = std::mem::take(&mut self.parts);
        parts.into_iter().filter(|(_, part)| part.open).map(|(output, part)| finish(output, part)).collect()
    }
}

fn finish(output: Output, part: Part) -> Line {
    let text = String::from_utf8_lossy(&part.bytes).trim_end_matches('\r').to_owned();
    Line { output, stamp: part.stamp, text }
}

/// `2026-01-02T03:04:05.123456789Z text`.
fn split_stamp(chunk: &[u8]) -> (Option<String>, &[u8]) {
    match chunk.iter().position(|byte| *byte == b' ') {
        Some(end) if end >= 20 && chunk[4] == b'-' && chunk[10] == b'T' => {
            (Some(String::from_utf8_lossy(&chunk[..end]).into_owned()), &chunk[end + 1..])
        }
        _ => (None, chunk),
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;

    fn piece(output: Output, bytes: &[u8]) -> LogPiece {
        LogPiece { output, bytes: Bytes::copy_from_slice(bytes) }
    }

    #[test]
    fn a_line_of_several_pieces_is_one_line_with_its_first_stamp() {
        let mut lines = Lines::stamped();
        let stamp = "2026-01-02T03:04:05.123456789Z";
        assert!(lines.take(&piece(Output::Stdout, format!("{stamp} ab").as_bytes())).is_empty());
        let other = "2026-01-02T03:04:05.900000000Z";
        assert!(lines.take(&piece(Output::Stderr, format!("{other} err").as_bytes())).is_empty());
        let ended = lines.take(&piece(Output::Stdout, format!("{other} cd\n").as_bytes()));
        assert_eq!((ended[0].text.as_str(), ended[0].stamp.as_deref()), ("abcd", Some(stamp)));
        assert_eq!(lines.rest()[0].text, "err");
    }

    proptest! {
        #[test]
        fn any_cut_gives_the_same_lines(text in "[a-z\n]{0,80}", cut in 0_usize..80) {
            let cut = cut.min(text.len());
            let mut whole = Lines::default();
            let mut expected = whole.take(&piece(Output::Stdout, text.as_bytes()));
            expected.extend(whole.rest());
            let mut parts = Lines::default();
            let mut got = parts.take(&piece(Output::Stdout, &text.as_bytes()[..cut]));
            got.extend(parts.take(&piece(Output::Stdout, &text.as_bytes()[cut..])));
            got.extend(parts.rest());
            prop_assert_eq!(got, expected);
        }
    }
}

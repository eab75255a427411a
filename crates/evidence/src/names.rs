//! File names made from ids that anybody may have written.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// Longest file name without its extension.
pub const FILE_STEM_LEN_MAX: usize = 120;

const KEPT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.');

/// A safe file stem for an id: everything but letters, digits, `-`, `_` and `.` is percent-encoded, and of dots those
/// that begin or end the name or stand beside another one (no hidden file, no `..` that climbs); what is too long is cut and
/// ends with `~` and 16 digits of its BLAKE3, so that two long ids never share a name. The raw id stays inside the
/// file.
#[must_use]
pub fn file_stem(id: &str) -> String {
    let encoded = without_climbing_dots(&utf8_percent_encode(id, KEPT).to_string());
    if encoded.len() <= FILE_STEM_LEN_MAX && !encoded.is_empty() {
        return encoded;
    }
    let digest = blake3::hash(id.as_bytes()).to_hex();
    let keep = FILE_STEM_LEN_MAX - 17;
    let head: String = encoded.chars().take(keep).collect();
    format!("{head}~{}", &digest[..16])
}

fn without_climbing_dots(stem: &str) -> String {
    let bytes = stem.as_bytes();
    let mut out = String::with_capacity(stem.len());
    for (at, character) in stem.char_indices() {
        let beside = at.checked_sub(1).and_then(|before| bytes.get(before)) == Some(&b'.');
        if character == '.' && (at == 0 || beside || matches!(bytes.get(at + 1), Some(b'.') | None)) {
            out.push_str("%2E");
        } else {
            out.push(character);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_ids_stay_inside_the_directory() {
        assert_eq!(file_stem("ml-5xx-42-000007"), "ml-5xx-42-000007");
        assert_eq!(file_stem("../../etc/passwd"), "%2E%2E%2F%2E%2E%2Fetc%2Fpasswd");
        assert_eq!(file_stem("_run.A9.1"), "_run.A9.1", "as design section 11 names it");
        assert_eq!(file_stem(".hidden"), "%2Ehidden");
        assert_eq!(file_stem("a..b.c..."), "a%2E%2Eb.c%2E%2E%2E");
        assert_eq!(file_stem("a\nb"), "a%0Ab");
        let long = file_stem(&"é".repeat(5_000));
        assert!(long.len() <= FILE_STEM_LEN_MAX && !long.contains('/'));
        assert_ne!(long, file_stem(&format!("{}x", "é".repeat(5_000))));
        assert!(file_stem("").starts_with('~'));
    }
}

//! Durations, byte sizes and command lines as Compose writes them.

use std::time::Duration;

/// `1m30s`, `1.5s`, `500ms`, `0`; units us, ms, s, m, h.
///
/// # Errors
/// In words.
pub fn duration(text: &str) -> Result<Duration, String> {
    let bad = || format!("{text:?} is no duration; write for example 500ms, 30s or 1m30s");
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let mut rest = text;
    let mut total_ns: f64 = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(bad)?;
        let number: f64 = rest[..digits].parse().map_err(|_| bad())?;
        rest = &rest[digits..];
        let end = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
        let unit_ns = match &rest[..end] {
            "us" => 1e3,
            "ms" => 1e6,
            "s" => 1e9,
            "m" => 60e9,
            "h" => 3_600e9,
            _ => return Err(bad()),
        };
        total_ns += number * unit_ns;
        rest = &rest[end..];
    }
    // A year is longer than any run, and keeps the sum inside what the API can carry.
    if text.is_empty() || !(0.0..=365.0 * 24.0 * 3_600e9).contains(&total_ns) {
        return Err(bad());
    }
    Ok(Duration::from_secs_f64(total_ns / 1e9))
}

/// `64m`, `1gb`, `1024`; powers of 1024.
///
/// # Errors
/// In words.
pub fn bytes(text: &str) -> Result<i64, String> {
    let bad = || format!("{text:?} is no size; write for example 64m or 1gb");
    let lower = text.trim().to_ascii_lowercase();
    let end = lower.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(lower.len());
    let number: f64 = lower[..end].parse().map_err(|_| bad())?;
    let factor = match &lower[end..] {
        "" | "b" => 1.0,
        "k" | "kb" | "kib" => 1024.0,
        "m" | "mb" | "mib" => 1024.0 * 1024.0,
        "g" | "gb" | "gib" => 1024.0 * 1024.0 * 1024.0,
        _ => return Err(bad()),
    };
    let value = number * factor;
    // Half a byte is a mistake in the unit.
    if factor == 1.0 && number.fract() != 0.0 {
        return Err(bad());
    }
    if !(0.0..=9e15).contains(&value) {
        return Err(bad());
    }
    #[expect(clippy::cast_possible_truncation, reason = "the range was checked")]
    Ok(value as i64)
}

/// Splits a command line by the rules of a shell, without running one.
///
/// # Errors
/// In words: an open quote.
pub fn split(text: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut begun = false;
    let mut quote: Option<char> = None;
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (Some('"') | None, '\\') => {
                begun = true;
                word.push(chars.next().ok_or_else(|| format!("{text:?} ends with a backslash"))?);
            }
            (Some(_), c) => word.push(c),
            (None, '\'' | '"') => {
                begun = true;
                quote = Some(c);
            }
            (None, c) if c.is_whitespace() => {
                if begun {
                    words.push(std::mem::take(&mut word));
                    begun = false;
                }
            }
            (None, c) => {
                begun = true;
                word.push(c);
            }
        }
    }
    if quote.is_some() {
        return Err(format!("{text:?} has an open quote"));
    }
    if begun {
        words.push(word);
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations() {
        for (text, ms) in
            [("1s", 1_000), ("1m30s", 90_000), ("500ms", 500), ("1.5s", 1_500), ("0", 0), ("1h", 3_600_000)]
        {
            assert_eq!(duration(text).unwrap(), Duration::from_millis(ms), "{text}");
        }
        for text in ["", "5", "s", "1x", "-1s", "1s2"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_powers_of_1024() {
        for (text, value) in [("1k", 1024), ("64MB", 64 << 20), ("1g", 1 << 30), ("10", 10), ("5b", 5)] {
            assert_eq!(bytes(text).unwrap(), value, "{text}");
        }
        for text in ["", "m", "1t", "-1"] {
            assert!(bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn command_lines_split_like_a_shell_and_run_none() {
        assert_eq!(split(r#"serve "a b" 'c $d' e\ f "" "#).unwrap(), ["serve", "a b", "c $d", "e f", ""]);
        assert!(split("a 'b").is_err());
    }

    proptest! {
        #[test]
        fn any_words_survive_quoting(words in prop::collection::vec("[a-z '$\\\\]{1,8}", 0..5)) {
            let line: Vec<String> = words.iter().map(|w| format!("'{}'", w.replace('\'', r"'\''"))).collect();
            prop_assert_eq!(split(&line.join(" ")).unwrap(), words);
        }
    }
}

//! Numbers for people: every figure with its unit, three significant digits, and a dash for what was not measured.

/// What stands where nothing was measured.
pub const NONE: &str = "–";

/// Narrow space that keeps number and unit, and groups of digits, on one line.
const NARROW: char = '\u{202f}';

/// Shorter than this a count is printed without groups.
const GROUP_FROM: u64 = 10_000;

/// A span: `812 µs`, `9.22 ms`, `1.25 s`, `2 min 5 s`.
#[must_use]
pub fn span(us: u64) -> String {
    match us {
        0..1_000 => format!("{us}{NARROW}µs"),
        1_000..1_000_000 => format!("{}{NARROW}ms", three_digits(us as f64 / 1e3)),
        1_000_000..60_000_000 => format!("{}{NARROW}s", three_digits(us as f64 / 1e6)),
        _ => {
            let seconds = us / 1_000_000;
            format!("{}{NARROW}min {}{NARROW}s", count(seconds / 60), seconds % 60)
        }
    }
}

/// A span that may not have been measured.
#[must_use]
pub fn span_or_none(us: Option<u64>) -> String {
    us.map_or_else(|| NONE.to_owned(), span)
}

/// A count: `9999`, `12 345`.
#[must_use]
pub fn count(value: u64) -> String {
    let digits = value.to_string();
    if value < GROUP_FROM {
        return digits;
    }
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            out.push(NARROW);
        }
        out.push(digit);
    }
    out
}

/// A rate: `139/s`, `0.25/s`.
#[must_use]
pub fn per_second(value: Option<f64>) -> String {
    finite(value).map_or_else(|| NONE.to_owned(), |rate| format!("{}/s", three_digits(rate)))
}

/// A share as per cent. Only all of something is 100 %, only nothing of it is 0 %.
#[must_use]
pub fn share(value: Option<f64>) -> String {
    let Some(value) = finite(value) else { return NONE.to_owned() };
    let percent = value * 100.0;
    let text = match percent {
        p if p <= 0.0 => "0".to_owned(),
        p if p < 0.01 => "< 0.01".to_owned(),
        p if p >= 100.0 => trimmed(p, 2),
        p if p > 99.99 => "> 99.99".to_owned(),
        p => trimmed(p, 2),
    };
    format!("{text}{NARROW}%")
}

/// Bytes: `512 B`, `12.0 MB` (decimal, as the rest of the world counts network and disk).
#[must_use]
pub fn bytes(value: u64) -> String {
    let scaled = |by: f64, unit| format!("{}{NARROW}{unit}", three_digits(value as f64 / by));
    match value {
        0..1_000 => format!("{value}{NARROW}B"),
        1_000..1_000_000 => scaled(1e3, "kB"),
        1_000_000..1_000_000_000 => scaled(1e6, "MB"),
        _ => scaled(1e9, "GB"),
    }
}

/// At least three significant digits; whole numbers of more are kept whole and grouped.
#[must_use]
pub fn three_digits(value: f64) -> String {
    let size = value.abs();
    // The limits are where rounding would give a fourth digit.
    let decimals = match size {
        s if s >= 99.95 => 0,
        s if s >= 9.995 => 1,
        s if s >= 0.9995 => 2,
        _ => 3,
    };
    let text = format!("{value:.decimals$}");
    if decimals == 0 && size < u64::MAX as f64 && value >= 0.0 {
        return count(value.round() as u64);
    }
    text
}

/// A number with at most `decimals` digits after the point and no idle zeros.
#[must_use]
pub fn trimmed(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$}");
    if !text.contains('.') {
        return text;
    }
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// UTC date and time of Unix microseconds: `2026-11-30 07:29:54 UTC`.
#[must_use]
pub fn utc(unix_us: u64) -> String {
    let seconds = unix_us / 1_000_000;
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (of_day / 3_600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

/// Gregorian date of a day since 1970-01-01, counted in eras of 400 years that begin with March.
fn date(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

fn finite(value: Option<f64>) -> Option<f64> {
    value.filter(|value| value.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_carry_the_unit_that_reads_best() {
        for (us, text) in [
            (0, "0 µs"),
            (999, "999 µs"),
            (9_223, "9.22 ms"),
            (41_625, "41.6 ms"),
            (102_078, "102 ms"),
            (999_999, "1000 ms"),
            (1_247_290, "1.25 s"),
            (59_999_999, "60.0 s"),
            (125_000_000, "2 min 5 s"),
        ] {
            assert_eq!(span(us).replace(NARROW, " "), text);
        }
        assert_eq!(span_or_none(None), NONE);
    }

    #[test]
    fn shares_are_never_rounded_to_all_or_nothing() {
        for (value, text) in [
            (Some(0.0), "0 %"),
            (Some(0.000_01), "< 0.01 %"),
            (Some(0.0025), "0.25 %"),
            (Some(0.5), "50 %"),
            (Some(0.999_999), "> 99.99 %"),
            (Some(1.0), "100 %"),
            (Some(f64::NAN), NONE),
            (None, NONE),
        ] {
            assert_eq!(share(value).replace(NARROW, " "), text, "{value:?}");
        }
    }

    #[test]
    fn counts_rates_and_bytes() {
        assert_eq!(count(9_999), "9999");
        assert_eq!(count(1_234_567).replace(NARROW, " "), "1 234 567");
        assert_eq!(per_second(Some(139.53)), "140/s");
        assert_eq!(per_second(Some(0.25)), "0.250/s");
        assert_eq!(per_second(Some(f64::INFINITY)), NONE);
        assert_eq!(bytes(999), format!("999{NARROW}B"));
        assert_eq!(bytes(12_345_678), format!("12.3{NARROW}MB"));
        assert_eq!(trimmed(2.50, 2), "2.5");
        assert_eq!(trimmed(100.0, 0), "100");
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(utc(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(utc(951_782_400_000_000), "2000-02-29 00:00:00 UTC");
        assert_eq!(utc(1_796_023_794_898_337), "2026-11-30 07:29:54 UTC");
        assert_eq!(utc(4_107_542_399_000_000), "2100-02-28 23:59:59 UTC");
        assert_eq!(utc(4_107_542_400_000_000), "2100-03-01 00:00:00 UTC");
    }
}

//! Prometheus text as series, and the drain signals that come from it.

use std::collections::BTreeMap;

use prometheus_parse::{Scrape, Value};

/// Finite values by `name{label="value",…}`, labels sorted.
pub type Series = BTreeMap<String, f64>;

/// Reads a page. Histograms and summaries are left out: no assertion reads them, and the raw text is kept beside.
///
/// # Errors
/// In words, when a line is neither a comment nor a sample, or there is no sample at all: a page of something else
/// must not look like counters that are all absent, which means zero.
pub fn series(text: &str) -> Result<Series, String> {
    let filled = || text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    if let Some(line) = filled().find(|line| !is_sample(line)) {
        return Err(format!("{:?} is no sample", line.chars().take(80).collect::<String>()));
    }
    if filled().next().is_none() {
        return Err("it has no sample".to_owned());
    }
    let lines = text.lines().map(|line| Ok(line.to_owned()));
    let scrape = Scrape::parse(lines).map_err(|error| error.to_string())?;
    let series = scrape
        .samples
        .into_iter()
        .filter_map(|sample| {
            let value = match sample.value {
                Value::Counter(v) | Value::Gauge(v) | Value::Untyped(v) => v,
                Value::Histogram(_) | Value::Summary(_) => return None,
            };
            let mut labels: Vec<String> =
                sample.labels.iter().map(|(name, value)| format!("{name}=\"{value}\"")).collect();
            labels.sort_unstable();
            let key = if labels.is_empty() {
                sample.metric
            } else {
                format!("{}{{{}}}", sample.metric, labels.join(","))
            };
            value.is_finite().then_some((key, value))
        })
        .collect();
    Ok(series)
}

/// `name value` or `name{labels} value`, with a timestamp or without.
fn is_sample(line: &str) -> bool {
    let name_len =
        line.bytes().take_while(|byte| byte.is_ascii_alphanumeric() || b"_:".contains(byte)).count();
    let (name, rest) = line.split_at(name_len);
    let rest = match rest.strip_prefix('{') {
        Some(labels) => labels.rsplit_once('}').map_or("", |(_, rest)| rest),
        None => rest,
    };
    let value = rest.split_ascii_whitespace().next().unwrap_or_default();
    !name.is_empty()
        && !name.starts_with(|first: char| first.is_ascii_digit())
        && value.parse::<f64>().is_ok()
}

/// Sum over all series of one metric that have every given `label="value"`. An absent series counts 0 (contract
/// gateway 7: label sets appear on first use).
#[must_use]
pub fn sum(series: &BTreeMap<String, f64>, metric: &str, labels: &[&str]) -> f64 {
    series
        .iter()
        .filter(|(key, _)| {
            let rest = key.strip_prefix(metric);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('{'))
                && labels.iter().all(|label| key.contains(label))
        })
        .map(|(_, value)| value)
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_are_summed_by_name_and_label() {
        let text =
            "# TYPE a counter\na{x=\"1\",b=\"2\"} 3\na{x=\"2\"} 4\n# TYPE a_total gauge\na_total 9\nn NaN\n";
        let read = series(text).unwrap();
        assert_eq!(read.get("a{b=\"2\",x=\"1\"}"), Some(&3.0));
        assert!((sum(&read, "a", &[]) - 7.0).abs() < f64::EPSILON);
        assert!((sum(&read, "a", &["x=\"2\""]) - 4.0).abs() < f64::EPSILON);
        assert!((sum(&read, "absent", &[])).abs() < f64::EPSILON);
        assert!(!read.contains_key("n"));
    }

    #[test]
    fn another_page_is_no_page_of_zeros() {
        let others =
            ["", "# a comment", "<html>busy</html>", "{\"a\": 1}", "please wait 5", "a 1\n<p>", "a{}"];
        for text in others {
            assert!(series(text).is_err(), "{text}");
        }
        for text in ["a 1", "a{b=\"} 2\"} +Inf 17", "a:b_total{} 3", "a NaN"] {
            assert!(series(text).is_ok(), "{text}");
        }
    }
}

//! Prometheus text as series, and the drain signals that come from it.

use std::collections::BTreeMap;

use prometheus_parse::{Scrape, Value};

/// Finite values by `name{label="value",…}`, labels sorted. Histograms and summaries are left out: no assertion reads
/// them, and the raw text is kept beside.
#[must_use]
pub fn series(text: &str) -> BTreeMap<String, f64> {
    let lines = text.lines().map(|line| Ok(line.to_owned()));
    let Ok(scrape) = Scrape::parse(lines) else { return BTreeMap::new() };
    scrape
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
        .collect()
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
        let read = series(text);
        assert_eq!(read.get("a{b=\"2\",x=\"1\"}"), Some(&3.0));
        assert!((sum(&read, "a", &[]) - 7.0).abs() < f64::EPSILON);
        assert!((sum(&read, "a", &["x=\"2\""]) - 4.0).abs() < f64::EPSILON);
        assert!((sum(&read, "absent", &[])).abs() < f64::EPSILON);
        assert!(!read.contains_key("n"));
    }
}

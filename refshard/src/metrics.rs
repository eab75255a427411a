//! Counters, gauges and histograms in the Prometheus text format, with the families of one program
//! declared in a table, so that a misspelt name cannot make a new family.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Kind of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Distribution over [`BUCKETS`].
    Histogram,
}

/// Name, kind and help text of a family.
pub type Family = (&'static str, Kind, &'static str);

/// Upper bounds of every histogram; seconds or tokens.
pub const BUCKETS: [f64; 14] =
    [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 50.0, 250.0, 1000.0];

#[derive(Clone, Debug)]
enum Value {
    Number(f64),
    Histogram { buckets: [u64; BUCKETS.len()], sum: f64, count: u64 },
}

/// All series of one program.
#[derive(Debug)]
pub struct Metrics {
    families: &'static [Family],
    series: Mutex<BTreeMap<(&'static str, String), Value>>,
}

impl Metrics {
    /// Empty series of these families.
    #[must_use]
    pub fn new(families: &'static [Family]) -> Self {
        Self { families, series: Mutex::new(BTreeMap::new()) }
    }

    /// Adds to a counter or gauge; a series begins at 0.
    pub fn add(&self, name: &'static str, labels: &[(&str, &str)], amount: f64) {
        self.change(name, labels, |value| {
            if let Value::Number(number) = value {
                *number += amount;
            }
        });
    }

    /// Counts one.
    pub fn count(&self, name: &'static str, labels: &[(&str, &str)]) {
        self.add(name, labels, 1.0);
    }

    /// Sets a gauge.
    pub fn set(&self, name: &'static str, labels: &[(&str, &str)], to: f64) {
        self.change(name, labels, |value| *value = Value::Number(to));
    }

    /// Puts one observation into a histogram.
    pub fn observe(&self, name: &'static str, labels: &[(&str, &str)], seen: f64) {
        self.change(name, labels, |value| {
            if let Value::Histogram { buckets, sum, count } = value {
                for (bucket, bound) in buckets.iter_mut().zip(BUCKETS) {
                    *bucket += u64::from(seen <= bound);
                }
                *sum += seen;
                *count += 1;
            }
        });
    }

    /// Current value of a counter or gauge; 0 when the series has not begun.
    #[must_use]
    pub fn value(&self, name: &'static str, labels: &[(&str, &str)]) -> f64 {
        match self.lock().get(&(name, render_labels(labels))) {
            Some(Value::Number(number)) => *number,
            _ => 0.0,
        }
    }

    /// The text that `GET /metrics` answers.
    #[must_use]
    pub fn render(&self) -> String {
        let mut text = String::new();
        let series = self.lock();
        for (name, kind, help) in self.families {
            let mine = series.range((*name, String::new())..).take_while(|((family, _), _)| family == name);
            let mut first = true;
            for ((_, labels), value) in mine {
                if std::mem::take(&mut first) {
                    let kind = match kind {
                        Kind::Counter => "counter",
                        Kind::Gauge => "gauge",
                        Kind::Histogram => "histogram",
                    };
                    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
                }
                render_series(&mut text, name, labels, value);
            }
        }
        text
    }

    fn change(&self, name: &'static str, labels: &[(&str, &str)], with: impl FnOnce(&mut Value)) {
        let family = self.families.iter().find(|(known, ..)| *known == name);
        let (_, kind, _) = family.expect("every family is declared in the program's table");
        let fresh = || match kind {
            Kind::Counter | Kind::Gauge => Value::Number(0.0),
            Kind::Histogram => Value::Histogram { buckets: [0; BUCKETS.len()], sum: 0.0, count: 0 },
        };
        let mut series = self.lock();
        with(series.entry((name, render_labels(labels))).or_insert_with(fresh));
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(&'static str, String), Value>> {
        // A panic while counting leaves numbers that are still numbers.
        self.series.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn render_series(text: &mut String, name: &str, labels: &str, value: &Value) {
    let braced = |extra: &str| match (labels.is_empty(), extra.is_empty()) {
        (true, true) => String::new(),
        (true, false) => format!("{{{extra}}}"),
        (false, true) => format!("{{{labels}}}"),
        (false, false) => format!("{{{labels},{extra}}}"),
    };
    match value {
        Value::Number(number) => drop(writeln!(text, "{name}{} {number}", braced(""))),
        Value::Histogram { buckets, sum, count } => {
            for (bucket, bound) in buckets.iter().zip(BUCKETS) {
                let _ = writeln!(text, "{name}_bucket{} {bucket}", braced(&format!("le=\"{bound}\"")));
            }
            let _ = writeln!(text, "{name}_bucket{} {count}", braced("le=\"+Inf\""));
            let _ = writeln!(text, "{name}_sum{} {sum}\n{name}_count{} {count}", braced(""), braced(""));
        }
    }
}

fn render_labels(labels: &[(&str, &str)]) -> String {
    let mut labels: Vec<_> = labels.iter().collect();
    labels.sort_unstable();
    let mut text = String::new();
    for (name, value) in labels {
        let comma = if text.is_empty() { "" } else { "," };
        let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let _ = write!(text, "{comma}{name}=\"{value}\"");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAMILIES: &[Family] = &[
        ("a_total", Kind::Counter, "Things."),
        ("a_total_more", Kind::Gauge, "Levels."),
        ("h_seconds", Kind::Histogram, "Times."),
    ];

    #[test]
    fn renders_families_with_sorted_and_escaped_labels() {
        let metrics = Metrics::new(FAMILIES);
        metrics.count("a_total", &[("z", "1"), ("b", "q\"")]);
        metrics.count("a_total", &[("b", "q\""), ("z", "1")]);
        metrics.add("a_total_more", &[], 2.0);
        metrics.add("a_total_more", &[], -2.0);
        metrics.observe("h_seconds", &[("op", "x")], 0.3);
        let text = metrics.render();
        assert!(text.contains("# TYPE a_total counter\na_total{b=\"q\\\"\",z=\"1\"} 2\n"), "{text}");
        assert!(text.contains("\na_total_more 0\n"), "{text}");
        assert!(text.contains("h_seconds_bucket{op=\"x\",le=\"0.25\"} 0\n"), "{text}");
        assert!(text.contains("h_seconds_bucket{op=\"x\",le=\"0.5\"} 1\n"), "{text}");
        assert!(text.contains("h_seconds_count{op=\"x\"} 1\n"), "{text}");
        assert_eq!(metrics.value("a_total", &[("z", "1"), ("b", "q\"")]), 2.0);
    }

    #[test]
    #[should_panic(expected = "declared")]
    fn an_unknown_family_is_a_bug() {
        Metrics::new(FAMILIES).count("b_total", &[]);
    }
}

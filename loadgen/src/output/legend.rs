//! Legends from the one table of metrics, so that no text explains a figure in words of its own.

use crate::result::{Figure, Figures, Metric};

/// One explained name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Name in files, flags and thresholds.
    pub name: &'static str,
    /// Head of a column.
    pub title: &'static str,
    /// Unit and population in words, and the meaning.
    pub text: String,
}

/// Every row of the table.
#[must_use]
pub fn all() -> Vec<Entry> {
    let metrics = Metric::ALL.iter().map(|metric| metric.definition());
    let figures = Figure::ALL.iter().map(|figure| figure.definition());
    metrics.chain(figures).map(|row| entry(&row)).collect()
}

/// The rows that have a value here.
#[must_use]
pub fn of(figures: &Figures) -> Vec<Entry> {
    let metrics = Metric::ALL.iter().filter(|metric| !figures.distributions.get(**metric).is_empty());
    let metrics = metrics.map(|metric| metric.definition());
    let shown = Figure::ALL.iter().filter(|figure| figures.value(**figure).is_some());
    metrics.chain(shown.map(|figure| figure.definition())).map(|row| entry(&row)).collect()
}

fn entry(row: &crate::result::Definition) -> Entry {
    let words = row.meaning.split_whitespace().collect::<Vec<_>>().join(" ");
    Entry { name: row.name, title: row.title, text: format!("{words} (of {})", row.population.words()) }
}

/// The table as Markdown, for `docs/reports.md`.
#[must_use]
pub fn markdown() -> String {
    let unit = |name: &str| {
        let metric = Metric::ALL.iter().any(|metric| metric.name() == name);
        let figure = Figure::ALL.iter().map(|figure| figure.definition()).find(|row| row.name == name);
        if metric { "µs" } else { figure.map_or("", |row| unit_words(row.unit)) }
    };
    let rows = all().into_iter().map(|entry| {
        format!("| `{}` | {} | {} | {} |\n", entry.name, entry.title, unit(entry.name), entry.text)
    });
    format!("| Name | Title | Unit | Meaning |\n|---|---|---|---|\n{}", rows.collect::<String>())
}

const fn unit_words(unit: crate::result::Unit) -> &'static str {
    use crate::result::Unit as U;
    match unit {
        U::Microseconds => "µs",
        U::PerSecond => "1/s",
        U::Share => "0 to 1",
        U::Count => "–",
        U::Bytes => "bytes",
        U::Money => "currency of the price table",
    }
}

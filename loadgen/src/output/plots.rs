//! Plots of the page of a load run: over time, against load, and the distribution of latency.

use std::collections::{BTreeMap, BTreeSet};

use evidence::record::ClientClass;
use report::chart::axis::Axis;
use report::chart::{Chart, Line, Mark, Place, Stack, Tone};
use report::units;
use stats::{Histogram, Percentile, Windows};

use super::show::stage_name;
use crate::result::{Figure, Figures, Metric, RunResult, StageLoad, StageResult};

/// Most places of a plot over time; neighbouring windows are put together above it.
const PLACES_MAX: usize = 120;
/// Most bars of the histogram.
const BARS_MAX: usize = 48;
/// Most stage marks; more would cover each other.
const MARKS_MAX: usize = 8;

const LATENCY_LINES: [(&str, Tone, Percentile); 4] = [
    ("p50", Tone::Low, Percentile::P50),
    ("p95", Tone::Mid, Percentile::P95),
    ("p99", Tone::High, Percentile::P99),
    ("p99.9", Tone::Top, Percentile::P999),
];

fn seconds(us: u64) -> f64 {
    us as f64 / 1e6
}

fn span(value: f64) -> String {
    units::span(value.max(0.0).round() as u64)
}

fn second_label(value: f64) -> String {
    format!("{} s", units::trimmed(value, 2))
}

fn rate_label(value: f64) -> String {
    format!("{}/s", units::trimmed(value, 2))
}

fn level_label(value: f64) -> String {
    units::trimmed(value, 2)
}

/// Windows put together so that a plot can show them.
struct Grouped<K> {
    places: Vec<Place>,
    width_us: u64,
    counts: Vec<BTreeMap<K, u64>>,
    latency: Vec<Histogram>,
    end: f64,
}

fn grouped<K: Ord + Copy>(windows: &Windows<K>, wall_us: u64) -> Grouped<K> {
    let number = windows.iter().count();
    let group = number.div_ceil(PLACES_MAX).max(1);
    let width_us = windows.width_us() * group as u64;
    let mut found = Grouped {
        places: Vec::new(),
        width_us,
        counts: Vec::new(),
        latency: Vec::new(),
        end: seconds(wall_us.max(1)),
    };
    for (at, (start_us, window)) in windows.iter().enumerate() {
        if at % group == 0 {
            // The end of the run cuts the last window short.
            let end_us = (start_us + width_us).min(wall_us.max(start_us + 1));
            let bar = (seconds(start_us), seconds(end_us));
            let name = format!("{:.0} to {:.0} s", bar.0, bar.1);
            found.places.push(Place { x: f64::midpoint(bar.0, bar.1), bar, name });
            found.counts.push(BTreeMap::new());
            found.latency.push(Histogram::new());
        }
        if let (Some(counts), Some(latency)) = (found.counts.last_mut(), found.latency.last_mut()) {
            window.counts().iter().for_each(|entry| *counts.entry(entry.class).or_default() += entry.count);
            latency.merge(&window.latency());
        }
    }
    found
}

impl<K> Grouped<K> {
    fn x(&self) -> Axis {
        Axis::until("seconds since the run began", self.end, second_label)
    }
}

/// Plots over time.
pub(super) fn over_time(result: &RunResult) -> Vec<Chart> {
    let over_time = &result.over_time;
    let wall_us = result.run.wall_us;
    let (ends, ttft, late) = (
        grouped(&over_time.ends, wall_us),
        grouped(&over_time.ttft, wall_us),
        grouped(&over_time.lateness, wall_us),
    );
    let marks = marks(result);
    let mut charts = vec![
        percentiles_over_time(
            "Latency",
            "Of successes, from the planned instant, by the instant they ended",
            &ends,
            &marks,
        ),
        percentiles_over_time(
            "Time to first token",
            "Of successes, from the planned instant, by the instant of the first content",
            &ttft,
            &marks,
        ),
        outcomes("Requests ended", "A second, by class, warm-up included", &ends, &marks, |_| true),
    ];
    let failed = |class: ClientClass| class != ClientClass::Ok;
    if ends.counts.iter().flat_map(BTreeMap::keys).any(|class| failed(*class)) {
        charts.push(outcomes("Errors", "A second, everything that did not succeed", &ends, &marks, failed));
    }
    charts.push(percentiles_over_time(
        "Lateness of the generator",
        "Planned instant to the start of sending; what the generator itself adds",
        &late,
        &marks,
    ));
    charts
}

fn percentiles_over_time<K>(title: &str, subtitle: &str, windows: &Grouped<K>, marks: &[Mark]) -> Chart {
    let lines = percentile_lines(&windows.latency, false);
    Chart {
        title: title.to_owned(),
        subtitle: format!("{subtitle}, in windows of {}", units::span(windows.width_us)),
        x: windows.x(),
        y: Axis::from_zero("", highest(&lines), span),
        at: windows.places.clone(),
        lines,
        stacks: Vec::new(),
        marks: marks.to_vec(),
    }
}

/// One line a percentile; those with too few values behind every point are left out.
fn percentile_lines(histograms: &[Histogram], dots: bool) -> Vec<Line> {
    let most = histograms.iter().map(Histogram::count).max().unwrap_or_default();
    let shown = LATENCY_LINES.iter().filter(|(name, _, p)| *name == "p50" || !p.is_low_n(most));
    shown
        .map(|(name, tone, percentile)| {
            let values = histograms.iter().map(|h| h.percentile_us(*percentile).map(|us| us as f64));
            Line { name: (*name).to_owned(), tone: *tone, values: values.collect(), dots, joined: true }
        })
        .collect()
}

fn highest(lines: &[Line]) -> f64 {
    lines.iter().flat_map(|line| &line.values).flatten().copied().fold(0.0, f64::max)
}

fn outcomes(
    title: &str,
    subtitle: &str,
    windows: &Grouped<ClientClass>,
    marks: &[Mark],
    shown: fn(ClientClass) -> bool,
) -> Chart {
    let classes: BTreeSet<ClientClass> =
        windows.counts.iter().flat_map(BTreeMap::keys).copied().filter(|class| shown(*class)).collect();
    // A window that was cut short is a rate over what there is of it, but not over next to nothing.
    let least = seconds(windows.width_us) / 5.0;
    let rate = |counts: &BTreeMap<ClientClass, u64>, place: &Place, class| {
        counts.get(&class).copied().unwrap_or_default() as f64 / (place.bar.1 - place.bar.0).max(least)
    };
    let stacks: Vec<Stack> = classes
        .iter()
        .map(|class| Stack {
            name: class.word(),
            tone: tone_of(*class),
            values: windows.counts.iter().zip(&windows.places).map(|(c, p)| rate(c, p, *class)).collect(),
        })
        .collect();
    let totals = (0..windows.places.len()).map(|k| stacks.iter().map(|stack| stack.values[k]).sum::<f64>());
    Chart {
        title: title.to_owned(),
        subtitle: format!("{subtitle}, in windows of {}", units::span(windows.width_us)),
        x: windows.x(),
        y: Axis::from_zero("", totals.fold(0.0, f64::max), rate_label),
        at: windows.places.clone(),
        lines: Vec::new(),
        stacks,
        marks: marks.to_vec(),
    }
}

/// The same class has the same colour in every plot.
const fn tone_of(class: ClientClass) -> Tone {
    match class {
        ClientClass::Ok => Tone::Good,
        ClientClass::HttpError | ClientClass::InBandError => Tone::Bad,
        ClientClass::Cancelled | ClientClass::Interrupted | ClientClass::NotOffered => Tone::Quiet,
        ClientClass::Dropped | ClientClass::GeneratorPorts | ClientClass::GeneratorFds => Tone::Doubt,
        other => Tone::Kind(other as usize),
    }
}

fn marks(result: &RunResult) -> Vec<Mark> {
    if result.stages.len() < 2 || result.stages.len() > MARKS_MAX {
        return Vec::new();
    }
    result
        .stages
        .iter()
        .map(|stage| Mark { at: seconds(stage.started_us), text: stage.load.words() })
        .collect()
}

/// Whether a stage is of one kind.
type IsKind = fn(&StageLoad) -> bool;

/// Plots against load, for stages of one kind; nothing when there is only one level.
pub(super) fn against_load(result: &RunResult) -> Vec<Chart> {
    let kinds: [(&str, IsKind); 2] = [
        ("users", |load| matches!(load, StageLoad::Closed { .. })),
        ("planned requests a second", |load| matches!(load, StageLoad::Open { .. })),
    ];
    let mut charts = Vec::new();
    for (unit, of_kind) in kinds {
        let mut stages: Vec<(f64, &StageResult)> = result
            .stages
            .iter()
            .filter(|stage| of_kind(&stage.load))
            .filter_map(|stage| Some((stage.load.level()?, stage)))
            .collect();
        stages.sort_by(|a, b| a.0.total_cmp(&b.0));
        let levels: BTreeSet<u64> = stages.iter().map(|(level, _)| level.to_bits()).collect();
        if levels.len() < 2 {
            continue;
        }
        charts.push(by_level("Latency against load", Metric::Latency, unit, &stages));
        charts.push(by_level("TTFT against load", Metric::Ttft, unit, &stages));
        charts.push(throughput(unit, &stages));
    }
    charts
}

fn level_places(stages: &[(f64, &StageResult)]) -> Vec<Place> {
    let place = |(level, stage): &(f64, &StageResult)| Place {
        x: *level,
        bar: (*level, *level),
        name: format!("stage {}: {}", stage_name(stage), stage.load.words()),
    };
    stages.iter().map(place).collect()
}

fn level_axis(unit: &str, stages: &[(f64, &StageResult)]) -> Axis {
    Axis::from_zero(unit, stages.iter().map(|(level, _)| *level).fold(0.0, f64::max), level_label)
}

fn by_level(title: &str, metric: Metric, unit: &str, stages: &[(f64, &StageResult)]) -> Chart {
    let histograms: Vec<Histogram> =
        stages.iter().map(|(_, stage)| stage.total.distributions.get(metric).clone()).collect();
    let lines = percentile_lines(&histograms, true);
    Chart {
        title: title.to_owned(),
        subtitle: format!("Of {}, steady part of each stage", metric.definition().population.words()),
        x: level_axis(unit, stages),
        y: Axis::from_zero("", highest(&lines), span),
        at: level_places(stages),
        lines,
        stacks: Vec::new(),
        marks: Vec::new(),
    }
}

fn throughput(unit: &str, stages: &[(f64, &StageResult)]) -> Chart {
    let of = |figure: Figure| stages.iter().map(|(_, stage)| stage.total.value(figure)).collect();
    let line =
        |name: &str, tone, values| Line { name: name.to_owned(), tone, values, dots: true, joined: true };
    let lines =
        vec![line("ended", Tone::Quiet, of(Figure::Rps)), line("succeeded", Tone::Good, of(Figure::OkRps))];
    Chart {
        title: "Throughput against load".to_owned(),
        subtitle: "Requests a second, steady part of each stage".to_owned(),
        x: level_axis(unit, stages),
        y: Axis::from_zero("", highest(&lines), rate_label),
        at: level_places(stages),
        lines,
        stacks: Vec::new(),
        marks: Vec::new(),
    }
}

/// The knee: each run of a level of a search, those that passed and those that did not.
pub(super) fn knee(result: &RunResult) -> Vec<Chart> {
    let Some(search) = &result.search else { return Vec::new() };
    let mut runs: Vec<_> =
        search.runs.iter().filter_map(|run| Some((run, result.stages.get(run.stage)?))).collect();
    runs.sort_by_key(|(run, stage)| (run.level, stage.index));
    let p95 = |stage: &StageResult| {
        stage.total.distributions.get(Metric::Latency).percentile_us(Percentile::P95).map(|us| us as f64)
    };
    let points = |wanted: &str, name: &str, tone| {
        let values = runs.iter().map(|(run, stage)| p95(stage).filter(|_| run.outcome == wanted));
        Line { name: name.to_owned(), tone, values: values.collect(), dots: true, joined: false }
    };
    let lines = vec![
        points("invalid", "invalid", Tone::Doubt),
        points("failed", "failed", Tone::Bad),
        points("passed", "passed", Tone::Good),
    ];
    let place = |(run, _): &(&crate::result::SearchRun, &StageResult)| Place {
        x: run.level as f64,
        bar: (run.level as f64, run.level as f64),
        name: format!("level {}, {}, {}", run.level, run.purpose, run.outcome),
    };
    let mark =
        |level: Option<u64>, text: &str| level.map(|level| Mark { at: level as f64, text: text.to_owned() });
    let high = runs.iter().map(|(run, _)| run.level as f64).fold(0.0, f64::max);
    vec![Chart {
        title: "Knee".to_owned(),
        subtitle: "p95 of latency of each run of a level".to_owned(),
        x: Axis::from_zero(&search.of, high, level_label),
        y: Axis::from_zero("", highest(&lines), span),
        at: runs.iter().map(place).collect(),
        lines,
        stacks: Vec::new(),
        marks: [mark(search.highest, "highest stable"), mark(search.lowest_bad, "")]
            .into_iter()
            .flatten()
            .collect(),
    }]
}

/// How latencies are distributed, in bars of equal ratio.
pub(super) fn histogram(figures: &Figures, metric: Metric) -> Option<Chart> {
    let histogram = figures.distributions.get(metric);
    let (low, high) = (histogram.min_us()?.max(1) as f64, histogram.max_us()?.max(2) as f64 + 1.0);
    let ratio = (high / low).powf(1.0 / BARS_MAX as f64);
    // Bars finer than one microsecond would be empty for a reason of arithmetic alone.
    let ratio = ratio.max(1.0 + 1.0 / low);
    let number = (((high / low).ln() / ratio.ln()).ceil() as usize).clamp(1, BARS_MAX);
    let mut counts = vec![0.0; number];
    for bucket in histogram.buckets() {
        let middle = f64::midpoint(bucket.low_us as f64, bucket.high_us as f64).max(low);
        let at = ((middle / low).ln() / ratio.ln()) as usize;
        counts[at.min(number - 1)] += bucket.count as f64;
    }
    let places = (0..number).map(|k| {
        let bar = (low * ratio.powi(k as i32), low * ratio.powi(k as i32 + 1));
        Place { x: (bar.0 * bar.1).sqrt(), bar, name: format!("{} to {}", span(bar.0), span(bar.1)) }
    });
    let row = metric.definition();
    let mark = |(name, percentile): (&str, Percentile)| {
        let us = histogram.percentile_us(percentile)?;
        (!percentile.is_low_n(histogram.count())).then(|| Mark { at: us as f64, text: name.to_owned() })
    };
    let marks = [("p50", Percentile::P50), ("p99", Percentile::P99)].into_iter().filter_map(mark);
    Some(Chart {
        title: format!("Distribution of {}", row.title),
        subtitle: format!("Of {}, number of requests in bars of equal ratio", row.population.words()),
        x: Axis::log(row.title, low, (low * ratio.powi(number as i32)).max(high), span),
        y: Axis::from_zero(
            "",
            counts.iter().copied().fold(0.0, f64::max),
            |v| units::count(v.round() as u64),
        ),
        at: places.collect(),
        lines: Vec::new(),
        stacks: vec![Stack { name: "requests".to_owned(), tone: Tone::Mid, values: counts }],
        marks: marks.collect(),
    })
}

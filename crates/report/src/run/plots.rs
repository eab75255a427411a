//! Plots of a run over time. Latencies lie at the planned instant of their request, outcomes at its end.

use std::collections::BTreeMap;

use evidence::event::EventKind;
use stats::{Histogram, Percentile};

use super::{RequestPoint, Requests, RunReport};
use crate::chart::axis::Axis;
use crate::chart::{Chart, Line, Mark, Place, Stack, Tone};
use crate::units;

/// Most windows of a plot; more would be thinner than a pixel on a phone.
const WINDOWS_MAX: u64 = 60;
/// Widths of a window, microseconds, the smallest first; beyond the last one it is doubled.
const WIDTHS_US: [u64; 11] = [
    50_000,
    100_000,
    200_000,
    500_000,
    1_000_000,
    2_000_000,
    5_000_000,
    10_000_000,
    30_000_000,
    60_000_000,
    300_000_000,
];
/// Most marks in one plot; more of them are left to the timeline.
const MARKS_MAX: usize = 8;

/// Classes in the order in which they are stacked, with their colours.
const CLASSES: [(&str, Tone); 8] = [
    ("success", Tone::Good),
    ("masked-fault", Tone::Mid),
    ("expected-failure", Tone::Doubt),
    ("cancelled", Tone::Quiet),
    ("rejected", Tone::Kind(1)),
    ("unexpected-failure", Tone::Bad),
    ("dropped", Tone::Kind(2)),
    ("not-offered", Tone::Kind(4)),
];

/// Windows of equal width over the load, on the runner's clock.
struct Windows {
    start_us: u64,
    width_us: u64,
    number: usize,
    end_us: u64,
}

impl Windows {
    fn over(requests: &dyn Requests, shift_us: u64) -> Option<Self> {
        let mut range: Option<(u64, u64)> = None;
        requests.each(&mut |point| {
            let (first, last) = range.unwrap_or((point.planned_us, point.end_us));
            range = Some((first.min(point.planned_us), last.max(point.end_us)));
        });
        let (first, end_us) = range.map(|(first, last)| (first + shift_us, last + shift_us))?;
        let fits = |width: &u64| end_us / width - first / width < WINDOWS_MAX;
        let mut width_us = WIDTHS_US.into_iter().find(fits).unwrap_or(WIDTHS_US[WIDTHS_US.len() - 1]);
        while !fits(&width_us) {
            width_us *= 2;
        }
        let start_us = first / width_us * width_us;
        let number = usize::try_from((end_us - start_us) / width_us).ok()? + 1;
        Some(Self { start_us, width_us, number, end_us })
    }

    fn index(&self, at_us: u64) -> usize {
        let index = at_us.saturating_sub(self.start_us) / self.width_us;
        usize::try_from(index).unwrap_or(usize::MAX).min(self.number - 1)
    }

    fn places(&self) -> Vec<Place> {
        let place = |k: usize| {
            let from = self.start_us + k as u64 * self.width_us;
            let to = (from + self.width_us).min(self.end_us.max(from + 1));
            let (from, to) = (seconds(from), seconds(to));
            Place { x: f64::midpoint(from, to), bar: (from, to), name: format!("{from:.2} to {to:.2} s") }
        };
        (0..self.number).map(place).collect()
    }
}

fn seconds(us: u64) -> f64 {
    us as f64 / 1e6
}

fn second_label(value: f64) -> String {
    format!("{} s", units::trimmed(value, 2))
}

/// Three plots: TTFT, total latency, ended requests by class.
#[must_use]
pub(super) fn over_time(report: &RunReport<'_>) -> String {
    let shift_us = report.clock_shift_us();
    let Some(windows) = Windows::over(&*report.requests, shift_us) else { return String::new() };
    let places = windows.places();
    let marks = marks(report);
    let width = units::span(windows.width_us);
    let x = || Axis::until("seconds since the run began", seconds(windows.end_us), second_label);
    let latency = |title: &str, of: fn(&RequestPoint<'_>) -> Option<u64>| {
        let histograms = histograms(report, &windows, shift_us, of);
        latency_chart(title, &width, x(), &places, &marks, &histograms)
    };
    let charts = [
        latency("TTFT", |point| point.ttft_us),
        latency("Total latency", |point| point.latency_us),
        outcomes(report, &windows, shift_us, x(), &places, &marks),
    ];
    let body: String = charts.iter().map(Chart::html).collect();
    format!("<div class=\"charts\">\n{body}</div>\n")
}

fn histograms(
    report: &RunReport<'_>,
    windows: &Windows,
    shift_us: u64,
    of: fn(&RequestPoint<'_>) -> Option<u64>,
) -> Vec<Histogram> {
    let mut histograms = vec![Histogram::new(); windows.number];
    report.requests.each(&mut |point| {
        if let Some(us) = of(point) {
            histograms[windows.index(point.planned_us + shift_us)].record(us);
        }
    });
    histograms
}

/// Percentiles of one kind of latency, a value a window.
fn latency_chart(
    title: &str,
    width: &str,
    x: Axis,
    places: &[Place],
    marks: &[Mark],
    histograms: &[Histogram],
) -> Chart {
    let line = |name: &str, tone, percentile| {
        let value = |h: &Histogram| h.percentile_us(percentile).map(|us| us as f64);
        let values = histograms.iter().map(value).collect();
        Line { name: name.to_owned(), tone, values, dots: false, joined: true }
    };
    // Where no window has enough values for a percentile, it would be the maximum under another name.
    let most = histograms.iter().map(Histogram::count).max().unwrap_or_default();
    let lines: Vec<Line> = [
        ("p50", Tone::Low, Percentile::P50),
        ("p95", Tone::Mid, Percentile::P95),
        ("p99", Tone::High, Percentile::P99),
    ]
    .into_iter()
    .filter(|(name, _, percentile)| *name == "p50" || !percentile.is_low_n(most))
    .map(|(name, tone, percentile)| line(name, tone, percentile))
    .collect();
    let high = lines.iter().flat_map(|line| &line.values).flatten().copied().fold(0.0, f64::max);
    Chart {
        title: title.to_owned(),
        subtitle: format!("Of successes, from the planned instant, in windows of {width} by that instant"),
        x,
        y: Axis::from_zero("", high, |us| units::span(us.round() as u64)),
        at: places.to_vec(),
        lines,
        stacks: Vec::new(),
        marks: marks.to_vec(),
    }
}

fn outcomes(
    report: &RunReport<'_>,
    windows: &Windows,
    shift_us: u64,
    x: Axis,
    places: &[Place],
    marks: &[Mark],
) -> Chart {
    let mut counts: BTreeMap<&str, Vec<f64>> =
        CLASSES.iter().map(|(class, _)| (*class, vec![0.0; windows.number])).collect();
    report.requests.each(&mut |point| {
        if let Some(values) = counts.get_mut(point.class) {
            values[windows.index(point.end_us + shift_us)] += 1.0;
        }
    });
    // A class that no request has is no stack.
    counts.retain(|_, values| values.iter().any(|value| *value > 0.0));
    // A window that the end of the load cut short is a rate over what there is of it, but not over next to nothing.
    let least = seconds(windows.width_us) / 5.0;
    for values in counts.values_mut() {
        for (value, place) in values.iter_mut().zip(places) {
            *value /= (place.bar.1 - place.bar.0).max(least);
        }
    }
    let known = CLASSES.iter().filter_map(|(class, tone)| Some((*class, *tone, counts.get(class)?.clone())));
    let stacks: Vec<Stack> =
        known.map(|(name, tone, values)| Stack { name: name.to_owned(), tone, values }).collect();
    let totals = (0..windows.number).map(|k| stacks.iter().map(|stack| stack.values[k]).sum::<f64>());
    Chart {
        title: "Requests ended".to_owned(),
        subtitle: format!("A second, by class, in windows of {}", units::span(windows.width_us)),
        x,
        y: Axis::from_zero("", totals.fold(0.0, f64::max), |rate| format!("{}/s", units::trimmed(rate, 2))),
        at: places.to_vec(),
        lines: Vec::new(),
        stacks,
        marks: marks.to_vec(),
    }
}

/// Service actions and later load steps.
fn marks(report: &RunReport<'_>) -> Vec<Mark> {
    let words = report.events.iter().filter_map(|event| {
        let text = match &event.event {
            EventKind::ActionIntended { what, .. } => what.clone(),
            EventKind::StepStarted { step, concurrency } if *step > 0 => format!("c = {concurrency}"),
            _ => return None,
        };
        Some(Mark { at: seconds(event.at_us), text })
    });
    words.take(MARKS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(planned_us: u64, end_us: u64) -> RequestPoint<'static> {
        RequestPoint {
            planned_us,
            end_us,
            class: "success",
            ttft_us: Some(10),
            latency_us: Some(end_us - planned_us),
        }
    }

    #[test]
    fn windows_are_few_and_hold_every_request() {
        for (first, last) in [(0, 1), (0, 3_000_000), (7, 86_400_000_000), (59, 1_000_000_000_000)] {
            let points = vec![point(first, first + 1), point(last, last + 1)];
            let windows = Windows::over(&points, 5).unwrap();
            assert!(windows.number as u64 <= WINDOWS_MAX, "{first} {last}");
            assert_eq!(windows.index(first + 5), 0);
            assert_eq!(windows.index(last + 6), windows.number - 1);
            assert_eq!(windows.places().len(), windows.number);
        }
        assert!(Windows::over(&Vec::new(), 0).is_none());
    }
}

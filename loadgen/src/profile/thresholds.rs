//! Limits on metrics and figures: read from a profile, held against results. Decided in whole numbers where the figure
//! is one; a limit without any value is broken, since nothing was shown.

use scenario::units::{Micros, Ppb};
use stats::Percentile;

use super::model::{Number, Thresholds};
use super::resolve::{Problems, ScenarioPlan};
use crate::result::{Figure, Figures, Metric, ThresholdResult, Unit};

/// What a limit is held against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A percentile of a metric.
    Percentile(Metric, Percentile),
    /// A figure.
    Figure(Figure),
}

/// One limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// As printed.
    pub name: String,
    /// What is limited.
    pub subject: Subject,
    /// The limit: microseconds, or 10⁻⁹ for figures.
    pub limit: u64,
    /// The limit is the least that is needed.
    pub at_least: bool,
    /// Only this scenario.
    pub scenario: Option<usize>,
    /// Only this stage.
    pub stage: Option<usize>,
    /// Over all stages together.
    pub overall: bool,
}

/// The rules of a profile, as far as they can be.
pub(super) fn rules(
    given: &Thresholds,
    scenarios: &[ScenarioPlan],
    stages: usize,
    problems: &mut Problems,
) -> Vec<Rule> {
    let plain = |name: &str, subject, limit| Rule {
        name: name.to_owned(),
        subject,
        limit,
        at_least: false,
        scenario: None,
        stage: None,
        overall: false,
    };
    let mut rules = Vec::new();
    let p95 = |metric| Subject::Percentile(metric, Percentile::P95);
    if given.ttft_p95_ms > 0 {
        rules.push(plain("ttft p95", p95(Metric::Ttft), given.ttft_p95_ms.saturating_mul(1_000)));
    }
    if given.p95_ms > 0 {
        rules.push(plain("latency p95", p95(Metric::Latency), given.p95_ms.saturating_mul(1_000)));
    }
    if given.error_rate > Ppb::ZERO {
        rules.push(plain("error_rate", Subject::Figure(Figure::ErrorRate), given.error_rate.get()));
    }
    for (place, limit) in given.limits.iter().enumerate() {
        let at = format!("thresholds.limits[{place}]");
        let scenario = limit.scenario.as_ref().map(|name| scenarios.iter().position(|s| s.name == *name));
        if scenario == Some(None) {
            problems.add(
                format!("{at}.scenario"),
                format!("no scenario {:?}", limit.scenario.as_deref().unwrap_or_default()),
            );
        }
        let stage = limit.stage.map(|stage| usize::try_from(stage).unwrap_or(usize::MAX));
        if stage.is_some_and(|stage| stage >= stages) {
            problems.add(format!("{at}.stage"), "there is no such stage; they count from 0");
        }
        let number = match (&limit.max, &limit.min) {
            (Some(number), None) => Some((number, false)),
            (None, Some(number)) => Some((number, true)),
            _ => None,
        };
        let Some((number, at_least)) = number else {
            problems.add(at, "give exactly one of max and min");
            continue;
        };
        let (metric, percentile) = taken_apart(&limit.metric, limit.percentile.as_deref());
        match subject(metric, percentile).and_then(|s| Ok((s, amount(s, number)?))) {
            Ok((subject, amount)) => rules.push(Rule {
                name: match percentile {
                    Some(percentile) => format!("{metric} {percentile}"),
                    None => metric.to_owned(),
                },
                subject,
                limit: amount,
                at_least,
                scenario: scenario.flatten(),
                stage,
                overall: limit.overall,
            }),
            Err(why) => problems.add(at, why),
        }
    }
    rules
}

/// `ttft_p95` is short for metric `ttft` with percentile `p95`.
fn taken_apart<'a>(metric: &'a str, percentile: Option<&'a str>) -> (&'a str, Option<&'a str>) {
    match (percentile, metric.rsplit_once('_')) {
        (None, Some((name, short)))
            if short.parse::<Percentile>().is_ok() && name.parse::<Metric>().is_ok() =>
        {
            (name, Some(short))
        }
        _ => (metric, percentile),
    }
}

fn subject(metric: &str, percentile: Option<&str>) -> Result<Subject, String> {
    if let Some(figure) = Figure::ALL.iter().find(|figure| figure.definition().name == metric) {
        return match percentile {
            None => Ok(Subject::Figure(*figure)),
            Some(_) => Err(format!("{metric} is one number and has no percentiles")),
        };
    }
    let known: Metric =
        metric.parse().map_err(|error: crate::result::metric::UnknownMetric| error.to_string())?;
    let Some(text) = percentile else { return Err(format!("{metric} needs a percentile such as p95")) };
    let percentile = text.parse().map_err(|error: stats::rank::PercentileError| error.to_string())?;
    Ok(Subject::Percentile(known, percentile))
}

fn amount(subject: Subject, number: &Number) -> Result<u64, String> {
    match subject {
        Subject::Percentile(..) => {
            Micros::parse(&number.0).map(Micros::us).map_err(|error| error.to_string())
        }
        Subject::Figure(_) => {
            number.nano().ok_or_else(|| format!("{:?} is no decimal such as 0.05", number.0))
        }
    }
}

impl Rule {
    /// Holds the limit against figures.
    #[must_use]
    pub fn judge(&self, figures: &Figures, stage: Option<usize>, scenario: Option<&str>) -> ThresholdResult {
        let (found, n, low_n, unit, held) = match self.subject {
            Subject::Percentile(metric, percentile) => {
                let histogram = figures.distributions.get(metric);
                let found = histogram.percentile_us(percentile);
                let n = histogram.count();
                let held =
                    found.is_some_and(|us| if self.at_least { us >= self.limit } else { us <= self.limit });
                (found.map(|us| us as f64), n, n > 0 && percentile.is_low_n(n), Unit::Microseconds, held)
            }
            Subject::Figure(figure) => {
                let found = figures.value(figure);
                let held = match figure {
                    // The share that most runs are judged by is compared as a fraction.
                    Figure::ErrorRate if !self.at_least => {
                        figures.error_share().is_some_and(|share| !share.exceeds(self.limit))
                    }
                    _ => found.is_some_and(|value| {
                        let limit = self.limit as f64 / 1e9;
                        if self.at_least { value >= limit } else { value <= limit }
                    }),
                };
                (found, figures.counts.ended(), false, figure.definition().unit, held)
            }
        };
        let scale = if matches!(self.subject, Subject::Percentile(..)) { 1.0 } else { 1e9 };
        ThresholdResult {
            name: self.name.clone(),
            stage,
            scenario: scenario.map(str::to_owned),
            limit: self.limit as f64 / scale,
            at_least: self.at_least,
            found,
            unit,
            n,
            low_n,
            held,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evidence::record::ClientClass;

    fn figures(ok: u64, failed: u64, latency_us: u64) -> Figures {
        let mut figures = Figures { span_us: 1_000_000, ..Figures::default() };
        figures.counts.classes = [(ClientClass::Ok, ok), (ClientClass::HttpError, failed)].into();
        (0..ok).for_each(|_| figures.distributions.record(Metric::Latency, latency_us));
        figures
    }

    #[test]
    fn equality_is_within_a_limit_and_nothing_is_outside() {
        let given = Thresholds { p95_ms: 2, error_rate: Ppb::parse("0.2").unwrap(), ..Thresholds::default() };
        let rules = rules(&given, &[], 0, &mut Problems::default());
        let held = |figures: &Figures| {
            rules.iter().map(|rule| rule.judge(figures, None, None).held).collect::<Vec<_>>()
        };
        assert_eq!(held(&figures(800, 200, 2_000)), [true, true]);
        assert_eq!(held(&figures(799, 200, 2_001)), [false, false]);
        assert_eq!(held(&Figures::default()), [false, false]);
    }

    #[test]
    fn any_metric_and_figure_may_be_limited() {
        let limit =
            |metric: &str, percentile: Option<&str>, max: &str| crate::profile::model::ThresholdLimit {
                metric: metric.to_owned(),
                percentile: percentile.map(str::to_owned),
                max: Some(Number(max.to_owned())),
                min: None,
                scenario: None,
                stage: None,
                overall: false,
            };
        for (limit, good) in [
            (limit("latency", Some("p99.9"), "2s"), true),
            (limit("rps", None, "100.5"), true),
            (limit("ttft_p95", None, "2s"), true),
            (limit("ttft_service_p99.9", None, "2s"), true),
            (limit("ttft_q95", None, "2s"), false),
            (limit("rps_p95", None, "2"), false),
            (limit("ttft_p95", Some("p99"), "2s"), false),
            (limit("latency", None, "2s"), false),
            (limit("latency", Some("p95"), "2"), false),
            (limit("rps", Some("p95"), "2"), false),
            (limit("latncy", Some("p95"), "2s"), false),
        ] {
            let given = Thresholds { limits: vec![limit.clone()], ..Thresholds::default() };
            let mut problems = Problems::default();
            rules(&given, &[], 1, &mut problems);
            assert_eq!(problems.is_empty(), good, "{limit:?}: {problems:?}");
        }
    }
}

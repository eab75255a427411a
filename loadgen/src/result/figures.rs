//! What was counted and measured of one set of requests: a stage, a scenario in a stage, or a whole run.

use std::collections::BTreeMap;

use evidence::record::ClientClass;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use stats::{Fraction, Rate};

use super::distributions::Distributions;
use super::metric::{Figure, Metric};

/// Most different words that are counted one by one in [`Counts::details`]; the rest is counted under `other`.
pub const DETAILS_MAX: usize = 64;
const OTHER: &str = "other";

/// Tokens, each count by who counted it. Counts of different sources are never added.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenCounts {
    /// Successful answers with usage.
    pub with_usage: u64,
    /// Prompt tokens by usage.
    pub prompt: u64,
    /// Completion tokens by usage.
    pub completion: u64,
    /// Successful answers without usage.
    pub without_usage: u64,
    /// Events with output of those, counted by the client.
    pub counted: u64,
    /// Events with output of streams that had usage too.
    pub events_with_usage: u64,
    /// Completion tokens by usage of those streams.
    pub completion_of_streams: u64,
}

/// Everything that is a count. Sums close: planned = dropped + `not_offered` + sent + unsent classes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Counts {
    /// Requests that the load model asked for.
    pub planned: u64,
    /// Requests whose bytes were written to a connection.
    pub sent: u64,
    /// Requests that waited for the in-flight bound (policy delay); the wait is in their latency.
    pub delayed: u64,
    /// Ended requests by class, dropped and not offered ones included.
    pub classes: BTreeMap<ClientClass, u64>,
    /// Answers by HTTP status.
    pub statuses: BTreeMap<u16, u64>,
    /// What went wrong, by error code of the answer, failed check or detail; bounded, the rest is `other`.
    pub details: BTreeMap<String, u64>,
    /// Finish reasons of successful answers.
    pub finish_reasons: BTreeMap<String, u64>,
    /// Connections opened.
    pub connections: u64,
    /// Connections that carried a request of the part, those that were opened before it (in the warm-up) included.
    #[serde(default)]
    pub connections_used: u64,
    /// Requests whose kept connection turned out closed.
    pub reconnected: u64,
    /// Events of streams.
    pub events: u64,
    /// Bytes of answers' bodies.
    pub bytes_in: u64,
    /// Bytes of requests' bodies.
    pub bytes_out: u64,
    /// Tokens of successful answers.
    pub tokens: TokenCounts,
    /// Price of those tokens, 10⁻⁹ of the currency; `None` without a price table.
    pub cost_nano: Option<u64>,
    /// Sent requests that succeeded within every limit of the SLO; `None` without one.
    pub good: Option<u64>,
}

impl Counts {
    /// Requests of a class.
    #[must_use]
    pub fn class(&self, class: ClientClass) -> u64 {
        self.classes.get(&class).copied().unwrap_or_default()
    }

    /// Successful requests.
    #[must_use]
    pub fn ok(&self) -> u64 {
        self.class(ClientClass::Ok)
    }

    /// Requests that ended, however: all classes but dropped and not offered.
    #[must_use]
    pub fn ended(&self) -> u64 {
        let all: u64 = self.classes.values().sum();
        all - self.class(ClientClass::Dropped) - self.class(ClientClass::NotOffered)
    }

    /// Requests that failed by the target's fault or the generator's, cuts by plan or by the end of the run left out.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.classes.iter().filter(|(class, _)| is_failure(**class)).map(|(_, count)| *count).sum()
    }

    /// Counts a word of [`Counts::details`].
    pub fn detail(&mut self, word: &str) {
        add_bounded(&mut self.details, word, 1);
    }

    /// Counts a finish reason.
    pub fn finish_reason(&mut self, word: &str) {
        add_bounded(&mut self.finish_reasons, word, 1);
    }

    /// Adds the counts of another part of the run.
    pub fn merge(&mut self, other: &Self) {
        self.planned += other.planned;
        self.sent += other.sent;
        self.delayed += other.delayed;
        add_all(&mut self.classes, &other.classes);
        add_all(&mut self.statuses, &other.statuses);
        other.details.iter().for_each(|(word, count)| add_bounded(&mut self.details, word, *count));
        other
            .finish_reasons
            .iter()
            .for_each(|(word, count)| add_bounded(&mut self.finish_reasons, word, *count));
        self.connections += other.connections;
        self.connections_used += other.connections_used;
        self.reconnected += other.reconnected;
        self.events += other.events;
        self.bytes_in += other.bytes_in;
        self.bytes_out += other.bytes_out;
        let (own, theirs) = (&mut self.tokens, &other.tokens);
        own.with_usage += theirs.with_usage;
        own.prompt = own.prompt.saturating_add(theirs.prompt);
        own.completion = own.completion.saturating_add(theirs.completion);
        own.without_usage += theirs.without_usage;
        own.counted = own.counted.saturating_add(theirs.counted);
        own.events_with_usage += theirs.events_with_usage;
        own.completion_of_streams = own.completion_of_streams.saturating_add(theirs.completion_of_streams);
        self.cost_nano = sum(self.cost_nano, other.cost_nano);
        self.good = sum(self.good, other.good);
    }
}

/// Whether a class is a failure in `error_rate`.
#[must_use]
pub const fn is_failure(class: ClientClass) -> bool {
    use ClientClass as C;
    !matches!(class, C::Ok | C::Cancelled | C::Interrupted | C::Dropped | C::NotOffered)
}

fn sum(own: Option<u64>, theirs: Option<u64>) -> Option<u64> {
    match (own, theirs) {
        (Some(own), Some(theirs)) => Some(own.saturating_add(theirs)),
        (own, theirs) => own.or(theirs),
    }
}

fn add_all<K: Ord + Copy>(own: &mut BTreeMap<K, u64>, theirs: &BTreeMap<K, u64>) {
    theirs.iter().for_each(|(key, count)| *own.entry(*key).or_default() += count);
}

fn add_bounded(words: &mut BTreeMap<String, u64>, word: &str, count: u64) {
    if let Some(own) = words.get_mut(word) {
        *own += count;
    } else if words.len() < DETAILS_MAX {
        words.insert(word.to_owned(), count);
    } else {
        *words.entry(OTHER.to_owned()).or_default() += count;
    }
}

/// Counts and distributions of one set of requests over one span.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Figures {
    /// Span that rates are made over: the steady part of the stage, or the sum of those of all stages.
    pub span_us: u64,
    /// Counts.
    pub counts: Counts,
    /// Distributions by metric.
    pub distributions: Distributions,
}

impl Figures {
    /// Adds the figures of another set over the same span (another scenario, another shard).
    pub fn merge_same_span(&mut self, other: &Self) {
        self.span_us = self.span_us.max(other.span_us);
        self.counts.merge(&other.counts);
        self.distributions.merge(&other.distributions);
    }

    /// Adds the figures of a span that came after (another stage).
    pub fn merge_next_span(&mut self, other: &Self) {
        self.span_us += other.span_us;
        self.counts.merge(&other.counts);
        self.distributions.merge(&other.distributions);
    }

    /// Failed over ended, cuts by plan and by the end of the run left out; `None` when nothing ended.
    #[must_use]
    pub fn error_share(&self) -> Option<Fraction> {
        let failed = self.counts.failed();
        Fraction::new(failed, failed + self.counts.ok())
    }

    /// A figure of the table; `None` where there is nothing to make it from. Always finite.
    #[must_use]
    pub fn value(&self, figure: Figure) -> Option<f64> {
        let counts = &self.counts;
        let rate = |count| Some(Rate::new(count, self.span_us)?.per_second().milli() as f64 / 1_000.0);
        let share = |part, whole| Fraction::new(part, whole).map(Fraction::as_f64);
        // a quotient above 1 is no share
        let per = |count: u64, by: u64| (by > 0).then(|| count as f64 / by as f64);
        let tokens = &counts.tokens;
        let known = tokens.with_usage > 0;
        match figure {
            Figure::Rps => rate(counts.ended()),
            Figure::OkRps => rate(counts.ok()),
            Figure::PlannedRps => rate(counts.planned),
            Figure::Achieved => share(counts.sent.min(counts.planned), counts.planned),
            Figure::ErrorRate => self.error_share().map(Fraction::as_f64),
            Figure::Goodput => share(counts.good?, counts.sent),
            Figure::GoodputRps => rate(counts.good?),
            Figure::OutputTokensPerSecond => rate(if known { tokens.completion } else { return None }),
            Figure::PromptTokens => known.then_some(tokens.prompt as f64),
            Figure::CompletionTokens => known.then_some(tokens.completion as f64),
            Figure::CountedTokens => (tokens.without_usage > 0).then_some(tokens.counted as f64),
            Figure::TokensPerEvent => per(tokens.completion_of_streams, tokens.events_with_usage),
            Figure::Cost => Some(counts.cost_nano? as f64 / 1e9),
            Figure::BytesIn => Some(counts.bytes_in as f64),
            Figure::BytesOut => Some(counts.bytes_out as f64),
            Figure::RequestsPerConnection => per(counts.sent, counts.connections_used),
        }
    }

    /// Sum of latencies, for those who add figures up.
    #[must_use]
    pub fn latency_sum_us(&self) -> u128 {
        self.distributions.get(Metric::Latency).sum_us()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_set_has_no_figure_but_plain_counts() {
        let empty = Figures::default();
        for figure in Figure::ALL {
            let value = empty.value(*figure);
            let plain = matches!(figure, Figure::BytesIn | Figure::BytesOut);
            assert_eq!(value, plain.then_some(0.0), "{figure:?}");
        }
        let text = serde_json::to_string(&empty).unwrap();
        assert!(!text.contains("NaN") && !text.contains("inf"));
        assert_eq!(serde_json::from_str::<Figures>(&text).unwrap(), empty);
    }

    #[test]
    fn cuts_by_plan_are_no_failures() {
        let counts = Counts {
            classes: [
                (ClientClass::Ok, 6),
                (ClientClass::Cancelled, 3),
                (ClientClass::HttpError, 2),
                (ClientClass::Dropped, 5),
            ]
            .into(),
            ..Counts::default()
        };
        assert_eq!((counts.ended(), counts.failed()), (11, 2));
        let figures = Figures { span_us: 2_000_000, counts, ..Figures::default() };
        assert_eq!(figures.value(Figure::ErrorRate), Some(0.25));
        assert_eq!(figures.value(Figure::Rps), Some(5.5));
    }

    #[test]
    fn details_are_bounded_and_sum_up() {
        let mut counts = Counts::default();
        (0..1_000).for_each(|number| counts.detail(&number.to_string()));
        assert!(counts.details.len() <= DETAILS_MAX + 1);
        assert_eq!(counts.details.values().sum::<u64>(), 1_000);
        let mut merged = counts.clone();
        merged.merge(&counts);
        assert_eq!(merged.details.values().sum::<u64>(), 2_000);
    }
}

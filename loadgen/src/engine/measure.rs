//! From an ended request to figures: the only place where a request enters counts and distributions.

use evidence::record::{ClientClass, RequestRecord, TokenSource};

use super::Ended;
use super::turn_record::tpot_us;
use crate::defect::is_planted;
use crate::profile::model::Slo;
use crate::result::figures::is_failure;
use crate::result::{Counts, Figures, Mark, Metric, OverTime};

/// What judging one request needs beside it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Context<'a> {
    /// Goodput limits.
    pub slo: Option<&'a Slo>,
    /// Prices, 10⁻⁹ for a million tokens, prompt and completion.
    pub prices_nano: Option<(u64, u64)>,
    /// The in-flight bound held it back: its wait is no lateness.
    pub delayed: bool,
}

/// Adds the counts of a request, steady or not.
pub fn count(counts: &mut Counts, ended: &Ended, context: Context<'_>) {
    let record = &*ended.record;
    *counts.classes.entry(record.client_class).or_default() += 1;
    counts.sent += u64::from(record.sent_us.is_some());
    counts.delayed += u64::from(context.delayed);
    if let Some(status) = record.status {
        *counts.statuses.entry(status).or_default() += 1;
    }
    counts.connections += u64::from(record.connect_us.is_some());
    counts.connections_used += u64::from(ended.first_on_connection);
    counts.reconnected += u64::from(record.reconnected);
    counts.events += record.answer.as_ref().map_or(0, |answer| answer.events);
    counts.bytes_in += record.bytes_in;
    counts.bytes_out += record.bytes_out;
    if let Some(slo) = context.slo {
        *counts.good.get_or_insert(0) += u64::from(is_good(record, ended.output_events, slo));
    }
    if record.client_class != ClientClass::Ok {
        if is_failure(record.client_class) {
            let code = record.answer.as_ref().and_then(|answer| answer.error_code.as_deref());
            match record.failed_checks.first() {
                Some(check) => counts.detail(&format!("check {check}")),
                None => counts.detail(code.or(record.detail.as_deref()).unwrap_or("no detail")),
            }
        }
        return;
    }
    if let Some(reason) = record.answer.as_ref().and_then(|answer| answer.finish_reasons.values().next()) {
        counts.finish_reason(reason);
    }
    count_tokens(counts, ended, context.prices_nano);
}

fn count_tokens(counts: &mut Counts, ended: &Ended, prices_nano: Option<(u64, u64)>) {
    let Some(found) = ended.record.tokens else { return };
    let tokens = &mut counts.tokens;
    if found.source == TokenSource::Events {
        tokens.without_usage += 1;
        tokens.counted = tokens.counted.saturating_add(found.completion);
        return;
    }
    let prompt = found.prompt.unwrap_or_default();
    tokens.with_usage += 1;
    // What a server claims may be any number.
    tokens.prompt = tokens.prompt.saturating_add(prompt);
    tokens.completion = tokens.completion.saturating_add(found.completion);
    if ended.record.stream && ended.output_events > 0 {
        tokens.events_with_usage += ended.output_events;
        tokens.completion_of_streams = tokens.completion_of_streams.saturating_add(found.completion);
    }
    if let Some((for_prompt, for_completion)) = prices_nano {
        let price = u128::from(prompt) * u128::from(for_prompt)
            + u128::from(found.completion) * u128::from(for_completion);
        let cost = counts.cost_nano.get_or_insert(0);
        *cost = cost.saturating_add(u64::try_from(price / 1_000_000).unwrap_or(u64::MAX));
    }
}

fn is_good(record: &RequestRecord, output_events: u64, slo: &Slo) -> bool {
    // A limit on what an answer does not have is met: a JSON answer has no time per token.
    let within = |limit: Option<scenario::units::Micros>, found: Option<u64>| {
        limit.is_none_or(|limit| found.is_none_or(|us| us <= limit.us()))
    };
    record.client_class == ClientClass::Ok
        && within(slo.ttft, record.ttft_us())
        && within(slo.latency, record.latency_us())
        && within(slo.tpot, tpot_us(record, output_events))
}

/// Adds a request of the steady part: counts and distributions.
pub fn add(figures: &mut Figures, ended: &Ended, context: Context<'_>) {
    count(&mut figures.counts, ended, context);
    let all = &mut figures.distributions;
    let record = &*ended.record;
    let mut put = |metric, from: Option<u64>, to: Option<u64>| {
        if let (Some(from), Some(to)) = (from, to) {
            all.record(metric, to.saturating_sub(from));
        }
    };
    put(Metric::Lateness, lateness_from(record, context.delayed), ended.start_us);
    if context.delayed {
        put(Metric::Queue, record.planned_us, record.released_us);
    }
    if let Some(connect_us) = record.connect_us {
        put(Metric::Connect, Some(0), Some(connect_us));
        put(Metric::Dns, Some(0), Some(record.dns_us.unwrap_or_default()));
        put(Metric::Tls, Some(0), record.tls_us);
        put(Metric::Proxy, Some(0), ended.proxy_us);
    }
    match record.client_class {
        ClientClass::Ok => {}
        ClientClass::Cancelled => {
            let cut_us = record.cancel.and_then(|cancel| cancel.at_us);
            put(Metric::Cancel, ended.cancel_reached_us, cut_us);
            return;
        }
        class => {
            if is_failure(class) {
                put(Metric::Fail, record.planned_us, record.end_us);
            }
            return;
        }
    }
    put(Metric::Latency, headline_from(ended), record.end_us);
    put(Metric::Service, ended.start_us, record.end_us);
    put(Metric::Ttft, record.planned_us, record.first_content_us);
    put(Metric::TtftService, record.sent_us, record.first_content_us);
    put(Metric::FirstByte, record.sent_us, record.first_byte_us);
    put(Metric::Headers, record.sent_us, record.headers_us);
    put(Metric::Transfer, record.first_byte_us, record.end_us);
    if record.stream {
        put(Metric::FirstReasoning, record.planned_us, record.first_reasoning_us);
        put(Metric::Tpot, Some(0), tpot_us(record, ended.output_events));
        let rest = record.latency_us().zip(record.ttft_us()).map(|(total, ttft)| total.saturating_sub(ttft));
        let tokens = record.tokens.map(|tokens| tokens.completion);
        put(Metric::TpotSpec, Some(0), rest.zip(tokens).and_then(|(rest, tokens)| rest.checked_div(tokens)));
    }
}

/// Where headline latency begins. The planted defect `uncorrected-latency` begins it with sending, as tools do that are
/// blind to a stalled server.
fn headline_from(ended: &Ended) -> Option<u64> {
    if is_planted("uncorrected-latency") { ended.start_us } else { ended.record.planned_us }
}

fn lateness_from(record: &RequestRecord, delayed: bool) -> Option<u64> {
    if delayed { record.released_us } else { record.planned_us }
}

/// Adds a request to the windows over time.
pub fn add_over_time(windows: &mut OverTime, ended: &Ended, delayed: bool) {
    let record = &*ended.record;
    let ok = record.client_class == ClientClass::Ok;
    let latency = record.latency_us().filter(|_| ok);
    windows.ends.record(record.end_us.unwrap_or_default(), &record.client_class, latency);
    if let (true, Some(first_us)) = (ok, record.first_content_us) {
        windows.ttft.record(first_us, &Mark::Seen, record.ttft_us());
    }
    if let (Some(start_us), Some(from_us)) = (ended.start_us, lateness_from(record, delayed)) {
        windows.lateness.record(start_us, &Mark::Seen, Some(start_us.saturating_sub(from_us)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evidence::record::{AnswerFacts, Tokens};
    use scenario::identity::RequestId;

    fn ended(class: ClientClass, tokens: Option<Tokens>) -> Ended {
        let blank = RequestRecord::blank(0, RequestId::from_text("r"), true);
        let record = RequestRecord {
            planned_us: Some(100),
            released_us: Some(100),
            sent_us: Some(400),
            headers_us: Some(1_000),
            first_byte_us: Some(1_100),
            first_content_us: Some(2_000),
            last_content_us: Some(8_000),
            end_us: Some(9_000),
            connect_us: Some(200),
            client_class: class,
            tokens,
            answer: Some(AnswerFacts { error_code: Some("503".to_owned()), ..AnswerFacts::default() }),
            ..blank
        };
        Ended {
            tag: 0,
            record: Box::new(record),
            content: String::new(),
            output_events: 3,
            start_us: Some(150),
            http2: false,
            first_on_connection: false,
            proxy_us: None,
            cancel_reached_us: None,
        }
    }

    fn usage(completion: u64) -> Option<Tokens> {
        Some(Tokens { prompt: Some(10), completion, source: TokenSource::Usage })
    }

    #[test]
    fn the_total_begins_with_the_plan_and_has_the_connection_in_it() {
        let mut figures = Figures::default();
        add(&mut figures, &ended(ClientClass::Ok, usage(7)), Context::default());
        let only = |metric| figures.distributions.get(metric).max_us();
        assert_eq!(only(Metric::Latency), Some(8_900));
        assert_eq!(only(Metric::Service), Some(8_850));
        assert_eq!(only(Metric::Lateness), Some(50));
        assert_eq!(only(Metric::Ttft), Some(1_900));
        assert_eq!(only(Metric::TtftService), Some(1_600));
        assert_eq!((only(Metric::Headers), only(Metric::FirstByte)), (Some(600), Some(700)));
        assert_eq!((only(Metric::Connect), only(Metric::Transfer)), (Some(200), Some(7_900)));
        // By the tokens of usage, not by events: the server may send several in one.
        assert_eq!(only(Metric::Tpot), Some(1_000));
        assert_eq!(only(Metric::TpotSpec), Some(7_000 / 7));
    }

    #[test]
    fn failures_and_cuts_have_populations_of_their_own() {
        let mut figures = Figures::default();
        add(&mut figures, &ended(ClientClass::InBandError, usage(7)), Context::default());
        let only = |figures: &Figures, metric| figures.distributions.get(metric).max_us();
        assert_eq!((only(&figures, Metric::Latency), only(&figures, Metric::Ttft)), (None, None));
        assert_eq!(only(&figures, Metric::Fail), Some(8_900));
        assert_eq!(figures.counts.tokens, crate::result::TokenCounts::default());
        assert_eq!(figures.counts.details, [("503".to_owned(), 1)].into());
        for class in [ClientClass::Cancelled, ClientClass::Interrupted] {
            let mut figures = Figures::default();
            add(&mut figures, &ended(class, usage(7)), Context::default());
            assert_eq!((only(&figures, Metric::Latency), only(&figures, Metric::Fail)), (None, None));
        }
    }

    #[test]
    fn tokens_of_usage_and_own_counts_are_never_added_up() {
        let mut counts = Counts::default();
        let own = Some(Tokens { prompt: None, completion: 3, source: TokenSource::Events });
        for tokens in [usage(7), own, usage(5)] {
            count(&mut counts, &ended(ClientClass::Ok, tokens), Context::default());
        }
        let tokens = &counts.tokens;
        assert_eq!((tokens.with_usage, tokens.completion, tokens.prompt), (2, 12, 20));
        assert_eq!((tokens.without_usage, tokens.counted), (1, 3));
        // Tokens an event: of streams that had both.
        assert_eq!((tokens.events_with_usage, tokens.completion_of_streams), (6, 12));
    }

    #[test]
    fn instants_out_of_order_are_no_huge_spans() {
        let mut odd = ended(ClientClass::Ok, usage(7));
        (odd.record.planned_us, odd.record.end_us) = (Some(10_000), Some(5));
        let mut figures = Figures::default();
        add(&mut figures, &odd, Context::default());
        assert_eq!(figures.distributions.get(Metric::Latency).max_us(), Some(0));
        assert_eq!(figures.distributions.get(Metric::Lateness).max_us(), Some(0));
    }
}

//! What is written for one call, in order: the fault rule and the node's timing turned into steps (design section 8).
//!
//! | Action | SSE | JSON |
//! |---|---|---|
//! | `status` | the status with a JSON error body, at once, without a worker | same |
//! | `reset_before_headers`, `close_before_headers` | RST or FIN at once, without a worker | same |
//! | `delay_headers` | waits, then as usual | same |
//! | `delay_first_content` | headers at once, then the wait on top of TTFT | headers at once, then waits, then the body |
//! | `drop_first_content` | first content event left out | first token left out of content and log probabilities |
//! | `slow_tokens` | this interval between content events | TTFT plus this interval for every later token |
//! | `stall` | pauses after n content events (at most before the finish chunk) | pauses in the middle of the body |
//! | `cut_after_events` | n content events, then the end | half of the body: `clean` announces the half, else the whole |
//! | `cut_in_utf8` | n-1 events and part of the n-th | cut at the same character of the content |
//! | `omit_done` | no `[DONE]` | unchanged: there is none to leave out |
//! | `omit_usage` | no usage chunk | no member `usage` |
//! | `malformed_json` | as `malformed_sse` | the last third of the document missing, the length right |
//! | `malformed_sse` | the second content event (the first of one) has cut JSON | as `malformed_json` |
//! | `error_event` | one error event, `[DONE]`, in an event stream | same, an event stream too |
//! | `wrong_content_type` | `text/plain` | `text/plain` |
//! | `oversize_event` | the first content event is made this long | the document is made this long |

use scenario::draw::{ValueKey, in_range};
use scenario::fault::{Close, Cut, NodeFault, Stall};
use scenario::profile::Timing;

use super::answer::{Answer, JsonPlan};

/// A step of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The rule takes effect here; recorded before the bytes that show it.
    Hit,
    /// Waits, microseconds, counted from the end of the wait before.
    Wait(u64),
    /// Response headers of a 200; chunked without a length.
    Head {
        /// `Content-Type`.
        content_type: &'static str,
        /// `Content-Length`.
        length: Option<u64>,
    },
    /// A whole answer with an error status.
    ErrorAnswer(u16),
    /// Content event by index.
    Content(usize),
    /// The first bytes of a content event.
    ContentPart {
        /// Which event.
        index: usize,
        /// Bytes of it.
        bytes: usize,
    },
    /// Content event whose JSON is cut.
    Malformed(usize),
    /// First content event, padded to this many bytes.
    Oversize(u64),
    /// Finish chunk.
    Finish,
    /// Usage chunk.
    Usage,
    /// `[DONE]`.
    Done,
    /// Error event.
    ErrorEvent,
    /// End of a chunked body.
    Terminator,
    /// Part of the JSON document.
    Body {
        /// First byte.
        from: usize,
        /// End.
        to: usize,
    },
    /// Filler inside the content of a JSON document.
    Filler(u64),
}

/// Steps and what comes after them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    /// In order.
    pub steps: Vec<Step>,
    /// `Clean` keeps the connection.
    pub close: Close,
}

/// What times of one call are drawn from.
#[derive(Clone, Copy, Debug)]
pub struct Pace<'a> {
    /// Seed of the scenario.
    pub seed: u64,
    /// Node.
    pub node: &'a str,
    /// Request id, or what stands for it.
    pub key: &'a str,
    /// Attempt at the node.
    pub attempt: u64,
    /// Wait before the first content.
    pub ttft: Timing,
    /// Wait between content events.
    pub token_interval: Timing,
}

impl Pace<'_> {
    /// Time to first token of this call, microseconds.
    #[must_use]
    pub fn ttft_us(&self) -> u64 {
        self.drawn(self.ttft, "ttft", 0)
    }

    /// Wait before content event `event` (from 1), microseconds.
    #[must_use]
    pub fn interval_us(&self, event: usize) -> u64 {
        self.drawn(self.token_interval, "token_interval", event as u64)
    }

    fn drawn(&self, timing: Timing, purpose: &str, event: u64) -> u64 {
        if timing.min == timing.max {
            return timing.min.us();
        }
        let (seed, rule, request_id, attempt) = (self.seed, self.node, self.key, self.attempt);
        let key = ValueKey { seed, rule, purpose, request_id, attempt, event };
        in_range(key, timing.min.us(), timing.max.us())
    }
}

/// Name of an action in the file; equals `FaultAction::name` without building JSON for every hit.
#[must_use]
pub fn action_name(fault: &NodeFault) -> &'static str {
    match fault {
        NodeFault::Status(_) => "status",
        NodeFault::DelayHeaders(_) => "delay_headers",
        NodeFault::DelayFirstContent(_) => "delay_first_content",
        NodeFault::DropFirstContent(_) => "drop_first_content",
        NodeFault::SlowTokens(_) => "slow_tokens",
        NodeFault::Stall(_) => "stall",
        NodeFault::CutAfterEvents(_) => "cut_after_events",
        NodeFault::CutInUtf8(_) => "cut_in_utf8",
        NodeFault::OmitDone(_) => "omit_done",
        NodeFault::OmitUsage(_) => "omit_usage",
        NodeFault::MalformedJson(_) => "malformed_json",
        NodeFault::MalformedSse(_) => "malformed_sse",
        NodeFault::ErrorEvent(_) => "error_event",
        NodeFault::ResetBeforeHeaders(_) => "reset_before_headers",
        NodeFault::CloseBeforeHeaders(_) => "close_before_headers",
        NodeFault::WrongContentType(_) => "wrong_content_type",
        NodeFault::OversizeEvent(_) => "oversize_event",
    }
}

/// Whether an action only slows the answer: such a call still counts as completed.
#[must_use]
pub fn only_slows(fault: &NodeFault) -> bool {
    matches!(
        fault,
        NodeFault::DelayHeaders(_)
            | NodeFault::DelayFirstContent(_)
            | NodeFault::SlowTokens(_)
            | NodeFault::Stall(_)
    )
}

/// The script of an action that answers at once and needs no worker, so that its hits don't depend on load.
#[must_use]
pub fn immediate(fault: &NodeFault) -> Option<Script> {
    let steps = |last: Option<Step>| std::iter::once(Step::Hit).chain(last).collect();
    match fault {
        NodeFault::Status(status) => {
            Some(Script { steps: steps(Some(Step::ErrorAnswer(*status))), close: Close::Clean })
        }
        NodeFault::ResetBeforeHeaders(true) => Some(Script { steps: steps(None), close: Close::Rst }),
        NodeFault::CloseBeforeHeaders(true) => Some(Script { steps: steps(None), close: Close::Fin }),
        _ => None,
    }
}

fn content_type(fault: Option<&NodeFault>, usual: &'static str) -> &'static str {
    match fault {
        Some(NodeFault::WrongContentType(true)) => "text/plain",
        _ => usual,
    }
}

fn open(fault: Option<&NodeFault>, steps: &mut Vec<Step>) {
    match fault {
        Some(NodeFault::DelayHeaders(time)) => steps.extend([Step::Hit, Step::Wait(time.us())]),
        Some(NodeFault::WrongContentType(true)) => steps.push(Step::Hit),
        _ => {}
    }
}

const EVENT_STREAM: &str = "text/event-stream";

/// The steps of an SSE answer.
#[must_use]
pub fn stream(answer: &Answer, pace: &Pace<'_>, fault: Option<&NodeFault>) -> Script {
    let tokens = answer.tokens();
    let mut steps = Vec::with_capacity(2 * tokens + 8);
    open(fault, &mut steps);
    steps.push(Step::Head { content_type: content_type(fault, EVENT_STREAM), length: None });
    if let Some(NodeFault::DelayFirstContent(time)) = fault {
        steps.extend([Step::Hit, Step::Wait(time.us())]);
    }
    steps.push(Step::Wait(pace.ttft_us()));
    if let Some(NodeFault::ErrorEvent(true)) = fault {
        steps.extend([Step::Hit, Step::ErrorEvent, Step::Done, Step::Terminator]);
        return Script { steps, close: Close::Clean };
    }
    if let Some(close) = content_events(answer, pace, fault, &mut steps) {
        if close == Close::Clean {
            steps.push(Step::Terminator);
        }
        return Script { steps, close };
    }
    steps.push(Step::Finish);
    steps.push(if matches!(fault, Some(NodeFault::OmitUsage(true))) { Step::Hit } else { Step::Usage });
    steps.push(if matches!(fault, Some(NodeFault::OmitDone(true))) { Step::Hit } else { Step::Done });
    steps.push(Step::Terminator);
    Script { steps, close: Close::Clean }
}

/// Adds the content events; answers how the stream is cut among or behind them, if it is.
fn content_events(
    answer: &Answer,
    pace: &Pace<'_>,
    fault: Option<&NodeFault>,
    steps: &mut Vec<Step>,
) -> Option<Close> {
    let tokens = answer.tokens();
    for index in 0..tokens {
        match fault {
            Some(NodeFault::CutAfterEvents(cut)) if cut.events == index as u64 => {
                steps.push(Step::Hit);
                return Some(cut.close);
            }
            Some(NodeFault::Stall(stall)) if stall.after_events == index as u64 => pause(stall, steps),
            Some(NodeFault::SlowTokens(_)) if index == 1 => steps.push(Step::Hit),
            _ => {}
        }
        if index > 0 {
            let wait_us = match fault {
                Some(NodeFault::SlowTokens(time)) => time.us(),
                _ => pace.interval_us(index),
            };
            steps.push(Step::Wait(wait_us));
        }
        match fault {
            Some(NodeFault::CutInUtf8(cut)) if utf8_index(cut, tokens) == index => {
                steps.extend([Step::Hit, Step::ContentPart { index, bytes: answer.event_cut(index) }]);
                return Some(cut.close);
            }
            Some(NodeFault::DropFirstContent(true)) if index == 0 => steps.push(Step::Hit),
            Some(NodeFault::OversizeEvent(bytes)) if index == 0 => {
                steps.extend([Step::Hit, Step::Oversize(*bytes)]);
            }
            Some(NodeFault::MalformedSse(true) | NodeFault::MalformedJson(true))
                if index == 1.min(tokens - 1) =>
            {
                steps.extend([Step::Hit, Step::Malformed(index)]);
            }
            _ => steps.push(Step::Content(index)),
        }
    }
    match fault {
        // Numbers beyond the answer take effect behind its last content event.
        Some(NodeFault::CutAfterEvents(cut)) => {
            steps.push(Step::Hit);
            return Some(cut.close);
        }
        Some(NodeFault::CutInUtf8(cut)) => {
            steps.push(Step::Hit);
            return Some(cut.close);
        }
        Some(NodeFault::Stall(stall)) if stall.after_events >= tokens as u64 => pause(stall, steps),
        // One token or none: there is no interval to slow, or no event to spoil, but the rule was met.
        Some(NodeFault::SlowTokens(_)) if tokens < 2 => steps.push(Step::Hit),
        Some(
            NodeFault::DropFirstContent(true)
            | NodeFault::OversizeEvent(_)
            | NodeFault::MalformedSse(true)
            | NodeFault::MalformedJson(true),
        ) if tokens == 0 => steps.push(Step::Hit),
        _ => {}
    }
    None
}

fn pause(stall: &Stall, steps: &mut Vec<Step>) {
    steps.extend([Step::Hit, Step::Wait(stall.pause.us())]);
}

/// Index of the event that is cut: `events` counts from 1 here, and the last one stands for all beyond.
fn utf8_index(cut: &Cut, tokens: usize) -> usize {
    usize::try_from(cut.events.saturating_sub(1)).unwrap_or(usize::MAX).min(tokens.saturating_sub(1))
}

/// The steps of a JSON answer that was rendered to `plan`.
#[must_use]
pub fn json(answer: &Answer, plan: JsonPlan, pace: &Pace<'_>, fault: Option<&NodeFault>) -> Script {
    if let Some(NodeFault::ErrorEvent(true)) = fault {
        return stream(answer, pace, fault);
    }
    let (length, half) = (plan.length, plan.length / 2);
    let head = |announced: usize| Step::Head {
        content_type: content_type(fault, "application/json"),
        length: Some(announced as u64),
    };
    let body = |from: usize, to: usize| Step::Body { from, to };
    let mut steps = Vec::with_capacity(8);
    open(fault, &mut steps);
    let ttft = Step::Wait(pace.ttft_us());
    let mut close = Close::Clean;
    match fault {
        Some(NodeFault::DelayFirstContent(time)) => {
            steps.extend([head(length), Step::Hit, Step::Wait(time.us()), ttft, body(0, length)]);
        }
        Some(NodeFault::SlowTokens(time)) => {
            let later = answer.tokens().saturating_sub(1) as u64;
            let slow_us = time.us().saturating_mul(later);
            steps.extend([ttft, Step::Hit, Step::Wait(slow_us), head(length), body(0, length)]);
        }
        Some(NodeFault::Stall(stall)) => {
            let wait = Step::Wait(stall.pause.us());
            steps.extend([ttft, head(length), body(0, half), Step::Hit, wait, body(half, length)]);
        }
        Some(NodeFault::CutAfterEvents(cut)) => {
            close = cut.close;
            steps.extend(cut_json(half, cut.close, head, ttft, length));
        }
        Some(NodeFault::CutInUtf8(cut)) => {
            close = cut.close;
            let at = match answer.tokens() {
                0 => half,
                tokens => answer.json_cut(plan, utf8_index(cut, tokens)),
            };
            steps.extend(cut_json(at, cut.close, head, ttft, length));
        }
        Some(NodeFault::MalformedJson(true) | NodeFault::MalformedSse(true)) => {
            let cut = length - length / 3;
            steps.extend([ttft, Step::Hit, head(cut), body(0, cut)]);
        }
        Some(NodeFault::OversizeEvent(bytes)) => {
            let filler = bytes.saturating_sub(length as u64);
            let announced = Step::Head {
                content_type: "application/json",
                length: Some((length as u64).saturating_add(filler)),
            };
            let start = plan.content_start;
            let filled = [body(0, start), Step::Filler(filler), body(start, length)];
            steps.extend([ttft, Step::Hit, announced]);
            steps.extend(filled);
        }
        Some(NodeFault::OmitUsage(true) | NodeFault::OmitDone(true) | NodeFault::DropFirstContent(true)) => {
            steps.extend([ttft, Step::Hit, head(length), body(0, length)]);
        }
        _ => steps.extend([ttft, head(length), body(0, length)]),
    }
    Script { steps, close }
}

/// A clean cut announces the shorter length, so its rule shows in the headers already.
fn cut_json(at: usize, close: Close, head: impl Fn(usize) -> Step, ttft: Step, length: usize) -> [Step; 4] {
    let body = Step::Body { from: 0, to: at };
    match close {
        Close::Clean => [ttft, Step::Hit, head(at), body],
        Close::Fin | Close::Rst => [ttft, head(length), body, Step::Hit],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use scenario::units::Micros;

    const TTFT: Timing = Timing { min: Micros::from_ms(10), max: Micros::from_ms(90) };
    const INTERVAL: Timing = Timing { min: Micros::from_ms(1), max: Micros::from_ms(30) };

    fn pace(key: &str, attempt: u64) -> Pace<'_> {
        Pace { seed: 42, node: "node-0", key, attempt, ttft: TTFT, token_interval: INTERVAL }
    }

    fn answer(tokens: u64) -> Answer {
        let body = format!(r#"{{"messages":[{{"content":"hi"}}],"max_tokens":{tokens},"stream":true}}"#);
        Answer::new(&super::super::request::read(body.as_bytes(), None).unwrap(), 42, 0)
    }

    fn actions() -> Vec<NodeFault> {
        let cut = |close| Cut { events: 5, close };
        vec![
            NodeFault::DelayHeaders(Micros::from_ms(1)),
            NodeFault::DelayFirstContent(Micros::from_ms(1)),
            NodeFault::DropFirstContent(true),
            NodeFault::SlowTokens(Micros::from_ms(1)),
            NodeFault::Stall(Stall { after_events: 5, pause: Micros::from_ms(1) }),
            NodeFault::CutAfterEvents(cut(Close::Clean)),
            NodeFault::CutAfterEvents(cut(Close::Rst)),
            NodeFault::CutInUtf8(cut(Close::Fin)),
            NodeFault::OmitDone(true),
            NodeFault::OmitUsage(true),
            NodeFault::MalformedJson(true),
            NodeFault::MalformedSse(true),
            NodeFault::ErrorEvent(true),
            NodeFault::WrongContentType(true),
            NodeFault::OversizeEvent(1_000),
        ]
    }

    #[test]
    fn waits_are_the_documented_draws() {
        let drawn = |purpose, attempt, event, low: u64, high: u64| {
            let key = ValueKey { seed: 42, rule: "node-0", purpose, request_id: "t-1", attempt, event };
            in_range(key, low, high)
        };
        for attempt in 1..4 {
            let script = stream(&answer(6), &pace("t-1", attempt), None);
            let waits: Vec<u64> = script
                .steps
                .iter()
                .filter_map(|step| if let Step::Wait(time_us) = step { Some(*time_us) } else { None })
                .collect();
            let mut expected = vec![drawn("ttft", attempt, 0, 10_000, 90_000)];
            expected.extend((1..6).map(|event| drawn("token_interval", attempt, event, 1_000, 30_000)));
            assert_eq!(waits, expected);
        }
    }

    #[test]
    fn every_action_is_hit_once_whatever_the_length() {
        let null = br#"{"messages":[],"enforced_tokens":{"tokens":null}}"#;
        let none = Answer::new(&super::super::request::read(null, None).unwrap(), 42, 0);
        for answer in [none, answer(1), answer(2), answer(5), answer(6), answer(40)] {
            for action in &actions() {
                let mut body = Vec::new();
                let plan = answer.json(true, &mut body);
                for script in [
                    stream(&answer, &pace("t-1", 1), Some(action)),
                    json(&answer, plan, &pace("t-1", 1), Some(action)),
                ] {
                    let hits = script.steps.iter().filter(|step| **step == Step::Hit).count();
                    assert_eq!(hits, 1, "{action:?} with {} tokens: {script:?}", answer.tokens());
                }
            }
        }
    }

    #[test]
    fn action_names_are_those_of_the_file() {
        let at_once = [
            NodeFault::Status(500),
            NodeFault::ResetBeforeHeaders(true),
            NodeFault::CloseBeforeHeaders(true),
        ];
        for action in actions().into_iter().chain(at_once) {
            let expected = scenario::fault::FaultAction::Node(action.clone()).name();
            assert_eq!(action_name(&action), expected);
        }
    }
}

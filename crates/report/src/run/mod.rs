//! The report of one run of the runner: an HTML page, Markdown for a pull request, and JUnit.

mod junit;
mod markdown;
pub mod measurements;
mod page;
mod plots;
mod tables;
mod timeline;

pub use junit::junit;
pub use markdown::markdown;
pub use page::page;

use evidence::assertion::{Assertions, Status};
use evidence::event::{Event, EventKind};
use evidence::exit::Outcome;
use evidence::summary::Summary;

use crate::chart::Tone;

/// Everything a report of a run is made from. All of it comes from the run directory.
#[derive(Debug)]
pub struct RunReport<'a> {
    /// `summary.json`.
    pub summary: &'a Summary,
    /// `assertions.json`.
    pub assertions: &'a Assertions,
    /// `events.jsonl`.
    pub events: &'a [Event],
    /// Unix time of offset 0 of the events, microseconds.
    pub started_unix_us: u64,
    /// Failures, in the order in which they should be read.
    pub failures: Vec<FailureLine>,
    /// Failures that have no bundle.
    pub failures_dropped: u64,
    /// The requests that were sent.
    pub requests: Box<dyn Requests + 'a>,
    /// Limits of the scenario, each with its text (`ttft_p95`, `2s`).
    pub limits: Vec<(String, String)>,
}

/// One failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailureLine {
    /// Load request id, or `_run.<assertion>.<n>`.
    pub key: String,
    /// Bundle, relative to the run directory.
    pub file: String,
    /// Class of the request, if it is about one.
    pub class: Option<String>,
    /// What was found: assertion, reason, sentence.
    pub found: Vec<(String, String, String)>,
    /// Command that replays it.
    pub repro: String,
}

/// Requests that are shown one by one, as often as somebody asks: a million of them need not be held.
pub trait Requests: std::fmt::Debug {
    /// Shows each.
    fn each(&self, see: &mut dyn FnMut(&RequestPoint<'_>));
}

impl Requests for Vec<RequestPoint<'_>> {
    fn each(&self, see: &mut dyn FnMut(&RequestPoint<'_>)) {
        self.iter().for_each(see);
    }
}

/// What plots need of one request; times on loadgen's clock, microseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestPoint<'a> {
    /// When it should have started.
    pub planned_us: u64,
    /// When it ended.
    pub end_us: u64,
    /// Its class (`success`, …).
    pub class: &'a str,
    /// TTFT, of successes only.
    pub ttft_us: Option<u64>,
    /// Total latency, of successes only.
    pub latency_us: Option<u64>,
}

impl RunReport<'_> {
    /// What is added to a time on loadgen's clock to get one on the runner's. The two are laid together at the start
    /// of the first step, which the runner commands and loadgen reports: they differ by the delay of a pipe.
    pub(crate) fn clock_shift_us(&self) -> u64 {
        let mut commanded = None;
        for event in self.events {
            match event.event {
                EventKind::StepStarted { step: 0, .. } => commanded = commanded.or(Some(event.at_us)),
                EventKind::StepEnded { step: 0, started_us, .. } => {
                    return commanded.unwrap_or_default().saturating_sub(started_us);
                }
                _ => {}
            }
        }
        commanded.unwrap_or_default()
    }

    /// End of the run on the runner's clock.
    pub(crate) fn end_us(&self) -> u64 {
        self.events.iter().map(|event| event.at_us).max().unwrap_or_default()
    }
}

/// Colour of a verdict.
pub(crate) const fn verdict_tone(verdict: Outcome) -> Tone {
    match verdict {
        Outcome::Pass => Tone::Good,
        Outcome::Fail | Outcome::Regression | Outcome::Internal => Tone::Bad,
        Outcome::Usage
        | Outcome::Invalid
        | Outcome::Unknown
        | Outcome::Environment
        | Outcome::Interrupted => Tone::Doubt,
    }
}

/// What a verdict says, in one sentence (design section 7).
pub(crate) const fn verdict_words(verdict: Outcome) -> &'static str {
    match verdict {
        Outcome::Pass => "Every applicable assertion looked at enough and held.",
        Outcome::Fail => "At least one assertion or limit was broken.",
        Outcome::Usage => "The command or the scenario was wrong; nothing was started.",
        Outcome::Invalid => "The load itself was not what was planned, so nothing is said about Devshard.",
        Outcome::Unknown => "Evidence is missing or too little happened to judge.",
        Outcome::Environment => "The environment failed, so nothing is said about Devshard.",
        Outcome::Regression => "A measurement became worse than its baseline.",
        Outcome::Internal => "A bug of the tester was hit; nothing here should be relied upon.",
        Outcome::Interrupted => "The run was stopped by a signal; its artifacts are partial.",
    }
}

/// Colour of an assertion's status.
pub(crate) const fn status_tone(status: Status) -> Tone {
    match status {
        Status::Pass => Tone::Good,
        Status::Fail => Tone::Bad,
        Status::Unknown => Tone::Doubt,
        Status::NotApplicable => Tone::Quiet,
    }
}

/// The word of a status.
pub(crate) const fn status_word(status: Status) -> &'static str {
    match status {
        Status::Pass => "pass",
        Status::Fail => "fail",
        Status::Unknown => "unknown",
        Status::NotApplicable => "n/a",
    }
}

/// Which Devshard ran where, in words.
pub(crate) fn devshard_words(summary: &Summary) -> String {
    let stack = &summary.stack;
    let personality = stack.personality.as_ref().map(|name| format!(", personality {name}"));
    let defect = stack.defect.as_ref().map(|name| format!(", planted defect {name}"));
    format!(
        "{} Devshard{}{} on {}, {}",
        stack.devshard,
        personality.unwrap_or_default(),
        defect.unwrap_or_default(),
        stack.provider,
        stack.storage
    )
}

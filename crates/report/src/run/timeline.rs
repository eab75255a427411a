//! What happened when: phases, load steps, rules, actions, services and drain on one axis.

use evidence::event::{Event, EventKind, Phase};

use super::RunReport;
use crate::chart::Tone;
use crate::chart::axis::Axis;
use crate::html::{Cell, escape, table};
use crate::units;

/// Events listed below the lanes; the rest is in `events.jsonl`.
const LISTED_MAX: usize = 60;

/// A span on a lane; without an end it lasts to the end of the run.
struct Bar {
    from_us: u64,
    to_us: Option<u64>,
    tone: Tone,
    text: String,
}

/// An instant on a lane.
struct Tick {
    at_us: u64,
    tone: Tone,
    text: String,
}

#[derive(Default)]
struct Lane {
    bars: Vec<Bar>,
    ticks: Vec<Tick>,
}

impl Lane {
    fn close(&mut self, at_us: u64) {
        if let Some(bar) = self.bars.last_mut() {
            bar.to_us.get_or_insert(at_us);
        }
    }

    fn tick(&mut self, at_us: u64, tone: Tone, text: String) {
        self.ticks.push(Tick { at_us, tone, text });
    }
}

/// Lanes and the list below them; nothing for a run without events.
#[must_use]
pub(super) fn timeline(report: &RunReport<'_>) -> String {
    let end_us = report.end_us();
    if end_us == 0 {
        return String::new();
    }
    let axis = Axis::until("seconds since the run began", end_us as f64 / 1e6, |s| {
        format!("{} s", units::trimmed(s, 2))
    });
    let lanes: String = lanes(report.events)
        .iter()
        .filter(|(_, lane)| !lane.bars.is_empty() || !lane.ticks.is_empty())
        .map(|(name, lane)| {
            format!("<div class=\"name\">{name}</div><div class=\"lane\">{}</div>\n", lane_html(lane, end_us))
        })
        .collect();
    let labels: String = axis
        .ticks()
        .map(|(place, text)| format!("<span style=\"left:{:.2}%\">{}</span>", place * 100.0, escape(&text)))
        .collect();
    format!("<div class=\"lanes\">{lanes}<div></div><div class=\"xs\">{labels}</div></div>\n{}", list(report))
}

fn lanes(events: &[Event]) -> [(&'static str, Lane); 6] {
    let mut lanes =
        ["Phases", "Load", "Faults", "Actions", "Services", "Drain"].map(|name| (name, Lane::default()));
    let mut phases = 0;
    for event in events {
        let at_us = event.at_us;
        let [phase_lane, load, faults, actions, services, drain] = &mut lanes;
        match &event.event {
            EventKind::PhaseStarted { phase } => {
                // Neighbours differ in tone; the word says which it is.
                let tone = if phases % 2 == 0 { Tone::High } else { Tone::Mid };
                phases += 1;
                let text = phase_word(*phase).to_owned();
                phase_lane.1.bars.push(Bar { from_us: at_us, to_us: None, tone, text });
            }
            EventKind::PhaseEnded { .. } => phase_lane.1.close(at_us),
            EventKind::StepStarted { step, concurrency } => {
                let text = format!("step {step}: {concurrency} in flight");
                load.1.bars.push(Bar { from_us: at_us, to_us: None, tone: Tone::High, text });
            }
            EventKind::StepEnded { .. } => load.1.close(at_us),
            // Several mocks take their rules within milliseconds: one bar from the first to the first that drops them.
            EventKind::ConfigApplied { purpose, .. } if purpose == "faults" && faults.1.bars.is_empty() => {
                let text = "rules in force".to_owned();
                faults.1.bars.push(Bar { from_us: at_us, to_us: None, tone: Tone::Doubt, text });
            }
            EventKind::ConfigApplied { purpose, .. } if purpose.contains("off") => faults.1.close(at_us),
            EventKind::ActionIntended { what, .. } => actions.1.tick(at_us, Tone::High, what.clone()),
            EventKind::ActionDone { error: Some(error), .. } => {
                actions.1.tick(at_us, Tone::Bad, format!("action failed: {error}"));
            }
            EventKind::ProcessReady { service, .. } => {
                services.1.tick(at_us, Tone::Good, format!("{service} ready"));
            }
            EventKind::ProcessExited { service, planned, .. } => {
                let (tone, word) = if *planned { (Tone::Quiet, "ended") } else { (Tone::Bad, "died") };
                services.1.tick(at_us, tone, format!("{service} {word}"));
            }
            EventKind::Probe { service, ready: false, .. } => {
                services.1.tick(at_us, Tone::Doubt, format!("{service} not ready"));
            }
            EventKind::DrainStep { what, escrow, .. } => {
                drain.1.tick(at_us, Tone::Mid, format!("{what} escrow {escrow}"));
            }
            _ => {}
        }
    }
    lanes
}

fn lane_html(lane: &Lane, end_us: u64) -> String {
    let percent = |us: u64| us.min(end_us) as f64 * 100.0 / end_us as f64;
    let mut out = String::new();
    for bar in &lane.bars {
        let (from, to) = (percent(bar.from_us), percent(bar.to_us.unwrap_or(end_us)));
        let text = escape(&bar.text);
        // A word that would be cut stays in the tooltip.
        let shown = if (to - from) * 1.1 > bar.text.chars().count() as f64 { text.as_str() } else { "" };
        out.push_str(&format!(
            "<span class=\"bar {}\" style=\"left:{from:.2}%;width:{:.2}%\" title=\"{text}, {}\">{shown}</span>",
            bar.tone.class(),
            to - from,
            units::span(bar.to_us.unwrap_or(end_us).saturating_sub(bar.from_us))
        ));
    }
    for tick in &lane.ticks {
        out.push_str(&format!(
            "<span class=\"tick {}\" style=\"left:{:.2}%\" title=\"{} at {}\"></span>",
            tick.tone.class(),
            percent(tick.at_us),
            escape(&tick.text),
            units::span(tick.at_us)
        ));
    }
    out
}

/// What people look for, as rows: everything but routine.
fn list(report: &RunReport<'_>) -> String {
    let told: Vec<(u64, String)> =
        report.events.iter().filter_map(|event| Some((event.at_us, sentence(&event.event)?))).collect();
    if told.is_empty() {
        return String::new();
    }
    let rows: Vec<Vec<Cell>> = told
        .iter()
        .take(LISTED_MAX)
        .map(|(at_us, text)| vec![Cell::number(units::span(*at_us)), Cell::text(text.as_str())])
        .collect();
    let left_out = told.len().saturating_sub(LISTED_MAX);
    let more = if left_out > 0 {
        format!("<p class=\"note\">{left_out} more in events.jsonl</p>")
    } else {
        String::new()
    };
    format!(
        "<details><summary>{} events besides the routine</summary>{}{more}</details>\n",
        told.len(),
        table(&["#at", "what"], &rows)
    )
}

fn sentence(event: &EventKind) -> Option<String> {
    Some(match event {
        EventKind::ProcessExited { service, code, signal, planned, .. } => {
            let how = match (code, signal) {
                (_, Some(signal)) => format!("by signal {signal}"),
                (Some(code), _) => format!("with code {code}"),
                _ => "for an unknown reason".to_owned(),
            };
            let asked = if *planned { "as planned" } else { "although nobody asked for it" };
            format!("{service} ended {how}, {asked}")
        }
        EventKind::Probe { service, ready, detail, .. } => {
            let detail = detail.as_ref().map(|detail| format!(": {detail}")).unwrap_or_default();
            format!("{service} {}{detail}", if *ready { "is ready" } else { "is not ready" })
        }
        EventKind::ConfigApplied { mock, answered, read_back, purpose, .. } if answered != read_back => {
            format!("{mock} answered another configuration than it gave back ({purpose})")
        }
        EventKind::ActionIntended { what, .. } => format!("action: {what}"),
        EventKind::ActionDone { error: Some(error), action, .. } => {
            format!("action {action} failed: {error}")
        }
        EventKind::BroughtBack { service } => format!("{service} was brought back for the drain"),
        EventKind::StepStarted { step, concurrency } => {
            format!("step {step} begins, {concurrency} in flight")
        }
        EventKind::StepEnded { step, released, .. } => {
            format!("step {step} ends, {} requests released", units::count(*released))
        }
        EventKind::DrainStep { what, escrow, status, detail } => {
            let status = status.map_or_else(|| "no answer".to_owned(), |status| status.to_string());
            let detail = detail.as_ref().map(|detail| format!(", {detail}")).unwrap_or_default();
            format!("{what} of escrow {escrow}: {status}{detail}")
        }
        EventKind::EvidenceMissing { what, why } => format!("evidence missing: {what}: {why}"),
        EventKind::ClockMoved { by_us } => format!("the wall clock moved by {} ms", by_us / 1_000),
        EventKind::Signal { signal } => format!("{signal} received"),
        EventKind::EnvironmentFailed { message, .. } => format!("environment failed: {message}"),
        EventKind::Note { text } => text.clone(),
        _ => return None,
    })
}

const fn phase_word(phase: Phase) -> &'static str {
    match phase {
        Phase::Prepare => "prepare",
        Phase::Start => "start",
        Phase::Faults => "faults",
        Phase::Before => "before",
        Phase::Load => "load",
        Phase::Drain => "drain",
        Phase::Collect => "collect",
        Phase::Judge => "judge",
        Phase::Teardown => "teardown",
    }
}

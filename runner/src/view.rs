//! What people see while a run goes on: a live line on a terminal, stable lines otherwise. Everything goes to
//! standard error; results go to standard output.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use evidence::event::{EventKind, Phase};
use indicatif::{ProgressBar, ProgressStyle};
use report::live::Live;
use scenario::pipe::LoadgenLine;

/// Progress lines are printed at most this often without a terminal.
const LINE_EVERY_US: u64 = 2_000_000;
/// Columns of spinner, clock and the spaces between.
const BESIDE_LEN: usize = 12;

/// Prints a result. A reader that has gone (`| head -1`, a closed terminal) is no error of ours.
pub fn say(text: &str) {
    drop(writeln!(std::io::stdout(), "{text}"));
}

/// Prints progress or an error; the run goes on when nobody can read it any more.
pub fn tell(text: &str) {
    drop(writeln!(std::io::stderr(), "{text}"));
}

/// Live view of one run.
#[derive(Debug)]
pub struct View {
    bar: Option<ProgressBar>,
    quiet: bool,
    last_line_us: u64,
    last: Option<(u64, u64)>,
}

impl View {
    /// A bar on a terminal, lines otherwise, nothing when `quiet`.
    #[must_use]
    pub fn new(quiet: bool) -> Self {
        let terminal = std::io::stderr().is_terminal() && std::env::var_os("CI").is_none();
        let bar = (terminal && !quiet).then(|| {
            let bar = ProgressBar::new_spinner();
            if let Ok(style) = ProgressStyle::with_template("{spinner} {elapsed_precise} {msg}") {
                bar.set_style(style);
            }
            bar.enable_steady_tick(Duration::from_millis(120));
            bar
        });
        Self { bar, quiet, last_line_us: 0, last: None }
    }

    /// A line that stays.
    pub fn line(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.println(text),
            None if !self.quiet => tell(text),
            None => {}
        }
    }

    /// Shows what an event means to people, if anything.
    pub fn event(&mut self, event: &EventKind) {
        match event {
            EventKind::PhaseStarted { phase } => {
                if let Some(bar) = &self.bar {
                    bar.set_message(phase_words(*phase));
                }
            }
            EventKind::PhaseEnded { phase, took_us } => {
                let tenths = took_us / 100_000;
                self.line(&format!("  {:<44} {}.{} s", phase_words(*phase), tenths / 10, tenths % 10));
            }
            EventKind::ProcessExited { service, code, signal, planned: false, .. } => {
                self.line(&format!("  {service} ended unexpectedly (code {code:?}, signal {signal:?})"));
            }
            EventKind::EvidenceMissing { what, why } => self.line(&format!("  missing: {what}: {why}")),
            EventKind::EnvironmentFailed { message, .. } => self.line(&format!("  {message}")),
            EventKind::ClockMoved { by_us } => {
                self.line(&format!("  the wall clock moved by {} ms", by_us / 1_000));
            }
            EventKind::Signal { signal } => {
                self.line(&format!("  {signal}: stopping; once more ends at once"));
            }
            EventKind::Note { text } => self.line(&format!("  {text}")),
            _ => {}
        }
    }

    /// Shows load progress; `hits` are the fault hits read so far.
    pub fn progress(&mut self, line: &LoadgenLine, hits: u64) {
        let LoadgenLine::Progress { at_us, step, sent, done, in_flight, classes, ttft_p95_us } = line else {
            return;
        };
        let rate = self.last.map_or(0, |(then, before)| {
            let span = at_us.saturating_sub(then).max(1);
            done.saturating_sub(before) * 1_000_000 / span
        });
        self.last = Some((*at_us, *done));
        let errors = classes.iter().filter(|(class, _)| *class != "ok");
        let live = Live {
            stage: format!("step {step}"),
            rate,
            in_flight: *in_flight,
            done: Some((*done, *sent)),
            errors: errors.map(|(class, count)| (class.clone(), *count)).collect(),
            ttft_p95_us: *ttft_p95_us,
            extra: Some(format!("{hits} fault hits")),
            ..Live::default()
        };
        let text = report::live::line(&live, self.width());
        match &self.bar {
            Some(bar) => bar.set_message(text),
            None if !self.quiet && at_us.saturating_sub(self.last_line_us) >= LINE_EVERY_US => {
                self.last_line_us = *at_us;
                tell(&format!("  {text}"));
            }
            None => {}
        }
    }

    /// Columns for a live line beside spinner and clock; no limit without a terminal, where lines are read by programs.
    fn width(&self) -> usize {
        if self.bar.is_none() {
            return usize::MAX;
        }
        let size = rustix::termios::tcgetwinsize(std::io::stderr());
        let columns = size.map_or(80, |size| usize::from(size.ws_col));
        columns.saturating_sub(BESIDE_LEN).max(1)
    }

    /// Removes the live line.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// What a phase does, in words.
#[must_use]
pub const fn phase_words(phase: Phase) -> &'static str {
    match phase {
        Phase::Prepare => "prepare: scenario, plan, preflight",
        Phase::Start => "start: isolated stack, readiness, canary",
        Phase::Faults => "faults: apply, read back",
        Phase::Before => "before: snapshot",
        Phase::Load => "load: requests, cancels, actions",
        Phase::Drain => "drain: wait, sync, finalize",
        Phase::Collect => "collect: accounting, hits, logs, metrics",
        Phase::Judge => "judge: assertions, bundles, summary",
        Phase::Teardown => "teardown",
    }
}

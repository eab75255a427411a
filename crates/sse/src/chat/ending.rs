//! How a stream ended, as one word. A name for a combination of facts, not a judgement.

use serde::{Deserialize, Serialize};

use super::facts::StreamFacts;

/// The ending of a stream that was read until the peer closed it. For a stream that the client
/// itself cut, the word says how far it had come.
///
/// A stream in order ends as [`Ending::Done`], or as [`Ending::ErrorEvent`] when the server had to
/// give up after the first byte (contract gateway 4.6); all others break the grammar of a chat
/// stream in some way. `corpus/` has a stream for each word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ending {
    /// One terminal marker, nothing after it, no error before it, and every choice has a finish
    /// reason.
    Done,
    /// The last event is an error and there is no marker (fixture host-killed-mid-stream).
    ErrorEvent,
    /// An error event somewhere and one marker at the end (fixture ml-errevent-stream).
    ErrorThenDone,
    /// One marker at the end, but a choice without finish reason, or no choice at all: how a
    /// truncated answer looks when a gateway supplies the marker (fixture stream-partial-close).
    DoneWithoutFinish,
    /// Every choice finished, the marker is missing, and the input ended at an event boundary.
    FinishedWithoutDone,
    /// No marker, and more is missing than that: the answer is not complete, the input ended inside
    /// an event, or an error came and was not the last event.
    Truncated,
    /// Nothing but markers came after the first marker.
    RepeatedDone,
    /// Something else than a marker came after the first marker, complete or not.
    DataAfterDone,
    /// Not one event, whole, oversized or unfinished; comments may have come.
    Empty,
}

impl StreamFacts {
    /// The ending, from the facts alone, so that stored facts can be judged again.
    pub fn ending(&self) -> Ending {
        if self.done_count > 0 { self.ending_with_marker() } else { self.ending_without_marker() }
    }

    fn ending_with_marker(&self) -> Ending {
        let further_markers = self.done_count - 1;
        if self.events_after_done > further_markers || self.unfinished.is_some() {
            Ending::DataAfterDone
        } else if further_markers > 0 {
            Ending::RepeatedDone
        } else if self.error_events > 0 {
            Ending::ErrorThenDone
        } else if self.every_choice_finished() {
            Ending::Done
        } else {
            Ending::DoneWithoutFinish
        }
    }

    fn ending_without_marker(&self) -> Ending {
        let positions = self.events + self.oversize_events;
        if self.unfinished.is_some() {
            Ending::Truncated
        } else if positions == 0 {
            Ending::Empty
        } else if self.last_error_event == Some(positions - 1) {
            Ending::ErrorEvent
        } else if self.every_choice_finished() && self.error_events == 0 {
            Ending::FinishedWithoutDone
        } else {
            Ending::Truncated
        }
    }
}

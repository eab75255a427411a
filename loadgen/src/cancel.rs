//! The cancel point of a plan line while its request runs: when its phase is reached, and how it cuts.

use evidence::record::CancelFact;
use scenario::fault::Close;
use scenario::model::CancelPhase;
use scenario::plan::CancelPoint;

/// How far a request has come, as far as cancel points ask.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// The request is written.
    pub sent: bool,
    /// The headers are complete.
    pub headers: bool,
    /// Content has come; for JSON the first body byte.
    pub content: bool,
    /// Events that have come.
    pub events: u64,
}

/// What to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Go on.
    Wait,
    /// The phase is reached: cut after this many microseconds more; 0 = at once.
    CutAfter(u64),
}

/// The cancel point of one request.
#[derive(Clone, Debug)]
pub struct CancelWatch {
    point: Option<CancelPoint>,
    reached: bool,
    cut_us: Option<u64>,
}

impl CancelWatch {
    /// Watches for the point of a plan line.
    #[must_use]
    pub fn new(point: Option<CancelPoint>) -> Self {
        Self { point, reached: false, cut_us: None }
    }

    /// Whether the point lies inside the body, so that the body must be fed event by event.
    #[must_use]
    pub fn watches_body(&self) -> bool {
        !self.reached
            && self
                .point
                .is_some_and(|point| matches!(point.phase, CancelPhase::FirstContent | CancelPhase::NthEvent))
    }

    /// Looks at the progress; says once that the phase is reached.
    pub fn look(&mut self, progress: Progress) -> Step {
        let Some(point) = self.point.filter(|_| !self.reached) else { return Step::Wait };
        self.reached = match point.phase {
            CancelPhase::BeforeHeaders => progress.sent,
            CancelPhase::AfterHeaders => progress.headers,
            CancelPhase::FirstContent => progress.content,
            CancelPhase::NthEvent => progress.events >= point.event.max(1),
        };
        if self.reached { Step::CutAfter(point.after.us()) } else { Step::Wait }
    }

    /// How the connection is to be closed.
    #[must_use]
    pub fn close(&self) -> Close {
        self.point.map(|point| point.close).unwrap_or_default()
    }

    /// Notes the moment of the cut.
    pub fn cut(&mut self, at_us: u64) {
        self.cut_us = Some(at_us);
    }

    /// What the record says; `None` without a cancel point. A request that had ended first has no instant.
    #[must_use]
    pub fn fact(&self) -> Option<CancelFact> {
        let point = self.point?;
        Some(CancelFact { phase: point.phase, close: point.close, at_us: self.cut_us })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use scenario::units::Micros;

    #[test]
    fn each_phase_is_reached_once() {
        let sent = Progress { sent: true, ..Progress::default() };
        let headers = Progress { headers: true, ..sent };
        let events = Progress { events: 2, ..headers };
        let content = Progress { content: true, events: 3, ..headers };
        for (phase, event, order) in [
            (CancelPhase::BeforeHeaders, 0, [true, false, false, false]),
            (CancelPhase::AfterHeaders, 0, [false, true, false, false]),
            (CancelPhase::NthEvent, 2, [false, false, true, false]),
            (CancelPhase::NthEvent, 0, [false, false, true, false]),
            (CancelPhase::FirstContent, 0, [false, false, false, true]),
        ] {
            let point = CancelPoint { phase, event, after: Micros::from_us(7), close: Close::Rst };
            let mut watch = CancelWatch::new(Some(point));
            let cuts = [sent, headers, events, content].map(|now| watch.look(now) == Step::CutAfter(7));
            assert_eq!(cuts, order, "{phase:?}");
            assert_eq!(watch.fact().unwrap().at_us, None);
            watch.cut(9);
            assert_eq!(watch.fact().unwrap().at_us, Some(9));
        }
        assert_eq!(CancelWatch::new(None).look(content), Step::Wait);
        assert!(CancelWatch::new(None).fact().is_none());
    }
}

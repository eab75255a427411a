//! What one thread counted of one stage, and the whole that all of them make.

use crate::profile::resolve::{ScenarioPlan, StagePlan};
use crate::result::{Counts, Figures, Health, ScenarioFigures, StageResult};

/// One stage as one thread saw it.
#[derive(Clone, Debug, Default)]
pub struct StagePart {
    /// Start.
    pub started_us: u64,
    /// Last end.
    pub ended_us: u64,
    /// Planned instants from here on count.
    pub steady_from_us: u64,
    /// Up to here: the last arrival of a rate is planned at the very end.
    pub steady_until_us: u64,
    /// Steady figures by scenario.
    pub scenarios: Vec<Figures>,
    /// The others.
    pub outside: Counts,
    /// Most requests in flight.
    pub in_flight_max: u64,
    /// Why it ended early.
    pub stopped: Option<String>,
    /// CPU time of the process at its start, and at its end.
    pub cpu_us: (u64, u64),
}

impl StagePart {
    /// Whether a request planned at this instant counts.
    #[must_use]
    pub fn is_steady(&self, planned_us: u64) -> bool {
        (self.steady_from_us..=self.steady_until_us).contains(&planned_us)
    }

    /// Figures of all scenarios.
    #[must_use]
    pub fn total(&self) -> Figures {
        let mut total = Figures::default();
        self.scenarios.iter().for_each(|figures| total.merge_same_span(figures));
        total.span_us = self.span_us();
        total
    }

    /// Length of the steady part; one without an end lasted until the last end.
    #[must_use]
    pub fn span_us(&self) -> u64 {
        self.steady_until_us.min(self.ended_us.max(self.steady_from_us)).saturating_sub(self.steady_from_us)
    }

    /// Adds what another thread saw of the same stage.
    pub fn merge(&mut self, other: &Self) {
        self.started_us = self.started_us.min(other.started_us);
        self.ended_us = self.ended_us.max(other.ended_us);
        self.steady_until_us = self.steady_until_us.max(other.steady_until_us);
        for (own, theirs) in self.scenarios.iter_mut().zip(&other.scenarios) {
            own.merge_same_span(theirs);
        }
        self.outside.merge(&other.outside);
        self.in_flight_max += other.in_flight_max;
        if self.stopped.is_none() {
            self.stopped.clone_from(&other.stopped);
        }
        self.cpu_us = (self.cpu_us.0.min(other.cpu_us.0), self.cpu_us.1.max(other.cpu_us.1));
    }

    /// The result of the stage.
    #[must_use]
    pub fn result(
        self,
        index: usize,
        plan: &StagePlan,
        scenarios: &[ScenarioPlan],
        threads: u32,
    ) -> StageResult {
        let span_us = self.span_us();
        let total = self.total();
        let named = scenarios.iter().zip(self.scenarios);
        StageResult {
            index,
            name: plan.name.clone(),
            load: plan.load.clone(),
            started_us: self.started_us,
            ended_us: self.ended_us,
            steady_from_us: self.steady_from_us,
            steady_until_us: self.steady_from_us + span_us,
            total,
            scenarios: named
                .map(|(scenario, figures)| ScenarioFigures {
                    name: scenario.name.clone(),
                    figures: Figures { span_us, ..figures },
                })
                .collect(),
            outside: self.outside,
            in_flight_max: self.in_flight_max,
            stopped: self.stopped,
            passed: None,
            health: Health {
                cpu_us: self.cpu_us.1.saturating_sub(self.cpu_us.0),
                wall_us: self.ended_us.saturating_sub(self.started_us),
                threads,
                ..Health::default()
            },
        }
    }
}

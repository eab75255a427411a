//! The search for the highest stable level (design section 10): the runner owns it, because a level counts only when
//! the system has drained after it. Which level comes next is decided by `stats::next_level` over what
//! `verdict::levels` says about the levels so far, the same code that judges the run at its end.

use std::collections::BTreeMap;
use std::time::Duration;

use evidence::event::{EventKind, LevelFacts, LevelNode};
use evidence::rundir::RunReader;
use scenario::model::Search;
use stats::next_level::{Bracket, LevelRun, Next, Purpose, SearchPlan, next_level};
use verdict::levels::{self, Judged};

use super::dispatcher::Dispatcher;
use super::faults::{FaultConfigs, RulesOn};
use super::load::{Load, LoadEnd, Pause, StepFacts};
use super::run::{Stage, Synced};
use crate::collect::mocks::MockLogs;
use crate::error::RunnerError;
use crate::stack::{Context, Provider};

/// Looks for the records of a level that has just ended, and the pause between them: loadgen writes them in a thread.
const RECORD_LOOKS_MAX: u32 = 40;
const RECORD_PAUSE: Duration = Duration::from_millis(50);

/// One search.
pub(super) struct Searcher<'a> {
    stage: &'a Stage<'a>,
    search: &'a Search,
    plan: SearchPlan,
    load: Load<'a>,
    /// Plan lines that no level has used.
    left: u64,
    step: usize,
    cpu_us: u64,
    nodes: BTreeMap<String, (u64, u64)>,
    runs: Vec<LevelRun>,
}

impl<'a> Searcher<'a> {
    /// A search that has not begun.
    ///
    /// # Errors
    /// [`RunnerError::Usage`] for bounds that make no search.
    pub(super) fn new(stage: &'a Stage<'a>, search: &'a Search, load: Load<'a>) -> Result<Self, RunnerError> {
        let plan = levels::plan(search).map_err(|error| RunnerError::Usage(error.to_string()))?;
        let left = stage.prepared.info.resolved.requests_max;
        Ok(Self {
            stage,
            search,
            plan,
            load,
            left,
            step: 0,
            cpu_us: 0,
            nodes: BTreeMap::new(),
            runs: Vec::new(),
        })
    }

    /// Runs level after level until the boundary is found and confirmed, or nothing more can be learned.
    ///
    /// # Errors
    /// [`RunnerError`] when the run directory, the guard or a mock fails.
    pub(super) async fn run(
        mut self,
        provider: &mut dyn Provider,
        context: &mut Context<'_>,
        faults: &FaultConfigs,
        logs: &mut MockLogs,
    ) -> Result<LoadEnd, RunnerError> {
        let mut level = None;
        loop {
            match self.load.follow(provider, context, logs).await? {
                Pause::Ended(end) => return Ok(end),
                Pause::Ready => self.count_nodes(context.dispatcher).await.map(drop)?,
                Pause::StepEnded(ended) => {
                    let Some((level, purpose)) = level else { continue };
                    let step = Some(ended.step);
                    let synced = self.stage.drain_to_sync(step, provider, context, faults, logs).await?;
                    let facts = self.facts(level, &ended, &synced, context.dispatcher).await?;
                    context.dispatcher.through(logs.read(&self.stage.running.mocks)).await??;
                    self.judge(facts, purpose, context).await?;
                    faults.apply(RulesOn::All, self.stage.running, context.dispatcher, context.dir).await?;
                }
            }
            if context.dispatcher.signals == 0 {
                level = self.next(provider, context).await?;
            }
        }
    }

    /// Chooses the next level and starts it; without one, loadgen is told to write the rest and end.
    async fn next(
        &mut self,
        provider: &mut dyn Provider,
        context: &mut Context<'_>,
    ) -> Result<Option<(u32, Purpose)>, RunnerError> {
        let (level, purpose) = match next_level(&self.plan, &self.runs) {
            Next::Run { level, purpose } => (u32::try_from(level).unwrap_or(u32::MAX), purpose),
            end => {
                context.dispatcher.log(EventKind::Note { text: in_words(&end) })?;
                provider.tell_loadgen("end", context).await?;
                return Ok(None);
            }
        };
        let requests = self.search.requests_at(level);
        if requests > self.left {
            let text = format!(
                "the search needs {requests} more requests for level {level}, the plan has {}: raise max_requests",
                self.left
            );
            context.dispatcher.log(EventKind::Note { text })?;
            provider.tell_loadgen("end", context).await?;
            return Ok(None);
        }
        self.left -= requests;
        self.load.go(self.step, (level, Some(requests)), provider, context).await?;
        self.step += 1;
        Ok(Some((level, purpose)))
    }

    /// Gathers the facts of a level that has drained to (c).
    async fn facts(
        &mut self,
        level: u32,
        ended: &StepFacts,
        synced: &Synced<'_>,
        dispatcher: &mut Dispatcher,
    ) -> Result<LevelFacts, RunnerError> {
        let (drained, pending) = (synced.drained, synced.pending);
        let nodes = self.count_nodes(dispatcher).await?;
        let cpu_us = ended.health.cpu_us.saturating_sub(self.cpu_us);
        self.cpu_us = ended.health.cpu_us;
        Ok(LevelFacts {
            step: ended.step,
            level,
            wanted: self.search.requests_at(level),
            released: ended.released,
            load_us: ended.load_us,
            cpu_us,
            lateness_p99_us: ended.health.lateness_p99_us,
            drained,
            pending,
            nodes,
        })
    }

    /// What the nodes' capacity went through since the last look.
    async fn count_nodes(&mut self, dispatcher: &mut Dispatcher) -> Result<Vec<LevelNode>, RunnerError> {
        let stats = dispatcher
            .through(self.stage.running.mocks.openai_stats())
            .await?
            .map_err(RunnerError::environment)?;
        let mut changes = Vec::with_capacity(stats.nodes.len());
        for node in stats.nodes {
            let now = (node.execution.rejected + node.validation.rejected, node.saturated_us);
            let before = self.nodes.insert(node.name.clone(), now).unwrap_or_default();
            changes.push(LevelNode {
                name: node.name,
                refused: now.0.saturating_sub(before.0),
                waited_us: now.1.saturating_sub(before.1),
            });
        }
        Ok(changes)
    }

    /// Writes the facts and asks the verdict, once all records of the level can be read.
    async fn judge(
        &mut self,
        facts: LevelFacts,
        purpose: Purpose,
        context: &mut Context<'_>,
    ) -> Result<(), RunnerError> {
        let (level, step) = (facts.level, facts.step);
        context.dispatcher.log(EventKind::LevelEnded(facts))?;
        let reader = RunReader::new(context.dir.root());
        let mut judged = Vec::<Judged>::new();
        for _ in 0..RECORD_LOOKS_MAX {
            judged = levels::judge_so_far(&reader).map_err(|none| RunnerError::environment(none.0))?;
            let late =
                judged.last().is_some_and(|last| last.reasons.iter().any(|why| why.contains("are recorded")));
            if !late {
                break;
            }
            context.dispatcher.through(tokio::time::sleep(RECORD_PAUSE)).await?;
        }
        self.runs = judged.iter().map(|judged| judged.run).collect();
        let Some(last) = judged.last() else {
            return Err(RunnerError::Internal(format!("level {level} left no facts")));
        };
        let why = last.reasons.join("; ");
        let text = format!("level {level} (run {step}, {purpose:?}): {:?} {why}", last.run.outcome);
        context.dispatcher.log(EventKind::Note { text: text.trim_end().to_owned() })
    }
}

fn in_words(end: &Next) -> String {
    let ends = |bracket: &Bracket| {
        let level = |level: Option<u64>| level.map_or_else(|| "none".to_owned(), |level| level.to_string());
        format!(
            "highest stable {}, lowest unstable {}",
            level(bracket.highest_good),
            level(bracket.lowest_bad)
        )
    };
    match end {
        Next::Done(bracket) => format!("search done: {}", ends(bracket)),
        Next::NonePassed(_) => "search ended: no level is stable".to_owned(),
        Next::Limited { level, known } => {
            format!("search ended: generator or mocks were the limit at level {level}; {}", ends(known))
        }
        Next::RunsUsedUp(bracket) => format!("search ended: all runs used up; {}", ends(bracket)),
        Next::Run { level, .. } => format!("search goes on with level {level}"),
    }
}

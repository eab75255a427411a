//! `runner repro`: the same failure again (design section 11). First from stored evidence, then on a fresh isolated
//! stack with the same plan, faults and recorded node order, then, with `--times`, as a share with an interval.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use evidence::assertion::{AssertionId, Assertions};
use evidence::exit::Outcome;
use evidence::run::ReproOf;
use evidence::rundir::{ASSERTIONS, DAPI_CALLS, NODE_CALLS, RunReader};
use scenario::control::{DapiCallRecord, NodeCall};
use scenario::fault::DapiCall;
use scenario::model::{Minimum, Policy, Resolved, Step};
use verdict::judge::{Judgement, judge};

use super::find_run;
use super::run::block_on;
use crate::error::RunnerError;
use crate::life::prepare::{Options, Prepared};
use crate::stack::real::HostsBy;
use crate::stack::{Choice, StackKind};

/// What is to be replayed.
#[derive(Clone, Debug)]
pub struct Request {
    /// Folder with run directories.
    pub results: PathBuf,
    /// Run.
    pub run: String,
    /// Request id, or `_run.<assertion>.<n>`.
    pub failure: String,
    /// Only judge stored evidence again.
    pub analysis_only: bool,
    /// Without its neighbours.
    pub alone: bool,
    /// How many replays.
    pub times: u32,
    /// Folder with the programs.
    pub bin_dir: Option<PathBuf>,
    /// For a run of the Compose stack.
    pub compose: crate::stack::compose::ComposeArgs,
    /// Folder with the user's Devshard programs, for a run that was made with them.
    pub devshard_bin: Option<PathBuf>,
    /// Where the environment is, for a run that was made on a running one.
    pub attach: crate::stack::attach::AttachArgs,
}

/// What fired: assertion and reason.
type Fired = BTreeSet<(AssertionId, String)>;

/// Replays a failure. Exit code: 1 when it was reproduced, 0 when the replay passed without it, else the outcome of
/// the replay.
///
/// # Errors
/// [`RunnerError::Usage`] when run or failure are unknown.
pub fn repro(request: &Request) -> Result<Outcome, RunnerError> {
    let root = find_run(&request.results, &request.run)?;
    let judged = judge(&RunReader::new(&root)).map_err(|none| RunnerError::Usage(none.0))?;
    let fired = fired(&judged, &request.failure)?;
    crate::view::say(&level_one(&root, &judged.assertions));
    for (id, reason) in &fired {
        crate::view::say(&format!("  {id} {}: {reason}", id.name()));
    }
    if request.analysis_only {
        return Ok(Outcome::Fail);
    }
    let alone = judged.evidence.index_of(&request.failure).filter(|_| request.alone);
    if request.alone && alone.is_none() {
        let text = "--alone has no effect: this is a failure of the run, not of one request";
        crate::view::say(text);
    }
    let mut reproduced = 0;
    let mut last = Outcome::Unknown;
    for number in 1..=request.times {
        let again = replay(request, &judged, alone)?;
        last = again.assertions.verdict;
        let now: Fired = all_fired(&again);
        let hit = fired.iter().any(|wanted| now.contains(wanted));
        let same_request = again.failures.iter().any(|failure| failure.key == request.failure);
        reproduced += u32::from(hit);
        let words = match (hit, same_request) {
            (true, true) => "reproduced, on the same request",
            (true, false) => "reproduced, on another request",
            (false, _) => "not reproduced",
        };
        crate::view::say(&format!(
            "replay {number} of {}: {words} (run {})",
            request.times, again.evidence.run.run_id
        ));
    }
    conclude(request.times, reproduced, alone.is_some());
    caveats(&judged.evidence.run.resolved, alone.is_some());
    Ok(if reproduced > 0 { Outcome::Fail } else { last })
}

/// Whether judging stored evidence again gives every status that was written when the run ended. Another build's rules
/// may give others; what follows is about the failure as this build sees it.
fn level_one(root: &Path, now: &Assertions) -> String {
    let stored = std::fs::read(root.join(ASSERTIONS)).ok();
    let Some(then) = stored.and_then(|bytes| serde_json::from_slice::<Assertions>(&bytes).ok()) else {
        return format!(
            "level 1, analysis-exact: not reached: {ASSERTIONS} can't be read; stored evidence gives"
        );
    };
    let status = |all: &Assertions, id| all.results.iter().find(|result| result.id == id).map(|of| of.status);
    let differs = now.results.iter().find(|result| status(&then, result.id) != Some(result.status));
    match differs {
        None => "level 1, analysis-exact: reached; stored evidence gives".to_owned(),
        Some(result) => format!(
            "level 1, analysis-exact: not reached: this build judges {} otherwise than {ASSERTIONS} of the run says; \
             stored evidence gives",
            result.id
        ),
    }
}

/// The level that was reached.
fn conclude(times: u32, reproduced: u32, alone: bool) {
    let how = if alone { "alone" } else { "with its neighbours" };
    let level = match reproduced {
        0 => format!("level 2, plan-exact: the same plan was run {how}, and the failure did not come back"),
        _ => format!("level 2, plan-exact: reached, {how}: same plan, same faults, recorded node order"),
    };
    crate::view::say(&level);
    if times > 1 {
        let interval = stats::interval::wilson(u64::from(reproduced), u64::from(times));
        let words = interval.map_or_else(String::new, |interval| {
            format!(", 95 % interval {:.3} to {:.3}", interval.low, interval.high)
        });
        crate::view::say(&format!("level 3, statistical: {reproduced} of {times} {how}{words}"));
    }
}

/// What the plan does not fix, so that nobody takes the same plan for the same run.
fn caveats(resolved: &Resolved, alone: bool) {
    if !alone {
        let text = "(the order in which requests race is not part of the plan: no claim is made about races)";
        crate::view::say(text);
    }
    match (resolved.scenario.actions.is_empty(), alone) {
        (true, _) => {}
        (false, true) => crate::view::say(
            "(without its service actions: they come at request counts that one request never reaches)",
        ),
        (false, false) => crate::view::say(
            "(service actions come at the same request counts; what is in flight at that moment is not part of the plan)",
        ),
    }
}

/// What stored evidence says about one failure.
fn fired(judged: &Judgement, key: &str) -> Result<Fired, RunnerError> {
    let failure = judged.failures.iter().find(|failure| failure.key == key);
    let failure = failure.ok_or_else(|| {
        let known: Vec<&str> = judged.failures.iter().take(5).map(|failure| failure.key.as_str()).collect();
        let known = if known.is_empty() { "this run has no failure".to_owned() } else { known.join(", ") };
        RunnerError::Usage(format!("no failure {key:?} in run {}; {known}", judged.evidence.run.run_id))
    })?;
    Ok(failure.found.iter().map(|(id, witness)| (*id, witness.reason.clone())).collect())
}

fn all_fired(judged: &Judgement) -> Fired {
    let witnesses =
        judged.assertions.results.iter().flat_map(|result| {
            result.witnesses.iter().map(move |witness| (result.id, witness.reason.clone()))
        });
    witnesses.collect()
}

/// Runs the recorded scenario once more on a fresh stack.
fn replay(request: &Request, judged: &Judgement, alone: Option<u64>) -> Result<Judgement, RunnerError> {
    let run = &judged.evidence.run;
    if run.stack.devshard == crate::stack::real::DEVSHARD && request.devshard_bin.is_none() {
        let text = "this run was made with real Devshard programs: give their folder with --devshard-bin";
        return Err(RunnerError::CannotDo(text.to_owned()));
    }
    let resolved = pinned(judged, alone);
    let options = Options {
        scenario: PathBuf::from(&run.scenario_file),
        profiles: PathBuf::new(),
        results: request.results.clone(),
        bin_dir: request.bin_dir.clone(),
        overrides: crate::input::Overrides::default(),
        choice: Choice {
            stack: StackKind::of(&run.stack.provider).ok_or_else(|| {
                let text = format!("this build has no stack {:?} to replay on", run.stack.provider);
                RunnerError::CannotDo(text)
            })?,
            personality: run.stack.personality.clone().unwrap_or_else(|| "intended".to_owned()),
            defect: run.stack.defect.clone(),
            compose: request.compose.clone(),
            devshard_bin: request.devshard_bin.clone(),
            // The path of the requests is the recorded one.
            hosts_by: run.stack.hosts_by.as_deref().and_then(HostsBy::of).unwrap_or_default(),
            attach: request.attach.clone(),
        },
        rules_off: run.rules_off.clone(),
        known: crate::judge::Known::default(),
    };
    let of = ReproOf { run_id: run.run_id.clone(), failure: request.failure.clone(), only: alone };
    let source = (run.scenario_file.clone(), run.scenario_file_blake3.clone());
    let prepared = Prepared::of(resolved, source, run.limits.clone(), &options, Some(of))?;
    let finished = block_on(crate::life::run::run(prepared, false))??;
    judge(&RunReader::new(&finished.dir)).map_err(|none| RunnerError::environment(none.0))
}

/// The resolved scenario with the node order as it was recorded; alone, with that one request and its own nodes.
fn pinned(judged: &Judgement, alone: Option<u64>) -> Resolved {
    let mut resolved = judged.evidence.run.resolved.clone();
    let order = recorded_order(judged, alone);
    if !order.is_empty() {
        resolved.scenario.allocator.policy = Policy::FixedOrder;
        resolved.scenario.allocator.weights.clear();
        resolved.scenario.allocator.order = order;
    }
    if alone.is_some() {
        let workload = &mut resolved.scenario.workload;
        workload.steps = vec![Step { concurrency: 1, requests: Some(1), duration: None }];
        workload.search = None;
        workload.recovery = None;
        resolved.scenario.actions.clear();
        resolved.scenario.minimum = Minimum::default();
    }
    resolved
}

/// Granted nodes in the order of acquires. Alone: those of calls outside the plan (the canaries come first on every
/// stack), then those of the request.
fn recorded_order(judged: &Judgement, alone: Option<u64>) -> Vec<String> {
    let (evidence, reader) = (&judged.evidence, &judged.evidence.reader);
    let log = reader.lines::<DapiCallRecord>(DAPI_CALLS).into_iter().flatten().flatten();
    let grants = log.filter(|call| call.call == DapiCall::Acquire && call.result == "granted");
    let Some(index) = alone else {
        return grants.filter_map(|call| call.node).collect();
    };
    let joined = evidence.joined.get(index).and_then(|joined| evidence.joined.whole(reader, joined));
    let own: BTreeSet<String> = joined.into_iter().flat_map(|row| row.calls).filter_map(|c| c.lock).collect();
    let calls = reader.lines::<NodeCall>(NODE_CALLS).into_iter().flatten().flatten();
    let outside: BTreeSet<String> =
        calls.filter(|call| call.request_id.is_none()).filter_map(|call| call.lock).collect();
    let (mut order, mut of_request) = (Vec::new(), Vec::new());
    for grant in grants {
        let (Some(lock), Some(node)) = (grant.lock, grant.node) else { continue };
        if outside.contains(&lock) {
            order.push(node);
        } else if own.contains(&lock) {
            of_request.push(node);
        }
    }
    order.append(&mut of_request);
    order
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use evidence::assertion::{AssertionResult, Status};
    use evidence::exit::Findings;

    use super::*;

    #[test]
    fn level_one_is_reached_only_where_every_status_is_that_of_the_run() {
        let folder = tempfile::tempdir().unwrap();
        let result = AssertionResult {
            id: AssertionId::A2,
            name: "fault-class".to_owned(),
            status: Status::Fail,
            evaluated: 1,
            unit: "requests".to_owned(),
            minimum: 1,
            parts: BTreeMap::new(),
            missing: Vec::new(),
            witnesses: Vec::new(),
            witnesses_total: 1,
            rules: Vec::new(),
            information: Vec::new(),
        };
        let now = Assertions {
            v: 1,
            build: "test".to_owned(),
            run_id: "run".to_owned(),
            verdict: Outcome::Fail,
            findings: Findings::default(),
            results: vec![result],
        };
        assert!(level_one(folder.path(), &now).contains("not reached: assertions.json can't be read"));
        let write = |all: &Assertions| {
            std::fs::write(folder.path().join(ASSERTIONS), serde_json::to_vec(all).unwrap()).unwrap();
        };
        write(&now);
        assert!(level_one(folder.path(), &now).starts_with("level 1, analysis-exact: reached"));
        let mut then = now.clone();
        then.results[0].status = Status::Pass;
        write(&then);
        assert!(level_one(folder.path(), &now).contains("judges A2 otherwise"));
    }
}

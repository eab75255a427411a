//! `runner selftest` (layers M and B of the catalogue in docs/assertions.md): runs scenarios against programs with one
//! planted defect each, or while the surroundings of the run are sabotaged, and holds what fired against what must fire.
//!
//! A defect counts as found only when the set of failed assertions equals the expected set and every witness of the first
//! one that gives the expected reason names what the defect was planted on: the request or nonce that the program itself
//! says it spoilt, or where it can't say one the service or signal of the catalogue. Two controls decide whether the self-test says anything at all: the same scenario
//! without a defect must pass, and the canary, a defect held against an empty expectation, must be reported as wrong.
//! When a control misbehaves the whole is void.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use evidence::assertion::{AssertionId, Assertions, Status, Witness};
use evidence::exit::Outcome;
use evidence::rundir::{ASSERTIONS, LOGS, RunReader};
use serde::{Deserialize, Serialize};

use super::catalogue::{Catalogue, Defect, Layer, Planted, SELFTEST_VERSION, Sabotage};
use crate::error::RunnerError;
use crate::view::say;

/// What a program with a planted defect writes into its log each time.
const TOOK_EFFECT: &str = "planted defect took effect";

/// What the command line asks for.
#[derive(Clone, Debug)]
pub struct Request {
    /// The catalogue (`selftest/defects.json`).
    pub catalogue: PathBuf,
    /// Folder of the programs with planted defects; by default the folder of this one.
    pub bin_dir: Option<PathBuf>,
    /// Only defects of this assertion, or of this name.
    pub only: Option<String>,
    /// The first defect of each assertion instead of all.
    pub quick: bool,
    /// Which layers.
    pub layers: Vec<Layer>,
    /// Where run directories go; kept for whoever wants to look.
    pub results: PathBuf,
    /// Where the matrix is written.
    pub matrix: Option<PathBuf>,
}

/// What a planted defect says that it took effect on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum On {
    /// A load request.
    Request(String),
    /// Nonce or inference of an escrow.
    Nonce(String, u64),
}

impl On {
    /// Reads a line of a log in which a planted defect says that it took effect.
    fn read(line: &str) -> Option<Self> {
        let field = |name: &str| {
            let word = line.split_ascii_whitespace().find_map(|word| word.strip_prefix(name));
            word.map(|value| value.trim_matches('"').to_owned()).filter(|value| !value.is_empty())
        };
        if let Some(request) = field("request=") {
            return Some(Self::Request(request));
        }
        Some(Self::Nonce(field("escrow=")?, field("nonce=")?.parse().ok()?))
    }

    /// Whether a witness is about it. Node calls know no escrow.
    fn is_of(&self, witness: &Witness) -> bool {
        match self {
            Self::Request(id) => witness.request_id.as_ref() == Some(id),
            Self::Nonce(escrow, nonce) => {
                witness.nonce == Some(*nonce) && witness.escrow.as_ref().is_none_or(|of| of == escrow)
            }
        }
    }
}

/// `selftest/matrix.json`: what fired.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Matrix {
    /// Format version.
    pub v: u32,
    /// The controls behaved.
    pub valid: bool,
    /// What was wrong with them, if anything.
    pub controls: Vec<String>,
    /// One row a defect.
    pub rows: Vec<Row>,
}

/// Defect against assertions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// Defect.
    pub name: String,
    /// Its layer.
    pub layer: Layer,
    /// What had to fire, or to be unknown where nothing fires.
    pub expected: Vec<AssertionId>,
    /// What fired, with the reasons of its witnesses.
    pub fired: BTreeMap<AssertionId, BTreeSet<String>>,
    /// How often the planted thing took effect, by its own count in the logs; sabotage does not count itself.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub effects: Option<u64>,
    /// It was found, and nothing else was.
    pub killed: bool,
    /// Why not.
    pub wrong: Option<String>,
}

/// What one run showed.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    pub(super) code: Option<i32>,
    pub(super) fired: BTreeMap<AssertionId, BTreeSet<String>>,
    pub(super) unknown: BTreeMap<AssertionId, Vec<String>>,
    /// Assertions with a witness that says neither what nor where.
    pub(super) vague: BTreeSet<AssertionId>,
    /// Witnesses that were kept.
    pub(super) witnesses: Vec<(AssertionId, Witness)>,
    /// What planted defects say that they took effect on, as far as they know.
    pub(super) on: BTreeSet<On>,
    pub(super) bundles: usize,
    /// Lines of the logs in which a planted defect says that it took effect.
    pub(super) effects: u64,
    pub(super) text: String,
}

/// Runs the self-test.
///
/// # Errors
/// [`RunnerError::Usage`] for a bad catalogue or a build without planted defects, [`RunnerError::Environment`] when
/// runs can't be started.
pub fn selftest(request: &Request) -> Result<Outcome, RunnerError> {
    let catalogue = Catalogue::read(&request.catalogue)?;
    let runner = runner(request.bin_dir.as_deref())?;
    let chosen = choose(&catalogue, request)?;
    let mut controls = twins(&catalogue, &chosen, &runner, request)?;
    let mut rows = Vec::new();
    for defect in chosen {
        let flag = (defect.planted == Planted::Program).then_some(defect.name.as_str());
        let seen = run(&runner, &defect.scenario, flag, &request.results.join(&defect.name))?;
        let wrong = judge(defect, &seen);
        if defect.name == catalogue.canary && judge(&nothing(defect), &seen).is_none() {
            controls.push(format!("the canary {} was taken for a quiet run", defect.name));
        }
        let expected = if defect.fires.is_empty() { &defect.unknown } else { &defect.fires };
        rows.push(told(Row {
            name: defect.name.clone(),
            layer: Layer::M,
            expected: expected.clone(),
            effects: flag.map(|_| seen.effects),
            fired: seen.fired,
            killed: wrong.is_none(),
            wrong,
        }));
    }
    if !rows.iter().any(|row| row.name == catalogue.canary) {
        controls.push("the canary was not among the chosen defects".to_owned());
    }
    for sabotage in sabotages(&catalogue, request) {
        let seen = super::sabotage::run(sabotage, &runner, &request.results)?;
        let wrong = super::sabotage::judge(sabotage, &seen);
        rows.push(told(Row {
            name: sabotage.name.clone(),
            layer: Layer::B,
            expected: sabotage.fires.clone(),
            effects: None,
            fired: seen.fired,
            killed: wrong.is_none(),
            wrong,
        }));
    }
    conclude(&Matrix { v: SELFTEST_VERSION, valid: controls.is_empty(), controls, rows }, request)
}

/// Runs what the chosen defects are planted into without any of them: who does not pass then makes every finding void.
fn twins(
    catalogue: &Catalogue,
    chosen: &[&Defect],
    runner: &Path,
    request: &Request,
) -> Result<Vec<String>, RunnerError> {
    // Quick is one defect of each assertion, and one twin.
    let planted = chosen.iter().filter(|defect| defect.planted == Planted::Program && !request.quick);
    let scenarios: BTreeSet<&str> = planted.map(|defect| defect.scenario.as_str()).collect();
    let others = scenarios.into_iter().filter(|scenario| *scenario != catalogue.twin);
    let mut controls = Vec::new();
    for scenario in std::iter::once(catalogue.twin.as_str()).chain(others) {
        let name = Path::new(scenario).file_stem().unwrap_or_default().to_string_lossy();
        let name = if scenario == catalogue.twin { "twin".to_owned() } else { format!("twin {name}") };
        let seen = run(runner, scenario, None, &request.results.join(&name))?;
        let passes = seen.code == Some(0) && seen.fired.is_empty() && seen.unknown.is_empty();
        if !passes {
            controls.push(format!("the {name} without a defect did not pass: {}", shown(&seen)));
        }
        say(&format!("control    {name:<23} {}", if passes { "passes" } else { "DOES NOT PASS" }));
    }
    Ok(controls)
}

/// Sabotage that was asked for.
fn sabotages<'a>(catalogue: &'a Catalogue, request: &Request) -> Vec<&'a Sabotage> {
    let wanted = |sabotage: &&Sabotage| request.only.as_ref().is_none_or(|only| sabotage.name == *only);
    let layer = request.layers.contains(&Layer::B);
    catalogue.sabotage.iter().filter(|_| layer).filter(wanted).collect()
}

/// Says what a row shows.
fn told(row: Row) -> Row {
    let fired: Vec<String> = row.fired.keys().map(ToString::to_string).collect();
    let word = if row.killed { "killed" } else { "SURVIVES" };
    let effects = row.effects.map(|count| format!(", took effect {count} times")).unwrap_or_default();
    say(&format!("{word:<10} {:<23} fired {}{effects}", row.name, fired.join(", ")));
    if let Some(why) = &row.wrong {
        say(&format!("           {why}"));
    }
    row
}

/// Writes the matrix and says what it comes to: void, survivors, or all found.
fn conclude(matrix: &Matrix, request: &Request) -> Result<Outcome, RunnerError> {
    let survivors = matrix.rows.iter().filter(|row| !row.killed).count();
    if let Some(path) = &request.matrix {
        let text = serde_json::to_string_pretty(matrix).map_err(|e| RunnerError::Internal(e.to_string()))?;
        std::fs::write(path, text + "\n")
            .map_err(|error| RunnerError::environment(format!("writing {}: {error}", path.display())))?;
    }
    if !matrix.valid {
        for control in &matrix.controls {
            say(&format!("VOID: {control}"));
        }
        return Ok(Outcome::Invalid);
    }
    say(&format!("{} of {} defects found", matrix.rows.len() - survivors, matrix.rows.len()));
    Ok(if survivors == 0 { Outcome::Pass } else { Outcome::Fail })
}

/// The runner of the build with planted defects; an ordinary one does not know the flag.
fn runner(bin_dir: Option<&Path>) -> Result<PathBuf, RunnerError> {
    let own = std::env::current_exe()
        .map_err(|error| RunnerError::environment(format!("finding the own program: {error}")))?;
    let runner = bin_dir.map_or(own, |dir| dir.join("runner"));
    let help = Command::new(&runner).args(["run", "--help"]).output();
    let help =
        help.map_err(|error| RunnerError::environment(format!("starting {}: {error}", runner.display())))?;
    if String::from_utf8_lossy(&help.stdout).contains("--defect") {
        return Ok(runner);
    }
    Err(RunnerError::Usage(format!(
        "{} has no planted defects; build with the features `planted-defects` \
         (`make test` leaves such a build in target/defects) and give its folder as --bin-dir",
        runner.display()
    )))
}

/// The canary is always among them: without it the result would say nothing.
fn choose<'a>(catalogue: &'a Catalogue, request: &Request) -> Result<Vec<&'a Defect>, RunnerError> {
    let mut seen = BTreeSet::new();
    let wanted = |defect: &&Defect| match &request.only {
        Some(only) => defect.name == *only || defect.first().is_some_and(|id| id.to_string() == *only),
        None => request.layers.contains(&Layer::M),
    };
    let mut chosen: Vec<&Defect> = catalogue.defects.iter().filter(wanted).collect();
    if chosen.is_empty() && sabotages(catalogue, request).is_empty() {
        let names: Vec<&str> = catalogue.defects.iter().map(|defect| defect.name.as_str()).collect();
        return Err(RunnerError::Usage(format!("no such defect; known are {}", names.join(", "))));
    }
    if request.quick {
        chosen.retain(|defect| seen.insert(defect.first()));
    }
    if !chosen.iter().any(|defect| defect.name == catalogue.canary) {
        chosen.extend(catalogue.defects.iter().filter(|defect| defect.name == catalogue.canary));
    }
    Ok(chosen)
}

/// The same defect held against an empty expectation.
fn nothing(defect: &Defect) -> Defect {
    Defect { fires: Vec::new(), reasons: Vec::new(), unknown: Vec::new(), ..defect.clone() }
}

/// Why a run does not show its defect, and nothing else; `None` when it does.
fn judge(defect: &Defect, seen: &Seen) -> Option<String> {
    let planted = defect.planted == Planted::Program && defect.first().is_some();
    if planted && seen.effects == 0 {
        // Whatever fired, it was not for this.
        return Some(format!("the defect did nothing, and {}", shown(seen)));
    }
    let wanted: BTreeSet<AssertionId> = defect.fires.iter().copied().collect();
    let fired: BTreeSet<AssertionId> = seen.fired.keys().copied().collect();
    if fired != wanted {
        return Some(format!("expected {wanted:?}, but {}", shown(seen)));
    }
    let Some(first) = defect.fires.first() else { return judge_unknown(defect, seen) };
    let reasons = &seen.fired[first];
    if !defect.reasons.iter().any(|reason| reasons.contains(reason)) {
        return Some(format!("{first} fired for {reasons:?}, not for {:?}", defect.reasons));
    }
    if let Some(stray) = stray(defect, *first, seen) {
        return Some(stray);
    }
    if let Some(vague) = seen.vague.first() {
        return Some(format!("a witness of {vague} names neither a thing nor a place"));
    }
    if seen.bundles == 0 {
        return Some("nothing got a bundle".to_owned());
    }
    let invalid_only = wanted.iter().all(|id| *id == AssertionId::V);
    let code = if invalid_only { Outcome::Invalid } else { Outcome::Fail }.code();
    (seen.code != Some(i32::from(code))).then(|| format!("exit code {:?} instead of {code}", seen.code))
}

/// A witness of the expected reason about something on which nothing was planted.
fn stray(defect: &Defect, first: AssertionId, seen: &Seen) -> Option<String> {
    let due =
        |(id, witness): &&(AssertionId, Witness)| *id == first && defect.reasons.contains(&witness.reason);
    let strange = |(_, witness): &&(AssertionId, Witness)| {
        if seen.on.is_empty() {
            !names(witness, &defect.names)
        } else {
            !seen.on.iter().any(|on| on.is_of(witness))
        }
    };
    let (_, witness) = seen.witnesses.iter().filter(due).find(strange)?;
    Some(format!("a witness of {first} is about something else than what was planted: {}", witness.message))
}

/// Whether a witness names one of these services, signals or limits.
pub(super) fn names(witness: &Witness, wanted: &[String]) -> bool {
    [&witness.service, &witness.subject].into_iter().flatten().any(|name| wanted.contains(name))
}

/// Nothing must fail: exactly these are unknown and say why, or the run passes.
fn judge_unknown(defect: &Defect, seen: &Seen) -> Option<String> {
    let Some(first) = defect.unknown.first() else { return (seen.code != Some(0)).then(|| shown(seen)) };
    let wanted: BTreeSet<AssertionId> = defect.unknown.iter().copied().collect();
    if !seen.unknown.keys().copied().eq(wanted.iter().copied()) {
        return Some(format!("expected {wanted:?} to be unknown, but {}", shown(seen)));
    }
    let said = |word: &String| seen.unknown[first].iter().any(|missing| missing.contains(word.as_str()));
    if !defect.reasons.iter().any(said) {
        return Some(format!("{first} misses {:?}, not {:?}", seen.unknown[first], defect.reasons));
    }
    let code = i32::from(Outcome::Unknown.code());
    (seen.code != Some(code)).then(|| format!("exit code {:?} instead of {code}", seen.code))
}

fn shown(seen: &Seen) -> String {
    if seen.fired.is_empty() && seen.unknown.is_empty() {
        return format!("nothing fired (exit {:?}): {}", seen.code, seen.text.trim());
    }
    format!("fired {:?}, unknown {:?} (exit {:?})", seen.fired, seen.unknown, seen.code)
}

fn run(runner: &Path, scenario: &str, defect: Option<&str>, results: &Path) -> Result<Seen, RunnerError> {
    let before = super::runs(results).unwrap_or_default();
    let mut command = Command::new(runner);
    command.args(["run", scenario, "--quiet", "--results"]).arg(results).stdin(Stdio::null());
    if let Some(defect) = defect {
        command.args(["--defect", defect]);
    }
    let output = command
        .output()
        .map_err(|error| RunnerError::environment(format!("starting {}: {error}", runner.display())))?;
    let text = String::from_utf8_lossy(&output.stderr).chars().take(400).collect();
    Ok(seen(results, &before, output.status.code(), text))
}

/// What the one run below `results` that was not there before shows.
pub(super) fn seen(results: &Path, before: &[String], code: Option<i32>, text: String) -> Seen {
    let mut seen = Seen { code, text, ..Seen::default() };
    let after = super::runs(results).unwrap_or_default();
    let Some(id) = after.iter().find(|id| !before.contains(id)) else { return seen };
    let dir = results.join(id);
    let Ok(Some(judged)) = RunReader::new(&dir).json::<Assertions>(ASSERTIONS) else { return seen };
    for result in judged.results {
        match result.status {
            Status::Fail => {
                if result.witnesses.iter().any(is_vague) {
                    seen.vague.insert(result.id);
                }
                let reasons = result.witnesses.iter().map(|witness| witness.reason.clone()).collect();
                seen.fired.insert(result.id, reasons);
                seen.witnesses.extend(result.witnesses.into_iter().map(|witness| (result.id, witness)));
            }
            Status::Unknown => drop(seen.unknown.insert(result.id, result.missing)),
            Status::Pass | Status::NotApplicable => {}
        }
    }
    seen.bundles = std::fs::read_dir(dir.join("failures")).map_or(0, Iterator::count);
    for line in effects(&dir.join(LOGS)) {
        seen.effects += 1;
        seen.on.extend(On::read(&line));
    }
    seen
}

/// The lines of the logs of a run in which a planted defect says that it took effect.
fn effects(logs: &Path) -> Vec<String> {
    let files = std::fs::read_dir(logs).into_iter().flatten().flatten();
    let texts = files.filter_map(|file| std::fs::read(file.path()).ok());
    texts.flat_map(|text| took_effect(&String::from_utf8_lossy(&text))).collect()
}

fn took_effect(text: &str) -> Vec<String> {
    text.lines().filter_map(|line| Some(line.split_once(TOOK_EFFECT)?.1.to_owned())).collect()
}

/// A witness names a request, nonce, service or signal, and a file where it can be seen.
fn is_vague(witness: &Witness) -> bool {
    let named = witness.request_id.is_some()
        || witness.nonce.is_some()
        || witness.service.is_some()
        || witness.subject.is_some();
    !named || witness.evidence.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(fired: &[(AssertionId, &str)], code: i32) -> Seen {
        let one = |(id, reason): &(AssertionId, &str)| (*id, BTreeSet::from([(*reason).to_owned()]));
        let about = |(id, reason): &(AssertionId, &str)| {
            (*id, Witness { request_id: Some("s-1-000007".to_owned()), ..Witness::new(reason, "") })
        };
        let witnesses = fired.iter().map(about).collect();
        let fired = fired.iter().map(one).collect();
        let on = BTreeSet::from([On::Request("s-1-000007".to_owned())]);
        Seen { code: Some(code), fired, witnesses, on, bundles: 1, effects: 1, ..Seen::default() }
    }

    fn defect(fires: &[AssertionId], reasons: &[&str]) -> Defect {
        Defect {
            name: "d".to_owned(),
            does: String::new(),
            scenario: String::new(),
            planted: Planted::Program,
            fires: fires.to_vec(),
            reasons: reasons.iter().map(|reason| (*reason).to_owned()).collect(),
            unknown: Vec::new(),
            names: Vec::new(),
        }
    }

    #[test]
    fn only_the_exact_set_with_the_right_reason_counts() {
        use AssertionId::{A2, A3, V};
        let wanted = defect(&[A3], &["repeated-done"]);
        assert_eq!(judge(&wanted, &seen(&[(A3, "repeated-done")], 1)), None);
        for other in [
            seen(&[], 1),
            seen(&[(A2, "outside-expect")], 1),
            seen(&[(A3, "repeated-done"), (A2, "outside-expect")], 1),
            seen(&[(A3, "bad-json")], 1),
            seen(&[(A3, "repeated-done")], 4),
            Seen { bundles: 0, ..seen(&[(A3, "repeated-done")], 1) },
            Seen { effects: 0, ..seen(&[(A3, "repeated-done")], 1) },
            Seen {
                on: BTreeSet::from([On::Request("other".to_owned())]),
                ..seen(&[(A3, "repeated-done")], 1)
            },
            Seen { on: BTreeSet::new(), ..seen(&[(A3, "repeated-done")], 1) },
            Seen { vague: BTreeSet::from([A3]), ..seen(&[(A3, "repeated-done")], 1) },
        ] {
            assert!(judge(&wanted, &other).is_some(), "{other:?}");
        }
        assert_eq!(judge(&defect(&[V], &["mock-saturated"]), &seen(&[(V, "mock-saturated")], 3)), None);
    }

    #[test]
    fn a_witness_must_be_about_what_was_planted() {
        let said = took_effect(
            "x\nmsg=\"[dev] planted defect took effect\" defect=d escrow=12 nonce=7\n\
             planted defect took effect request=s-1-000007\nplanted defect took effect\n",
        );
        let on: Vec<Option<On>> = said.iter().map(|line| On::read(line)).collect();
        let (nonce, request) = (On::Nonce("12".to_owned(), 7), On::Request("s-1-000007".to_owned()));
        assert_eq!(on, [Some(nonce.clone()), Some(request.clone()), None]);
        let mut witness = Witness::new("r", "");
        assert!(!nonce.is_of(&witness) && !request.is_of(&witness));
        witness.nonce = Some(7);
        assert!(nonce.is_of(&witness), "a call at a node knows no escrow");
        witness.escrow = Some("13".to_owned());
        assert!(!nonce.is_of(&witness));
        witness.service = Some("host-1".to_owned());
        assert!(names(&witness, &["host-1".to_owned()]) && !names(&witness, &["host-2".to_owned()]));
    }

    #[test]
    fn only_the_exact_unknown_set_with_the_right_words_counts() {
        use AssertionId::{A2, A8};
        let wanted = Defect { unknown: vec![A2], ..defect(&[], &["disagree"]) };
        let unknown = |ids: &[AssertionId], says: &str, code| {
            let missing = ids.iter().map(|id| (*id, vec![says.to_owned()]));
            Seen { unknown: missing.collect(), bundles: 0, ..seen(&[], code) }
        };
        assert_eq!(super::judge(&wanted, &unknown(&[A2], "plan and hit log disagree", 4)), None);
        for other in [
            unknown(&[], "", 0),
            unknown(&[A2, A8], "plan and hit log disagree", 4),
            unknown(&[A2], "something else", 4),
            unknown(&[A2], "plan and hit log disagree", 0),
            seen(&[(A2, "outside-expect")], 1),
        ] {
            assert!(super::judge(&wanted, &other).is_some(), "{other:?}");
        }
    }

    #[test]
    fn a_canary_that_fires_is_no_quiet_run() {
        let canary = defect(&[AssertionId::A3], &["repeated-done"]);
        assert!(judge(&nothing(&canary), &seen(&[(AssertionId::A3, "repeated-done")], 1)).is_some());
        assert_eq!(judge(&nothing(&canary), &Seen { bundles: 0, ..seen(&[], 0) }), None);
    }
}

//! `runner selftest` (layer M of the catalogue in docs/assertions.md): runs scenarios against programs with one planted
//! defect each and holds what fired against what must fire.
//!
//! A defect counts as found only when the set of failed assertions equals the expected set and a witness of the first
//! one gives the expected reason. Two controls decide whether the self-test says anything at all: the same scenario
//! without a defect must pass, and the canary, a defect held against an empty expectation, must be reported as wrong.
//! When a control misbehaves the whole is void.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use evidence::assertion::{AssertionId, Assertions, Status};
use evidence::exit::Outcome;
use evidence::rundir::{ASSERTIONS, RunReader};
use serde::{Deserialize, Serialize};

use crate::error::RunnerError;

/// Format version of the catalogue and of the matrix.
pub const SELFTEST_VERSION: u32 = 1;

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
    /// Where run directories go; kept for whoever wants to look.
    pub results: PathBuf,
    /// Where the matrix is written.
    pub matrix: Option<PathBuf>,
}

/// `selftest/defects.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Catalogue {
    /// Format version.
    pub v: u32,
    /// Scenario of the controls, a path from the repository's root.
    pub twin: String,
    /// Name of the defect that is the canary.
    pub canary: String,
    /// Defects.
    pub defects: Vec<Defect>,
}

/// One planted defect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Defect {
    /// Name of the flag `--defect`.
    pub name: String,
    /// What it does, in words.
    pub does: String,
    /// Scenario under which it shows.
    pub scenario: String,
    /// All assertions that must fail, the one that it is for first.
    pub fires: Vec<AssertionId>,
    /// Reason that a witness of the first one must give; any of several.
    pub reasons: Vec<String>,
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
    /// What had to fire.
    pub expected: Vec<AssertionId>,
    /// What fired, with the reasons of its witnesses.
    pub fired: BTreeMap<AssertionId, BTreeSet<String>>,
    /// It was found, and nothing else was.
    pub killed: bool,
    /// Why not.
    pub wrong: Option<String>,
}

/// What one run showed.
#[derive(Clone, Debug, Default)]
struct Seen {
    code: Option<i32>,
    fired: BTreeMap<AssertionId, BTreeSet<String>>,
    unknown: BTreeSet<AssertionId>,
    bundles: usize,
    text: String,
}

/// Runs the self-test.
///
/// # Errors
/// [`RunnerError::Usage`] for a bad catalogue or a build without planted defects, [`RunnerError::Environment`] when
/// runs can't be started.
pub fn selftest(request: &Request) -> Result<Outcome, RunnerError> {
    let catalogue = read(&request.catalogue)?;
    let runner = runner(request.bin_dir.as_deref())?;
    let chosen = choose(&catalogue, request)?;
    let mut controls = Vec::new();
    let twin = run(&runner, &catalogue.twin, None, &request.results)?;
    if twin.code != Some(0) || !twin.fired.is_empty() || !twin.unknown.is_empty() {
        controls.push(format!("the twin without a defect did not pass: {}", shown(&twin)));
    }
    println!(
        "control    twin                    {}",
        if controls.is_empty() { "passes" } else { "DOES NOT PASS" }
    );
    let mut rows = Vec::new();
    for defect in chosen {
        let seen = run(&runner, &defect.scenario, Some(&defect.name), &request.results)?;
        let wrong = judge(defect, &seen);
        if defect.name == catalogue.canary && judge(&nothing(defect), &seen).is_none() {
            controls.push(format!("the canary {} was taken for a quiet run", defect.name));
        }
        let fired: Vec<String> = seen.fired.keys().map(ToString::to_string).collect();
        let word = if wrong.is_none() { "killed" } else { "SURVIVES" };
        println!("{word:<10} {:<23} fired {}", defect.name, fired.join(", "));
        if let Some(why) = &wrong {
            println!("           {why}");
        }
        let (name, expected) = (defect.name.clone(), defect.fires.clone());
        rows.push(Row { name, expected, fired: seen.fired, killed: wrong.is_none(), wrong });
    }
    if !rows.iter().any(|row| row.name == catalogue.canary) {
        controls.push("the canary was not among the chosen defects".to_owned());
    }
    conclude(&Matrix { v: SELFTEST_VERSION, valid: controls.is_empty(), controls, rows }, request)
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
            println!("VOID: {control}");
        }
        return Ok(Outcome::Invalid);
    }
    println!("{} of {} defects found", matrix.rows.len() - survivors, matrix.rows.len());
    Ok(if survivors == 0 { Outcome::Pass } else { Outcome::Fail })
}

fn read(path: &Path) -> Result<Catalogue, RunnerError> {
    let usage = |why: String| RunnerError::Usage(format!("catalogue {}: {why}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| usage(error.to_string()))?;
    let catalogue: Catalogue = serde_json::from_str(&text).map_err(|error| usage(error.to_string()))?;
    if catalogue.v != SELFTEST_VERSION {
        return Err(usage(format!("`v` is {}, this build reads {SELFTEST_VERSION}", catalogue.v)));
    }
    if let Some(empty) = catalogue.defects.iter().find(|defect| defect.fires.is_empty()) {
        return Err(usage(format!("{} names no assertion", empty.name)));
    }
    if !catalogue.defects.iter().any(|defect| defect.name == catalogue.canary) {
        return Err(usage(format!("the canary {} is no defect of it", catalogue.canary)));
    }
    Ok(catalogue)
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
        "{} has no planted defects; build with `--features runner/planted-defects,refshard/planted-defects` \
         (`make test` leaves such a build in target/defects) and give its folder as --bin-dir",
        runner.display()
    )))
}

/// The canary is always among them: without it the result would say nothing.
fn choose<'a>(catalogue: &'a Catalogue, request: &Request) -> Result<Vec<&'a Defect>, RunnerError> {
    let mut seen = BTreeSet::new();
    let wanted = |defect: &&Defect| match &request.only {
        Some(only) => defect.name == *only || defect.fires[0].to_string() == *only,
        None => true,
    };
    let mut chosen: Vec<&Defect> = catalogue.defects.iter().filter(wanted).collect();
    if chosen.is_empty() {
        let names: Vec<&str> = catalogue.defects.iter().map(|defect| defect.name.as_str()).collect();
        return Err(RunnerError::Usage(format!("no such defect; known are {}", names.join(", "))));
    }
    if request.quick {
        chosen.retain(|defect| seen.insert(defect.fires[0]));
    }
    if !chosen.iter().any(|defect| defect.name == catalogue.canary) {
        chosen.extend(catalogue.defects.iter().filter(|defect| defect.name == catalogue.canary));
    }
    Ok(chosen)
}

/// The same defect held against an empty expectation.
fn nothing(defect: &Defect) -> Defect {
    Defect { fires: Vec::new(), reasons: Vec::new(), ..defect.clone() }
}

/// Why a run does not show its defect, and nothing else; `None` when it does.
fn judge(defect: &Defect, seen: &Seen) -> Option<String> {
    let wanted: BTreeSet<AssertionId> = defect.fires.iter().copied().collect();
    let fired: BTreeSet<AssertionId> = seen.fired.keys().copied().collect();
    if fired != wanted {
        return Some(format!("expected {wanted:?}, but {}", shown(seen)));
    }
    let Some(first) = defect.fires.first() else { return (seen.code != Some(0)).then(|| shown(seen)) };
    let reasons = &seen.fired[first];
    if !defect.reasons.iter().any(|reason| reasons.contains(reason)) {
        return Some(format!("{first} fired for {reasons:?}, not for {:?}", defect.reasons));
    }
    if seen.bundles == 0 {
        return Some("nothing got a bundle".to_owned());
    }
    let invalid_only = wanted.iter().all(|id| *id == AssertionId::V);
    let code = if invalid_only { Outcome::Invalid } else { Outcome::Fail }.code();
    (seen.code != Some(i32::from(code))).then(|| format!("exit code {:?} instead of {code}", seen.code))
}

fn shown(seen: &Seen) -> String {
    if seen.fired.is_empty() {
        return format!("nothing fired (exit {:?}): {}", seen.code, seen.text.trim());
    }
    format!("fired {:?}, unknown {:?} (exit {:?})", seen.fired, seen.unknown, seen.code)
}

fn run(runner: &Path, scenario: &str, defect: Option<&str>, results: &Path) -> Result<Seen, RunnerError> {
    let results = results.join(defect.unwrap_or("twin"));
    let before = super::runs(&results).unwrap_or_default();
    let mut command = Command::new(runner);
    command.args(["run", scenario, "--quiet", "--results"]).arg(&results).stdin(Stdio::null());
    if let Some(defect) = defect {
        command.args(["--defect", defect]);
    }
    let output = command
        .output()
        .map_err(|error| RunnerError::environment(format!("starting {}: {error}", runner.display())))?;
    let mut seen = Seen {
        code: output.status.code(),
        text: String::from_utf8_lossy(&output.stderr).chars().take(400).collect(),
        ..Seen::default()
    };
    let after = super::runs(&results).unwrap_or_default();
    let Some(id) = after.iter().find(|id| !before.contains(id)) else { return Ok(seen) };
    let dir = results.join(id);
    let Ok(Some(judged)) = RunReader::new(&dir).json::<Assertions>(ASSERTIONS) else { return Ok(seen) };
    for result in judged.results {
        match result.status {
            Status::Fail => {
                let reasons = result.witnesses.into_iter().map(|witness| witness.reason).collect();
                seen.fired.insert(result.id, reasons);
            }
            Status::Unknown => drop(seen.unknown.insert(result.id)),
            Status::Pass | Status::NotApplicable => {}
        }
    }
    seen.bundles = std::fs::read_dir(dir.join("failures")).map_or(0, Iterator::count);
    Ok(seen)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(fired: &[(AssertionId, &str)], code: i32) -> Seen {
        let one = |(id, reason): &(AssertionId, &str)| (*id, BTreeSet::from([(*reason).to_owned()]));
        Seen { code: Some(code), fired: fired.iter().map(one).collect(), bundles: 1, ..Seen::default() }
    }

    fn defect(fires: &[AssertionId], reasons: &[&str]) -> Defect {
        Defect {
            name: "d".to_owned(),
            does: String::new(),
            scenario: String::new(),
            fires: fires.to_vec(),
            reasons: reasons.iter().map(|reason| (*reason).to_owned()).collect(),
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
        ] {
            assert!(judge(&wanted, &other).is_some(), "{other:?}");
        }
        assert_eq!(judge(&defect(&[V], &["mock-saturated"]), &seen(&[(V, "mock-saturated")], 3)), None);
    }

    #[test]
    fn a_canary_that_fires_is_no_quiet_run() {
        let canary = defect(&[AssertionId::A3], &["repeated-done"]);
        assert!(judge(&nothing(&canary), &seen(&[(AssertionId::A3, "repeated-done")], 1)).is_some());
        assert_eq!(judge(&nothing(&canary), &Seen { bundles: 0, ..seen(&[], 0) }), None);
    }
}

//! Every assertion can fail, and fails alone: each planted defect fires the expected set, nothing else, and the
//! witness names the planted thing. Replacing an assertion by one that always holds, or never knows, is noticed.

use std::collections::BTreeSet;

use crate::support::catalogue::{Defect, all};
use crate::support::{RUN_ID, good};
use evidence::assertion::{AssertionId, Assertions, Status};
use evidence::exit::Outcome;
use evidence::rundir::RunReader;
use verdict::assertions::{ALL, Assertion};
use verdict::judge::judge_with;

/// Judges a defect with a registry and says how the result differs from what the catalogue wants.
fn faults_of(defect: &Defect, registry: &[Assertion]) -> Result<(), String> {
    let mut files = good();
    let planted = (defect.plant)(&mut files);
    let base = files.write();
    let judged = judge_with(&RunReader::new(base.path().join(RUN_ID)), registry).map_err(|error| error.0)?;
    let assertions = &judged.assertions;
    let wanted: BTreeSet<AssertionId> = defect.fires.iter().map(|(id, _)| *id).collect();
    for result in &assertions.results {
        let should = if wanted.contains(&result.id) { Status::Fail } else { Status::Pass };
        if result.status != should {
            let found = (&result.missing, result.witnesses.first());
            return Err(format!("{} is {:?} instead of {should:?}: {found:?}", result.id, result.status));
        }
    }
    for (id, reason) in defect.fires {
        let result = assertions.results.iter().find(|result| result.id == *id).ok_or("no result")?;
        if !result.witnesses.iter().any(|witness| witness.reason == *reason) {
            return Err(format!("{id} has no witness with reason {reason}: {:?}", result.witnesses));
        }
    }
    let (first, reason) = defect.fires[0];
    if !names(assertions, first, reason, &planted) {
        return Err(format!("no witness of {first} names {planted:?}"));
    }
    if judged.failures.is_empty() {
        return Err("nothing gets a bundle".to_owned());
    }
    verdict_of(&wanted, assertions.verdict)
}

fn names(assertions: &Assertions, id: AssertionId, reason: &str, planted: &str) -> bool {
    let results = assertions.results.iter().filter(|result| result.id == id);
    let mut witnesses = results.flat_map(|result| &result.witnesses);
    witnesses.any(|witness| {
        let shown = serde_json::to_string(witness).expect("a witness is JSON");
        witness.reason == reason && !witness.evidence.is_empty() && shown.contains(planted)
    })
}

fn verdict_of(fired: &BTreeSet<AssertionId>, verdict: Outcome) -> Result<(), String> {
    let correctness = fired.iter().any(|id| !matches!(id, AssertionId::V | AssertionId::T));
    let wanted = match (correctness, fired.contains(&AssertionId::V)) {
        (true, _) => Outcome::Fail,
        (false, true) => Outcome::Invalid,
        (false, false) => Outcome::Fail,
    };
    (verdict == wanted).then_some(()).ok_or_else(|| format!("verdict {verdict} instead of {wanted}"))
}

#[test]
fn every_defect_fires_its_set_and_nothing_else() {
    let mut wrong = Vec::new();
    for defect in all() {
        if let Err(why) = faults_of(defect, &ALL) {
            wrong.push(format!("{}: {why}", defect.name));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} defects are not found as they should be:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

/// Run directories of the earlier format stay readable: what sessions show is judged the same.
#[test]
fn version_1_of_snapshots_is_judged_the_same() {
    for defect in crate::support::defects_session::DEFECTS {
        let mut files = good();
        (defect.plant)(&mut files);
        let told = |judged: verdict::judge::Judgement| {
            let results = judged.assertions.results.into_iter();
            results.map(|r| (r.id, r.status, r.evaluated, r.witnesses, r.missing)).collect::<Vec<_>>()
        };
        assert_eq!(told(files.judge_as_version_1()), told(files.judge()), "{}", defect.name);
    }
}

#[test]
fn an_assertion_that_always_holds_or_never_knows_is_noticed() {
    for (at, assertion) in ALL.iter().enumerate() {
        let always_true = Assertion { judge: |_, sheet| sheet.looked(1), ..*assertion };
        let always_unknown = Assertion { judge: |_, sheet| sheet.missing("everything"), ..*assertion };
        for replaced in [always_true, always_unknown] {
            let mut registry = ALL;
            registry[at] = replaced;
            for defect in all().into_iter().filter(|defect| defect.fires[0].0 == assertion.id) {
                assert!(
                    faults_of(defect, &registry).is_err(),
                    "{} is blind to {}",
                    defect.name,
                    assertion.id
                );
            }
        }
    }
}

#[test]
fn a_panicking_assertion_is_an_error_of_ours_and_hides_nothing() {
    let mut files = good();
    let pending =
        all().into_iter().find(|defect| defect.name.starts_with("A8 transactions")).expect("listed");
    (pending.plant)(&mut files);
    let mut registry = ALL;
    registry[0] = Assertion { judge: |_, _| panic!("planted"), ..ALL[0] };
    let base = files.write();
    let judged = judge_with(&RunReader::new(base.path().join(RUN_ID)), &registry).expect("run.yaml is good");
    assert_eq!(judged.assertions.verdict, Outcome::Internal);
    assert_eq!(judged.assertions.results[0].status, Status::Unknown);
    assert!(judged.assertions.results[0].missing[0].contains("panicked: planted"), "the cause is told");
    assert!(judged.assertions.results.iter().any(|result| result.status == Status::Fail), "A8 is still told");
}

#[test]
fn an_assertion_left_out_is_an_error_of_ours() {
    let base = good().write();
    let judged = judge_with(&RunReader::new(base.path().join(RUN_ID)), &ALL[1..]).expect("run.yaml is good");
    assert_eq!(judged.assertions.verdict, Outcome::Internal);
}

//! The caller dies at every call of a plan, before and after the engine did it; then `gc`: nothing labelled remains and
//! nothing foreign was touched.

#![expect(clippy::unwrap_used, reason = "tests stop at the first surprise")]

mod support;

use std::collections::BTreeMap;
use std::time::Duration;

use compose_engine::down::{Ending, down};
use compose_engine::engine::Engine;
use compose_engine::engine::fake::{Fake, Strike};
use compose_engine::error::{ComposeError, EngineError};
use compose_engine::gc;
use compose_engine::labels;
use support::{Bench, STACK, up};

/// Foreign things: one without any label of ours, one of another run of ours, one of the same project name.
fn foreign(fake: &Fake) -> Vec<String> {
    fake.foreign("somebody", &BTreeMap::new());
    let other = BTreeMap::from([(labels::RUN.to_owned(), "other-run".to_owned())]);
    fake.foreign("sibling", &other);
    let mut names = fake.names();
    names.sort();
    names
}

fn names(fake: &Fake) -> Vec<String> {
    let mut names = fake.names();
    names.sort();
    names
}

/// Calls of an undisturbed run.
async fn calls_of_a_run() -> u64 {
    let bench = Bench::new(STACK);
    up(&bench).await.unwrap();
    bench.fake.calls()
}

#[tokio::test]
async fn killed_at_every_call_then_gc_leaves_nothing_and_touches_nothing_foreign() {
    let calls = calls_of_a_run().await;
    assert!(calls > 20, "the plan is long enough to mean something: {calls}");
    for call in 1..=calls {
        for strike in [Strike::KillBefore, Strike::KillAfter] {
            let bench = Bench::new(STACK);
            let before = foreign(&bench.fake);
            bench.fake.strike(call, strike.clone());
            // The struck call never returns: dropping the run there is what a kill does.
            tokio::select! {
                _ = up(&bench) => panic!("call {call} {strike:?}: the run went on"),
                () = bench.fake.killed() => {}
            }
            let removed = gc::remove(&bench.fake, &bench.target.mark.run_id).await.unwrap();
            assert_eq!(removed.left, Vec::<String>::new(), "call {call} {strike:?}");
            assert_eq!(names(&bench.fake), before, "call {call} {strike:?}");
            // Report 24: what the ledger knows as made was found by label and removed.
            for name in bench.ledger.done("create_container") {
                assert!(removed.containers.contains(&name), "call {call}: {name} was made and not found");
            }
        }
    }
}

#[tokio::test]
async fn an_answer_that_fails_or_gets_lost_at_every_call_is_reported_and_cleaned_up() {
    let calls = calls_of_a_run().await;
    let broken = EngineError::Broken { what: "a call".into(), reason: "connection reset".into() };
    for call in 1..=calls {
        for strike in [Strike::Fail(broken.clone()), Strike::FailAfter(broken.clone())] {
            let bench = Bench::new(STACK);
            let before = foreign(&bench.fake);
            bench.fake.strike(call, strike);
            let error = up(&bench).await.unwrap_err().to_string();
            assert!(error.contains("connection reset"), "call {call}: {error}");
            let ending = Ending::Graceful(Duration::from_secs(1));
            let removed = down(&bench.fake, &bench.target.mark.run_id, ending, &bench.ledger).await.unwrap();
            assert_eq!(removed.left, Vec::<String>::new(), "call {call}");
            assert_eq!(names(&bench.fake), before, "call {call}");
        }
    }
}

#[tokio::test]
async fn report_19_a_teardown_killed_at_every_call_is_finished_by_the_next() {
    let bench = Bench::new(STACK);
    up(&bench).await.unwrap();
    let first = bench.fake.calls();
    gc::remove(&bench.fake, &bench.target.mark.run_id).await.unwrap();
    let calls = bench.fake.calls() - first;
    for call in 1..=calls {
        let bench = Bench::new(STACK);
        let before = foreign(&bench.fake);
        up(&bench).await.unwrap();
        bench.fake.strike(call, Strike::KillAfter);
        let run = bench.target.mark.run_id.clone();
        tokio::select! {
            _ = gc::remove(&bench.fake, &run) => panic!("call {call}: the teardown went on"),
            () = bench.fake.killed() => {}
        }
        assert!(gc::remove(&bench.fake, &run).await.unwrap().left.is_empty());
        assert_eq!(names(&bench.fake), before, "call {call}");
        // Once more: an empty sweep is no error.
        assert!(gc::remove(&bench.fake, &run).await.unwrap().is_empty());
    }
}

#[tokio::test]
async fn report_24_what_the_ledger_made_and_no_label_finds_is_named_and_left_alone() {
    let bench = Bench::new(STACK);
    up(&bench).await.unwrap();
    // The three objects of one name each lost their label: an engine, or a tool, that forgets them.
    bench.fake.foreign("lost", &BTreeMap::new());
    for (deed, name) in
        [("create_container", "lost"), ("create_volume", "lost-volume"), ("create_network", "lost-network")]
    {
        bench.ledger.write(deed, name, compose_engine::ledger::Phase::Done, "").unwrap();
    }
    let lost = names(&bench.fake).into_iter().filter(|name| name.starts_with("lost")).collect::<Vec<_>>();
    let removed = down(&bench.fake, &bench.target.mark.run_id, Ending::Forced, &bench.ledger).await.unwrap();
    assert_eq!(removed.left.len(), 3, "{:?}", removed.left);
    assert!(removed.left.iter().all(|text| text.contains("does not carry its label")), "{:?}", removed.left);
    assert_eq!(names(&bench.fake), lost);
}

#[tokio::test]
async fn report_18_ghost_endpoints_are_taken_out_by_force() {
    let bench = Bench::new(STACK);
    up(&bench).await.unwrap();
    bench.fake.ghost_endpoint(&bench.target.object_name("default"));
    let removed = gc::remove(&bench.fake, &bench.target.mark.run_id).await.unwrap();
    assert!(removed.left.is_empty(), "{:?}", removed.left);
    assert!(bench.fake.call_names().iter().any(|name| name == "disconnect"));
    assert!(bench.fake.names().is_empty());
}

#[tokio::test]
async fn report_14_a_stack_of_the_same_project_name_is_refused_and_left_alone() {
    let bench = Bench::new(STACK);
    let other = BTreeMap::from([
        (labels::RUN.to_owned(), "other-run".to_owned()),
        (labels::PROJECT.to_owned(), bench.target.project.clone()),
        (labels::SERVICE.to_owned(), "old".to_owned()),
    ]);
    bench.fake.foreign("old", &other);
    let before = names(&bench.fake);
    let error = up(&bench).await.unwrap_err();
    assert!(matches!(&error, ComposeError::Request(text) if text.contains("other-run")), "{error}");
    gc::remove(&bench.fake, &bench.target.mark.run_id).await.unwrap();
    assert_eq!(names(&bench.fake), before);
}

#[tokio::test]
async fn report_20_every_object_carries_the_run_label_from_its_creation() {
    let bench = Bench::new(STACK);
    up(&bench).await.unwrap();
    let found = gc::find(&bench.fake).await.unwrap();
    assert_eq!(found.len(), 1);
    let mut own = found[0].objects.clone();
    own.sort();
    assert_eq!(own, names(&bench.fake));
}

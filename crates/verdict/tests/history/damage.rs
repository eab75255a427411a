//! Damaged evidence: absent, cut, corrupt, newer, with lines lost, doubled or shuffled. Never a pass when something
//! that is needed is gone, never a fail that damage made, never a panic.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::{MOMENTS, RUN_ID, good, judge_in, snapshot_name};
use evidence::assertion::Status;
use evidence::exit::Outcome;
use evidence::rundir::{
    ACCOUNTING, DAPI_CALLS, DIFFS, DRAIN, EVENTS, FAULTS_APPLIED, HITS, INFERENCES, NODE_CALLS, PLAN,
    REQUESTS, RUN, RunReader,
};
use proptest::prelude::*;
use verdict::judge::judge;

const LINES: [&str; 10] =
    [PLAN, REQUESTS, ACCOUNTING, HITS, NODE_CALLS, DAPI_CALLS, EVENTS, DRAIN, DIFFS, INFERENCES];

fn inputs() -> Vec<String> {
    let mut names: Vec<String> = LINES.iter().map(|name| (*name).to_owned()).collect();
    names.push(FAULTS_APPLIED.to_owned());
    names.extend(MOMENTS.iter().map(|moment| snapshot_name(*moment)));
    names
}

/// Writes a good run, damages one file and judges.
fn after(name: &str, damage: impl Fn(&Path)) -> (Outcome, Vec<String>) {
    let base = good().write();
    let path: PathBuf = base.path().join(RUN_ID).join(name);
    damage(&path);
    let assertions = judge_in(base.path()).assertions;
    (assertions.verdict, verdict::judge::reasons(&assertions))
}

#[track_caller]
fn is_unknown(name: &str, how: &str, damage: impl Fn(&Path)) {
    let (verdict, reasons) = after(name, damage);
    assert_eq!(verdict, Outcome::Unknown, "{name} {how}: {reasons:?}");
    assert!(reasons.iter().any(|reason| reason.contains(name)), "{name} {how} is not named: {reasons:?}");
}

#[test]
fn an_absent_file_is_unknown_and_named() {
    for name in inputs() {
        is_unknown(&name, "absent", |path| fs::remove_file(path).expect("a file of the run"));
    }
}

#[test]
fn an_empty_file_is_unknown() {
    for name in inputs() {
        let (verdict, reasons) = after(&name, |path| fs::write(path, b"").expect("a file of the run"));
        assert_eq!(verdict, Outcome::Unknown, "{name}: {reasons:?}");
    }
}

#[test]
fn a_cut_file_is_unknown_and_named() {
    for name in inputs() {
        is_unknown(&name, "cut", |path| {
            let bytes = fs::read(path).expect("a file of the run");
            fs::write(path, &bytes[..bytes.len() - 4]).expect("a file of the run");
        });
    }
}

#[test]
fn a_corrupt_line_is_unknown_and_named() {
    for name in inputs() {
        is_unknown(&name, "corrupt", |path| {
            let mut bytes = fs::read(path).expect("a file of the run");
            bytes[0] = b'#';
            fs::write(path, bytes).expect("a file of the run");
        });
    }
}

#[test]
fn bytes_that_are_no_text_are_unknown() {
    for name in inputs() {
        is_unknown(&name, "binary", |path| {
            fs::write(path, [0xff, 0xfe, 0x00, 0x0a]).expect("a file of the run");
        });
    }
}

#[test]
fn a_newer_format_is_unknown_and_named() {
    let versioned = inputs()
        .into_iter()
        .filter(|name| ![HITS, NODE_CALLS, DAPI_CALLS, FAULTS_APPLIED].contains(&name.as_str()));
    for name in versioned {
        is_unknown(&name, "newer", |path| {
            let text = fs::read_to_string(path).expect("a file of the run");
            let newer = text.replacen("\"v\":1", "\"v\":9", 1).replacen("\"v\": 2", "\"v\": 9", 1);
            assert_ne!(newer, text, "{path:?} has a version");
            fs::write(path, newer).expect("a file of the run");
        });
    }
}

#[test]
fn a_snapshot_of_another_moment_is_unknown() {
    let base = good().write();
    let dir = base.path().join(RUN_ID);
    fs::copy(dir.join(snapshot_name(MOMENTS[1])), dir.join(snapshot_name(MOMENTS[3])))
        .expect("a file of the run");
    assert_eq!(judge_in(base.path()).assertions.verdict, Outcome::Unknown);
}

#[test]
fn without_a_readable_run_file_there_is_no_run() {
    type Damage = fn(&Path);
    let damages: [(&str, Damage); 5] = [
        ("absent", |path| fs::remove_file(path).expect("a file of the run")),
        ("empty", |path| fs::write(path, b"").expect("a file of the run")),
        ("no YAML", |path| fs::write(path, b"{]").expect("a file of the run")),
        ("cut", |path| {
            let bytes = fs::read(path).expect("a file of the run");
            fs::write(path, &bytes[..bytes.len() / 2]).expect("a file of the run");
        }),
        ("newer", |path| {
            let text = fs::read_to_string(path).expect("a file of the run");
            fs::write(path, text.replacen("v: 1", "v: 9", 1)).expect("a file of the run");
        }),
    ];
    for (how, damage) in damages {
        let base = good().write();
        damage(&base.path().join(RUN_ID).join(RUN));
        let error = judge(&RunReader::new(base.path().join(RUN_ID))).expect_err(how);
        assert!(error.0.contains(RUN), "{how}: {}", error.0);
    }
}

#[test]
fn a_runner_that_was_killed_leaves_unknown_and_no_fail() {
    // The runner ends during the load: half the records, nothing that comes after.
    let base = good().write();
    let dir = base.path().join(RUN_ID);
    for name in [ACCOUNTING, DRAIN] {
        fs::remove_file(dir.join(name)).expect("a file of the run");
    }
    MOMENTS[1..]
        .iter()
        .for_each(|moment| fs::remove_file(dir.join(snapshot_name(*moment))).expect("a file of the run"));
    keep(&dir.join(REQUESTS), |at, _| at < 10);
    keep(&dir.join(EVENTS), |_, line| {
        !["step-ended", "load-ended", "drain"].iter().any(|w| line.contains(w))
    });
    let text = fs::read_to_string(dir.join(EVENTS)).expect("a file of the run");
    let until = text.lines().position(|line| line.contains("step-started")).expect("a file of the run");
    keep(&dir.join(EVENTS), |at, _| at <= until);
    let assertions = judge_in(base.path()).assertions;
    assert_eq!(assertions.verdict, Outcome::Unknown, "{:?}", verdict::judge::reasons(&assertions));
}

#[test]
fn a_run_of_no_requests_shows_nothing() {
    let files = crate::support::story::of(0);
    let assertions = files.judge().assertions;
    assert_eq!(assertions.verdict, Outcome::Unknown, "{:?}", verdict::judge::reasons(&assertions));
}

#[test]
fn a_second_run_of_the_same_id_is_refused_and_changes_nothing() {
    let base = good().write();
    let before = fs::read(base.path().join(RUN_ID).join(REQUESTS)).expect("a file of the run");
    assert!(evidence::rundir::RunDir::create(base.path(), RUN_ID).is_err());
    assert_eq!(fs::read(base.path().join(RUN_ID).join(REQUESTS)).expect("a file of the run"), before);
}

/// Lines that a file lost at its beginning, as when it is rotated in the middle of a run.
#[test]
fn a_rotated_file_is_never_a_pass() {
    for name in LINES {
        let (verdict, reasons) = after(name, |path| keep(path, |at, _| at >= 3));
        // Three drain samples of four are gone: too few are left to show that it was quiet.
        assert_eq!(verdict, Outcome::Unknown, "{name}: {reasons:?}");
    }
}

/// Keeps some lines of a file.
fn keep(path: &Path, wanted: impl Fn(usize, &str) -> bool) {
    let text = fs::read_to_string(path).expect("a file of the run");
    let kept: Vec<&str> =
        text.lines().enumerate().filter(|(at, line)| wanted(*at, line)).map(|(_, l)| l).collect();
    fs::write(path, kept.iter().map(|line| format!("{line}\n")).collect::<String>())
        .expect("a file of the run");
}

#[derive(Clone, Debug)]
enum Stroke {
    Lose(usize),
    Double(usize),
    Swap(usize, usize),
}

fn stroke() -> impl Strategy<Value = Stroke> {
    prop_oneof![
        any::<usize>().prop_map(Stroke::Lose),
        any::<usize>().prop_map(Stroke::Double),
        (any::<usize>(), any::<usize>()).prop_map(|(a, b)| Stroke::Swap(a, b)),
    ]
}

/// Whether the loss of this line takes something away that a pass needs. The start of a call is said again by its
/// end; a drain sample before the stable ones and an equal copy of a line tell nothing new.
fn needed(name: &str, line: &str, lines: &[String]) -> bool {
    let twice = lines.iter().filter(|other| other.as_str() == line).count() > 1;
    match name {
        _ if twice => false,
        NODE_CALLS => !line.contains("\"ended_us\":null"),
        DRAIN => !line.contains("\"stable\":0"),
        // teardown is cut off before anything is judged
        EVENTS => !line.contains("\"planned\":true") && !line.contains("teardown"),
        _ => true,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_pass_without_a_needed_line_and_never_a_panic(
        file in 0..LINES.len(),
        strokes in prop::collection::vec(stroke(), 1..4),
    ) {
        let name = LINES[file];
        let base = good().write();
        let path = base.path().join(RUN_ID).join(name);
        let text = fs::read_to_string(&path).expect("a file of the run");
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let mut lost = false;
        for stroke in &strokes {
            let len = lines.len();
            match stroke {
                _ if len == 0 => {}
                Stroke::Lose(at) => {
                    lost |= needed(name, &lines[at % len], &lines);
                    lines.remove(at % len);
                }
                Stroke::Double(at) => lines.push(lines[at % len].clone()),
                Stroke::Swap(a, b) => lines.swap(a % len, b % len),
            }
        }
        fs::write(&path, lines.iter().map(|line| format!("{line}\n")).collect::<String>()).expect("a file of the run");
        let judged = judge_in(base.path());
        let reasons = verdict::judge::reasons(&judged.assertions);
        if lost {
            prop_assert_ne!(judged.assertions.verdict, Outcome::Pass, "{} {:?}", name, strokes);
        }
        // Only loadgen's own file can turn red: a record that is there twice is a finding.
        let doubled = strokes.iter().any(|stroke| matches!(stroke, Stroke::Double(_)));
        if name != REQUESTS || !doubled {
            let failed = judged.assertions.results.iter().any(|result| result.status == Status::Fail);
            prop_assert!(!failed, "{} {:?}: {:?}", name, strokes, reasons);
        }
        let ours = matches!(judged.assertions.verdict, Outcome::Pass | Outcome::Unknown | Outcome::Fail);
        prop_assert!(ours, "{} {:?}: {:?}", name, strokes, reasons);
    }
}

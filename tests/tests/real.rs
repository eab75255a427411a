//! The user's own Devshard programs under our mocks: folders that can't work end as environment failures with the last
//! words of what failed, and with `DEVSHARD_BIN` the scenarios of `tests/real/` run against real builds.

#![expect(clippy::unwrap_used, reason = "tests stop at the first surprise")]

mod support;

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use support::{Run, ml_5xx, processes_of, root, with};

/// Variable that names a folder with real builds.
const REAL_BIN: &str = "DEVSHARD_BIN";
/// Scenarios of `tests/real/`.
const SCENARIOS: [&str; 5] = ["normal-load", "ml-5xx", "slow-ml", "partial-stream", "client-cancel"];

fn write(dir: &Path, name: &str, text: &str, mode: u32) {
    let path = dir.join(name);
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// A host program that knows its version and then does something else.
fn host(then: &str) -> String {
    format!("#!/bin/sh\ncase \"$1\" in --print-*) echo v2; exit 0;; esac\n{then}\n")
}

/// Runs with this folder; it must end as an environment failure that says all of `words`, and leave no process.
fn refused(dir: &Path, words: &[&str]) {
    let folder = dir.to_str().unwrap();
    let run = Run::of(&ml_5xx(), &["--devshard-bin", folder]).expect(5);
    for word in words {
        assert!(run.text().contains(word), "{word:?} is not in: {}", run.text());
    }
    assert_eq!(processes_of(folder), Vec::<u32>::new());
}

#[test]
fn a_folder_that_can_not_work_ends_with_the_last_words_of_its_programs() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    refused(at, &["devshardctl"]);
    write(at, "devshardctl", "#!/bin/sh\necho gateway gives up >&2\nexit 1\n", 0o755);
    write(at, "devshardd", &host("exit 0"), 0o644);
    refused(at, &["devshardd", "not executable"]);
    write(at, "devshardd", "#!/bin/sh\necho v7\n", 0o755);
    refused(at, &["v7", "protocol"]);
    write(at, "devshardd", &host("echo no key in the keyring >&2; exit 1"), 0o755);
    refused(at, &["host-0 ended", "no key in the keyring"]);
}

#[test]
fn a_program_that_never_answers_is_given_up() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "devshardctl", "#!/bin/sh\nexit 1\n", 0o755);
    write(dir.path(), "devshardd", &host("echo waiting for nothing; exec sleep 600"), 0o755);
    refused(dir.path(), &["host-0 did not answer", "listens on no port", "waiting for nothing"]);
}

/// Runs one scenario against real builds and prints what it gave. A fail is no failure of the test: telling what the
/// build does wrong is what the tool is for. Ending in any other way is.
fn judged(name: &str, participants: u32, folder: &str) {
    let text = std::fs::read_to_string(root().join(format!("tests/real/{name}.yaml"))).unwrap();
    let text = with(&text, "participants: 3", &format!("participants: {participants}"));
    let run = Run::of(&text, &["--devshard-bin", folder]);
    println!("{name} with {participants} participant(s): exit {}\n{}", run.code(), run.text());
    assert!([0, 1, 4].contains(&run.code()), "{name}: {}", run.text());
    assert_eq!(
        run.json("assertions.json")["results"].as_array().map_or(0, Vec::len),
        13,
        "all are evaluated"
    );
}

#[test]
fn real_builds_are_judged_in_single_and_three_participant_mode() {
    let Some(folder) = std::env::var(REAL_BIN).ok().filter(|folder| !folder.is_empty()) else {
        println!("skipped: {REAL_BIN} names no folder with devshardctl and devshardd");
        return;
    };
    for name in SCENARIOS {
        for participants in [1, 3] {
            judged(name, participants, &folder);
        }
    }
}

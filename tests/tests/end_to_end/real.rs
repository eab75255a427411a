//! The user's own Devshard programs under our mocks: folders that can't work end as environment failures with the last
//! words of what failed, and with `DEVSHARD_BIN` the scenarios of `tests/real/` run against real builds.

#![expect(clippy::unwrap_used, reason = "tests stop at the first surprise")]

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::support::{Run, json, ml_5xx, processes_of, root, runner, with, with_status};

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
    refused(dir.path(), &["host-0 did not answer", "accepts no connection", "waiting for nothing"]);
}

/// How a finding shows.
enum Sign {
    /// These assertions fail.
    Fails(&'static [&'static str]),
    /// A named rule or an information tells it: assertion and name.
    Told(&'static str, &'static str),
}

/// What a run of the July build must show (design, page of July findings).
struct Finding {
    number: &'static str,
    scenario: &'static str,
    sign: Sign,
}

const fn finding(number: &'static str, scenario: &'static str, sign: Sign) -> Finding {
    Finding { number, scenario, sign }
}

/// Found within some minutes each.
const SHORT: [Finding; 6] = [
    finding("J1", "j1-truncated-stream", Sign::Fails(&["A2", "A3"])),
    finding("J2", "j2-truncated-replay", Sign::Fails(&["A3", "A10"])),
    finding("J6", "j6-late-error", Sign::Fails(&["A8", "T"])),
    finding("J10", "j10-ghosts", Sign::Told("A6", "ghost")),
    finding("J11", "j11-replica-failover", Sign::Fails(&["A2", "A6"])),
    finding("J17", "j17-cancel-runs-on", Sign::Told("A11", "work-after-cancel-tokens")),
];
/// Every answered request of the July build shows it: a build that does not is another one, and owes no finding.
const SPLIT_IDS: Finding = finding("J20", "normal-load", Sign::Told("A10", "july-id-split"));
/// These wait for the protocol's timeouts of 20 minutes.
const LONG: [Finding; 3] = [
    finding("J3", "j3-finish-elsewhere", Sign::Fails(&["A11"])),
    finding("J7", "j7-started-for-ever", Sign::Fails(&["A6"])),
    finding("J19", "j19-host-killed", Sign::Told("A2", "cut-by-action")),
];

impl Finding {
    /// Runs its scenario and says whether the build shows it. A fail without a bundle that can be judged again fails the
    /// test.
    fn look(&self, folder: &str) -> Seen {
        let folder = ["--devshard-bin", folder, "--hosts-by", "devshardd"];
        let run = Run::of(&self.text(), &folder);
        if run.code() == 4 && run.dirs().is_empty() {
            println!("{} by {}: can't be looked for here: {}", self.number, self.scenario, run.text());
            return Seen::NotHere;
        }
        assert!([0, 1, 4].contains(&run.code()), "{}: {}", self.scenario, run.text());
        let assertions = run.json("assertions.json");
        let failed = with_status(&assertions, "fail");
        let found = self.shows(&assertions);
        let words = if found { "found" } else { "not found on this build" };
        println!("{} by {}: {words}; fails: {}", self.number, self.scenario, failed.join(" "));
        if found && !failed.is_empty() {
            again(&run);
        }
        if found { Seen::Found } else { Seen::Missed }
    }

    fn text(&self) -> String {
        std::fs::read_to_string(root().join(format!("tests/real/{}.yaml", self.scenario))).unwrap()
    }

    fn shows(&self, assertions: &serde_json::Value) -> bool {
        let failed = with_status(assertions, "fail");
        match self.sign {
            Sign::Fails(all) => all.iter().all(|wanted| failed.iter().any(|failed| failed == wanted)),
            Sign::Told(assertion, name) => told(assertions, assertion, name),
        }
    }
}

/// What came of looking for a finding.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Seen {
    Found,
    Missed,
    NotHere,
}

/// What a run of the July build may come through without: it follows from times and places that differ each time.
const BY_CHANCE: [&str; 3] = ["J3", "J10", "J11"];

/// Looks for all of them. The July build owes every finding that this machine can look for.
fn look_for(findings: &[Finding], folder: &str) {
    let july = SPLIT_IDS.look(folder) == Seen::Found;
    let missed = |finding: &&Finding| finding.look(folder) == Seen::Missed;
    let missed: Vec<&str> = findings.iter().filter(missed).map(|finding| finding.number).collect();
    let owed: Vec<&&str> = missed.iter().filter(|number| !BY_CHANCE.contains(number)).collect();
    assert!(!july || owed.is_empty(), "a July build, and not found: {owed:?}");
}

/// Whether an assertion names a rule or an information.
fn told(assertions: &serde_json::Value, assertion: &str, name: &str) -> bool {
    let results = assertions["results"].as_array().unwrap().iter();
    let mut of = results.filter(|result| result["id"] == assertion);
    of.any(|result| {
        let entries = [("rules", "rule"), ("information", "name")];
        entries.iter().any(|(list, key)| {
            result[*list].as_array().is_some_and(|entries| entries.iter().any(|entry| entry[*key] == name))
        })
    })
}

/// Every failure has its bundle, and the first one fires again from stored evidence.
fn again(run: &Run) {
    let dir = run.dir();
    let mut bundles: Vec<String> = std::fs::read_dir(dir.join("failures"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .filter(|name| name.ends_with(".json"))
        .collect();
    bundles.sort_unstable();
    let bundle = json(&dir.join("failures").join(bundles.last().expect("a failed run has bundles")));
    assert!(bundle["repro"].as_str().unwrap().contains("--devshard-bin"), "{bundle}");
    let output = runner()
        .args(["repro", &dir.file_name().unwrap().to_string_lossy(), bundle["failure"].as_str().unwrap()])
        .args(["--analysis-only", "--results"])
        .arg(run.results.path().join("results"))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn real_builds_show_what_july_does_wrong() {
    let Some(folder) = real_builds() else { return };
    look_for(&SHORT, &folder);
}

#[test]
#[ignore = "make prove: each waits for timeouts of 20 minutes"]
fn real_builds_show_what_takes_twenty_minutes() {
    let Some(folder) = real_builds() else { return };
    look_for(&LONG, &folder);
}

/// The folder with real builds, if there is one.
fn real_builds() -> Option<String> {
    let folder = std::env::var(REAL_BIN).ok().filter(|folder| !folder.is_empty());
    if folder.is_none() {
        println!("skipped: {REAL_BIN} names no folder with devshardctl and devshardd");
    }
    folder
}

/// Runs one scenario against real builds, with these starters of hosts, and prints what it gave. A fail is no failure of the test: telling what the
/// build does wrong is what the tool is for. Ending in any other way is.
fn judged(name: &str, participants: u32, hosts_by: &str, folder: &str) {
    let text = std::fs::read_to_string(root().join(format!("tests/real/{name}.yaml"))).unwrap();
    let text = with(&text, "participants: 3", &format!("participants: {participants}"));
    let run = Run::of(&text, &["--devshard-bin", folder, "--hosts-by", hosts_by]);
    println!("{name} with {participants} participant(s) of {hosts_by}: exit {}\n{}", run.code(), run.text());
    assert!([0, 1, 4].contains(&run.code()), "{name}: {}", run.text());
    assert_eq!(
        run.json("assertions.json")["results"].as_array().map_or(0, Vec::len),
        13,
        "all are evaluated"
    );
}

#[test]
fn real_builds_are_judged_in_single_and_three_participant_mode() {
    let Some(folder) = real_builds() else { return };
    for name in SCENARIOS {
        for participants in [1, 3] {
            // A lost connection of versiond (J23) would have each of them wait for the protocol's 20 minutes.
            judged(name, participants, "devshardd", &folder);
        }
    }
    if Path::new(&folder).join("versiond").is_file() && crate::support::theirs::namespaces() {
        judged("normal-load", 3, "versiond", &folder);
    }
}

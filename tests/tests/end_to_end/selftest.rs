//! `runner selftest` on the build with planted defects: one defect of each assertion is found, alone and for its
//! reason; the rest runs under `make prove`. And a self-test whose controls misbehave says nothing at all.

#![expect(clippy::unwrap_used, reason = "tests stop at the first surprise")]

use std::collections::BTreeSet;

use crate::support::{self, Run, bin_dir, ml_5xx, root, runner, runner_of};
use serde_json::{Value, json};

fn selftest(args: &[&str]) -> (i32, String) {
    let results = tempfile::tempdir().unwrap();
    let output = runner()
        .args(["selftest", "--bin-dir"])
        .arg(bin_dir("defects"))
        .arg("--results")
        .arg(results.path())
        .args(args)
        .output()
        .unwrap();
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    (output.status.code().unwrap_or(-1), text)
}

fn catalogue() -> Value {
    support::json(&root().join("selftest/defects.json"))
}

#[test]
fn one_defect_of_each_assertion_is_found_alone_and_for_its_reason() {
    let (code, text) = selftest(&["--quick"]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("control    twin                    passes"), "{text}");
}

#[test]
#[ignore = "every planted defect: minutes, run by `make prove`"]
fn every_defect_is_found() {
    let (code, text) = selftest(&[]);
    assert_eq!(code, 0, "{text}");
}

#[test]
fn a_twin_that_does_not_pass_makes_the_whole_void() {
    let folder = tempfile::tempdir().unwrap();
    let twin = std::fs::read_to_string(root().join("selftest/masked.yaml")).unwrap();
    // A limit that no run can hold.
    let twin = support::with(&twin, "thresholds: {}", "thresholds: { ttft_p95: 1us }");
    std::fs::create_dir(folder.path().join("selftest")).unwrap();
    std::os::unix::fs::symlink(root().join("ml-profiles"), folder.path().join("ml-profiles")).unwrap();
    let file = folder.path().join("selftest/twin.yaml");
    std::fs::write(&file, twin).unwrap();
    let mut spoilt = catalogue();
    spoilt["twin"] = json!(file);
    let path = folder.path().join("defects.json");
    std::fs::write(&path, spoilt.to_string()).unwrap();
    let (code, text) = selftest(&["--only", "double-done", "--catalogue", path.to_str().unwrap()]);
    assert_eq!(code, 3, "{text}");
    assert!(text.contains("VOID: the twin"), "{text}");
}

#[test]
fn an_ordinary_build_has_nothing_to_test() {
    let output = runner().arg("selftest").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("no planted defects"));
}

/// The programs with a planted defect repeat a failure: a bundle holds what is needed, and `repro` reproduces it.
#[test]
fn repro_reproduces_a_planted_contradiction() {
    let text =
        support::with(&ml_5xx(), "  timeout: protocol\n  stable_samples", "  timeout: 15s\n  stable_samples");
    let run = Run::on("defects", &text, &["--defect", "record-failed-on-200"]).expect(1);
    let assertions = run.json("assertions.json");
    let a11 = assertions["results"].as_array().unwrap().iter().find(|result| result["id"] == "A11").unwrap();
    let witness = &a11["witnesses"][0];
    assert_eq!(witness["reason"], "outcome-pair", "{}", run.text());
    let failure = witness["request_id"].as_str().unwrap();
    let bundle = support::json(&run.dir().join("failures").join(format!("{failure}.json")));
    assert_eq!(bundle["failure"], failure);
    for part in ["request", "accounting", "applied_faults"] {
        assert!(bundle[part].is_object(), "{part}");
    }
    let output = runner_of("defects")
        .args(["repro", run.dir().to_str().unwrap(), failure, "--results"])
        .arg(run.results.path().join("results"))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("level 1, analysis-exact: reached"), "{text}");
    assert!(text.contains("level 2, plan-exact: reached"), "{text}");
}

#[test]
fn the_flag_does_not_exist_in_an_ordinary_build() {
    let output = runner().args(["run", "scenarios/ml-5xx.yaml", "--defect", "double-done"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}

/// Values of `--defect` that a program's short help names.
fn offered(program: &str, args: &[&str]) -> Vec<String> {
    let output = std::process::Command::new(bin_dir("defects").join(program)).args(args).output().unwrap();
    // Help is wrapped at the width of the terminal.
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let text = text.split_ascii_whitespace().collect::<Vec<_>>().join(" ");
    let (_, rest) =
        text.split_once("--defect").unwrap_or_else(|| panic!("{program} has no --defect: {text}"));
    let (_, rest) = rest.split_once("[possible values: ").unwrap();
    let (list, _) = rest.split_once(']').unwrap();
    list.split(',').map(|name| name.trim().to_owned()).collect()
}

#[test]
fn the_runner_plants_every_defect_that_the_programs_have() {
    let mut theirs = offered("ref-gateway", &["-h"]);
    theirs.extend(offered("ref-host", &["-h"]));
    theirs.extend(offered("mock-openai", &["-h"]));
    // Loadgen's command line has no room for a flag: it reads a variable.
    theirs.extend(["lost-records", "wrong-class"].map(str::to_owned));
    let mut ours = offered("runner", &["run", "-h"]);
    theirs.sort();
    ours.sort();
    assert_eq!(ours, theirs);
    assert!(ours.len() > 30, "{ours:?}");
}

#[test]
#[ignore = "make prove: every sabotage, minutes"]
fn every_sabotage_ends_as_it_must() {
    let (code, text) = selftest(&["--layer", "B"]);
    assert_eq!(code, 0, "{text}");
}

/// The part of docs/assertions.md below this line is made from the catalogue.
const HEADING: &str = "## Planted defects\n";

fn words(value: &Value) -> Vec<String> {
    let all = value.as_array().map(Vec::as_slice).unwrap_or_default();
    all.iter().map(|word| word.as_str().map_or_else(|| word.to_string(), str::to_owned)).collect()
}

fn quoted(value: &Value) -> Vec<String> {
    words(value).iter().map(|word| format!("`{word}`")).collect()
}

/// What must be found is of the assertions that must fail, and of each of them something.
#[test]
fn the_reasons_of_a_sabotage_are_those_of_its_assertions() {
    for sabotage in catalogue()["sabotage"].as_array().unwrap() {
        let of = |pair: &String| pair.split(' ').next().unwrap().to_owned();
        let due: BTreeSet<String> = words(&sabotage["reasons"]).iter().map(of).collect();
        let fires: BTreeSet<String> = words(&sabotage["fires"]).into_iter().collect();
        assert_eq!(due, fires, "{sabotage}");
        assert_eq!(fires.is_empty(), words(&sabotage["names"]).is_empty(), "{sabotage}");
    }
}

fn section() -> String {
    let catalogue = catalogue();
    let mut text = format!(
        "{HEADING}\nMade from `selftest/defects.json` (`PROOFLOAD_REGENERATE=1 cargo test --workspace --test \
         end_to_end the_table` writes it anew).\n\n### Layer M: programs and scenarios\n\n`runner selftest` runs each on a build \
         with planted defects; it counts as found only when exactly these assertions fail,\nthe first one for one of \
         these reasons (or when exactly these are unknown, with these words), every witness names a thing\nand a place, \
         and there is a bundle. Every witness of such a reason must be about what was planted: the request or nonce\n\
         that the program itself says it spoilt, else the name in the last column.\n\n\
         | Defect | What it does | Must fail | Reason | Names |\n|---|---|---|---|---|\n"
    );
    for defect in catalogue["defects"].as_array().unwrap() {
        let reasons: Vec<String> = words(&defect["reasons"]).iter().map(|word| format!("`{word}`")).collect();
        let fires = words(&defect["fires"]).join(", ");
        let unknown = words(&defect["unknown"]).join(", ");
        let due = if fires.is_empty() { format!("{unknown} unknown") } else { fires };
        let (name, does) = (defect["name"].as_str().unwrap(), defect["does"].as_str().unwrap());
        let names = quoted(&defect["names"]).join(" or ");
        text.push_str(&format!("| `{name}` | {does} | {due} | {} | {names} |\n", reasons.join(" or ")));
    }
    text.push_str(
        "\n### Layer B: what surrounds a run\n\n`runner selftest --layer B` disturbs a run whose programs are as they \
         should be. A pass is right only where it is listed (0).\nEach of the reasons that must be found is, and names what \
         was disturbed; nothing is found beside them and those that may\ncome along, as chance puts a request in its \
         way.\n\n| Sabotage | What it does | Exit codes | Must be found | May come along | Names |\n\
         |---|---|---|---|---|---|\n",
    );
    for sabotage in catalogue["sabotage"].as_array().unwrap() {
        let (name, does) = (sabotage["name"].as_str().unwrap(), sabotage["does"].as_str().unwrap());
        let codes = words(&sabotage["codes"]).join(", ");
        let [due, along, names] = ["reasons", "along", "names"].map(|key| quoted(&sabotage[key]).join(", "));
        text.push_str(&format!("| `{name}` | {does} | {codes} | {due} | {along} | {names} |\n"));
    }
    text.push_str(
        "\n### Layer H: recorded runs\n\nThe tests of crate `verdict` spoil single facts of a recorded good run, at \
         fixed and at random places, and hold the whole\nset that fires; each quiet twin must pass. The names stand in \
         the catalogue.\n\n| Assertion | Defects | Quiet twins |\n|---|---|---|\n",
    );
    let history = &catalogue["history"];
    for id in ASSERTIONS {
        let of = |list: &Value, key: &str, first: bool| {
            let has = |entry: &&Value| {
                let ids = words(&entry[key]);
                ids.iter().take(if first { 1 } else { ids.len() }).any(|one| one == id)
            };
            list.as_array().unwrap().iter().filter(has).count()
        };
        let (defects, twins) = (of(&history["defects"], "fires", true), of(&history["twins"], "of", false));
        text.push_str(&format!("| {id} | {defects} | {twins} |\n"));
    }
    text
}

/// Every assertion, in order.
const ASSERTIONS: [&str; 13] = ["A1", "A2", "A3", "A4", "A5", "A6", "A7", "A8", "A9", "A10", "A11", "V", "T"];

/// How many defects of all layers are for an assertion, how many of them run programs, and how many twins it has.
fn counted(catalogue: &Value, id: &str) -> (usize, usize, usize) {
    let is_first = |entry: &&Value| {
        let due = if words(&entry["fires"]).is_empty() { &entry["unknown"] } else { &entry["fires"] };
        words(due).first().is_some_and(|first| first == id)
    };
    let of = |list: &Value| list.as_array().unwrap().iter().filter(is_first).count();
    let runs = of(&catalogue["defects"]) + of(&catalogue["sabotage"]);
    let is_quiet = |twin: &&Value| words(&twin["of"]).iter().any(|of| of == id);
    let twins = catalogue["history"]["twins"].as_array().unwrap().iter().filter(is_quiet).count();
    (runs + of(&catalogue["history"]["defects"]), runs, twins)
}

#[test]
fn every_assertion_has_three_defects_one_of_them_in_programs_and_a_quiet_twin() {
    let catalogue = catalogue();
    for id in ASSERTIONS {
        let (all, runs, twins) = counted(&catalogue, id);
        assert!(all >= 3 && runs >= 1 && twins >= 1, "{id}: {all} defects, {runs} in runs, {twins} twins");
    }
    // It counts: an assertion that nobody knows has none.
    assert_eq!(counted(&catalogue, "A12"), (0, 0, 0));
    // And nothing in the catalogue is for an assertion that is not there.
    let entries = ["defects", "sabotage"].map(|layer| catalogue[layer].as_array().unwrap());
    for entry in entries.into_iter().flatten() {
        let named = [words(&entry["fires"]), words(&entry["unknown"])].concat();
        assert!(named.iter().all(|id| ASSERTIONS.contains(&id.as_str())), "{entry}");
    }
}

/// What stands in the matrix was found, and what is in the catalogue stands in the matrix: an entry that was not proven
/// yet is named on the page of proofs.
#[test]
fn the_matrix_is_that_of_the_catalogue() {
    let (catalogue, matrix) = (catalogue(), support::json(&root().join("selftest/matrix.json")));
    let names = |list: &Value| -> BTreeSet<String> {
        list.as_array().unwrap().iter().map(|entry| entry["name"].as_str().unwrap().to_owned()).collect()
    };
    let wanted: BTreeSet<String> =
        names(&catalogue["defects"]).union(&names(&catalogue["sabotage"])).cloned().collect();
    let (proven, proofs) =
        (names(&matrix["rows"]), std::fs::read_to_string(root().join("docs/proof.md")).unwrap());
    assert_eq!(proven.difference(&wanted).next(), None, "a row that is no entry");
    for entry in wanted.difference(&proven) {
        assert!(proofs.contains(&format!("`{entry}` is not proven")), "{entry} is neither proven nor named");
    }
    assert_eq!(matrix["valid"], true);
    assert!(matrix["rows"].as_array().unwrap().iter().all(|row| row["killed"] == true));
}

#[test]
fn the_table_equals_the_catalogue() {
    let path = root().join("docs/assertions.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let before = page.split(HEADING).next().unwrap().trim_end().to_owned();
    let wanted = format!("{before}\n\n{}", section());
    if std::env::var_os("PROOFLOAD_REGENERATE").is_some() {
        std::fs::write(&path, &wanted).unwrap();
        return;
    }
    assert!(page == wanted, "docs/assertions.md is stale: run with PROOFLOAD_REGENERATE=1");
}

#[test]
fn every_scenario_of_the_catalogue_is_there_and_names_are_single() {
    let catalogue = catalogue();
    let defects = catalogue["defects"].as_array().unwrap();
    let names: BTreeSet<&str> = defects.iter().map(|defect| defect["name"].as_str().unwrap()).collect();
    assert_eq!(names.len(), defects.len());
    for defect in defects {
        assert!(root().join(defect["scenario"].as_str().unwrap()).is_file(), "{defect}");
    }
}

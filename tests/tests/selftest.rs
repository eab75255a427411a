//! `runner selftest` on the build with planted defects: one defect of each assertion is found, alone and for its
//! reason; the rest runs under `make prove`. And a self-test whose controls misbehave says nothing at all.

#![expect(clippy::unwrap_used, reason = "tests stop at the first surprise")]

mod support;

use std::collections::BTreeSet;

use serde_json::{Value, json};
use support::{bin_dir, root, runner};

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

/// The part of docs/assertions.md below this line is made from the catalogue.
const HEADING: &str = "## Planted defects\n";

fn section() -> String {
    let mut text = format!(
        "{HEADING}\nMade from `selftest/defects.json` (`PROOFLOAD_REGENERATE=1 cargo test -p tests --test selftest \
         the_table` writes it anew). `runner selftest`\nruns each on a build with planted defects; it counts as found \
         only when exactly these assertions fail, the first one for\none of these reasons.\n\n\
         | Defect | What it does | Must fail | Reason |\n|---|---|---|---|\n"
    );
    let words = |value: &Value| -> Vec<String> {
        value.as_array().unwrap().iter().map(|word| word.as_str().unwrap().to_owned()).collect()
    };
    for defect in catalogue()["defects"].as_array().unwrap() {
        let reasons: Vec<String> = words(&defect["reasons"]).iter().map(|word| format!("`{word}`")).collect();
        text.push_str(&format!(
            "| `{}` | {} | {} | {} |\n",
            defect["name"].as_str().unwrap(),
            defect["does"].as_str().unwrap(),
            words(&defect["fires"]).join(", "),
            reasons.join(" or ")
        ));
    }
    text
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

//! Rules over the whole repository that no compiler checks: crate arrows, lengths, banned calls, leftovers.

#![expect(clippy::unwrap_used, reason = "a rule that can't be checked must stop the test")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Lines of a source file.
const FILE_LEN_MAX: usize = 600;

/// Which members a crate may depend on (docs/architecture.md). `sse`, `stats`, `wire`, `scenario` on none.
const ARROWS: &[(&str, &[&str])] = &[
    ("scenario", &[]),
    ("sse", &[]),
    ("stats", &[]),
    ("wire", &[]),
    ("compose-engine", &[]),
    ("evidence", &["scenario", "stats"]),
    ("verdict", &["evidence", "sse", "scenario", "stats"]),
    ("report", &["evidence", "stats"]),
    ("mocks", &["wire", "scenario"]),
    ("refshard", &["wire", "scenario"]),
    ("loadgen", &["report", "evidence", "stats", "sse", "scenario"]),
    ("runner", &["compose-engine", "verdict", "report", "evidence", "scenario", "wire", "stats"]),
];

/// Files where a rule does not hold, each with its reason.
const EXCEPTIONS: &[(&str, &str)] = &[
    ("crates/wire/src/generated/", "written by the protobuf compiler"),
    ("/clock.rs", "the named module that reads the clock"),
    ("/examples/", "examples measure"),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn exempt(path: &str) -> bool {
    EXCEPTIONS.iter().any(|(part, _)| path.contains(part))
}

/// Every file of the repository outside build output, results and git's own.
fn files(ending: &str) -> Vec<(String, String)> {
    let root = root();
    let mut open = vec![root.clone()];
    let mut found = Vec::new();
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(dir).unwrap().flatten() {
            let path = entry.path();
            let name = entry.file_name().to_string_lossy().into_owned();
            if path.is_dir() {
                if !["target", ".git", "results", "node_modules"].contains(&name.as_str()) {
                    open.push(path);
                }
            } else if name.ends_with(ending)
                && let Ok(text) = fs::read_to_string(&path)
            {
                let path = path.strip_prefix(&root).unwrap().to_string_lossy().into_owned();
                found.push((path, text));
            }
        }
    }
    assert!(!found.is_empty() || ending == ".yml", "no {ending} files: the walk is broken");
    found
}

/// Reports all findings at once.
fn none(rule: &str, findings: &[String]) {
    assert!(findings.is_empty(), "{rule}:\n  {}", findings.join("\n  "));
}

#[test]
fn arrows_between_crates_point_one_way() {
    let allowed: BTreeMap<&str, &[&str]> = ARROWS.iter().copied().collect();
    let mut findings = Vec::new();
    let mut seen = BTreeSet::new();
    for (path, text) in files("Cargo.toml") {
        let name =
            text.lines().find_map(|line| line.strip_prefix("name = ")).map(|name| name.trim_matches('"'));
        let Some(name) = name.filter(|name| allowed.contains_key(name)) else { continue };
        seen.insert(name.to_owned());
        let dependencies = text.split("[dependencies]").nth(1).unwrap_or_default();
        let dependencies = dependencies.split("\n[").next().unwrap_or_default();
        for line in dependencies.lines() {
            let dependency = line.split(['.', ' ', '=']).next().unwrap_or_default();
            if allowed.contains_key(dependency) && !allowed[name].contains(&dependency) {
                findings.push(format!("{path}: {name} must not depend on {dependency}"));
            }
        }
    }
    assert_eq!(seen.len(), ARROWS.len(), "every crate of the table was looked at");
    none("crate arrows", &findings);
}

#[test]
fn files_are_short() {
    let mut findings = Vec::new();
    for (path, text) in files(".rs").into_iter().filter(|(path, _)| !exempt(path)) {
        let lines = text.lines().count();
        if lines > FILE_LEN_MAX {
            findings.push(format!("{path}: {lines} lines, at most {FILE_LEN_MAX}"));
        }
    }
    none("lengths", &findings);
}

#[test]
fn clocks_and_chance_are_read_in_named_modules_only() {
    let banned = ["Instant::now", "SystemTime::now", "thread_rng", "rand::random", "/dev/urandom"];
    let mut findings = Vec::new();
    for (path, text) in files(".rs") {
        let test = path.contains("/tests/") || path.starts_with("tests/") || path.ends_with("/tests.rs");
        if test || exempt(&path) {
            continue;
        }
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        for (number, line) in
            code.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//"))
        {
            // Deadlines of waits are no measurements: tokio's own clock may be read for them.
            let line = line.replace("tokio::time::Instant::now", "");
            for call in banned.iter().filter(|call| line.contains(**call)) {
                findings.push(format!("{path}:{}: {call} outside a clock module", number + 1));
            }
        }
    }
    none("banned calls", &findings);
}

#[test]
fn the_runner_prints_through_its_view() {
    let mut findings = Vec::new();
    let own = |path: &str| path.starts_with("runner/src/") && path != "runner/src/view.rs";
    for (path, text) in files(".rs").into_iter().filter(|(path, _)| own(path)) {
        for (number, line) in text.lines().enumerate() {
            // A reader that has gone would end the program; standard error of the guard goes to a file.
            let line = line.replace("eprintln!", "").replace("eprint!", "");
            if line.contains("println!(") || line.contains("print!(") {
                findings.push(format!("{path}:{}: prints past crate::view", number + 1));
            }
        }
    }
    none("output", &findings);
}

#[test]
fn nothing_is_left_over() {
    let mut findings = Vec::new();
    let kinds = [".rs", ".toml", ".md", ".yaml", ".sh", ".proto", "Makefile"];
    for (path, text) in kinds.iter().flat_map(|kind| files(kind)) {
        if path.ends_with("tidy.rs") {
            continue;
        }
        for (number, line) in text.lines().enumerate() {
            let mark = ["TODO", "FIXME", "XXX", "HACK"]
                .iter()
                .find(|mark| line.split(|c: char| !c.is_ascii_alphanumeric()).any(|word| word == **mark));
            // A number behind the sign: comments and headings begin with one alone.
            let numbered = line.split('#').skip(1).any(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
            if mark.is_some() && !numbered {
                findings.push(format!("{path}:{}: a leftover without an issue number", number + 1));
            }
        }
    }
    none("leftovers", &findings);
}

#[test]
fn every_crate_says_what_must_never_happen_in_it() {
    let heads = files("lib.rs")
        .into_iter()
        .filter(|(path, _)| path.ends_with("src/lib.rs") && !path.starts_with("tests/"));
    let silent: Vec<String> = heads
        .filter(|(_, text)| {
            let head: String = text.lines().take_while(|line| line.starts_with("//!")).collect();
            !head.to_lowercase().contains("never happen") || !head.to_lowercase().contains("state")
        })
        .map(|(path, _)| {
            format!("{path}: the head names neither the owner of state nor what must never happen")
        })
        .collect();
    none("crate heads", &silent);
}

#[test]
fn no_machine_path_and_no_secret_is_committed() {
    // The checkout's own place is a path of this machine, whichever machine it is.
    let own = root().canonicalize().unwrap().to_string_lossy().into_owned();
    let banned = [own.as_str(), "/.cargo/registry", "BEGIN PRIVATE KEY"];
    let mut findings = Vec::new();
    for ending in [".rs", ".toml", ".md", ".yaml", ".yml", ".json", "Makefile", "run"] {
        for (path, text) in files(ending).into_iter().filter(|(path, _)| !path.ends_with("tidy.rs")) {
            findings.extend(
                banned
                    .iter()
                    .filter(|part| text.contains(**part))
                    .map(|part| format!("{path}: contains {part}")),
            );
        }
    }
    none("paths and secrets", &findings);
}

#[test]
fn direct_dependencies_are_explained() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let table = fs::read_to_string(root().join("docs/dependencies.md")).unwrap();
    let section = manifest.split("# from the registry").nth(1).unwrap_or_default();
    let section = section.split("\n[workspace.lints").next().unwrap_or_default();
    let names = section.lines().filter(|line| line.contains(" = ") && !line.starts_with('#'));
    let silent: Vec<String> = names
        .filter_map(|line| line.split(' ').next())
        .filter(|name| !table.contains(&format!("| `{name}`")))
        .map(|name| format!("{name} has no line in docs/dependencies.md"))
        .collect();
    none("dependencies", &silent);
}

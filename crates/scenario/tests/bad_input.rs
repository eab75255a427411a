//! Every file of `tests/bad-input` is refused with the expected lines and messages. A file names what it expects in
//! comments at its end: `# expect <line>: <part of the message>`.

#![expect(clippy::unwrap_used, reason = "a failed step of a test should end it")]

use std::collections::BTreeMap;
use std::path::Path;

use scenario::read::INPUT_BYTES_MAX;
use scenario::{Overrides, ScenarioError, parse, parse_profile, resolve};

fn profiles() -> BTreeMap<String, scenario::profile::Profile> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ml-profiles");
    ["fast", "realistic"]
        .into_iter()
        .map(|name| {
            let bytes = std::fs::read(folder.join(format!("{name}.yaml"))).unwrap();
            (name.to_owned(), parse_profile(&bytes, name).unwrap())
        })
        .collect()
}

fn refuse(bytes: &[u8], name: &str) -> ScenarioError {
    let read = parse(bytes, name).and_then(|file| resolve(&file, &profiles(), &Overrides::default()));
    read.err().unwrap_or_else(|| panic!("{name} is accepted"))
}

#[test]
fn each_bad_file_is_refused_at_its_line() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bad-input");
    let mut files = 0;
    let mut missed = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&path).unwrap();
        let expected: Vec<(u64, &str)> = text
            .lines()
            .filter_map(|line| line.strip_prefix("# expect ")?.split_once(": "))
            .map(|(line, part)| (line.parse().unwrap(), part))
            .collect();
        assert!(!expected.is_empty(), "{name} expects nothing");
        let error = refuse(text.as_bytes(), &name);
        for (line, part) in expected {
            let found = error.problems.iter().any(|p| p.line == line && p.to_string().contains(part));
            if !found {
                missed.push(format!("{name} has no problem {part:?} at line {line}:\n{error}"));
            }
        }
        for problem in &error.problems {
            assert!(problem.to_string().starts_with(&format!("{name}:{}:", problem.line)), "{problem}");
            assert!(problem.to_string().len() < 1_000, "{name}: a message is too long");
        }
        files += 1;
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
    assert!(files >= 60, "only {files} files");
}

#[test]
fn one_reading_reports_every_problem() {
    let text =
        "version: 1\nname: a\nseed: x\nzebra: 1\ndevshard: { participant: 3 }\npool: []\nworkload: {}\n";
    let error = parse(text.as_bytes(), "f.yaml").unwrap_err();
    let lines: Vec<u64> = error.problems.iter().map(|problem| problem.line).collect();
    assert_eq!(lines, [3, 4, 5, 7, 7, 7], "{error}");
    assert!(error.to_string().starts_with("f.yaml:3:7: seed is the text \"x\""), "{error}");
}

#[test]
fn files_that_are_no_text_or_too_large_are_refused() {
    let large = vec![b'#'; 10 << 20];
    let error = parse(&large, "large.yaml").unwrap_err().to_string();
    assert!(error.contains(&format!("larger than {INPUT_BYTES_MAX} bytes (10485760)")), "{error}");
    let error = parse(b"version: 1\nname: \xff\n", "raw.yaml").unwrap_err();
    assert_eq!((error.problems[0].line, error.problems.len()), (2, 1));
    assert!(parse(b"", "empty.yaml").unwrap_err().to_string().contains("the file holds nothing"));
}

#[test]
fn more_problems_than_are_kept_are_counted() {
    let mut text = String::new();
    for index in 0..200 {
        text.push_str(&format!("key{index}: 1\n"));
    }
    let error = parse(text.as_bytes(), "many.yaml").unwrap_err();
    assert_eq!(error.problems.len(), scenario::error::PROBLEMS_MAX + 1);
    assert!(error.to_string().ends_with("more problems are not shown"), "{error}");
}

#[test]
fn profiles_are_held_to_the_same_rules() {
    for (text, line, part) in [
        ("ttft: 5ms\ntoken_interval: 1ms\nworkers: 0\nqueue: 1\n", 3, "workers is 0"),
        ("ttft: 5\ntoken_interval: 1ms\nworkers: 1\nqueue: 1\n", 1, "\"5\" is not a duration"),
        (
            "ttft: { min: 9ms, max: 2ms }\ntoken_interval: 1ms\nworkers: 1\nqueue: 1\n",
            1,
            "min 9ms is above max 2ms",
        ),
        (
            "ttft: { min: 9ms, mx: 2ms }\ntoken_interval: 1ms\nworkers: 1\nqueue: 1\n",
            1,
            "did you mean \"max\"",
        ),
        ("ttft: 1ms\ntoken_intervall: 1ms\nworkers: 1\nqueue: 1\n", 2, "did you mean \"token_interval\""),
        (
            "ttft: 1ms\ntoken_interval: 1ms\nworkers: 1\nqueue: 1\nfailures:\n  - { request_id_hash_fraction: 0.1, http_status: 200 }\n",
            6,
            "must be from 400 to 599",
        ),
    ] {
        let error = parse_profile(text.as_bytes(), "p.yaml").unwrap_err();
        let found = error.problems.iter().any(|p| p.line == line && p.to_string().contains(part));
        assert!(found, "{part:?} at {line}:\n{error}");
    }
}

//! What a request costs in instructions of the program, counted by callgrind and compared with a committed figure: a
//! shared machine can't falsify it, and what makes every request dearer shows up before anybody measures. Counted is
//! example `exchange_cost`, in which no clock and no socket decides about a step.
//!
//! It is the program as the tests build it (own crates not optimised), so the figures are no speed: only their change
//! means something. Where they have changed for a good reason, write the new ones below.
//! Without valgrind nothing is compared, and the test says so; with `PROOFLOAD_VALGRIND=required` it then fails.

#![expect(clippy::unwrap_used, reason = "a test that can't go on must stop")]

use std::path::Path;
use std::process::{Command, Stdio};

/// Instructions a request: a JSON answer of 2.7 kB with log probabilities, and the stream of the fixture.
const JSON: u64 = 128_289;
const SSE: u64 = 266_397;
/// Change that is let through, in percent, either way.
const LIMIT_PERCENT: u64 = 10;
/// Requests of the two runs whose difference leaves start and end of the program out.
const FEW: u64 = 100;
const MANY: u64 = 600;

fn has_valgrind() -> bool {
    let asked =
        Command::new("valgrind").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    asked.is_ok_and(|status| status.success())
}

/// Instructions of a whole run.
fn counted(folder: &Path, kind: &str, requests: u64) -> u64 {
    let example = Path::new(env!("CARGO_BIN_EXE_loadgen")).with_file_name("examples").join("exchange_cost");
    let out = folder.join(format!("{kind}-{requests}"));
    let ended = Command::new("valgrind")
        .args(["--tool=callgrind", &format!("--callgrind-out-file={}", out.display())])
        .arg(&example)
        .args([kind, &requests.to_string()])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{} (built with all targets?): {said}", example.display());
    let found = std::fs::read_to_string(out).unwrap();
    let total = found.lines().find_map(|line| line.strip_prefix("totals: ")).unwrap();
    total.trim().parse().unwrap()
}

#[test]
fn a_request_costs_what_it_did() {
    if !has_valgrind() {
        assert_ne!(
            std::env::var("PROOFLOAD_VALGRIND").as_deref(),
            Ok("required"),
            "valgrind is not installed"
        );
        println!("NO VALGRIND: the cost of a request in instructions was not compared");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let cost = |kind| {
        let [few, many] = [FEW, MANY].map(|requests| counted(dir.path(), kind, requests));
        (many - few) / (MANY - FEW)
    };
    let found = [("a JSON answer", cost("json"), JSON), ("a stream", cost("sse"), SSE)];
    for (what, found, known) in found {
        println!("{what}: {found} instructions, known are {known}");
    }
    for (what, found, known) in found {
        assert!(
            found.abs_diff(known) * 100 <= known * LIMIT_PERCENT,
            "{what} costs {found} instructions of the program, and cost {known}: find what changed; if it is wanted, \
             write the new figure into this file"
        );
    }
}

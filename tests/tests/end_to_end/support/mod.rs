//! What the end-to-end tests share: programs as built, scenario variants, run directories.

#![allow(dead_code, clippy::unwrap_used, reason = "each test file uses its own part of this module")]

pub mod stand_in;
pub mod theirs;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// The repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

/// Folder with the programs of a profile (`debug`, or `defects` for the build with planted defects).
pub fn bin_dir(profile: &str) -> PathBuf {
    // The test itself lies in <target>/<profile>/deps.
    let own = std::env::current_exe().unwrap();
    let target = own.ancestors().nth(3).unwrap();
    let dir = target.join(profile);
    assert!(
        dir.join("runner").is_file(),
        "{} holds no runner: `make test` builds the programs first",
        dir.display()
    );
    dir
}

/// The runner of a profile.
pub fn runner_of(profile: &str) -> Command {
    let mut command = Command::new(bin_dir(profile).join("runner"));
    command.current_dir(root()).env("NO_COLOR", "1").env_remove("PROOFLOAD_BIN_DIR");
    command
}

/// The runner under test.
pub fn runner() -> Command {
    runner_of("debug")
}

/// The text of the main scenario.
pub fn ml_5xx() -> String {
    std::fs::read_to_string(root().join("scenarios/ml-5xx.yaml")).unwrap()
}

/// Replaces a part of a text that must be there.
pub fn with(text: &str, from: &str, to: &str) -> String {
    assert!(text.contains(from), "the scenario has no {from:?}");
    text.replace(from, to)
}

/// A finished run.
pub struct Run {
    pub output: Output,
    pub results: tempfile::TempDir,
}

impl Run {
    /// Writes a scenario and runs it.
    pub fn of(text: &str, args: &[&str]) -> Self {
        Self::on("debug", text, args)
    }

    /// The same with the programs of a profile.
    pub fn on(profile: &str, text: &str, args: &[&str]) -> Self {
        let results = tempfile::tempdir().unwrap();
        let file = results.path().join("scenario.yaml");
        std::fs::write(&file, text).unwrap();
        let out = results.path().join("results");
        let output = runner_of(profile)
            .arg("run")
            .arg(&file)
            .args(["--profiles", "ml-profiles", "--quiet", "--results"])
            .arg(&out)
            .args(args)
            .output()
            .unwrap();
        Self { output, results }
    }

    /// Exit code.
    pub fn code(&self) -> i32 {
        self.output.status.code().unwrap_or(-1)
    }

    /// Both outputs, for messages of failed tests.
    pub fn text(&self) -> String {
        format!(
            "{}{}",
            String::from_utf8_lossy(&self.output.stdout),
            String::from_utf8_lossy(&self.output.stderr)
        )
    }

    /// The run directories in order.
    pub fn dirs(&self) -> Vec<PathBuf> {
        run_dirs(&self.results.path().join("results"))
    }

    /// The one run directory.
    pub fn dir(&self) -> PathBuf {
        let dirs = self.dirs();
        assert_eq!(dirs.len(), 1, "{}", self.text());
        dirs[0].clone()
    }

    /// A JSON file of the run.
    pub fn json(&self, name: &str) -> Value {
        json(&self.dir().join(name))
    }

    /// Asserts the exit code.
    pub fn expect(self, code: i32) -> Self {
        assert_eq!(self.code(), code, "{}{}", self.text(), self.judged());
        self
    }

    /// What the assertions found, for messages of failed tests: the directory is gone when they are read.
    pub fn judged(&self) -> String {
        self.dirs().iter().map(|dir| judged(dir)).collect()
    }
}

pub fn run_dirs(results: &Path) -> Vec<PathBuf> {
    let Ok(list) = std::fs::read_dir(results) else { return Vec::new() };
    let mut dirs: Vec<PathBuf> =
        list.flatten().map(|entry| entry.path()).filter(|path| path.join("run.yaml").exists()).collect();
    dirs.sort();
    dirs
}

pub fn json(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap()
}

/// JSON lines of a file.
pub fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Every assertion that did not hold, with each reason and witness that it kept, and what the known findings left over.
pub fn judged(dir: &Path) -> String {
    let (path, mut text) = (dir.join("assertions.json"), String::new());
    if !path.exists() {
        return format!("{}: no assertions.json\n", dir.display());
    }
    for result in json(&path)["results"].as_array().unwrap() {
        let status = result["status"].as_str().unwrap();
        if matches!(status, "pass" | "not-applicable") {
            continue;
        }
        let (id, total) = (result["id"].as_str().unwrap(), &result["witnesses_total"]);
        text += &format!("{id} {status}: {total} found\n");
        for missing in result["missing"].as_array().unwrap() {
            text += &format!("  missing: {}\n", missing.as_str().unwrap());
        }
        for witness in result["witnesses"].as_array().unwrap() {
            let (reason, message) = (&witness["reason"], &witness["message"]);
            text += &format!("  {}: {}\n", reason.as_str().unwrap(), message.as_str().unwrap());
        }
    }
    let known = &json(&dir.join("summary.json"))["known"];
    if known.is_object() {
        text += &format!("known findings: {} new, accepted {}\n", known["new"], known["accepted"]);
    }
    text
}

/// Ids of the assertions with a status.
pub fn with_status(assertions: &Value, status: &str) -> Vec<String> {
    let results = assertions["results"].as_array().unwrap();
    let chosen = results.iter().filter(|result| result["status"] == status);
    chosen.map(|result| result["id"].as_str().unwrap().to_owned()).collect()
}

/// Living processes whose command line names a path.
pub fn processes_of(part: &str) -> Vec<u32> {
    let own = std::process::id();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let Ok(line) = std::fs::read(entry.path().join("cmdline")) else { continue };
        let zombie = std::fs::read_to_string(entry.path().join("stat")).is_ok_and(|stat| {
            stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('Z'))
        });
        if pid != own && !zombie && String::from_utf8_lossy(&line).contains(part) {
            found.push(pid);
        }
    }
    found
}

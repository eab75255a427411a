//! `manifest.json`: BLAKE3 and size of every file of the run.

use std::collections::BTreeMap;
use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FileEntry {
    /// Bytes.
    pub bytes: u64,
    /// Lower-case hex.
    pub blake3: String,
}

/// `manifest.json`. Names are relative with `/`; the manifest itself is not listed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Manifest {
    /// Format version.
    pub v: u32,
    /// Run.
    pub run_id: String,
    /// Files by name.
    pub files: BTreeMap<String, FileEntry>,
    /// Evidence that a bound or an error kept out, in words.
    pub dropped: Vec<String>,
}

/// Files that grow after the manifest was written: teardown is logged too.
fn grows(name: &str) -> bool {
    name == crate::rundir::EVENTS || name.starts_with(crate::rundir::LOGS)
}

/// Artifacts of a judgement, which every judgement writes anew.
fn is_judgement(name: &str) -> bool {
    use crate::rundir::{ASSERTIONS, FAILURES, PAGE, SUMMARY};
    name == ASSERTIONS || name == SUMMARY || name == PAGE || name.starts_with(FAILURES)
}

impl Manifest {
    /// Evidence that is not as listed any more, with what is wrong, in order of name.
    #[must_use]
    pub fn changed(&self, root: &Path) -> Vec<(String, String)> {
        let evidence = self.files.iter().filter(|(name, _)| !is_judgement(name));
        let differs = |(name, listed): (&String, &FileEntry)| {
            let why = match crate::rundir::hash_head(&root.join(name), listed.bytes) {
                Err(error) => format!("listed in the manifest, and can't be read: {error}"),
                Ok((now, _)) if now < listed.bytes => {
                    format!("{now} bytes, the manifest lists {}: it was cut since the run", listed.bytes)
                }
                Ok((now, _)) if now > listed.bytes && !grows(name) => {
                    format!("{now} bytes, the manifest lists {}: it has grown since the run", listed.bytes)
                }
                Ok((_, blake3)) if blake3 != listed.blake3 => "it was changed since the run".to_owned(),
                Ok(_) => return None,
            };
            Some((name.clone(), why))
        };
        evidence.filter_map(differs).collect()
    }
}

#[cfg(test)]
mod tests {
    use crate::rundir::{EVENTS, REQUESTS, RunDir, SUMMARY};

    #[test]
    fn what_was_cut_changed_or_lost_is_told() {
        let base = tempfile::tempdir().unwrap();
        let dir = RunDir::create(base.path(), "r").unwrap();
        for name in [REQUESTS, EVENTS, SUMMARY, "drain.jsonl", "plan.jsonl"] {
            dir.write_text(name, "one\ntwo\n").unwrap();
        }
        let manifest = dir.write_manifest("r", vec![]).unwrap();
        assert_eq!(manifest.changed(dir.root()), vec![]);
        dir.write_text(REQUESTS, "one\n").unwrap();
        dir.write_text(EVENTS, "one\ntwo\nteardown\n").unwrap();
        dir.write_text(SUMMARY, "other").unwrap();
        dir.write_text("drain.jsonl", "one\ntwx\n").unwrap();
        std::fs::remove_file(dir.path("plan.jsonl")).unwrap();
        let changed = manifest.changed(dir.root());
        let told: Vec<&str> = changed.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(told, ["drain.jsonl", "plan.jsonl", REQUESTS], "{changed:?}");
        assert!(changed[2].1.contains("cut"), "{changed:?}");
    }
}

//! Finding the programs of a run: in `--bin-dir` where it is given, else beside the runner's own executable (design section
//! 2). Never in both: a folder that was misspelt or built in part would be tested with other programs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use evidence::run::ProgramIdentity;
use scenario::build::BUILD_ID;

use crate::error::RunnerError;

/// Programs by name.
#[derive(Clone, Debug, Default)]
pub struct Programs {
    paths: BTreeMap<String, PathBuf>,
}

impl Programs {
    /// Finds every named program.
    ///
    /// # Errors
    /// [`RunnerError::Environment`] naming all that are missing, where they were looked for, and what to do.
    pub fn find(bin_dir: Option<&Path>, names: &[&str]) -> Result<Self, RunnerError> {
        let own = || std::env::current_exe().ok().and_then(|path| path.parent().map(Path::to_path_buf));
        let place = bin_dir.map(Path::to_path_buf).or_else(own).unwrap_or_default();
        let mut paths = BTreeMap::new();
        let mut missing = Vec::new();
        for name in names {
            let path = place.join(name);
            if path.is_file() {
                paths.insert((*name).to_owned(), path);
            } else {
                missing.push(*name);
            }
        }
        if missing.is_empty() {
            return Ok(Self { paths });
        }
        Err(RunnerError::environment(format!(
            "program not found: {} (looked in {}); build the workspace with `make build`, or give --bin-dir",
            missing.join(", "),
            place.display()
        )))
    }

    /// Path of a program that was asked for in [`Programs::find`].
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.paths.get(name).cloned().unwrap_or_else(|| PathBuf::from(name))
    }

    /// Identity of every program for `run.yaml`: our build id and the BLAKE3 of each binary.
    #[must_use]
    pub fn identities(&self) -> BTreeMap<String, ProgramIdentity> {
        self.paths
            .iter()
            .map(|(name, path)| {
                let identity = ProgramIdentity {
                    build: BUILD_ID.to_owned(),
                    blake3: hash(path),
                    // The file name alone: a path would tell about the machine and differ between equal runs.
                    path: path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
                };
                (name.clone(), identity)
            })
            .collect()
    }
}

fn hash(path: &Path) -> Option<String> {
    let mut hasher = blake3::Hasher::new();
    // Its buffer is long enough for the wide instructions; the one of `io::copy` is not.
    hasher.update_reader(std::fs::File::open(path).ok()?).ok()?;
    Some(hasher.finalize().to_hex().to_string())
}

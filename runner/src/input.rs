//! Reading scenario and profile files: the only place where the runner turns a path into a scenario.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use evidence::run::LimitInForce;
use scenario::model::Resolved;
use scenario::profile::Profile;
use scenario::read::{INPUT_BYTES_MAX, parse, parse_profile};
pub use scenario::resolve::{Overrides, Setting};
use scenario::resolve::{limits, resolve};

use crate::error::RunnerError;

/// A scenario as every part reads it.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// Text of the scenario file.
    pub text: Vec<u8>,
    /// Resolved.
    pub resolved: Resolved,
    /// Limits in force.
    pub limits: Vec<LimitInForce>,
}

/// Reads, resolves and names every limit with its source.
///
/// # Errors
/// [`RunnerError::Usage`] with every problem of scenario and profiles, [`RunnerError::Read`] for a file that is not
/// there.
pub fn load(scenario: &Path, profiles: &Path, overrides: &Overrides) -> Result<Loaded, RunnerError> {
    let usage = |error: scenario::error::ScenarioError| RunnerError::Usage(error.to_string());
    let text = bounded(scenario)?;
    let file = parse(&text, &scenario.display().to_string()).map_err(usage)?;
    if !profiles.is_dir() && !file.profile_names().is_empty() {
        let text = "there is no such folder of ML profiles; give --profiles";
        return Err(RunnerError::Usage(format!("{}: {text}", profiles.display())));
    }
    let mut known: BTreeMap<String, Profile> = BTreeMap::new();
    for name in file.profile_names() {
        // A name with a path in it would read files outside the folder; the resolution names the unknown profile.
        if !scenario::identity::valid_name(name) {
            continue;
        }
        let path = profiles.join(format!("{name}.yaml"));
        if path.is_file() {
            let profile = parse_profile(&bounded(&path)?, &path.display().to_string()).map_err(usage)?;
            known.insert(name.to_owned(), profile);
        }
    }
    let resolved = resolve(&file, &known, overrides).map_err(usage)?;
    let limits = limits(&file, &resolved, overrides)
        .into_iter()
        .map(|row| LimitInForce { name: row.name, value: row.value, source: row.source.to_string() })
        .collect();
    Ok(Loaded { text, resolved, limits })
}

/// Reads a file up to one byte beyond what the parser accepts.
fn bounded(path: &Path) -> Result<Vec<u8>, RunnerError> {
    let failed = |source| RunnerError::Read { path: path.to_path_buf(), source };
    let file = std::fs::File::open(path).map_err(failed)?;
    let mut text = Vec::new();
    file.take(INPUT_BYTES_MAX as u64 + 1).read_to_end(&mut text).map_err(failed)?;
    Ok(text)
}

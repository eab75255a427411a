//! What a load run leaves for readers: text, JSON, CSV, Prometheus text, JUnit, one offline page and a join template.
//! Every writer is a pure function of the one [`RunResult`]; this file is the edge to the disk.

pub mod compare;
mod csv;
mod html;
mod join;
mod junit;
pub mod legend;
pub mod merge;
mod plots;
mod prometheus;
mod show;
mod text;

pub use csv::csv;
pub use html::html;
pub use join::join;
pub use junit::junit;
pub use prometheus::prometheus;
pub use text::text;

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::error::LoadgenError;
use crate::result::{RESULT_VERSION, RunResult};

/// Largest summary that is read back.
const SUMMARY_LEN_MAX: u64 = 256 * 1024 * 1024;

/// Writes every file of a run into a directory; gives their paths. A file appears whole or not at all.
///
/// # Errors
/// [`LoadgenError::Environment`] with the file and the cause.
pub fn write_all(dir: &Path, result: &RunResult) -> Result<Vec<PathBuf>, LoadgenError> {
    let stamp = &result.run.stamp;
    let files = [
        (format!("summary-{stamp}.json"), summary_json(result)),
        (format!("report-{stamp}.txt"), text(result)),
        (format!("report-{stamp}.csv"), csv(result)),
        (format!("report-{stamp}.html"), html(result)),
        (format!("metrics-{stamp}.prom"), prometheus(result)),
        (format!("junit-{stamp}.xml"), junit(result)),
        ("join.sql".to_owned(), join(result)),
    ];
    fs::create_dir_all(dir).map_err(|error| environment("making", dir, &error))?;
    files.into_iter().map(|(name, text)| write_whole(&dir.join(name), &text)).collect()
}

/// `summary-<ts>.json`: the result itself, readable for people too.
#[must_use]
pub fn summary_json(result: &RunResult) -> String {
    let mut text = serde_json::to_string_pretty(result)
        .expect("a result has text keys and finite numbers only, which its own test holds");
    text.push('\n');
    text
}

/// Reads a summary back.
///
/// # Errors
/// [`LoadgenError::Usage`] when it is absent, too large, damaged, or of a newer format.
pub fn read_summary(path: &Path) -> Result<RunResult, LoadgenError> {
    let bad = |why: String| LoadgenError::Usage(format!("{}: {why}", path.display()));
    let file = fs::File::open(path).map_err(|error| bad(error.to_string()))?;
    let mut text = String::new();
    file.take(SUMMARY_LEN_MAX + 1).read_to_string(&mut text).map_err(|error| bad(error.to_string()))?;
    if text.len() as u64 > SUMMARY_LEN_MAX {
        return Err(bad(format!("longer than {SUMMARY_LEN_MAX} bytes, which no summary is")));
    }
    let value: serde_json::Value = serde_json::from_str(&text).map_err(|error| bad(error.to_string()))?;
    match value["v"].as_u64() {
        Some(v) if v == u64::from(RESULT_VERSION) => {}
        Some(v) => return Err(bad(format!("format version {v}, this build reads {RESULT_VERSION}"))),
        None => return Err(bad("no summary of a load run: it has no version".to_owned())),
    }
    serde_json::from_str(&text).map_err(|error| bad(error.to_string()))
}

fn write_whole(path: &Path, text: &str) -> Result<PathBuf, LoadgenError> {
    let mut beside = path.to_path_buf().into_os_string();
    beside.push(".part");
    let beside = PathBuf::from(beside);
    let written = fs::write(&beside, text).and_then(|()| fs::rename(&beside, path));
    written.map(|()| path.to_path_buf()).map_err(|error| {
        // The first error is the one worth reporting.
        drop(fs::remove_file(&beside));
        environment("writing", path, &error)
    })
}

fn environment(action: &str, path: &Path, error: &std::io::Error) -> LoadgenError {
    LoadgenError::Environment(format!("{action} {}: {error}", path.display()))
}

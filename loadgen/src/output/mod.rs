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
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use serde::Serialize as _;
use serde_json::Serializer;
use serde_json::ser::{Formatter, PrettyFormatter};

use crate::error::LoadgenError;
use crate::result::{RESULT_VERSION, RunResult};

/// Largest summary that is read back.
const SUMMARY_LEN_MAX: u64 = 256 * 1024 * 1024;

/// A writer of text.
type Writer = fn(&RunResult) -> String;

/// Writes every file of a run into a directory, one after another, so that only one is in memory at a time; gives their
/// paths. A file appears whole or not at all.
///
/// # Errors
/// [`LoadgenError::Environment`] with the file and the cause.
pub fn write_all(dir: &Path, result: &RunResult) -> Result<Vec<PathBuf>, LoadgenError> {
    let stamp = &result.run.stamp;
    let files: [(String, Writer); 6] = [
        (format!("report-{stamp}.txt"), text),
        (format!("report-{stamp}.csv"), csv),
        (format!("report-{stamp}.html"), html),
        (format!("metrics-{stamp}.prom"), prometheus),
        (format!("junit-{stamp}.xml"), junit),
        ("join.sql".to_owned(), join),
    ];
    fs::create_dir_all(dir).map_err(|error| environment("making", dir, &error))?;
    let summary = dir.join(format!("summary-{stamp}.json"));
    let summary = write_whole(&summary, |file| write_summary(result, file));
    let others = files
        .into_iter()
        .map(|(name, made)| write_whole(&dir.join(name), |file| file.write_all(made(result).as_bytes())));
    std::iter::once(summary).chain(others).collect()
}

/// `summary-<ts>.json`: the result itself, readable for people too.
#[must_use]
pub fn summary_json(result: &RunResult) -> String {
    let mut bytes = Vec::new();
    write_summary(result, &mut bytes)
        .expect("a result has text keys and finite numbers only, which its own test holds");
    String::from_utf8(bytes).expect("JSON is text")
}

fn write_summary(result: &RunResult, mut out: &mut dyn Write) -> io::Result<()> {
    let layout = Layout(PrettyFormatter::new());
    result.serialize(&mut Serializer::with_formatter(&mut out, layout))?;
    out.write_all(b"\n")
}

/// Keys of objects on lines of their own, lists on one: a histogram is a list of thousands of pairs.
struct Layout(PrettyFormatter<'static>);

impl Formatter for Layout {
    fn begin_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.begin_object(out)
    }

    fn end_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_object(out)
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_object_key(out, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.begin_object_value(out)
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_object_value(out)
    }
}

/// Reads a summary back.
///
/// # Errors
/// [`LoadgenError::Usage`] when it is absent, too large, damaged, or of a newer format.
pub fn read_summary(path: &Path) -> Result<RunResult, LoadgenError> {
    let bad = |why: String| LoadgenError::Usage(format!("{}: {why}", path.display()));
    let text = crate::input::read(path, SUMMARY_LEN_MAX).map_err(bad)?;
    let value: serde_json::Value = serde_json::from_slice(&text).map_err(|error| bad(error.to_string()))?;
    match value["v"].as_u64() {
        Some(v) if v == u64::from(RESULT_VERSION) => {}
        Some(v) => return Err(bad(format!("format version {v}, this build reads {RESULT_VERSION}"))),
        None => return Err(bad("no summary of a load run: it has no version".to_owned())),
    }
    serde_json::from_slice(&text).map_err(|error| bad(error.to_string()))
}

fn write_whole(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<PathBuf, LoadgenError> {
    let mut beside = path.to_path_buf().into_os_string();
    beside.push(".part");
    let beside = PathBuf::from(beside);
    let written = fs::File::create(&beside).and_then(|file| {
        let mut file = BufWriter::new(file);
        write(&mut file)?;
        file.flush()?;
        fs::rename(&beside, path)
    });
    written.map(|()| path.to_path_buf()).map_err(|error| {
        // The first error is the one worth reporting.
        drop(fs::remove_file(&beside));
        environment("writing", path, &error)
    })
}

fn environment(action: &str, path: &Path, error: &std::io::Error) -> LoadgenError {
    LoadgenError::Environment(format!("{action} {}: {error}", path.display()))
}

//! The directory of one run: names, writing as things happen, and tolerant reading.
//!
//! Writing: JSON Lines files are appended and flushed by the line, whole files appear atomically (written beside
//! and renamed), everything passes the redactor. Reading: a missing file and a corrupt line are facts that the
//! reader returns, never a reason to stop.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

use crate::manifest::{FileEntry, Manifest};
use crate::raw::RawLines;
use crate::redact::Redactor;

/// `run.yaml`.
pub const RUN: &str = "run.yaml";
/// `summary.json`.
pub const SUMMARY: &str = "summary.json";
/// `requests.jsonl`, written by loadgen.
pub const REQUESTS: &str = "requests.jsonl";
/// `assertions.json`.
pub const ASSERTIONS: &str = "assertions.json";
/// `plan.jsonl`.
pub const PLAN: &str = "plan.jsonl";
/// `events.jsonl`.
pub const EVENTS: &str = "events.jsonl";
/// `drain.jsonl`.
pub const DRAIN: &str = "drain.jsonl";
/// `accounting.jsonl`.
pub const ACCOUNTING: &str = "accounting.jsonl";
/// Applied fault configuration.
pub const FAULTS_APPLIED: &str = "faults/applied.json";
/// Fault hits of all mocks.
pub const HITS: &str = "faults/hits.jsonl";
/// Calls at ML nodes.
pub const NODE_CALLS: &str = "faults/node-calls.jsonl";
/// Calls at the allocator.
pub const DAPI_CALLS: &str = "faults/dapi-calls.jsonl";
/// Calls at the chain.
pub const CHAIN_CALLS: &str = "faults/chain-calls.jsonl";
/// Bundles.
pub const FAILURES: &str = "failures";
/// Logs by service.
pub const LOGS: &str = "logs";
/// Metrics by moment and service.
pub const METRICS: &str = "metrics";
/// Snapshots by moment.
pub const SNAPSHOTS: &str = "snapshots";
/// Diffs of all snapshots, each once.
pub const DIFFS: &str = "snapshots/diffs.jsonl";
/// Inferences of all snapshots, each whenever it changed.
pub const INFERENCES: &str = "snapshots/inferences.jsonl";
/// The lease tables over time (Postgres).
pub const LEASES: &str = "snapshots/leases.jsonl";
/// The normalised snapshot inside a moment's directory.
pub const SNAPSHOT_FILE: &str = "snapshot.json";
/// `report.html`.
pub const PAGE: &str = "report.html";
/// `manifest.json`.
pub const MANIFEST: &str = "manifest.json";

/// Longest line that a reader accepts.
pub const LINE_LEN_MAX: usize = 16 * 1024 * 1024;

/// Why the run directory could not be used.
#[derive(Debug, Error)]
pub enum RunDirError {
    /// An operation on a file failed; a full disk shows here.
    #[error("{action} {path}: {source}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The directory exists already.
    #[error("{0} exists already: a run id is never used twice")]
    Exists(PathBuf),
    /// A value could not be written as JSON.
    #[error("writing {path} as JSON: {source}")]
    Json {
        /// File.
        path: PathBuf,
        /// Reason.
        source: serde_json::Error,
    },
}

fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> RunDirError {
    let path = path.to_path_buf();
    move |source| RunDirError::Io { action, path, source }
}

/// The directory of one run, open for writing.
#[derive(Debug)]
pub struct RunDir {
    root: PathBuf,
    redactor: Redactor,
}

impl RunDir {
    /// Creates `<results>/<run_id>` with its sub-directories.
    ///
    /// # Errors
    /// [`RunDirError::Exists`] when the run id is taken, [`RunDirError::Io`] when a directory can't be made.
    pub fn create(results: &Path, run_id: &str) -> Result<Self, RunDirError> {
        fs::create_dir_all(results).map_err(io_error("creating", results))?;
        let root = results.join(run_id);
        match fs::create_dir(&root) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(RunDirError::Exists(root));
            }
            other => other.map_err(io_error("creating", &root))?,
        }
        for name in ["faults", FAILURES, LOGS, METRICS, SNAPSHOTS] {
            let path = root.join(name);
            fs::create_dir(&path).map_err(io_error("creating", &path))?;
        }
        Ok(Self { root, redactor: Redactor::default() })
    }

    /// Opens an existing directory for more artifacts (`analyze` rewrites its judgement).
    #[must_use]
    pub fn existing(root: PathBuf) -> Self {
        Self { root, redactor: Redactor::default() }
    }

    /// Sets the secrets that must never be written; called as soon as they exist.
    pub fn set_redactor(&mut self, redactor: Redactor) {
        self.redactor = redactor;
    }

    /// The redactor in force.
    #[must_use]
    pub fn redactor(&self) -> &Redactor {
        &self.redactor
    }

    /// The directory.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Path of a file inside.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Writes a whole JSON file, pretty, atomically, redacted.
    ///
    /// # Errors
    /// [`RunDirError`] with the file and the cause.
    pub fn write_json<T: Serialize>(&self, name: &str, value: &T) -> Result<(), RunDirError> {
        let path = self.path(name);
        let json = |source| RunDirError::Json { path: path.clone(), source };
        let mut value = serde_json::to_value(value).map_err(json)?;
        self.redactor.json(&mut value);
        let mut text = serde_json::to_string_pretty(&value).map_err(json)?;
        text.push('\n');
        self.write_bytes(name, text.as_bytes())
    }

    /// Writes a whole text file atomically, redacted.
    ///
    /// # Errors
    /// [`RunDirError::Io`].
    pub fn write_text(&self, name: &str, text: &str) -> Result<(), RunDirError> {
        self.write_bytes(name, self.redactor.text(text).as_bytes())
    }

    fn write_bytes(&self, name: &str, bytes: &[u8]) -> Result<(), RunDirError> {
        let path = self.path(name);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(io_error("creating", parent))?;
        }
        let mut beside = path.clone().into_os_string();
        beside.push(".part");
        let beside = PathBuf::from(beside);
        let written = File::create(&beside).and_then(|mut file| {
            file.write_all(bytes)?;
            file.flush()
        });
        if let Err(source) = written {
            // Leave no half file behind; the first error is the one worth reporting.
            drop(fs::remove_file(&beside));
            return Err(RunDirError::Io { action: "writing", path, source });
        }
        fs::rename(&beside, &path).map_err(io_error("renaming", &path))
    }

    /// Opens a JSON Lines file for appending.
    ///
    /// # Errors
    /// [`RunDirError::Io`].
    pub fn append(&self, name: &str) -> Result<LineWriter, RunDirError> {
        let path = self.path(name);
        let file =
            OpenOptions::new().create(true).append(true).open(&path).map_err(io_error("opening", &path))?;
        Ok(LineWriter { path, out: BufWriter::new(file), redactor: self.redactor.clone(), lines: 0 })
    }

    /// Lists every file with size and BLAKE3 and writes `manifest.json`.
    ///
    /// # Errors
    /// [`RunDirError::Io`].
    pub fn write_manifest(&self, run_id: &str, dropped: Vec<String>) -> Result<Manifest, RunDirError> {
        let mut manifest = Manifest {
            v: crate::EVIDENCE_VERSION,
            run_id: run_id.to_owned(),
            dropped,
            ..Manifest::default()
        };
        let mut open = vec![self.root.clone()];
        while let Some(dir) = open.pop() {
            for entry in fs::read_dir(&dir).map_err(io_error("listing", &dir))? {
                let path = entry.map_err(io_error("listing", &dir))?.path();
                if path.is_dir() {
                    open.push(path);
                    continue;
                }
                let name = path.strip_prefix(&self.root).unwrap_or(&path).to_string_lossy().into_owned();
                if name != MANIFEST {
                    manifest.files.insert(name, hash_file(&path)?);
                }
            }
        }
        self.write_json(MANIFEST, &manifest)?;
        Ok(manifest)
    }
}

/// Size of a file, and BLAKE3 of its first `len` bytes.
pub(crate) fn hash_head(path: &Path, len: u64) -> io::Result<(u64, String)> {
    let file = File::open(path)?;
    let size = file.metadata()?.len();
    let mut hasher = blake3::Hasher::new();
    io::copy(&mut file.take(len), &mut hasher)?;
    Ok((size, hasher.finalize().to_hex().to_string()))
}

fn hash_file(path: &Path) -> Result<FileEntry, RunDirError> {
    let mut file = File::open(path).map_err(io_error("reading", path))?;
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0_u8; 64 * 1024];
    let mut bytes = 0_u64;
    loop {
        let n = file.read(&mut buffer).map_err(io_error("reading", path))?;
        if n == 0 {
            break;
        }
        bytes += n as u64;
        hasher.update(&buffer[..n]);
    }
    Ok(FileEntry { bytes, blake3: hasher.finalize().to_hex().to_string() })
}

/// Appends JSON lines; each line is flushed, so that a killed runner leaves all of them.
#[derive(Debug)]
pub struct LineWriter {
    path: PathBuf,
    out: BufWriter<File>,
    redactor: Redactor,
    lines: u64,
}

impl LineWriter {
    /// Writes one line and flushes it.
    ///
    /// # Errors
    /// [`RunDirError`]; a full disk shows here.
    pub fn write<T: Serialize>(&mut self, value: &T) -> Result<(), RunDirError> {
        self.write_buffered(value)?;
        self.flush()
    }

    /// Writes one line without flushing, for bulk writes that end with [`LineWriter::flush`].
    ///
    /// # Errors
    /// [`RunDirError`].
    pub fn write_buffered<T: Serialize>(&mut self, value: &T) -> Result<(), RunDirError> {
        let json = |source| RunDirError::Json { path: self.path.clone(), source };
        let mut value = serde_json::to_value(value).map_err(json)?;
        self.redactor.json(&mut value);
        let text = value.to_string();
        let written = self.out.write_all(text.as_bytes()).and_then(|()| self.out.write_all(b"\n"));
        written.map_err(io_error("appending to", &self.path))?;
        self.lines += 1;
        Ok(())
    }

    /// Flushes.
    ///
    /// # Errors
    /// [`RunDirError::Io`].
    pub fn flush(&mut self) -> Result<(), RunDirError> {
        self.out.flush().map_err(io_error("appending to", &self.path))
    }

    /// Lines written by this writer.
    #[must_use]
    pub fn lines(&self) -> u64 {
        self.lines
    }
}

/// A line that could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadLine {
    /// File.
    pub file: String,
    /// Line number from 1.
    pub line: u64,
    /// Why.
    pub why: String,
}

/// Reads one run directory.
#[derive(Clone, Debug)]
pub struct RunReader {
    root: PathBuf,
}

impl RunReader {
    /// A reader of this directory; nothing is read yet.
    #[must_use]
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The directory.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// A whole JSON file. `Ok(None)` when it doesn't exist.
    ///
    /// # Errors
    /// A [`BadLine`] naming the file when it can't be read or parsed.
    pub fn json<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, BadLine> {
        let bad = |why: String| BadLine { file: name.to_owned(), line: 0, why };
        match fs::read(self.root.join(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(bad(error.to_string())),
            Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|error| bad(error.to_string())),
        }
    }

    /// A whole text file. `Ok(None)` when it doesn't exist.
    ///
    /// # Errors
    /// A [`BadLine`] when it can't be read.
    pub fn text(&self, name: &str) -> Result<Option<String>, BadLine> {
        match fs::read(self.root.join(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(BadLine { file: name.to_owned(), line: 0, why: error.to_string() }),
            Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        }
    }

    /// The lines of a JSON Lines file, one at a time. `None` when the file doesn't exist or can't be opened.
    #[must_use]
    pub fn lines<T: DeserializeOwned>(&self, name: &str) -> Option<Lines<T>> {
        Some(Lines { raw: self.raw_lines(name)?, file: name.to_owned(), kind: std::marker::PhantomData })
    }

    /// The lines of a file as bytes. `None` when it doesn't exist or can't be opened.
    #[must_use]
    pub fn raw_lines(&self, name: &str) -> Option<RawLines> {
        RawLines::open(&self.root.join(name), name).ok()
    }

    /// The one line that begins at an offset, parsed; `None` when it can't be read.
    #[must_use]
    pub fn line_at<T: DeserializeOwned>(&self, name: &str, offset: u64) -> Option<T> {
        let bytes = crate::raw::line_at(&self.root.join(name), offset)?;
        serde_json::from_slice(&bytes).ok()
    }

    /// Size of a file in bytes; 0 when it can't be told.
    #[must_use]
    pub fn len(&self, name: &str) -> u64 {
        fs::metadata(self.root.join(name)).map(|about| about.len()).unwrap_or_default()
    }
}

/// Iterator over a JSON Lines file: values, and bad lines as errors; a last line without its end is an error too,
/// because whoever wrote it was cut off.
#[derive(Debug)]
pub struct Lines<T> {
    raw: RawLines,
    file: String,
    kind: std::marker::PhantomData<T>,
}

impl<T: DeserializeOwned> Iterator for Lines<T> {
    type Item = Result<T, BadLine>;

    fn next(&mut self) -> Option<Self::Item> {
        let line = match self.raw.next()? {
            Ok(line) => line,
            Err(bad) => return Some(Err(bad)),
        };
        let bad = |error: serde_json::Error| BadLine {
            file: self.file.clone(),
            line: line.number,
            why: error.to_string(),
        };
        Some(serde_json::from_slice(line.bytes).map_err(bad))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_damage_is_named() {
        let base = tempfile::tempdir().unwrap();
        let mut dir = RunDir::create(base.path(), "r1").unwrap();
        dir.set_redactor(Redactor::new(["topsecretkey".to_owned()]));
        assert!(matches!(RunDir::create(base.path(), "r1"), Err(RunDirError::Exists(_))));
        let mut lines = dir.append("x.jsonl").unwrap();
        lines.write(&serde_json::json!({"a": "topsecretkey"})).unwrap();
        lines.write(&serde_json::json!({"a": "fine"})).unwrap();
        let reader = RunReader::new(dir.root());
        let read: Vec<_> =
            reader.lines::<serde_json::Value>("x.jsonl").unwrap().map(Result::unwrap).collect();
        assert_eq!(read[0]["a"], "REDACTED");
        assert_eq!(read.len(), 2);
        fs::write(dir.path("y.jsonl"), b"{\"a\":1}\n{broken\n{\"a\":2}\n{\"a\":").unwrap();
        let read: Vec<_> = reader.lines::<serde_json::Value>("y.jsonl").unwrap().collect();
        assert!(read[0].is_ok() && read[2].is_ok());
        assert_eq!(read[1].as_ref().unwrap_err().line, 2);
        assert!(read[3].as_ref().unwrap_err().why.contains("cut off"));
        assert!(reader.lines::<serde_json::Value>("absent.jsonl").is_none());
        assert_eq!(reader.json::<serde_json::Value>("absent.json"), Ok(None));
        let manifest = dir.write_manifest("r1", vec![]).unwrap();
        assert_eq!(manifest.files.len(), 2);
    }
}

//! The one writer of records: its own thread behind a bounded channel. When the disk is slower than the load,
//! requests wait; no record is dropped while the file can be written.

use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;

use evidence::record::RequestRecord;
use tokio::sync::{mpsc, oneshot};

use crate::error::LoadgenError;

/// Records that may wait for the disk.
const CHANNEL_RECORDS: usize = 4096;
/// Time in which records gather for one write; well below the 200 ms within which a record must be in the file.
const GATHER: Duration = Duration::from_millis(10);
/// Bytes after which a write is made even while more records wait.
const BATCH_BYTES: usize = 64 * 1024;

/// What the writer did.
#[derive(Debug, Default)]
pub struct Written {
    /// Lines in the file.
    pub records: u64,
    /// Records that could not be written.
    pub dropped: u64,
    /// The first error.
    pub error: Option<String>,
}

/// The writer's end for requests.
#[derive(Debug)]
pub struct RecordWriter {
    sender: mpsc::Sender<Box<RequestRecord>>,
    thread: JoinHandle<Written>,
    waits: Cell<u64>,
}

/// Resolves when the file can't be written any more.
pub type WriteFailed = oneshot::Receiver<String>;

impl RecordWriter {
    /// Opens the file for appending and starts the thread.
    ///
    /// # Errors
    /// Environment when the file can't be opened.
    pub fn open(path: &Path) -> Result<(Self, WriteFailed), LoadgenError> {
        let environment = |error: std::io::Error| {
            LoadgenError::Environment(format!("records file {}: {error}", path.display()))
        };
        let file = OpenOptions::new().create(true).append(true).open(path).map_err(environment)?;
        let (sender, receiver) = mpsc::channel(CHANNEL_RECORDS);
        let (failed, write_failed) = oneshot::channel();
        let path = path.to_owned();
        let thread = std::thread::Builder::new()
            .name("records".to_owned())
            .spawn(move || {
                Sink { path, file, batch: Vec::new(), pending: 0, written: Written::default() }
                    .run(receiver, failed)
            })
            .map_err(|error| LoadgenError::Environment(format!("no thread for the records: {error}")))?;
        Ok((Self { sender, thread, waits: Cell::new(0) }, write_failed))
    }

    /// Hands a record over; says whether it had to wait for room.
    pub async fn write(&self, record: Box<RequestRecord>) -> bool {
        match self.sender.try_send(record) {
            Ok(()) => false,
            Err(mpsc::error::TrySendError::Full(record)) => {
                self.waits.set(self.waits.get() + 1);
                // An error means that the thread is gone; `close` reports that.
                let _ = self.sender.send(record).await;
                true
            }
            Err(mpsc::error::TrySendError::Closed(_)) => false,
        }
    }

    /// How often a request had to wait for room.
    #[must_use]
    pub fn waits(&self) -> u64 {
        self.waits.get()
    }

    /// Writes what is left and ends the thread.
    ///
    /// # Errors
    /// Internal when the thread panicked.
    pub fn close(self) -> Result<Written, LoadgenError> {
        drop(self.sender);
        self.thread.join().map_err(|_| LoadgenError::Internal("the record writer panicked".to_owned()))
    }
}

struct Sink {
    path: PathBuf,
    file: File,
    batch: Vec<u8>,
    /// Records in the batch.
    pending: u64,
    written: Written,
}

impl Sink {
    fn run(
        mut self,
        mut receiver: mpsc::Receiver<Box<RequestRecord>>,
        failed: oneshot::Sender<String>,
    ) -> Written {
        let mut failed = Some(failed);
        while let Some(first) = receiver.blocking_recv() {
            self.add(&first);
            while let Ok(record) = receiver.try_recv() {
                self.add(&record);
            }
            self.flush();
            if let Some(error) = &self.written.error
                && let Some(failed) = failed.take()
            {
                let _ = failed.send(error.clone());
            }
            if !receiver.is_closed() {
                std::thread::sleep(GATHER);
            }
        }
        self.written
    }

    fn add(&mut self, record: &RequestRecord) {
        let start = self.batch.len();
        if let Err(error) = serde_json::to_writer(&mut self.batch, record) {
            self.batch.truncate(start);
            self.written.dropped += 1;
            self.written.error.get_or_insert_with(|| format!("a record can't be serialised: {error}"));
            return;
        }
        self.batch.push(b'\n');
        self.pending += 1;
        if self.batch.len() >= BATCH_BYTES {
            self.flush();
        }
    }

    /// After a first error nothing more is written: a gap in the file could be taken for a whole.
    fn flush(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        let result = if self.written.error.is_none() { self.file.write_all(&self.batch) } else { Ok(()) };
        if let Err(error) = result {
            self.written.error = Some(format!("records file {}: {error}", self.path.display()));
        }
        if self.written.error.is_none() {
            self.written.records += self.pending;
        } else {
            self.written.dropped += self.pending;
        }
        self.pending = 0;
        self.batch.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use scenario::identity::RequestId;

    fn record(index: u64) -> Box<RequestRecord> {
        Box::new(RequestRecord::blank(index, RequestId::new("s", 1, index), false))
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_burst_beyond_the_channel_waits_and_loses_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r.jsonl");
        let (writer, _failed) = RecordWriter::open(&path).unwrap();
        for index in 0..20_000 {
            writer.write(record(index)).await;
        }
        assert!(writer.waits() > 0, "the burst was larger than the channel");
        let written = writer.close().unwrap();
        assert_eq!((written.records, written.dropped), (20_000, 0));
        let text = std::fs::read_to_string(&path).unwrap();
        let indexes = text.lines().map(|line| serde_json::from_str::<RequestRecord>(line).unwrap().index);
        assert!(indexes.eq(0..20_000));
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_full_disk_is_reported_and_counted() {
        let (writer, failed) = RecordWriter::open(Path::new("/dev/full")).unwrap();
        writer.write(record(0)).await;
        let message = failed.await.unwrap();
        assert!(message.contains("/dev/full") && message.contains("No space"), "{message}");
        writer.write(record(1)).await;
        let written = writer.close().unwrap();
        assert_eq!((written.records, written.dropped), (0, 2));
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_record_is_in_the_file_soon_without_a_close() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r.jsonl");
        let (writer, _failed) = RecordWriter::open(&path).unwrap();
        writer.write(record(7)).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert!(std::fs::read_to_string(&path).unwrap().ends_with("\n"));
        writer.close().unwrap();
    }
}

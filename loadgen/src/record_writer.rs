//! The one writer of records: lines are made on the thread of the load and handed over in batches to a thread that
//! owns the file. What happens when the disk is slower than the load is a policy: wait, or drop and count.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;

use tokio::sync::oneshot;

use crate::defect::is_planted;
use crate::error::LoadgenError;
use crate::json_line::Line;

/// Batches that may wait for the disk.
const CHANNEL_BATCHES: usize = 128;
/// Bytes after which a batch is handed over.
const BATCH_BYTES: usize = 64 * 1024;
/// A record is handed over at the latest after this time; a reader of the file sees it soon after.
const GATHER_US: u64 = 20_000;

/// What to do when the disk is slower than the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overflow {
    /// The load waits: no record may be missing.
    Wait,
    /// Records are dropped and counted: no request may be held up.
    Drop,
}

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

#[derive(Debug, Default)]
struct Batch {
    bytes: Vec<u8>,
    records: u64,
}

/// The writer's end for one thread of the load.
#[derive(Debug)]
pub struct RecordWriter {
    batch: Batch,
    due_us: Option<u64>,
    overflow: Overflow,
    sender: SyncSender<Batch>,
    empty: Receiver<Vec<u8>>,
    thread: JoinHandle<Written>,
    waits: u64,
    dropped: u64,
    seen: u64,
}

/// The planted defect `lost-records` (selftest, layer M): every fiftieth record is not kept, as when a sink overflows.
fn loses(record: u64) -> bool {
    let loses = record.is_multiple_of(50) && is_planted("lost-records");
    if loses {
        // The self-test counts these lines.
        eprintln!("planted defect took effect");
    }
    loses
}

/// Resolves when the file can't be written any more.
pub type WriteFailed = oneshot::Receiver<String>;

impl RecordWriter {
    /// Opens the file for appending and starts the thread.
    ///
    /// # Errors
    /// Environment when the file can't be opened.
    pub fn open(path: &Path, overflow: Overflow) -> Result<(Self, WriteFailed), LoadgenError> {
        let environment = |error: std::io::Error| {
            LoadgenError::Environment(format!("records file {}: {error}", path.display()))
        };
        let file = OpenOptions::new().create(true).append(true).open(path).map_err(environment)?;
        let (sender, receiver) = sync_channel(CHANNEL_BATCHES);
        let (give_back, empty) = sync_channel(CHANNEL_BATCHES);
        let (failed, write_failed) = oneshot::channel();
        let path = path.to_owned();
        let thread = std::thread::Builder::new()
            .name("records".to_owned())
            .spawn(move || {
                Sink { path, file, written: Written::default() }.run(&receiver, &give_back, failed)
            })
            .map_err(|error| LoadgenError::Environment(format!("no thread for the records: {error}")))?;
        let batch = Batch::default();
        let writer =
            Self { batch, due_us: None, overflow, sender, empty, thread, waits: 0, dropped: 0, seen: 0 };
        Ok((writer, write_failed))
    }

    /// Adds a record; says whether the load had to wait for the disk.
    pub fn write(&mut self, record: &impl Line, now_us: u64) -> bool {
        self.seen += 1;
        if loses(self.seen) {
            self.dropped += 1;
            return false;
        }
        let start = self.batch.bytes.len();
        if record.write_to(&mut self.batch.bytes).is_err() {
            // Records have text keys and finite numbers only.
            self.batch.bytes.truncate(start);
            self.dropped += 1;
            return false;
        }
        self.batch.bytes.push(b'\n');
        self.batch.records += 1;
        self.due_us.get_or_insert(now_us + GATHER_US);
        self.batch.bytes.len() >= BATCH_BYTES && self.hand_over()
    }

    /// Hands over what has gathered for long enough; gives the next instant for it.
    pub fn tick(&mut self, now_us: u64) -> Option<u64> {
        if self.due_us.is_some_and(|due_us| now_us >= due_us) {
            self.hand_over();
        }
        self.due_us
    }

    /// Hands over everything now.
    pub fn flush(&mut self) {
        if self.batch.records > 0 {
            self.hand_over();
        }
    }

    fn hand_over(&mut self) -> bool {
        self.due_us = None;
        // A buffer that comes back has room for all of the next batch.
        let bytes =
            self.empty.try_recv().unwrap_or_else(|_| Vec::with_capacity(BATCH_BYTES + BATCH_BYTES / 8));
        let batch = std::mem::replace(&mut self.batch, Batch { bytes, records: 0 });
        match self.sender.try_send(batch) {
            Ok(()) => false,
            Err(TrySendError::Full(batch)) if self.overflow == Overflow::Wait => {
                self.waits += 1;
                // An error means that the thread is gone; `close` reports that.
                let _ = self.sender.send(batch);
                true
            }
            Err(TrySendError::Full(batch) | TrySendError::Disconnected(batch)) => {
                self.dropped += batch.records;
                false
            }
        }
    }

    /// How often the load had to wait for the disk.
    #[must_use]
    pub fn waits(&self) -> u64 {
        self.waits
    }

    /// Writes what is left and ends the thread.
    ///
    /// # Errors
    /// Internal when the thread panicked.
    pub fn close(mut self) -> Result<Written, LoadgenError> {
        if self.batch.records > 0 {
            let batch = std::mem::take(&mut self.batch);
            let _ = self.sender.send(batch);
        }
        drop(self.sender);
        let mut written = self
            .thread
            .join()
            .map_err(|_| LoadgenError::Internal("the record writer panicked".to_owned()))?;
        written.dropped += self.dropped;
        Ok(written)
    }
}

struct Sink {
    path: PathBuf,
    file: File,
    written: Written,
}

impl Sink {
    fn run(
        mut self,
        receiver: &Receiver<Batch>,
        give_back: &SyncSender<Vec<u8>>,
        failed: oneshot::Sender<String>,
    ) -> Written {
        let mut failed = Some(failed);
        while let Ok(mut batch) = receiver.recv() {
            self.write(&batch);
            if let Some(error) = &self.written.error
                && let Some(failed) = failed.take()
            {
                let _ = failed.send(error.clone());
            }
            batch.bytes.clear();
            let _ = give_back.try_send(batch.bytes);
        }
        self.written
    }

    /// After a first error nothing more is written: a gap in the file could be taken for a whole.
    fn write(&mut self, batch: &Batch) {
        if self.written.error.is_none()
            && let Err(error) = self.file.write_all(&batch.bytes)
        {
            self.written.error = Some(format!("records file {}: {error}", self.path.display()));
        }
        if self.written.error.is_none() {
            self.written.records += batch.records;
        } else {
            self.written.dropped += batch.records;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evidence::record::RequestRecord;
    use scenario::identity::RequestId;

    fn record(index: u64) -> RequestRecord {
        RequestRecord::blank(index, RequestId::new("s", 1, index), false)
    }

    #[test]
    fn a_burst_loses_nothing_when_the_load_waits() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r.jsonl");
        let (mut writer, _failed) = RecordWriter::open(&path, Overflow::Wait).unwrap();
        for index in 0..50_000 {
            writer.write(&record(index), 0);
        }
        let written = writer.close().unwrap();
        assert_eq!((written.records, written.dropped), (50_000, 0));
        let text = std::fs::read_to_string(&path).unwrap();
        let indexes = text.lines().map(|line| serde_json::from_str::<RequestRecord>(line).unwrap().index);
        assert!(indexes.eq(0..50_000));
    }

    #[test]
    fn a_disk_that_stands_still_costs_records_but_no_time() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &fifo,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
            0,
        )
        .unwrap();
        // A reader that never reads: the pipe fills, then the channel, then records are dropped.
        let reader = OpenOptions::new().read(true).write(true).open(&fifo).unwrap();
        let (mut writer, _failed) = RecordWriter::open(&fifo, Overflow::Drop).unwrap();
        for index in 0..40_000 {
            assert!(!writer.write(&record(index), 0), "never waits");
        }
        assert!(writer.dropped > 0);
        // Ends the writer's wait.
        let drain = std::thread::spawn(move || {
            let mut reader = reader;
            let mut bytes = [0; 65536];
            while std::io::Read::read(&mut reader, &mut bytes)
                .is_ok_and(|count| !bytes[..count].ends_with(b"!"))
            {}
        });
        let written = writer.close().unwrap();
        assert_eq!(written.records + written.dropped, 40_000);
        std::fs::write(&fifo, b"!").unwrap();
        drain.join().unwrap();
    }

    #[test]
    fn a_full_disk_is_reported_and_counted() {
        let (mut writer, failed) = RecordWriter::open(Path::new("/dev/full"), Overflow::Wait).unwrap();
        writer.write(&record(0), 0);
        assert_eq!(writer.tick(GATHER_US), None);
        let message = failed.blocking_recv().unwrap();
        assert!(message.contains("/dev/full") && message.contains("No space"), "{message}");
        writer.write(&record(1), 0);
        let written = writer.close().unwrap();
        assert_eq!((written.records, written.dropped), (0, 2));
    }

    #[test]
    fn a_record_is_in_the_file_soon_without_a_close() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r.jsonl");
        let (mut writer, _failed) = RecordWriter::open(&path, Overflow::Wait).unwrap();
        writer.write(&record(7), 5);
        assert_eq!(writer.tick(5), Some(5 + GATHER_US), "due later");
        assert_eq!(writer.tick(5 + GATHER_US), None);
        // Hangs when it never comes; how long it takes is the disk's affair.
        while !std::fs::read_to_string(&path).unwrap().ends_with('\n') {
            std::thread::yield_now();
        }
        writer.close().unwrap();
    }
}

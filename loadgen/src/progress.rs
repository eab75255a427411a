//! Standard output under the runner: one JSON line at a time, by a thread of its own, so that a reader that is slow
//! never holds a request.

use std::io::Write as _;
use std::time::Duration;

use scenario::pipe::LoadgenLine;
use tokio::sync::mpsc;

/// Lines that may wait for the reader.
const CHANNEL_LINES: usize = 64;
/// How long the end waits for a reader that does not read.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);

/// The printer's end for the load.
#[derive(Clone, Debug)]
pub struct Printer {
    sender: mpsc::Sender<LoadgenLine>,
}

/// Waits for the printer.
#[derive(Debug)]
pub struct PrinterEnd {
    done: std::sync::mpsc::Receiver<()>,
}

impl Printer {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn start() -> std::io::Result<(Self, PrinterEnd)> {
        let (sender, mut receiver) = mpsc::channel::<LoadgenLine>(CHANNEL_LINES);
        let (finished, done) = std::sync::mpsc::sync_channel(1);
        std::thread::Builder::new().name("pipe".to_owned()).spawn(move || {
            while let Some(line) = receiver.blocking_recv() {
                print(&line);
            }
            let _ = finished.send(());
        })?;
        Ok((Self { sender }, PrinterEnd { done }))
    }

    /// Prints a line that a later one makes needless; left out while the reader is behind.
    pub fn progress(&self, line: LoadgenLine) {
        let _ = self.sender.try_send(line);
    }

    /// Prints a line that must not get lost.
    pub async fn print(&self, line: LoadgenLine) {
        // The thread ends only after all senders.
        let _ = self.sender.send(line).await;
    }
}

impl PrinterEnd {
    /// Waits until all is printed, or the reader has shown that it does not read. All printers must be dropped first.
    pub fn wait(self) {
        let _ = self.done.recv_timeout(CLOSE_LIMIT);
    }
}

/// Prints a line now. A reader that is gone is noticed by the end of standard input, not here.
pub fn print(line: &LoadgenLine) {
    let mut text =
        serde_json::to_string(line).expect("lines of the pipe have only text keys and finite numbers");
    text.push('\n');
    let mut stdout = std::io::stdout().lock();
    let _ = stdout.write_all(text.as_bytes());
    let _ = stdout.flush();
}

//! Following containers: their output to the run's log files, their starts and ends to the dispatcher.
//!
//! A log stream that ends proves nothing: inspect says whether the container has ended or the stream was cut, and in both
//! cases the rest is read again (reports 31, 32).

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use compose_engine::clock;
use compose_engine::engine::docker::Docker;
use compose_engine::engine::{Attached, ContainerSeen, Engine, LogAsk, Output};
use compose_engine::images;
use compose_engine::logs::{Line, Lines};
use futures_util::StreamExt;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;

use crate::error::RunnerError;
use crate::guard::tree::start_ticks;
use crate::guard::{LINE_LEN_MAX, Report};

/// Wait between tries while the engine does not answer.
const RETRY: Duration = Duration::from_millis(300);
/// Tries before a container counts as lost.
const TRIES_MAX: u32 = 200;
/// Where mocks write their logs in their containers (compose/devshard.yml).
const JOURNAL_INSIDE: &str = "/data/journal";
/// How long bringing such a journal may take.
const JOURNAL_LIMIT: Duration = Duration::from_secs(10);
/// How long the last lines may take after the end of a container.
const LAST_LINES: Duration = Duration::from_secs(5);

/// One followed container.
#[derive(Debug)]
pub(super) struct Watcher(tokio::task::JoinHandle<()>);

impl Watcher {
    /// Waits until everything is written, bounded.
    pub(super) async fn finish(mut self) {
        if tokio::time::timeout(LAST_LINES, &mut self.0).await.is_err() {
            self.0.abort();
        }
    }
}

/// What a watcher needs.
#[derive(Clone)]
pub(super) struct Watched {
    pub(super) engine: Docker,
    pub(super) id: String,
    pub(super) service: String,
    pub(super) log: PathBuf,
    /// Folder for what a mock has written down in its container; none for other services.
    pub(super) journal: Option<PathBuf>,
    /// Whether ends belong to the teardown.
    pub(super) torn_down: Arc<AtomicBool>,
    pub(super) reports: mpsc::Sender<Report>,
}

impl Watched {
    /// Brings a mock's journal out of its container, bounded. What can't be had is missed by whoever reads it.
    async fn bring_journal(&self) {
        let Some(folder) = self.journal.as_ref().filter(|_| !self.torn_down.load(Ordering::Relaxed)) else {
            return;
        };
        let answer =
            tokio::time::timeout(JOURNAL_LIMIT, self.engine.download(&self.id, JOURNAL_INSIDE)).await;
        let Ok(Ok(tar)) = answer else { return };
        let files = images::unpack(&tar).unwrap_or_default();
        for (name, bytes) in files {
            // Names are those of files in one folder; nothing of the container's choosing leads elsewhere.
            let Some(name) = Path::new(&name).file_name() else { continue };
            drop(std::fs::create_dir_all(folder).and_then(|()| std::fs::write(folder.join(name), bytes)));
        }
    }
}

/// Reports the start of a container and follows it to its end. `seen` is the look after its start.
pub(super) async fn follow(watched: Watched, seen: &ContainerSeen) -> Watcher {
    let pid = u32::try_from(seen.pid).unwrap_or_default();
    let ticks = start_ticks(pid).unwrap_or_default();
    let report = Report::Spawned { service: watched.service.clone(), pid, start_ticks: ticks };
    drop(watched.reports.send(report).await);
    // Lines of an earlier start are in the file already. Its end is the border, not this start: the engine notes a start
    // only after the program may have printed.
    let from_ns = clock::parse_ns(&seen.finished_at).unwrap_or_default().max(0);
    Watcher(tokio::spawn(run(watched, pid, from_ns)))
}

struct Writer {
    file: Option<File>,
    watched: Watched,
    last: LastTaken,
}

/// Stamp of the last line taken of each output, for streams that are opened again. Only within one output do stamps
/// grow: the engine stamps both apart, so that a line may come after one of the other output that is younger.
#[derive(Clone, Copy, Debug)]
struct LastTaken {
    stdout_ns: i128,
    stderr_ns: i128,
}

impl LastTaken {
    const fn all(at_ns: i128) -> Self {
        Self { stdout_ns: at_ns, stderr_ns: at_ns }
    }

    /// Whether a line is new; it counts as taken then.
    fn is_new(&mut self, line: &Line) -> bool {
        let last = match line.output {
            Output::Stdout => &mut self.stdout_ns,
            Output::Stderr => &mut self.stderr_ns,
        };
        let at_ns = line.stamp.as_deref().and_then(clock::parse_ns).unwrap_or(*last + 1);
        let new = at_ns > *last;
        *last = at_ns.max(*last);
        new
    }

    /// From where both have to be read again, Unix seconds.
    fn since_unix_s(self) -> u64 {
        u64::try_from(self.stdout_ns.min(self.stderr_ns) / 1_000_000_000).unwrap_or_default()
    }
}

impl Writer {
    async fn take(&mut self, lines: Vec<Line>) {
        for line in lines {
            if !self.last.is_new(&line) {
                continue;
            }
            if let Some(file) = &mut self.file {
                // A full disk shows in the run's own files; the container must not wait for it.
                drop(writeln!(file, "{}", line.text));
            }
            if line.output == Output::Stdout {
                let mut text = line.text;
                text.truncate(text.floor_char_boundary(LINE_LEN_MAX));
                let service = self.watched.service.clone();
                drop(self.watched.reports.send(Report::Output { service, line: text }).await);
            }
        }
    }

    /// Reads from the last stamps on; with `follow` until the stream ends.
    async fn read(&mut self, follow: bool) {
        let ask = LogAsk { follow, since_unix_s: self.last.since_unix_s(), tail: None };
        let mut pieces = self.watched.engine.logs(&self.watched.id, ask);
        let mut lines = Lines::stamped();
        while let Some(Ok(piece)) = pieces.next().await {
            let whole = lines.take(&piece);
            self.take(whole).await;
        }
        // A line without an end is only complete when the container is: it is read again otherwise.
        if !follow {
            let rest = lines.rest();
            self.take(rest).await;
        }
    }
}

async fn run(watched: Watched, mut pid: u32, from_ns: i128) {
    let file = File::options().create(true).append(true).open(&watched.log).ok();
    let mut writer = Writer { file, watched: watched.clone(), last: LastTaken::all(from_ns) };
    let mut silent = 0;
    loop {
        writer.read(true).await;
        match watched.engine.inspect(&watched.id).await {
            Ok(seen) if seen.ended() => {
                drop(tokio::time::timeout(LAST_LINES, writer.read(false)).await);
                watched.bring_journal().await;
                exited(&watched, pid, Some(&seen)).await;
                return;
            }
            Ok(seen) if seen.up() && u32::try_from(seen.pid).unwrap_or_default() != pid => {
                // Started again without us: its policy or somebody else did it. The new process is followed like the first.
                exited(&watched, pid, None).await;
                pid = u32::try_from(seen.pid).unwrap_or_default();
                let report = Report::Spawned {
                    service: watched.service.clone(),
                    pid,
                    start_ticks: start_ticks(pid).unwrap_or_default(),
                };
                drop(watched.reports.send(report).await);
                silent = 0;
            }
            Ok(_) => silent = 0,
            Err(error) if error.is_not_found() => {
                exited(&watched, pid, None).await;
                return;
            }
            Err(_) => silent += 1,
        }
        if silent > TRIES_MAX {
            exited(&watched, pid, None).await;
            return;
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// The exit as the guard would tell it: 128 + n is a signal.
async fn exited(watched: &Watched, pid: u32, seen: Option<&ContainerSeen>) {
    let code = seen.and_then(|seen| i32::try_from(seen.exit_code).ok());
    let signal = code.filter(|code| *code > 128).map(|code| code - 128);
    if let (Some(seen), Ok(mut file)) = (seen, File::options().append(true).open(&watched.log))
        && seen.oom_killed
    {
        drop(writeln!(file, "the container was killed for lack of memory"));
    }
    let code = if signal.is_some() { None } else { code };
    let report = Report::Exited { service: watched.service.clone(), pid, code, signal };
    drop(watched.reports.send(report).await);
}

/// Loadgen's container: its standard input stays open for commands.
pub(super) struct Loadgen {
    input: Pin<Box<dyn AsyncWrite + Send>>,
}

impl Loadgen {
    /// Follows the attached streams of a container that has just been started.
    pub(super) async fn follow(
        watched: Watched,
        attached: Attached,
        seen: &ContainerSeen,
    ) -> (Self, Watcher) {
        let pid = u32::try_from(seen.pid).unwrap_or_default();
        let ticks = start_ticks(pid).unwrap_or_default();
        let service = watched.service.clone();
        drop(watched.reports.send(Report::Spawned { service, pid, start_ticks: ticks }).await);
        let mut output = attached.output;
        let task = tokio::spawn(async move {
            let file = File::options().create(true).append(true).open(&watched.log).ok();
            let mut writer = Writer { file, watched: watched.clone(), last: LastTaken::all(0) };
            let mut lines = Lines::default();
            while let Some(Ok(piece)) = output.next().await {
                let whole = lines.take(&piece);
                writer.take(whole).await;
            }
            let rest = lines.rest();
            writer.take(rest).await;
            for _ in 0..TRIES_MAX {
                match watched.engine.inspect(&watched.id).await {
                    Ok(seen) if seen.ended() => return exited(&watched, pid, Some(&seen)).await,
                    Err(error) if error.is_not_found() => break,
                    _ => tokio::time::sleep(RETRY).await,
                }
            }
            exited(&watched, pid, None).await;
        });
        (Self { input: attached.input }, Watcher(task))
    }

    /// Writes a line.
    pub(super) async fn tell(&mut self, line: &str) -> Result<(), RunnerError> {
        let text = format!("{line}\n");
        let gone = |error: std::io::Error| RunnerError::environment(format!("writing to loadgen: {error}"));
        self.input.write_all(text.as_bytes()).await.map_err(gone)?;
        self.input.flush().await.map_err(gone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_one_output_is_not_lost_behind_a_younger_one_of_the_other() {
        let line = |output: Output, second: u32| Line {
            output,
            stamp: Some(format!("2026-01-01T00:00:0{second}.000000000Z")),
            text: String::new(),
        };
        let mut last = LastTaken::all(0);
        // The engine writes what each output brings as it comes; the stamps of both may cross.
        assert!(last.is_new(&line(Output::Stderr, 3)));
        assert!(last.is_new(&line(Output::Stdout, 2)));
        assert!(!last.is_new(&line(Output::Stderr, 3)), "read a second time");
        assert!(last.is_new(&line(Output::Stdout, 4)));
        // What is read again begins where the slower output stopped.
        assert_eq!(last.since_unix_s(), 1_767_225_603);
    }
}

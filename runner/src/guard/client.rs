//! The runner's end of the guard.

use std::path::Path;
use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin};
use tokio::sync::mpsc;

use super::{Command, Foreign, Report, ServiceSignal, Spawn};
use crate::error::RunnerError;

/// Handle of the guard: dropping it closes the pipe, and the guard ends everything.
#[derive(Debug)]
pub struct Guard {
    child: Child,
    input: Option<ChildStdin>,
}

impl Guard {
    /// Starts the guard in a process group of its own, so that Ctrl-C reaches the runner alone. Its reports arrive on
    /// the given channel; the run's private directory goes with it.
    ///
    /// # Errors
    /// [`RunnerError::Environment`] when this executable can't be started again.
    pub fn start(work: &Path, reports: mpsc::Sender<Report>) -> Result<Self, RunnerError> {
        let failed = |error: std::io::Error| RunnerError::environment(format!("starting the guard: {error}"));
        let own = std::env::current_exe().map_err(failed)?;
        let mut child = tokio::process::Command::new(own)
            // Who ends all programs of the runner's name at once (`pkill -9 runner`) leaves the guard to clean up.
            .arg0("proofload-guard")
            .arg("__guard")
            .arg(work)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        let input = child.stdin.take();
        if let Some(output) = child.stdout.take() {
            tokio::spawn(async move {
                let mut lines = BufReader::new(output).lines();
                while let Ok(Some(line)) = lines.next_line().await {
                    if let Ok(report) = serde_json::from_str(&line)
                        && reports.send(report).await.is_err()
                    {
                        return;
                    }
                }
                // Asked to end, it has said so before; whoever has heard that takes no notice of this.
                drop(reports.send(Report::Gone).await);
            });
        }
        Ok(Self { child, input })
    }

    async fn tell(&mut self, command: &Command) -> Result<(), RunnerError> {
        let gone = |error: String| RunnerError::environment(format!("the guard process is gone: {error}"));
        let mut line = serde_json::to_string(command).map_err(|error| gone(error.to_string()))?;
        line.push('\n');
        let input = self.input.as_mut().ok_or_else(|| gone("its pipe is closed".to_owned()))?;
        input.write_all(line.as_bytes()).await.map_err(|error| gone(error.to_string()))?;
        input.flush().await.map_err(|error| gone(error.to_string()))
    }

    /// Starts a service; `Spawned` or `NotSpawned` is reported.
    ///
    /// # Errors
    /// [`RunnerError::Environment`] when the guard is gone.
    pub async fn spawn(&mut self, spawn: Spawn) -> Result<(), RunnerError> {
        self.tell(&Command::Spawn(spawn)).await
    }

    /// Writes a line to a service.
    ///
    /// # Errors
    /// As [`Guard::spawn`].
    pub async fn input(&mut self, service: &str, line: &str) -> Result<(), RunnerError> {
        self.tell(&Command::Input { service: service.to_owned(), line: line.to_owned() }).await
    }

    /// Signals a service.
    ///
    /// # Errors
    /// As [`Guard::spawn`].
    pub async fn signal(&mut self, service: &str, signal: ServiceSignal) -> Result<(), RunnerError> {
        self.tell(&Command::Signal { service: service.to_owned(), signal }).await
    }

    /// Says before the first rule that it is to be taken off if the runner ends without [`Guard::taken_off`].
    ///
    /// # Errors
    /// As [`Guard::spawn`].
    pub async fn take_off(&mut self, foreign: Foreign) -> Result<(), RunnerError> {
        self.tell(&Command::TakeOff(foreign)).await
    }

    /// No rule stands at a mock of others any more.
    ///
    /// # Errors
    /// As [`Guard::spawn`].
    pub async fn taken_off(&mut self) -> Result<(), RunnerError> {
        self.tell(&Command::TakenOff).await
    }

    /// Ends everything; `Ended` is reported.
    ///
    /// # Errors
    /// As [`Guard::spawn`].
    pub async fn end_all(&mut self, grace_ms: u64) -> Result<(), RunnerError> {
        self.tell(&Command::EndAll { grace_ms }).await
    }

    /// Closes the pipe and waits for the guard, which first ends whatever is left.
    pub async fn close(mut self) {
        self.input = None;
        drop(self.child.wait().await);
    }
}

//! The guard process: parent of everything that a run starts, so that nothing outlives the runner.
//!
//! `runner __guard` is started first, in a process group of its own. It is a child subreaper and the parent of every
//! service. Commands arrive on its standard input, reports leave on its standard output, one JSON document a line.
//! When its input ends, for whatever reason, it ends every descendant, grandchildren included, and then itself:
//! `kill -9` of the runner leaves nothing (design section 4).

pub mod client;
pub mod process;
pub mod tree;

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Longest line in either direction; a service's longer output line is cut.
pub const LINE_LEN_MAX: usize = 1024 * 1024;

/// A service to start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spawn {
    /// Name, for example `host-1`.
    pub service: String,
    /// Program file.
    pub program: PathBuf,
    /// Arguments.
    pub args: Vec<String>,
    /// Variables added to a nearly empty environment.
    pub env: BTreeMap<String, String>,
    /// File that gets standard error, and standard output unless it is forwarded.
    pub log: PathBuf,
    /// User and group id to run as; those of the guard when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<(u32, u32)>,
    /// Standard output goes into the log too instead of being forwarded by the line: programs of others log there.
    #[serde(default)]
    pub stdout_to_log: bool,
}

/// A mock of a running environment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Foreign {
    /// Its control, `host:port`.
    pub address: String,
    /// The seed that it had, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
}

/// Signals that the runner sends to services.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ServiceSignal {
    /// SIGINT.
    Interrupt,
    /// SIGTERM.
    Terminate,
    /// SIGKILL.
    Kill,
    /// SIGSTOP.
    Stop,
    /// SIGCONT.
    Continue,
}

/// Runner → guard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case")]
pub enum Command {
    /// Start a service.
    Spawn(Spawn),
    /// Write a line to a service's standard input.
    Input {
        /// Service.
        service: String,
        /// Text without its line end.
        line: String,
    },
    /// Send a signal; kill, stop and continue reach also what the service started.
    Signal {
        /// Service.
        service: String,
        /// Which.
        signal: ServiceSignal,
    },
    /// Rules of this run are about to stand at a mock that is not its own: when the input ends they are taken off.
    TakeOff(Foreign),
    /// They were taken off: nothing is left to be done.
    TakenOff,
    /// End every descendant (politely, then not) and report `ended`.
    EndAll {
        /// How long the polite part may take, milliseconds.
        grace_ms: u64,
    },
}

/// Guard → runner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "kebab-case")]
pub enum Report {
    /// The guard is a subreaper and waits for commands.
    Standing {
        /// Its process id.
        pid: u32,
    },
    /// A service runs.
    Spawned {
        /// Service.
        service: String,
        /// Process id.
        pid: u32,
        /// Start time in clock ticks since boot.
        start_ticks: u64,
    },
    /// A service could not be started.
    NotSpawned {
        /// Service.
        service: String,
        /// Why.
        error: String,
    },
    /// A line on a service's standard output.
    Output {
        /// Service.
        service: String,
        /// The line.
        line: String,
    },
    /// A service ended.
    Exited {
        /// Service.
        service: String,
        /// Process id.
        pid: u32,
        /// Exit code.
        code: Option<i32>,
        /// Signal.
        signal: Option<i32>,
    },
    /// The guard itself is gone: said by the runner's end of the pipe.
    Gone,
    /// Every descendant is gone.
    Ended {
        /// How many had to be killed.
        killed: u32,
    },
}

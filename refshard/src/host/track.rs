//! Book-keeping of running requests: gauges that go back down on every path, and exactly one terminal
//! line and count for each chat request (contract hosts 9).

use std::sync::Arc;
use std::time::Instant;

use scenario::build::BUILD_ID;

use super::Host;
use crate::clock;
use crate::logline::{Level, LogLine};

/// One running operation; ends when dropped.
#[derive(Debug)]
pub struct Operation {
    host: Arc<Host>,
    name: &'static str,
    begun: Instant,
    failed: bool,
}

impl Operation {
    /// Begins the operation with this name, such as `devshardd.handler.get_diffs`.
    pub fn begin(host: &Arc<Host>, name: &'static str) -> Self {
        host.metrics.add("devshardd_request_active_operations", &labels(name), 1.0);
        Self { host: host.clone(), name, begun: clock::instant(), failed: false }
    }

    /// The operation has ended with an HTTP error.
    pub const fn fail(&mut self) {
        self.failed = true;
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        let metrics = &self.host.metrics;
        let took_s = clock::instant().duration_since(self.begun).as_secs_f64();
        metrics.add("devshardd_request_active_operations", &labels(self.name), -1.0);
        metrics.observe("devshardd_request_duration_seconds", &labels(self.name), took_s);
        if self.failed {
            metrics.count("devshardd_request_errors_total", &labels(self.name));
        }
    }
}

fn labels(operation: &'static str) -> [(&'static str, &'static str); 2] {
    [("model", "unknown"), ("operation", operation)]
}

/// End of a chat request, by the words of contract hosts 9.3.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terminal {
    /// Which kind of end.
    pub terminal: &'static str,
    /// Why.
    pub reason: &'static str,
    /// Where it failed; empty when it did not.
    pub failure_where: &'static str,
    /// What went wrong; empty when nothing did.
    pub error: String,
}

impl Terminal {
    /// An end that is no fault.
    pub const fn good(terminal: &'static str, reason: &'static str) -> Self {
        Self { terminal, reason, failure_where: "", error: String::new() }
    }

    /// An end before the receipt.
    pub const fn refused(reason: &'static str, failure_where: &'static str, error: String) -> Self {
        Self { terminal: "no_receipt_interrupted", reason, failure_where, error }
    }

    /// A receipt without a finish.
    pub const fn orphan(reason: &'static str, failure_where: &'static str, error: String) -> Self {
        Self { terminal: "execution_no_finish", reason, failure_where, error }
    }

    const fn interruption(&self) -> Option<&'static str> {
        match self.terminal.as_bytes() {
            b"no_receipt_interrupted" => Some("no_receipt"),
            b"receipt_no_execution_interrupted" => Some("receipt_no_execution"),
            b"execution_no_finish" => Some("execution_no_finish"),
            _ => None,
        }
    }
}

/// A chat request from authentication to its end. Dropped without an end, it ends as an interruption, so
/// that no path can leave a request without a terminal line.
#[derive(Debug)]
pub struct ChatTrack {
    host: Arc<Host>,
    request_id: String,
    escrow_id: String,
    ids: (u64, u64),
    ended: bool,
    _operation: Option<Operation>,
}

impl ChatTrack {
    /// The request has been authenticated; raises the in-flight gauge.
    pub fn begin(host: &Arc<Host>, request_id: &str, escrow_id: &str, operation: Operation) -> Self {
        host.metrics.add("devshard_inflight", &[("stage", "request")], 1.0);
        Self {
            host: host.clone(),
            request_id: request_id.to_owned(),
            escrow_id: escrow_id.to_owned(),
            ids: (0, 0),
            ended: false,
            _operation: Some(operation),
        }
    }

    /// Id of the request, as the host logs it and sends it to model servers.
    pub fn request_id(&self) -> &str {
        &self.request_id
    }

    /// From here on the end names this inference and the host's latest nonce.
    pub const fn names(&mut self, inference_id: u64, nonce: u64) {
        self.ids = (inference_id, nonce);
    }

    /// The end.
    pub fn end(mut self, terminal: &Terminal) {
        self.write(terminal);
    }

    fn write(&mut self, terminal: &Terminal) {
        self.ended = true;
        let metrics = &self.host.metrics;
        let reason = ("reason", terminal.reason);
        metrics.count("devshard_request_terminal_total", &[("terminal", terminal.terminal), reason]);
        if let Some(class) = terminal.interruption() {
            metrics.count("devshard_interruption_total", &[("class", class), reason]);
        }
        if terminal.terminal == "execution_no_finish" {
            metrics.count("devshard_receipt_orphan_total", &[reason]);
        }
        let mut line = LogLine::new(Level::Info, "devshard request terminal")
            .field("request_id", &self.request_id)
            .field("escrow_id", &self.escrow_id)
            .field("stage", "terminal")
            .field("where", "request.terminal")
            .field("binary", BUILD_ID)
            .field("version", self.host.config.protocol_version())
            .field("mode", "standalone")
            .field("reason", terminal.reason);
        if !terminal.error.is_empty() {
            line = line.field("error", &terminal.error);
        }
        line = line
            .field("terminal", terminal.terminal)
            .field("inference_id", self.ids.0)
            .field("nonce", self.ids.1);
        if !terminal.failure_where.is_empty() {
            line = line.field("failure_where", terminal.failure_where);
        }
        line.emit();
    }
}

impl Drop for ChatTrack {
    fn drop(&mut self) {
        if !self.ended {
            let lost = "the request was dropped before its end".to_owned();
            self.write(&Terminal::refused("handle_request_err", "transport.handle_inference", lost));
        }
        self.host.metrics.add("devshard_inflight", &[("stage", "request")], -1.0);
    }
}

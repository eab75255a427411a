//! Readiness: healthy where a check exists, else a probe of ours, and the same start for K samples (design
//! compose-engine 3, reports 2, 5, 6, 7).

use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::engine::ContainerSeen;

/// How a service without a health check shows that it is ready.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Probe {
    /// A connection is accepted.
    Tcp {
        /// Port in the container.
        port: u16,
    },
    /// `GET` answers 200 to 299.
    Http {
        /// Port in the container.
        port: u16,
        /// Path.
        path: String,
    },
}

impl Probe {
    /// Port in the container.
    #[must_use]
    pub const fn port(&self) -> u16 {
        match self {
            Self::Tcp { port } | Self::Http { port, .. } => *port,
        }
    }
}

/// Who probes; the fake engine brings its own.
pub trait Prober: Send + Sync {
    /// Probes once. The error says why it is not ready yet.
    fn probe(&self, seen: &ContainerSeen, probe: &Probe) -> impl Future<Output = Result<(), String>> + Send;
}

/// Probes over the network: the published port, else the container's own address on a local engine.
#[derive(Clone, Copy, Debug)]
pub struct NetProber {
    /// Limit of one probe.
    pub limit: Duration,
}

/// Where a port of a container is reached from this host.
#[must_use]
pub fn reach(seen: &ContainerSeen, port: u16) -> Option<SocketAddr> {
    let published = seen.ports.get(&port).copied();
    published.or_else(|| seen.addresses.values().next().map(|ip| SocketAddr::new((*ip).into(), port)))
}

impl Prober for NetProber {
    async fn probe(&self, seen: &ContainerSeen, probe: &Probe) -> Result<(), String> {
        let address = reach(seen, probe.port()).ok_or_else(|| "it has no address yet".to_owned())?;
        let once = async {
            let mut stream =
                TcpStream::connect(address).await.map_err(|error| format!("{address}: {error}"))?;
            let Probe::Http { path, .. } = probe else { return Ok(()) };
            let head = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
            let io = |error: std::io::Error| format!("{address}{path}: {error}");
            stream.write_all(head.as_bytes()).await.map_err(io)?;
            let mut start = [0_u8; 12];
            stream.read_exact(&mut start).await.map_err(io)?;
            // "HTTP/1.1 2": the first digit of the status is the tenth byte.
            if start[9] == b'2' {
                Ok(())
            } else {
                Err(format!("{address}{path} answered {:?}", String::from_utf8_lossy(&start[9..])))
            }
        };
        match tokio::time::timeout(self.limit, once).await {
            Ok(result) => result,
            Err(_) => Err(format!("{address}: no answer within {} ms", self.limit.as_millis())),
        }
    }
}

/// What one look at a container means for a wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Look {
    /// Good now.
    Good,
    /// Not yet, and why.
    NotYet(String),
    /// It will not become good: it ended, or is unhealthy.
    Never(String),
}

/// Judges health and state of a container that is awaited to run.
#[must_use]
pub fn look_running(seen: &ContainerSeen, needs_health: bool) -> Look {
    if seen.restarting {
        return Look::NotYet(format!("it restarts ({} times so far)", seen.restart_count));
    }
    if seen.ended() {
        let oom = if seen.oom_killed { ", killed for lack of memory" } else { "" };
        return Look::Never(format!("it ended with code {}{oom} before it was ready", seen.exit_code));
    }
    if !seen.running {
        return Look::NotYet(format!("its state is {:?}", seen.status));
    }
    match seen.health.as_deref() {
        Some("healthy") => Look::Good,
        Some("unhealthy") => {
            let last = seen.probes.last().map_or(String::new(), |probe| {
                format!(": the last check gave {} {:?}", probe.exit_code, probe.output.trim())
            });
            Look::Never(format!("its health check says unhealthy{last}"))
        }
        Some("none") | None if needs_health => {
            Look::Never("it is awaited healthy but has no health check".to_owned())
        }
        Some("none") | None => Look::Good,
        Some(word) => Look::NotYet(format!("its health is {word}")),
    }
}

/// Judges a container that is awaited to end with code 0 (report 1).
#[must_use]
pub fn look_completed(seen: &ContainerSeen) -> Look {
    if seen.ended() {
        if seen.exit_code == 0 {
            return Look::Good;
        }
        return Look::Never(format!("it was awaited to end with code 0 and ended with {}", seen.exit_code));
    }
    Look::NotYet("it has not ended".to_owned())
}

/// Identity of a start: a change means that the container was restarted in between.
#[must_use]
pub fn start_identity(seen: &ContainerSeen) -> (String, String, i64, i64) {
    (seen.id.clone(), seen.started_at.clone(), seen.restart_count, seen.pid)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn running() -> ContainerSeen {
        ContainerSeen { running: true, status: "running".into(), ..ContainerSeen::default() }
    }

    #[test]
    fn report_7_running_during_backoff_is_not_ready() {
        let seen = ContainerSeen { restarting: true, restart_count: 3, ..running() };
        assert!(matches!(look_running(&seen, false), Look::NotYet(_)));
        assert!(!seen.up());
    }

    #[test]
    fn report_2_an_end_ends_the_wait() {
        let seen = ContainerSeen { status: "exited".into(), exit_code: 3, ..ContainerSeen::default() };
        assert!(matches!(look_running(&seen, true), Look::Never(text) if text.contains("code 3")));
    }

    #[test]
    fn report_1_a_one_shot_with_code_0_is_a_success() {
        let ended =
            |exit_code| ContainerSeen { status: "exited".into(), exit_code, ..ContainerSeen::default() };
        assert_eq!(look_completed(&ended(0)), Look::Good);
        assert!(matches!(look_completed(&ended(2)), Look::Never(_)));
        assert!(matches!(look_completed(&running()), Look::NotYet(_)));
    }

    #[test]
    fn report_8_every_condition_and_outcome_has_one_meaning() {
        let with = |health: &str| ContainerSeen { health: Some(health.into()), ..running() };
        assert_eq!(look_running(&with("healthy"), true), Look::Good);
        assert!(matches!(look_running(&with("starting"), true), Look::NotYet(_)));
        assert!(matches!(look_running(&with("unhealthy"), true), Look::Never(_)));
        assert!(matches!(look_running(&running(), true), Look::Never(_)));
        assert_eq!(look_running(&running(), false), Look::Good);
        // Report 30: a word that no version of the engine knows today is a wait, not a crash.
        assert!(matches!(look_running(&with("dozing"), true), Look::NotYet(_)));
    }
}

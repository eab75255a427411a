//! Looks at the health of every service from the first step to the end of the drain, since one that was unready for
//! seconds and came back leaves no other trace. Changes go to the dispatcher as events; A9 judges them.

use std::pin::Pin;
use std::time::Duration;

use evidence::event::EventKind;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::clock::Clock;
use crate::error::RunnerError;
use crate::life::dispatcher::Message;
use crate::stack::Running;

/// Pause between two looks at a service.
const SPACING: Duration = Duration::from_millis(250);
/// Time limit of one look, in ticks: a look that runs into it proves something only when the runner itself was awake.
const TICKS: u32 = 20;
const TICK: Duration = Duration::from_millis(100);
/// A tick that comes later than this says that the runner had no time.
const LATE_US: u64 = 250_000;
/// Failed looks in a row that are told at once.
const IN_A_ROW: usize = 3;
/// Failed looks of a row that goes on which one event names.
const TOLD_AT_ONCE: usize = 64;
/// Failed looks of one service that are told; more are counted.
const TOLD_MAX: u64 = 20_000;
/// What these looks call themselves: they can be told from the reads that become evidence of amounts.
pub const USER_AGENT: &str = "proofload-health";

/// Where a service shows its health.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Service.
    pub service: String,
    /// Any answer of success at this URL is health (contract gateway 2.3, hosts 2.2).
    pub url: String,
}

/// Services of a stack with the URLs of their health: gateway, hosts, and the control of the mocks.
#[must_use]
pub fn targets(running: &Running) -> Vec<Target> {
    let surfaces = &running.surfaces;
    let of = |service: &str, url: String| Target { service: service.to_owned(), url };
    let gateway = of("gateway", format!("{}/v1/status", surfaces.gateway));
    let hosts = surfaces.hosts.iter().map(|host| of(&host.service, format!("{}/healthz", host.base)));
    let mocks = running.mocks.controls();
    let mocks = mocks.map(|(service, control)| of(service, format!("http://{}/healthz", control.origin())));
    std::iter::once(gateway).chain(hosts).chain(mocks).collect()
}

/// The watch, one task a service.
#[derive(Debug)]
pub struct HealthWatch {
    stop: watch::Sender<bool>,
    tasks: JoinSet<Option<(String, String)>>,
}

impl HealthWatch {
    /// Begins to look; changes go to `inbox`.
    ///
    /// # Errors
    /// [`RunnerError::Environment`] when a client can't be built.
    pub fn start(
        targets: Vec<Target>,
        clock: Clock,
        inbox: &mpsc::Sender<Message>,
    ) -> Result<Self, RunnerError> {
        let stop = watch::Sender::new(false);
        let mut tasks = JoinSet::new();
        for target in targets {
            // One client a service, so that there is one connection and no other traffic on it.
            let client = reqwest::Client::builder()
                .no_proxy()
                .user_agent(USER_AGENT)
                .redirect(reqwest::redirect::Policy::none())
                .pool_max_idle_per_host(1)
                .build()
                .map_err(|error| RunnerError::environment(format!("watching health: {error}")))?;
            let watcher = Watcher { target, client, clock, inbox: inbox.clone() };
            tasks.spawn(watcher.follow(stop.subscribe()));
        }
        Ok(Self { stop, tasks })
    }

    /// Ends it; gives the services that never showed their health, and why.
    pub async fn stop(mut self) -> Vec<(String, String)> {
        self.stop.send_replace(true);
        let mut silent = Vec::new();
        while let Some(ended) = self.tasks.join_next().await {
            // A task that panicked has said so on standard error; its service has no `HealthWatched`.
            silent.extend(ended.ok().flatten());
        }
        silent.sort();
        silent
    }
}

struct Watcher {
    target: Target,
    client: reqwest::Client,
    clock: Clock,
    inbox: mpsc::Sender<Message>,
}

impl Watcher {
    /// Service and reason when no look was ever good.
    async fn follow(self, mut stop: watch::Receiver<bool>) -> Option<(String, String)> {
        let mut record = Record::new(&self.target.service);
        while !*stop.borrow_and_update() {
            let begun_us = self.clock.at_us();
            let look = tokio::select! {
                biased;
                look = self.look() => look,
                // A look that the end cuts off says nothing.
                _ = stop.changed() => break,
            };
            if let Some(event) = record.take(begun_us, look) {
                self.tell(event).await;
            }
            // Whichever comes first.
            let _either = tokio::time::timeout(SPACING, stop.changed()).await;
        }
        let (last, ended, silent) = record.end();
        if let Some(event) = last {
            self.tell(event).await;
        }
        self.tell(ended).await;
        silent.map(|why| (self.target.service, why))
    }

    async fn look(&self) -> Look {
        let mut asked: Pin<Box<_>> = Box::pin(self.ask());
        let mut late = false;
        for _ in 0..TICKS {
            let due_us = self.clock.at_us().saturating_add(us(TICK));
            match tokio::time::timeout(TICK, &mut asked).await {
                Ok(look) => return look,
                Err(_) => late |= self.clock.at_us() > due_us.saturating_add(LATE_US),
            }
        }
        // What came is a fact; only silence needs a runner that was awake all the time.
        if late {
            Look::Unknown
        } else {
            Look::Failed(format!("no answer within {} s", (TICKS * TICK).as_secs()))
        }
    }

    async fn ask(&self) -> Look {
        match self.client.get(&self.target.url).send().await {
            Ok(answer) if answer.status().is_success() => {
                // The head is the answer; a short body is taken in, so that the connection can be used again.
                if answer.content_length().is_some_and(|len| len <= super::ask::bound::SMALL as u64) {
                    drop(answer.bytes().await);
                }
                Look::Good
            }
            Ok(answer) => Look::Failed(answer.status().to_string()),
            Err(error) => Look::Failed(super::ask::chain(&error)),
        }
    }

    async fn tell(&self, event: EventKind) {
        // Without a dispatcher there is no run any more.
        drop(self.inbox.send(Message::Seen(event)).await);
    }
}

/// What one look gave.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Look {
    Good,
    Failed(String),
    /// The runner had no time.
    Unknown,
}

/// What is known of one service: pure, so that every order of looks can be tried.
#[derive(Debug)]
struct Record {
    service: String,
    good: u64,
    failed: u64,
    unknown: u64,
    told: u64,
    /// Failed looks of the row that no event names yet.
    row: Vec<u64>,
    row_len: usize,
    why: String,
}

impl Record {
    fn new(service: &str) -> Self {
        let (service, why) = (service.to_owned(), "it was not asked".to_owned());
        Self { service, good: 0, failed: 0, unknown: 0, told: 0, row: Vec::new(), row_len: 0, why }
    }

    /// Takes a look in; gives the event of a change, if it is one.
    fn take(&mut self, begun_us: u64, look: Look) -> Option<EventKind> {
        match look {
            Look::Good => {
                self.good += 1;
                let ended = self.row_len > 0;
                self.row_len = 0;
                ended.then(|| self.event(true))
            }
            Look::Unknown => {
                self.unknown += 1;
                // What a runner without time saw just before is as doubtful, unless it was told already.
                if self.row_len < IN_A_ROW {
                    self.unknown += self.row.len() as u64;
                    self.failed -= self.row.len() as u64;
                    self.row.clear();
                    self.row_len = 0;
                }
                None
            }
            Look::Failed(why) => {
                self.why = why;
                self.failed += 1;
                // Before the first good look nothing can be lost: it never was there.
                if self.good == 0 {
                    return None;
                }
                self.row_len += 1;
                if self.told < TOLD_MAX {
                    self.told += 1;
                    self.row.push(begun_us);
                }
                let due = self.row_len == IN_A_ROW || self.row.len() >= TOLD_AT_ONCE;
                (due && !self.row.is_empty()).then(|| self.event(false))
            }
        }
    }

    fn event(&mut self, ready: bool) -> EventKind {
        EventKind::Probe {
            service: self.service.clone(),
            ready,
            detail: Some(self.why.clone()),
            failed_at_us: std::mem::take(&mut self.row),
        }
    }

    /// What was not told yet, the count of everything, and why there was never a good look.
    fn end(mut self) -> (Option<EventKind>, EventKind, Option<String>) {
        let last = (!self.row.is_empty()).then(|| self.event(false));
        let Self { service, good, failed, unknown, why, .. } = self;
        let ended = EventKind::HealthWatched { service, good, failed, unknown, spacing_us: us(SPACING) };
        (last, ended, (good == 0).then_some(why))
    }
}

fn us(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// Takes looks 10 µs apart; gives the instants that each event names, and whether it says ready.
    fn told(looks: &[Look]) -> (Vec<(bool, Vec<u64>)>, Record) {
        let mut record = Record::new("host-1");
        let events = looks.iter().zip(1..).filter_map(|(look, at)| record.take(at * 10, look.clone()));
        let told = events.map(|event| match event {
            EventKind::Probe { ready, failed_at_us, .. } => (ready, failed_at_us),
            other => panic!("{other:?}"),
        });
        (told.collect(), record)
    }

    fn failed() -> Look {
        Look::Failed("503".to_owned())
    }

    #[test]
    fn only_changes_are_told_and_the_third_failure_at_once() {
        use Look::Good;
        let (events, _) = told(&[Good, failed(), Good, Good, failed(), failed(), failed(), failed(), Good]);
        assert_eq!(events, [(true, vec![20]), (false, vec![50, 60, 70]), (true, vec![80])]);
    }

    #[test]
    fn a_row_that_goes_on_is_told_in_parts_and_the_rest_at_the_end() {
        let mut looks = vec![Look::Good];
        looks.extend(std::iter::repeat_n(failed(), 100));
        let (events, record) = told(&looks);
        let parts: Vec<usize> = events.iter().map(|(_, at_us)| at_us.len()).collect();
        assert_eq!(parts, [3, 64]);
        let (last, ended, silent) = record.end();
        assert!(
            matches!(last, Some(EventKind::Probe { ready: false, failed_at_us, .. }) if failed_at_us.len() == 33)
        );
        assert!(matches!(ended, EventKind::HealthWatched { good: 1, failed: 100, unknown: 0, .. }));
        assert_eq!(silent, None);
    }

    #[test]
    fn a_runner_without_time_sees_nothing() {
        use Look::{Good, Unknown};
        let (events, record) = told(&[Good, failed(), failed(), Unknown, failed(), failed(), Good]);
        assert_eq!(events, [(true, vec![50, 60])], "neither row has three");
        assert_eq!((record.good, record.failed, record.unknown), (2, 2, 3));
    }

    #[test]
    fn health_that_was_never_shown_is_a_gap_and_no_loss() {
        let (events, record) = told(&[failed(), failed(), failed(), failed()]);
        assert!(events.is_empty());
        assert_eq!(record.end().2.as_deref(), Some("503"));
    }

    /// A service that is well, answers 503 for three looks, and is well again.
    #[tokio::test]
    async fn the_watch_tells_what_a_service_answered() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/healthz", listener.local_addr().unwrap());
        let server = tokio::spawn(async move {
            // One connection serves every look.
            let (mut stream, _) = listener.accept().await.unwrap();
            for look in 0.. {
                let mut head = [0; 1024];
                let len = stream.read(&mut head).await.unwrap_or(0);
                if len == 0 {
                    return look;
                }
                assert!(String::from_utf8_lossy(&head[..len]).contains(USER_AGENT));
                let status = if (1..4).contains(&look) { "503 Service Unavailable" } else { "200 OK" };
                let text = format!("HTTP/1.1 {status}\r\nContent-Length: 2\r\n\r\nok");
                stream.write_all(text.as_bytes()).await.unwrap();
            }
            0
        });
        let (inbox, mut outbox) = mpsc::channel(16);
        let clock = Clock::start();
        let target = Target { service: "host-1".to_owned(), url };
        let watch = HealthWatch::start(vec![target], clock, &inbox).unwrap();
        let mut next = async || match outbox.recv().await {
            Some(Message::Seen(event)) => event,
            other => panic!("{other:?}"),
        };
        let first = next().await;
        let EventKind::Probe { ready: false, failed_at_us, detail, .. } = first else { panic!("{first:?}") };
        assert_eq!((failed_at_us.len(), detail.as_deref()), (3, Some("503 Service Unavailable")));
        assert!(matches!(next().await, EventKind::Probe { ready: true, .. }));
        assert_eq!(watch.stop().await, []);
        assert!(matches!(next().await, EventKind::HealthWatched { failed: 3, unknown: 0, .. }));
        assert!(server.await.unwrap() >= 5);
    }
}

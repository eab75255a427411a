//! Validation leases by SQL (contract hosts 5.2): the table at each snapshot, and a watch that looks all the time, since
//! the table keeps no history. Read only, by short statements of their own (contract hosts 12.1).

use std::collections::BTreeMap;
use std::time::Duration;

use evidence::leases::{LeaseLine, LeaseSeen};
use evidence::rundir::{LEASES, LineWriter, RunDir, RunDirError};
use evidence::snapshot::{Lease, Missing};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_postgres::{Client, NoTls};

use super::keep;
use crate::error::RunnerError;

/// Time between two looks.
const SPACING: Duration = Duration::from_millis(200);
/// Time limit of one look, connecting included.
const LOOK_LIMIT: Duration = Duration::from_secs(5);
/// Lines of one participant; more are counted and left out.
const LINES_MAX: u64 = 200_000;
/// Rows of one table that are read.
const ROWS_MAX: i64 = 1_000_000;

const QUERY: &str = "SELECT epoch_id, escrow_id, inference_id, instance_address, status,
    (extract(epoch FROM claimed_at) * 1000000)::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
    FROM devshard_validation_leases ORDER BY 1, 2, 3 LIMIT $1";
/// Before the first host has made the table there is none, which is no failure.
const THERE: &str = "SELECT to_regclass('devshard_validation_leases') IS NOT NULL";

/// The tables of all participants. `None` without Postgres, and when one can't be read, which `missing` names.
pub async fn tables(urls: &BTreeMap<String, String>, missing: &mut Vec<Missing>) -> Option<Vec<Lease>> {
    let mut all = Vec::new();
    let mut whole = !urls.is_empty();
    for (participant, url) in urls {
        let rows = Table::new(url.clone()).look().await;
        match keep(missing, &format!("{participant}/leases"), rows) {
            Some((_, rows)) => all.extend(rows),
            None => whole = false,
        }
    }
    whole.then_some(all)
}

/// How the wait for open leases ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quiet {
    /// None was pending at the first look.
    AtOnce,
    /// The last one was worked on while we waited.
    Waited,
    /// One is pending still.
    GaveUp,
}

/// Waits until no lease is pending: what a dead owner held is taken over when its time has passed, and then worked on.
/// Gives up after `limit`; what is pending then is for the verdict.
pub async fn quiet(urls: &BTreeMap<String, String>, limit: Duration) -> Quiet {
    let deadline = tokio::time::Instant::now() + limit;
    let mut tables: Vec<Table> = urls.values().cloned().map(Table::new).collect();
    let mut at_once = true;
    loop {
        let mut pending = false;
        for table in &mut tables {
            let rows = table.look().await;
            pending |= rows.is_ok_and(|(_, rows)| rows.iter().any(|lease| lease.status == "pending"));
        }
        match pending {
            false if at_once => return Quiet::AtOnce,
            false => return Quiet::Waited,
            true if tokio::time::Instant::now() >= deadline => return Quiet::GaveUp,
            true => at_once = false,
        }
        tokio::time::sleep(SPACING).await;
    }
}

/// Looks at the lease tables until it is stopped, and writes down what it sees as it sees it.
#[derive(Debug)]
pub struct LeaseWatch {
    stop: watch::Sender<bool>,
    task: JoinHandle<Result<(), RunDirError>>,
}

impl LeaseWatch {
    /// Begins to look; `None` without Postgres.
    ///
    /// # Errors
    /// [`RunnerError::RunDir`] when the file can't be opened.
    pub fn start(
        urls: &BTreeMap<String, String>,
        ttl: Option<Duration>,
        dir: &RunDir,
    ) -> Result<Option<Self>, RunnerError> {
        if urls.is_empty() {
            return Ok(None);
        }
        let mut out = dir.append(LEASES)?;
        let us = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let begin = LeaseSeen::Begin { spacing_us: us(SPACING), ttl_us: ttl.map(us) };
        out.write(&LeaseLine::from(begin))?;
        let stop = watch::Sender::new(false);
        let watched = urls.iter().map(|(name, url)| Watched::new(name.clone(), url.clone())).collect();
        let task = tokio::spawn(follow(watched, out, stop.subscribe()));
        Ok(Some(Self { stop, task }))
    }

    /// Looks a last time.
    ///
    /// # Errors
    /// [`RunnerError::RunDir`] when what was seen could not be written.
    pub async fn stop(self) -> Result<(), RunnerError> {
        self.stop.send_replace(true);
        match self.task.await {
            Ok(written) => Ok(written?),
            Err(error) => Err(RunnerError::Internal(format!("the watch of leases ended: {error}"))),
        }
    }
}

type Key = (u64, String, u64);

/// One participant's table and what is known of it.
struct Watched {
    participant: String,
    table: Table,
    known: BTreeMap<Key, Lease>,
    looks: u64,
    failed: u64,
    why: Option<String>,
    lines: u64,
    dropped: u64,
}

impl Watched {
    fn new(participant: String, url: String) -> Self {
        let (table, known) = (Table::new(url), BTreeMap::new());
        Self { participant, table, known, looks: 0, failed: 0, why: None, lines: 0, dropped: 0 }
    }

    async fn look(&mut self, out: &mut LineWriter) -> Result<(), RunDirError> {
        match self.table.look().await {
            Ok((seen_unix_us, rows)) => {
                self.looks += 1;
                for line in changes(&self.participant, seen_unix_us, &mut self.known, rows) {
                    if self.lines >= LINES_MAX {
                        self.dropped += 1;
                    } else {
                        self.lines += 1;
                        out.write_buffered(&LeaseLine::from(line))?;
                    }
                }
                out.flush()
            }
            Err(error) => {
                self.failed += 1;
                self.why = Some(error);
                Ok(())
            }
        }
    }

    fn end(self) -> LeaseSeen {
        let Self { participant, looks, failed, why, dropped, .. } = self;
        LeaseSeen::End { participant, looks, failed, why, dropped }
    }
}

async fn follow(
    mut watched: Vec<Watched>,
    mut out: LineWriter,
    mut stop: watch::Receiver<bool>,
) -> Result<(), RunDirError> {
    loop {
        let last = *stop.borrow_and_update();
        for one in &mut watched {
            one.look(&mut out).await?;
        }
        if last {
            return watched.into_iter().try_for_each(|one| out.write(&LeaseLine::from(one.end())));
        }
        // Whichever comes first; after a stop there is one more look.
        let _either = tokio::time::timeout(SPACING, stop.changed()).await;
    }
}

/// What differs from the look before.
fn changes(
    participant: &str,
    seen_unix_us: u64,
    known: &mut BTreeMap<Key, Lease>,
    rows: Vec<Lease>,
) -> Vec<LeaseSeen> {
    let key = |lease: &Lease| (lease.epoch, lease.escrow.clone(), lease.inference);
    let participant = || participant.to_owned();
    let now: BTreeMap<Key, Lease> = rows.into_iter().map(|lease| (key(&lease), lease)).collect();
    let gone = known.iter().filter(|(key, _)| !now.contains_key(*key));
    let mut lines: Vec<LeaseSeen> = gone
        .map(|(_, lease)| LeaseSeen::Gone { participant: participant(), seen_unix_us, lease: lease.clone() })
        .collect();
    let changed = now.iter().filter(|(key, lease)| known.get(*key) != Some(*lease));
    lines.extend(changed.map(|(_, lease)| LeaseSeen::Changed {
        participant: participant(),
        seen_unix_us,
        lease: lease.clone(),
    }));
    *known = now;
    lines
}

/// One participant's table; connects on the first look and again after a loss.
struct Table {
    url: String,
    client: Option<Client>,
}

impl Table {
    fn new(url: String) -> Self {
        Self { url, client: None }
    }

    /// The time of the database and the rows.
    async fn look(&mut self) -> Result<(u64, Vec<Lease>), String> {
        let looked = tokio::time::timeout(LOOK_LIMIT, self.read()).await;
        let looked = looked.unwrap_or_else(|_| Err(format!("no answer within {} s", LOOK_LIMIT.as_secs())));
        if looked.is_err() {
            self.client = None;
        }
        looked
    }

    async fn read(&mut self) -> Result<(u64, Vec<Lease>), String> {
        let failed = |error: tokio_postgres::Error| error.to_string();
        let client = match self.client.take().filter(|client| !client.is_closed()) {
            Some(client) => client,
            None => {
                let (client, connection) = tokio_postgres::connect(&self.url, NoTls).await.map_err(failed)?;
                // It ends with its client; an error shows in the next question.
                tokio::spawn(async move { drop(connection.await) });
                client
            }
        };
        let there: bool = client.query_one(THERE, &[]).await.map_err(failed)?.get(0);
        let rows = if there { client.query(QUERY, &[&ROWS_MAX]).await.map_err(failed)? } else { Vec::new() };
        self.client = Some(client);
        let number = |number: i64| u64::try_from(number).unwrap_or_default();
        let seen = rows.first().map(|row| number(row.get(6))).unwrap_or_default();
        let lease = |row: &tokio_postgres::Row| Lease {
            epoch: number(row.get(0)),
            escrow: row.get(1),
            inference: number(row.get(2)),
            owner: row.get(3),
            status: row.get(4),
            claimed_unix_us: number(row.get(5)),
        };
        Ok((seen, rows.iter().map(lease).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(inference: u64, status: &str, claimed_unix_us: u64) -> Lease {
        let (escrow, owner) = ("1".to_owned(), "a".to_owned());
        Lease { epoch: 1, escrow, inference, owner, status: status.to_owned(), claimed_unix_us }
    }

    #[test]
    fn only_changes_are_kept() {
        let mut known = BTreeMap::new();
        let first = vec![lease(1, "pending", 5), lease(2, "pending", 5)];
        assert_eq!(changes("host-0", 10, &mut known, first.clone()).len(), 2);
        assert!(changes("host-0", 20, &mut known, first).is_empty());
        let lines = changes("host-0", 30, &mut known, vec![lease(1, "submitted", 5)]);
        let kinds: Vec<(bool, u64)> = lines
            .iter()
            .map(|line| match line {
                LeaseSeen::Gone { lease, .. } => (false, lease.inference),
                LeaseSeen::Changed { lease, .. } => (true, lease.inference),
                LeaseSeen::Begin { .. } | LeaseSeen::End { .. } => (true, 0),
            })
            .collect();
        assert_eq!(kinds, [(false, 2), (true, 1)]);
    }
}

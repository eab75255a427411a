//! Request accounting, `perf.db`: one row per race with its attempts, and aliases of cache hits (contract
//! gateway 5). A row is opened before a host is chosen and gets exactly one outcome.

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rusqlite::{Connection, OptionalExtension as _, params};

use super::store::{StoreError, integer, open_sqlite};

const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS request_accounting (
  request_id TEXT NOT NULL, escrow_id TEXT NOT NULL, model TEXT NOT NULL, outcome TEXT NOT NULL,
  decision TEXT NOT NULL, winner_nonce INTEGER NOT NULL, started_ns INTEGER NOT NULL,
  completed_ns INTEGER, PRIMARY KEY (request_id, escrow_id)) STRICT;
CREATE INDEX IF NOT EXISTS running ON request_accounting (outcome) WHERE outcome = 'running';
CREATE TABLE IF NOT EXISTS request_accounting_attempts (
  request_id TEXT NOT NULL, escrow_id TEXT NOT NULL, nonce INTEGER NOT NULL, host_idx INTEGER NOT NULL,
  participant_key TEXT NOT NULL, created_ns INTEGER NOT NULL,
  PRIMARY KEY (request_id, escrow_id, nonce)) STRICT;
CREATE TABLE IF NOT EXISTS request_accounting_aliases (
  request_id TEXT NOT NULL, escrow_id TEXT NOT NULL, source_request_id TEXT NOT NULL,
  source_escrow_id TEXT NOT NULL, reason TEXT NOT NULL, created_ns INTEGER NOT NULL,
  PRIMARY KEY (request_id, escrow_id)) STRICT;
";

/// Terminal outcome of a race.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Success,
    Failed,
}

impl Outcome {
    /// The word in accounting, metrics and log.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Failed => "failed",
        }
    }
}

/// An attempt of a race.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptRow {
    pub nonce: u64,
    pub host_idx: u32,
    pub participant_key: String,
    pub created_ns: u64,
}

/// A row with its attempts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestRow {
    pub model: String,
    pub outcome: String,
    pub decision: String,
    pub winner_nonce: u64,
    pub started_ns: u64,
    pub completed_ns: Option<u64>,
    pub attempts: Vec<AttemptRow>,
}

/// What a request id leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    Race(RequestRow),
    /// A cache hit: request and escrow of the answer's race, and when.
    Alias {
        source_request_id: String,
        source_escrow_id: String,
        created_ns: u64,
    },
}

/// The accounting database.
#[derive(Debug)]
pub struct Accounting {
    connection: Mutex<Connection>,
}

impl Accounting {
    /// Opens or makes the file.
    ///
    /// # Errors
    /// When the file cannot be opened or is of another version.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        Ok(Self { connection: Mutex::new(open_sqlite(path, SCHEMA)?) })
    }

    /// Ends what an earlier process left running: its races are gone, so they have failed. Returns how many.
    pub fn end_orphans(&self, now_ns: u64) -> Result<usize, StoreError> {
        Ok(self.lock().execute(
            "UPDATE request_accounting SET outcome = 'failed', completed_ns = ?1 WHERE outcome = 'running'",
            [integer(now_ns)],
        )?)
    }

    /// Opens the row of a race.
    pub fn begin(&self, id: &str, escrow_id: &str, model: &str, now_ns: u64) -> Result<(), StoreError> {
        let connection = self.lock();
        let mut insert = connection.prepare_cached(
            "INSERT INTO request_accounting
             (request_id, escrow_id, model, outcome, decision, winner_nonce, started_ns)
             VALUES (?1, ?2, ?3, 'running', '', 0, ?4)",
        )?;
        insert.execute(params![id, escrow_id, model, integer(now_ns)])?;
        Ok(())
    }

    /// Adds an attempt.
    pub fn attempt(&self, id: &str, escrow_id: &str, attempt: &AttemptRow) -> Result<(), StoreError> {
        let connection = self.lock();
        let mut insert = connection.prepare_cached(
            "INSERT INTO request_accounting_attempts
             (request_id, escrow_id, nonce, host_idx, participant_key, created_ns)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        )?;
        insert.execute(params![
            id,
            escrow_id,
            integer(attempt.nonce),
            attempt.host_idx,
            attempt.participant_key,
            integer(attempt.created_ns)
        ])?;
        Ok(())
    }

    /// Gives a running row its outcome; one that has an outcome keeps it.
    pub fn end(
        &self,
        id: &str,
        escrow_id: &str,
        (outcome, decision, winner_nonce): (Outcome, &str, u64),
        now_ns: u64,
    ) -> Result<(), StoreError> {
        let connection = self.lock();
        let mut update = connection.prepare_cached(
            "UPDATE request_accounting SET outcome = ?3, decision = ?4, winner_nonce = ?5, completed_ns = ?6
             WHERE request_id = ?1 AND escrow_id = ?2 AND outcome = 'running'",
        )?;
        update.execute(params![
            id,
            escrow_id,
            outcome.name(),
            decision,
            integer(winner_nonce),
            integer(now_ns)
        ])?;
        Ok(())
    }

    /// Notes a cache hit under the escrow of the source.
    pub fn alias(&self, id: &str, source_id: &str, escrow_id: &str, now_ns: u64) -> Result<(), StoreError> {
        let connection = self.lock();
        let mut insert = connection.prepare_cached(
            "INSERT INTO request_accounting_aliases
             (request_id, escrow_id, source_request_id, source_escrow_id, reason, created_ns)
             VALUES (?1, ?2, ?3, ?2, 'response_cache', ?4)",
        )?;
        insert.execute(params![id, escrow_id, source_id, integer(now_ns)])?;
        Ok(())
    }

    /// Looks a request up.
    pub fn find(&self, id: &str, escrow_id: &str) -> Result<Option<Found>, StoreError> {
        let connection = self.lock();
        let mut select = connection.prepare_cached(
            "SELECT model, outcome, decision, winner_nonce, started_ns, completed_ns
             FROM request_accounting WHERE request_id = ?1 AND escrow_id = ?2",
        )?;
        let row = select
            .query_row([id, escrow_id], |row| {
                Ok(RequestRow {
                    model: row.get(0)?,
                    outcome: row.get(1)?,
                    decision: row.get(2)?,
                    winner_nonce: row.get::<_, i64>(3)?.unsigned_abs(),
                    started_ns: row.get::<_, i64>(4)?.unsigned_abs(),
                    completed_ns: row.get::<_, Option<i64>>(5)?.map(i64::unsigned_abs),
                    attempts: Vec::new(),
                })
            })
            .optional()?;
        if let Some(mut row) = row {
            row.attempts = attempts(&connection, id, escrow_id)?;
            return Ok(Some(Found::Race(row)));
        }
        let mut select = connection.prepare_cached(
            "SELECT source_request_id, source_escrow_id, created_ns
             FROM request_accounting_aliases WHERE request_id = ?1 AND escrow_id = ?2",
        )?;
        let alias = select.query_row([id, escrow_id], |row| {
            Ok(Found::Alias {
                source_request_id: row.get(0)?,
                source_escrow_id: row.get(1)?,
                created_ns: row.get::<_, i64>(2)?.unsigned_abs(),
            })
        });
        Ok(alias.optional()?)
    }

    /// Takes over the rows of one escrow out of another file. Returns how many requests and attempts came.
    pub fn import(&self, path: &Path, escrow_id: &str) -> Result<(usize, usize), StoreError> {
        // Opening checks that the file is one of ours before anything is copied.
        drop(open_sqlite(path, SCHEMA)?);
        let connection = self.lock();
        connection.execute("ATTACH DATABASE ?1 AS other", [path.display().to_string()])?;
        let copy = |table: &str| {
            let sql = format!(
                "INSERT OR IGNORE INTO main.{table} SELECT * FROM other.{table} WHERE escrow_id = ?1"
            );
            connection.execute(&sql, [escrow_id])
        };
        let copied = copy("request_accounting")
            .and_then(|records| Ok((records, copy("request_accounting_attempts")?)));
        connection.execute("DETACH DATABASE other", [])?;
        Ok(copied?)
    }

    fn lock(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn attempts(connection: &Connection, id: &str, escrow_id: &str) -> Result<Vec<AttemptRow>, StoreError> {
    let mut select = connection.prepare_cached(
        "SELECT nonce, host_idx, participant_key, created_ns FROM request_accounting_attempts
         WHERE request_id = ?1 AND escrow_id = ?2 ORDER BY nonce",
    )?;
    let rows = select.query_map([id, escrow_id], |row| {
        Ok(AttemptRow {
            nonce: row.get::<_, i64>(0)?.unsigned_abs(),
            host_idx: row.get(1)?,
            participant_key: row.get(2)?,
            created_ns: row.get::<_, i64>(3)?.unsigned_abs(),
        })
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_gets_one_outcome_and_a_killed_process_leaves_none_running() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("perf.db");
        let attempt = AttemptRow { nonce: 4, host_idx: 1, participant_key: "p".into(), created_ns: 6 };
        {
            let accounting = Accounting::open(&path).unwrap();
            for id in ["a", "b"] {
                accounting.begin(id, "9", "m", 5).unwrap();
            }
            accounting.attempt("a", "9", &attempt).unwrap();
            accounting.end("a", "9", (Outcome::Success, "receipt_timeout", 4), 7).unwrap();
            accounting.end("a", "9", (Outcome::Failed, "receipt_timeout", 0), 8).unwrap();
            accounting.alias("c", "a", "9", 9).unwrap();
        }
        let accounting = Accounting::open(&path).unwrap();
        assert_eq!(accounting.end_orphans(10).unwrap(), 1);
        let Some(Found::Race(a)) = accounting.find("a", "9").unwrap() else { panic!("a is a race") };
        assert_eq!((a.outcome.as_str(), a.winner_nonce, a.completed_ns), ("success", 4, Some(7)));
        assert_eq!(a.attempts, [attempt]);
        let Some(Found::Race(b)) = accounting.find("b", "9").unwrap() else { panic!("b is a race") };
        assert_eq!((b.outcome.as_str(), b.completed_ns), ("failed", Some(10)));
        let alias =
            Found::Alias { source_request_id: "a".into(), source_escrow_id: "9".into(), created_ns: 9 };
        assert_eq!(accounting.find("c", "9").unwrap(), Some(alias));
        assert_eq!(accounting.find("a", "8").unwrap(), None);
    }
}

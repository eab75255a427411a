//! Durable state of the gateway apart from accounting, `gateway.db`: settings, escrows, and the steps and
//! signatures of every session. A step is here before anybody is told about it.

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rusqlite::{Connection, OptionalExtension as _, Row, params};

use crate::state::SessionParams;
use crate::transport::{Base64, Diff};

const SCHEMA_VERSION: i64 = 1;
const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS settings (id INTEGER PRIMARY KEY CHECK (id = 1), json TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS gateway_devshards (
  id TEXT PRIMARY KEY, model TEXT NOT NULL, active INTEGER NOT NULL, created_ns INTEGER NOT NULL,
  updated_ns INTEGER NOT NULL, params TEXT NOT NULL, urls TEXT NOT NULL, settlement TEXT) STRICT;
CREATE TABLE IF NOT EXISTS diffs (
  escrow_id TEXT NOT NULL, nonce INTEGER NOT NULL, txs BLOB NOT NULL, user_sig BLOB NOT NULL,
  post_state_root BLOB NOT NULL, PRIMARY KEY (escrow_id, nonce)) STRICT;
CREATE TABLE IF NOT EXISTS signatures (
  escrow_id TEXT NOT NULL, nonce INTEGER NOT NULL, slot INTEGER NOT NULL, sig BLOB NOT NULL,
  PRIMARY KEY (escrow_id, nonce, slot)) STRICT;
CREATE TABLE IF NOT EXISTS participant_throttle_state (
  participant_key TEXT PRIMARY KEY, mode TEXT NOT NULL, reason TEXT NOT NULL, until_ns INTEGER NOT NULL,
  strikes INTEGER NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS gateway_suspicious_hosts (
  participant_key TEXT PRIMARY KEY, note TEXT NOT NULL, created_ns INTEGER NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS gateway_rotation_roles (
  id TEXT PRIMARY KEY, role TEXT NOT NULL, epoch INTEGER NOT NULL) STRICT;
";

/// Why the database did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// SQLite refused.
    #[error("database: {0}")]
    Sqlite(#[from] rusqlite::Error),
    /// A stored value cannot be read back.
    #[error("database: {0} is damaged: {1}")]
    Damaged(&'static str, serde_json::Error),
    /// The file was written by another version of this program.
    #[error("database: schema version {0}, this program reads {SCHEMA_VERSION}; use a new directory")]
    Version(i64),
}

/// One row of the registry.
#[derive(Clone, Debug, PartialEq)]
pub struct Registered {
    pub params: SessionParams,
    pub model: String,
    pub active: bool,
    pub created_ns: u64,
    pub updated_ns: u64,
    /// Base URL of the host of each slot.
    pub urls: Vec<String>,
    /// Settlement payload, once finalized.
    pub settlement: Option<String>,
}

/// A throttle row: participant, mode, reason, end in Unix nanoseconds, strikes.
pub type Throttle = (String, String, String, u64, u64);

/// The database.
#[derive(Debug)]
pub struct Store {
    connection: Mutex<Connection>,
}

impl Store {
    /// Opens or makes the file.
    ///
    /// # Errors
    /// When the file cannot be opened or is of another version.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        Ok(Self { connection: Mutex::new(open_sqlite(path, SCHEMA)?) })
    }

    /// Stored settings, JSON.
    pub fn settings(&self) -> Result<Option<String>, StoreError> {
        let connection = self.lock();
        let mut select = connection.prepare_cached("SELECT json FROM settings WHERE id = 1")?;
        Ok(select.query_row([], |row| row.get(0)).optional()?)
    }

    /// Replaces the settings.
    pub fn put_settings(&self, json: &str) -> Result<(), StoreError> {
        self.lock().execute("INSERT OR REPLACE INTO settings (id, json) VALUES (1, ?1)", [json])?;
        Ok(())
    }

    /// Adds an escrow; one that exists keeps its row, but for the hosts' URLs, which may move.
    pub fn register(&self, escrow: &Registered) -> Result<(), StoreError> {
        let params = serde_json::to_string(&escrow.params).expect("session parameters are plain data");
        let urls = serde_json::to_string(&escrow.urls).expect("URLs are plain data");
        self.lock().execute(
            "INSERT INTO gateway_devshards (id, model, active, created_ns, updated_ns, params, urls)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT (id) DO UPDATE SET urls = excluded.urls",
            params![
                escrow.params.escrow_id,
                escrow.model,
                escrow.active,
                integer(escrow.created_ns),
                integer(escrow.updated_ns),
                params,
                urls
            ],
        )?;
        Ok(())
    }

    /// All escrows by number.
    pub fn registered(&self) -> Result<Vec<Registered>, StoreError> {
        let connection = self.lock();
        let mut select = connection.prepare_cached(&format!("{SELECT} ORDER BY CAST(id AS INTEGER)"))?;
        let rows = select.query_map([], raw)?;
        rows.map(|row| read(row?)).collect()
    }

    /// One escrow.
    pub fn find(&self, escrow_id: &str) -> Result<Option<Registered>, StoreError> {
        let connection = self.lock();
        let mut select = connection.prepare_cached(&format!("{SELECT} WHERE id = ?1"))?;
        select.query_row([escrow_id], raw).optional()?.map(read).transpose()
    }

    /// Marks an escrow as active or not.
    pub fn set_active(&self, escrow_id: &str, active: bool, now_ns: u64) -> Result<(), StoreError> {
        self.lock().execute(
            "UPDATE gateway_devshards SET active = ?2, updated_ns = ?3 WHERE id = ?1",
            params![escrow_id, active, integer(now_ns)],
        )?;
        Ok(())
    }

    /// Keeps the settlement payload.
    pub fn put_settlement(&self, escrow_id: &str, payload: &str) -> Result<(), StoreError> {
        self.lock()
            .execute("UPDATE gateway_devshards SET settlement = ?2 WHERE id = ?1", [escrow_id, payload])?;
        Ok(())
    }

    /// Appends a step. A nonce that exists is an error: nonces are never used twice.
    pub fn add_diff(&self, escrow_id: &str, diff: &Diff) -> Result<(), StoreError> {
        let connection = self.lock();
        let mut insert = connection.prepare_cached(
            "INSERT INTO diffs (escrow_id, nonce, txs, user_sig, post_state_root) VALUES (?1, ?2, ?3, ?4, ?5)",
        )?;
        insert.execute(params![
            escrow_id,
            integer(diff.nonce),
            diff.txs.0,
            diff.user_sig.0,
            diff.post_state_root.0
        ])?;
        Ok(())
    }

    /// All steps of a session.
    pub fn diffs(&self, escrow_id: &str) -> Result<Vec<Diff>, StoreError> {
        let connection = self.lock();
        let mut select = connection.prepare_cached(
            "SELECT nonce, txs, user_sig, post_state_root FROM diffs WHERE escrow_id = ?1 ORDER BY nonce",
        )?;
        let rows = select.query_map([escrow_id], |row| {
            Ok(Diff {
                nonce: row.get::<_, i64>(0)?.unsigned_abs(),
                txs: Base64(row.get(1)?),
                user_sig: Base64(row.get(2)?),
                post_state_root: Base64(row.get(3)?),
            })
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Keeps the signature of a slot over the state at a nonce.
    pub fn add_signature(
        &self,
        escrow_id: &str,
        nonce: u64,
        slot: u32,
        sig: &[u8],
    ) -> Result<(), StoreError> {
        let connection = self.lock();
        let mut insert = connection.prepare_cached(
            "INSERT OR REPLACE INTO signatures (escrow_id, nonce, slot, sig) VALUES (?1, ?2, ?3, ?4)",
        )?;
        insert.execute(params![escrow_id, integer(nonce), slot, sig])?;
        Ok(())
    }

    /// All signatures of a session: nonce, slot, bytes.
    pub fn signatures(&self, escrow_id: &str) -> Result<Vec<(u64, u32, Vec<u8>)>, StoreError> {
        let connection = self.lock();
        let mut select =
            connection.prepare_cached("SELECT nonce, slot, sig FROM signatures WHERE escrow_id = ?1")?;
        let rows = select.query_map([escrow_id], |row| {
            Ok((row.get::<_, i64>(0)?.unsigned_abs(), row.get(1)?, row.get(2)?))
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Takes an escrow out of the registry, with its steps and signatures.
    pub fn remove(&self, escrow_id: &str) -> Result<(), StoreError> {
        let mut connection = self.lock();
        let transaction = connection.transaction()?;
        for (table, key) in [
            ("gateway_devshards", "id"),
            ("diffs", "escrow_id"),
            ("signatures", "escrow_id"),
            ("gateway_rotation_roles", "id"),
        ] {
            transaction.execute(&format!("DELETE FROM {table} WHERE {key} = ?1"), [escrow_id])?;
        }
        transaction.commit()?;
        Ok(())
    }

    /// Takes over steps and signatures of a session out of another database, all or nothing.
    pub fn copy_session(&self, from: &Self, escrow_id: &str) -> Result<(), StoreError> {
        let (diffs, signatures) = (from.diffs(escrow_id)?, from.signatures(escrow_id)?);
        let mut connection = self.lock();
        let transaction = connection.transaction()?;
        for diff in diffs {
            transaction.execute(
                "INSERT INTO diffs (escrow_id, nonce, txs, user_sig, post_state_root)
                 VALUES (?1, ?2, ?3, ?4, ?5)",
                params![escrow_id, integer(diff.nonce), diff.txs.0, diff.user_sig.0, diff.post_state_root.0],
            )?;
        }
        for (nonce, slot, sig) in signatures {
            transaction.execute(
                "INSERT INTO signatures (escrow_id, nonce, slot, sig) VALUES (?1, ?2, ?3, ?4)",
                params![escrow_id, integer(nonce), slot, sig],
            )?;
        }
        transaction.commit()?;
        Ok(())
    }

    /// All throttle rows.
    pub fn throttles(&self) -> Result<Vec<Throttle>, StoreError> {
        let connection = self.lock();
        let mut select = connection.prepare_cached(
            "SELECT participant_key, mode, reason, until_ns, strikes FROM participant_throttle_state",
        )?;
        let rows = select.query_map([], |row| {
            let number = |index| row.get::<_, i64>(index).map(i64::unsigned_abs);
            Ok((row.get(0)?, row.get(1)?, row.get(2)?, number(3)?, number(4)?))
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Keeps a throttle row; mode `none` takes it away.
    pub fn put_throttle(
        &self,
        participant: &str,
        (mode, reason, until_ns, strikes): (&str, &str, u64, u64),
    ) -> Result<(), StoreError> {
        let connection = self.lock();
        if mode == "none" {
            connection.execute(
                "DELETE FROM participant_throttle_state WHERE participant_key = ?1",
                [participant],
            )?;
            return Ok(());
        }
        connection.execute(
            "INSERT OR REPLACE INTO participant_throttle_state
             (participant_key, mode, reason, until_ns, strikes) VALUES (?1, ?2, ?3, ?4, ?5)",
            params![participant, mode, reason, integer(until_ns), integer(strikes)],
        )?;
        Ok(())
    }

    /// The list of hosts that the admin lets win nothing: participant, note, time.
    pub fn suspicious(&self) -> Result<Vec<(String, String, u64)>, StoreError> {
        let connection = self.lock();
        let mut select = connection.prepare_cached(
            "SELECT participant_key, note, created_ns FROM gateway_suspicious_hosts ORDER BY participant_key",
        )?;
        let rows = select
            .query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get::<_, i64>(2)?.unsigned_abs())))?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Puts a host on the list, or takes it off when there is no note.
    pub fn put_suspicious(
        &self,
        participant: &str,
        note: Option<&str>,
        now_ns: u64,
    ) -> Result<(), StoreError> {
        let connection = self.lock();
        match note {
            None => connection
                .execute("DELETE FROM gateway_suspicious_hosts WHERE participant_key = ?1", [participant])?,
            Some(note) => connection.execute(
                "INSERT OR REPLACE INTO gateway_suspicious_hosts (participant_key, note, created_ns)
                 VALUES (?1, ?2, ?3)",
                params![participant, note, integer(now_ns)],
            )?,
        };
        Ok(())
    }

    /// Role and epoch of an escrow that a rotation has made.
    pub fn role(&self, escrow_id: &str) -> Result<Option<(String, u64)>, StoreError> {
        let connection = self.lock();
        let mut select =
            connection.prepare_cached("SELECT role, epoch FROM gateway_rotation_roles WHERE id = ?1")?;
        let role =
            select.query_row([escrow_id], |row| Ok((row.get(0)?, row.get::<_, i64>(1)?.unsigned_abs())));
        Ok(role.optional()?)
    }

    /// Keeps role and epoch of an escrow.
    pub fn put_role(&self, escrow_id: &str, role: &str, epoch: u64) -> Result<(), StoreError> {
        self.lock().execute(
            "INSERT OR REPLACE INTO gateway_rotation_roles (id, role, epoch) VALUES (?1, ?2, ?3)",
            params![escrow_id, role, integer(epoch)],
        )?;
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const SELECT: &str =
    "SELECT params, model, active, created_ns, updated_ns, urls, settlement FROM gateway_devshards";

type Raw = (String, String, bool, i64, i64, String, Option<String>);

fn raw(row: &Row<'_>) -> rusqlite::Result<Raw> {
    Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?, row.get(5)?, row.get(6)?))
}

fn read((params, model, active, created, updated, urls, settlement): Raw) -> Result<Registered, StoreError> {
    Ok(Registered {
        params: serde_json::from_str(&params).map_err(|error| StoreError::Damaged("parameters", error))?,
        urls: serde_json::from_str(&urls).map_err(|error| StoreError::Damaged("URLs", error))?,
        model,
        active,
        created_ns: created.unsigned_abs(),
        updated_ns: updated.unsigned_abs(),
        settlement,
    })
}

/// Opens a file with WAL: a killed process loses nothing that was committed.
pub fn open_sqlite(path: &Path, schema: &str) -> Result<Connection, StoreError> {
    let connection = Connection::open(path)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    let found: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    if found != 0 && found != SCHEMA_VERSION {
        return Err(StoreError::Version(found));
    }
    connection.execute_batch(schema)?;
    connection.pragma_update(None, "user_version", SCHEMA_VERSION)?;
    Ok(connection)
}

/// SQLite integers are signed.
#[must_use]
pub fn integer(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::personality::Waits;
    use crate::state::SessionConfig;

    #[test]
    fn a_nonce_is_stored_once_and_comes_back() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("gateway.db");
        let diff =
            Diff { nonce: 1, txs: vec![1].into(), user_sig: vec![2].into(), post_state_root: vec![3].into() };
        let params = SessionParams {
            escrow_id: "9".into(),
            creator: "c".into(),
            group: vec!["a".into()],
            initial_balance: 5,
            protocol_version: "v2".into(),
            config: SessionConfig::defaults(1, Waits::default()),
        };
        {
            let store = Store::open(&path).unwrap();
            let escrow = Registered {
                params: params.clone(),
                model: "m".into(),
                active: true,
                created_ns: 1,
                updated_ns: 1,
                urls: vec!["http://h".into()],
                settlement: None,
            };
            store.register(&escrow).unwrap();
            store.add_diff("9", &diff).unwrap();
            assert!(store.add_diff("9", &diff).is_err());
            store.add_signature("9", 1, 0, &[7]).unwrap();
            store.set_active("9", false, 2).unwrap();
        }
        let store = Store::open(&path).unwrap();
        assert_eq!(store.diffs("9").unwrap(), [diff]);
        assert_eq!(store.signatures("9").unwrap(), [(1, 0, vec![7])]);
        let row = store.find("9").unwrap().unwrap();
        assert_eq!((row.params, row.active, row.updated_ns), (params, false, 2));
        assert!(store.find("10").unwrap().is_none());
    }
}

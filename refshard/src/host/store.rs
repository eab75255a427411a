//! Durable state of a host in one SQLite file: sessions, steps, signatures, mempool, payloads.
//!
//! WAL with `synchronous=NORMAL`: a killed process loses nothing that was committed. The July host keeps
//! its mempool in memory alone; here it is a table, so that no finish is lost by a restart.

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rusqlite::{Connection, OptionalExtension as _, params};

use crate::state::SessionParams;
use crate::transport::{Base64, Diff, DiffRecord};

/// How long one replica waits for the other's write.
const BUSY_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(5);
const SCHEMA_VERSION: i64 = 1;
const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS sessions (
  escrow_id TEXT PRIMARY KEY, epoch_id INTEGER NOT NULL, params TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS diffs (
  escrow_id TEXT NOT NULL, nonce INTEGER NOT NULL, txs BLOB NOT NULL, user_sig BLOB NOT NULL,
  post_state_root BLOB NOT NULL, state_hash BLOB NOT NULL, PRIMARY KEY (escrow_id, nonce)) STRICT;
CREATE TABLE IF NOT EXISTS signatures (
  escrow_id TEXT NOT NULL, nonce INTEGER NOT NULL, slot INTEGER NOT NULL, sig BLOB NOT NULL,
  PRIMARY KEY (escrow_id, nonce, slot)) STRICT;
CREATE TABLE IF NOT EXISTS mempool (
  place INTEGER PRIMARY KEY, escrow_id TEXT NOT NULL, tx BLOB NOT NULL, UNIQUE (escrow_id, tx)) STRICT;
CREATE TABLE IF NOT EXISTS payloads (
  escrow_id TEXT NOT NULL, inference_id INTEGER NOT NULL, prompt BLOB NOT NULL, response BLOB NOT NULL,
  PRIMARY KEY (escrow_id, inference_id)) STRICT;
CREATE TABLE IF NOT EXISTS settled (escrow_id TEXT PRIMARY KEY) STRICT;
";

/// Why the database did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// SQLite refused.
    #[error("database: {0}")]
    Sqlite(#[from] rusqlite::Error),
    /// A stored value cannot be read back.
    #[error("database: {what} of session {escrow_id} is damaged: {reason}")]
    Damaged {
        /// Which value.
        what: &'static str,
        /// Whose.
        escrow_id: String,
        /// What the reader said.
        reason: String,
    },
    /// The file was written by another version of this program.
    #[error("database: schema version {found}, this program reads {SCHEMA_VERSION}; use a new file")]
    Version {
        /// Version in the file.
        found: i64,
    },
}

/// One stored session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredSession {
    /// Chain epoch in which it was made.
    pub epoch_id: u64,
    /// What it began with.
    pub params: SessionParams,
}

/// Prompt and answer of an execution.
pub type StoredPayload = (Vec<u8>, Vec<u8>);

/// The database of one host.
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
        let connection = Connection::open(path)?;
        // A replica of the same participant may be writing.
        connection.busy_timeout(BUSY_TIMEOUT)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "NORMAL")?;
        let found: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
        if found != 0 && found != SCHEMA_VERSION {
            return Err(StoreError::Version { found });
        }
        connection.execute_batch(SCHEMA)?;
        connection.pragma_update(None, "user_version", SCHEMA_VERSION)?;
        Ok(Self { connection: Mutex::new(connection) })
    }

    /// Stores a new session; one that exists stays as it is.
    ///
    /// # Errors
    /// When SQLite refuses.
    pub fn add_session(&self, session: &StoredSession) -> Result<(), StoreError> {
        let params = serde_json::to_string(&session.params).expect("session parameters are plain data");
        self.lock().execute(
            "INSERT OR IGNORE INTO sessions (escrow_id, epoch_id, params) VALUES (?1, ?2, ?3)",
            params![session.params.escrow_id, integer(session.epoch_id), params],
        )?;
        Ok(())
    }

    /// All sessions.
    ///
    /// # Errors
    /// When SQLite refuses or a row is damaged.
    pub fn sessions(&self) -> Result<Vec<StoredSession>, StoreError> {
        let connection = self.lock();
        let mut select =
            connection.prepare("SELECT escrow_id, epoch_id, params FROM sessions ORDER BY escrow_id")?;
        let rows = select.query_map([], |row| {
            Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?, row.get::<_, String>(2)?))
        })?;
        rows.map(|row| {
            let (escrow_id, epoch_id, text) = row?;
            let params = serde_json::from_str(&text).map_err(|error| StoreError::Damaged {
                what: "parameters",
                escrow_id,
                reason: error.to_string(),
            })?;
            Ok(StoredSession { epoch_id: epoch_id.unsigned_abs(), params })
        })
        .collect()
    }

    /// One session.
    ///
    /// # Errors
    /// When SQLite refuses or the row is damaged.
    pub fn session(&self, escrow_id: &str) -> Result<Option<StoredSession>, StoreError> {
        let found = self.sessions()?.into_iter().find(|stored| stored.params.escrow_id == escrow_id);
        Ok(found)
    }

    /// Notes that the chain has settled an escrow.
    ///
    /// # Errors
    /// When SQLite refuses.
    pub fn put_settled(&self, escrow_id: &str) -> Result<(), StoreError> {
        self.lock().execute("INSERT OR IGNORE INTO settled (escrow_id) VALUES (?1)", [escrow_id])?;
        Ok(())
    }

    /// Whether the chain has settled an escrow.
    ///
    /// # Errors
    /// When SQLite refuses.
    pub fn is_settled(&self, escrow_id: &str) -> Result<bool, StoreError> {
        let connection = self.lock();
        let mut select = connection.prepare_cached("SELECT 1 FROM settled WHERE escrow_id = ?1")?;
        Ok(select.exists([escrow_id])?)
    }

    /// Stores one applied step and takes out the mempool entries that it carried, in one transaction.
    ///
    /// # Errors
    /// When SQLite refuses, for instance because the nonce is taken.
    pub fn add_diff(
        &self,
        escrow_id: &str,
        record: &DiffRecord,
        sequenced: &[Vec<u8>],
    ) -> Result<(), StoreError> {
        let mut connection = self.lock();
        let transaction = connection.transaction()?;
        let diff = &record.diff;
        transaction.prepare("INSERT INTO diffs VALUES (?1, ?2, ?3, ?4, ?5, ?6)")?.execute(params![
            escrow_id,
            integer(diff.nonce),
            diff.txs.0,
            diff.user_sig.0,
            diff.post_state_root.0,
            record.state_hash.0
        ])?;
        for tx in sequenced {
            transaction
                .prepare("DELETE FROM mempool WHERE escrow_id = ?1 AND tx = ?2")?
                .execute(params![escrow_id, tx])?;
        }
        transaction.commit()?;
        Ok(())
    }

    /// Steps `from..=to` in order.
    ///
    /// # Errors
    /// When SQLite refuses.
    pub fn diffs(&self, escrow_id: &str, from: u64, to: u64) -> Result<Vec<DiffRecord>, StoreError> {
        let connection = self.lock();
        let mut select = connection.prepare(
            "SELECT nonce, txs, user_sig, post_state_root, state_hash FROM diffs
             WHERE escrow_id = ?1 AND nonce BETWEEN ?2 AND ?3 ORDER BY nonce",
        )?;
        let rows = select.query_map(params![escrow_id, integer(from), integer(to)], |row| {
            Ok(DiffRecord {
                diff: Diff {
                    nonce: row.get::<_, i64>(0)?.unsigned_abs(),
                    txs: Base64(row.get(1)?),
                    user_sig: Base64(row.get(2)?),
                    post_state_root: Base64(row.get(3)?),
                },
                state_hash: Base64(row.get(4)?),
            })
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Stores the state signatures of own slots.
    ///
    /// # Errors
    /// When SQLite refuses.
    pub fn add_signature(
        &self,
        escrow_id: &str,
        nonce: u64,
        slots: &[u32],
        sig: &[u8],
    ) -> Result<(), StoreError> {
        let connection = self.lock();
        let mut insert = connection.prepare("INSERT OR IGNORE INTO signatures VALUES (?1, ?2, ?3, ?4)")?;
        for slot in slots {
            insert.execute(params![escrow_id, integer(nonce), slot, sig])?;
        }
        Ok(())
    }

    /// State signatures of one nonce, by slot.
    ///
    /// # Errors
    /// When SQLite refuses.
    pub fn signatures(&self, escrow_id: &str, nonce: u64) -> Result<Vec<(u32, Vec<u8>)>, StoreError> {
        let connection = self.lock();
        let mut select =
            connection.prepare("SELECT slot, sig FROM signatures WHERE escrow_id = ?1 AND nonce = ?2")?;
        let rows =
            select.query_map(params![escrow_id, integer(nonce)], |row| Ok((row.get(0)?, row.get(1)?)))?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Stores a mempool entry.
    ///
    /// # Errors
    /// When SQLite refuses.
    pub fn add_mempool(&self, escrow_id: &str, tx: &[u8]) -> Result<(), StoreError> {
        self.lock()
            .prepare("INSERT OR IGNORE INTO mempool (escrow_id, tx) VALUES (?1, ?2)")?
            .execute(params![escrow_id, tx])?;
        Ok(())
    }

    /// Mempool entries in order of arrival.
    ///
    /// # Errors
    /// When SQLite refuses.
    pub fn mempool(&self, escrow_id: &str) -> Result<Vec<Vec<u8>>, StoreError> {
        let connection = self.lock();
        let mut select = connection.prepare("SELECT tx FROM mempool WHERE escrow_id = ?1 ORDER BY place")?;
        let rows = select.query_map([escrow_id], |row| row.get(0))?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Stores prompt and answer of an execution; a second one overwrites.
    ///
    /// # Errors
    /// When SQLite refuses.
    pub fn add_payload(
        &self,
        escrow_id: &str,
        id: u64,
        prompt: &[u8],
        response: &[u8],
    ) -> Result<(), StoreError> {
        self.lock().prepare("INSERT OR REPLACE INTO payloads VALUES (?1, ?2, ?3, ?4)")?.execute(params![
            escrow_id,
            integer(id),
            prompt,
            response
        ])?;
        Ok(())
    }

    /// Prompt and answer of an execution.
    ///
    /// # Errors
    /// When SQLite refuses.
    pub fn payload(&self, escrow_id: &str, id: u64) -> Result<Option<StoredPayload>, StoreError> {
        let connection = self.lock();
        let mut select = connection
            .prepare("SELECT prompt, response FROM payloads WHERE escrow_id = ?1 AND inference_id = ?2")?;
        Ok(select
            .query_row(params![escrow_id, integer(id)], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()?)
    }

    fn lock(&self) -> MutexGuard<'_, Connection> {
        // A panic inside a transaction rolls it back when it is dropped; the connection stays usable.
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// SQLite's integers are signed; nonces never come near the end of either.
fn integer(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

//! The perf database of a July gateway: the one place beside its log that joins an accounting id to escrow and nonce
//! (contract gateway 3.3 and 5.1). It is read while the gateway has it open, and never written.

use std::collections::HashMap;
use std::path::Path;

use rusqlite::{Connection, OpenFlags};

/// Rows that are read; more is no run of a test.
const ROWS_MAX: i64 = 4_000_000;

/// Accounting ids by escrow and nonce.
pub type Ids = HashMap<(String, u64), String>;

/// Reads every attempt, and keeps those that are wanted.
///
/// # Errors
/// In words, when the file is no such database.
pub fn ids(path: &Path, wanted: impl Fn(&(String, u64)) -> bool) -> Result<Ids, String> {
    read(path, wanted).map_err(|error| format!("{}: {error}", path.file_name().unwrap_or_default().display()))
}

fn read(path: &Path, wanted: impl Fn(&(String, u64)) -> bool) -> rusqlite::Result<Ids> {
    let database = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    let sql = "SELECT escrow_id, nonce, request_id FROM request_accounting_attempts LIMIT ?1";
    let mut query = database.prepare(sql)?;
    let rows = query.query_map([ROWS_MAX], |row| {
        let nonce: i64 = row.get(1)?;
        Ok(((row.get(0)?, nonce.unsigned_abs()), row.get(2)?))
    })?;
    rows.filter(|row| row.as_ref().map_or(true, |(place, _)| wanted(place))).collect()
}

/// Ids of answers from the response cache, which have an alias instead of a row (contract gateway 5.1); those wanted.
///
/// # Errors
/// In words, when the file is no such database.
pub fn aliases(path: &Path, wanted: impl Fn(&str) -> bool) -> Result<Vec<String>, String> {
    let read = || -> rusqlite::Result<Vec<String>> {
        let database = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        let mut query = database.prepare("SELECT request_id FROM request_accounting_aliases LIMIT ?1")?;
        let ids = query.query_map([ROWS_MAX], |row| row.get::<_, String>(0))?;
        ids.filter(|id| id.as_ref().map_or(true, |id| wanted(id))).collect()
    };
    read().map_err(|error| format!("{}: {error}", path.file_name().unwrap_or_default().display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_name_their_request_while_the_gateway_writes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("perf.db");
        let all = |path: &Path| ids(path, |_| true);
        assert!(all(&path).unwrap_err().contains("perf.db"));
        let writer = Connection::open(&path).unwrap();
        writer.pragma_update(None, "journal_mode", "WAL").unwrap();
        assert!(all(&path).unwrap_err().contains("no such table"));
        let table =
            "CREATE TABLE request_accounting_attempts (request_id TEXT, escrow_id TEXT, nonce INTEGER);
                     INSERT INTO request_accounting_attempts VALUES ('req-1', '2', 7), ('req-2', '3', 7);";
        writer.execute_batch(table).unwrap();
        let read = all(&path).unwrap();
        assert_eq!(read[&("2".to_owned(), 7)], "req-1");
        assert_eq!(read.len(), 2);
        assert_eq!(ids(&path, |(escrow, _)| escrow == "3").unwrap().len(), 1);
    }
    #[test]
    fn aliases_name_the_answers_of_the_cache() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("perf.db");
        let writer = Connection::open(&path).unwrap();
        let table = "CREATE TABLE request_accounting_aliases (request_id TEXT, escrow_id TEXT);
                     INSERT INTO request_accounting_aliases VALUES ('req-1', '2'), ('req-9', '2');";
        writer.execute_batch(table).unwrap();
        assert_eq!(aliases(&path, |id| id != "req-9").unwrap(), ["req-1"]);
        assert!(aliases(&dir.path().join("none.db"), |_| true).unwrap_err().contains("none.db"));
    }
}

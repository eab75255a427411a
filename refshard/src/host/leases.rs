//! Leases of validation work in Postgres, in the table of the real host, so that collectors read them by SQL
//! (contract hosts 5.2). Two replicas of one participant agree here about who validates what.
//!
//! State: rows in the database, nothing in memory. Time is the database's. What must never happen: an opinion
//! published for a row that is no longer ours.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::Mutex;
use tokio_postgres::{Client, NoTls};

use crate::logline::{Level, LogLine};

/// Longest single question.
const CALL_TIMEOUT: Duration = Duration::from_secs(8);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Epochs that are kept (contract hosts 1.4).
const EPOCHS_KEPT: u64 = 3;
/// Any number that nobody else uses for an advisory lock: table and partitions are made by one at a time.
const SCHEMA_LOCK: i64 = 0x6465_7673;

const TABLE: &str = "
CREATE TABLE IF NOT EXISTS devshard_validation_leases (
  epoch_id BIGINT NOT NULL, escrow_id TEXT NOT NULL, inference_id BIGINT NOT NULL,
  instance_address TEXT NOT NULL, claimed_at TIMESTAMPTZ NOT NULL, status TEXT NOT NULL,
  PRIMARY KEY (epoch_id, escrow_id, inference_id)) PARTITION BY RANGE (epoch_id)";

/// Why the database did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// It refused or was lost.
    #[error("leases: {0}")]
    Postgres(#[from] tokio_postgres::Error),
    /// It did not answer.
    #[error("leases: no answer within {0} s")]
    Silent(u64),
}

/// Which work.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Work {
    /// Epoch of the row.
    pub epoch_id: u64,
    /// Session.
    pub escrow_id: String,
    /// Inference.
    pub inference_id: u64,
}

/// A row that is ours as long as its time has not passed and nobody has taken it over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Which work.
    pub work: Work,
    /// The database's time of the claim; a take-over changes it.
    pub claimed_at: SystemTime,
}

/// The table.
#[derive(Debug)]
pub struct Leases {
    url: String,
    owner: String,
    ttl: Duration,
    /// Age after which a row of somebody else is taken over; the lease's time, unless a thief is planted.
    stale_after: Duration,
    client: Mutex<Option<Arc<Client>>>,
}

impl Leases {
    /// Leases of `owner` at `url`. Connects on first use and again after a loss.
    #[must_use]
    pub fn new(url: String, owner: String, ttl: Duration, stale_after: Duration) -> Self {
        Self { url, owner, ttl, stale_after, client: Mutex::new(None) }
    }

    /// Makes the table.
    ///
    /// # Errors
    /// When the database cannot be reached or refuses.
    pub async fn prepare(&self) -> Result<(), LeaseError> {
        let client = self.client().await?;
        let sql = format!("BEGIN; SELECT pg_advisory_xact_lock({SCHEMA_LOCK}); {TABLE}; COMMIT");
        self.limited(client.batch_execute(&sql)).await
    }

    /// Claims work that nobody has claimed in its epoch; `None` when somebody has.
    ///
    /// # Errors
    /// When the database cannot be reached or refuses.
    pub async fn acquire(&self, work: &Work) -> Result<Option<Lease>, LeaseError> {
        let client = self.client().await?;
        self.partition(&client, work.epoch_id).await?;
        let sql = "INSERT INTO devshard_validation_leases
            (epoch_id, escrow_id, inference_id, instance_address, claimed_at, status)
            VALUES ($1, $2, $3, $4, clock_timestamp(), 'pending') ON CONFLICT DO NOTHING RETURNING claimed_at";
        let (epoch, inference) = (signed(work.epoch_id), signed(work.inference_id));
        let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 4] =
            [&epoch, &work.escrow_id, &inference, &self.owner];
        let row = self.limited(client.query_opt(sql, &parameters)).await?;
        Ok(row.map(|row| Lease { work: work.clone(), claimed_at: row.get(0) }))
    }

    /// Takes over one row whose owner has let its time pass.
    ///
    /// # Errors
    /// When the database cannot be reached or refuses.
    pub async fn take_over(&self) -> Result<Option<Lease>, LeaseError> {
        let client = self.client().await?;
        let sql = "UPDATE devshard_validation_leases AS lease
            SET instance_address = $1, claimed_at = clock_timestamp()
            FROM (SELECT epoch_id, escrow_id, inference_id FROM devshard_validation_leases
                  WHERE status = 'pending' AND claimed_at < clock_timestamp() - $2::text::interval
                  ORDER BY claimed_at LIMIT 1 FOR UPDATE SKIP LOCKED) AS stale
            WHERE lease.epoch_id = stale.epoch_id AND lease.escrow_id = stale.escrow_id
              AND lease.inference_id = stale.inference_id
            RETURNING lease.epoch_id, lease.escrow_id, lease.inference_id, lease.claimed_at";
        let age = format!("{} milliseconds", self.stale_after.as_millis());
        let row = self.limited(client.query_opt(sql, &[&self.owner, &age])).await?;
        Ok(row.map(|row| Lease {
            work: Work {
                epoch_id: row.get::<_, i64>(0).unsigned_abs(),
                escrow_id: row.get(1),
                inference_id: row.get::<_, i64>(2).unsigned_abs(),
            },
            claimed_at: row.get(3),
        }))
    }

    /// Marks a row as submitted and runs `publish` before that becomes visible: either both have happened or
    /// neither. False when the row is no longer ours, and then `publish` has not run.
    ///
    /// # Errors
    /// When the database cannot be reached or refuses, or `publish` fails.
    pub async fn submit<E: From<LeaseError>>(
        &self,
        lease: &Lease,
        publish: impl FnOnce() -> Result<(), E>,
    ) -> Result<bool, E> {
        // A connection of its own, since a transaction must not be shared with other questions.
        let mut client = self.connect().await?;
        let failed = |error: tokio_postgres::Error| E::from(LeaseError::from(error));
        let transaction = client.transaction().await.map_err(failed)?;
        let sql = "UPDATE devshard_validation_leases SET status = 'submitted'
            WHERE epoch_id = $1 AND escrow_id = $2 AND inference_id = $3 AND status = 'pending'
              AND instance_address = $4 AND claimed_at = $5
              AND claimed_at >= clock_timestamp() - $6::text::interval";
        let work = &lease.work;
        let (epoch, inference) = (signed(work.epoch_id), signed(work.inference_id));
        let ttl = format!("{} milliseconds", self.ttl.as_millis());
        let updated = transaction
            .execute(sql, &[&epoch, &work.escrow_id, &inference, &self.owner, &lease.claimed_at, &ttl])
            .await
            .map_err(failed)?;
        if updated == 0 {
            return Ok(false);
        }
        publish()?;
        transaction.commit().await.map_err(failed)?;
        Ok(true)
    }

    /// Ends a row without a validation: the inference needs none any more.
    ///
    /// # Errors
    /// When the database cannot be reached or refuses.
    pub async fn skip(&self, lease: &Lease) -> Result<(), LeaseError> {
        let sql = "UPDATE devshard_validation_leases SET status = 'skipped' WHERE epoch_id = $1
            AND escrow_id = $2 AND inference_id = $3 AND status = 'pending' AND claimed_at = $4";
        self.change(sql, lease).await
    }

    /// Gives a row back, so that anybody may claim the work again.
    ///
    /// # Errors
    /// When the database cannot be reached or refuses.
    pub async fn release(&self, lease: &Lease) -> Result<(), LeaseError> {
        let sql = "DELETE FROM devshard_validation_leases WHERE epoch_id = $1
            AND escrow_id = $2 AND inference_id = $3 AND status = 'pending' AND claimed_at = $4";
        self.change(sql, lease).await
    }

    /// Drops the partitions of epochs that are no longer kept.
    ///
    /// # Errors
    /// When the database cannot be reached or refuses.
    pub async fn prune(&self, epoch: u64) -> Result<(), LeaseError> {
        let Some(oldest) = epoch.checked_sub(EPOCHS_KEPT) else { return Ok(()) };
        let client = self.client().await?;
        let sql = format!("DROP TABLE IF EXISTS devshard_validation_leases_epoch_{oldest}");
        self.limited(client.batch_execute(&sql)).await
    }

    async fn change(&self, sql: &str, lease: &Lease) -> Result<(), LeaseError> {
        let client = self.client().await?;
        let work = &lease.work;
        let (epoch, inference) = (signed(work.epoch_id), signed(work.inference_id));
        let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 4] =
            [&epoch, &work.escrow_id, &inference, &lease.claimed_at];
        self.limited(client.execute(sql, &parameters)).await.map(drop)
    }

    async fn partition(&self, client: &Client, epoch: u64) -> Result<(), LeaseError> {
        let name = format!("devshard_validation_leases_epoch_{epoch}");
        let known = "SELECT to_regclass($1::text) IS NOT NULL";
        if self.limited(client.query_one(known, &[&name])).await?.get(0) {
            return Ok(());
        }
        let (from, to) = (epoch, epoch.saturating_add(1));
        let sql = format!(
            "BEGIN; SELECT pg_advisory_xact_lock({SCHEMA_LOCK});
             CREATE TABLE IF NOT EXISTS {name} PARTITION OF devshard_validation_leases
             FOR VALUES FROM ({from}) TO ({to}); COMMIT"
        );
        self.limited(client.batch_execute(&sql)).await
    }

    async fn client(&self) -> Result<Arc<Client>, LeaseError> {
        let mut shared = self.client.lock().await;
        if let Some(client) = shared.as_ref().filter(|client| !client.is_closed()) {
            return Ok(client.clone());
        }
        let client = Arc::new(self.connect().await?);
        *shared = Some(client.clone());
        Ok(client)
    }

    async fn connect(&self) -> Result<Client, LeaseError> {
        let connecting = tokio::time::timeout(CONNECT_TIMEOUT, tokio_postgres::connect(&self.url, NoTls));
        let silent = |_| LeaseError::Silent(CONNECT_TIMEOUT.as_secs());
        let (client, connection) = connecting.await.map_err(silent)??;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                LogLine::new(Level::Warn, "devshard storage: postgres connection lost")
                    .field("error", error)
                    .emit();
            }
        });
        Ok(client)
    }

    async fn limited<T>(
        &self,
        call: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, LeaseError> {
        let answer = tokio::time::timeout(CALL_TIMEOUT, call).await;
        Ok(answer.map_err(|_| LeaseError::Silent(CALL_TIMEOUT.as_secs()))??)
    }
}

/// Postgres has no unsigned integers; ids never come near the end.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

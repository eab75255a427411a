//! Control surface shared by the mocks: bounded logs and one HTTP router over the [`Mock`] trait.

mod ring;
mod routes;

pub use ring::{PAGE_MAX, Ring};
pub use routes::routes;

use std::future::Future;
use std::path::Path;
use std::sync::Arc;

use scenario::control::{Hit, MockConfig, Page};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A mock as its control listener sees it (design section 8; the calls are listed in `scenario::control`).
pub trait Mock: Send + Sync + 'static {
    /// Entry of its call log.
    type Call: Serialize;
    /// Its counters.
    type Stats: Serialize;

    /// Its admin actions.
    type Act: DeserializeOwned + Send;

    /// Replaces the whole configuration, or changes nothing.
    ///
    /// # Errors
    /// Why it was refused and what to write instead; the caller gets it with status 400.
    fn put(&self, config: MockConfig) -> Result<(), String>;

    /// The configuration in force.
    fn config(&self) -> MockConfig;

    /// Part of the log of carried out faults.
    fn hits(&self, after: u64, limit: usize) -> Page<Hit>;

    /// Part of the call log.
    fn calls(&self, after: u64, limit: usize) -> Page<Self::Call>;

    /// Writes both logs from now on into new files too: `<start>-hits.jsonl` and `<start>-calls.jsonl` in this
    /// folder, where `<start>` is the `started_unix_us` of its pages.
    ///
    /// # Errors
    /// When a file can't be made.
    fn keep_logs(&self, folder: &Path) -> std::io::Result<()>;

    /// Counters.
    fn stats(&self) -> Self::Stats;

    /// Counters as Prometheus text.
    fn metrics(&self) -> String;

    /// Carries out an admin action; when it answers, the action has taken effect.
    ///
    /// # Errors
    /// Why it can't be done.
    fn act(self: Arc<Self>, act: Self::Act) -> impl Future<Output = Result<(), String>> + Send;
}

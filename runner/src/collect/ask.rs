//! Asking a service of the run. Every answer has a bound of its own, a service that hangs is not waited for again and
//! again, and what was refused is counted: a service may answer anything, and the run still ends in time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// What the runner calls itself: its reads can be told from the traffic of clients and services.
pub const USER_AGENT: &str = "proofload-runner";
/// Time limit of an ordinary call.
const CALL_LIMIT: Duration = Duration::from_secs(10);
/// Calls in a row that may run into their limit before a service is left alone for a while.
const SILENT_MAX: u32 = 2;
/// How long a silent service is left alone; then one call tries it again.
const REST: Duration = Duration::from_secs(30);
/// Text of an answer that is kept in an error.
const TEXT_LEN_MAX: usize = 200;

/// Largest answers that are read, bytes. A parsed answer takes up to 16 times its length (an element of a JSON list
/// needs two bytes of text and 32 of memory), and one is read at a time: what a service sends can cost the runner
/// 16 times the largest of these, whatever it sends.
pub mod bound {
    /// Status, settings, an accounting row, the answer to an order.
    pub const SMALL: usize = 1 << 20;
    /// State of one escrow, the admin's view, what waits at the gateway or in a mempool.
    pub const STATE: usize = 4 << 20;
    /// A page of metrics: text, kept as it is.
    pub const METRICS: usize = 8 << 20;
    /// A page of diffs.
    pub const DIFFS: usize = 8 << 20;
    /// A page of a mock's log, read into records at once.
    pub const PAGE: usize = 16 << 20;
    /// Inferences of one escrow: one takes 400 bytes, a request makes a few of them.
    const PER_REQUEST: u64 = 4 << 10;

    /// Bound of the inferences of one escrow, for a plan of this length.
    #[must_use]
    pub fn inferences(requests_max: u64) -> usize {
        let planned = requests_max.saturating_mul(PER_REQUEST);
        usize::try_from(planned).unwrap_or(usize::MAX).saturating_add(STATE)
    }
}

/// Why there is no answer that can be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No connection, or it was closed before the end of the answer.
    #[error("no whole answer: {0}")]
    Broken(String),
    /// Nothing, or not everything, within the time limit.
    #[error("no whole answer within its time limit")]
    Silent,
    /// Not asked at all.
    #[error("not asked: {SILENT_MAX} calls in a row or more were not answered in time")]
    LeftAlone,
    /// More than it may be.
    #[error("the answer is longer than {0} bytes")]
    TooLong(usize),
    /// Not JSON, or not metrics.
    #[error("the answer is not {0}")]
    Unreadable(String),
    /// JSON of another form.
    #[error("the answer has another form: {0}")]
    Form(String),
}

impl Refusal {
    /// The kind in a few words, for counting.
    const fn kind(&self) -> &'static str {
        match self {
            Self::Broken(_) => "broken",
            Self::Silent => "silent",
            Self::LeftAlone => "left alone",
            Self::TooLong(_) => "too long",
            Self::Unreadable(_) => "unreadable",
            Self::Form(_) => "of another form",
        }
    }
}

/// An HTTP client for the run's own services: no proxy, no redirect, bounded times. Clones share what is counted.
#[derive(Clone, Debug)]
pub struct Ask {
    client: reqwest::Client,
    book: Arc<Mutex<BTreeMap<String, Origin>>>,
}

/// What is known about one `host:port`.
#[derive(Clone, Debug, Default)]
struct Origin {
    silent_in_row: u32,
    rests_until: Option<Instant>,
    /// How often, and the first time in words.
    refused: BTreeMap<&'static str, (u64, String)>,
}

/// Refused answers of one service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// `host:port`.
    pub origin: String,
    /// How often and why, with the first case of each kind.
    pub words: String,
}

impl Ask {
    /// A client.
    ///
    /// # Errors
    /// When it can't be built (no file descriptors, for example).
    pub fn new() -> Result<Self, String> {
        let client = reqwest::Client::builder()
            .no_proxy()
            .user_agent(USER_AGENT)
            .redirect(reqwest::redirect::Policy::none())
            .timeout(CALL_LIMIT)
            .connect_timeout(Duration::from_secs(2))
            .pool_max_idle_per_host(4)
            .build()
            .map_err(|error| error.to_string())?;
        Ok(Self { client, book: Arc::default() })
    }

    /// The client itself, to build a request for [`Ask::send`], or for calls that are not evidence.
    #[must_use]
    pub const fn client(&self) -> &reqwest::Client {
        &self.client
    }

    /// Sends a request and reads at most `len_max` bytes of the answer; gives status and body.
    ///
    /// # Errors
    /// [`Refusal`], which is counted. A status of failure is an answer.
    pub async fn send(
        &self,
        request: reqwest::RequestBuilder,
        len_max: usize,
    ) -> Result<(u16, Vec<u8>), Refusal> {
        let request = request.build().map_err(|error| Refusal::Broken(error.to_string()))?;
        let url = request.url().as_str().to_owned();
        if self.rests(&url) {
            return Err(self.count(&url, Refusal::LeftAlone));
        }
        let answer = self.whole(request, len_max).await;
        let mut book = self.book();
        let origin = book.entry(origin(&url)).or_default();
        match &answer {
            Err(Refusal::Silent) => {
                origin.silent_in_row = origin.silent_in_row.saturating_add(1);
                if origin.silent_in_row >= SILENT_MAX {
                    origin.rests_until = tokio::time::Instant::now().checked_add(REST);
                }
            }
            _ => origin.silent_in_row = 0,
        }
        drop(book);
        answer.map_err(|refusal| self.count(&url, refusal))
    }

    async fn whole(&self, request: reqwest::Request, len_max: usize) -> Result<(u16, Vec<u8>), Refusal> {
        let broken = |error: reqwest::Error| {
            if error.is_timeout() { Refusal::Silent } else { Refusal::Broken(chain(&error)) }
        };
        let mut answer = self.client.execute(request).await.map_err(broken)?;
        let mut body = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(broken)? {
            if body.len() + chunk.len() > len_max {
                return Err(Refusal::TooLong(len_max));
            }
            body.extend_from_slice(&chunk);
        }
        Ok((answer.status().as_u16(), body))
    }

    /// Counts an answer that came and can't be used.
    pub fn count(&self, url: &str, refusal: Refusal) -> Refusal {
        let mut book = self.book();
        let origin = book.entry(origin(url)).or_default();
        let (count, _) = origin.refused.entry(refusal.kind()).or_insert_with(|| (0, refusal.to_string()));
        *count += 1;
        refusal
    }

    /// Everything that was refused so far, by service.
    #[must_use]
    pub fn refused(&self) -> Vec<Refused> {
        let book = self.book();
        let with = book.iter().filter(|(_, origin)| !origin.refused.is_empty());
        with.map(|(name, origin)| {
            let words: Vec<String> =
                origin.refused.values().map(|(count, first)| format!("{count} times: {first}")).collect();
            Refused { origin: name.clone(), words: words.join("; ") }
        })
        .collect()
    }

    fn rests(&self, url: &str) -> bool {
        let mut book = self.book();
        let Some(known) = book.get_mut(&origin(url)) else { return false };
        let Some(until) = known.rests_until else { return false };
        if tokio::time::Instant::now() < until {
            return true;
        }
        // One call tries it again; when that is silent too, the next rest begins.
        known.rests_until = None;
        false
    }

    fn book(&self) -> MutexGuard<'_, BTreeMap<String, Origin>> {
        // Each step leaves the book whole.
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `host:port` of a URL.
#[must_use]
pub fn origin(url: &str) -> String {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.split(['/', '?']).next().unwrap_or_default().to_owned()
}

/// An error with its causes: reqwest's own text names only the URL.
pub(super) fn chain(error: &reqwest::Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        text = inner.to_string();
        cause = inner.source();
    }
    text
}

/// Begin of an answer, for errors.
#[must_use]
pub fn begin(body: &[u8]) -> String {
    String::from_utf8_lossy(&body[..body.len().min(TEXT_LEN_MAX)]).into_owned()
}

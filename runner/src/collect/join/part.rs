//! What one part of the join needs of the run's files, cut down while they are read: memory follows the length of a part
//! and not that of the run. Each part reads the files again; that is cheap beside asking for its accounting rows.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::path::PathBuf;

use evidence::run::RunInfo;
use evidence::rundir::{DAPI_CALLS, LOGS, NODE_CALLS, REQUESTS, RunDir, RunReader, SNAPSHOT_FILE, SNAPSHOTS};
use evidence::sessions::each_inference;
use evidence::snapshot::{Moment, Snapshot};
use scenario::control::{DapiCallRecord, NodeCall};
use scenario::fault::{CallKind, DapiCall};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::words;
use crate::collect::perf;

/// Requests of one part.
pub const PART_LEN: u64 = 16_384;

/// Escrow and nonce.
pub(super) type Place = (String, u64);

/// What the join needs of a client record (`requests.jsonl`).
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Client {
    pub(super) index: u64,
    pub(super) id: String,
    pub(super) status: Option<u16>,
    pub(super) response_devshard_id: Option<String>,
    pub(super) response_request_id: Option<String>,
}

/// What tells whether a line of the nodes' log belongs to a part.
#[derive(Deserialize)]
struct CallKey {
    request_id: Option<String>,
    ended_us: Option<u64>,
}

#[derive(Deserialize)]
struct IndexKey {
    index: u64,
}

/// Where the join reads, and what it must know of the whole run.
#[derive(Debug)]
pub struct Source {
    pub(super) reader: RunReader,
    /// Salt of the run: calls with another salt belong to somebody else.
    pub(super) salt: String,
    /// Index of the plan line whose body a line repeats.
    pub(super) duplicates: HashMap<u64, u64>,
    /// Where a gateway keeps its perf database, if it does.
    perf_db: Option<PathBuf>,
    /// Snapshot whose statuses are joined.
    snapshot: Option<Snapshot>,
    part_len: u64,
}

/// Which requests a part has.
#[derive(Clone, Debug)]
pub(super) enum Which {
    /// Those that repeat another, and those that are repeated: they share calls.
    Paired(HashSet<u64>),
    /// Indexes, without the paired ones.
    Range(Range<u64>, HashSet<u64>),
}

impl Which {
    fn has(&self, index: u64) -> bool {
        match self {
            Self::Paired(paired) => paired.contains(&index),
            Self::Range(range, paired) => range.contains(&index) && !paired.contains(&index),
        }
    }
}

/// One part, as read.
#[derive(Debug, Default)]
pub(super) struct Part {
    /// Client records in plan order.
    pub(super) clients: Vec<Client>,
    /// Ended execution calls of these requests.
    pub(super) calls: Vec<NodeCall>,
    /// Host that a lock was granted to.
    pub(super) lock_host: HashMap<String, String>,
    /// Escrow and inference by the host's request id, for the calls whose answer names no escrow.
    pub(super) terminals: HashMap<String, Place>,
}

impl Part {
    /// Entries in memory.
    pub(super) fn held(&self) -> usize {
        self.clients.len() + self.calls.len() + self.lock_host.len() + self.terminals.len()
    }

    /// Host request ids whose terminal line is needed: no answer names the escrow, or two lines share a marker.
    pub(super) fn without_escrow(&self, paired: &HashSet<u64>) -> HashSet<String> {
        let unnamed =
            |client: &&Client| client.response_devshard_id.is_none() || paired.contains(&client.index);
        let unnamed: HashSet<&str> =
            self.clients.iter().filter(unnamed).map(|client| client.id.as_str()).collect();
        let calls = self.calls.iter();
        let calls = calls.filter(|call| call.request_id.as_deref().is_some_and(|id| unnamed.contains(id)));
        calls.filter_map(|call| call.x_request_id.clone()).collect()
    }
}

/// Accounting ids by escrow and nonce, as the gateway's own records have them.
#[derive(Debug, Default)]
pub(super) struct Recorded {
    pub(super) log: perf::Ids,
    pub(super) perf: perf::Ids,
    /// Why the perf database could not be read.
    pub(super) unread: Option<String>,
}

impl Recorded {
    /// Entries in memory.
    pub(super) fn held(&self) -> usize {
        self.log.len() + self.perf.len()
    }
}

impl Source {
    /// Nothing is read yet but the snapshot after sync, whose inferences are not in it.
    #[must_use]
    pub fn new(dir: &RunDir, info: &RunInfo, perf_db: Option<PathBuf>) -> Self {
        let duplicates = &info.resolved.scenario.workload.duplicates;
        let duplicates = duplicates.iter().map(|entry| (entry.index, entry.duplicate_of)).collect();
        Self::of(dir, info.salt.clone(), duplicates, perf_db, PART_LEN)
    }

    /// The same by its parts, of so many requests each.
    #[must_use]
    pub fn of(
        dir: &RunDir,
        salt: String,
        duplicates: HashMap<u64, u64>,
        perf_db: Option<PathBuf>,
        part_len: u64,
    ) -> Self {
        let reader = RunReader::new(dir.root());
        let snapshot = |moment: Moment| {
            let name = format!("{SNAPSHOTS}/{}/{SNAPSHOT_FILE}", moment.dir());
            reader.json::<Snapshot>(&name).ok().flatten()
        };
        // Where nothing is synced, the last one is that after the passive wait.
        let snapshot = snapshot(Moment::DrainSynced).or_else(|| snapshot(Moment::DrainPassive));
        Self { salt, duplicates, perf_db, snapshot, part_len, reader }
    }

    /// Indexes of lines that repeat another, and of those that are repeated.
    pub(super) fn paired(&self) -> HashSet<u64> {
        self.duplicates.iter().flat_map(|(copy, original)| [*copy, *original]).collect()
    }

    /// The parts that hold every record there is.
    pub(super) fn parts(&self) -> Vec<Which> {
        let last = self.all::<IndexKey>(REQUESTS).map(|key| key.index).max();
        let Some(last) = last else { return Vec::new() };
        let paired = self.paired();
        let together = (!paired.is_empty()).then(|| Which::Paired(paired.clone()));
        let begins = (0..=last).step_by(usize::try_from(self.part_len).unwrap_or(usize::MAX));
        let ranges =
            begins.map(|from| Which::Range(from..from.saturating_add(self.part_len), paired.clone()));
        together.into_iter().chain(ranges).collect()
    }

    /// Reads one part. What can't be read is absent here and named by the verdict, which reads the same files.
    pub(super) fn read(&self, which: &Which) -> Part {
        let mut part = Part {
            clients: self.all::<Client>(REQUESTS).filter(|client| which.has(client.index)).collect(),
            ..Part::default()
        };
        part.clients.sort_by_key(|client| client.index);
        let ids: HashSet<&str> = part.clients.iter().map(|client| client.id.as_str()).collect();
        let calls = self.chosen(NODE_CALLS, |key: CallKey| {
            key.ended_us.is_some() && key.request_id.is_some_and(|id| ids.contains(id.as_str()))
        });
        part.calls = calls;
        part.calls.retain(|call| self.is_own(call));
        let locks: HashSet<&str> = part.calls.iter().filter_map(|call| call.lock.as_deref()).collect();
        let grants = self.all::<DapiCallRecord>(DAPI_CALLS).filter(|call| call.call == DapiCall::Acquire);
        part.lock_host = grants
            .filter_map(|call| Some((call.lock.filter(|lock| locks.contains(lock.as_str()))?, call.host)))
            .collect();
        let wanted = part.without_escrow(&self.paired());
        if !wanted.is_empty() {
            let lines = self.logs(|name| name.starts_with("host-"));
            let found = lines.filter_map(|line| host_terminal(&line));
            part.terminals = found.filter(|(id, _)| wanted.contains(id)).collect();
        }
        part
    }

    /// Whether a call is one of this run's executions.
    pub(super) fn is_own(&self, call: &NodeCall) -> bool {
        call.ended_us.is_some()
            && call.salt.as_deref() == Some(self.salt.as_str())
            && call.kind == CallKind::Execution
    }

    /// What log and perf database of the gateway have for these places.
    pub(super) fn recorded(&self, wanted: &HashSet<Place>) -> Recorded {
        let mut recorded = Recorded::default();
        if wanted.is_empty() {
            return recorded;
        }
        let lines = self.logs(|name| name == "gateway.log");
        let found = lines.filter_map(|line| gateway_nonce(&line));
        recorded.log = found.filter(|(place, _)| wanted.contains(place)).collect();
        // Builds that join ids themselves keep no such database: nothing is lost then.
        if let Some(path) = self.perf_db.as_ref().filter(|path| path.exists()) {
            match perf::ids(path, |place| wanted.contains(place)) {
                Ok(ids) => recorded.perf = ids,
                Err(why) => recorded.unread = Some(why),
            }
        }
        recorded
    }

    /// Which of these ids the response cache answered, by log and perf database of the gateway.
    pub(super) fn cache_hits(&self, wanted: &HashSet<String>) -> HashSet<String> {
        if wanted.is_empty() {
            return HashSet::new();
        }
        let lines = self.logs(|name| name == "gateway.log");
        let logged = lines.filter_map(|line| cache_hit(&line)).filter(|id| wanted.contains(id));
        let mut hits: HashSet<String> = logged.collect();
        if let Some(path) = self.perf_db.as_ref().filter(|path| path.exists() && hits.len() < wanted.len()) {
            // Without the database the log alone tells: a hit that neither knows stays a row that is not there.
            hits.extend(perf::aliases(path, |id| wanted.contains(id)).unwrap_or_default());
        }
        hits
    }

    /// Statuses of inferences as the snapshot shows them.
    pub(super) fn statuses(&self, wanted: &HashSet<Place>) -> HashMap<Place, String> {
        let mut statuses = HashMap::new();
        let Some(snapshot) = self.snapshot.as_ref().filter(|_| !wanted.is_empty()) else { return statuses };
        each_inference(&self.reader, snapshot, |escrow, nonce, inference| {
            let place = (escrow.to_owned(), nonce);
            match inference {
                Some(inference) if wanted.contains(&place) => {
                    statuses.insert(place, inference.status.clone());
                }
                Some(_) => {}
                None => drop(statuses.remove(&place)),
            }
        });
        statuses
    }

    fn all<T: DeserializeOwned>(&self, name: &str) -> impl Iterator<Item = T> + use<T> {
        self.reader.lines(name).into_iter().flatten().flatten()
    }

    /// Lines whose key is chosen: only those are built.
    fn chosen<K: DeserializeOwned, T: DeserializeOwned>(
        &self,
        name: &str,
        choose: impl Fn(K) -> bool,
    ) -> Vec<T> {
        let mut chosen = Vec::new();
        let Some(mut lines) = self.reader.raw_lines(name) else { return chosen };
        while let Some(Ok(line)) = lines.next() {
            if serde_json::from_slice(line.bytes).is_ok_and(&choose) {
                chosen.extend(serde_json::from_slice::<T>(line.bytes));
            }
        }
        chosen
    }

    /// Lines of the logs whose file names are chosen; a log ends at the first line that can't be read or is too long.
    fn logs(&self, choose: impl Fn(&str) -> bool) -> impl Iterator<Item = String> {
        let entries = std::fs::read_dir(self.reader.root().join(LOGS)).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        let chosen = names.filter(move |name| choose(name));
        chosen.flat_map(|name| {
            let mut lines = self.reader.raw_lines(&format!("{LOGS}/{name}"));
            std::iter::from_fn(move || {
                let line = lines.as_mut()?.next()?.ok()?;
                Some(String::from_utf8_lossy(line.bytes).into_owned())
            })
        })
    }
}

/// Host request id → (escrow, inference) of a terminal line (contract hosts 9.4).
pub(super) fn host_terminal(line: &str) -> Option<(String, Place)> {
    if !line.contains("stage=terminal") {
        return None;
    }
    let words = words(line);
    let inference = words.get("inference_id")?.parse().ok()?;
    Some(((*words.get("request_id")?).to_owned(), ((*words.get("escrow_id")?).to_owned(), inference)))
}

/// (escrow, nonce) → gateway request id of an attempt line (contract gateway 8).
pub(super) fn gateway_nonce(line: &str) -> Option<(Place, String)> {
    if !(line.contains("nonce=") && line.contains("request=")) {
        return None;
    }
    let words = words(line);
    let nonce = words.get("nonce")?.parse().ok()?;
    Some((((*words.get("escrow")?).to_owned(), nonce), (*words.get("request")?).to_owned()))
}

/// Request id of the line for an answer from the cache (contract gateway 8).
pub(super) fn cache_hit(line: &str) -> Option<String> {
    let words = line.contains("stage=gateway_cache_hit").then(|| words(line))?;
    (words.get("stage") == Some(&"gateway_cache_hit"))
        .then(|| words.get("request").map(|id| (*id).to_owned()))?
}

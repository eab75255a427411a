//! Everything that evidence says about the failures, read again in one pass over each file: judging keeps a few words per
//! request, a bundle wants all of them.

use std::collections::{BTreeMap, HashMap};

use evidence::accounting::JoinedRequest;
use evidence::record::RequestRecord;
use evidence::rundir::{ACCOUNTING, HITS, NODE_CALLS, PLAN, REQUESTS, RunReader, SNAPSHOT_FILE, SNAPSHOTS};
use evidence::sessions::each_inference;
use evidence::snapshot::{Inference, Moment, Snapshot};
use scenario::control::{Hit, NodeCall};
use scenario::plan::PlanLine;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use verdict::judge::{Failure, Judgement};

/// What evidence says about one failure.
#[derive(Debug, Default)]
pub struct Detail {
    /// Plan line.
    pub plan: Option<PlanLine>,
    /// Client record.
    pub record: Option<RequestRecord>,
    /// Joined accounting.
    pub joined: Option<JoinedRequest>,
    /// Node calls with its marker; an ended call once, with its end.
    pub calls: Vec<NodeCall>,
    /// Fault hits on it.
    pub hits: Vec<Hit>,
    /// Inferences of its nonces, by moment.
    pub inferences: BTreeMap<Moment, BTreeMap<u64, Inference>>,
}

impl Detail {
    /// Its escrow, from the join or from a witness.
    pub fn escrow(&self, failure: &Failure) -> Option<String> {
        let joined = self.joined.as_ref().and_then(|joined| joined.escrow.clone());
        joined.or_else(|| failure.found.iter().find_map(|(_, witness)| witness.escrow.clone()))
    }

    /// Its nonces, from its calls, its attempts and its witnesses.
    pub fn nonces(&self, failure: &Failure) -> Vec<u64> {
        let row = self.joined.as_ref().and_then(|joined| joined.accounting.as_ref());
        let attempts = row.into_iter().flat_map(|row| &row.attempts).map(|attempt| attempt.nonce);
        let calls = self.calls.iter().filter_map(|call| call.seed);
        let witnesses = failure.found.iter().filter_map(|(_, witness)| witness.nonce);
        let mut nonces: Vec<u64> = attempts.chain(calls).chain(witnesses).collect();
        nonces.sort_unstable();
        nonces.dedup();
        nonces
    }
}

/// The field by which a line belongs to a request.
#[derive(Deserialize)]
struct Named {
    #[serde(alias = "request_id")]
    id: Option<String>,
}

/// Details of every failure, in their order.
pub fn collect(judged: &Judgement) -> Vec<Detail> {
    let reader = &judged.evidence.reader;
    let mut details: Vec<Detail> = judged.failures.iter().map(|_| Detail::default()).collect();
    let places: HashMap<&str, usize> =
        judged.failures.iter().map(|failure| failure.key.as_str()).zip(0..).collect();
    if places.keys().any(|key| !key.starts_with("_run.")) {
        each(reader, PLAN, &places, |at, line| details[at].plan = Some(line));
        each(reader, REQUESTS, &places, |at, line| details[at].record = Some(line));
        each(reader, ACCOUNTING, &places, |at, line| {
            details[at].joined.get_or_insert(line);
        });
        each(reader, HITS, &places, |at, line| details[at].hits.push(line));
        each(reader, NODE_CALLS, &places, |at, line| add_call(&mut details[at].calls, line));
    }
    inferences(judged, &mut details);
    details
}

/// Lines of a file that belong to a failure. What can't be read is named by the verdict already.
fn each<T: DeserializeOwned>(
    reader: &RunReader,
    name: &str,
    places: &HashMap<&str, usize>,
    mut take: impl FnMut(usize, T),
) {
    let Some(mut lines) = reader.raw_lines(name) else { return };
    while let Some(line) = lines.next() {
        let Ok(line) = line else { continue };
        let Ok(Named { id: Some(id) }) = serde_json::from_slice(line.bytes) else { continue };
        if let (Some(at), Ok(line)) = (places.get(id.as_str()), serde_json::from_slice(line.bytes)) {
            take(*at, line);
        }
    }
}

/// A call is logged at its start and again at its end: the end says more.
fn add_call(calls: &mut Vec<NodeCall>, call: NodeCall) {
    match calls.iter_mut().find(|known| known.node == call.node && known.call == call.call) {
        Some(known) if call.ended_us.is_some() => *known = call,
        Some(_) => {}
        None => calls.push(call),
    }
}

/// Inferences of the nonces of every failure as each snapshot shows them.
fn inferences(judged: &Judgement, details: &mut [Detail]) {
    let mut wanted: HashMap<(String, u64), Vec<usize>> = HashMap::new();
    for (at, (failure, detail)) in judged.failures.iter().zip(&*details).enumerate() {
        if let Some(escrow) = detail.escrow(failure) {
            for nonce in detail.nonces(failure) {
                wanted.entry((escrow.clone(), nonce)).or_default().push(at);
            }
        }
    }
    if wanted.is_empty() {
        return;
    }
    for moment in judged.evidence.snapshots.keys() {
        // Read again: judging takes what version 1 holds out of its snapshots.
        let name = format!("{SNAPSHOTS}/{}/{SNAPSHOT_FILE}", moment.dir());
        let Ok(Some(snapshot)) = judged.evidence.reader.json::<Snapshot>(&name) else { continue };
        each_inference(&judged.evidence.reader, &snapshot, |escrow, nonce, inference| {
            for at in wanted.get(&(escrow.to_owned(), nonce)).into_iter().flatten() {
                let shown = details[*at].inferences.entry(*moment).or_default();
                match inference {
                    Some(inference) => drop(shown.insert(nonce, inference.clone())),
                    None => drop(shown.remove(&nonce)),
                }
            }
        });
    }
}

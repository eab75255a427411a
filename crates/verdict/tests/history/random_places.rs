//! Defects at any place: whichever request, nonce, host, service, signal or moment is spoilt, the same set fires,
//! nothing else does, and the witness names what was spoilt. Order of lines never matters.

use std::collections::BTreeSet;

use crate::support::catalogue::{account, answer, http_error, in_diff, last_nonce, logs, place, without_tx};
use crate::support::log::{SLOTS, owner, tx, validator};
use crate::support::story::{ESCROWS, SERVICES};
use crate::support::{Files, MOMENTS, good};
use evidence::assertion::{AssertionId, Status};
use evidence::drain::SIGNALS;
use evidence::event::EventKind;
use evidence::snapshot::Moment;
use proptest::prelude::*;
use proptest::sample::Index;

use AssertionId::{A1, A2, A3, A4, A5, A6, A7, A8, A9, A10, A11, T, V};

/// Where to plant, drawn by the test.
struct Places<'d> {
    drawn: &'d [Index],
    used: usize,
}

impl Places<'_> {
    fn below(&mut self, count: usize) -> usize {
        self.used += 1;
        self.drawn[self.used - 1].index(count)
    }

    fn of<'t, T>(&mut self, all: &'t [T]) -> &'t T {
        &all[self.below(all.len())]
    }

    fn request(&mut self, files: &Files) -> usize {
        self.below(files.joined.len())
    }

    /// A request that no fault touched, of either kind or of one.
    fn untouched(&mut self, files: &Files, stream: Option<bool>) -> usize {
        let hit = |id: &str| files.hits.iter().any(|hit| hit.request_id.as_deref() == Some(id));
        let fits = |index: &usize| {
            let record = &files.records[*index];
            stream.is_none_or(|stream| record.stream == stream) && !hit(record.id.as_str())
        };
        let all: Vec<usize> = (0..files.records.len()).filter(fits).collect();
        *self.of(&all)
    }

    /// A nonce that an escrow has from the end of the load on.
    fn nonce(&mut self, files: &Files, escrow: &str) -> u64 {
        1 + self.below(last_nonce(files, Moment::DrainPassive, escrow) as usize) as u64
    }
}

/// What must fire, the assertion that it is for and its reason first; gives the words that a witness must hold.
type Plant = fn(&mut Files, &mut Places<'_>) -> String;
type Mutator = (&'static str, &'static [AssertionId], &'static str, Plant);

fn id(files: &Files, index: usize) -> String {
    files.joined[index].id.clone()
}

const MUTATORS: &[Mutator] = &[
    ("a row without an end", &[A1], "no-terminal-outcome", |files, places| {
        let index = places.request(files);
        account(files, index, "running");
        id(files, index)
    }),
    ("two rows that contradict each other", &[A1], "two-outcomes", |files, places| {
        let index = places.request(files);
        let mut second = files.joined[index].clone();
        second.accounting.as_mut().expect("the story has it").outcome = "failed".to_owned();
        files.joined.push(second);
        id(files, index)
    }),
    (
        "a record was never written and its row is gone",
        &[A1, A11],
        "planned-but-unaccounted",
        |files, places| {
            let index = places.request(files);
            files.joined.remove(index);
            for event in &mut files.events {
                if let EventKind::LoadEnded { records, .. } = &mut event.event {
                    *records -= 1;
                }
            }
            files.records.remove(index).id.as_str().to_owned()
        },
    ),
    ("an untouched request fails", &[A2, T], "untouched-failed", |files, places| {
        let index = places.untouched(files, None);
        account(files, index, "failed");
        http_error(files, index, 502)
    }),
    ("a chunk of another stream", &[A3], "foreign-id", |files, places| {
        let index = places.untouched(files, Some(true));
        answer(files, index, |answer| answer.id_changed = true)
    }),
    ("the answer of another request", &[A3], "foreign-id", |files, places| {
        let (to, from) = (places.request(files), places.below(files.joined.len() - 1));
        let from = if from >= to { from + 1 } else { from };
        files.records[to].response_body_id = files.records[from].response_body_id.clone();
        id(files, to)
    }),
    ("an attempt at a host of no slot", &[A10], "unknown-host", |files, places| {
        let index = places.request(files);
        let row = files.joined[index].accounting.as_mut().expect("the story has it");
        row.attempts.last_mut().expect("one at least").participant = Some("nobody".to_owned());
        id(files, index)
    }),
    ("the gateway forgets a nonce that hosts have", &[A4], "nonce-behind-hosts", |files, places| {
        let (escrow, lost) = (places.below(ESCROWS.len()), 1 + places.below(4) as u64);
        files.from(Moment::DrainPassive, |snapshot| snapshot.escrows[escrow].nonce -= lost);
        format!("escrow {}: the gateway shows nonce", ESCROWS[escrow])
    }),
    ("an event that is not JSON", &[A3], "bad-json", |files, places| {
        let index = places.untouched(files, Some(true));
        answer(files, index, |answer| answer.json_errors = 1)
    }),
    ("a diff is rewritten", &[A4], "diff-rewritten", |files, places| {
        let escrow = *places.of(&ESCROWS);
        let nonce = places.nonce(files, escrow);
        files.from(Moment::DrainSynced, |snapshot| {
            logs(snapshot, escrow).for_each(|log| log.diffs[nonce as usize - 1].content = "other".to_owned());
        });
        format!("escrow {escrow}: nonce {nonce} holds other content")
    }),
    ("two contents at one nonce", &[A4, A7], "nonce-reused", |files, places| {
        let escrow = places.below(ESCROWS.len());
        let (host, nonce) = (places.below(SLOTS as usize), places.nonce(files, ESCROWS[escrow]));
        files.from(*places.of(&MOMENTS[1..]), |snapshot| {
            let diff = &mut snapshot.hosts[host].escrows[escrow].diffs[nonce as usize - 1];
            diff.content = "other".to_owned();
            diff.state_hash = "other".to_owned();
        });
        format!("escrow {} nonce {nonce}", ESCROWS[escrow])
    }),
    ("a validation is committed again", &[A5], "committed-twice", |files, places| {
        let (escrow, nonce) = place(files, places.request(files));
        let again = tx("validation", Some(nonce), Some(validator(nonce)), Some(&escrow));
        let last = last_nonce(files, Moment::DrainFinal, &escrow);
        in_diff(files, &escrow, last, |txs| txs.push(again.clone()));
        format!("{} committed its validation of {nonce}", owner(validator(nonce)))
    }),
    ("a finish is gone", &[A6], "started-without-finish", |files, places| {
        let index = places.request(files);
        let (escrow, nonce) = place(files, index);
        without_tx(files, &escrow, "finish", nonce);
        id(files, index)
    }),
    ("one state differs", &[A7], "state-differs", |files, places| {
        let escrow = places.below(ESCROWS.len());
        let (host, nonce) = (places.below(SLOTS as usize), places.nonce(files, ESCROWS[escrow]));
        let moment = *places.of(&MOMENTS[1..]);
        let diff = &mut files.snapshot(moment).hosts[host].escrows[escrow].diffs[nonce as usize - 1];
        diff.state_hash = "other".to_owned();
        format!("escrow {} nonce {nonce}: state_hash", ESCROWS[escrow])
    }),
    ("one host is behind after finalize", &[A7], "lag", |files, places| {
        let (host, escrow) = (places.below(SLOTS as usize), places.below(ESCROWS.len()));
        files.snapshot(Moment::DrainFinal).hosts[host].escrows[escrow].diffs.pop();
        format!("host-{host} has")
    }),
    ("a signal stays above zero", &[A8], "not-drained", |files, places| {
        let signal = places.of(SIGNALS).name;
        let value = 1.0 + places.below(9) as f64;
        for sample in &mut files.drain {
            sample.signals.insert(signal.to_owned(), Some(value));
        }
        files.drain.last_mut().expect("the story has it").ended = Some("deadline".to_owned());
        signal.to_owned()
    }),
    ("a service ends", &[A9], "ended", |files, places| {
        let service = (*places.of(&SERVICES)).to_owned();
        let words = format!("{service} ended by itself: signal 9");
        let (code, signal, planned) = (None, Some(9), false);
        files.event_in_load(EventKind::ProcessExited { service, pid: 1, code, signal, planned });
        words
    }),
    ("another process under the same name", &[A9], "restarted", |files, places| {
        let (moment, at) = (*places.of(&MOMENTS), places.below(SERVICES.len()));
        files.from(moment, |snapshot| snapshot.processes[at].start_ticks += 1);
        SERVICES[at].to_owned()
    }),
    ("a row can't be found", &[A10], "no-accounting-row", |files, places| {
        let index = places.request(files);
        files.joined[index].accounting = None;
        id(files, index)
    }),
    ("a success is accounted as failed", &[A11], "outcome-pair", |files, places| {
        let index = places.request(files);
        account(files, index, "failed");
        id(files, index)
    }),
    ("a call without its lock", &[A11], "call-without-lock", |files, places| {
        let call = places.below(files.calls.len() / 2) as u64 + 1;
        files.calls.iter_mut().filter(|line| line.call == call).for_each(|line| line.lock = None);
        "without a lock".to_owned()
    }),
    ("requests go out late", &[V], "generator-lateness", |files, places| {
        let late = 50_001 + places.below(1_000_000);
        for event in &mut files.events {
            if let EventKind::LoadEnded { health, .. } = &mut event.event {
                health["lateness_p99_us"] = late.into();
            }
        }
        format!("{late} us")
    }),
    ("two slow requests of 24", &[T], "above-limit", |files, places| {
        let first = places.request(files);
        let second = (first + 1 + places.below(files.records.len() - 1)) % files.records.len();
        for index in [first, second] {
            let late = 1 + places.below(60_000) as u64;
            let record = &mut files.records[index];
            record.first_content_us = record.first_content_us.map(|us| us + late);
        }
        "ttft_p95".to_owned()
    }),
];

#[test]
fn every_assertion_has_a_mutator() {
    for wanted in AssertionId::ALL {
        assert!(MUTATORS.iter().any(|(_, fires, _, _)| fires[0] == wanted), "{wanted}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_defect_fires_the_same_set_wherever_it_is(
        which in any::<Index>(),
        drawn in prop::collection::vec(any::<Index>(), 8),
    ) {
        let (name, fires, reason, plant) = which.get(MUTATORS);
        let mut files = good();
        let planted = plant(&mut files, &mut Places { drawn: &drawn, used: 0 });
        let assertions = files.judge().assertions;
        let wanted: BTreeSet<AssertionId> = fires.iter().copied().collect();
        for result in &assertions.results {
            let should = if wanted.contains(&result.id) { Status::Fail } else { Status::Pass };
            let found = (&result.missing, result.witnesses.first());
            prop_assert_eq!(result.status, should, "{}: {} {:?}", name, result.id, found);
        }
        let first = assertions.results.iter().find(|result| result.id == fires[0]).expect("all are judged");
        let named = first.witnesses.iter().any(|witness| {
            witness.reason == *reason && serde_json::to_string(witness).expect("JSON").contains(&planted)
        });
        prop_assert!(named, "{}: no witness for {} names {}: {:?}", name, reason, planted, first.witnesses);
    }

    #[test]
    fn the_order_of_lines_never_matters(seed in any::<[u64; 7]>()) {
        let mut files = good();
        // Sorting by a keyed mix of the place is a permutation that a failing case can repeat.
        let key = |seed: u64| move |at: usize| (at as u64 ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        fn shuffle<T>(all: &mut Vec<T>, key: impl Fn(usize) -> u64) {
            let mut keyed: Vec<(u64, T)> = all.drain(..).enumerate().map(|(at, one)| (key(at), one)).collect();
            keyed.sort_by_key(|(key, _)| *key);
            all.extend(keyed.into_iter().map(|(_, one)| one));
        }
        shuffle(&mut files.plan, key(seed[0]));
        shuffle(&mut files.records, key(seed[1]));
        shuffle(&mut files.joined, key(seed[2]));
        shuffle(&mut files.calls, key(seed[3]));
        shuffle(&mut files.dapi, key(seed[4]));
        shuffle(&mut files.events, key(seed[5]));
        shuffle(&mut files.drain, key(seed[6]));
        let assertions = files.judge().assertions;
        prop_assert_eq!(assertions.verdict.to_string(), "pass", "{:?}", verdict::judge::reasons(&assertions));
    }
}

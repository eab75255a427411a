//! The part of `selftest/defects.json` that crate `verdict` proves: every defect and quiet twin of recorded runs
//! (layer H). `PROOFLOAD_REGENERATE=1 cargo test -p verdict --test history registry` writes it anew; the other tests of this
//! crate prove that each fires exactly its set, wherever it is planted.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::support::catalogue::all;
use crate::support::twins::{TWINS, twin_of};
use crate::support::unknown::UNKNOWN;
use evidence::assertion::AssertionId;
use serde_json::{Value, json};

/// Defects that an assertion needs at least (design, self-test section 3).
const DEFECTS_MIN: usize = 3;

fn words<T: ToString>(all: impl IntoIterator<Item = T>) -> Vec<String> {
    all.into_iter().map(|one| one.to_string()).collect()
}

fn history() -> Value {
    let defect = |defect: &&crate::support::catalogue::Defect| {
        let (fires, reasons): (Vec<AssertionId>, Vec<&str>) = defect.fires.iter().copied().unzip();
        json!({"name": defect.name, "fires": words(fires), "reasons": reasons})
    };
    let twin =
        |(name, _): &(&str, crate::support::twins::Change)| json!({"name": name, "of": words(twin_of(name))});
    json!({
        "defects": all().iter().map(defect).collect::<Vec<_>>(),
        "twins": TWINS.iter().map(twin).collect::<Vec<_>>(),
        "unknown": UNKNOWN.iter().map(|(name, says, _)| json!({"name": name, "says": says})).collect::<Vec<_>>(),
    })
}

#[test]
fn the_catalogue_has_what_is_proven_here() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../selftest/defects.json");
    let text = std::fs::read_to_string(&path).expect("selftest/defects.json");
    let mut catalogue: Value = serde_json::from_str(&text).expect("JSON");
    catalogue["history"] = history();
    let wanted = serde_json::to_string_pretty(&catalogue).expect("JSON") + "\n";
    if std::env::var_os("PROOFLOAD_REGENERATE").is_some() {
        std::fs::write(&path, wanted).expect("selftest/defects.json");
        return;
    }
    assert!(text == wanted, "selftest/defects.json is stale: run with PROOFLOAD_REGENERATE=1");
}

#[test]
fn every_assertion_has_three_defects_and_a_quiet_twin() {
    let mut counts: BTreeMap<AssertionId, (usize, usize)> = BTreeMap::new();
    all().iter().for_each(|defect| counts.entry(defect.fires[0].0).or_default().0 += 1);
    for (name, _) in TWINS.iter().filter(|(name, _)| !name.starts_with("all")) {
        twin_of(name).into_iter().for_each(|id| counts.entry(id).or_default().1 += 1);
    }
    for id in AssertionId::ALL {
        let (defects, twins) = counts.get(&id).copied().unwrap_or_default();
        assert!(defects >= DEFECTS_MIN && twins >= 1, "{id}: {defects} defects, {twins} quiet twins");
    }
}

#[test]
fn names_are_single() {
    let all = all();
    let names = all.iter().map(|defect| defect.name).chain(TWINS.iter().map(|(name, _)| *name));
    let single: BTreeSet<&str> = names.clone().collect();
    assert_eq!(single.len(), names.count());
}

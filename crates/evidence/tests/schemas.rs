//! JSON Schemas of the formats of the run directory (`docs/schema`) and a hand-checked sample of each (`docs/samples`).
//!
//! The committed schemas must equal the types; `PROOFLOAD_REGENERATE=1 cargo test -p evidence --test schemas` writes
//! them anew. Each sample is read by its type, written again without loss, and holds against its schema.

#![expect(clippy::unwrap_used, reason = "a failed step of a test should end it")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use evidence::EVIDENCE_VERSION;
use evidence::accounting::JoinedRequest;
use evidence::assertion::Assertions;
use evidence::bundle::Bundle;
use evidence::drain::{DrainSample, SIGNALS};
use evidence::event::Event;
use evidence::known::{KNOWN_VERSION, KnownFindings};
use evidence::leases::LeaseLine;
use evidence::manifest::Manifest;
use evidence::record::RequestRecord;
use evidence::run::RunInfo;
use evidence::sessions::{DiffLine, InferenceLine};
use evidence::snapshot::{SNAPSHOT_VERSION, Snapshot};
use evidence::summary::{BASELINE_SENTENCE, Summary};
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// A key that no version 1 writer knows.
const NEWER_KEY: &str = "key_of_a_newer_writer";

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

fn schema<T: JsonSchema>(title: &str) -> Value {
    let mut schema = schemars::schema_for!(T).to_value();
    schema["title"] = Value::String(title.to_owned());
    schema
}

/// Compares the committed schema with the type; writes it first when asked to.
fn committed(name: &str, fresh: &Value) {
    let path = docs().join(format!("schema/{name}.schema.json"));
    let fresh = format!("{}\n", serde_json::to_string_pretty(fresh).unwrap());
    if std::env::var_os("PROOFLOAD_REGENERATE").is_some() {
        std::fs::write(&path, &fresh).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(committed == fresh, "{} is old: see the head of this test", path.display());
}

fn holds(schema: &Value, value: &Value, what: &str) {
    let validator = jsonschema::validator_for(schema).unwrap();
    let errors: Vec<String> =
        validator.iter_errors(value).map(|error| format!("{}: {error}", error.instance_path())).collect();
    assert!(errors.is_empty(), "{what} does not hold: {}", errors.join("\n"));
}

/// The values of a sample file: one, or one a line. One line would not show that the file is a series.
fn sample(file: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(docs().join("samples").join(file)).unwrap();
    if file.ends_with(".yaml") {
        return vec![serde_yaml::from_str(&text).unwrap()];
    }
    if !file.ends_with(".jsonl") {
        return vec![serde_json::from_str(&text).unwrap()];
    }
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines.len() >= 2, "{file} has two lines or more");
    lines
}

fn typed<T: DeserializeOwned>(value: &Value, what: &str) -> T {
    serde_json::from_value(value.clone()).unwrap_or_else(|error| panic!("{what}: {error}"))
}

/// Schema, samples, and what every format owes to its readers: the version is there and survives reading.
fn format<T: JsonSchema + Serialize + DeserializeOwned>(name: &str, file: &str) -> Value {
    format_of::<T>(name, file, EVIDENCE_VERSION)
}

fn format_of<T: JsonSchema + Serialize + DeserializeOwned>(name: &str, file: &str, version: u32) -> Value {
    let schema = schema::<T>(name);
    committed(name, &schema);
    for value in sample(file) {
        let read: T = typed(&value, file);
        assert_eq!(serde_json::to_value(&read).unwrap(), value, "{file} is written as it was read");
        holds(&schema, &value, file);
        assert_eq!(value["v"], json!(version), "{file} has the version of this build");
        // A reader can only name a newer version when the type hands it over unchanged.
        let mut newer = value.clone();
        newer["v"] = json!(version + 1);
        let read: T = typed(&newer, file);
        assert_eq!(serde_json::to_value(&read).unwrap()["v"], newer["v"], "{file}: the version is kept");
        // Without a version nobody knows what a field means.
        let mut unversioned = value.clone();
        unversioned.as_object_mut().unwrap().remove("v");
        assert!(serde_json::from_value::<T>(unversioned).is_err(), "{file}: the version is required");
    }
    schema
}

/// A newer writer of the same version may add keys, at the top and at these places of the sample.
fn open_format<T: JsonSchema + Serialize + DeserializeOwned>(name: &str, file: &str, inside: &[&str]) {
    open_to_new_keys::<T>(&format::<T>(name, file), file, inside);
}

fn open_to_new_keys<T: JsonSchema + Serialize + DeserializeOwned>(
    schema: &Value,
    file: &str,
    inside: &[&str],
) {
    let mut reached = BTreeSet::new();
    for value in sample(file) {
        let mut wider = value.clone();
        for pointer in std::iter::once(&"").chain(inside) {
            if let Some(object) = wider.pointer_mut(pointer).and_then(Value::as_object_mut) {
                object.insert(NEWER_KEY.to_owned(), json!({"any": [1, "thing"]}));
                reached.insert(*pointer);
            }
        }
        let read: T = typed(&wider, file);
        assert_eq!(serde_json::to_value(&read).unwrap(), value, "{file}: an unknown key changes nothing");
        holds(schema, &wider, file);
    }
    assert_eq!(reached.len(), inside.len() + 1, "{file}: the sample has every place of {inside:?}");
}

#[test]
fn lines_of_the_run_directory() {
    open_format::<RequestRecord>(
        "request-record",
        "request-record.jsonl",
        &["/answer", "/tokens", "/cancel", "/excerpt"],
    );
    open_format::<Event>("event", "event.jsonl", &[]);
    open_format::<JoinedRequest>(
        "joined-request",
        "joined-request.jsonl",
        &["/accounting", "/accounting/attempts/0", "/calls/0"],
    );
    open_format::<DrainSample>("drain-sample", "drain-sample.jsonl", &[]);
    open_format::<LeaseLine>("lease-line", "lease-line.jsonl", &["/lease"]);
}

#[test]
fn whole_files_of_the_run_directory() {
    let snapshot = format_of::<Snapshot>("snapshot", "snapshot.json", SNAPSHOT_VERSION);
    let places = ["/escrows/0", "/hosts/0/escrows/0", "/hosts/0/escrows/0/mempool/0", "/leases/0"];
    open_to_new_keys::<Snapshot>(&snapshot, "snapshot.json", &places);
    open_format::<DiffLine>("diff-line", "diff-line.jsonl", &["/diff", "/diff/txs/0"]);
    open_format::<InferenceLine>("inference-line", "inference-line.jsonl", &["/inference"]);
    open_format::<Assertions>("assertions", "assertions.json", &["/findings", "/results/0/witnesses/0"]);
    open_format::<Bundle>(
        "bundle",
        "bundle.json",
        &["/request", "/accounting", "/failed/0", "/node_calls/0"],
    );
    open_format::<Summary>("summary", "summary.json", &["/client", "/client/ttft", "/stack"]);
    open_format::<Manifest>("manifest", "manifest.json", &["/files/accounting.jsonl"]);
}

/// `run.yaml` alone is closed: what is replayed must be understood to the last key.
#[test]
fn the_run_file_is_closed() {
    let schema = format::<RunInfo>("run", "run.yaml");
    let validator = jsonschema::validator_for(&schema).unwrap();
    for pointer in ["", "/resolved", "/resolved/scenario/workload"] {
        let mut wider = sample("run.yaml").remove(0);
        wider.pointer_mut(pointer).unwrap()[NEWER_KEY] = json!(1);
        let error = serde_json::from_value::<RunInfo>(wider.clone()).unwrap_err().to_string();
        assert!(error.contains(NEWER_KEY), "{pointer}: the unknown key is named: {error}");
        assert!(!validator.is_valid(&wider), "{pointer}: the schema refuses it too");
    }
    // What the runner writes is YAML made from the type; it must come back as the same value.
    let run: RunInfo = typed(&sample("run.yaml")[0], "run.yaml");
    let text = serde_yaml::to_string(&run).unwrap();
    assert_eq!(serde_yaml::from_str::<RunInfo>(&text).unwrap(), run);
}

/// A file that people write: closed, and without the `v` of files that programs write.
#[test]
fn the_known_findings_are_closed() {
    let schema = schema::<KnownFindings>("known-findings");
    committed("known-findings", &schema);
    let value = sample("known-findings.yaml").remove(0);
    let read: KnownFindings = typed(&value, "known-findings.yaml");
    assert_eq!(serde_json::to_value(&read).unwrap(), value);
    assert_eq!(read.version, KNOWN_VERSION);
    holds(&schema, &value, "known-findings.yaml");
    let validator = jsonschema::validator_for(&schema).unwrap();
    for pointer in ["", "/findings/0", "/findings/0/witness"] {
        let mut wider = value.clone();
        wider.pointer_mut(pointer).unwrap()[NEWER_KEY] = json!(1);
        assert!(serde_json::from_value::<KnownFindings>(wider.clone()).is_err(), "{pointer} by its type");
        assert!(!validator.is_valid(&wider), "{pointer} by its schema");
    }
}

#[test]
fn schemas_refuse_what_the_types_refuse() {
    fn refused<T: JsonSchema + DeserializeOwned>(file: &str, pointer: &str, key: &str, bad: Value) {
        let mut value = sample(file).remove(0);
        value.pointer_mut(pointer).unwrap()[key] = bad;
        assert!(serde_json::from_value::<T>(value.clone()).is_err(), "{file} {pointer}/{key} by its type");
        let schema = schema::<T>(file);
        assert!(!jsonschema::validator_for(&schema).unwrap().is_valid(&value), "{file} {pointer}/{key}");
    }
    refused::<RequestRecord>("request-record.jsonl", "", "client_class", json!("fine"));
    refused::<RequestRecord>("request-record.jsonl", "", "end_us", json!(-1));
    refused::<Event>("event.jsonl", "", "kind", json!("phase-forgotten"));
    refused::<JoinedRequest>("joined-request.jsonl", "", "ways", json!(["guess"]));
    refused::<DrainSample>("drain-sample.jsonl", "/signals", "node_active_calls", json!("0"));
    refused::<Snapshot>("snapshot.json", "", "moment", json!("after"));
    refused::<Assertions>("assertions.json", "/results/0", "status", json!("skipped"));
    refused::<Bundle>("bundle.json", "/failed/0", "id", json!("A12"));
    refused::<Summary>("summary.json", "", "verdict", json!("green"));
    refused::<Manifest>("manifest.json", "/files/accounting.jsonl", "bytes", json!(-1));
    refused::<RunInfo>("run.yaml", "/stack", "provider", Value::Null);
}

/// The samples are a story that agrees with the tables of this crate.
#[test]
fn samples_agree_with_the_tables() {
    let kinds = |values: &[Value]| -> BTreeSet<String> {
        values.iter().filter_map(|value| Some(value["kind"].as_str()?.to_owned())).collect()
    };
    let shapes = schema::<Event>("event");
    let shapes: Vec<Value> = shapes["oneOf"]
        .as_array()
        .unwrap()
        .iter()
        .map(|shape| json!({"kind": shape["properties"]["kind"]["const"]}))
        .collect();
    assert_eq!(kinds(&sample("event.jsonl")), kinds(&shapes), "every kind of event has a line");
    for (value, seq) in sample("event.jsonl").iter().zip(1_u64..) {
        assert_eq!(value["seq"], json!(seq), "numbers have no gap");
    }
    let names: BTreeSet<&str> = SIGNALS.iter().map(|signal| signal.name).collect();
    for value in sample("drain-sample.jsonl") {
        let read: DrainSample = typed(&value, "drain-sample.jsonl");
        assert_eq!(read.signals.keys().map(String::as_str).collect::<BTreeSet<_>>(), names);
    }
    let summary: Summary = typed(&sample("summary.json")[0], "summary.json");
    assert_eq!(summary.note, BASELINE_SENTENCE);
    assert_eq!(summary.exit_code, summary.verdict.code());
    assert_eq!(summary.client.classes.values().sum::<u64>(), summary.client.planned);
    assert_eq!(summary.client.client_classes.values().sum::<u64>(), summary.client.planned);
    let judged: Assertions = typed(&sample("assertions.json")[0], "assertions.json");
    assert_eq!(judged.findings.outcome(), judged.verdict);
    for result in &judged.results {
        assert_eq!(result.name, result.id.name());
    }
}

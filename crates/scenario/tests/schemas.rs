//! JSON Schemas of every format of this crate (`docs/schema`) and a hand-checked sample of each (`docs/samples`).
//!
//! The committed schemas must equal the types; `PROOFLOAD_REGENERATE=1 cargo test -p scenario --test schemas` writes
//! them anew. Each sample is read by its type, written again without loss, and holds against its schema.

#![expect(clippy::unwrap_used, reason = "a failed step of a test should end it")]

use std::path::{Path, PathBuf};

use scenario::control::{
    ChainAct, ChainCallRecord, ChainStats, ConfigApplied, ControlError, DapiCallRecord, DapiStats, Hit,
    MockConfig, NodeAct, NodeCall, OpenaiStats, Page,
};
use scenario::model::Scenario;
use scenario::pipe::{LoadgenJob, LoadgenLine};
use scenario::plan::PlanLine;
use scenario::profile::Profile;
use scenario::ready::ReadyLine;
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

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

/// Reads a JSON value by its type and compares what is written again; then the schema.
fn read_back<T: Serialize + DeserializeOwned>(value: &Value, schema: &Value, what: &str) {
    let typed: T = serde_json::from_value(value.clone()).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(&serde_json::to_value(&typed).unwrap(), value, "{what} is written as it was read");
    holds(schema, value, what);
}

fn format<T: JsonSchema + Serialize + DeserializeOwned>(name: &str, samples: &[&str]) {
    let schema = schema::<T>(name);
    committed(name, &schema);
    for sample in samples {
        let text = std::fs::read_to_string(docs().join("samples").join(sample)).unwrap();
        let lines: Vec<&str> = if sample.ends_with(".jsonl") { text.lines().collect() } else { vec![&text] };
        assert!(!lines.is_empty());
        for line in lines {
            read_back::<T>(&serde_json::from_str(line).unwrap(), &schema, sample);
        }
    }
}

#[test]
fn formats_between_programs() {
    format::<PlanLine>("plan-line", &["plan-line.json"]);
    let configs = ["mock-config-openai.json", "mock-config-dapi.json", "mock-config-chain.json"];
    format::<MockConfig>("mock-config", &configs);
    format::<ConfigApplied>("config-applied", &["config-applied.json"]);
    format::<ControlError>("control-error", &["control-error.json"]);
    format::<Page<Hit>>("hits", &["hits.json"]);
    format::<Page<NodeCall>>("node-calls", &["node-calls.json"]);
    format::<Page<DapiCallRecord>>("dapi-calls", &["dapi-calls.json"]);
    format::<Page<ChainCallRecord>>("chain-calls", &["chain-calls.json"]);
    format::<OpenaiStats>("openai-stats", &["openai-stats.json"]);
    format::<DapiStats>("dapi-stats", &["dapi-stats.json"]);
    format::<ChainStats>("chain-stats", &["chain-stats.json"]);
    format::<ChainAct>("chain-act", &["chain-act.json"]);
    format::<NodeAct>("node-act", &["node-act.json"]);
    format::<ReadyLine>("ready-line", &["ready-line.json"]);
    format::<LoadgenJob>("loadgen-job", &["loadgen-job.json"]);
    format::<LoadgenLine>("loadgen-line", &["loadgen-lines.jsonl"]);
}

fn yaml(path: &Path) -> (String, Value) {
    let text = std::fs::read_to_string(path).unwrap();
    let value = serde_yaml::from_str(&text).unwrap();
    (text, value)
}

fn files(folder: &str) -> Vec<PathBuf> {
    let folder = std::fs::read_dir(docs().join("..").join(folder)).unwrap();
    // What lies in a folder beside the scenarios is of another format.
    folder.map(|file| file.unwrap().path()).filter(|path| path.is_file()).collect()
}

#[test]
fn scenarios_and_profiles_hold_against_their_schemas() {
    let schema_of_scenarios = schema::<Scenario>("scenario");
    committed("scenario", &schema_of_scenarios);
    for path in files("scenarios").into_iter().chain([docs().join("samples/scenario.yaml")]) {
        let (text, value) = yaml(&path);
        holds(&schema_of_scenarios, &value, &path.display().to_string());
        let read = scenario::parse(text.as_bytes(), "sample").unwrap_or_else(|error| panic!("{error}"));
        // What is written for another program to read must be in the same format.
        holds(&schema_of_scenarios, &serde_json::to_value(&read.scenario).unwrap(), "written again");
    }
    let schema_of_profiles = schema::<Profile>("profile");
    committed("profile", &schema_of_profiles);
    for path in files("ml-profiles").into_iter().chain([docs().join("samples/profile.yaml")]) {
        let (text, value) = yaml(&path);
        holds(&schema_of_profiles, &value, &path.display().to_string());
        scenario::parse_profile(text.as_bytes(), "sample").unwrap_or_else(|error| panic!("{error}"));
    }
}

#[test]
fn the_scenario_schema_refuses_what_the_parser_refuses() {
    let schema = schema::<Scenario>("scenario");
    let validator = jsonschema::validator_for(&schema).unwrap();
    let (_, good) = yaml(&docs().join("samples/scenario.yaml"));
    assert!(validator.is_valid(&good));
    for (pointer, key, value) in [
        ("", "zebra", serde_json::json!(1)),
        ("/workload", "stram_ratio", serde_json::json!(0.5)),
        ("/workload", "stream_ratio", serde_json::json!(1.5)),
        ("/drain", "interval", serde_json::json!(10)),
        ("/faults/0", "do", serde_json::json!({"statsu": 503})),
        ("/faults/0", "zebra", serde_json::json!(1)),
        ("/allocator", "policy", serde_json::json!("random")),
    ] {
        let mut bad = good.clone();
        bad.pointer_mut(pointer).unwrap()[key] = value;
        assert!(!validator.is_valid(&bad), "{pointer}/{key}");
    }
}

#[test]
fn the_sample_scenario_resolves() {
    let (text, _) = yaml(&docs().join("samples/scenario.yaml"));
    let file = scenario::parse(text.as_bytes(), "scenario.yaml").unwrap();
    let profiles = file
        .profile_names()
        .into_iter()
        .map(|name| {
            let bytes = std::fs::read(docs().join(format!("../ml-profiles/{name}.yaml"))).unwrap();
            (name.to_owned(), scenario::parse_profile(&bytes, name).unwrap())
        })
        .collect();
    let resolved = scenario::resolve(&file, &profiles, &scenario::Overrides::default());
    let resolved = resolved.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!((resolved.nodes.len(), resolved.requests_max, resolved.plan_exact), (3, 400, true));
}

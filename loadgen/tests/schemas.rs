//! JSON Schemas of the files that loadgen reads and writes. `PROOFLOAD_REGENERATE=1 cargo test -p loadgen --test
//! schemas` writes them anew.

#![expect(clippy::unwrap_used, reason = "a test that can't go on must stop")]

use std::path::Path;

use loadgen::engine::turn_record::TurnRecord;
use loadgen::output::compare::Comparison;
use loadgen::profile::model::Profile;
use loadgen::result::RunResult;
use schemars::JsonSchema;

fn committed<T: JsonSchema>(name: &str) {
    let mut schema = schemars::schema_for!(T).to_value();
    schema["title"] = name.into();
    let fresh = format!("{}\n", serde_json::to_string_pretty(&schema).unwrap());
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../docs/schema/{name}.schema.json"));
    if std::env::var_os("PROOFLOAD_REGENERATE").is_some() {
        std::fs::write(&path, &fresh).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(committed == fresh, "{} is old: see the head of this test", path.display());
}

#[test]
fn committed_schemas_equal_the_types() {
    committed::<Profile>("load-profile");
    committed::<RunResult>("load-result");
    committed::<TurnRecord<'static>>("load-turn");
    committed::<Comparison>("load-comparison");
}

//! `docs/scenarios.md` is made from the scenario files: what each proves, how, and how much must have happened. And
//! what every committed scenario must have.

#![expect(clippy::unwrap_used, reason = "tests stop at the first surprise")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use scenario::fault::{Expect, FaultAction};
use scenario::model::{Resolved, Saturation, Trigger};
use scenario::profile::Profile;
use scenario::{Overrides, parse, parse_profile, resolve};
use serde_json::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn yaml(folder: &str) -> Vec<(String, Vec<u8>)> {
    let list = std::fs::read_dir(root().join(folder)).unwrap().flatten().map(|entry| entry.path());
    let files = list.filter(|path| path.extension().is_some_and(|kind| kind == "yaml"));
    let stem = |path: &Path| path.file_stem().unwrap().to_string_lossy().into_owned();
    let mut found: Vec<_> = files.map(|path| (stem(&path), std::fs::read(&path).unwrap())).collect();
    found.sort();
    found
}

fn profiles() -> BTreeMap<String, Profile> {
    let files = yaml("ml-profiles").into_iter();
    files.map(|(name, text)| (name.clone(), parse_profile(&text, &name).unwrap())).collect()
}

fn all() -> Vec<Resolved> {
    let profiles = profiles();
    let read = |(name, text): (String, Vec<u8>)| {
        let file = parse(&text, &name).unwrap_or_else(|error| panic!("{error}"));
        let resolved =
            resolve(&file, &profiles, &Overrides::default()).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(resolved.scenario.name, name, "a scenario has the name of its file");
        resolved
    };
    yaml("scenarios").into_iter().map(read).collect()
}

/// A small value on one line, in the notation of the files.
fn short<T: serde::Serialize>(value: &T) -> String {
    fn write(value: &Value) -> String {
        match value {
            Value::String(text) => text.clone(),
            Value::Array(list) => list.iter().map(write).collect::<Vec<_>>().join(", "),
            Value::Object(map) => {
                let each = map.iter().map(|(key, value)| format!("{key} {}", write(value)));
                each.collect::<Vec<_>>().join(", ")
            }
            other => other.to_string(),
        }
    }
    write(&serde_json::to_value(value).unwrap())
}

fn ends(list: &[Expect]) -> String {
    let one = |expect: &Expect| {
        let mut text = short(&expect.class);
        if let Some(because) = expect.because {
            write!(text, " ({})", short(&because)).unwrap();
        }
        if let Some(status) = expect.status {
            write!(text, " {status}").unwrap();
        }
        text
    };
    list.iter().map(one).collect::<Vec<_>>().join(" or ")
}

fn what_happens(resolved: &Resolved) -> Vec<String> {
    let scenario = &resolved.scenario;
    let mut rows = Vec::new();
    for rule in &scenario.faults {
        let validation = if short(&rule.on) == "validation" { "validations " } else { "" };
        rows.push(format!(
            "fault `{}`: {validation}at {}, {}: {}; ends as {}",
            rule.id,
            short(&rule.place),
            short(&rule.select),
            short(&rule.action),
            ends(&rule.expect)
        ));
    }
    if let Some(cancel) = &scenario.workload.cancel {
        let own = format!("{} by {}", short(&cancel.phase), short(&cancel.close));
        let more =
            cancel.also.iter().map(|point| format!("{} by {}", short(&point.phase), short(&point.close)));
        let points: Vec<String> = std::iter::once(own).chain(more).collect();
        let (select, ends) = (short(&cancel.select), ends(&cancel.expect));
        rows.push(format!("clients leave ({select}): {}; ends as {ends}", points.join(", ")));
    }
    if let Some(large) = &scenario.workload.oversize {
        let (tokens, ends) = (large.input_tokens, ends(&large.expect));
        rows.push(format!("oversized requests of {tokens} tokens: {}; ends as {ends}", short(&large.select)));
    }
    if !scenario.workload.duplicates.is_empty() {
        rows.push(format!("{} requests repeat an earlier one", scenario.workload.duplicates.len()));
    }
    if let Saturation::Required(nodes) = &scenario.validity.mock_saturation {
        rows.push(format!("{} must saturate; ends as {}", nodes.join(", "), ends(&scenario.validity.expect)));
    }
    for action in &scenario.actions {
        let (after, ends) = (short(&action.after), ends(&action.expect));
        rows.push(format!(
            "action after {after}: {}; requests in flight end as {ends}",
            short(&action.action)
        ));
    }
    if rows.is_empty() {
        rows.push("nothing: no fault".to_owned());
    }
    rows
}

fn load(resolved: &Resolved) -> String {
    let workload = &resolved.scenario.workload;
    let step =
        |concurrency: u32, requests: Option<u64>| format!("{} at {concurrency}", requests.unwrap_or(0));
    let mut text = match &workload.search {
        Some(search) => format!("search from {} to {} in flight", search.from, search.to),
        None => {
            let steps = workload.steps.iter().map(|one| step(one.concurrency, one.requests));
            format!("requests: {}", steps.collect::<Vec<_>>().join(", then "))
        }
    };
    if let Some(recovery) = &workload.recovery {
        write!(text, "; drain; recovery {}", step(recovery.concurrency, Some(recovery.requests))).unwrap();
    }
    write!(text, "; {} as streams", short(&workload.stream_ratio)).unwrap();
    text
}

fn page() -> String {
    let mut page = String::from(
        "# Scenarios\n\nMade from the files under `scenarios/`; `PROOFLOAD_REGENERATE=1 cargo test -p tests --test \
         scenarios_page` writes it anew.\nEach runs by `runner run scenarios/<name>.yaml`. Below its least counts a \
         run is unknown, never a pass.\n",
    );
    for resolved in all() {
        let scenario = &resolved.scenario;
        let devshard = &scenario.devshard;
        writeln!(page, "\n## {}\n\n{}\n", scenario.name, scenario.description.trim()).unwrap();
        let hosts = match devshard.replicas {
            1 => format!("{} hosts", devshard.participants),
            replicas => format!("{} participants of {replicas} replicas", devshard.participants),
        };
        let nodes = resolved.nodes.iter().map(|node| format!("{} ({})", node.name, node.profile));
        writeln!(page, "- stack: {hosts}, {} escrows, {}", devshard.escrows, short(&devshard.storage))
            .unwrap();
        writeln!(page, "- nodes: {}", nodes.collect::<Vec<_>>().join(", ")).unwrap();
        writeln!(page, "- load: {}", load(&resolved)).unwrap();
        for row in what_happens(&resolved) {
            writeln!(page, "- {row}").unwrap();
        }
        writeln!(page, "- limits: {}", short(&scenario.thresholds)).unwrap();
        writeln!(page, "- least counts: {}", short(&scenario.minimum)).unwrap();
    }
    page
}

#[test]
fn the_page_equals_the_files() {
    let path = root().join("docs/scenarios.md");
    let wanted = page();
    if std::env::var_os("PROOFLOAD_REGENERATE").is_some() {
        std::fs::write(&path, &wanted).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == wanted, "docs/scenarios.md is stale: run with PROOFLOAD_REGENERATE=1");
}

#[test]
fn every_scenario_says_what_it_proves_and_how_much_is_enough() {
    for resolved in all() {
        let scenario = &resolved.scenario;
        let name = &scenario.name;
        assert!(scenario.description.trim().len() > 60, "{name} does not say what it proves");
        let minimum = serde_json::to_value(&scenario.minimum).unwrap();
        assert_ne!(minimum, serde_json::json!({}), "{name} has no least counts");
        assert!(scenario.thresholds.error_rate.is_some(), "{name} has no limit for errors");
        // A run that depends on the wall clock can't be replayed (design section 6).
        assert!(resolved.plan_exact, "{name} is not plan-exact");
        assert!(!scenario.actions.iter().any(|action| matches!(action.after, Trigger::At(_))), "{name}");
        let executed = |rule: &&scenario::model::FaultRule| matches!(rule.action, FaultAction::Node(_));
        if scenario.faults.iter().filter(executed).any(|rule| short(&rule.on) == "execution") {
            assert!(scenario.minimum.fault_hits.is_some_and(|least| least > 0), "{name}: minimum.fault_hits");
        }
        if scenario.workload.cancel.is_some() {
            assert!(scenario.minimum.cancelled.is_some_and(|least| least > 0), "{name}: minimum.cancelled");
        }
    }
}

#[test]
fn every_profile_is_used_or_an_example() {
    let used: Vec<String> =
        all().into_iter().flat_map(|resolved| resolved.nodes).map(|node| node.profile).collect();
    for name in profiles().keys() {
        assert!(used.contains(name), "no scenario uses the profile {name}");
    }
}

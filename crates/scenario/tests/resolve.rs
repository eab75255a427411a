//! Resolution, plan and hashes on the committed scenario: what must change a hash changes it, nothing else does.

#![expect(clippy::unwrap_used, reason = "a failed step of a test should end it")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use scenario::configs::{chain_rules, dapi_config, openai_config};
use scenario::fault::Select;
use scenario::hash::{plan_hash, scenario_hash};
use scenario::model::{Resolved, Trigger};
use scenario::profile::Profile;
use scenario::units::{Micros, Ppb};
use scenario::{Overrides, Setting, Source, limits, parse, parse_profile, resolve};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn profiles() -> BTreeMap<String, Profile> {
    let files = std::fs::read_dir(root().join("ml-profiles")).unwrap();
    files
        .map(|file| {
            let path = file.unwrap().path();
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            let bytes = std::fs::read(&path).unwrap();
            (name.clone(), parse_profile(&bytes, &name).unwrap_or_else(|error| panic!("{error}")))
        })
        .collect()
}

fn flags(values: &[(Setting, &str)]) -> Overrides {
    let mut overrides = Overrides::default();
    for (setting, text) in values {
        overrides.set_flag(*setting, text).unwrap();
    }
    overrides
}

fn of_text(text: &str, overrides: &Overrides) -> Resolved {
    let file = parse(text.as_bytes(), "test.yaml").unwrap_or_else(|error| panic!("{error}"));
    resolve(&file, &profiles(), overrides).unwrap_or_else(|error| panic!("{error}"))
}

fn ml_5xx(values: &[(Setting, &str)]) -> Resolved {
    of_text(&std::fs::read_to_string(root().join("scenarios/ml-5xx.yaml")).unwrap(), &flags(values))
}

const SMALL: &str = "version: 1
name: s
seed: 1
devshard: { participants: 2, settings: { speed_policy: legacy, perf: { sample_size: 8 } } }
pool:
  - { name: a, profile: fast, count: 2, queue: 3 }
  - { name: b, profile: realistic, workers: 5, expect: [{ class: masked-fault }] }
allocator: { policy: seeded-weighted, weights: { a: 2, a-1: 7 } }
workload:
  stream_ratio: 0.5
  prompt: { input_tokens: 8 }
  max_tokens: 8
  steps: [{ concurrency: 2, requests: 30 }, { concurrency: 4, requests: 10 }]
  duplicates: [{ index: 7, duplicate_of: 3 }]
  cancel: { select: { fraction: 0.3 }, phase: nth-event, event: 2, after: 5ms, expect: [{ class: cancelled }] }
faults:
  - id: by-id
    where: { node: a }
    select: { ids: [s-1-000003] }
    do: { delay_headers: 20ms }
    expect: [{ class: masked-fault, because: delayed-only }]
  - id: votes
    where: { node: a-1 }
    on: validation
    select: { all: true }
    do: { status: 500 }
    expect: [{ class: success }]
  - id: full
    where: { dapi: AcquireMLNode, host: host-1 }
    select: { calls: [2, 5] }
    do: { reject: resource-exhausted }
    expect: [{ class: success }]
  - id: slow-chain
    where: { chain: GetCurrentEpoch }
    select: { all: true }
    do: { delay: 100ms }
    expect: [{ class: success }]
";

#[test]
fn every_committed_scenario_resolves_without_wall_clock() {
    let mut count = 0;
    for file in std::fs::read_dir(root().join("scenarios")).unwrap() {
        let path = file.unwrap().path();
        // Known findings lie in a folder beside the scenarios.
        if !path.is_file() {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let resolved = of_text(&text, &Overrides::default());
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        assert_eq!(resolved.scenario.name, name, "the file is named after the scenario");
        assert!(!resolved.scenario.actions.iter().any(|a| matches!(a.after, Trigger::At(_))), "{name}");
        assert!(resolved.plan_exact);
        count += 1;
    }
    assert!(count > 0);
}

#[test]
fn the_specification_profile_is_read_with_its_numbers() {
    let profile = &profiles()["realistic"];
    assert_eq!((profile.ttft.min, profile.ttft.max), (Micros::from_ms(150), Micros::from_ms(350)));
    assert_eq!(
        (profile.token_interval.min, profile.token_interval.max),
        (Micros::from_ms(25), Micros::from_ms(25))
    );
    assert_eq!((profile.workers, profile.queue, profile.version), (8, 32, 1));
    assert_eq!(profile.failures[0].request_id_hash_fraction, Ppb::parse("0.02").unwrap());
    assert_eq!(profile.failures[0].http_status, 503);
}

#[test]
fn entries_become_instances_with_overrides_and_weights() {
    let resolved = of_text(SMALL, &Overrides::default());
    let seen: Vec<_> = resolved
        .nodes
        .iter()
        .map(|n| (n.name.as_str(), n.entry.as_str(), n.behaviour.workers, n.behaviour.queue, n.weight))
        .collect();
    assert_eq!(seen, [("a-0", "a", 32, 3, 2), ("a-1", "a", 32, 3, 7), ("b", "b", 5, 32, 1)]);
    assert_eq!((resolved.requests_max, resolved.scenario.workload.max_requests), (40, Some(40)));
    assert_eq!(resolved.scenario.devshard.slots, Some(2));
    let settings = serde_json::to_string(&resolved.scenario.devshard.settings).unwrap();
    assert_eq!(settings, r#"{"perf":{"sample_size":8},"redundancy":{"speed_policy":"legacy"}}"#);
    let last = resolved.scenario.faults.last().unwrap();
    assert_eq!((last.id.as_str(), last.place.node.as_deref()), ("realistic/0", Some("b")));
    assert_eq!(last.expect.len(), 1, "the pool entry's expect");
}

#[test]
fn lines_carry_rules_duplicates_and_cancel_points() {
    let resolved = of_text(SMALL, &Overrides::default());
    let lines: Vec<_> = scenario::plan::lines(&resolved).collect();
    assert_eq!(lines.len(), 40);
    // The repeated body carries the marker of line 3, so that nodes select it by that id.
    assert!(lines[3].rules.contains(&"by-id".to_owned()) && lines[7].rules.contains(&"by-id".to_owned()));
    assert_eq!(lines[7].duplicate_of, Some(3));
    let body = |index: usize| scenario::plan::body(&lines[index], "abcdefghijkl", "m");
    assert_eq!(body(7), body(3));
    let distinct: BTreeSet<Vec<u8>> = (0..40).map(body).collect();
    assert_eq!(distinct.len(), 39);
    let cancelled = lines.iter().filter(|line| line.cancel.is_some()).count();
    assert!((1..40).contains(&cancelled));
    for line in &lines {
        assert!(line.rules.iter().all(|rule| ["by-id", "votes", "realistic/0"].contains(&rule.as_str())));
        assert!(line.rules.contains(&"votes".to_owned()));
        let text = String::from_utf8(scenario::plan::body(line, "abcdefghijkl", "m")).unwrap();
        assert!(
            text.starts_with(r#"{"model":"m","messages":[{"role":"user","content":"[load-request:s-1-0000"#)
        );
        assert!(!text.contains("\"seed\""));
    }
}

#[test]
fn configs_have_every_rule_at_its_mock_and_none_without_rules() {
    let resolved = of_text(SMALL, &Overrides::default());
    let urls = resolved.nodes.iter().map(|n| (n.name.clone(), format!("http://{}", n.name))).collect();
    let openai = openai_config(&resolved, true);
    let rules: Vec<_> = openai.rules.iter().map(|rule| (rule.id.as_str(), rule.nodes.join("+"))).collect();
    assert_eq!(
        rules,
        [("by-id", "a-0+a-1".to_owned()), ("votes", "a-1".to_owned()), ("realistic/0", "b".to_owned())]
    );
    let dapi = dapi_config(&resolved, &urls, true);
    assert_eq!(dapi.hosts, ["host-0", "host-1"]);
    assert_eq!(dapi.nodes[2].base_url, "http://b");
    assert_eq!((dapi.rules.len(), dapi.rules[0].host.as_deref()), (1, Some("host-1")));
    assert!(matches!(&dapi.rules[0].select, Select::Calls(calls) if calls == &[2, 5]));
    assert_eq!(chain_rules(&resolved).len(), 1);
    let without = openai_config(&resolved, false);
    assert!(without.rules.is_empty() && without.nodes == openai.nodes);
    let without = dapi_config(&resolved, &urls, false);
    assert!(without.rules.is_empty() && without.nodes == dapi.nodes);
}

#[test]
fn concurrency_and_limits_change_no_plan_hash_and_a_seed_does() {
    let two = ml_5xx(&[(Setting::Concurrency, "2")]);
    let sixteen = ml_5xx(&[(Setting::Concurrency, "16"), (Setting::Timeout, "30s")]);
    let other = ml_5xx(&[(Setting::Seed, "43")]);
    assert_eq!(plan_hash(&two), plan_hash(&sixteen));
    assert_ne!(scenario_hash(&two), scenario_hash(&sixteen));
    assert_ne!(plan_hash(&two), plan_hash(&other));
    let hit = |resolved: &Resolved| -> Vec<u64> {
        scenario::plan::lines(resolved).filter(|line| !line.rules.is_empty()).map(|line| line.index).collect()
    };
    assert_eq!(hit(&two), hit(&sixteen));
    assert_ne!(hit(&two), hit(&other));
    assert!(hit(&two).len() > 80, "{}", hit(&two).len());
}

#[test]
fn rules_profiles_allocator_and_actions_change_the_plan_hash() {
    let base = of_text(SMALL, &Overrides::default());
    let action =
        "actions: [{ after: { requests: 3 }, do: { kill: host-1 }, expect: [{ class: success }] }]\n";
    for changed in [
        SMALL.replace("20ms", "21ms"),
        SMALL.replace("workers: 5", "workers: 6"),
        SMALL.replace("a-1: 7", "a-1: 8"),
        SMALL.replace("max_tokens: 8", "max_tokens: 9"),
        format!("{SMALL}{action}"),
    ] {
        assert_ne!(plan_hash(&of_text(&changed, &Overrides::default())), plan_hash(&base), "{changed}");
    }
    for same in [
        SMALL.replace("concurrency: 4, requests: 10", "concurrency: 9, requests: 10"),
        SMALL.replace(
            "[{ concurrency: 2, requests: 30 }, { concurrency: 4, requests: 10 }]",
            "[{ concurrency: 2, requests: 40 }]",
        ),
        format!("{SMALL}drain: {{ timeout: 20s }}\nthresholds: {{ error_rate: 0.1 }}\n"),
        SMALL.replace("participants: 2", "participants: 2, escrows: 3"),
    ] {
        assert_eq!(plan_hash(&of_text(&same, &Overrides::default())), plan_hash(&base), "{same}");
    }
}

#[test]
fn a_resolved_scenario_is_rebuilt_from_its_own_text() {
    let resolved = of_text(SMALL, &Overrides::default());
    let json: Resolved = serde_json::from_str(&serde_json::to_string(&resolved).unwrap()).unwrap();
    let yaml: Resolved = serde_yaml::from_str(&serde_yaml::to_string(&resolved).unwrap()).unwrap();
    assert_eq!((&json, &yaml), (&resolved, &resolved));
    assert_eq!(plan_hash(&yaml), plan_hash(&resolved));
    assert_eq!(scenario_hash(&yaml), scenario_hash(&resolved));
}

#[test]
fn threads_make_the_same_plan() {
    let resolved = ml_5xx(&[]);
    let expected = plan_hash(&resolved);
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..4).map(|_| scope.spawn(|| plan_hash(&resolved))).collect();
        assert!(all.into_iter().all(|thread| thread.join().unwrap() == expected));
    });
}

#[test]
fn the_table_of_limits_says_where_each_comes_from() {
    let file = parse(SMALL.as_bytes(), "s.yaml").unwrap();
    let mut overrides = flags(&[(Setting::Timeout, "9s")]);
    overrides.set_environment(|name| (name == "PROOFLOAD_DRAIN_TIMEOUT").then(|| "8s".to_owned())).unwrap();
    let resolved = resolve(&file, &profiles(), &overrides).unwrap();
    let table = limits(&file, &resolved, &overrides);
    let row = |name: &str| table.iter().find(|row| row.name == name).unwrap_or_else(|| panic!("{name}"));
    assert_eq!(
        (row("workload.timeout").value.as_str(), &row("workload.timeout").source),
        ("9s", &Source::Flag("--timeout"))
    );
    assert_eq!(row("drain.timeout").source.to_string(), "environment PROOFLOAD_DRAIN_TIMEOUT");
    assert_eq!(row("seed").source.to_string(), "file line 3");
    assert_eq!(row("drain.interval").source, Source::Default);
    assert_eq!(row("a-0.queue").source.to_string(), "file line 6");
    assert_eq!(row("thresholds.error_rate").value, "not judged");
}

#[test]
fn requests_are_only_overridden_where_one_step_counts_them() {
    assert_eq!(ml_5xx(&[(Setting::Requests, "25")]).requests_max, 25);
    let file = parse(SMALL.as_bytes(), "s.yaml").unwrap();
    let error = resolve(&file, &profiles(), &flags(&[(Setting::Requests, "25")])).unwrap_err();
    assert!(error.to_string().contains("flag --requests sets the number of requests"), "{error}");
}

proptest! {
    #[test]
    fn a_line_does_not_depend_on_what_was_asked_before(order in proptest::collection::vec(0_u64..40, 1..40)) {
        let resolved = of_text(SMALL, &Overrides::default());
        let all: Vec<_> = scenario::plan::lines(&resolved).collect();
        for index in order {
            prop_assert_eq!(&scenario::plan::line(&resolved, index), &all[usize::try_from(index).unwrap()]);
        }
    }

    #[test]
    fn any_fraction_reads_back(ppb in 0_u64..=1_000_000_000) {
        let fraction = Ppb::new(ppb).unwrap();
        prop_assert_eq!(Ppb::parse(&fraction.to_string()), Ok(fraction));
        let yaml: Ppb = serde_yaml::from_str(&fraction.to_string()).unwrap();
        prop_assert_eq!(yaml, fraction, "as a plain YAML number");
    }

    #[test]
    fn any_duration_reads_back(us in 0_u64..=31_536_000_000_000) {
        let time = Micros::from_us(us);
        prop_assert_eq!(Micros::parse(&time.to_string()), Ok(time));
    }

    #[test]
    fn a_larger_fraction_selects_a_superset(seed: u64, small in 0_u64..=1_000_000_000, more in 0_u64..=1_000_000_000) {
        let large = Ppb::new((small + more).min(1_000_000_000)).unwrap();
        let small = Ppb::new(small).unwrap();
        for index in 0..50 {
            let id = format!("s-{seed}-{index:06}");
            let by = |fraction| scenario::draw::selected(seed, "r", "fault", &id, fraction);
            prop_assert!(!by(small) || by(large));
        }
    }

    #[test]
    fn any_bytes_are_read_or_refused_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        if let Err(error) = parse(&bytes, "any.yaml") {
            prop_assert!(!error.problems.is_empty());
        }
    }

    #[test]
    fn any_changed_line_is_read_or_refused_with_its_place(line in 0_usize..38, text in "[ a-z0-9:{}\\[\\],&*'\"-]{0,30}") {
        let mut lines: Vec<&str> = SMALL.lines().collect();
        let at = line.min(lines.len() - 1);
        lines[at] = &text;
        let changed = lines.join("\n");
        let read = parse(changed.as_bytes(), "any.yaml")
            .and_then(|file| resolve(&file, &profiles(), &Overrides::default()));
        if let Err(error) = read {
            prop_assert!(error.problems.iter().all(|p| p.line >= 1 && p.line <= lines.len() as u64 + 1));
        }
    }
}

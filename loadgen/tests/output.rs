//! Every writer of a load run on runs in which everything, little or nothing happened; merging and comparing.

use std::collections::BTreeSet;

use evidence::exit::Outcome;
use evidence::record::ClientClass as C;
use loadgen::output::compare::{Change, CompareFlags, compare};
use loadgen::output::{
    csv, html, join, junit, merge, prometheus, read_summary, summary_json, text, write_all,
};
use loadgen::result::*;
use proptest::prelude::*;

/// One ended request of a test run.
#[derive(Clone, Copy, Debug)]
struct Request {
    stage: usize,
    scenario: usize,
    class: C,
    end_us: u64,
    latency_us: u64,
}

const SCENARIOS: [&str; 2] = ["chat", "quick-qa"];

fn record(figures: &mut Figures, request: Request) {
    let counts = &mut figures.counts;
    counts.planned += 1;
    *counts.classes.entry(request.class).or_default() += 1;
    if !matches!(request.class, C::Dropped | C::NotOffered) {
        counts.sent += 1;
        figures.distributions.record(Metric::Lateness, request.latency_us % 97);
    }
    if request.class == C::Ok {
        let tokens = &mut figures.counts.tokens;
        (tokens.with_usage, tokens.completion, tokens.prompt) =
            (tokens.with_usage + 1, tokens.completion + 32, tokens.prompt + 64);
        figures.distributions.record(Metric::Latency, request.latency_us);
        figures.distributions.record(Metric::Service, request.latency_us / 2);
        figures.distributions.record(Metric::Ttft, request.latency_us / 3);
    } else {
        figures.counts.detail(&format!("{}, \"quoted\"", request.class.word()));
        figures.distributions.record(Metric::Fail, request.latency_us);
    }
}

/// A run of closed stages of 8, 16, 32 … users, ten seconds each.
fn run_of(requests: &[Request], stages: usize, shard: &str) -> RunResult {
    let mut result = blank(shard);
    for index in 0..stages {
        let started_us = index as u64 * 10_000_000;
        let mut stage = StageResult {
            index,
            name: (index == 1).then(|| "second, with comma".to_owned()),
            load: StageLoad::Closed { from: 1, concurrency: 8 << index, ramp_us: 0 },
            started_us,
            ended_us: started_us + 10_000_000,
            steady_from_us: started_us,
            steady_until_us: started_us + 10_000_000,
            total: Figures { span_us: 10_000_000, ..Figures::default() },
            scenarios: SCENARIOS
                .map(|name| ScenarioFigures {
                    name: name.to_owned(),
                    figures: Figures { span_us: 10_000_000, ..Figures::default() },
                })
                .to_vec(),
            outside: Counts::default(),
            in_flight_max: 4,
            stopped: None,
            passed: None,
            health: Health::default(),
        };
        for request in requests.iter().filter(|request| request.stage == index) {
            record(&mut stage.total, *request);
            record(&mut stage.scenarios[request.scenario].figures, *request);
            let latency = (request.class == C::Ok).then_some(request.latency_us);
            result.over_time.ends.record(request.end_us, &request.class, latency);
            if let Some(us) = latency {
                result.over_time.ttft.record(request.end_us, &Mark::Seen, Some(us / 3));
            }
        }
        result.stages.push(stage);
    }
    for stage in &result.stages {
        result.total.merge_next_span(&stage.total);
        for (own, theirs) in result.scenarios.iter_mut().zip(&stage.scenarios) {
            own.figures.merge_next_span(&theirs.figures);
        }
    }
    result
}

fn blank(shard: &str) -> RunResult {
    RunResult {
        v: RESULT_VERSION,
        run: RunInfo {
            name: "=profile, \"quoted\" <b>".to_owned(),
            stamp: "20261130T084500Z".to_owned(),
            build: "0.1.0+test".to_owned(),
            seed: 42,
            plan_digest: "d1".to_owned(),
            targets: vec!["http 127.0.0.1:8000".to_owned()],
            shards: vec![shard.to_owned()],
            started_unix_us: 1_796_023_794_898_337,
            wall_us: 40_000_000,
            records_file: "results-20261130T084500Z.jsonl".to_owned(),
            ..RunInfo::default()
        },
        machine: Machine {
            cpu: "test".to_owned(),
            cores: 2,
            memory_bytes: 8_000_000_000,
            kernel: "k".to_owned(),
        },
        stages: Vec::new(),
        scenarios: SCENARIOS
            .map(|name| ScenarioFigures { name: name.to_owned(), figures: Figures::default() })
            .to_vec(),
        total: Figures::default(),
        over_time: OverTime::default(),
        wires: Wires::default(),
        health: Health { cpu_us: 4_000_000, wall_us: 40_000_000, threads: 1, ..Health::default() },
        thresholds: vec![threshold("latency p95", None, 90_000.0), threshold("error_rate", Some(0), 0.05)],
        search: None,
        verdict: Verdict { outcome: Outcome::Pass, reasons: Vec::new() },
    }
}

fn threshold(name: &str, stage: Option<usize>, limit: f64) -> ThresholdResult {
    ThresholdResult {
        name: name.to_owned(),
        stage,
        scenario: None,
        limit,
        at_least: false,
        found: None,
        unit: if name == "error_rate" { Unit::Share } else { Unit::Microseconds },
        n: 0,
        low_n: false,
        held: false,
    }
}

/// Three stages that get slower, with some errors in the last.
fn requests(number: u64) -> Vec<Request> {
    (0..number)
        .map(|k| {
            let stage = (k * 3 / number) as usize;
            Request {
                stage,
                scenario: (k % 3 == 0).into(),
                class: match (stage, k % 17) {
                    (2, 3) => C::HttpError,
                    (2, 5) => C::Truncated,
                    _ => C::Ok,
                },
                end_us: k * 30_000_000 / number,
                latency_us: 20_000 + (stage as u64 + 1).pow(3) * 3_000 + k * 7_919 % 30_000,
            }
        })
        .collect()
}

fn sample() -> RunResult {
    let mut result = run_of(&requests(3_000), 3, "0/1");
    result.search = Some(SearchResult {
        of: "concurrency".to_owned(),
        highest: Some(16),
        lowest_bad: Some(32),
        ending: "bracketed".to_owned(),
        runs: [(8, "passed"), (16, "passed"), (32, "failed")]
            .into_iter()
            .enumerate()
            .map(|(stage, (level, outcome))| SearchRun {
                level,
                purpose: "step".to_owned(),
                outcome: outcome.to_owned(),
                stage,
            })
            .collect(),
    });
    result
}

fn all() -> Vec<(&'static str, RunResult)> {
    let one = [Request { stage: 0, scenario: 0, class: C::Ok, end_us: 5, latency_us: 0 }];
    let failed: Vec<Request> =
        requests(60).into_iter().map(|request| Request { class: C::ConnectRefused, ..request }).collect();
    let mut interrupted = run_of(&requests(90)[..40], 2, "0/1");
    interrupted.run.partial = true;
    interrupted.verdict = Verdict { outcome: Outcome::Interrupted, reasons: vec!["SIGINT".to_owned()] };
    vec![
        ("sample", sample()),
        ("empty", blank("0/1")),
        ("one request", run_of(&one, 1, "0/1")),
        ("all failed", run_of(&failed, 3, "0/1")),
        ("interrupted", interrupted),
    ]
}

#[test]
fn no_writer_breaks_a_number_or_says_nothing() {
    for (name, result) in all() {
        for (kind, text) in [
            ("text", text(&result)),
            ("json", summary_json(&result)),
            ("csv", csv(&result)),
            ("html", html(&result)),
            ("prometheus", prometheus(&result)),
            ("junit", junit(&result)),
            ("join", join(&result)),
        ] {
            assert!(!text.is_empty(), "{name} {kind}");
            for bad in ["NaN", "inf ", "inf%", "Infinity", "-0 ", "undefined"] {
                assert!(!text.contains(bad), "{name} {kind}: {bad}");
            }
        }
    }
}

#[test]
fn files_are_written_and_the_summary_is_read_back() {
    for (name, result) in all() {
        let dir = tempfile::tempdir().unwrap();
        let paths = write_all(dir.path(), &result).unwrap();
        assert_eq!(paths.len(), 7);
        let files = std::fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(files, 7, "{name}: no half file is left");
        assert_eq!(read_summary(&paths[0]).unwrap(), result, "{name}");
        let newer = summary_json(&result).replacen("\"v\": 1", "\"v\": 9", 1);
        std::fs::write(&paths[0], newer).unwrap();
        assert!(read_summary(&paths[0]).unwrap_err().to_string().contains("format version 9"));
    }
}

#[test]
fn every_report_says_that_certificates_were_not_checked() {
    let mut result = sample();
    let writers = |result: &RunResult| {
        [text(result), html(result), junit(result), prometheus(result), csv(result), summary_json(result)]
    };
    let word = |text: &String| {
        text.contains("CERTIFICATES WERE NOT CHECKED")
            || text
                .contains("certificates_unchecked{profile=\"=profile, \\\"quoted\\\" <b>\",scenario=\"\"} 1")
            || text.contains(",true,")
            || text.contains("\"insecure\": true")
    };
    let silent: Vec<bool> = writers(&result).iter().map(word).collect();
    result.wires.insecure = true;
    let said: Vec<bool> = writers(&result).iter().map(word).collect();
    assert_eq!((silent, said), (vec![false; 6], vec![true; 6]));
    let both = compare(&[result.clone()], &[result], &flags()).unwrap();
    assert!(both.allowed[0].contains("CERTIFICATES WERE NOT CHECKED"), "{:?}", both.allowed);
}

#[test]
fn every_report_says_that_other_programs_had_the_core() {
    let mut result = sample();
    (result.health.wall_us, result.health.threads) = (10_000_000, 2);
    let said = |result: &RunResult| {
        let warned = [text(result), html(result), junit(result)].map(|text| text.contains("NO FREE CORE"));
        let rows = fields(&csv(result));
        let place = rows[0].iter().position(|head| head == "core_wait_us").unwrap();
        (warned, rows[1][place].clone(), prometheus(result).contains("loadgen_core_wait_seconds{"))
    };
    // What the kernel does not say, and what is too little to matter, is no warning.
    result.health.core_wait_us = None;
    assert_eq!(said(&result), ([false; 3], String::new(), false));
    result.health.core_wait_us = Some(1_000_000);
    assert_eq!(said(&result), ([false; 3], "1000000".to_owned(), true));
    result.health.core_wait_us = Some(3_000_000);
    assert_eq!(said(&result), ([true; 3], "3000000".to_owned(), true));
    assert!(text(&result).contains("(15"), "{}", text(&result));
    assert!(summary_json(&result).contains("\"core_wait_us\": 3000000"));
    let both = compare(&[result.clone()], &[result], &flags()).unwrap();
    assert!(both.allowed[0].contains("NO FREE CORE"), "{:?}", both.allowed);
}

/// Fields of RFC 4180, read by the rules of the RFC and not by those of the writer.
fn fields(text: &str) -> Vec<Vec<String>> {
    let (mut rows, mut row, mut field, mut quoted) = (Vec::new(), Vec::new(), String::new(), false);
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match (c, quoted) {
            ('"', true) if chars.peek() == Some(&'"') => {
                chars.next();
                field.push('"');
            }
            ('"', _) => quoted = !quoted,
            (',', false) => row.push(std::mem::take(&mut field)),
            ('\r', false) => {}
            ('\n', false) => {
                row.push(std::mem::take(&mut field));
                rows.push(std::mem::take(&mut row));
            }
            (c, _) => field.push(c),
        }
    }
    assert!(!quoted && field.is_empty(), "the last line is whole");
    rows
}

#[test]
fn csv_has_a_row_a_stage_and_every_column_once() {
    for (name, result) in all() {
        let rows = fields(&csv(&result));
        assert_eq!(rows.len(), 1 + result.stages.len(), "{name}");
        let heads: BTreeSet<&String> = rows[0].iter().collect();
        assert_eq!(heads.len(), rows[0].len(), "names are unique");
        assert!(rows.iter().all(|row| row.len() == rows[0].len()), "{name}");
    }
    let rows = fields(&csv(&sample()));
    let column = |wanted: &str| rows[0].iter().position(|head| head == wanted).unwrap();
    assert_eq!(rows[1][column("profile")], "'=profile, \"quoted\" <b>");
    assert_eq!(rows[2][column("stage_name")], "second, with comma");
    assert!(rows[3][column("latency_p95_us")].parse::<u64>().unwrap() > 100_000);
    assert_eq!(rows[1][column("tpot_p95_us")], "", "what was not measured is empty, not 0");
}

#[test]
fn prometheus_text_is_read_by_a_parser() {
    for (name, result) in all() {
        let text = prometheus(&result);
        let lines = text.lines().map(|line| Ok(line.to_owned()));
        let scrape = prometheus_parse::Scrape::parse(lines).unwrap();
        assert!(scrape.samples.len() > 3, "{name}");
        assert!(scrape.samples.iter().all(|sample| sample.metric.starts_with("loadgen_")));
        let lines = text.lines().filter(|line| line.starts_with("# TYPE"));
        let families: Vec<&str> = lines.map(|line| line.split(' ').nth(2).unwrap()).collect();
        let unique: BTreeSet<&str> = families.iter().copied().collect();
        assert_eq!(unique.len(), families.len(), "{name}: each family once");
    }
    assert!(prometheus(&sample()).contains("scenario=\"\",quantile=\"0.95\"} 0."));
}

#[test]
fn junit_is_never_greener_than_the_run() {
    use quick_junit::{Report, TestCaseStatus};
    for (name, result) in all() {
        let report = Report::deserialize_from_str(&junit(&result)).unwrap();
        let cases = &report.test_suites[0].test_cases;
        assert_eq!(cases.len(), 2 + result.thresholds.len(), "{name}");
        let good = |at: usize| matches!(cases[at].status, TestCaseStatus::Success { .. });
        assert_eq!(good(0), result.verdict.outcome == Outcome::Pass, "{name}");
        for (at, threshold) in result.thresholds.iter().enumerate() {
            assert_eq!(good(at + 2), threshold.held, "{name}");
        }
    }
}

#[test]
fn text_and_page_explain_what_they_show_and_nothing_else() {
    let result = sample();
    for shown in [text(&result), html(&result)] {
        assert!(shown.contains(Metric::Latency.definition().meaning.split(':').next().unwrap()));
        assert!(!shown.contains("TLS handshake"), "what has no value has no legend");
        assert!(shown.contains("highest stable") && shown.contains("broken") | shown.contains("BROKEN"));
    }
    let page = html(&result);
    for title in ["Knee", "Latency against load", "Errors", "Distribution of latency", "Over time"] {
        assert!(page.contains(title), "{title}");
    }
    assert!(page.contains("&lt;b&gt;") && !page.contains("quoted\" <b>") && !page.contains("http://"));
}

#[test]
fn the_join_template_finds_each_row_once() {
    let sql = join(&sample());
    let base = rusqlite::Connection::open_in_memory().unwrap();
    base.execute_batch(
        "CREATE TABLE client_line (line TEXT);
         CREATE TABLE server_row (request_id TEXT, status INT, duration_us INT, prompt_tokens INT, completion_tokens INT);
         INSERT INTO server_row VALUES ('r1', 200, 900, 64, 32), ('r9', 503, 10, 0, 0);",
    )
    .unwrap();
    for (id, class) in [("\"r1\"", "ok"), ("null", "connect-refused")] {
        let line = format!(
            "{{\"v\":1,\"conversation\":\"c\",\"turn\":0,\"scenario\":\"chat\",\"stage\":0,\"class\":\"{class}\",\
             \"response_request_id\":{id},\"latency_us\":1500,\"service_us\":1000,\"status\":200}}"
        );
        base.execute("INSERT INTO client_line VALUES (?1)", [line]).unwrap();
    }
    let mut statement = base.prepare(sql.trim().trim_end_matches(';')).unwrap();
    let rows: Vec<(String, Option<String>, Option<i64>)> = statement
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get("outside_us")?)))
        .unwrap()
        .map(Result::unwrap)
        .collect();
    let expected = [
        ("both".to_owned(), Some("r1".to_owned()), Some(100)),
        ("client only".to_owned(), None, None),
        ("server only".to_owned(), Some("r9".to_owned()), None),
    ];
    assert_eq!(rows, expected);
    assert!(sql.contains(".import results-20261130T084500Z.jsonl"));
}

fn flags() -> CompareFlags {
    CompareFlags {
        before: String::new(),
        after: String::new(),
        regress_pct: 10,
        allow_other_plan: false,
        allow_other_machine: false,
        allow_unfit: false,
        json: false,
    }
}

fn scaled(percent: u64, number: u64) -> RunResult {
    let slower = |request: Request| Request { latency_us: request.latency_us * percent / 100, ..request };
    run_of(&requests(number).into_iter().map(slower).collect::<Vec<_>>(), 3, "0/1")
}

#[test]
fn compare_tells_worse_from_same_and_better() {
    for (percent, expected) in
        [(100, Change::Same), (105, Change::Same), (130, Change::Regression), (60, Change::Better)]
    {
        let found = compare(&[scaled(100, 3_000)], &[scaled(percent, 3_000)], &flags()).unwrap();
        let row = found.rows.iter().find(|row| row.figure == "latency p95").unwrap();
        assert_eq!(row.change, expected, "{percent}");
        assert_eq!(found.regression, expected == Change::Regression, "{percent}");
    }
    // Four runs a side, of which one slow one is chance.
    let steady = [scaled(100, 3_000), scaled(101, 3_000), scaled(99, 3_000), scaled(100, 3_000)];
    let noisy = [scaled(100, 3_000), scaled(170, 3_000), scaled(98, 3_000), scaled(101, 3_000)];
    assert!(!compare(&steady, &noisy, &flags()).unwrap().regression);
}

#[test]
fn compare_sees_what_is_gone_and_more_errors() {
    let before = scaled(100, 3_000);
    let dead: Vec<Request> =
        requests(3_000).into_iter().map(|request| Request { class: C::ConnectRefused, ..request }).collect();
    let found = compare(std::slice::from_ref(&before), &[run_of(&dead, 3, "0/1")], &flags()).unwrap();
    for figure in ["ok_rps", "latency p95", "error_rate"] {
        let rows = found.rows.iter().filter(|row| row.figure == figure);
        assert!(
            rows.clone().count() == 3 && rows.clone().all(|row| row.change == Change::Regression),
            "{figure}"
        );
    }
    let shorter = run_of(&requests(3_000), 2, "0/1");
    assert!(compare(&[before], &[shorter], &flags()).unwrap().regression, "a stage that is missing");
}

/// An edit of a result.
type Edit = fn(&mut RunResult);

#[test]
fn compare_refuses_what_is_not_comparable_unless_told() {
    let before = [scaled(100, 300)];
    let change: [(&str, Edit); 4] = [
        ("--allow-other-plan", |run| run.run.plan_digest = "d2".to_owned()),
        ("--allow-other-machine", |run| run.machine.cores = 64),
        ("--allow-unfit", |run| run.run.partial = true),
        ("--allow-unfit", |run| run.verdict.outcome = Outcome::Invalid),
    ];
    for (flag, change) in change {
        let mut after = [scaled(100, 300)];
        change(&mut after[0]);
        assert!(compare(&before, &after, &flags()).unwrap_err().contains(flag), "{flag}");
        let told =
            CompareFlags { allow_other_plan: true, allow_other_machine: true, allow_unfit: true, ..flags() };
        assert_eq!(compare(&before, &after, &told).unwrap().allowed.len(), 1, "{flag}");
    }
}

#[test]
fn merge_refuses_what_are_no_shards_of_one_run() {
    let shard = |name: &str| run_of(&requests(30), 1, name);
    let mut other = shard("1/2");
    other.run.plan_digest = "d2".to_owned();
    for (shards, words) in [
        (vec![shard("0/2"), shard("0/2")], "twice"),
        (vec![shard("0/3"), shard("1/3")], "2 of 3"),
        (vec![shard("0/2"), shard("1/3")], "different numbers"),
        (vec![shard("0/2"), other], "different plans"),
        (vec![], "no shard"),
    ] {
        assert!(merge::merge(shards).unwrap_err().contains(words), "{words}");
    }
}

#[test]
fn merged_thresholds_are_held_against_the_whole() {
    let (fast, slow) = (scaled(50, 900), scaled(300, 900));
    let shards = [("0/2", fast), ("1/2", slow)].map(|(name, mut run)| {
        run.run.shards = vec![name.to_owned()];
        run.thresholds[0].held = true;
        run
    });
    let merged = merge::merge(shards.to_vec()).unwrap();
    assert!(!merged.thresholds[0].held && merged.thresholds[0].n > 900);
    assert_eq!(merged.verdict.outcome, Outcome::Fail);
}

#[test]
fn what_a_shard_found_is_told_as_its_own_in_a_merge() {
    let late = |name: &str, p99: &str| {
        let mut run = scaled(50, 900);
        run.run.shards = vec![name.to_owned()];
        let detail = format!("stage 1: lateness p99 {p99}");
        run.verdict = Verdict { outcome: Outcome::Invalid, reasons: vec![detail.clone()] };
        run.health.saturation = vec![Saturation { class: SaturationClass::GeneratorLateness, detail }];
        run
    };
    let merged = merge::merge(vec![late("0/2", "60 ms"), late("1/2", "70 ms")]).unwrap();
    let told = ["shard 0/2: stage 1: lateness p99 60 ms", "shard 1/2: stage 1: lateness p99 70 ms"];
    assert_eq!(merged.verdict.reasons, told);
    assert!(merged.health.saturation.iter().map(|found| found.detail.as_str()).eq(told));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn merged_shards_equal_one_run(
        drawn in prop::collection::vec((0_usize..2, 0_usize..2, 0_u8..4, 0_u64..40_000_000, 0_u64..9_000_000, 0_u64..4), 0..120),
        of in 2_u64..5,
    ) {
        let request = |&(stage, scenario, class, end_us, latency_us, _): &(usize, usize, u8, u64, u64, u64)| Request {
            stage,
            scenario,
            class: [C::Ok, C::HttpError, C::Cancelled, C::Dropped][usize::from(class)],
            end_us,
            latency_us,
        };
        let part = |shard: Option<u64>| -> Vec<Request> {
            drawn.iter().filter(|draw| shard.is_none_or(|shard| draw.5 % of == shard)).map(request).collect()
        };
        let whole = run_of(&part(None), 2, "0/1");
        let shards = (0..of).map(|shard| run_of(&part(Some(shard)), 2, &format!("{shard}/{of}"))).collect();
        let merged = merge::merge(shards).unwrap();
        prop_assert_eq!(&merged.total, &whole.total);
        prop_assert_eq!(&merged.scenarios, &whole.scenarios);
        prop_assert_eq!(&merged.over_time, &whole.over_time);
        for (merged, whole) in merged.stages.iter().zip(&whole.stages) {
            prop_assert_eq!(&merged.total, &whole.total);
            prop_assert_eq!(&merged.scenarios, &whole.scenarios);
        }
        // Everything else too, but for what says that there were shards, and sums of the generator itself.
        let mut as_one = merged;
        as_one.run.shards.clone_from(&whole.run.shards);
        as_one.run.records_dropped = whole.run.records_dropped;
        as_one.health.clone_from(&whole.health);
        for (own, theirs) in as_one.stages.iter_mut().zip(&whole.stages) {
            own.health.clone_from(&theirs.health);
            own.load.clone_from(&theirs.load);
            own.in_flight_max = theirs.in_flight_max;
        }
        // Thresholds and verdict are judged anew in a merge, of one run too.
        prop_assert_eq!(as_one, merge::merge(vec![whole]).unwrap());
    }
}

/// Writes the files of the sample where they can be looked at: `LOADGEN_SAMPLE_DIR=… cargo test … --ignored`.
#[test]
#[ignore = "writes files for people to look at"]
fn sample_files_for_the_eye() {
    let dir = std::env::var("LOADGEN_SAMPLE_DIR").unwrap();
    write_all(std::path::Path::new(&dir), &sample()).unwrap();
}

/// `docs/reports.md` ends with the table of the program. `PROOFLOAD_REGENERATE=1` writes it anew.
#[test]
fn the_page_holds_the_table_of_metrics() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reports.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let heading = "a test holds it equal.\n\n";
    let (words, table) = page.split_once(heading).unwrap();
    let made = loadgen::output::legend::markdown();
    if std::env::var_os("PROOFLOAD_REGENERATE").is_some() {
        std::fs::write(&path, format!("{words}{heading}{made}")).unwrap();
    } else {
        assert_eq!(table, made, "write it anew with PROOFLOAD_REGENERATE=1");
    }
}

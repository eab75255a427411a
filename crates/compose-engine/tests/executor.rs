//! Plans and their execution on the fake engine: order, conditions, failures, deadlines.

mod support;

use std::time::Duration;

use compose_engine::engine::fake::{Behaviour, Fake, Strike};
use compose_engine::engine::{About, Engine};
use compose_engine::error::{ComposeError, EngineError};
use compose_engine::exec::Up;
use compose_engine::model::{Condition, Loader, Source};
use compose_engine::observed::Observed;
use compose_engine::plan::{Op, plan};
use compose_engine::preflight::left_out;
use compose_engine::target::Target;
use support::{Bench, STACK, target, up};

fn service_error(error: ComposeError) -> (String, String, Vec<String>) {
    match error {
        ComposeError::Service { service, reason, log } => (service, reason, log),
        other => panic!("{other}"),
    }
}

#[test]
fn the_plan_is_printed_hashed_and_the_same_for_every_run() {
    let lines = |run: &str| plan(&target(STACK, run), &Observed::default(), None).unwrap();
    let first = lines("run1");
    assert_eq!(first.hash(), lines("run2").hash());
    let text = first.lines().join("\n");
    for part in
        ["image img", "create network back", "create volume data", "await db service_healthy", "start web"]
    {
        assert!(text.contains(part), "{text}");
    }
    // Every step comes after what it depends on.
    for (index, step) in first.steps.iter().enumerate() {
        assert!(step.after.iter().all(|before| *before < index), "{text}");
    }
    let other = STACK.replace("ports: ['80']", "ports: ['81']");
    assert_ne!(first.hash(), plan(&target(&other, "run1"), &Observed::default(), None).unwrap().hash());
}

#[test]
fn a_container_name_that_is_no_dns_label_is_refused() {
    let name = "a".repeat(60);
    let source =
        Source { path: "/p/s.yml".into(), text: format!("services: {{ {name}: {{ image: img }} }}") };
    let project = Loader { sources: vec![source], ..Loader::default() }.load().unwrap();
    let error = Target::new(&project, "ds-test-run1", support::mark("run1"), None).unwrap_err().to_string();
    assert!(error.contains("longer than 63"), "{error}");
}

#[test]
fn what_an_older_engine_does_not_know_is_said() {
    let text = "services: { web: { image: img, healthcheck: { test: [CMD, /a], start_period: 9s, start_interval: 1s } } }";
    let about = |api: &str| About { api: api.to_owned(), ..About::default() };
    let told = left_out(&about("1.41"), &target(text, "r"));
    assert!(told.len() == 1 && told[0].contains("1.44") && told[0].contains("1.41"), "{told:?}");
    assert!(left_out(&about("1.44"), &target(text, "r")).is_empty());
    assert!(left_out(&about("1.41"), &target(STACK, "r")).is_empty());
}

#[test]
fn report_4_conditions_bind_start_and_never_create() {
    let plan = plan(&target(STACK, "r"), &Observed::default(), None).unwrap();
    for step in &plan.steps {
        if matches!(step.op, Op::Create { .. }) {
            let waits = step.after.iter().any(|before| matches!(plan.steps[*before].op, Op::Await { .. }));
            assert!(!waits, "{:?}", step.op);
        }
    }
}

#[tokio::test]
async fn services_start_in_the_order_of_their_conditions() {
    let bench = Bench::new(STACK);
    let up = up(&bench).await.unwrap();
    assert_eq!(up.containers.len(), 4);
    let started: Vec<String> = bench.ledger.done("start");
    let place = |service: &str| {
        started.iter().position(|name| *name == bench.target.container_name(service)).expect(service)
    };
    assert!(place("db") < place("init") && place("init") < place("app") && place("app") < place("web"));
    assert!(!up.seen.contains_key("nothing"));
    assert_eq!(up.subnets.len(), 2);
}

#[tokio::test]
async fn a_second_plan_of_the_same_run_has_nothing_to_make() {
    let bench = Bench::new(STACK);
    let first = up(&bench).await.unwrap();
    let observed = Observed::look(&bench.fake, &bench.target.project).await.unwrap();
    let again = plan(&bench.target, &observed, Some(&["app".to_owned()])).unwrap();
    let makes = again.steps.iter().any(|step| matches!(step.op, Op::Create { .. } | Op::Network { .. }));
    assert!(!makes, "{:?}", again.lines());
    bench.executor().run(&again, first).await.unwrap();
}

#[tokio::test]
async fn report_2_a_dependency_that_dies_before_its_first_check_ends_the_wait_with_its_log() {
    let bench = Bench::new(STACK);
    let dies = Behaviour { ends: Some((1, 3)), healthy_after: Some(9), ..Behaviour::default() };
    bench.fake.behave("db", dies);
    let (service, reason, log) = service_error(up(&bench).await.unwrap_err());
    assert_eq!(service, "db");
    assert!(reason.contains("code 3"), "{reason}");
    assert!(log[0].contains("last words"), "{log:?}");
}

#[tokio::test]
async fn report_3_a_failure_goes_through_the_graph_and_nothing_behind_it_starts() {
    let bench = Bench::new(STACK);
    bench.fake.behave("init", Behaviour { ends: Some((1, 7)), ..Behaviour::default() });
    let (service, reason, _) = service_error(up(&bench).await.unwrap_err());
    assert_eq!((service.as_str(), reason.contains("ended with 7")), ("init", true));
    let started = bench.ledger.done("start");
    assert!(!started.contains(&bench.target.container_name("app")), "{started:?}");
}

#[tokio::test]
async fn report_3_a_wait_that_never_ends_meets_its_deadline() {
    let mut bench = Bench::new(STACK);
    bench.limits.wait = Duration::from_millis(200);
    bench.fake.behave("db", Behaviour { healthy_after: Some(u32::MAX), ..Behaviour::default() });
    let (service, reason, _) = service_error(up(&bench).await.unwrap_err());
    assert_eq!(service, "db");
    assert!(reason.contains("not ready within 0.2 s: its health is starting"), "{reason}");
}

#[tokio::test]
async fn an_unhealthy_service_ends_the_wait_at_once() {
    let bench = Bench::new(STACK);
    let sick = Behaviour { healthy_after: Some(5), unhealthy_after: Some(2), ..Behaviour::default() };
    bench.fake.behave("db", sick);
    let begun = tokio::time::Instant::now();
    let (_, reason, _) = service_error(up(&bench).await.unwrap_err());
    assert!(reason.contains("unhealthy"), "{reason}");
    assert!(begun.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn report_5_ready_needs_an_unchanged_start_for_k_samples() {
    let bench = Bench::new("services: { web: { image: img, restart: always } }");
    bench.fake.behave("web", Behaviour { restarts: 4, ..Behaviour::default() });
    let up = up(&bench).await.unwrap();
    // Four looks saw another start each; three equal ones had to follow.
    assert_eq!(up.seen["web"].restart_count, 4);
    assert!(bench.fake.call_names().iter().filter(|name| *name == "inspect").count() >= 6);
}

#[tokio::test]
async fn a_dependency_that_nobody_requires_only_warns() {
    let text = STACK
        .replace("service_completed_successfully }", "service_completed_successfully, required: false }");
    let bench = Bench::new(&text);
    bench.fake.behave("init", Behaviour { ends: Some((1, 7)), ..Behaviour::default() });
    let up = up(&bench).await.unwrap();
    assert!(up.warnings[0].contains("ended with 7"), "{:?}", up.warnings);
}

#[tokio::test]
async fn report_10_a_refused_subnet_is_given_back_and_the_next_is_tried() {
    let bench = Bench::new("services: { web: { image: img } }");
    let probe = Bench::new("services: { web: { image: img } }");
    let first = up(&probe).await.unwrap().subnets["default"].to_string();
    bench.fake.refuse_subnets(&[first.as_str()]);
    let got = up(&bench).await.unwrap().subnets["default"].to_string();
    assert_ne!(got, first);
    assert_eq!(bench.leases.all().len(), 1);
}

#[tokio::test]
async fn report_9_exhausted_pools_are_named_as_such() {
    let bench = Bench::new("services: { web: { image: img } }");
    let calls = 8;
    for call in 1..=calls {
        let what = "create network n".to_owned();
        bench.fake.strike(call, Strike::Fail(EngineError::PoolsExhausted { what, reason: "none".into() }));
    }
    assert!(up(&bench).await.unwrap_err().to_string().contains("runner gc"));
}

#[tokio::test]
async fn report_22_the_first_error_is_the_one_that_is_told() {
    let text = "services: { a: { image: img }, b: { image: gone, pull_policy: never }, c: { image: img } }";
    let bench = Bench::new(text);
    let error = up(&bench).await.unwrap_err().to_string();
    assert!(error.contains("the image gone is not there") && error.contains("pull policy"), "{error}");
}

#[tokio::test]
async fn report_25_an_image_volume_becomes_memory_unless_something_is_mounted_there() {
    let bench = Bench::new("services: { web: { image: img, volumes: ['data:/a'] } }\nvolumes: { data: {} }");
    bench.fake.image_volumes("img", &["/a", "/b"]);
    up(&bench).await.unwrap();
    let made = bench.fake.created(&bench.target.container_name("web")).unwrap();
    assert_eq!(made.extra_tmpfs, ["/b"]);
}

#[tokio::test]
async fn static_addresses_move_with_the_lease() {
    let text = "services: { web: { image: img, networks: { n: { ipv4_address: 10.9.0.7 } } } }\n\
                networks: { n: { ipam: { config: [ { subnet: 10.9.0.0/24 } ] } } }";
    let bench = Bench::new(text);
    let up = up(&bench).await.unwrap();
    let made = bench.fake.created(&bench.target.container_name("web")).unwrap();
    let address = u32::from(made.endpoints[0].ipv4.unwrap());
    assert_eq!(address - up.subnets["n"].base, 7);
    assert_ne!(up.subnets["n"].to_string(), "10.9.0.0/24");
}

#[tokio::test]
async fn report_33_a_missing_bind_source_is_an_error_before_anything_is_made() {
    use compose_engine::model::{Loader, Source};
    use compose_engine::target::Target;
    let text = "services: { web: { image: img, volumes: ['./not-there:/d'] } }".to_owned();
    let loader = Loader { sources: vec![Source { path: "/p/f.yml".into(), text }], ..Loader::default() };
    let project = loader.load().unwrap();
    let error = Target::new(&project, "p", support::mark("r"), None).unwrap_err().to_string();
    assert!(error.contains("not-there is not there"), "{error}");
}

#[test]
fn conditions_keep_their_words() {
    for condition in
        [Condition::ServiceStarted, Condition::ServiceHealthy, Condition::ServiceCompletedSuccessfully]
    {
        let json = serde_json::to_string(&condition).unwrap();
        assert_eq!(json.trim_matches('"'), condition.text());
    }
    assert_eq!(Fake::default().calls(), 0);
    assert!(Up::default().containers.is_empty());
}

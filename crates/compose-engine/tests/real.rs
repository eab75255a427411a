//! A real engine: bring up, look, act, take down, leave nothing. Skipped with a loud line where no engine can run.

mod bench;

use std::collections::BTreeMap;
use std::time::Duration;

use bench::{Real, stack};
use compose_engine::down::{Ending, down};
use compose_engine::engine::{Act, Engine, LogAsk};
use compose_engine::error::{ComposeError, EngineError};
use compose_engine::gc;
use compose_engine::labels;
use compose_engine::logs::Lines;
use compose_engine::ready::{NetProber, Probe, Prober};
use futures_util::StreamExt;
use tokio::io::AsyncWriteExt;

#[tokio::test]
async fn a_project_comes_up_is_what_compose_expects_and_leaves_nothing() {
    let Some(real) = Real::new("whole").await else { return };
    let before = real.inventory().await;
    let up = real.up(&stack(&real.image)).await.unwrap();
    let app = real.engine.inspect(&up.containers["app"]).await.unwrap();
    // Report 17: one explicit address; report 16: the engine chose the port and it is read back.
    let bound = app.ports[&80];
    assert!(bound.ip().is_loopback() && bound.port() > 0, "{bound}");
    let prober = NetProber { limit: Duration::from_secs(2) };
    prober.probe(&app, &Probe::Http { port: 80, path: "/".into() }).await.unwrap();
    // Labels that `docker compose -p` lives from, on every kind of object.
    for key in
        [labels::PROJECT, labels::SERVICE, labels::CONFIG_HASH, labels::NUMBER, labels::RUN, labels::OWNER]
    {
        assert!(app.labels.contains_key(key), "{key}");
    }
    assert_eq!(app.labels[labels::ONEOFF], "False");
    assert_eq!(app.labels["com.docker.compose.depends_on"], "init:service_completed_successfully:false");
    let own = format!("{}={}", labels::RUN, real.run_id());
    let networks = real.engine.networks(Some(&own)).await.unwrap();
    assert_eq!(networks[0].labels[labels::NETWORK], "default");
    assert!(networks[0].subnets[0].starts_with("10.213."), "{:?}", networks[0].subnets);
    let volumes = real.engine.volumes(Some(&own)).await.unwrap();
    assert_eq!(volumes[0].labels[labels::VOLUME], "data");
    // Static address by its offset; the image's VOLUME is memory.
    assert_eq!(app.addresses.values().next().unwrap().octets()[3], 77);
    assert!(app.volumes.is_empty(), "{:?}", app.volumes);
    let removed = real.down().await;
    assert_eq!(removed.containers.len(), 3, "{removed:?}");
    assert_eq!(real.inventory().await, before);
    assert!(real.leases.all().is_empty());
}

#[tokio::test]
async fn report_31_logs_are_whole_and_long_lines_are_joined() {
    let Some(real) = Real::new("logs").await else { return };
    let text = format!("services: {{ web: {{ image: {}, command: [/tiny, long] }} }}", real.image);
    // It ends by itself: as a one-shot it is not awaited ready.
    let mut target = real.target(&text);
    target.one_shots.insert("web".into());
    let up = real.up_target(&target).await.unwrap();
    let id = &up.containers["web"];
    let ended = real.ended(id).await;
    assert_eq!(ended.exit_code, 0);
    let mut lines = Lines::stamped();
    let mut all = Vec::new();
    let mut pieces = real.engine.logs(id, LogAsk { follow: true, ..LogAsk::default() });
    while let Some(piece) = pieces.next().await {
        all.extend(lines.take(&piece.unwrap()));
    }
    assert_eq!(all.len(), 2, "{}", all.len());
    assert_eq!(all[0].text.len(), 40_003);
    assert!(all[0].stamp.as_deref().unwrap().starts_with("20"));
    assert_eq!(all[1].text, "second");
    real.down().await;
}

#[tokio::test]
async fn failures_are_told_with_the_log_of_the_service_that_failed() {
    let Some(real) = Real::new("fails").await else { return };
    let text = stack(&real.image).replace("[/tiny, exit, '0']", "[/tiny, exit, '7']");
    let error = real.up(&text).await.unwrap_err();
    match &error {
        ComposeError::Service { service, reason, log } => {
            assert_eq!(service, "init");
            assert!(reason.contains("ended with 7"), "{reason}");
            assert!(log.iter().any(|line| line.contains("ending with 7")), "{log:?}");
        }
        other => panic!("{other}"),
    }
    real.down().await;
    // Report 33: a program that is not in the image is told in the engine's words.
    let missing = format!("services: {{ web: {{ image: {}, command: [/not-there] }} }}", real.image);
    let error = real.up(&missing).await.unwrap_err().to_string();
    assert!(error.contains("not-there"), "{error}");
    real.down().await;
}

#[tokio::test]
async fn service_actions_do_what_they_say_and_a_static_address_survives_a_restart() {
    let Some(real) = Real::new("acts").await else { return };
    let up = real.up(&stack(&real.image)).await.unwrap();
    let id = &up.containers["app"];
    let first = real.engine.inspect(id).await.unwrap();
    real.engine.act(id, Act::Pause).await.unwrap();
    assert!(real.engine.inspect(id).await.unwrap().paused);
    real.engine.act(id, Act::Unpause).await.unwrap();
    real.engine.act(id, Act::Kill).await.unwrap();
    let dead = real.ended(id).await;
    assert_eq!(dead.exit_code, 137);
    real.engine.act(id, Act::Start).await.unwrap();
    // In that state already: no error.
    real.engine.act(id, Act::Start).await.unwrap();
    let again = real.engine.inspect(id).await.unwrap();
    assert_ne!(first.started_at, again.started_at);
    assert_eq!(first.addresses, again.addresses);
    real.engine.act(id, Act::Restart(Some(Duration::from_secs(1)))).await.unwrap();
    let network = real.engine.network(&real.network("default")).await.unwrap();
    assert!(network.endpoints.iter().any(|(_, name)| name.contains("-app-1")));
    real.engine.disconnect(&network.id, id).await.unwrap();
    assert!(real.engine.inspect(id).await.unwrap().addresses.is_empty());
    real.down().await;
}

#[tokio::test]
async fn standard_input_and_archives_work() {
    let Some(real) = Real::new("stdin").await else { return };
    let text =
        format!("services: {{ web: {{ image: {}, command: [/tiny, echo], stdin_open: true }} }}", real.image);
    let up = real.up(&text).await.unwrap();
    let id = &up.containers["web"];
    let mut attached = real.engine.attach(id).await.unwrap();
    attached.input.write_all(b"go 0\nend\n").await.unwrap();
    attached.input.flush().await.unwrap();
    let mut lines = Lines::default();
    let mut all = Vec::new();
    while let Some(piece) = attached.output.next().await {
        all.extend(lines.take(&piece.unwrap()).into_iter().map(|line| line.text));
    }
    assert_eq!(all, ["ready", "got go 0", "got end"]);
    let tar = compose_engine::images::archive(&[("in.txt", 0o644, b"hello")]).unwrap();
    real.engine.upload(id, "/", tar).await.unwrap();
    let back = real.engine.download(id, "/in.txt").await.unwrap();
    assert_eq!(compose_engine::images::unpack(&back).unwrap()["in.txt"], b"hello");
    real.down().await;
}

#[tokio::test]
async fn two_in_parallel_and_three_cycles_leave_nothing() {
    let Some(first) = Real::new("par-a").await else { return };
    let Some(second) = Real::new("par-b").await else { return };
    let before = first.inventory().await;
    let text = stack(&first.image);
    for _ in 0..3 {
        let (a, b) = tokio::join!(first.up(&text), second.up(&text));
        let (a, b) = (a.unwrap(), b.unwrap());
        assert_ne!(a.subnets["default"], b.subnets["default"]);
        let (a, b) = tokio::join!(first.down(), second.down());
        assert!(a.left.is_empty() && b.left.is_empty());
    }
    assert_eq!(first.inventory().await, before);
}

#[tokio::test]
async fn killed_at_three_points_then_gc_leaves_nothing_and_touches_nothing_foreign() {
    let Some(keeper) = Real::new("keeper").await else { return };
    let sibling = keeper.up(&stack(&keeper.image)).await.unwrap();
    let before = keeper.inventory().await;
    for deeds in [2, 5, 9] {
        let Some(real) = Real::new(&format!("kill-{deeds}")).await else { return };
        let text = stack(&real.image);
        // Dropped as soon as the ledger has so many lines: what a kill of the process does to its calls.
        tokio::select! {
            result = real.up(&text) => panic!("the run ended before the kill: {result:?}"),
            () = async { while real.ledger.entries().len() < deeds { tokio::task::yield_now().await; } } => {}
        }
        let removed = gc::remove(&real.engine, &real.run_id()).await.unwrap();
        assert!(removed.left.is_empty(), "{removed:?}");
        // A call that was under way may arrive after the sweep: the next sweep finds it.
        tokio::time::sleep(Duration::from_millis(300)).await;
        gc::remove(&real.engine, &real.run_id()).await.unwrap();
        assert_eq!(keeper.inventory().await, before, "after {deeds} ledger lines");
        real.leases.give_all(&real.project());
    }
    assert!(keeper.engine.inspect(&sibling.containers["app"]).await.unwrap().up());
    keeper.down().await;
}

#[tokio::test]
async fn a_taken_subnet_is_told_apart_and_the_next_lease_is_tried() {
    let Some(real) = Real::new("subnet").await else { return };
    let up = real
        .up(&format!("services: {{ web: {{ image: {}, command: [/tiny] }} }}", real.image))
        .await
        .unwrap();
    let net = up.subnets["default"];
    let create = compose_engine::spec::NetworkCreate {
        name: format!("{}-other", real.project()),
        labels: BTreeMap::new(),
        internal: false,
        options: BTreeMap::new(),
        subnet: net.base.into(),
        prefix: net.prefix,
        gateway: (net.base + 1).into(),
        dynamic: None,
    };
    let error = real.engine.create_network(&create).await.unwrap_err();
    assert!(matches!(error, EngineError::SubnetTaken { .. }), "{error:?}");
    real.down().await;
    // Repeating a teardown is no error.
    let ending = Ending::Forced;
    let again = down(&real.engine, &real.run_id(), ending, &real.ledger).await.unwrap();
    assert!(again.is_empty(), "{again:?}");
}

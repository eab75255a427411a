//! (prove) Paired speed: the same file with docker-compose and with this engine, in turns, ended by the same probe.

mod bench;

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use bench::{Real, stack};
use compose_engine::engine::Engine;
use compose_engine::ready::{NetProber, Probe, Prober};

/// Pairs of which the medians are compared.
const PAIRS: usize = 5;

fn compose(real: &Real, args: &[&str]) {
    let file = real.folder.path().join("stack.yml");
    let status = Command::new("docker-compose")
        .arg("-f")
        .arg(file)
        .args(["-p", "proofload-pair"])
        .args(args)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .expect("docker-compose is installed");
    assert!(status.success(), "docker-compose {args:?}");
}

fn median(mut all: Vec<Duration>) -> Duration {
    all.sort();
    all[all.len() / 2]
}

#[tokio::test]
#[ignore = "prove: needs docker-compose and a quiet machine"]
async fn up_and_down_take_at_most_four_fifths_of_docker_compose() {
    let Some(real) = Real::new("speed").await else { return };
    let text = stack(&real.image);
    std::fs::write(real.folder.path().join("stack.yml"), &text).expect("writing the file");
    let (mut ups, mut downs, mut their_ups, mut their_downs) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut calls = 0;
    for _ in 0..PAIRS {
        let begun = Instant::now();
        compose(&real, &["up", "-d"]);
        let app = real.engine.inspect("proofload-pair_app_1").await.expect("its container");
        let prober = NetProber { limit: Duration::from_secs(1) };
        while prober.probe(&app, &Probe::Http { port: 80, path: "/".into() }).await.is_err() {}
        their_ups.push(begun.elapsed());
        let begun = Instant::now();
        compose(&real, &["down", "-v", "-t", "1"]);
        their_downs.push(begun.elapsed());

        let before = real.engine.calls();
        let begun = Instant::now();
        real.up(&text).await.expect("it comes up");
        ups.push(begun.elapsed());
        let begun = Instant::now();
        real.down().await;
        downs.push(begun.elapsed());
        calls = real.engine.calls() - before;
    }
    let (up, their_up, down, their_down) =
        (median(ups), median(their_ups), median(downs), median(their_downs));
    let ratio = |own: Duration, theirs: Duration| own.as_secs_f64() / theirs.as_secs_f64();
    println!("up {up:?} against {their_up:?}: {:.2}", ratio(up, their_up));
    println!("down {down:?} against {their_down:?}: {:.2}", ratio(down, their_down));
    println!("engine calls for up and down: {calls}");
    assert!(ratio(up, their_up) <= 0.8 && ratio(down, their_down) <= 0.8);
}

//! A small project on the fake engine.

#![allow(dead_code, clippy::unwrap_used, reason = "each test file uses its own part of this module")]

use std::path::PathBuf;
use std::time::Duration;

use compose_engine::engine::fake::{Behaviour, Fake, YesProber};
use compose_engine::error::ComposeError;
use compose_engine::exec::{Executor, Limits, Up};
use compose_engine::labels::{Owner, RunMark};
use compose_engine::ledger::Ledger;
use compose_engine::model::{Loader, Source};
use compose_engine::observed::Observed;
use compose_engine::plan::plan;
use compose_engine::ready::Probe;
use compose_engine::subnet::Leases;
use compose_engine::target::Target;

/// Every kind of object and every condition.
pub const STACK: &str = "
services:
  db:
    image: img
    volumes: ['data:/data']
    healthcheck: { test: [CMD, /app, check], interval: 1s }
  init:
    image: img
    depends_on: { db: { condition: service_healthy } }
  app:
    image: img
    depends_on: { init: { condition: service_completed_successfully } }
    networks: [default, back]
    ports: ['80']
  web:
    image: img
    depends_on: [app]
volumes: { data: {} }
networks: { back: { internal: true } }
";

/// Everything that a run on the fake needs.
pub struct Bench {
    pub fake: Fake,
    pub target: Target,
    pub ledger: Ledger,
    pub leases: Leases,
    pub limits: Limits,
    pub folder: tempfile::TempDir,
}

pub fn mark(run_id: &str) -> RunMark {
    let owner = Owner { host: "here".into(), boot: "b".into(), pid: 1, start_ticks: 1 };
    RunMark {
        run_id: run_id.to_owned(),
        scenario_hash: "h".into(),
        owner,
        created_unix_s: 1,
        expires_unix_s: 2,
        kept: false,
    }
}

pub fn target(text: &str, run_id: &str) -> Target {
    let source = Source { path: PathBuf::from("/p/stack.yml"), text: text.to_owned() };
    let loader = Loader { sources: vec![source], ..Loader::default() };
    let project = loader.load().unwrap();
    Target::new(&project, &format!("ds-test-{run_id}"), mark(run_id), None).unwrap()
}

impl Bench {
    pub fn new(text: &str) -> Self {
        Self::of_run(text, "run1")
    }

    pub fn of_run(text: &str, run_id: &str) -> Self {
        let fake = Fake::with_images(&["img"]);
        fake.behave("db", Behaviour { healthy_after: Some(2), ..Behaviour::default() });
        fake.behave("init", Behaviour { ends: Some((2, 0)), ..Behaviour::default() });
        let folder = tempfile::tempdir().unwrap();
        let mut target = target(text, run_id);
        if target.containers.contains_key("app") {
            target.probes.insert("app".into(), Probe::Tcp { port: 80 });
        }
        let leases = Leases::new(&folder.path().join("subnets"));
        let limits =
            Limits { wait: Duration::from_secs(30), spacing: Duration::from_millis(1), ..Limits::default() };
        Self { fake, target, ledger: Ledger::default(), leases, limits, folder }
    }

    pub fn executor(&self) -> Executor<'_, Fake, YesProber> {
        Executor {
            engine: &self.fake,
            prober: &YesProber,
            target: &self.target,
            ledger: &self.ledger,
            leases: &self.leases,
            routes: &[],
            limits: self.limits,
        }
    }
}

/// Looks, plans, runs.
pub async fn up(bench: &Bench) -> Result<Up, ComposeError> {
    let observed = Observed::look(&bench.fake, &bench.target.project).await?;
    let plan = plan(&bench.target, &observed, None)?;
    bench.executor().run(&plan, Up::default()).await
}

//! A real engine with a tiny static image.

#![allow(dead_code, clippy::unwrap_used, reason = "each test file uses its own part of this module")]

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use compose_engine::clock;
use compose_engine::down::{Ending, Removed, down};
use compose_engine::engine::docker::Docker;
use compose_engine::engine::place::Surroundings;
use compose_engine::engine::{ContainerSeen, Engine};
use compose_engine::error::ComposeError;
use compose_engine::exec::{Executor, Limits, Up};
use compose_engine::images;
use compose_engine::labels::{self, Owner, RunMark};
use compose_engine::ledger::Ledger;
use compose_engine::model::{Build, Loader, PullPolicy, Source};
use compose_engine::observed::Observed;
use compose_engine::plan::plan;
use compose_engine::ready::{NetProber, Probe};
use compose_engine::subnet::{Leases, Net, routes};
use compose_engine::target::{ImageSource, Target, run_project};
use tokio::sync::OnceCell;

static IMAGE: OnceCell<String> = OnceCell::const_new();

/// One project on the real engine.
pub struct Real {
    pub engine: Docker,
    pub image: String,
    pub ledger: Ledger,
    pub leases: Leases,
    pub folder: tempfile::TempDir,
    name: String,
    six: String,
}

/// A file with health check, one-shot, probe, volume, bind, port and static address.
pub fn stack(image: &str) -> String {
    format!(
        "services:
  db:
    image: {image}
    command: [/tiny, serve, '81']
    init: true
    volumes: ['data:/data']
    healthcheck: {{ test: [CMD, /tiny, check, '127.0.0.1:81'], interval: 300ms, timeout: 2s, retries: 5 }}
  init:
    image: {image}
    command: [/tiny, exit, '0']
    depends_on: {{ db: {{ condition: service_healthy }} }}
  app:
    image: {image}
    command: [/tiny, serve, '80']
    init: true
    depends_on: {{ init: {{ condition: service_completed_successfully }} }}
    ports: ['8080:80']
    networks: {{ default: {{ ipv4_address: 10.9.0.77 }} }}
volumes: {{ data: {{}} }}
networks: {{ default: {{ ipam: {{ config: [ {{ subnet: 10.9.0.0/24 }} ] }} }} }}
"
    )
}

/// Compiles the tiny program statically and builds its image, once in this process.
async fn image(engine: &Docker) -> String {
    let build = || async {
        let folder = tempfile::tempdir().unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tiny/main.rs");
        let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
        let status = Command::new(rustc)
            .args(["--edition", "2021", "-C", "target-feature=+crt-static", "-C", "strip=symbols", "-o"])
            .arg(folder.path().join("tiny"))
            .arg(source)
            .status()
            .unwrap();
        assert!(status.success(), "compiling the tiny program statically");
        let recipe = "FROM scratch\nCOPY tiny /tiny\nVOLUME /var/lib/tiny\n";
        std::fs::write(folder.path().join("Dockerfile"), recipe).unwrap();
        let build = Build {
            context: folder.path().to_path_buf(),
            dockerfile: "Dockerfile".into(),
            target: None,
            args: std::collections::BTreeMap::new(),
        };
        let reference = "proofload-test/tiny".to_owned();
        let source = ImageSource { reference, build: Some(build), pull: PullPolicy::Build };
        images::ensure(engine, &source).await.unwrap().id
    };
    IMAGE.get_or_init(build).await.clone()
}

impl Real {
    /// Connects, or says loudly that nothing is tested. An engine that was announced (`.ci/engine`) must be there.
    pub async fn new(name: &str) -> Option<Self> {
        let found = match Surroundings::of_process(None).choose() {
            Ok(place) => Docker::connect(&place).await,
            Err(error) => Err(error),
        };
        let engine = match found {
            Ok(engine) => engine,
            Err(error) => {
                assert!(std::env::var_os("PROOFLOAD_ENGINE").is_none(), "an engine was announced: {error}");
                eprintln!("SKIPPED, NOTHING WAS TESTED: {error}");
                return None;
            }
        };
        let image = image(&engine).await;
        let folder = tempfile::tempdir().unwrap();
        let six = format!("{:06x}", (clock::unix_ns() >> 10) & 0xff_ffff);
        // Leases are shared by every test of this machine, or two projects would take one subnet.
        let leases = Leases::new(&std::env::temp_dir().join(format!("proofload-test-subnets-{six}-{name}")));
        Some(Self { engine, image, ledger: Ledger::default(), leases, folder, name: name.to_owned(), six })
    }

    pub fn run_id(&self) -> String {
        format!("test-{}-{}", self.name, self.six)
    }

    pub fn project(&self) -> String {
        run_project(&self.name, &self.six)
    }

    pub fn network(&self, key: &str) -> String {
        format!("{}_{key}", self.project())
    }

    pub fn target(&self, text: &str) -> Target {
        let path = self.folder.path().join("stack.yml");
        let source = Source { path, text: text.to_owned() };
        let project = Loader { sources: vec![source], ..Loader::default() }.load().unwrap();
        let owner =
            Owner { host: "test".into(), boot: "test".into(), pid: std::process::id(), start_ticks: 0 };
        let mark = RunMark {
            run_id: self.run_id(),
            scenario_hash: String::new(),
            owner,
            created_unix_s: clock::unix_s(),
            expires_unix_s: clock::unix_s() + 600,
            kept: false,
        };
        let copies = self.folder.path().join("binds");
        let mut target = Target::new(&project, &self.project(), mark, Some(copies)).unwrap();
        if text.contains("serve, '80'") {
            target.probes.insert("app".into(), Probe::Http { port: 80, path: "/".into() });
        }
        target
    }

    pub async fn up(&self, text: &str) -> Result<Up, ComposeError> {
        self.up_target(&self.target(text)).await
    }

    pub async fn up_target(&self, target: &Target) -> Result<Up, ComposeError> {
        let observed = Observed::look(&self.engine, &target.project).await?;
        let plan = plan(target, &observed, None)?;
        let routes: Vec<Net> = routes(&std::fs::read_to_string("/proc/net/route").unwrap_or_default());
        let executor = Executor {
            engine: &self.engine,
            prober: &NetProber { limit: Duration::from_secs(1) },
            target,
            ledger: &self.ledger,
            leases: &self.leases,
            routes: &routes,
            limits: Limits::default(),
        };
        executor.run(&plan, Up::default()).await
    }

    pub async fn down(&self) -> Removed {
        let ending = Ending::Graceful(Duration::from_secs(1));
        let removed = down(&self.engine, &self.run_id(), ending, &self.ledger).await.unwrap();
        assert!(removed.left.is_empty(), "{removed:?}");
        self.leases.give_all(&self.project());
        removed
    }

    /// Waits until a container has ended.
    pub async fn ended(&self, id: &str) -> ContainerSeen {
        for _ in 0..400 {
            let seen = self.engine.inspect(id).await.unwrap();
            if seen.ended() {
                return seen;
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        panic!("{id} did not end");
    }

    /// Names of everything on the engine that no test run of another name made, anonymous volumes included.
    pub async fn inventory(&self) -> Vec<String> {
        let ours = |labels: &std::collections::BTreeMap<String, String>| {
            let run = labels.get(labels::RUN).cloned().unwrap_or_default();
            run.is_empty() || run == self.run_id() || run.contains("keeper") && self.name == "keeper"
        };
        let containers = self.engine.containers(None).await.unwrap();
        let volumes = self.engine.volumes(None).await.unwrap();
        let networks = self.engine.networks(None).await.unwrap();
        let mut all: Vec<String> =
            containers.into_iter().filter(|c| ours(&c.labels)).map(|c| c.name).collect();
        all.extend(volumes.into_iter().filter(|v| ours(&v.labels)).map(|v| v.name));
        all.extend(networks.into_iter().filter(|n| ours(&n.labels)).map(|n| n.name));
        all.sort();
        all
    }
}

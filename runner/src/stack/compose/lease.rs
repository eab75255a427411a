//! Ownership of a run's objects: this process as owner, its lease with heartbeats, and the reaper that holds it.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use compose_engine::clock;
use compose_engine::gc::{self, Fate};
use compose_engine::labels::Owner;
use compose_engine::lease::{BEAT_SPACING_S, Lease, Liveness};
use compose_engine::queue::{Needs, Queue};
use compose_engine::subnet::Leases;
use scenario::digest::blake3_hex;
use scenario::model::{Resolved, Thresholds};

use super::{connect, environment, keep};
use crate::error::RunnerError;
use crate::guard::tree::start_ticks;

/// Spacing of the reaper's looks.
const LOOK_SPACING: Duration = Duration::from_millis(300);
/// How long the reaper tries while the engine does not answer.
const ENGINE_TRIES_MAX: u32 = 600;

/// Folder that all runs of this user share on this machine.
#[must_use]
pub fn shared_folder() -> PathBuf {
    std::env::temp_dir().join(format!("proofload-compose-{}", rustix::process::getuid().as_raw()))
}

/// Subnet leases of this machine.
#[must_use]
pub fn subnets() -> Leases {
    Leases::new(&shared_folder().join("subnets"))
}

/// The queue of runs on the engine behind a socket.
#[must_use]
pub fn queue(socket: &Path) -> Queue {
    let name = blake3_hex(socket.as_os_str().as_encoded_bytes());
    Queue::new(&shared_folder().join("queue").join(&name[..16]))
}

/// What a run asks of the machine. Programs of ours keep about one core busy between them (docs/performance.md); a
/// scenario that limits times or looks for the highest level measures, and measures alone.
#[must_use]
pub fn needs(resolved: &Resolved, containers: usize) -> Needs {
    const CONTAINER_BYTES: u64 = 64 << 20;
    let scenario = &resolved.scenario;
    let untimed = Thresholds { error_rate: scenario.thresholds.error_rate, ..Thresholds::default() };
    Needs {
        cores: 1,
        mem_bytes: CONTAINER_BYTES * containers as u64,
        alone: scenario.workload.search.is_some() || scenario.thresholds != untimed,
    }
}

fn read_trimmed(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

/// This process as an owner.
#[must_use]
pub fn own() -> Owner {
    let pid = std::process::id();
    Owner {
        host: read_trimmed("/proc/sys/kernel/hostname"),
        boot: read_trimmed("/proc/sys/kernel/random/boot_id"),
        pid,
        start_ticks: start_ticks(pid).unwrap_or_default(),
    }
}

/// Whether an owner of this host and boot still runs.
#[must_use]
pub fn liveness(owner: &Owner) -> Liveness {
    let here = own();
    if owner.host != here.host || owner.boot != here.boot {
        return if owner.host == here.host { Liveness::Gone } else { Liveness::Unknown };
    }
    if start_ticks(owner.pid) == Some(owner.start_ticks) { Liveness::Alive } else { Liveness::Gone }
}

/// A lease that this process holds.
#[derive(Debug)]
pub struct Held {
    path: PathBuf,
    beats: tokio::task::JoinHandle<()>,
    released: bool,
}

impl Held {
    /// Writes the lease, starts its heartbeats and its reaper. The reaper is no child of the guard: it must outlive both.
    ///
    /// # Errors
    /// [`RunnerError::Environment`].
    pub fn take(mut lease: Lease) -> Result<Self, RunnerError> {
        let path = Lease::path(&shared_folder().join("leases"), &lease.project);
        lease.write(&path).map_err(environment)?;
        let failed =
            |error: std::io::Error| RunnerError::environment(format!("starting the reaper: {error}"));
        let program = std::env::current_exe().map_err(failed)?;
        let mut command = std::process::Command::new(program);
        command.arg("__reaper").arg(&path).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        command.spawn().map_err(failed)?;
        let beating = path.clone();
        let beats = tokio::spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_secs(BEAT_SPACING_S)).await;
                lease.beat_unix_s = clock::unix_s();
                // A full disk must not end a run: the reaper looks at the process first.
                drop(lease.write(&beating));
            }
        });
        Ok(Self { path, beats, released: false })
    }

    /// Nothing is left to look after: the reaper ends.
    pub fn release(&mut self) {
        self.beats.abort();
        self.released = true;
        drop(std::fs::remove_file(&self.path));
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // Unreleased, the lease stays for the reaper, which acts when this process has ended.
        self.beats.abort();
    }
}

/// The reaper: waits until the lease is released or lapses; then removes what the run left.
///
/// # Errors
/// [`RunnerError::Environment`] when the engine does not answer for long.
pub async fn reap(path: &Path) -> Result<(), RunnerError> {
    let Some(mut lease) = Lease::read(path) else { return Ok(()) };
    loop {
        match Lease::read(path) {
            // Released by its owner.
            None if !path.exists() => return Ok(()),
            None => {}
            Some(now) => lease = now,
        }
        if lease.lapsed(liveness(&lease.owner), clock::unix_s()) {
            break;
        }
        tokio::time::sleep(LOOK_SPACING).await;
    }
    let mut last = None;
    for _ in 0..ENGINE_TRIES_MAX {
        match sweep(&lease).await {
            Ok(()) => {
                drop(std::fs::remove_file(path));
                return Ok(());
            }
            // The engine may be restarting under the run.
            Err(error) => last = Some(error),
        }
        tokio::time::sleep(LOOK_SPACING * 3).await;
    }
    last.map_or(Ok(()), Err)
}

async fn sweep(lease: &Lease) -> Result<(), RunnerError> {
    let engine = connect(Some(lease.engine.display().to_string())).await?;
    // Twice: a call of the dead owner may still have been under way during the first.
    for _ in 0..2 {
        let removed = gc::remove(&engine, &lease.run_id).await.map_err(environment)?;
        if !removed.left.is_empty() {
            return Err(RunnerError::environment(removed.left.join("; ")));
        }
        tokio::time::sleep(LOOK_SPACING).await;
    }
    subnets().give_all(&lease.project);
    keep::forget(&lease.run_id);
    drop(std::fs::remove_dir_all(&lease.work));
    Ok(())
}

/// Removes what dead or expired runs left on the engine; gives a line for each run that it looked at.
///
/// # Errors
/// [`RunnerError::Environment`].
pub async fn collect(
    engine: &compose_engine::engine::docker::Docker,
    dry_run: bool,
) -> Result<Vec<String>, RunnerError> {
    let here = own();
    let mut lines = Vec::new();
    for found in gc::find(engine).await.map_err(environment)? {
        let alive = |owner: &Owner| liveness(owner) == Liveness::Alive;
        let name = format!("{} ({} objects)", found.run_id, found.objects.len());
        match gc::fate(&found, &here.host, &here.boot, alive, clock::unix_s()) {
            Fate::Stays(why) => lines.push(format!("keeps {name}: {why}")),
            Fate::Goes(why) if dry_run => {
                lines.push(format!("would remove {name}: {why}: {}", found.objects.join(", ")));
            }
            Fate::Goes(why) => {
                let removed = gc::remove(engine, &found.run_id).await.map_err(environment)?;
                subnets().give_all(&found.project);
                keep::forget(&found.run_id);
                let left = if removed.left.is_empty() {
                    String::new()
                } else {
                    format!("; left: {:?}", removed.left)
                };
                lines.push(format!("removed {name}: {why}{left}"));
            }
        }
    }
    for path in keep::outdated(clock::unix_s()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if dry_run {
            lines.push(format!("would remove the keys of the kept run {name}"));
        } else if std::fs::remove_dir_all(&path).is_ok() {
            lines.push(format!("removed the keys of the kept run {name}"));
        }
    }
    Ok(lines)
}

//! Layer B of the self-test: a run whose programs are as they should be, disturbed from outside while it goes on. What
//! the runner then says must be one of the catalogued endings; a pass is none of them unless the catalogue says so.

use std::collections::BTreeSet;
use std::io::BufRead as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use evidence::assertion::{AssertionId, Witness};
use evidence::event::{Event, EventKind, Phase};
use evidence::rundir::{EVENTS, LOGS, REQUESTS, RunReader};
use rustix::process::{Pid, Signal, kill_process};

use super::catalogue::Sabotage;
use super::selftest::{Seen, names, seen};
use crate::clock::{self, Clock};
use crate::error::RunnerError;

/// Pause between two looks at a run.
const LOOK: Duration = Duration::from_millis(20);
/// A run that takes longer hangs, and that is what is told.
const LIMIT_US: u64 = 180_000_000;

/// A pause of a service: long enough for three looks at its health that wait in vain, also on a busy machine.
const PAUSE: Duration = Duration::from_secs(10);
/// A part of ours that is frozen for so long: longer than `validity.loop_gap_max`.
const FROZEN: Duration = Duration::from_secs(4);
/// A tenth of the time: stopped for so long, then running for so long.
const STARVED: Duration = Duration::from_millis(90);
const FED: Duration = Duration::from_millis(10);

/// A run that is being disturbed.
struct Victim<'a> {
    child: Child,
    clock: Clock,
    results: &'a Path,
    before: Vec<String>,
}

/// Runs one sabotage.
///
/// # Errors
/// [`RunnerError::Usage`] for a name that nothing is known about, [`RunnerError::Environment`] when the run can't be
/// started or does not end.
pub(super) fn run(sabotage: &Sabotage, runner: &Path, results: &Path) -> Result<Seen, RunnerError> {
    let results = results.join(&sabotage.name);
    let plain = || Command::new(runner);
    match sabotage.name.as_str() {
        "kill-host" => {
            disturbed(plain(), sabotage, &results, |victim| signal(victim, "host-1", Signal::KILL))
        }
        "kill-gateway" => {
            disturbed(plain(), sabotage, &results, |victim| signal(victim, "gateway", Signal::KILL))
        }
        "pause-host" => disturbed(plain(), sabotage, &results, |victim| paused(victim, "host-1", PAUSE)),
        "freeze-openai" => {
            disturbed(plain(), sabotage, &results, |victim| paused(victim, "mock-openai", FROZEN))
        }
        "freeze-dapi" => disturbed(plain(), sabotage, &results, |victim| paused(victim, "mock-dapi", FROZEN)),
        "freeze-chain" => {
            disturbed(plain(), sabotage, &results, |victim| paused(victim, "mock-chain", FROZEN))
        }
        "freeze-loadgen" => disturbed(plain(), sabotage, &results, |victim| {
            let pid = if victim.load() { victim.generator() } else { None };
            stopped(pid, FROZEN);
        }),
        "starve-loadgen" => disturbed(plain(), sabotage, &results, starved),
        "jump-clock" => {
            let mut command = plain();
            command.env(clock::JUMP, "");
            disturbed(command, sabotage, &results, |_| {})
        }
        "busy-neighbour" => disturbed(plain(), sabotage, &results, busy),
        "terminate-at-verdict" => disturbed(plain(), sabotage, &results, |victim| {
            victim.until(|events| phase(events, Phase::Judge));
            kill(victim.child.id(), Signal::TERM);
        }),
        "few-descriptors" => disturbed(limited("ulimit -n 64", runner), sabotage, &results, |_| {}),
        "small-files" => disturbed(limited("ulimit -f 64", runner), sabotage, &results, |_| {}),
        "unwritable-results" => {
            // A folder below a file can't be made by anybody, root included.
            let file = results.join("file");
            std::fs::create_dir_all(&results)
                .and_then(|()| std::fs::write(&file, b""))
                .map_err(|error| RunnerError::environment(format!("writing {}: {error}", file.display())))?;
            disturbed(plain(), sabotage, &file.join("results"), |_| {})
        }
        "another-machine" => moved(runner, sabotage, &results),
        other => Err(RunnerError::Usage(format!("the catalogue names sabotage {other}, which is not known"))),
    }
}

/// Why a run did not end as the catalogue says; `None` when it did.
pub(super) fn judge(sabotage: &Sabotage, seen: &Seen) -> Option<String> {
    let told =
        || format!("exit {:?}, fired {:?}, unknown {:?}: {}", seen.code, seen.fired, seen.unknown, seen.text);
    if !seen.code.is_some_and(|code| sabotage.codes.contains(&code)) {
        return Some(format!("one of the exit codes {:?} is due, but {}", sabotage.codes, told()));
    }
    let found: BTreeSet<String> = seen
        .fired
        .iter()
        .flat_map(|(id, reasons)| reasons.iter().map(move |reason| format!("{id} {reason}")))
        .collect();
    if let Some(absent) = sabotage.reasons.iter().find(|due| !found.contains(*due)) {
        return Some(format!("{absent} was not found: {}", told()));
    }
    let listed = |pair: &&String| sabotage.reasons.contains(pair) || sabotage.along.contains(pair);
    if let Some(other) = found.iter().find(|pair| !listed(pair)) {
        return Some(format!("{other} is in neither list: {}", told()));
    }
    let due = |(id, witness): &&(AssertionId, Witness)| {
        sabotage.reasons.contains(&format!("{id} {}", witness.reason)) && !names(witness, &sabotage.names)
    };
    let stray = seen.witnesses.iter().find(due);
    stray.map(|(id, witness)| format!("a witness of {id} names something else: {}", witness.message))
}

/// Starts the run, disturbs it, waits for its end.
fn disturbed(
    mut command: Command,
    sabotage: &Sabotage,
    results: &Path,
    disturb: impl FnOnce(&mut Victim<'_>),
) -> Result<Seen, RunnerError> {
    let before = super::runs(results).unwrap_or_default();
    command.args(["run", &sabotage.scenario, "--quiet", "--results"]).arg(results);
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let child = child.map_err(|error| RunnerError::environment(format!("starting the runner: {error}")))?;
    let mut victim = Victim { child, clock: Clock::start(), results, before };
    disturb(&mut victim);
    let code = victim.end()?;
    Ok(seen(results, &victim.before, code, String::new()))
}

/// The runner under a limit of the shell.
fn limited(limit: &str, runner: &Path) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{limit} && exec \"$@\""), "sh"]).arg(runner);
    command
}

impl Victim<'_> {
    fn directory(&self) -> Option<PathBuf> {
        let runs = super::runs(self.results).ok()?;
        runs.iter().find(|id| !self.before.contains(id)).map(|id| self.results.join(id))
    }

    fn events(&self) -> Vec<EventKind> {
        let Some(Ok(file)) = self.directory().map(|dir| std::fs::File::open(dir.join(EVENTS))) else {
            return Vec::new();
        };
        let lines = std::io::BufReader::new(file).lines().map_while(Result::ok);
        // The last line may be half written.
        lines.filter_map(|line| serde_json::from_str::<Event>(&line).ok()).map(|event| event.event).collect()
    }

    /// Waits for something in the run's events; false when the run ended first.
    fn until(&mut self, there: impl Fn(&[EventKind]) -> bool) -> bool {
        while !there(&self.events()) {
            if !matches!(self.child.try_wait(), Ok(None)) || self.clock.at_us() > LIMIT_US {
                return false;
            }
            std::thread::sleep(LOOK);
        }
        true
    }

    /// Waits until requests have come to their end: the load is under way.
    fn load(&mut self) -> bool {
        self.until(|events| phase(events, Phase::Load))
            && loop {
                let recorded = self.directory().map(|dir| RunReader::new(&dir).len(REQUESTS));
                if recorded.is_some_and(|len| len > 0) {
                    break true;
                }
                if !matches!(self.child.try_wait(), Ok(None)) || self.clock.at_us() > LIMIT_US {
                    break false;
                }
                std::thread::sleep(LOOK);
            }
    }

    fn pid(&self, wanted: &str) -> Option<u32> {
        self.events().iter().rev().find_map(|event| match event {
            EventKind::ProcessReady { service, pid, .. } if service == wanted => Some(*pid),
            _ => None,
        })
    }

    /// The generator, which is no service and tells its number to nobody: the program that reads the job of this run.
    fn generator(&mut self) -> Option<u32> {
        let job = Path::new(self.directory()?.file_name()?).join(LOGS).join("loadgen-job.json");
        let job = job.into_os_string().into_encoded_bytes();
        let reads_it = |process: &std::fs::DirEntry| {
            let line = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
            let mut words = line.split(|byte| *byte == 0);
            words.next().is_some_and(|program| program.ends_with(b"loadgen"))
                && words.any(|word| word.ends_with(&job))
        };
        loop {
            let found = std::fs::read_dir("/proc").ok()?.flatten().find(reads_it);
            if let Some(process) = found {
                return process.file_name().to_str()?.parse().ok();
            }
            if !matches!(self.child.try_wait(), Ok(None)) || self.clock.at_us() > LIMIT_US {
                return None;
            }
            std::thread::sleep(LOOK);
        }
    }

    fn end(&mut self) -> Result<Option<i32>, RunnerError> {
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Ok(status.code()),
                Ok(None) if self.clock.at_us() > LIMIT_US => {
                    kill(self.child.id(), Signal::KILL);
                    drop(self.child.wait());
                    return Err(RunnerError::environment("the disturbed run did not end and was killed"));
                }
                Ok(None) => std::thread::sleep(LOOK),
                Err(error) => return Err(RunnerError::environment(format!("waiting for a run: {error}"))),
            }
        }
    }
}

fn phase(events: &[EventKind], wanted: Phase) -> bool {
    events.iter().any(|event| matches!(event, EventKind::PhaseStarted { phase } if *phase == wanted))
}

/// A signal to one process; that it has ended already is what the run then shows.
fn kill(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}

/// A signal to a service in the middle of the load.
fn signal(victim: &mut Victim<'_>, service: &str, signal: Signal) {
    if victim.load()
        && let Some(pid) = victim.pid(service)
    {
        kill(pid, signal);
    }
}

/// Stops a service in the middle of the load, as a frozen virtual machine would be, and lets it go on.
fn paused(victim: &mut Victim<'_>, service: &str, time: Duration) {
    let pid = if victim.load() { victim.pid(service) } else { None };
    stopped(pid, time);
}

/// Stops a process, if there is one, for so long.
fn stopped(pid: Option<u32>, time: Duration) {
    let Some(pid) = pid else { return };
    kill(pid, Signal::STOP);
    std::thread::sleep(time);
    kill(pid, Signal::CONT);
}

/// Lets the generator run a tenth of the time until the run is over.
fn starved(victim: &mut Victim<'_>) {
    if !victim.until(|events| phase(events, Phase::Load)) {
        return;
    }
    let Some(pid) = victim.generator() else { return };
    // Once it has ended its number may be another's.
    while matches!(victim.child.try_wait(), Ok(None)) && !phase(&victim.events(), Phase::Drain) {
        kill(pid, Signal::STOP);
        std::thread::sleep(STARVED);
        kill(pid, Signal::CONT);
        std::thread::sleep(FED);
        if victim.clock.at_us() > LIMIT_US {
            return;
        }
    }
}

/// Four busy loops for each core until the run is over.
fn busy(victim: &mut Victim<'_>) {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let spin = || Command::new("sh").args(["-c", "while :; do :; done"]).stdin(Stdio::null()).spawn();
    let mut neighbours: Vec<Child> = (0..cores * 4).filter_map(|_| spin().ok()).collect();
    while matches!(victim.child.try_wait(), Ok(None)) && victim.clock.at_us() < LIMIT_US {
        std::thread::sleep(LOOK);
    }
    for neighbour in &mut neighbours {
        drop(neighbour.kill());
        drop(neighbour.wait());
    }
}

/// A good run, carried elsewhere under another root, is judged the same.
fn moved(runner: &Path, sabotage: &Sabotage, results: &Path) -> Result<Seen, RunnerError> {
    let first = disturbed(Command::new(runner), sabotage, results, |_| {})?;
    if first.code != Some(0) {
        return Ok(first);
    }
    let runs = super::runs(results)?;
    let Some(id) = runs.last() else { return Ok(first) };
    let elsewhere = results.join("elsewhere");
    let renamed = std::fs::create_dir_all(&elsewhere)
        .and_then(|()| std::fs::rename(results.join(id), elsewhere.join(id)));
    renamed.map_err(|error| RunnerError::environment(format!("moving {id}: {error}")))?;
    let status = Command::new(runner).arg("analyze").arg(elsewhere.join(id)).stdout(Stdio::null()).status();
    let status = status.map_err(|error| RunnerError::environment(format!("starting analyze: {error}")))?;
    Ok(seen(&elsewhere, &[], status.code(), "analyze of the moved run".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ending_outside_the_catalogue_is_told() {
        let sabotage = Sabotage {
            name: "kill-host".to_owned(),
            does: String::new(),
            scenario: String::new(),
            codes: vec![1],
            fires: vec![AssertionId::A9],
            reasons: vec!["A9 ended".to_owned()],
            along: vec!["A2 outside-expect".to_owned()],
            names: vec!["host-1".to_owned()],
        };
        let a9 = (AssertionId::A9, "ended", "host-1");
        let a2 = (AssertionId::A2, "outside-expect", "node-a");
        let ended = |code, found: &[(AssertionId, &str, &str)]| {
            let mut seen = Seen { code, ..Seen::default() };
            for (id, reason, service) in found {
                seen.fired.entry(*id).or_default().insert((*reason).to_owned());
                let service = Some((*service).to_owned());
                seen.witnesses.push((*id, Witness { service, ..Witness::new(reason, "") }));
            }
            seen
        };
        assert_eq!(judge(&sabotage, &ended(Some(1), &[a9, a2])), None);
        for other in [
            ended(Some(0), &[]),
            ended(None, &[a9]),
            ended(Some(1), &[a2]),
            ended(Some(4), &[a9]),
            ended(Some(1), &[(AssertionId::A9, "restarted", "host-1")]),
            ended(Some(1), &[a9, (AssertionId::A9, "restarted", "host-1")]),
            ended(Some(1), &[a9, (AssertionId::A2, "untouched-failed", "node-a")]),
            ended(Some(1), &[(AssertionId::A9, "ended", "host-2")]),
        ] {
            assert!(judge(&sabotage, &other).is_some(), "{other:?}");
        }
    }
}

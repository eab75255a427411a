//! Preflight (design section 3, step 0): what this machine has against what the plan needs, before anything starts.
//! `runner run` refuses what is short; `runner plan` prints the table.

use std::path::Path;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use scenario::model::Resolved;
use scenario::profile::Profile;

use crate::clock::unix_us;
use crate::error::RunnerError;

/// Room on the disk of the results at least, bytes.
const DISK_FREE_MIN: u64 = 16 * 1024 * 1024;
/// What one request leaves behind on the disk: record, plan line, calls, diffs in four snapshots; measured 12 kB.
const DISK_PER_REQUEST: u64 = 16 * 1024;
/// Requests a second that a real host takes of one sender and escrow (contract gateway 0.16, hosts 3).
const HOST_RATE_MAX: u64 = 100;
/// Files that a program opens whatever the load is.
const FILES_BASE: u64 = 256;
/// Local ports used whatever the load is.
const PORTS_BASE: u64 = 256;
/// 2020-01-01: a clock before it was never set, and run ids would lie.
const UNIX_US_MIN: u64 = 1_577_836_800_000_000;

/// What a machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Open files a process may have.
    pub files: Option<u64>,
    /// Local ports for outgoing connections.
    pub ports: Option<u64>,
    /// Cores.
    pub cores: u64,
    /// Free bytes where results go.
    pub disk_free: Option<u64>,
    /// Wall clock, microseconds of Unix time.
    pub unix_us: u64,
}

/// How one look ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finding {
    /// Enough.
    Enough,
    /// The run is possible, figures may suffer; or it could not be looked at.
    Note,
    /// The run would fail in the middle.
    Short,
}

/// One look at the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// What.
    pub name: &'static str,
    /// Found and needed, in words.
    pub text: String,
    /// Finding.
    pub finding: Finding,
}

impl Machine {
    /// Looks at this machine. The soft limit of open files is raised to the hard one first; services inherit it.
    #[must_use]
    pub fn look(results: &Path) -> Self {
        let limit = getrlimit(Resource::Nofile);
        let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
        // A limit that can't be raised is judged as it is.
        let _refused = setrlimit(Resource::Nofile, raised);
        let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
        let bounds: Vec<u64> = range.split_ascii_whitespace().filter_map(|port| port.parse().ok()).collect();
        let ports = match bounds.as_slice() {
            [low, high] => Some(high.saturating_sub(*low) + 1),
            _ => None,
        };
        // The folder may not exist yet: its nearest ancestor is on the same disk.
        let folder = results.ancestors().find(|folder| folder.is_dir()).unwrap_or(Path::new("."));
        Self {
            files: getrlimit(Resource::Nofile).current,
            ports,
            cores: std::thread::available_parallelism().map_or(1, std::num::NonZero::get) as u64,
            disk_free: rustix::fs::statvfs(folder)
                .ok()
                .map(|about| about.f_bavail.saturating_mul(about.f_frsize)),
            unix_us: unix_us(),
        }
    }
}

/// Compares. Each request in flight has a connection to the gateway, one from it to every host, and one to a node.
#[must_use]
pub fn checks(resolved: &Resolved, machine: &Machine) -> Vec<Check> {
    let scenario = &resolved.scenario;
    let concurrency = concurrency_max(resolved);
    let hops = 2 + u64::from(scenario.devshard.participants);
    let connections = concurrency.saturating_mul(hops);
    let disk = resolved.requests_max.saturating_mul(DISK_PER_REQUEST).max(DISK_FREE_MIN);
    let enough = |name, what: &str, found: Option<u64>, needed: u64, advice: &str| match found {
        None => Check { name, text: format!("{what}: not limited or not shown"), finding: Finding::Enough },
        Some(found) if found < needed => Check {
            name,
            text: format!("{what}: {found}, the plan needs {needed}; {advice}"),
            finding: Finding::Short,
        },
        Some(found) => Check {
            name,
            text: format!("{what}: {found}, the plan needs {needed}"),
            finding: Finding::Enough,
        },
    };
    let files = connections.saturating_add(FILES_BASE);
    let ports = connections.saturating_add(PORTS_BASE);
    let cores = if machine.cores < 2 {
        let text = "cores: 1; generator, mocks and Devshard share it, so that times are rough".to_owned();
        Check { name: "cores", text, finding: Finding::Note }
    } else {
        Check { name: "cores", text: format!("cores: {}", machine.cores), finding: Finding::Enough }
    };
    let clock = if machine.unix_us < UNIX_US_MIN {
        let text = "clock: before 2020, it was never set; set it, run ids carry the time".to_owned();
        Check { name: "clock", text, finding: Finding::Short }
    } else {
        Check { name: "clock", text: "clock: set".to_owned(), finding: Finding::Enough }
    };
    vec![
        enough("files", "open files of a process", machine.files, files, "raise `ulimit -n`"),
        enough("ports", "local ports", machine.ports, ports, "widen net.ipv4.ip_local_port_range"),
        enough(
            "disk",
            "free bytes for results",
            machine.disk_free,
            disk,
            "free some or give another --results",
        ),
        host_rate(resolved),
        cores,
        clock,
    ]
}

/// The most requests that any step keeps in flight, or a search may try.
fn concurrency_max(resolved: &Resolved) -> u64 {
    let workload = &resolved.scenario.workload;
    let steps = workload.all_steps().into_iter().map(|step| step.concurrency);
    let most = steps.chain(workload.search.as_ref().map(|search| search.to)).max();
    u64::from(most.unwrap_or(1).max(1))
}

/// A real host takes so many requests a second of one escrow; beyond, it answers 429 and is quarantined by the gateway
/// for an hour, and every later request fails (contract gateway 0.16, hosts 3). How fast the plan can become is known
/// from the profiles: no request is shorter than its node's shortest answer.
#[must_use]
pub fn host_rate(resolved: &Resolved) -> Check {
    let concurrency = concurrency_max(resolved);
    let devshard = &resolved.scenario.devshard;
    let (escrows, hosts) = (u64::from(devshard.escrows), u64::from(devshard.participants));
    let limit = escrows.saturating_mul(hosts).saturating_mul(HOST_RATE_MAX);
    let tokens = u64::from(resolved.scenario.workload.max_tokens.max(1));
    let shortest = |behaviour: &Profile| {
        let between = behaviour.token_interval.min.us().saturating_mul(tokens - 1);
        behaviour.ttft.min.us().saturating_add(between)
    };
    let answer_us = resolved.nodes.iter().map(|node| shortest(&node.behaviour)).min().unwrap_or_default();
    // Every policy but `legacy` starts a second attempt of nearly every request on a fresh stack (contract gateway 4.8).
    let races = speed_policy(resolved) != "legacy" && hosts > 1;
    let attempts = if races { 2 } else { 1 };
    let reachable = concurrency.saturating_mul(1_000_000 * attempts).checked_div(answer_us);
    let have =
        format!("{limit} a second ({escrows} escrows on {hosts} hosts, {HOST_RATE_MAX} for each pair)");
    let (text, finding) = match reachable {
        Some(reachable) if reachable <= limit => {
            (format!("host rate limit: {have}, the plan reaches {reachable} at most"), Finding::Enough)
        }
        reachable => {
            let most = reachable.map_or("any number".to_owned(), |reachable| reachable.to_string());
            let advice = "add escrows or lower the concurrency when the hosts are real ones";
            (format!("host rate limit: {have}, the plan could reach {most}; {advice}"), Finding::Note)
        }
    };
    Check { name: "host rate", text, finding }
}

/// What the gateway goes by; its own default where the scenario does not say (contract gateway 9).
fn speed_policy(resolved: &Resolved) -> &str {
    let redundancy = resolved.scenario.devshard.settings.get("redundancy");
    redundancy.and_then(|group| group["speed_policy"].as_str()).unwrap_or("hybrid")
}

/// Refuses what is short.
///
/// # Errors
/// [`RunnerError::Environment`] with everything that is short.
pub fn require(checks: &[Check]) -> Result<(), RunnerError> {
    let short: Vec<&str> = checks
        .iter()
        .filter(|check| check.finding == Finding::Short)
        .map(|check| check.text.as_str())
        .collect();
    if short.is_empty() {
        return Ok(());
    }
    Err(RunnerError::environment(format!("{}; nothing was started", short.join("; "))))
}

/// The table of `runner plan`.
#[must_use]
pub fn table(checks: &[Check]) -> String {
    let word = |finding| match finding {
        Finding::Enough => "ok",
        Finding::Note => "note",
        Finding::Short => "SHORT",
    };
    checks.iter().map(|check| format!("  {:<6} {}\n", word(check.finding), check.text)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use scenario::model::Search;

    use crate::input::{Overrides, load};

    fn resolved() -> Resolved {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let scenario = root.join("scenarios/ml-5xx.yaml");
        load(&scenario, &root.join("ml-profiles"), &Overrides::default()).unwrap().resolved
    }

    const ROOMY: Machine = Machine {
        files: Some(1 << 20),
        ports: Some(28_232),
        cores: 2,
        disk_free: Some(1 << 34),
        unix_us: 1_800_000_000_000_000,
    };

    #[test]
    fn a_roomy_machine_is_enough() {
        let checks = checks(&resolved(), &ROOMY);
        assert!(checks.iter().all(|check| check.finding == Finding::Enough), "{checks:?}");
        require(&checks).unwrap();
    }

    #[test]
    fn a_plan_that_could_outrun_the_hosts_is_noted() {
        let of = |resolved: &Resolved| {
            checks(resolved, &ROOMY).into_iter().find(|c| c.name == "host rate").unwrap()
        };
        // Four escrows on three hosts; 36 ms is the shortest answer of 32 tokens: 8 in flight make 222 a second.
        let mut resolved = resolved();
        let enough = of(&resolved);
        assert_eq!(enough.finding, Finding::Enough);
        assert!(
            enough.text.contains("1200 a second") && enough.text.contains("reaches 222"),
            "{}",
            enough.text
        );
        // Two attempts each, where the policy races hosts against each other.
        let settings = resolved.scenario.devshard.settings.clone();
        resolved.scenario.devshard.settings.clear();
        assert!(of(&resolved).text.contains("reaches 444"), "{}", of(&resolved).text);
        resolved.scenario.devshard.settings = settings;
        resolved.scenario.devshard.escrows = 1;
        resolved.scenario.workload.steps[0].concurrency = 11;
        let noted = of(&resolved);
        assert_eq!(noted.finding, Finding::Note);
        assert!(noted.text.contains("could reach 305"), "{}", noted.text);
    }

    #[test]
    fn a_search_needs_what_its_highest_level_needs() {
        let mut resolved = resolved();
        resolved.scenario.workload.search = Some(Search { from: 1, to: 256, requests: None });
        let files = |resolved: &Resolved| checks(resolved, &ROOMY).remove(0).text;
        assert!(
            files(&resolved).ends_with(&format!("the plan needs {}", 256 * 5 + FILES_BASE)),
            "{}",
            files(&resolved)
        );
    }

    #[test]
    fn each_shortage_is_named_with_what_to_do() {
        let short = [
            ("files", Machine { files: Some(100), ..ROOMY }, "ulimit -n"),
            ("ports", Machine { ports: Some(100), ..ROOMY }, "ip_local_port_range"),
            ("disk", Machine { disk_free: Some(1 << 20), ..ROOMY }, "--results"),
            ("clock", Machine { unix_us: 5, ..ROOMY }, "set it"),
        ];
        for (name, machine, advice) in short {
            let checks = checks(&resolved(), &machine);
            let found: Vec<&str> = checks
                .iter()
                .filter(|check| check.finding == Finding::Short)
                .map(|check| check.name)
                .collect();
            assert_eq!(found, [name]);
            let error = require(&checks).unwrap_err().to_string();
            assert!(error.contains(advice), "{error}");
        }
        let one_core = checks(&resolved(), &Machine { cores: 1, ..ROOMY });
        require(&one_core).unwrap();
        assert!(table(&one_core).contains("note   cores"), "{}", table(&one_core));
    }
}

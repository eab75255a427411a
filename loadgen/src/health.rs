//! What this process uses, and whether the machine lets it open enough connections.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::error::LoadgenError;
use crate::result::Machine;

/// Descriptors beside connections: files, pipes, the runtime's own.
const SPARE_FDS: u64 = 64;

/// Use of the machine since the start. What can't be read is 0.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// CPU time, user and system, microseconds.
    pub cpu_us: u64,
    /// Resident memory, bytes.
    pub rss_bytes: u64,
    /// Open descriptors.
    pub open_fds: u64,
}

/// CPU time of the process, user and system, microseconds. Read from files and not from its clock, for which the library
/// goes through the vDSO: under valgrind, which counts the instructions of a request, a program has none.
#[must_use]
pub fn cpu_us() -> u64 {
    // Threads that have ended are in the first figure only, and microseconds are in the second one only.
    whole_cpu_us().unwrap_or_default().max(live_cpu_us().unwrap_or_default())
}

/// With all threads that ever were, in hundredths of a second.
fn whole_cpu_us() -> Option<u64> {
    const TICK_US: u64 = 10_000;
    let text = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The name of the program, in brackets, may hold anything.
    let (_, fields) = text.rsplit_once(')')?;
    let mut ticks = fields.split_whitespace().skip(11).map_while(|field| field.parse::<u64>().ok());
    Some((ticks.next()? + ticks.next()?) * TICK_US)
}

/// Of the threads that are alive, exactly.
fn live_cpu_us() -> Option<u64> {
    let threads = std::fs::read_dir("/proc/self/task").ok()?;
    let of_thread = |thread: std::io::Result<std::fs::DirEntry>| {
        let text = std::fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    };
    Some(threads.filter_map(of_thread).sum::<u64>() / 1_000)
}

impl Usage {
    /// Reads the use of this moment.
    #[must_use]
    pub fn now() -> Self {
        Self {
            cpu_us: cpu_us(),
            rss_bytes: resident_bytes().unwrap_or_default(),
            open_fds: std::fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count() as u64),
        }
    }
}

fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

/// Connections that the hard limit of open files allows.
#[must_use]
pub fn connections_max() -> u64 {
    getrlimit(Resource::Nofile).maximum.map_or(u64::MAX, |maximum| maximum.saturating_sub(SPARE_FDS))
}

/// The soft limit of open files.
#[must_use]
pub fn fds_limit() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

/// Local ports for one target address.
#[must_use]
pub fn local_ports() -> u64 {
    const DEFAULT: u64 = 28_232;
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let mut ends = text.split_whitespace().map_while(|end| end.parse::<u64>().ok());
    match (ends.next(), ends.next()) {
        (Some(low), Some(high)) if high >= low => high - low + 1,
        _ => DEFAULT,
    }
}

/// The machine, as far as it can be read; cores by affinity and quota.
#[must_use]
pub fn machine() -> Machine {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model =
        cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": ").map(|(_, name)| name));
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = memory.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = total.and_then(|text| text.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    let name = rustix::system::uname();
    Machine {
        cpu: model.unwrap_or_default().to_owned(),
        cores: std::thread::available_parallelism()
            .map_or(1, |cores| u32::try_from(cores.get()).unwrap_or(1)),
        memory_bytes: kib.unwrap_or_default() * 1024,
        kernel: format!("{} {}", name.sysname().to_string_lossy(), name.release().to_string_lossy()),
    }
}

/// Keeps the calling thread on the n-th core that the process may use, counted round; gives its number.
///
/// # Errors
/// Environment when the system does not allow it.
pub fn pin_thread(number: u64) -> Result<usize, LoadgenError> {
    let environment =
        |error| LoadgenError::Environment(format!("a thread can't be kept on a core (--pin): {error}"));
    let allowed = sched_getaffinity(None).map_err(environment)?;
    let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).collect();
    let place = usize::try_from(number).unwrap_or_default() % cores.len().max(1);
    let core = cores.get(place).copied().unwrap_or_default();
    let mut one = CpuSet::new();
    one.set(core);
    sched_setaffinity(None, &one).map_err(environment)?;
    Ok(core)
}

/// How long the calling thread was ready to run and had no core, microseconds; `None` where the kernel does not say.
#[must_use]
pub fn core_wait_us() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let wait_ns: u64 = text.split_whitespace().nth(1)?.parse().ok()?;
    Some(wait_ns / 1_000)
}

/// Makes room for `connections` open at once.
///
/// # Errors
/// Usage when the hard limit of the machine is too low.
pub fn make_room(connections: u64) -> Result<(), LoadgenError> {
    let needed = connections.saturating_add(SPARE_FDS);
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= needed) {
        return Ok(());
    }
    // A privileged process may raise the hard limit too; where it may not, nothing has changed.
    let raised = Rlimit { current: Some(needed), maximum: limit.maximum.max(Some(needed)) };
    if limit.maximum.is_some() && setrlimit(Resource::Nofile, raised).is_ok() {
        return Ok(());
    }
    if limit.maximum.is_some_and(|maximum| maximum < needed) {
        return Err(LoadgenError::Usage(format!(
            "{connections} requests in flight need {needed} file descriptors, the hard limit here is {}; \
             lower the concurrency or raise the limit (ulimit -Hn)",
            limit.maximum.unwrap_or_default()
        )));
    }
    setrlimit(Resource::Nofile, Rlimit { current: Some(needed), maximum: limit.maximum }).map_err(|error| {
        LoadgenError::Environment(format!("the limit of open files can't be raised: {error}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn use_is_read() {
        let usage = Usage::now();
        assert!(usage.cpu_us > 0 && usage.rss_bytes > 100_000 && usage.open_fds >= 3, "{usage:?}");
    }

    #[test]
    fn cpu_time_grows_with_work_and_keeps_that_of_ended_threads() {
        let before = cpu_us();
        let work = || {
            let (own, mut sum) = (core_time_us(), 0_u64);
            while core_time_us() < own + 50_000 {
                sum = sum.wrapping_add(sum ^ 7);
            }
            std::hint::black_box(sum);
        };
        std::thread::spawn(work).join().unwrap();
        // The file of the whole process is exact to a tick on either side.
        assert!(cpu_us() >= before + 20_000, "{before} {}", cpu_us());
        assert!(whole_cpu_us().is_some() && live_cpu_us().is_some());
    }

    fn core_time_us() -> u64 {
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
        text.split_whitespace().next().unwrap().parse::<u64>().unwrap() / 1_000
    }

    #[test]
    fn a_pinned_thread_stays_on_one_allowed_core() {
        let pinned = std::thread::spawn(|| {
            let core = pin_thread(1_000_001).unwrap();
            let allowed = sched_getaffinity(None).unwrap();
            assert!(allowed.is_set(core) && allowed.count() == 1);
        });
        pinned.join().unwrap();
        assert!(sched_getaffinity(None).unwrap().count() >= 1, "other threads stay as they were");
    }

    #[test]
    fn impossible_concurrency_is_refused_with_the_reason() {
        let hard = getrlimit(Resource::Nofile).maximum;
        if hard.is_some() {
            assert!(make_room(u64::MAX).unwrap_err().to_string().contains("hard limit"));
        }
        assert!(make_room(1).is_ok());
    }
}

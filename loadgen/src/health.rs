//! What this process uses, and whether the machine lets it open enough connections.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};

use crate::error::LoadgenError;

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

impl Usage {
    /// Reads the use of this moment.
    #[must_use]
    pub fn now() -> Self {
        let cpu = clock_gettime(ClockId::ProcessCPUTime);
        let part = |number: i64| u64::try_from(number).unwrap_or_default();
        Self {
            cpu_us: part(cpu.tv_sec) * 1_000_000 + part(cpu.tv_nsec) / 1_000,
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
    fn impossible_concurrency_is_refused_with_the_reason() {
        let hard = getrlimit(Resource::Nofile).maximum;
        if hard.is_some() {
            assert!(make_room(u64::MAX).unwrap_err().to_string().contains("hard limit"));
        }
        assert!(make_room(1).is_ok());
    }
}

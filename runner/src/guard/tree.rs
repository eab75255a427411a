//! Finding and ending descendants through `/proc`.

use std::collections::HashMap;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// Parent and start time of a process; `None` when it is gone or a zombie.
fn stat(pid: u32) -> Option<(u32, u64)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command in parentheses may hold blanks and parentheses: fields are counted after the last one.
    let rest = text.rsplit_once(')')?.1;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    if fields.first() == Some(&"Z") || fields.first() == Some(&"X") {
        return None;
    }
    Some((fields.get(1)?.parse().ok()?, fields.get(19)?.parse().ok()?))
}

/// Start time of a process in clock ticks since boot; with the pid it is the identity of the process.
#[must_use]
pub fn start_ticks(pid: u32) -> Option<u64> {
    stat(pid).map(|(_, ticks)| ticks)
}

/// Every living descendant of `root`, not `root` itself.
#[must_use]
pub fn descendants(root: u32) -> Vec<u32> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let parents: HashMap<u32, u32> = pids.filter_map(|pid| Some((pid, stat(pid)?.0))).collect();
    let mut found: Vec<u32> = parents.keys().copied().filter(|pid| descends(*pid, root, &parents)).collect();
    found.sort_unstable();
    found
}

fn descends(pid: u32, root: u32, parents: &HashMap<u32, u32>) -> bool {
    let mut at = pid;
    // A chain of parents is never longer than the table: the bound only guards against a torn reading.
    for _ in 0..parents.len() {
        match parents.get(&at) {
            Some(parent) if *parent == root => return true,
            Some(parent) if *parent > 1 => at = *parent,
            _ => return false,
        }
    }
    false
}

/// Living processes whose environment at their start held this variable with this value.
#[must_use]
pub fn with_variable(name: &str, value: &str) -> Vec<u32> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let wanted = format!("{name}={value}");
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    // The environment of a process of another user can't be read: it is none of ours.
    let holds = |pid: &u32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|entry| entry == wanted.as_bytes())
    };
    pids.filter(|pid| stat(*pid).is_some()).filter(holds).collect()
}

/// Sends a signal; a process that is gone already is no error.
pub fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // ESRCH: it ended between the look and the signal, which is what we want.
        let _gone = kill_process(pid, signal);
    }
}

/// Sends a signal to a process and to all that descend from it, the process first: it starts no others then.
pub fn signal_all(pid: u32, number: Signal) {
    let below = descendants(pid);
    signal(pid, number);
    below.into_iter().for_each(|pid| signal(pid, number));
}

/// Ends every descendant of this process: SIGTERM, then SIGKILL after the grace. Returns how many were killed.
/// Stopped processes are continued first, or SIGTERM would wait for ever.
pub async fn end_all(root: u32, grace: Duration) -> u32 {
    for pid in descendants(root) {
        signal(pid, Signal::TERM);
        signal(pid, Signal::CONT);
    }
    let step = Duration::from_millis(10);
    let mut waited = Duration::ZERO;
    while waited < grace && !descendants(root).is_empty() {
        tokio::time::sleep(step).await;
        waited += step;
    }
    let mut killed = 0;
    // New children may be forked while we kill: look again until nothing is left.
    for _ in 0..500 {
        let left = descendants(root);
        if left.is_empty() {
            break;
        }
        for pid in left {
            killed += 1;
            signal(pid, Signal::KILL);
        }
        tokio::time::sleep(step).await;
    }
    killed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_found_by_what_its_parent_handed_on() {
        let value = format!("/nowhere/{}", std::process::id());
        let start = || {
            let mut command = std::process::Command::new("sh");
            // A grandchild that inherits it.
            command.args(["-c", "sleep 600 & wait"]).env("PROOFLOAD_TEST", &value);
            command.spawn().unwrap()
        };
        let mut child = start();
        let found = || with_variable("PROOFLOAD_TEST", &value);
        for _ in 0..200 {
            if found().len() == 2 {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(found().len(), 2);
        assert_eq!(with_variable("PROOFLOAD_TEST", "/nowhere"), Vec::<u32>::new(), "the whole value counts");
        signal_all(child.id(), Signal::KILL);
        child.wait().unwrap();
        for _ in 0..200 {
            if found().is_empty() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("left: {:?}", found());
    }
}

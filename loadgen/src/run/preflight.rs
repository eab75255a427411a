//! What this machine can't do, said before it is tried: descriptors, ports, memory, cores.

use crate::error::LoadgenError;
use crate::health;
use crate::profile::Resolved;
use crate::profile::model::SearchOf;
use crate::profile::resolve::Kind;
use crate::result::Machine;

/// A connection stays in the kernel for so long after it was closed.
const TIME_WAIT_S: u64 = 60;
/// User and kernel memory of a connection, roughly; only for the note.
const CONNECTION_BYTES: u64 = 10 * 1024;

/// Makes room for the load; lowers an in-flight bound that the machine can't hold, which the verdict remembers. Gives what is to be known.
///
/// # Errors
/// Usage when what the profile asks for can't be done here.
pub fn check(plan: &mut Resolved, machine: &Machine) -> Result<Vec<String>, LoadgenError> {
    let mut notes = Vec::new();
    let users = plan.stages.iter().map(|stage| match &stage.kind {
        Kind::Closed { from, to, .. } => (*from).max(*to),
        _ => 0,
    });
    let search = plan.search.as_ref();
    let searched = search.map_or(0, |search| if search.of == SearchOf::Concurrency { search.to } else { 0 });
    let users = users.max().unwrap_or_default().max(searched);
    let open = plan.stages.iter().any(|stage| !matches!(stage.kind, Kind::Closed { .. }))
        || search.is_some_and(|search| search.of == SearchOf::Rate);
    if open && health::make_room(plan.inflight_max).is_err() {
        let asked = plan.inflight_max;
        plan.inflight_max = health::connections_max();
        plan.inflight_lowered = true;
        notes.push(format!(
            "the hard limit of open files allows {} requests in flight, not {asked}; the bound was lowered, and a run \
             that reaches it is invalid",
            plan.inflight_max
        ));
        health::make_room(plan.inflight_max)?;
    }
    health::make_room(users)?;
    let most = users.max(if open { plan.inflight_max } else { 0 });
    let ports = health::local_ports();
    if users > ports {
        return Err(LoadgenError::Usage(format!(
            "{users} users need as many local ports, there are {ports} for one target address; lower the \
             concurrency or widen net.ipv4.ip_local_port_range"
        )));
    }
    if plan.requests_per_connection == Some(1) {
        notes.push(format!(
            "a new connection for each request: {ports} local ports last for about {} a second to one target, \
             where closed ones are not used again at once",
            ports / TIME_WAIT_S
        ));
    }
    if machine.memory_bytes > 0 && most * CONNECTION_BYTES > machine.memory_bytes / 2 {
        notes.push(format!("{most} connections may need half of this machine's memory"));
    }
    if plan.threads > machine.cores {
        notes.push(format!("{} threads on {} cores", plan.threads, machine.cores));
    }
    Ok(notes)
}

//! What this machine can't do, said before it is tried: descriptors, ports, memory, cores.

use http::Uri;

use crate::connection::transport::{CA_UNUSED, Http};
use crate::error::LoadgenError;
use crate::health;
use crate::profile::Resolved;
use crate::profile::model::SearchOf;
use crate::profile::resolve::Kind;
use crate::result::{Machine, SaturationClass};

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
    if open {
        notes.extend(bound_to_machine(plan));
        health::make_room(plan.inflight_max)?;
    }
    health::make_room(users)?;
    let most = users.max(if open { plan.inflight_max } else { 0 });
    let ports = ports(plan);
    if users > ports {
        return Err(LoadgenError::Usage(format!(
            "{users} users need as many local ports, there are {ports} for these targets; lower the \
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

/// What the profile or a flag says and this run has no use for.
#[must_use]
pub fn without_effect(plan: &Resolved) -> Option<String> {
    let secure = plan.scenarios.iter().any(|scenario| scenario.target.starts_with("https://"));
    (plan.connections.ca.is_some() && !secure).then(|| CA_UNUSED.to_owned())
}

/// Local ports for the targets: each has all of them. One connection of HTTP/2 carries many requests, and needs one.
fn ports(plan: &Resolved) -> u64 {
    if plan.connections.http == Http::Two {
        return u64::MAX;
    }
    if plan.connections.proxy.is_some() {
        return health::local_ports();
    }
    let authority = |target: &String| target.parse().ok().and_then(|uri: Uri| uri.authority().cloned());
    let mut targets: Vec<_> = plan
        .scenarios
        .iter()
        .map(|scenario| authority(&scenario.target).map(|name| name.to_string()))
        .collect();
    targets.sort();
    targets.dedup();
    health::local_ports().saturating_mul(targets.len().max(1) as u64)
}

/// Lowers an in-flight bound that this machine can't hold to what it can, and says so when the profile asked for it.
fn bound_to_machine(plan: &mut Resolved) -> Option<String> {
    let asked = plan.inflight_max;
    let (most, class, what) = [
        (ports(plan), SaturationClass::GeneratorPorts, "number of local ports"),
        (files(asked), SaturationClass::GeneratorFds, "hard limit of open files"),
    ]
    .into_iter()
    .filter(|(most, ..)| *most < asked)
    .min_by_key(|(most, ..)| *most)?;
    (plan.inflight_max, plan.inflight_lowered) = (most, Some(class));
    plan.inflight_given.then(|| {
        format!(
            "the {what} allows {most} requests in flight, not {asked}; the bound was lowered, and a run that reaches it is \
             invalid"
        )
    })
}

/// Connections that the limits of open files leave room for, at most as many as are asked for.
fn files(asked: u64) -> u64 {
    if health::make_room(asked).is_ok() { asked } else { health::connections_max() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::model::Profile;
    use crate::profile::resolve;
    use serde_json::json;
    use std::path::Path;

    fn plan(inflight: u64, http: &str, targets: &[&str]) -> Resolved {
        let scenario =
            |(place, target)| json!({"name": format!("s{place}"), "target": format!("http://{target}")});
        let scenarios: Vec<_> = targets.iter().enumerate().map(scenario).collect();
        let profile: Profile = serde_json::from_value(json!({
            "defaults": {"model": "m"}, "stages": [{"rate": 1, "duration": "1s"}],
            "openloop_max_inflight": inflight, "connections": {"http": http}, "scenarios": scenarios,
        }))
        .unwrap();
        resolve(&profile, Path::new(".")).unwrap()
    }

    #[test]
    fn a_bound_above_the_ports_of_the_machine_is_lowered_with_the_reason() {
        let machine = Machine::default();
        let local = health::local_ports();
        let mut asked = plan(local + 1, "auto", &["a.invalid", "a.invalid"]);
        let notes = check(&mut asked, &machine).unwrap();
        assert!(asked.inflight_max <= local && asked.inflight_lowered.is_some(), "{notes:?}");
        assert!(notes.iter().any(|note| note.contains("the bound was lowered")), "{notes:?}");
        // What one target has no ports for, two have, and HTTP/2 has anyway; open files may still be too few.
        for mut other in
            [plan(local + 1, "auto", &["a.invalid", "b.invalid"]), plan(local + 1, "2", &["a.invalid"])]
        {
            check(&mut other, &machine).unwrap();
            assert_ne!(other.inflight_lowered, Some(SaturationClass::GeneratorPorts));
        }
    }
}

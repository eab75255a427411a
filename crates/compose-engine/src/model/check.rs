//! What must hold across keys: references, cycles, addresses, names.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use super::{Condition, MountSource, Network, Project, Service};
use crate::error::FileError;

type Checked = Result<(), FileError>;

/// Checks a whole project and adds the implicit network.
///
/// # Errors
/// [`FileError`] at the first thing that can't hold.
pub fn project(project: &mut Project, allow_privileged: bool) -> Checked {
    let used = project.services.values().any(|service| service.networks.contains_key("default"));
    if used {
        project.networks.entry("default".to_owned()).or_default();
    }
    for (key, service) in &project.services {
        one(project, key, service, allow_privileged)?;
    }
    for (key, network) in &project.networks {
        addresses(project, key, network)?;
        names(project, key)?;
    }
    order(project).map(drop)
}

fn one(project: &Project, key: &str, service: &Service, allow_privileged: bool) -> Checked {
    let at = &service.at;
    if service.image.is_none() && service.build.is_none() {
        return Err(FileError::new(at, format!("service {key} has neither `image` nor `build`")));
    }
    if service.host.privileged && !allow_privileged {
        let text = format!("service {key} asks for all rights; a run allows that only when it says so");
        return Err(FileError::new(at, text));
    }
    for network in service.networks.keys() {
        if !project.networks.contains_key(network) {
            return Err(FileError::new(
                at,
                format!("service {key} uses the network {network:?}, which is not defined"),
            ));
        }
    }
    for mount in &service.mounts {
        match &mount.source {
            MountSource::Volume { key: volume, .. } if !project.volumes.contains_key(volume) => {
                let text = format!("service {key} uses the volume {volume:?}, which is not defined");
                return Err(FileError::new(at, text));
            }
            MountSource::Bind(path) => {
                let text = path.to_string_lossy();
                let sockets = ["docker.sock", "containerd.sock", "podman.sock"];
                if sockets.iter().any(|socket| text.ends_with(socket)) || text.contains("/docker/containers")
                {
                    let text = format!("service {key} mounts {text}: a service must not reach the engine");
                    return Err(FileError::new(at, text));
                }
            }
            _ => {}
        }
    }
    for (dependency, edge) in &service.depends_on {
        let Some(other) = project.services.get(dependency) else {
            if edge.required {
                let text = format!(
                    "service {key} depends on {dependency:?}, which is not defined or in no chosen profile"
                );
                return Err(FileError::new(at, text));
            }
            continue;
        };
        // Report 8: a condition that can never be met must not become an endless wait. An image may bring a check of
        // its own, so only a check that the file switches off is known to be missing here.
        let off = other.healthcheck.as_ref().is_some_and(super::HealthCheck::disabled);
        if edge.condition == Condition::ServiceHealthy && off {
            let text =
                format!("service {key} waits for {dependency} to be healthy, whose health check is off");
            return Err(FileError::new(at, text));
        }
    }
    Ok(())
}

/// Static addresses lie in their subnet, are no gateway, and are unique.
fn addresses(project: &Project, key: &str, network: &Network) -> Checked {
    let mut taken: BTreeMap<Ipv4Addr, &str> = BTreeMap::new();
    for (name, service) in &project.services {
        let Some(address) = service.networks.get(key).and_then(|attachment| attachment.ipv4) else {
            continue;
        };
        let at = &service.at;
        let Some((base, prefix)) = network.subnet else {
            let text = format!("service {name} has the address {address}, but network {key} has no subnet");
            return Err(FileError::new(at, text));
        };
        let mask = !((1_u32 << (32 - prefix)) - 1);
        let offset = u32::from(address) & !mask;
        if u32::from(address) & mask != u32::from(base) || offset == 0 || offset == !mask {
            let text = format!("service {name}: {address} is no host address of {base}/{prefix}");
            return Err(FileError::new(at, text));
        }
        let gateway = network.gateway.unwrap_or_else(|| Ipv4Addr::from(u32::from(base) + 1));
        if address == gateway {
            return Err(FileError::new(
                at,
                format!("service {name}: {address} is the gateway of network {key}"),
            ));
        }
        if let Some(other) = taken.insert(address, name) {
            return Err(FileError::new(
                at,
                format!("services {other} and {name} both have the address {address}"),
            ));
        }
    }
    Ok(())
}

/// Every name in a network leads to one service: a shared alias would split traffic unseen.
fn names(project: &Project, key: &str) -> Checked {
    let mut taken: BTreeMap<&str, &str> = BTreeMap::new();
    for (name, service) in &project.services {
        let Some(attachment) = service.networks.get(key) else { continue };
        for alias in std::iter::once(name).chain(&attachment.aliases) {
            if let Some(other) = taken.insert(alias, name)
                && other != name
            {
                let text = format!("network {key}: the name {alias:?} leads to {other} and to {name}");
                return Err(FileError::new(&service.at, text));
            }
        }
    }
    Ok(())
}

/// Services in an order in which every one comes after what it depends on.
///
/// # Errors
/// [`FileError`] naming the cycle.
pub fn order(project: &Project) -> Result<Vec<String>, FileError> {
    let mut done: Vec<String> = Vec::new();
    let mut path: Vec<String> = Vec::new();
    for key in project.services.keys() {
        visit(project, key, &mut path, &mut done)?;
    }
    Ok(done)
}

fn visit(project: &Project, key: &str, path: &mut Vec<String>, done: &mut Vec<String>) -> Checked {
    if done.iter().any(|known| known == key) {
        return Ok(());
    }
    let Some(service) = project.services.get(key) else { return Ok(()) };
    if let Some(start) = path.iter().position(|known| known == key) {
        let mut cycle = path[start..].to_vec();
        cycle.push(key.to_owned());
        let text = format!("services depend on each other in a circle: {}", cycle.join(" -> "));
        return Err(FileError::new(&service.at, text));
    }
    path.push(key.to_owned());
    for dependency in service.depends_on.keys() {
        visit(project, dependency, path, done)?;
    }
    path.pop();
    done.push(key.to_owned());
    Ok(())
}

//! Readers of a service's parts: ports, mounts, networks, dependencies, health checks.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::reader::{Read, check_keys};
use super::tree::{Entry, Node, Value};
use super::{
    Attachment, Build, Condition, Dependency, HealthCheck, Mount, MountSource, Port, Restart, units,
};
use crate::error::FileError;
use crate::ready::Probe;

/// Shortest time of a health check that the engine takes.
const HEALTH_TIME_MIN: Duration = Duration::from_millis(1);

pub(super) fn ports(node: &Node, warnings: &mut Vec<String>) -> Read<Vec<Port>> {
    let mut all: Vec<Port> = Vec::new();
    for item in node.list("ports")? {
        let port = port(item, warnings)?;
        // The same line twice is one port.
        if !all.contains(&port) {
            all.push(port);
        }
    }
    Ok(all)
}

fn port(node: &Node, warnings: &mut Vec<String>) -> Read<Port> {
    if let Value::Scalar { text, .. } = &node.value {
        return short_port(text).map_err(|reason| FileError::new(&node.at, reason));
    }
    check_keys(node, "service.ports", warnings)?;
    let target = node.opt("target", Node::number)?;
    let target = target.ok_or_else(|| FileError::new(&node.at, "a port needs `target`"))?;
    let protocol = node.opt("protocol", |n, k| n.parsed(k, protocol))?.unwrap_or_else(|| "tcp".to_owned());
    Ok(Port { target, protocol, asked: node.opt("published", Node::string)? })
}

fn protocol(text: &str) -> Result<String, String> {
    match text {
        "tcp" | "udp" => Ok(text.to_owned()),
        _ => Err(format!("{text:?} is neither tcp nor udp")),
    }
}

/// `[[ip:]published:]target[/protocol]`. Ranges race inside the engine (reports 15, 16) and are refused.
fn short_port(text: &str) -> Result<Port, String> {
    let (front, protocol_text) = text.split_once('/').unwrap_or((text, "tcp"));
    let protocol = protocol(protocol_text)?;
    let (host, target) = front.rsplit_once(':').map_or((None, front), |(host, target)| (Some(host), target));
    if front.contains('-') {
        return Err(format!("{text:?}: port ranges are not supported; write one port for each"));
    }
    let target = target.parse().map_err(|_| format!("{text:?} is no port"))?;
    Ok(Port { target, protocol, asked: host.map(str::to_owned) })
}

pub(super) fn mounts(node: &Node, dir: &Path, warnings: &mut Vec<String>) -> Read<Vec<Mount>> {
    node.list("volumes")?.iter().map(|item| mount(item, dir, warnings)).collect()
}

fn mount(node: &Node, dir: &Path, warnings: &mut Vec<String>) -> Read<Mount> {
    if let Value::Scalar { text, .. } = &node.value {
        return short_mount(text, dir).map_err(|reason| FileError::new(&node.at, reason));
    }
    check_keys(node, "service.volumes", warnings)?;
    for part in ["volume", "tmpfs", "bind"] {
        if let Some(inner) = node.get(part) {
            check_keys(inner, &format!("service.volumes.{part}"), warnings)?;
        }
    }
    let need = |key: &str| {
        let value = node.opt(key, Node::string)?;
        value.ok_or_else(|| FileError::new(&node.at, format!("a mount needs `{key}`")))
    };
    let target = need("target")?;
    let source = match need("type")?.as_str() {
        "bind" => {
            let inner = node.get("bind");
            let create = inner.map(|bind| bind.opt("create_host_path", Node::boolean)).transpose()?.flatten();
            if create == Some(true) {
                let text =
                    "`create_host_path: true` hides a missing file behind an empty folder; make the source";
                return Err(FileError::new(&node.at, text));
            }
            MountSource::Bind(tidy(&dir.join(need("source")?)))
        }
        "volume" => {
            let inner = node.get("volume");
            let nocopy = inner.map(|volume| volume.opt("nocopy", Node::boolean)).transpose()?.flatten();
            MountSource::Volume { key: need("source")?, nocopy: nocopy.unwrap_or(false) }
        }
        "tmpfs" => {
            let inner = node.get("tmpfs");
            let size = inner.map(|t| t.opt("size", |n, k| n.parsed(k, units::bytes))).transpose()?.flatten();
            let mode = inner.map(|t| t.opt("mode", |n, k| n.parsed(k, octal))).transpose()?.flatten();
            // 0 is no limit, as without the key.
            MountSource::Tmpfs { size: size.filter(|size| *size > 0), mode }
        }
        other => {
            let text = format!("mounts of type {other:?} are not supported; known: bind, volume, tmpfs");
            return Err(FileError::new(&node.at, text));
        }
    };
    let read_only = node.opt("read_only", Node::boolean)?.unwrap_or(false);
    Ok(Mount { target: tidy_text(&target), source, read_only })
}

/// A path without `.` and slashes that say nothing: `/a/./b/` is `/a/b`, and one mount must not hide behind the other's
/// spelling.
fn tidy(path: &Path) -> PathBuf {
    path.components().collect()
}

fn tidy_text(path: &str) -> String {
    tidy(Path::new(path)).display().to_string()
}

fn octal(text: &str) -> Result<i64, String> {
    i64::from_str_radix(text.trim_start_matches("0o"), 8).map_err(|_| format!("{text:?} is no octal mode"))
}

/// `SRC:DST[:opts]`. Unknown options are refused; Compose ignores them silently.
fn short_mount(text: &str, dir: &Path) -> Result<Mount, String> {
    let parts: Vec<&str> = text.split(':').collect();
    let (source, target, options) = match parts.as_slice() {
        [_] => return Err(format!("{text:?} is an anonymous volume; name it, or use tmpfs")),
        [source, target] => (*source, *target, ""),
        [source, target, options] => (*source, *target, *options),
        _ => return Err(format!("{text:?} is no SOURCE:TARGET[:OPTIONS]")),
    };
    if !target.starts_with('/') {
        return Err(format!("{text:?}: the target must be an absolute path"));
    }
    let mut read_only = false;
    let mut nocopy = false;
    for option in options.split(',').filter(|option| !option.is_empty()) {
        match option {
            "ro" => read_only = true,
            "rw" => {}
            "nocopy" => nocopy = true,
            other => return Err(format!("{text:?}: unknown option {other:?}; known: ro, rw, nocopy")),
        }
    }
    let source = if let Some(rest) = source.strip_prefix('~') {
        return Err(format!("{text:?}: `~{rest}` is another folder on every machine; write a relative path"));
    } else if source.starts_with(['.', '/']) {
        MountSource::Bind(tidy(&dir.join(source)))
    } else {
        MountSource::Volume { key: source.to_owned(), nocopy }
    };
    Ok(Mount { target: tidy_text(target), source, read_only })
}

/// Secrets and configs of a service are read-only files.
pub(super) fn files(
    node: &Node,
    key: &str,
    known: &BTreeMap<String, std::path::PathBuf>,
    warnings: &mut Vec<String>,
) -> Read<Vec<Mount>> {
    let mut mounts = Vec::new();
    for item in node.list(key)? {
        let (source, target) = match &item.value {
            Value::Scalar { text, .. } => (text.clone(), None),
            _ => {
                check_keys(item, "service.files", warnings)?;
                let source = item.opt("source", Node::string)?;
                let source = source.ok_or_else(|| FileError::new(&item.at, "`source` is missing"))?;
                (source, item.opt("target", Node::string)?)
            }
        };
        let Some(path) = known.get(&source) else {
            return Err(FileError::new(
                &item.at,
                format!("{source:?} is not defined under top-level `{key}`"),
            ));
        };
        let folder = if key == "secrets" { "/run/secrets/" } else { "/" };
        let target = target.map_or_else(
            || format!("{folder}{source}"),
            |target| if target.starts_with('/') { target } else { format!("{folder}{target}") },
        );
        let source = MountSource::Bind(tidy(path));
        mounts.push(Mount { target: tidy_text(&target), source, read_only: true });
    }
    Ok(mounts)
}

pub(super) fn tmpfs(node: &Node) -> Read<Vec<Mount>> {
    let one = |text: String| -> Read<Mount> {
        let (target, options) = text.split_once(':').unwrap_or((&text, ""));
        let mut size = None;
        let mut mode = None;
        for option in options.split(',').filter(|option| !option.is_empty()) {
            let bad = |reason: String| FileError::new(&node.at, format!("tmpfs {text:?}: {reason}"));
            match option.split_once('=') {
                Some(("size", value)) => size = Some(units::bytes(value).map_err(bad)?),
                Some(("mode", value)) => mode = Some(octal(value).map_err(bad)?),
                _ => return Err(bad(format!("unknown option {option:?}; known: size=, mode="))),
            }
        }
        Ok(Mount { target: tidy_text(target), source: MountSource::Tmpfs { size, mode }, read_only: false })
    };
    node.strings("tmpfs")?.into_iter().map(one).collect()
}

pub(super) fn attachments(node: &Node, warnings: &mut Vec<String>) -> Read<BTreeMap<String, Attachment>> {
    let mut all = BTreeMap::new();
    for Entry { key, node, .. } in node.map("networks")? {
        node.map(key)?;
        check_keys(node, "service.networks", warnings)?;
        let aliases = node.opt("aliases", Node::strings)?.unwrap_or_default();
        all.insert(key.clone(), Attachment { aliases, ipv4: node.opt("ipv4_address", Node::number)? });
    }
    Ok(all)
}

pub(super) fn dependencies(node: &Node, warnings: &mut Vec<String>) -> Read<BTreeMap<String, Dependency>> {
    let mut all = BTreeMap::new();
    for Entry { key, node, .. } in node.map("depends_on")? {
        node.map(key)?;
        check_keys(node, "service.depends_on", warnings)?;
        let condition = node.opt("condition", |node, what| {
            node.parsed(what, |text| match text {
                "service_started" => Ok(Condition::ServiceStarted),
                "service_healthy" => Ok(Condition::ServiceHealthy),
                "service_completed_successfully" => Ok(Condition::ServiceCompletedSuccessfully),
                other => Err(format!(
                    "{other:?} is no condition; known: service_started, service_healthy, \
                     service_completed_successfully"
                )),
            })
        })?;
        let dependency = Dependency {
            condition: condition.unwrap_or(Condition::ServiceStarted),
            required: node.opt("required", Node::boolean)?.unwrap_or(true),
            restart: node.opt("restart", Node::boolean)?.unwrap_or(false),
        };
        all.insert(key.clone(), dependency);
    }
    Ok(all)
}

pub(super) fn healthcheck(node: &Node, warnings: &mut Vec<String>) -> Read<HealthCheck> {
    node.map("healthcheck")?;
    check_keys(node, "service.healthcheck", warnings)?;
    let time = |key: &str| {
        node.opt(key, |node, what| {
            node.parsed(what, |text| {
                let time = units::duration(text)?;
                if time != Duration::ZERO && time < HEALTH_TIME_MIN {
                    return Err(format!("{text:?} is below 1ms, the engine's smallest"));
                }
                Ok(time)
            })
        })
    };
    let mut check = HealthCheck {
        test: node.opt("test", test)?,
        interval: time("interval")?,
        timeout: time("timeout")?,
        retries: node.opt("retries", Node::number)?,
        start_period: time("start_period")?,
        start_interval: time("start_interval")?,
    };
    if node.opt("disable", Node::boolean)? == Some(true) {
        check.test = Some(vec!["NONE".to_owned()]);
    }
    if check.start_interval.is_some() && check.start_period.is_none() {
        let at = node.get("start_interval").map_or(&node.at, |node| &node.at);
        return Err(FileError::new(at, "`start_interval` needs `start_period` beside it"));
    }
    Ok(check)
}

fn test(node: &Node, what: &str) -> Read<Vec<String>> {
    if let Value::Scalar { text, .. } = &node.value {
        return Ok(vec!["CMD-SHELL".to_owned(), text.clone()]);
    }
    let words = node.strings(what)?;
    match words.first().map(String::as_str) {
        Some("NONE" | "CMD" | "CMD-SHELL") => Ok(words),
        _ => Err(FileError::new(&node.at, "a list must begin with NONE, CMD or CMD-SHELL")),
    }
}

/// `x-ready: { tcp: 80 }` or `x-ready: { http: 80, path: /healthz }`.
pub(super) fn probe(node: &Node) -> Read<Probe> {
    if let Some(entry) =
        node.map("x-ready")?.iter().find(|e| !["tcp", "http", "path"].contains(&e.key.as_str()))
    {
        let text = format!("unknown key `{}` of x-ready; known: tcp, http, path", entry.key);
        return Err(FileError::new(&entry.at, text));
    }
    let path = node.opt("path", Node::string)?;
    match (node.opt("tcp", Node::number)?, node.opt("http", Node::number)?) {
        (Some(port), None) => Ok(Probe::Tcp { port }),
        (None, Some(port)) => Ok(Probe::Http { port, path: path.unwrap_or_else(|| "/".to_owned()) }),
        _ => Err(FileError::new(&node.at, "x-ready takes one of `tcp: PORT` and `http: PORT`")),
    }
}

pub(super) fn restart(node: &Node, what: &str) -> Read<Restart> {
    node.parsed(what, |text| match text.split_once(':') {
        None => match text {
            "no" | "false" => Ok(Restart::No),
            "always" => Ok(Restart::Always),
            "on-failure" => Ok(Restart::OnFailure(0)),
            "unless-stopped" => Ok(Restart::UnlessStopped),
            other => {
                Err(format!("{other:?} is no policy; known: no, always, on-failure[:N], unless-stopped"))
            }
        },
        Some(("on-failure", count)) => {
            count.parse().map(Restart::OnFailure).map_err(|_| format!("{count:?} is no count"))
        }
        Some(_) => Err(format!("{text:?} is no policy")),
    })
}

pub(super) fn build(node: &Node, dir: &Path, warnings: &mut Vec<String>) -> Read<Build> {
    node.map("build")?;
    check_keys(node, "service.build", warnings)?;
    let context = node.opt("context", Node::string)?;
    let context = context.ok_or_else(|| FileError::new(&node.at, "`build` needs `context`"))?;
    if context.contains("://") || context.starts_with("git@") {
        return Err(FileError::new(&node.at, "a build context must be a folder of this machine"));
    }
    Ok(Build {
        context: tidy(&dir.join(context)),
        dockerfile: node.opt("dockerfile", Node::string)?.unwrap_or_else(|| "Dockerfile".to_owned()),
        target: node.opt("target", Node::string)?,
        args: node.opt("args", Node::string_map)?.unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_keep_the_container_side_and_what_was_asked() {
        let port = |text| short_port(text).map(|port| (port.target, port.protocol, port.asked));
        assert_eq!(port("80").unwrap(), (80, "tcp".to_owned(), None));
        assert_eq!(port("8080:80").unwrap(), (80, "tcp".to_owned(), Some("8080".to_owned())));
        assert_eq!(port("127.0.0.1::53/udp").unwrap(), (53, "udp".to_owned(), Some("127.0.0.1:".to_owned())));
        for text in ["a", "80/sctp", "1-2:3-4", "99999"] {
            assert!(short_port(text).is_err(), "{text}");
        }
    }

    #[test]
    fn report_15_a_port_range_is_refused() {
        assert!(short_port("8000-8010:80").unwrap_err().contains("ranges"));
    }

    #[test]
    fn mounts_are_binds_by_their_first_character_and_options_are_known() {
        let mount = |text| short_mount(text, Path::new("/p"));
        let bind = MountSource::Bind("/p/./d".into());
        assert_eq!(mount("./d:/d:ro").unwrap(), Mount { target: "/d".into(), source: bind, read_only: true });
        let volume = MountSource::Volume { key: "v".into(), nocopy: true };
        assert_eq!(
            mount("v:/d:nocopy").unwrap(),
            Mount { target: "/d".into(), source: volume, read_only: false }
        );
        for text in ["/data", "v:relative", "v:/d:cached", "~/x:/d", "a:b:c:d"] {
            assert!(mount(text).is_err(), "{text}");
        }
    }
}

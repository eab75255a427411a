//! From the merged tree to the typed project.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use super::reader::{Read, check_keys};
use super::tree::{Entry, Node, Value};
use super::{HostOptions, Network, Project, PullPolicy, Service, Volume, parts, units};
use crate::error::FileError;

/// Labels that only the engine may set.
pub const RESERVED: [&str; 2] = [crate::labels::COMPOSE_PREFIX, crate::labels::OWN_PREFIX];

/// Reads the whole project. `env_file` gives the text of a file that a service names.
pub(super) fn project(
    root: &Node,
    dir: &Path,
    env_file: &dyn Fn(&Path) -> Result<String, String>,
    profiles: &[String],
) -> Read<Project> {
    root.map("the file")?;
    let mut warnings = Vec::new();
    check_keys(root, "top", &mut warnings)?;
    let mut project = Project { dir: dir.to_path_buf(), ..Project::default() };
    project.name = root.opt("name", Node::string)?;
    project.secrets = files(root, "secrets", dir, &mut warnings)?;
    project.configs = files(root, "configs", dir, &mut warnings)?;
    for Entry { key, node, .. } in section(root, "networks")? {
        project.networks.insert(key.clone(), network(key, node, &mut warnings)?);
    }
    for Entry { key, node, .. } in section(root, "volumes")? {
        node.map(key)?;
        check_keys(node, "volume", &mut warnings)?;
        let driver = node.opt("driver", Node::string)?;
        if driver.is_some_and(|driver| driver != "local") {
            return Err(FileError::new(&node.at, "only the driver `local` is supported"));
        }
        let labels = node.opt("labels", labels)?.unwrap_or_default();
        project.volumes.insert(key.clone(), Volume { labels });
    }
    for Entry { key, at, node } in section(root, "services")? {
        if !key.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b)) {
            return Err(FileError::new(
                at,
                format!("{key:?} is no service name: letters, digits and ._- only"),
            ));
        }
        let service = Reader { project: &project, dir, env_file, warnings: &mut warnings }.service(node)?;
        // A service of a profile that is not chosen does not exist in this run.
        if service.profiles.is_empty() || service.profiles.iter().any(|own| profiles.contains(own)) {
            project.services.insert(key.clone(), service);
        }
    }
    project.warnings = warnings;
    Ok(project)
}

fn section<'a>(root: &'a Node, key: &str) -> Read<&'a [Entry]> {
    root.get(key).map_or(Ok(&[]), |node| node.map(key))
}

fn files(root: &Node, key: &str, dir: &Path, warnings: &mut Vec<String>) -> Read<BTreeMap<String, PathBuf>> {
    let mut all = BTreeMap::new();
    for Entry { key, node, .. } in section(root, key)? {
        node.map(key)?;
        check_keys(node, "file", warnings)?;
        let file = node.opt("file", Node::string)?;
        let file = file.ok_or_else(|| FileError::new(&node.at, format!("{key:?} needs `file`")))?;
        all.insert(key.clone(), dir.join(file));
    }
    Ok(all)
}

fn network(key: &str, node: &Node, warnings: &mut Vec<String>) -> Read<Network> {
    node.map(key)?;
    check_keys(node, "network", warnings)?;
    if node.opt("driver", Node::string)?.is_some_and(|driver| driver != "bridge") {
        return Err(FileError::new(
            &node.at,
            format!("network {key}: only the driver `bridge` is supported"),
        ));
    }
    let mut network = Network {
        at: Some(node.at.clone()),
        internal: node.opt("internal", Node::boolean)?.unwrap_or(false),
        labels: node.opt("labels", labels)?.unwrap_or_default(),
        options: node.opt("driver_opts", Node::string_map)?.unwrap_or_default(),
        ..Network::default()
    };
    if let Some(ipam) = node.get("ipam") {
        check_keys(ipam, "network.ipam", warnings)?;
        let configs =
            ipam.opt("config", |node, what| node.list(what).map(<[Node]>::to_vec))?.unwrap_or_default();
        if configs.len() > 1 {
            return Err(FileError::new(&ipam.at, format!("network {key}: one IPv4 subnet is supported")));
        }
        if let Some(config) = configs.first() {
            check_keys(config, "network.ipam.config", warnings)?;
            network.subnet = config.opt("subnet", |node, what| node.parsed(what, subnet))?;
            network.gateway = config.opt("gateway", Node::number)?;
        }
    }
    Ok(network)
}

/// `10.9.0.0/24`.
fn subnet(text: &str) -> Result<(Ipv4Addr, u8), String> {
    let bad = || format!("{text:?} is no IPv4 subnet such as 10.9.0.0/24");
    let (address, prefix) = text.split_once('/').ok_or_else(bad)?;
    let prefix: u8 = prefix.parse().map_err(|_| bad())?;
    let address: Ipv4Addr = address.parse().map_err(|_| bad())?;
    if !(8..=30).contains(&prefix) || u32::from(address) & ((1_u32 << (32 - prefix)) - 1) != 0 {
        return Err(bad());
    }
    Ok((address, prefix))
}

fn labels(node: &Node, what: &str) -> Read<BTreeMap<String, String>> {
    let labels = node.string_map(what)?;
    for key in labels.keys() {
        if let Some(prefix) = RESERVED.iter().find(|prefix| key.starts_with(**prefix)) {
            return Err(FileError::new(
                &node.at,
                format!("label {key:?}: the prefix {prefix:?} is reserved"),
            ));
        }
    }
    Ok(labels)
}

fn command(node: &Node, what: &str) -> Read<Vec<String>> {
    match &node.value {
        Value::Scalar { .. } => node.parsed(what, units::split),
        _ => node.strings(what),
    }
}

struct Reader<'a> {
    project: &'a Project,
    dir: &'a Path,
    env_file: &'a dyn Fn(&Path) -> Result<String, String>,
    warnings: &'a mut Vec<String>,
}

impl Reader<'_> {
    fn service(&mut self, node: &Node) -> Read<Service> {
        node.map("a service")?;
        check_keys(node, "service", self.warnings)?;
        let networks = node.get("networks").map(|n| parts::attachments(n, self.warnings)).transpose()?;
        let network_none = self.network_none(node)?;
        let mut networks = networks.unwrap_or_default();
        if networks.is_empty() && !network_none {
            networks.insert("default".to_owned(), super::Attachment::default());
        }
        let build = node.get("build").map(|n| parts::build(n, self.dir, self.warnings)).transpose()?;
        let pull = node.opt("pull_policy", pull_policy)?;
        let missing = if build.is_some() { PullPolicy::Build } else { PullPolicy::Missing };
        Ok(Service {
            at: node.at.clone(),
            image: node.opt("image", Node::string)?,
            build,
            command: node.opt("command", command)?,
            entrypoint: node.opt("entrypoint", command)?,
            environment: self.environment(node)?,
            working_dir: node.opt("working_dir", Node::string)?,
            user: node.opt("user", Node::string)?,
            depends_on: node
                .get("depends_on")
                .map(|n| parts::dependencies(n, self.warnings))
                .transpose()?
                .unwrap_or_default(),
            healthcheck: node.get("healthcheck").map(|n| parts::healthcheck(n, self.warnings)).transpose()?,
            restart: node.opt("restart", parts::restart)?.unwrap_or_default(),
            networks,
            network_none,
            ports: node.get("ports").map(|n| parts::ports(n, self.warnings)).transpose()?.unwrap_or_default(),
            expose: node.opt("expose", Node::strings)?.unwrap_or_default(),
            mounts: self.mounts(node)?,
            host: self.host(node)?,
            stop_signal: node.opt("stop_signal", Node::string)?,
            stop_grace: node.opt("stop_grace_period", |n, k| n.parsed(k, units::duration))?,
            labels: node.opt("labels", labels)?.unwrap_or_default(),
            hostname: node.opt("hostname", Node::string)?,
            platform: node.opt("platform", Node::string)?,
            log_options: self.logging(node)?,
            pull: pull.unwrap_or(missing),
            profiles: node.opt("profiles", Node::strings)?.unwrap_or_default(),
            stdin_open: node.opt("stdin_open", Node::boolean)?.unwrap_or(false),
            ready: node.get("x-ready").map(parts::probe).transpose()?,
        })
    }

    fn network_none(&self, node: &Node) -> Read<bool> {
        let Some(mode) = node.get("network_mode") else { return Ok(false) };
        if mode.string("network_mode")? != "none" {
            let text =
                "only `network_mode: none` is supported: host and shared networks break runs side by side";
            return Err(FileError::new(&mode.at, text));
        }
        if node.get("networks").is_some() {
            return Err(FileError::new(&mode.at, "`network_mode` and `networks` exclude each other"));
        }
        Ok(true)
    }

    /// `environment` over `env_file`, later files over earlier ones.
    fn environment(&self, node: &Node) -> Read<BTreeMap<String, Option<String>>> {
        let mut all = BTreeMap::new();
        if let Some(files) = node.get("env_file") {
            for file in files.strings("env_file")? {
                let path = self.dir.join(&file);
                let text = (self.env_file)(&path)
                    .map_err(|reason| FileError::new(&files.at, format!("env_file {file}: {reason}")))?;
                for line in
                    text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'))
                {
                    let (key, value) = line.split_once('=').unwrap_or((line, ""));
                    let value = value.trim();
                    let quoted = ['"', '\''].iter().find_map(|q| value.strip_prefix(*q)?.strip_suffix(*q));
                    all.insert(key.trim().to_owned(), Some(quoted.unwrap_or(value).to_owned()));
                }
            }
        }
        if let Some(own) = node.get("environment") {
            for Entry { key, node, .. } in own.map("environment")? {
                let value = match node.value {
                    Value::Null => None,
                    _ => Some(node.string(key)?),
                };
                all.insert(key.clone(), value);
            }
        }
        Ok(all)
    }

    fn mounts(&mut self, node: &Node) -> Read<Vec<super::Mount>> {
        let mut all = Vec::new();
        if let Some(volumes) = node.get("volumes") {
            all.extend(parts::mounts(volumes, self.dir, self.warnings)?);
        }
        if let Some(tmpfs) = node.get("tmpfs") {
            all.extend(parts::tmpfs(tmpfs)?);
        }
        for (key, known) in [("secrets", &self.project.secrets), ("configs", &self.project.configs)] {
            if let Some(files) = node.get(key) {
                all.extend(parts::files(files, key, known, self.warnings)?);
            }
        }
        for (index, mount) in all.iter().enumerate() {
            if all[..index].iter().any(|other| other.target == mount.target) {
                return Err(FileError::new(&node.at, format!("two mounts end at {:?}", mount.target)));
            }
        }
        Ok(all)
    }

    fn logging(&mut self, node: &Node) -> Read<BTreeMap<String, String>> {
        let Some(logging) = node.get("logging") else { return Ok(BTreeMap::new()) };
        check_keys(logging, "service.logging", self.warnings)?;
        let driver = logging.opt("driver", Node::string)?;
        if driver.is_some_and(|driver| driver != "json-file") {
            let text =
                "only the log driver `json-file` is supported: logs are evidence and must be read back";
            return Err(FileError::new(&logging.at, text));
        }
        Ok(logging.opt("options", Node::string_map)?.unwrap_or_default())
    }

    fn host(&mut self, node: &Node) -> Read<HostOptions> {
        let mut options = HostOptions {
            cap_add: node.opt("cap_add", Node::strings)?.unwrap_or_default(),
            cap_drop: node.opt("cap_drop", Node::strings)?.unwrap_or_default(),
            security_opt: node.opt("security_opt", Node::strings)?.unwrap_or_default(),
            privileged: node.opt("privileged", Node::boolean)?.unwrap_or(false),
            init: node.opt("init", Node::boolean)?,
            ulimits: node.get("ulimits").map(|n| self.ulimits(n)).transpose()?.unwrap_or_default(),
            sysctls: node.opt("sysctls", Node::string_map)?.unwrap_or_default(),
            shm_bytes: node.opt("shm_size", |n, k| n.parsed(k, units::bytes))?,
            extra_hosts: node.opt("extra_hosts", extra_hosts)?.unwrap_or_default(),
            read_only: node.opt("read_only", Node::boolean)?.unwrap_or(false),
            mem_bytes: node.opt("mem_limit", |n, k| n.parsed(k, units::bytes))?,
            nano_cpus: node.opt("cpus", |n, k| n.parsed(k, cpus))?,
            pids: node.opt("pids_limit", Node::number)?,
        };
        if let Some(deploy) = node.get("deploy") {
            check_keys(deploy, "service.deploy", self.warnings)?;
            if let Some(resources) = deploy.get("resources") {
                check_keys(resources, "service.deploy.resources", self.warnings)?;
                if let Some(limits) = resources.get("limits") {
                    check_keys(limits, "service.deploy.resources.limits", self.warnings)?;
                    let memory = limits.opt("memory", |n, k| n.parsed(k, units::bytes))?;
                    options.mem_bytes = memory.or(options.mem_bytes);
                    options.nano_cpus = limits.opt("cpus", |n, k| n.parsed(k, cpus))?.or(options.nano_cpus);
                    options.pids = limits.opt("pids", Node::number)?.or(options.pids);
                }
            }
        }
        Ok(options)
    }

    fn ulimits(&mut self, node: &Node) -> Read<Vec<(String, i64, i64)>> {
        let mut all = Vec::new();
        for Entry { key, node, .. } in node.map("ulimits")? {
            let (soft, hard) = match &node.value {
                Value::Scalar { .. } => {
                    let both = node.number(key)?;
                    (both, both)
                }
                _ => {
                    check_keys(node, "service.ulimits", self.warnings)?;
                    let need = |name: &str| {
                        let value = node.opt(name, Node::number)?;
                        value.ok_or_else(|| FileError::new(&node.at, format!("ulimit {key} needs `{name}`")))
                    };
                    (need("soft")?, need("hard")?)
                }
            };
            all.push((key.clone(), soft, hard));
        }
        Ok(all)
    }
}

/// `name:address`, `name=address`, or a map of names; the engine takes the first form. An address may stand in brackets.
fn extra_hosts(node: &Node, what: &str) -> Read<Vec<String>> {
    let mut all = Vec::new();
    let mut add = |name: &str, address: &str| {
        let address = address.trim_start_matches('[').trim_end_matches(']');
        all.push(format!("{name}:{address}"));
    };
    if let Value::Map(entries) = &node.value {
        for Entry { key, node, .. } in entries {
            node.strings(what)?.iter().for_each(|address| add(key, address));
        }
    } else {
        for item in node.list(what)? {
            let text = item.string(what)?;
            let (name, addresses) = text
                .split_once(['=', ':'])
                .ok_or_else(|| FileError::new(&item.at, format!("{text:?} is no NAME:ADDRESS")))?;
            addresses.split(',').for_each(|address| add(name, address));
        }
    }
    Ok(all)
}

fn cpus(text: &str) -> Result<i64, String> {
    let value: f64 = text.parse().map_err(|_| format!("{text:?} is no number of cores"))?;
    if !(0.001..=4_096.0).contains(&value) {
        return Err(format!("{text:?} is no number of cores"));
    }
    #[expect(clippy::cast_possible_truncation, reason = "the range was checked")]
    Ok((value * 1e9).round() as i64)
}

fn pull_policy(node: &Node, what: &str) -> Read<PullPolicy> {
    node.parsed(what, |text| match text {
        "missing" | "if_not_present" => Ok(PullPolicy::Missing),
        "always" => Ok(PullPolicy::Always),
        "never" => Ok(PullPolicy::Never),
        "build" => Ok(PullPolicy::Build),
        other => Err(format!("{other:?} is not supported; known: missing, always, never, build")),
    })
}

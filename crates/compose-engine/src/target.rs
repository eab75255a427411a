//! From a project to what a run of it needs: names, labels, specifications, edges.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::path::PathBuf;

use serde::Serialize;

use crate::error::ComposeError;
use crate::labels::{self, RunMark};
use crate::model::{Build, Dependency, MountSource, Project, PullPolicy, Service};
use crate::ready::Probe;
use crate::spec::{ContainerSpec, Endpoint, EndpointSpec, MountSpec, hash};
use crate::subnet::Net;

/// Longest container name: it becomes a DNS label.
const NAME_LEN_MAX: usize = 63;

/// A network of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NetworkSpec {
    /// Labels of the file.
    pub labels: BTreeMap<String, String>,
    /// No way out.
    pub internal: bool,
    /// Driver options.
    pub options: BTreeMap<String, String>,
    /// Prefix length that is leased.
    pub prefix: u8,
    /// Offset of the gateway from the base.
    pub gateway_offset: u32,
    /// Static addresses as offsets.
    pub static_offsets: BTreeSet<u32>,
}

/// How the image of a service comes to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageSource {
    /// Name.
    pub reference: String,
    /// Recipe.
    pub build: Option<Build>,
    /// Pull policy.
    pub pull: PullPolicy,
}

/// Everything a plan is made from.
#[derive(Clone, Debug)]
pub struct Target {
    /// Project name.
    pub project: String,
    /// Mark of the run.
    pub mark: RunMark,
    /// Folder of the first file.
    pub dir: PathBuf,
    /// Files.
    pub files: Vec<PathBuf>,
    /// Containers by service.
    pub containers: BTreeMap<String, ContainerSpec>,
    /// Images by service.
    pub images: BTreeMap<String, ImageSource>,
    /// Edges by service.
    pub edges: BTreeMap<String, BTreeMap<String, Dependency>>,
    /// Networks by key.
    pub networks: BTreeMap<String, NetworkSpec>,
    /// Volumes by key: labels of the file.
    pub volumes: BTreeMap<String, BTreeMap<String, String>>,
    /// Own probes by service.
    pub probes: BTreeMap<String, Probe>,
    /// Services that end by themselves with code 0.
    pub one_shots: BTreeSet<String>,
    /// Folder that bind sources are copied to; bind sources are used in place without one.
    pub copies: Option<PathBuf>,
    /// Folders that are the run's own: what lies in them is mounted in place.
    pub own: Vec<PathBuf>,
}

/// A project name as Compose allows it.
///
/// # Errors
/// [`ComposeError::Request`] when it is not normal.
pub fn project_name(name: &str) -> Result<&str, ComposeError> {
    let head = name.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit());
    let body = name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-_".contains(&b));
    if head && body {
        return Ok(name);
    }
    Err(ComposeError::Request(format!(
        "{name:?} is no project name: lower-case letters, digits, - and _, a letter or digit first"
    )))
}

/// `ds-<scenario up to 16>-<six characters of the run id>`: never from a folder (report 13).
#[must_use]
pub fn run_project(scenario: &str, six: &str) -> String {
    let clean = |text: &str, max: usize| -> String {
        let lower = text.to_ascii_lowercase();
        let kept = lower.chars().filter(|c| c.is_ascii_alphanumeric() || "-_".contains(*c));
        kept.take(max).collect()
    };
    format!("ds-{}-{}", clean(scenario, 16), clean(six, 6))
}

impl Target {
    /// Names, labels and specifications of a run.
    ///
    /// # Errors
    /// [`ComposeError`] for a bad project name, a name that is too long, or a bind source that is not there.
    pub fn new(
        project: &Project,
        name: &str,
        mark: RunMark,
        copies: Option<PathBuf>,
    ) -> Result<Self, ComposeError> {
        let name = project_name(name)?.to_owned();
        let mut target = Self {
            dir: std::path::absolute(&project.dir).map_err(ComposeError::io(&project.dir))?,
            files: project.files.iter().filter_map(|file| std::path::absolute(file).ok()).collect(),
            project: name,
            mark,
            containers: BTreeMap::new(),
            images: BTreeMap::new(),
            edges: BTreeMap::new(),
            networks: BTreeMap::new(),
            volumes: project.volumes.iter().map(|(key, v)| (key.clone(), v.labels.clone())).collect(),
            probes: BTreeMap::new(),
            one_shots: BTreeSet::new(),
            copies,
            own: Vec::new(),
        };
        for (key, network) in &project.networks {
            let base = network.subnet.map(|(base, _)| u32::from(base));
            let offset = |address: Ipv4Addr| base.map(|base| u32::from(address).wrapping_sub(base));
            let attached = project.services.values().filter_map(|s| s.networks.get(key)?.ipv4);
            let spec = NetworkSpec {
                labels: network.labels.clone(),
                internal: network.internal,
                options: network.options.clone(),
                // Runs lease /24 unless the file asks for a smaller network.
                prefix: network.subnet.map_or(24, |(_, prefix)| prefix.max(24)),
                gateway_offset: network.gateway.and_then(offset).unwrap_or(1),
                static_offsets: attached.filter_map(offset).collect(),
            };
            if spec.static_offsets.iter().any(|offset| *offset >= 1 << (32 - u32::from(spec.prefix))) {
                let text =
                    format!("network {key}: a static address lies beyond the /{} of a run", spec.prefix);
                return Err(ComposeError::Request(text));
            }
            target.networks.insert(key.clone(), spec);
        }
        for (key, service) in &project.services {
            target.service(project, key, service)?;
        }
        Ok(target)
    }

    fn service(&mut self, project: &Project, key: &str, service: &Service) -> Result<(), ComposeError> {
        let name = self.container_name(key);
        if name.len() > NAME_LEN_MAX {
            let text = format!(
                "the container name {name:?} is longer than {NAME_LEN_MAX} characters; shorten the service"
            );
            return Err(ComposeError::Request(text));
        }
        let image = service.image.clone().unwrap_or_else(|| format!("{}-{key}", self.project));
        let endpoints = service.networks.iter().map(|(network, attachment)| {
            let base = project.networks.get(network).and_then(|network| network.subnet);
            let offset = attachment.ipv4.zip(base).map(|(ip, (base, _))| u32::from(ip) - u32::from(base));
            EndpointSpec {
                network: network.clone(),
                aliases: attachment.aliases.clone(),
                host_offset: offset,
            }
        });
        let spec = ContainerSpec {
            service: key.to_owned(),
            image: image.clone(),
            entrypoint: service.entrypoint.clone(),
            command: service.command.clone(),
            environment: service.environment.clone(),
            working_dir: service.working_dir.clone(),
            user: service.user.clone(),
            labels: service.labels.clone(),
            hostname: service.hostname.clone(),
            healthcheck: service.healthcheck.clone(),
            restart: service.restart,
            endpoints: endpoints.collect(),
            ports: service.ports.clone(),
            expose: service.expose.clone(),
            mounts: self.mounts(service)?,
            host: service.host.clone(),
            stop_signal: service.stop_signal.clone(),
            stop_grace: service.stop_grace,
            platform: service.platform.clone(),
            log_options: service.log_options.clone(),
            stdin_open: service.stdin_open,
        };
        self.containers.insert(key.to_owned(), spec);
        let source = ImageSource { reference: image, build: service.build.clone(), pull: service.pull };
        self.images.insert(key.to_owned(), source);
        let edges = service.depends_on.iter().filter(|(other, _)| project.services.contains_key(*other));
        self.edges.insert(key.to_owned(), edges.map(|(other, edge)| (other.clone(), *edge)).collect());
        if let Some(probe) = &service.ready {
            self.probes.insert(key.to_owned(), probe.clone());
        }
        for (other, edge) in &service.depends_on {
            if edge.condition == crate::model::Condition::ServiceCompletedSuccessfully {
                self.one_shots.insert(other.clone());
            }
        }
        Ok(())
    }

    fn mounts(&self, service: &Service) -> Result<Vec<MountSpec>, ComposeError> {
        let one = |mount: &crate::model::Mount| {
            let target = mount.target.clone();
            let read_only = mount.read_only;
            Ok(match &mount.source {
                MountSource::Volume { key, nocopy } => {
                    MountSpec::Volume { name: self.object_name(key), target, read_only, nocopy: *nocopy }
                }
                MountSource::Tmpfs { size, mode } => MountSpec::Tmpfs { target, size: *size, mode: *mode },
                MountSource::Bind(source) => {
                    // Report 33: the engine would make a folder of a missing file.
                    if !source.exists() {
                        let text =
                            format!("{}: the bind source {} is not there", service.at, source.display());
                        return Err(ComposeError::Request(text));
                    }
                    let source = std::path::absolute(source).map_err(ComposeError::io(source))?;
                    MountSpec::Bind { source, target, read_only }
                }
            })
        };
        service.mounts.iter().map(one).collect()
    }

    /// `<project>-<service>-1`.
    #[must_use]
    pub fn container_name(&self, service: &str) -> String {
        format!("{}-{service}-1", self.project)
    }

    /// Networks of a service with its names and addresses in them, once subnets are known.
    #[must_use]
    pub fn endpoints_of(&self, service: &str, subnets: &BTreeMap<String, Net>) -> Vec<Endpoint> {
        let specs = self.containers.get(service).into_iter().flat_map(|spec| &spec.endpoints);
        let one = |end: &EndpointSpec| {
            let base = subnets.get(&end.network).map(|net| net.base);
            let mut aliases = vec![service.to_owned()];
            aliases.extend(end.aliases.iter().cloned());
            Endpoint {
                network: self.object_name(&end.network),
                aliases,
                ipv4: base.zip(end.host_offset).map(|(base, offset)| (base + offset).into()),
            }
        };
        specs.map(one).collect()
    }

    /// `<project>_<key>` of a network or volume.
    #[must_use]
    pub fn object_name(&self, key: &str) -> String {
        format!("{}_{key}", self.project)
    }

    fn common(&self, hash: String) -> BTreeMap<String, String> {
        let mut labels = self.mark.labels();
        labels.insert(labels::PROJECT.to_owned(), self.project.clone());
        labels.insert(labels::CONFIG_HASH.to_owned(), hash);
        let version = concat!("proofload-", env!("CARGO_PKG_VERSION"));
        labels.insert("com.docker.compose.version".to_owned(), version.to_owned());
        labels
    }

    /// Labels of a service's container.
    #[must_use]
    pub fn container_labels(&self, service: &str, image_id: &str) -> BTreeMap<String, String> {
        let Some(spec) = self.containers.get(service) else { return BTreeMap::new() };
        let mut all = spec.labels.clone();
        all.extend(self.common(spec.config_hash()));
        let depends: Vec<String> = self.edges.get(service).into_iter().flatten().map(edge_label).collect();
        let files: Vec<String> = self.files.iter().map(|file| file.display().to_string()).collect();
        let own = [
            (labels::SERVICE, service.to_owned()),
            (labels::NUMBER, "1".to_owned()),
            (labels::ONEOFF, "False".to_owned()),
            ("com.docker.compose.project.working_dir", self.dir.display().to_string()),
            ("com.docker.compose.project.config_files", files.join(",")),
            ("com.docker.compose.depends_on", depends.join(",")),
            ("com.docker.compose.image", image_id.to_owned()),
        ];
        all.extend(own.map(|(key, value)| (key.to_owned(), value)));
        all
    }

    /// Labels of a network.
    #[must_use]
    pub fn network_labels(&self, key: &str) -> BTreeMap<String, String> {
        let Some(spec) = self.networks.get(key) else { return BTreeMap::new() };
        let mut all = spec.labels.clone();
        all.extend(self.common(hash(spec)));
        all.insert(labels::NETWORK.to_owned(), key.to_owned());
        all
    }

    /// Labels of a volume.
    #[must_use]
    pub fn volume_labels(&self, key: &str) -> BTreeMap<String, String> {
        let Some(own) = self.volumes.get(key) else { return BTreeMap::new() };
        let mut all = own.clone();
        all.extend(self.common(hash(own)));
        all.insert(labels::VOLUME.to_owned(), key.to_owned());
        all
    }
}

fn edge_label((service, edge): (&String, &Dependency)) -> String {
    format!("{service}:{}:{}", edge.condition.text(), edge.restart)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_13_the_name_comes_from_the_run_and_is_normal() {
        let name = run_project("ML-5xx with a very long name", "aB3$z9");
        assert_eq!(name, "ds-ml-5xxwithaveryl-ab3z9");
        assert_eq!(project_name(&name).unwrap(), name);
        for bad in ["Upper", "-x", "a b", ""] {
            assert!(project_name(bad).is_err(), "{bad}");
        }
    }
}

//! The one table of every key: what is read, what is refused and with which words (design compose-engine 8).
//! `docs/compose.md` is generated from it, and a test runs every sample.

/// What happens to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Read.
    Accept,
    /// Read as nothing, with one warning.
    Warn(&'static str),
    /// Refused, with a hint.
    Reject(&'static str),
}

/// One key in one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// Place, for example `service.healthcheck`.
    pub scope: &'static str,
    /// Key.
    pub name: &'static str,
    /// What happens.
    pub policy: Policy,
    /// A value in flow style that shows it.
    pub sample: &'static str,
}

const fn yes(scope: &'static str, name: &'static str, sample: &'static str) -> Key {
    Key { scope, name, policy: Policy::Accept, sample }
}

const fn no(scope: &'static str, name: &'static str, hint: &'static str) -> Key {
    Key { scope, name, policy: Policy::Reject(hint), sample: "x" }
}

const LATER: &str = "it is not read yet; write its content out";
const REPLICAS: &str = "replicas are services of their own here: write one service for each, or use x-each";
const ONE_HOST: &str = "it belongs to swarm; a run has one engine";
const SHARED: &str = "it breaks runs side by side; the name comes from project, service and number";
const NO_DEVICE: &str = "no device of the machine may enter a run";
const NAMESPACE: &str =
    "sharing a namespace makes services depend on each other unseen; use networks and volumes";
const UNUSED: &str =
    "Devshard stacks do not need it, and a key that is read but not tested would promise too much";

/// Every key.
pub const KEYS: &[Key] = &[
    yes("top", "name", "demo"),
    yes("top", "services", "{}"),
    yes("top", "networks", "{ back: {} }"),
    yes("top", "volumes", "{ data: {} }"),
    yes("top", "secrets", "{ key: { file: ./key } }"),
    yes("top", "configs", "{ conf: { file: ./conf } }"),
    Key {
        scope: "top",
        name: "version",
        policy: Policy::Warn("`version` is obsolete and means nothing"),
        sample: "'3'",
    },
    no("top", "include", LATER),
    no("top", "models", UNUSED),
    // service
    yes("service", "image", "img"),
    yes("service", "build", "{ context: ., dockerfile: Dockerfile }"),
    yes("service", "command", "[serve, --port, '80']"),
    yes("service", "entrypoint", "[/bin/app]"),
    yes("service", "environment", "{ A: b }"),
    yes("service", "env_file", "[./key]"),
    yes("service", "working_dir", "/work"),
    yes("service", "user", "'1000:1000'"),
    yes("service", "depends_on", "[other]"),
    yes("service", "healthcheck", "{ test: [CMD, /bin/app, check] }"),
    yes("service", "restart", "unless-stopped"),
    yes("service", "networks", "[default]"),
    yes("service", "network_mode", "none"),
    yes("service", "ports", "['80']"),
    yes("service", "expose", "['80']"),
    yes("service", "volumes", "['data:/data']"),
    yes("service", "tmpfs", "[/tmp]"),
    yes("service", "cap_add", "[NET_ADMIN]"),
    yes("service", "cap_drop", "[ALL]"),
    yes("service", "security_opt", "['no-new-privileges:true']"),
    yes("service", "privileged", "false"),
    yes("service", "init", "true"),
    yes("service", "ulimits", "{ nofile: { soft: 1024, hard: 2048 } }"),
    yes("service", "sysctls", "{ net.core.somaxconn: 1024 }"),
    yes("service", "shm_size", "64m"),
    yes("service", "extra_hosts", "['other:10.0.0.1']"),
    yes("service", "stop_signal", "SIGINT"),
    yes("service", "stop_grace_period", "5s"),
    yes("service", "labels", "{ a: b }"),
    yes("service", "hostname", "web"),
    yes("service", "platform", "linux/amd64"),
    yes("service", "read_only", "true"),
    yes("service", "logging", "{ driver: json-file, options: { max-size: 10m } }"),
    yes("service", "mem_limit", "64m"),
    yes("service", "cpus", "0.5"),
    yes("service", "pids_limit", "100"),
    yes("service", "deploy", "{ resources: { limits: { memory: 64m } } }"),
    yes("service", "pull_policy", "missing"),
    yes("service", "profiles", "[extra]"),
    yes("service", "secrets", "[key]"),
    yes("service", "configs", "[conf]"),
    yes("service", "stdin_open", "true"),
    no("service", "container_name", SHARED),
    no("service", "extends", LATER),
    no("service", "scale", REPLICAS),
    no("service", "develop", "a run does not watch sources; build the image before"),
    no("service", "provider", UNUSED),
    no("service", "models", UNUSED),
    no("service", "credential_spec", UNUSED),
    no("service", "pre_start", "lifecycle hooks change a service unseen; make it a one-shot service"),
    no("service", "post_start", "lifecycle hooks change a service unseen; make it a one-shot service"),
    no("service", "pre_stop", "lifecycle hooks change a service unseen; use a service action"),
    no("service", "gpus", NO_DEVICE),
    no("service", "devices", NO_DEVICE),
    no("service", "device_cgroup_rules", NO_DEVICE),
    no("service", "use_api_socket", "a service must not reach the engine"),
    no("service", "external_links", "a run reaches no container of others"),
    no("service", "links", "use networks: every service is found by its key"),
    no("service", "volumes_from", "name the volumes at both services"),
    no("service", "ipc", NAMESPACE),
    no("service", "pid", NAMESPACE),
    no("service", "uts", NAMESPACE),
    no("service", "cgroup", NAMESPACE),
    no("service", "cgroup_parent", NAMESPACE),
    no("service", "userns_mode", NAMESPACE),
    no("service", "annotations", UNUSED),
    no("service", "attach", UNUSED),
    no("service", "blkio_config", UNUSED),
    no("service", "cpu_count", UNUSED),
    no("service", "cpu_percent", UNUSED),
    no("service", "cpu_period", "use cpus"),
    no("service", "cpu_quota", "use cpus"),
    no("service", "cpu_rt_period", "use cpus"),
    no("service", "cpu_rt_runtime", "use cpus"),
    no("service", "cpu_shares", "use cpus"),
    no("service", "cpuset", UNUSED),
    no("service", "dns", "names are resolved by the engine, so that runs see no server of the machine"),
    no("service", "dns_opt", "names are resolved by the engine, so that runs see no server of the machine"),
    no(
        "service",
        "dns_search",
        "names are resolved by the engine, so that runs see no server of the machine",
    ),
    no("service", "domainname", UNUSED),
    no("service", "group_add", UNUSED),
    no("service", "isolation", UNUSED),
    no("service", "label_file", UNUSED),
    no("service", "mac_address", SHARED),
    no("service", "mem_reservation", "use mem_limit"),
    no("service", "mem_swappiness", UNUSED),
    no("service", "memswap_limit", "use mem_limit"),
    no("service", "oom_kill_disable", "an out-of-memory kill must be seen"),
    no("service", "oom_score_adj", UNUSED),
    no("service", "runtime", UNUSED),
    no("service", "storage_opt", UNUSED),
    no("service", "tty", "a terminal mixes both outputs; logs are read apart"),
    // build
    yes("service.build", "context", "."),
    yes("service.build", "dockerfile", "Dockerfile"),
    yes("service.build", "target", "final"),
    yes("service.build", "args", "{ A: b }"),
    no("service.build", "dockerfile_inline", "write it into a file"),
    no("service.build", "additional_contexts", UNUSED),
    no("service.build", "cache_from", UNUSED),
    no("service.build", "cache_to", UNUSED),
    no("service.build", "entitlements", UNUSED),
    no("service.build", "extra_hosts", UNUSED),
    no("service.build", "labels", UNUSED),
    no("service.build", "network", UNUSED),
    no("service.build", "no_cache", "images are built once per content"),
    no("service.build", "platforms", UNUSED),
    no("service.build", "privileged", UNUSED),
    no("service.build", "pull", "set pull_policy"),
    no("service.build", "secrets", UNUSED),
    no("service.build", "shm_size", UNUSED),
    no("service.build", "ssh", UNUSED),
    no("service.build", "tags", "the tag is the content's hash"),
    no("service.build", "ulimits", UNUSED),
    // depends_on
    yes("service.depends_on", "condition", "service_healthy"),
    yes("service.depends_on", "required", "false"),
    yes("service.depends_on", "restart", "true"),
    // healthcheck
    yes("service.healthcheck", "test", "[CMD, /bin/app]"),
    yes("service.healthcheck", "interval", "1s"),
    yes("service.healthcheck", "timeout", "1s"),
    yes("service.healthcheck", "retries", "3"),
    yes("service.healthcheck", "start_period", "1s"),
    yes("service.healthcheck", "start_interval", "100ms"),
    yes("service.healthcheck", "disable", "true"),
    // deploy
    yes("service.deploy", "resources", "{ limits: { cpus: '0.5' } }"),
    no("service.deploy", "replicas", REPLICAS),
    no("service.deploy", "placement", ONE_HOST),
    no("service.deploy", "update_config", ONE_HOST),
    no("service.deploy", "rollback_config", ONE_HOST),
    no("service.deploy", "restart_policy", "use restart"),
    no("service.deploy", "endpoint_mode", ONE_HOST),
    no("service.deploy", "mode", ONE_HOST),
    no("service.deploy", "labels", "use labels of the service"),
    yes("service.deploy.resources", "limits", "{ memory: 64m }"),
    no("service.deploy.resources", "reservations", "nothing reserves on one engine; the queue of runs does"),
    yes("service.deploy.resources.limits", "cpus", "'0.5'"),
    yes("service.deploy.resources.limits", "memory", "64m"),
    yes("service.deploy.resources.limits", "pids", "100"),
    // service networks
    yes("service.networks", "aliases", "[web-alias]"),
    yes("service.networks", "ipv4_address", "10.9.0.5"),
    no("service.networks", "ipv6_address", "runs use IPv4"),
    no("service.networks", "link_local_ips", UNUSED),
    no("service.networks", "mac_address", SHARED),
    no("service.networks", "priority", UNUSED),
    no("service.networks", "gw_priority", UNUSED),
    no("service.networks", "driver_opts", UNUSED),
    no("service.networks", "interface_name", UNUSED),
    // ports, long form
    yes("service.ports", "target", "80"),
    yes("service.ports", "published", "'8080'"),
    yes("service.ports", "host_ip", "127.0.0.1"),
    yes("service.ports", "protocol", "tcp"),
    yes("service.ports", "name", "web"),
    no("service.ports", "mode", ONE_HOST),
    no("service.ports", "app_protocol", UNUSED),
    // volumes, long form
    yes("service.volumes", "type", "volume"),
    yes("service.volumes", "source", "data"),
    yes("service.volumes", "target", "/data"),
    yes("service.volumes", "read_only", "true"),
    yes("service.volumes", "volume", "{ nocopy: true }"),
    yes("service.volumes", "tmpfs", "{ size: 1m }"),
    yes("service.volumes", "bind", "{ create_host_path: false }"),
    no("service.volumes", "consistency", UNUSED),
    no("service.volumes", "image", "image mounts need engine API 1.48"),
    yes("service.volumes.volume", "nocopy", "true"),
    no("service.volumes.volume", "subpath", "it needs engine API 1.45"),
    yes("service.volumes.tmpfs", "size", "1m"),
    yes("service.volumes.tmpfs", "mode", "'1777'"),
    yes("service.volumes.bind", "create_host_path", "false"),
    no("service.volumes.bind", "propagation", "sources are copied, so nothing propagates"),
    no("service.volumes.bind", "selinux", "sources are copied into the run's folder"),
    // secrets and configs of a service
    yes("service.files", "source", "key"),
    yes("service.files", "target", "/run/secrets/key"),
    no("service.files", "uid", "only uploaded files carry it; sources are files here"),
    no("service.files", "gid", "only uploaded files carry it; sources are files here"),
    no("service.files", "mode", "only uploaded files carry it; sources are files here"),
    // logging
    yes("service.logging", "driver", "json-file"),
    yes("service.logging", "options", "{ max-size: 10m }"),
    // ulimits
    yes("service.ulimits", "soft", "1"),
    yes("service.ulimits", "hard", "1"),
    // networks
    yes("network", "driver", "bridge"),
    yes("network", "internal", "true"),
    yes("network", "labels", "{ a: b }"),
    yes("network", "ipam", "{ config: [ { subnet: 10.9.0.0/24 } ] }"),
    yes("network", "driver_opts", "{ com.docker.network.driver.mtu: '1400' }"),
    no("network", "name", SHARED),
    no("network", "external", "a run joins no network of others"),
    no("network", "enable_ipv6", "runs use IPv4"),
    no("network", "enable_ipv4", "runs use IPv4"),
    no("network", "attachable", ONE_HOST),
    yes("network.ipam", "driver", "default"),
    yes("network.ipam", "config", "[ { subnet: 10.9.0.0/24 } ]"),
    no("network.ipam", "options", UNUSED),
    yes("network.ipam.config", "subnet", "10.9.0.0/24"),
    yes("network.ipam.config", "gateway", "10.9.0.1"),
    no(
        "network.ipam.config",
        "ip_range",
        "the range of dynamic addresses is set so that it meets no static one",
    ),
    no("network.ipam.config", "aux_addresses", UNUSED),
    // volumes
    yes("volume", "labels", "{ a: b }"),
    yes("volume", "driver", "local"),
    no("volume", "driver_opts", "options of the local driver can mount folders of the machine"),
    no("volume", "name", SHARED),
    no("volume", "external", "a run uses no volume of others"),
    // secrets and configs
    yes("file", "file", "./key"),
    no("file", "environment", "only files are sources; write the value into one"),
    no("file", "content", "only files are sources; write the value into one"),
    no("file", "external", "a run uses no object of others"),
    no("file", "name", SHARED),
    no("file", "template_driver", UNUSED),
];

/// The entry of a key.
#[must_use]
pub fn find(scope: &str, name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.scope == scope && key.name == name)
}

/// Names that are read in a place.
pub fn accepted(scope: &str) -> impl Iterator<Item = &'static str> {
    KEYS.iter().filter(move |key| key.scope == scope && key.policy == Policy::Accept).map(|key| key.name)
}

/// The message for a refused key, without its place.
#[must_use]
pub fn refusal(key: &Key) -> Option<String> {
    let Policy::Reject(hint) = key.policy else { return None };
    Some(format!("`{}` of a {} is not supported: {hint}", key.name, key.scope))
}

/// The table as Markdown, for `docs/compose.md`.
#[must_use]
pub fn markdown() -> String {
    let mut out = String::from("| Place | Key | What happens | Shown by |\n|---|---|---|---|\n");
    for key in KEYS {
        let (what, words) = match key.policy {
            Policy::Accept => {
                ("read".to_owned(), format!("`{}: {}`", key.name, key.sample.replace('|', "\\|")))
            }
            Policy::Warn(text) => (format!("warning: {text}"), format!("`{}: {}`", key.name, key.sample)),
            Policy::Reject(_) => ("refused".to_owned(), refusal(key).unwrap_or_default()),
        };
        out.push_str(&format!("| {} | `{}` | {what} | {words} |\n", key.scope, key.name));
    }
    out
}

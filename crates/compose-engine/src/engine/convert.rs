//! From our specifications to the API's bodies, and from its JSON to what was seen.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use bollard::models::{
    ContainerCreateBody, EndpointIpamConfig, EndpointSettings, HealthConfig, HostConfig, HostConfigLogConfig,
    Mount, MountTmpfsOptions, MountType, MountVolumeOptions, NetworkingConfig, PortBinding, ResourcesUlimits,
    RestartPolicy, RestartPolicyNameEnum,
};
use serde_json::Value;

use super::{ContainerSeen, EventSeen, ProbeSeen};
use crate::model::{HealthCheck, Restart};
use crate::spec::{ContainerCreate, Endpoint, MountSpec};

/// Log files of one container: evidence of a run fits, a runaway service does not fill the disk.
const LOG_MAX_SIZE: &str = "256m";

pub(super) fn hash_map(map: &BTreeMap<String, String>) -> HashMap<String, String> {
    map.iter().map(|(key, value)| (key.clone(), value.clone())).collect()
}

pub(super) fn endpoint(end: &Endpoint) -> EndpointSettings {
    EndpointSettings {
        aliases: Some(end.aliases.clone()),
        ipam_config: end.ipv4.map(|ip| EndpointIpamConfig {
            ipv4_address: Some(ip.to_string()),
            ..EndpointIpamConfig::default()
        }),
        ..EndpointSettings::default()
    }
}

fn nanos(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

/// `start_interval` needs API 1.44; without it the engine's own spacing holds and our probes are the faster witness.
fn health(check: &HealthCheck, start_interval: bool) -> HealthConfig {
    HealthConfig {
        test: check.test.clone(),
        interval: check.interval.map(nanos),
        timeout: check.timeout.map(nanos),
        retries: check.retries,
        start_period: check.start_period.map(nanos),
        start_interval: check.start_interval.filter(|_| start_interval).map(nanos),
    }
}

fn restart(policy: Restart) -> RestartPolicy {
    let (name, count) = match policy {
        Restart::No => (RestartPolicyNameEnum::NO, None),
        Restart::Always => (RestartPolicyNameEnum::ALWAYS, None),
        Restart::OnFailure(count) => (RestartPolicyNameEnum::ON_FAILURE, Some(count)),
        Restart::UnlessStopped => (RestartPolicyNameEnum::UNLESS_STOPPED, None),
    };
    RestartPolicy { name: Some(name), maximum_retry_count: count }
}

fn mount(spec: &MountSpec) -> Mount {
    match spec {
        MountSpec::Bind { source, target, read_only } => Mount {
            typ: Some(MountType::BIND),
            source: Some(source.display().to_string()),
            target: Some(target.clone()),
            read_only: Some(*read_only),
            ..Mount::default()
        },
        MountSpec::Volume { name, target, read_only, nocopy } => Mount {
            typ: Some(MountType::VOLUME),
            source: Some(name.clone()),
            target: Some(target.clone()),
            read_only: Some(*read_only),
            volume_options: Some(MountVolumeOptions {
                no_copy: Some(*nocopy),
                ..MountVolumeOptions::default()
            }),
            ..Mount::default()
        },
        MountSpec::Tmpfs { target, size, mode } => Mount {
            typ: Some(MountType::TMPFS),
            target: Some(target.clone()),
            tmpfs_options: Some(MountTmpfsOptions {
                size_bytes: *size,
                mode: *mode,
                ..MountTmpfsOptions::default()
            }),
            ..Mount::default()
        },
    }
}

fn host_config(create: &ContainerCreate) -> HostConfig {
    let spec = &create.spec;
    let host = &spec.host;
    let extra = create.extra_tmpfs.iter().map(|target| MountSpec::Tmpfs {
        target: target.clone(),
        size: None,
        mode: None,
    });
    let mounts: Vec<Mount> = spec.mounts.iter().cloned().chain(extra).map(|spec| mount(&spec)).collect();
    // Report 17: an explicit IPv4 address gives one host port, not one for each family.
    let loopback = || {
        let host_port = Some(String::new());
        Some(vec![PortBinding { host_ip: Some("127.0.0.1".to_owned()), host_port }])
    };
    let ports = spec.ports.iter().map(|port| (format!("{}/{}", port.target, port.protocol), loopback()));
    let mut log = HashMap::from([("max-size".to_owned(), LOG_MAX_SIZE.to_owned())]);
    log.extend(hash_map(&spec.log_options));
    let filled = |list: &Vec<String>| (!list.is_empty()).then(|| list.clone());
    let ulimit = |(name, soft, hard): &(String, i64, i64)| ResourcesUlimits {
        name: Some(name.clone()),
        soft: Some(*soft),
        hard: Some(*hard),
    };
    HostConfig {
        mounts: Some(mounts),
        port_bindings: Some(ports.collect()),
        restart_policy: Some(restart(spec.restart)),
        log_config: Some(HostConfigLogConfig { typ: Some("json-file".to_owned()), config: Some(log) }),
        network_mode: Some(
            create.endpoints.first().map_or_else(|| "none".to_owned(), |end| end.network.clone()),
        ),
        cap_add: filled(&host.cap_add),
        cap_drop: filled(&host.cap_drop),
        security_opt: filled(&host.security_opt),
        privileged: Some(host.privileged),
        init: host.init,
        ulimits: Some(host.ulimits.iter().map(ulimit).collect()),
        sysctls: Some(hash_map(&host.sysctls)),
        shm_size: host.shm_bytes,
        extra_hosts: filled(&host.extra_hosts),
        readonly_rootfs: Some(host.read_only),
        memory: host.mem_bytes,
        // Swap would turn an out-of-memory kill into a slow run.
        memory_swap: host.mem_bytes,
        nano_cpus: host.nano_cpus,
        pids_limit: host.pids,
        ..HostConfig::default()
    }
}

/// The body of a create. Before API 1.44 only one endpoint may be in it.
pub(super) fn body(
    create: &ContainerCreate,
    many_endpoints: bool,
    start_interval: bool,
) -> ContainerCreateBody {
    let spec = &create.spec;
    let env = spec.environment.iter().map(|(key, value)| match value {
        Some(value) => format!("{key}={value}"),
        None => key.clone(),
    });
    let exposed = spec.ports.iter().map(|port| format!("{}/{}", port.target, port.protocol));
    let more =
        spec.expose.iter().map(|port| if port.contains('/') { port.clone() } else { format!("{port}/tcp") });
    let count = if many_endpoints { create.endpoints.len() } else { 1 };
    let endpoints = create.endpoints.iter().take(count).map(|end| (end.network.clone(), endpoint(end)));
    ContainerCreateBody {
        image: Some(create.image_id.clone()),
        cmd: spec.command.clone(),
        entrypoint: spec.entrypoint.clone(),
        env: Some(env.collect()),
        working_dir: spec.working_dir.clone(),
        user: spec.user.clone(),
        labels: Some(hash_map(&create.labels)),
        hostname: spec.hostname.clone(),
        healthcheck: spec.healthcheck.as_ref().map(|check| health(check, start_interval)),
        exposed_ports: Some(exposed.chain(more).collect()),
        stop_signal: spec.stop_signal.clone(),
        stop_timeout: spec.stop_grace.map(|grace| i64::try_from(grace.as_secs()).unwrap_or(i64::MAX)),
        open_stdin: Some(spec.stdin_open),
        attach_stdin: Some(spec.stdin_open),
        tty: Some(false),
        host_config: Some(host_config(create)),
        networking_config: Some(NetworkingConfig { endpoints_config: Some(endpoints.collect()) }),
        ..ContainerCreateBody::default()
    }
}

fn text(json: &Value, pointer: &str) -> String {
    json.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn number(json: &Value, pointer: &str) -> i64 {
    json.pointer(pointer).and_then(Value::as_i64).unwrap_or_default()
}

fn flag(json: &Value, pointer: &str) -> bool {
    json.pointer(pointer).and_then(Value::as_bool).unwrap_or_default()
}

pub(super) fn labels(json: Option<&Value>) -> BTreeMap<String, String> {
    let pairs = json.and_then(Value::as_object).into_iter().flatten();
    pairs.map(|(key, value)| (key.clone(), value.as_str().unwrap_or_default().to_owned())).collect()
}

pub(super) fn seen(json: &Value) -> ContainerSeen {
    let health = json.pointer("/State/Health/Status").and_then(Value::as_str);
    let probe = |json: &Value| ProbeSeen {
        start: text(json, "/Start"),
        end: text(json, "/End"),
        exit_code: number(json, "/ExitCode"),
        output: text(json, "/Output"),
    };
    let probes = json.pointer("/State/Health/Log").and_then(Value::as_array).into_iter().flatten();
    let mounts = json.pointer("/Mounts").and_then(Value::as_array).into_iter().flatten();
    ContainerSeen {
        id: text(json, "/Id"),
        name: text(json, "/Name").trim_start_matches('/').to_owned(),
        labels: labels(json.pointer("/Config/Labels")),
        image_id: text(json, "/Image"),
        status: text(json, "/State/Status"),
        running: flag(json, "/State/Running"),
        paused: flag(json, "/State/Paused"),
        restarting: flag(json, "/State/Restarting"),
        oom_killed: flag(json, "/State/OOMKilled"),
        pid: number(json, "/State/Pid"),
        exit_code: number(json, "/State/ExitCode"),
        error: text(json, "/State/Error"),
        started_at: text(json, "/State/StartedAt"),
        finished_at: text(json, "/State/FinishedAt"),
        restart_count: number(json, "/RestartCount"),
        health: health.filter(|word| !word.is_empty()).map(str::to_owned),
        probes: probes.map(probe).collect(),
        ports: ports(json.pointer("/NetworkSettings/Ports")),
        addresses: addresses(json.pointer("/NetworkSettings/Networks")),
        volumes: mounts
            .filter(|mount| text(mount, "/Type") == "volume")
            .map(|mount| text(mount, "/Name"))
            .collect(),
    }
}

fn ports(json: Option<&Value>) -> BTreeMap<u16, SocketAddr> {
    let all = json.and_then(Value::as_object).into_iter().flatten();
    let one = |(key, bound): (&String, &Value)| {
        let port = key.split('/').next()?.parse().ok()?;
        let first = bound.as_array()?.first()?;
        let ip: IpAddr = text(first, "/HostIp").parse().ok()?;
        Some((port, SocketAddr::new(ip, text(first, "/HostPort").parse().ok()?)))
    };
    all.filter_map(one).collect()
}

fn addresses(json: Option<&Value>) -> BTreeMap<String, Ipv4Addr> {
    let all = json.and_then(Value::as_object).into_iter().flatten();
    all.filter_map(|(name, end)| Some((name.clone(), text(end, "/IPAddress").parse().ok()?))).collect()
}

pub(super) fn event(json: &Value) -> EventSeen {
    let action = text(json, "/Action");
    let (action, detail) = action.split_once(':').unwrap_or((&action, ""));
    EventSeen {
        kind: text(json, "/Type"),
        action: action.trim().to_owned(),
        detail: detail.trim().to_owned(),
        id: text(json, "/Actor/ID"),
        attributes: labels(json.pointer("/Actor/Attributes")),
        time_ns: u64::try_from(number(json, "/timeNano")).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_30_unknown_words_of_a_newer_engine_are_kept_as_they_are() {
        let json = serde_json::json!({ "Id": "a", "Name": "/n", "State": { "Status": "hibernating", "Running": true,
            "Health": { "Status": "dozing" } } });
        let seen = seen(&json);
        assert_eq!(
            (seen.status.as_str(), seen.health.as_deref(), seen.name.as_str()),
            ("hibernating", Some("dozing"), "n")
        );
    }

    #[test]
    fn report_6_a_start_interval_is_left_out_where_the_api_does_not_know_it() {
        let second = std::time::Duration::from_secs(1);
        let check = HealthCheck { start_interval: Some(second), ..HealthCheck::default() };
        assert_eq!(health(&check, false).start_interval, None);
        assert_eq!(health(&check, true).start_interval, Some(1_000_000_000));
    }

    #[test]
    fn events_are_split_at_the_colon() {
        let json =
            serde_json::json!({ "Type": "container", "Action": "health_status: healthy", "timeNano": 5 });
        let event = event(&json);
        assert_eq!(
            (event.action.as_str(), event.detail.as_str(), event.time_ns),
            ("health_status", "healthy", 5)
        );
    }

    #[test]
    fn report_17_ports_are_published_on_one_explicit_address() {
        let mut spec = crate::fixture::container("web", BTreeMap::new());
        spec.ports =
            vec![crate::model::Port { target: 80, protocol: "tcp".into(), asked: Some("8080".into()) }];
        let create = ContainerCreate {
            name: "n".into(),
            labels: BTreeMap::new(),
            spec,
            image_id: "i".into(),
            endpoints: Vec::new(),
            extra_tmpfs: vec!["/var/lib/data".into()],
        };
        let body = body(&create, false, false);
        let host = body.host_config.unwrap();
        let bound = host.port_bindings.unwrap().remove("80/tcp").unwrap().unwrap();
        assert_eq!(
            (bound[0].host_ip.as_deref(), bound[0].host_port.as_deref()),
            (Some("127.0.0.1"), Some(""))
        );
        // Report 25: what the image declares as a volume becomes memory.
        assert_eq!(host.mounts.unwrap()[0].typ, Some(MountType::TMPFS));
    }
}

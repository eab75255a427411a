//! Small specifications for tests and for the fake engine.

use std::collections::BTreeMap;

use crate::model::{HostOptions, Restart};
use crate::spec::ContainerSpec;

/// A container with a name and variables and nothing else.
#[must_use]
pub fn container(service: &str, environment: BTreeMap<String, Option<String>>) -> ContainerSpec {
    ContainerSpec {
        service: service.to_owned(),
        image: "img".to_owned(),
        entrypoint: None,
        command: None,
        environment,
        working_dir: None,
        user: None,
        labels: BTreeMap::new(),
        hostname: None,
        healthcheck: None,
        restart: Restart::No,
        endpoints: Vec::new(),
        ports: Vec::new(),
        expose: Vec::new(),
        mounts: Vec::new(),
        host: HostOptions::default(),
        stop_signal: None,
        stop_grace: None,
        platform: None,
        log_options: BTreeMap::new(),
        stdin_open: false,
    }
}

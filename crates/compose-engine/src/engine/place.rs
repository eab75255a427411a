//! Where the engine is: flag, DOCKER_HOST, context, default socket, rootless socket, podman (design compose-engine 9).

use std::path::{Path, PathBuf};

use crate::error::EngineError;

/// The socket of an engine and why it was chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnginePlace {
    /// Unix socket.
    pub socket: PathBuf,
    /// In words.
    pub because: String,
}

/// What the choice depends on; the caller reads the environment, not this module.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    /// `--engine`.
    pub flag: Option<String>,
    /// `DOCKER_HOST`.
    pub docker_host: Option<String>,
    /// `DOCKER_CONTEXT`.
    pub docker_context: Option<String>,
    /// Folder of the Docker client's settings.
    pub docker_config: Option<PathBuf>,
    /// `XDG_RUNTIME_DIR`.
    pub runtime_dir: Option<PathBuf>,
}

impl Surroundings {
    /// From the environment of this process.
    #[must_use]
    pub fn of_process(flag: Option<String>) -> Self {
        let text = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let config = text("DOCKER_CONFIG").map(PathBuf::from);
        Self {
            flag,
            docker_host: text("DOCKER_HOST"),
            docker_context: text("DOCKER_CONTEXT"),
            docker_config: config.or_else(|| text("HOME").map(|home| Path::new(&home).join(".docker"))),
            runtime_dir: text("XDG_RUNTIME_DIR").map(PathBuf::from),
        }
    }

    /// Chooses the engine.
    ///
    /// # Errors
    /// [`EngineError::Remote`] for an address that is no local socket, [`EngineError::Unreachable`] when there is none.
    pub fn choose(&self) -> Result<EnginePlace, EngineError> {
        if let Some(address) = &self.flag {
            return local(address, "the flag --engine");
        }
        if let Some(address) = &self.docker_host {
            return local(address, "DOCKER_HOST");
        }
        if let Some((name, address)) = self.context() {
            return local(&address, &format!("the Docker context {name:?}"));
        }
        let mut sockets = vec![(PathBuf::from("/var/run/docker.sock"), "the default socket")];
        if let Some(dir) = &self.runtime_dir {
            sockets.push((dir.join("docker.sock"), "the rootless socket"));
            sockets.push((dir.join("podman/podman.sock"), "podman's user socket"));
        }
        sockets.push((PathBuf::from("/run/podman/podman.sock"), "podman's socket"));
        let found = sockets.iter().find(|(path, _)| path.exists());
        let (socket, because) = found.ok_or_else(|| EngineError::Unreachable {
            address: "/var/run/docker.sock".to_owned(),
            reason: "no engine socket is there".to_owned(),
        })?;
        Ok(EnginePlace { socket: socket.clone(), because: (*because).to_owned() })
    }

    /// Name and address of the current context, unless it is the default one.
    fn context(&self) -> Option<(String, String)> {
        let config = self.docker_config.as_ref()?;
        let current = || {
            let text = std::fs::read_to_string(config.join("config.json")).ok()?;
            let json: serde_json::Value = serde_json::from_str(&text).ok()?;
            json.get("currentContext")?.as_str().map(str::to_owned)
        };
        let name = self.docker_context.clone().or_else(current).filter(|name| name != "default")?;
        for entry in std::fs::read_dir(config.join("contexts/meta")).ok()?.flatten() {
            let Ok(text) = std::fs::read_to_string(entry.path().join("meta.json")) else { continue };
            let Ok(json) = serde_json::from_str::<serde_json::Value>(&text) else { continue };
            if json.get("Name").and_then(|own| own.as_str()) == Some(&name) {
                let host = json.pointer("/Endpoints/docker/Host")?.as_str()?.to_owned();
                return Some((name, host));
            }
        }
        None
    }
}

fn local(address: &str, because: &str) -> Result<EnginePlace, EngineError> {
    let path = address.strip_prefix("unix://").unwrap_or(address);
    if path.starts_with('/') {
        return Ok(EnginePlace { socket: PathBuf::from(path), because: because.to_owned() });
    }
    Err(EngineError::Remote { address: format!("{address} ({because})") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_is_flag_host_context_socket() {
        let config = tempfile::tempdir().unwrap();
        let meta = config.path().join("contexts/meta/abc");
        std::fs::create_dir_all(&meta).unwrap();
        let json = r#"{"Name":"lab","Endpoints":{"docker":{"Host":"unix:///run/lab.sock"}}}"#;
        std::fs::write(meta.join("meta.json"), json).unwrap();
        std::fs::write(config.path().join("config.json"), r#"{"currentContext":"lab"}"#).unwrap();
        let mut around = Surroundings {
            flag: Some("unix:///a.sock".into()),
            docker_host: Some("unix:///b.sock".into()),
            docker_config: Some(config.path().to_path_buf()),
            ..Surroundings::default()
        };
        assert_eq!(around.choose().unwrap().socket, Path::new("/a.sock"));
        around.flag = None;
        assert_eq!(around.choose().unwrap().socket, Path::new("/b.sock"));
        around.docker_host = None;
        let chosen = around.choose().unwrap();
        assert_eq!(chosen.socket, Path::new("/run/lab.sock"));
        assert!(chosen.because.contains("lab"));
    }

    #[test]
    fn a_remote_engine_is_refused_with_its_address() {
        for address in ["tcp://10.0.0.1:2375", "ssh://me@there", "http://x"] {
            let around = Surroundings { docker_host: Some(address.into()), ..Surroundings::default() };
            let error = around.choose().unwrap_err().to_string();
            assert!(error.contains(address) && error.contains("only a local one"), "{error}");
        }
    }
}

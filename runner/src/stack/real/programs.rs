//! The user's programs: are they there, can they be run, which protocol do they speak.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use crate::error::RunnerError;

/// Protocol that mocks and collectors know (fixture wire-july).
pub const PROTOCOL: &str = "v2";
/// How long a program may take to print its version.
const PRINT_LIMIT: Duration = Duration::from_secs(10);
/// Part of a program's words that an error shows.
const WORDS_MAX: usize = 20;

/// The user's programs, looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Theirs {
    /// `devshardctl`.
    pub gateway: PathBuf,
    /// `devshardd`.
    pub host: PathBuf,
    /// `versiond`, where it starts the hosts.
    pub versiond: Option<PathBuf>,
    /// What the host program calls its build; empty when it does not say.
    pub host_build: String,
}

/// Looks at a folder; with `versiond` when it is to start the hosts.
///
/// # Errors
/// [`RunnerError::Environment`]: a program is missing, can't be run, or speaks another protocol; with what it printed.
pub async fn look(dir: &Path, with_versiond: bool) -> Result<Theirs, RunnerError> {
    let gateway = runnable(dir, "devshardctl")?;
    let host = runnable(dir, "devshardd")?;
    let versiond = if with_versiond { Some(runnable(dir, "versiond")?) } else { None };
    let protocol = print(&host, "--print-protocol-version").await?;
    if protocol != PROTOCOL {
        return Err(RunnerError::environment(format!(
            "{} speaks protocol {protocol:?}, this build knows {PROTOCOL:?} only; build it with that protocol version",
            host.display()
        )));
    }
    // Only for the record: a build that does not tell is no error.
    let host_build = print(&host, "--print-binary-version").await.unwrap_or_default();
    Ok(Theirs { gateway, host, versiond, host_build })
}

fn runnable(dir: &Path, name: &str) -> Result<PathBuf, RunnerError> {
    let path = dir.join(name);
    let about = std::fs::metadata(&path).map_err(|error| {
        let text = format!("{}: {error}; --devshard-bin must hold devshardctl and devshardd", path.display());
        RunnerError::environment(text)
    })?;
    if !about.is_file() || about.permissions().mode() & 0o111 == 0 {
        let text = format!("{} is not executable; chmod +x it, or build it again", path.display());
        return Err(RunnerError::environment(text));
    }
    // A relative program would be looked for from the guard's folder.
    std::path::absolute(&path)
        .map_err(|error| RunnerError::environment(format!("{}: {error}", path.display())))
}

/// The one line that a program prints for a flag.
async fn print(program: &Path, flag: &str) -> Result<String, RunnerError> {
    let place = format!("{} {flag}", program.display());
    let mut command = tokio::process::Command::new(program);
    command.arg(flag).stdin(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(PRINT_LIMIT, command.output())
        .await
        .map_err(|_| RunnerError::environment(format!("{place} printed nothing within {PRINT_LIMIT:?}")))?
        .map_err(|error| RunnerError::environment(format!("{place}: {error}")))?;
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        let log = words.lines().rev().take(WORDS_MAX).map(str::to_owned).collect::<Vec<_>>();
        let message = format!("{place} ended with {}", output.status);
        return Err(RunnerError::Environment { message, log: log.into_iter().rev().collect() });
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(dir: &Path, name: &str, text: &str, mode: u32) {
        let path = dir.join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    async fn refusal(dir: &Path) -> String {
        look(dir, false).await.unwrap_err().to_string()
    }

    #[tokio::test]
    async fn what_can_not_run_is_named() {
        let dir = tempfile::tempdir().unwrap();
        assert!(refusal(dir.path()).await.contains("devshardctl"), "missing");
        write(dir.path(), "devshardctl", "#!/bin/sh\n", 0o755);
        write(dir.path(), "devshardd", "#!/bin/sh\necho v2\n", 0o644);
        assert!(refusal(dir.path()).await.contains("not executable"));
        write(dir.path(), "devshardd", "#!/bin/sh\necho v1\n", 0o755);
        assert!(refusal(dir.path()).await.contains("speaks protocol \"v1\""));
        write(dir.path(), "devshardd", "#!/bin/sh\necho no such flag >&2\nexit 3\n", 0o755);
        let RunnerError::Environment { log, .. } = look(dir.path(), false).await.unwrap_err() else {
            panic!("another error")
        };
        assert_eq!(log, ["no such flag"]);
        write(dir.path(), "devshardd", "#!/bin/sh\necho v2\n", 0o755);
        assert_eq!(look(dir.path(), false).await.unwrap().host_build, "v2");
        let error = look(dir.path(), true).await.unwrap_err().to_string();
        assert!(error.contains("versiond"), "{error}");
    }
}

//! Projects that stay up (`--keep`): how to enter them, and the keys that they go on reading.

use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use compose_engine::target::Target;

use super::lease::shared_folder;
use super::project::POSTGRES;
use super::{KEEP_S, start};
use crate::error::RunnerError;

/// Folder of the keys of a kept run: its private directory goes with the runner, its containers do not.
#[must_use]
pub fn folder(run_id: &str) -> PathBuf {
    all_folders().join(run_id)
}

fn all_folders() -> PathBuf {
    shared_folder().join("kept")
}

/// Makes the folder for this user alone.
///
/// # Errors
/// [`RunnerError::Environment`].
pub fn make(run_id: &str) -> Result<PathBuf, RunnerError> {
    use std::os::unix::fs::DirBuilderExt;
    let path = folder(run_id);
    // The last folder must be new: what somebody else has put there is no place for keys.
    let made = std::fs::create_dir_all(all_folders())
        .and_then(|()| std::fs::DirBuilder::new().mode(0o700).create(&path));
    made.map_err(|error| RunnerError::environment(format!("making {}: {error}", path.display())))?;
    Ok(path)
}

/// Removes the keys of a run whose objects are gone.
pub fn forget(run_id: &str) {
    drop(std::fs::remove_dir_all(folder(run_id)));
}

/// Keys of runs whose time is over, whoever has removed their containers.
#[must_use]
pub fn outdated(now_unix_s: u64) -> Vec<PathBuf> {
    outdated_in(&all_folders(), now_unix_s)
}

fn outdated_in(folder: &Path, now_unix_s: u64) -> Vec<PathBuf> {
    let old = |path: &PathBuf| {
        let made = std::fs::metadata(path).and_then(|about| about.modified()).ok();
        let made = made.and_then(|made| made.duration_since(UNIX_EPOCH).ok());
        made.is_some_and(|made| made.as_secs().saturating_add(KEEP_S) < now_unix_s)
    };
    let list = std::fs::read_dir(folder).into_iter().flatten().flatten();
    list.map(|entry| entry.path()).filter(old).collect()
}

/// What is told about a project that stays: where it answers, how to look inside, how it ends. Images of ours hold no
/// shell; of their containers logs and files can be had.
#[must_use]
pub fn told(target: &Target, gateway: &str, engine: Option<&str>) -> Vec<String> {
    let project = &target.project;
    let docker = engine.map_or_else(
        || "docker".to_owned(),
        |socket| format!("docker -H unix://{}", socket.trim_start_matches("unix://")),
    );
    let hours = KEEP_S / 3_600;
    let mut lines =
        vec![format!("project {project} stays up for {hours} h; its gateway is at http://{gateway}")];
    for service in target.containers.keys() {
        let container = format!("{project}-{service}-1");
        lines.push(if service == POSTGRES || start::is_foreign(target, service) {
            format!("  {docker} exec -it {container} sh")
        } else {
            format!("  {docker} logs {container}")
        });
    }
    lines.push(format!("  list: {docker} ps -a --filter label=com.docker.compose.project={project}"));
    lines.push(format!("  end it: docker compose -p {project} down -v; after {hours} h `runner gc` does"));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_lie_in_a_new_folder_of_this_user_alone_until_their_run_goes() {
        use std::os::unix::fs::PermissionsExt;
        let run = format!("unit-test-{}", std::process::id());
        let path = make(&run).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        assert!(make(&run).is_err(), "what somebody else made is not taken");
        std::fs::write(path.join("key"), "k").unwrap();
        forget(&run);
        assert!(!path.exists());
    }

    #[test]
    fn keys_go_when_their_time_is_over_and_not_before() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("run-1")).unwrap();
        let after = |seconds: u64| compose_engine::clock::unix_s() + seconds;
        assert_eq!(outdated_in(root.path(), after(KEEP_S - 60)), Vec::<PathBuf>::new());
        assert_eq!(outdated_in(root.path(), after(KEEP_S + 60)), [root.path().join("run-1")]);
        assert!(outdated_in(&root.path().join("nowhere"), after(0)).is_empty());
    }
}

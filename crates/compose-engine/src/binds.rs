//! Bind sources are copied into the run's folder and mounted from there, so that runs side by side share nothing and the
//! exact inputs stay (design compose-engine 6).

use std::path::{Path, PathBuf};

use crate::error::ComposeError;
use crate::spec::{ContainerSpec, MountSpec};

/// Bytes of all sources of one service: bind sources are configuration, not data sets.
const COPY_BYTES_MAX: u64 = 2 * 1024 * 1024 * 1024;

/// Copies every bind source of a service under `folder` and points the mounts there, except what lies in a folder of
/// the run's own.
///
/// # Errors
/// [`ComposeError`] for a missing or oversized source.
pub fn copy(spec: &ContainerSpec, folder: &Path, own: &[PathBuf]) -> Result<ContainerSpec, ComposeError> {
    let mut copied = spec.clone();
    let mut left = COPY_BYTES_MAX;
    for (index, mount) in copied.mounts.iter_mut().enumerate() {
        if let MountSpec::Bind { source, .. } = mount
            && !own.iter().any(|folder| source.starts_with(folder))
        {
            let name = source.file_name().map_or_else(|| PathBuf::from("root"), PathBuf::from);
            let target = folder.join(&spec.service).join(index.to_string()).join(name);
            if let Some(parent) = target.parent() {
                std::fs::create_dir_all(parent).map_err(ComposeError::io(parent))?;
            }
            tree(source, &target, &mut left)?;
            *source = target;
        }
    }
    Ok(copied)
}

fn tree(from: &Path, to: &Path, left: &mut u64) -> Result<(), ComposeError> {
    // Report 33: looked at again here, since time has passed since the plan.
    let about = std::fs::metadata(from).map_err(ComposeError::io(from))?;
    if about.is_dir() {
        std::fs::create_dir_all(to).map_err(ComposeError::io(to))?;
        for entry in std::fs::read_dir(from).map_err(ComposeError::io(from))? {
            let entry = entry.map_err(ComposeError::io(from))?;
            tree(&entry.path(), &to.join(entry.file_name()), left)?;
        }
        return std::fs::set_permissions(to, about.permissions()).map_err(ComposeError::io(to));
    }
    if !about.is_file() {
        let text = format!("{}: only files and folders can be bound, no sockets or devices", from.display());
        return Err(ComposeError::Request(text));
    }
    *left = left.checked_sub(about.len()).ok_or_else(|| {
        ComposeError::Request(format!("bind sources hold more than {COPY_BYTES_MAX} bytes; use a volume"))
    })?;
    std::fs::copy(from, to).map(drop).map_err(ComposeError::io(from))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn sources_are_copied_apart_and_a_missing_one_is_an_error() {
        let root = tempfile::tempdir().unwrap();
        let source = root.path().join("conf");
        std::fs::create_dir(&source).unwrap();
        std::fs::write(source.join("a"), "1").unwrap();
        let bind = MountSpec::Bind { source: source.clone(), target: "/c".into(), read_only: true };
        let spec = ContainerSpec { mounts: vec![bind], ..crate::fixture::container("web", BTreeMap::new()) };
        let copied = copy(&spec, &root.path().join("work"), &[]).unwrap();
        let MountSpec::Bind { source: place, .. } = &copied.mounts[0] else { panic!() };
        assert_eq!(std::fs::read_to_string(place.join("a")).unwrap(), "1");
        let in_place = copy(&spec, &root.path().join("work"), &[root.path().to_path_buf()]).unwrap();
        assert_eq!(in_place, spec);
        std::fs::remove_dir_all(&source).unwrap();
        assert!(copy(&spec, &root.path().join("other"), &[]).is_err());
    }
}

//! Images: built once per content through the engine's API, fetched by policy, pinned by id.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bytes::Bytes;

use crate::engine::{Answer, BuildAsk, Engine, ImageSeen};
use crate::error::{ComposeError, EngineError};
use crate::model::{Build, PullPolicy};
use crate::target::ImageSource;

/// Files of one build context: far above a folder of programs.
const CONTEXT_FILES_MAX: usize = 4_096;
/// Label with the content's hash.
pub const CONTENT: &str = "proofload.image-content";

/// Every file under a folder, relative, sorted, so that equal folders give equal archives.
fn files(root: &Path) -> Result<Vec<PathBuf>, ComposeError> {
    let mut open = vec![PathBuf::new()];
    let mut found = Vec::new();
    while let Some(folder) = open.pop() {
        let path = root.join(&folder);
        for entry in std::fs::read_dir(&path).map_err(ComposeError::io(&path))? {
            let entry = entry.map_err(ComposeError::io(&path))?;
            let relative = folder.join(entry.file_name());
            if entry.path().is_dir() {
                open.push(relative);
            } else {
                found.push(relative);
            }
            if found.len() > CONTEXT_FILES_MAX {
                let text = format!("{} holds more than {CONTEXT_FILES_MAX} files", root.display());
                return Err(ComposeError::Request(text));
            }
        }
    }
    found.sort();
    Ok(found)
}

/// BLAKE3 over recipe, arguments and every file with its mode.
///
/// # Errors
/// [`ComposeError::Io`].
pub fn content_hash(build: &Build) -> Result<String, ComposeError> {
    let mut hasher = blake3::Hasher::new();
    let mut field = |bytes: &[u8]| {
        hasher.update(&(bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    };
    field(build.dockerfile.as_bytes());
    field(build.target.as_deref().unwrap_or_default().as_bytes());
    for (key, value) in &build.args {
        field(key.as_bytes());
        field(value.as_bytes());
    }
    for file in files(&build.context)? {
        let path = build.context.join(&file);
        field(file.to_string_lossy().as_bytes());
        field(&[u8::from(executable(&path)?)]);
        let inner = std::fs::read(&path).map_err(ComposeError::io(&path))?;
        field(&inner);
    }
    Ok(hasher.finalize().to_hex().to_string())
}

fn executable(path: &Path) -> Result<bool, ComposeError> {
    use std::os::unix::fs::PermissionsExt;
    let about = std::fs::metadata(path).map_err(ComposeError::io(path))?;
    Ok(about.permissions().mode() & 0o111 != 0)
}

/// A tar of the context with fixed times and owners.
///
/// # Errors
/// [`ComposeError::Io`].
pub fn context(root: &Path) -> Result<Bytes, ComposeError> {
    let mut archive = tar::Builder::new(Vec::new());
    for file in files(root)? {
        let path = root.join(&file);
        let bytes = std::fs::read(&path).map_err(ComposeError::io(&path))?;
        let mode = if executable(&path)? { 0o755 } else { 0o644 };
        append(&mut archive, &file, mode, &bytes)?;
    }
    archive.into_inner().map(Bytes::from).map_err(ComposeError::io(root))
}

/// A tar of texts and bytes, for uploads: name, mode, content.
///
/// # Errors
/// [`ComposeError::Io`] for a name that is too long for an archive.
pub fn archive(entries: &[(&str, u32, &[u8])]) -> Result<Bytes, ComposeError> {
    let mut archive = tar::Builder::new(Vec::new());
    for (name, mode, bytes) in entries {
        append(&mut archive, Path::new(name), *mode, bytes)?;
    }
    archive.into_inner().map(Bytes::from).map_err(ComposeError::io("an archive"))
}

fn append(
    archive: &mut tar::Builder<Vec<u8>>,
    name: &Path,
    mode: u32,
    bytes: &[u8],
) -> Result<(), ComposeError> {
    let mut header = tar::Header::new_gnu();
    header.set_size(bytes.len() as u64);
    header.set_mode(mode);
    header.set_mtime(0);
    header.set_uid(0);
    header.set_gid(0);
    archive.append_data(&mut header, name, bytes).map_err(ComposeError::io(name))
}

/// Files of a tar, for downloads. The first path part (the folder that was asked for) stays.
///
/// # Errors
/// [`ComposeError::Io`] when it is no tar.
pub fn unpack(tar: &[u8]) -> Result<BTreeMap<String, Vec<u8>>, ComposeError> {
    use std::io::Read;
    let mut all = BTreeMap::new();
    let io = || ComposeError::io("an archive");
    for entry in tar::Archive::new(tar).entries().map_err(io())? {
        let mut entry = entry.map_err(io())?;
        if entry.header().entry_type().is_file() {
            let name = entry.path().map_err(io())?.to_string_lossy().into_owned();
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).map_err(io())?;
            all.insert(name, bytes);
        }
    }
    Ok(all)
}

/// Has an image there and gives what the engine knows of it.
///
/// # Errors
/// [`ComposeError`] when it is missing and may not be fetched, or the engine fails.
pub async fn ensure<E: Engine>(engine: &E, source: &ImageSource) -> Result<ImageSeen, ComposeError> {
    if let Some(build) = &source.build {
        return built(engine, build, &source.reference).await;
    }
    let reference = &source.reference;
    let seen = engine.image(reference).await?;
    match (seen, source.pull) {
        (Some(seen), PullPolicy::Missing | PullPolicy::Never | PullPolicy::Build) => Ok(seen),
        (_, PullPolicy::Always) | (None, PullPolicy::Missing) => {
            engine.pull(reference).await?;
            there(engine.image(reference).await, reference)
        }
        (None, PullPolicy::Never | PullPolicy::Build) => Err(ComposeError::Preflight(format!(
            "the image {reference} is not there and the pull policy forbids to fetch it; load or build it first"
        ))),
    }
}

fn there(answer: Answer<Option<ImageSeen>>, reference: &str) -> Result<ImageSeen, ComposeError> {
    answer?.ok_or_else(|| EngineError::NotFound { what: format!("image {reference}") }.into())
}

async fn built<E: Engine>(engine: &E, build: &Build, reference: &str) -> Result<ImageSeen, ComposeError> {
    let content = content_hash(build)?;
    let name = reference.split_once('@').map_or(reference, |(name, _)| name);
    let name = name.rsplit_once(':').filter(|(_, tag)| !tag.contains('/')).map_or(name, |(name, _)| name);
    let tag = format!("{name}:{}", &content[..16]);
    if let Some(seen) = engine.image(&tag).await? {
        return Ok(seen);
    }
    let ask = BuildAsk {
        tag: tag.clone(),
        dockerfile: build.dockerfile.clone(),
        target: build.target.clone(),
        args: build.args.clone(),
        labels: BTreeMap::from([(CONTENT.to_owned(), content)]),
    };
    engine.build(&ask, context(&build.context)?).await?;
    there(engine.image(&tag).await, &tag)
}

/// Removes images that this crate built earlier under the same name, all but the newest `keep`. Only what carries our
/// label of content is looked at, and what a container uses stays. Gives the names that went.
///
/// # Errors
/// [`ComposeError`] when the engine can't be asked what is there.
pub async fn prune<E: Engine>(engine: &E, keep: usize) -> Result<Vec<String>, ComposeError> {
    let mut by_name: BTreeMap<String, Vec<(i64, String)>> = BTreeMap::new();
    for image in engine.images(Some(CONTENT)).await? {
        // The engine's filter is one witness, the label itself the other.
        let Some(content) = image.labels.get(CONTENT) else { continue };
        for tag in &image.tags {
            // A name that somebody else gave one of our images is not ours to take.
            let own = tag.rsplit_once(':').filter(|(_, end)| !end.is_empty() && content.starts_with(end));
            if let Some((name, _)) = own {
                by_name.entry(name.to_owned()).or_default().push((image.created_unix_s, tag.clone()));
            }
        }
    }
    let mut gone = Vec::new();
    for tags in by_name.values_mut() {
        tags.sort_unstable_by(|one, two| two.cmp(one));
        for (_, tag) in tags.iter().skip(keep) {
            match engine.remove_image(tag).await {
                Ok(()) => gone.push(tag.clone()),
                // In use by another run, or removed by one at the same time.
                Err(EngineError::Conflict { .. } | EngineError::NotFound { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(gone)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::ImageListed;
    use crate::engine::fake::Fake;

    #[tokio::test]
    async fn only_old_images_of_our_own_go_and_those_in_use_stay() {
        let fake = Fake::default();
        let listed = |tag: &str, content: Option<&str>, at: i64| ImageListed {
            id: format!("id-{tag}"),
            tags: vec![tag.to_owned()],
            labels: content.map(|hash| (CONTENT.to_owned(), hash.to_owned())).into_iter().collect(),
            created_unix_s: at,
        };
        for image in [
            listed("proofload/stack:aa", Some("aaaa"), 1),
            listed("proofload/stack:bb", Some("bbbb"), 2),
            listed("proofload/stack:cc", Some("cccc"), 3),
            listed("proofload/stack:release", Some("dddd"), 0),
            listed("proofload/stack:ee", None, 0),
            listed("other:ff", Some("ffff"), 0),
            listed("postgres:15", None, 0),
        ] {
            fake.list_image(image);
        }
        fake.foreign("user", &BTreeMap::new());
        assert_eq!(prune(&fake, 2).await.unwrap(), ["proofload/stack:aa"]);
        let names: Vec<String> =
            fake.images(None).await.unwrap().into_iter().flat_map(|image| image.tags).collect();
        for stays in ["proofload/stack:release", "proofload/stack:ee", "other:ff", "postgres:15"] {
            assert!(names.iter().any(|name| name == stays), "{stays}: {names:?}");
        }
        assert_eq!(prune(&fake, 2).await.unwrap(), Vec::<String>::new());
    }

    fn build(root: &Path) -> Build {
        Build {
            context: root.to_path_buf(),
            dockerfile: "Dockerfile".into(),
            target: None,
            args: BTreeMap::new(),
        }
    }

    #[test]
    fn the_hash_follows_content_mode_and_names_and_nothing_else() {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join("Dockerfile"), "FROM scratch\n").unwrap();
        let first = content_hash(&build(root.path())).unwrap();
        assert_eq!(first, content_hash(&build(root.path())).unwrap());
        std::fs::write(root.path().join("a"), "1").unwrap();
        let second = content_hash(&build(root.path())).unwrap();
        assert_ne!(first, second);
        std::fs::rename(root.path().join("a"), root.path().join("b")).unwrap();
        assert_ne!(second, content_hash(&build(root.path())).unwrap());
    }

    #[test]
    fn archives_are_equal_for_equal_content_and_unpack() {
        let one = archive(&[("a/b", 0o600, b"x"), ("c", 0o644, b"")]).unwrap();
        assert_eq!(one, archive(&[("a/b", 0o600, b"x"), ("c", 0o644, b"")]).unwrap());
        let files = unpack(&one).unwrap();
        assert_eq!(files.get("a/b").map(Vec::as_slice), Some(&b"x"[..]));
    }
}

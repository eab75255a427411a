//! What must hold before anything is made; a failure here is the machine's, never the scenario's (design compose-engine
//! 15).

use std::path::Path;

use crate::clock;
use crate::engine::{About, Engine};
use crate::error::ComposeError;
use crate::target::Target;

/// Difference of clocks above which time-based assertions say nothing, milliseconds.
pub const CLOCK_DRIFT_MAX_MS: u64 = 200;
/// Anonymous and named volumes on the engine above which it runs out of locks (report 27).
const VOLUMES_MAX: usize = 1_500;

/// First API that knows `start_interval` of a health check.
const START_INTERVAL_API: (u32, u32) = (1, 44);

/// What a run asks of the machine.
#[derive(Clone, Copy, Debug)]
pub struct Needs {
    /// Free bytes on the engine's disk.
    pub disk_bytes: u64,
    /// Free inodes there.
    pub inodes: u64,
    /// Memory of the engine's machine.
    pub mem_bytes: u64,
}

/// Free bytes and inodes of the file system of a folder.
fn free(folder: &Path) -> Option<(u64, u64)> {
    let about = rustix::fs::statvfs(folder).ok()?;
    Some((about.f_bavail * about.f_frsize, about.f_favail))
}

/// Looks at everything and gives what is worth a warning.
///
/// # Errors
/// [`ComposeError::Preflight`] naming what is short, or an engine error.
pub async fn check<E: Engine>(
    engine: &E,
    needs: Needs,
    now_unix_ns: u64,
) -> Result<(About, Vec<String>), ComposeError> {
    let about = engine.about().await?;
    let mut warnings = Vec::new();
    match free(Path::new(&about.root_dir)) {
        Some((bytes, _)) if bytes < needs.disk_bytes => {
            let (have, want) = (bytes >> 20, needs.disk_bytes >> 20);
            let text = format!(
                "{} has {have} MiB free, {want} MiB are needed; free disk or prune images",
                about.root_dir
            );
            return Err(ComposeError::Preflight(text));
        }
        // Some file systems count no inodes and say 0 of 0.
        Some((_, inodes)) if inodes > 0 && inodes < needs.inodes => {
            let text = format!("{} has {inodes} inodes free, {} are needed", about.root_dir, needs.inodes);
            return Err(ComposeError::Preflight(text));
        }
        Some(_) => {}
        None => warnings.push(format!("the free space of {} can't be seen from here", about.root_dir)),
    }
    if about.mem_bytes < needs.mem_bytes {
        let (have, want) = (about.mem_bytes >> 20, needs.mem_bytes >> 20);
        return Err(ComposeError::Preflight(format!(
            "the engine has {have} MiB of memory, {want} MiB are needed"
        )));
    }
    let volumes = engine.volumes(None).await?.len();
    if volumes > VOLUMES_MAX {
        let text = format!(
            "the engine holds {volumes} volumes; above {VOLUMES_MAX} it runs out of locks, prune them"
        );
        return Err(ComposeError::Preflight(text));
    }
    warnings.extend(clock_words(&about.time, now_unix_ns, clock::unix_ns()));
    Ok((about, warnings))
}

/// What of a project the engine's API does not know yet and is left out, in words (design compose-engine 4).
#[must_use]
pub fn left_out(about: &About, target: &Target) -> Vec<String> {
    let parts =
        about.api.split_once('.').and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    if parts.is_none_or(|api: (u32, u32)| api >= START_INTERVAL_API) {
        return Vec::new();
    }
    let asks = |service: &&String| {
        let check = target.containers[*service].healthcheck.as_ref();
        check.is_some_and(|check| check.start_interval.is_some())
    };
    let line = |service: &String| {
        format!(
            "{service}: `start_interval` needs engine API 1.44, this one speaks {}; its health shows at the usual interval",
            about.api
        )
    };
    target.containers.keys().filter(asks).map(line).collect()
}

/// Looks at the engine's clock again, in the middle of a run; words when it differs too much. An engine that does not answer
/// is told by what needs it.
pub async fn clock_again<E: Engine>(engine: &E) -> Option<String> {
    let before_unix_ns = clock::unix_ns();
    let about = engine.about().await.ok()?;
    clock_words(&about.time, before_unix_ns, clock::unix_ns())
}

/// What there is to say about a clock that was read between two instants of ours.
fn clock_words(engine_time: &str, before_unix_ns: u64, after_unix_ns: u64) -> Option<String> {
    match drift_ms(engine_time, before_unix_ns, after_unix_ns) {
        Some(drift) if drift > CLOCK_DRIFT_MAX_MS => {
            Some(format!("the engine's clock differs by {drift} ms: times of its events prove nothing"))
        }
        Some(_) => None,
        None => Some("the engine's clock can't be read".to_owned()),
    }
}

/// How far the engine's clock lies outside the span in which it was read, milliseconds: an answer that takes its time is
/// no difference.
#[must_use]
pub fn drift_ms(engine_time: &str, before_unix_ns: u64, after_unix_ns: u64) -> Option<u64> {
    let theirs = clock::parse_ns(engine_time)?;
    let early = i128::from(before_unix_ns) - theirs;
    let late = theirs - i128::from(after_unix_ns);
    u64::try_from(early.max(late).max(0) / 1_000_000).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::fake::Fake;

    #[test]
    fn clocks_are_compared_in_milliseconds() {
        let at = "1970-01-01T00:00:01.500000000Z";
        let second = 1_000_000_000;
        assert_eq!(drift_ms(at, 0, second), Some(500));
        assert_eq!(drift_ms(at, 2 * second, 3 * second), Some(500));
        // A slow answer: the clock was read somewhere between.
        assert_eq!(drift_ms(at, second, 9 * second), Some(0));
        assert_eq!(drift_ms("nonsense", 0, 0), None);
        assert_eq!(clock_words(at, second, 2 * second), None);
        assert!(clock_words(at, 2 * second, 3 * second).is_some_and(|words| words.contains("500 ms")));
        assert!(clock_words("", 0, 0).is_some());
    }

    #[tokio::test]
    async fn too_little_memory_is_named() {
        let needs = Needs { disk_bytes: 0, inodes: 0, mem_bytes: u64::MAX };
        let error = check(&Fake::default(), needs, 0).await.unwrap_err().to_string();
        assert!(error.contains("MiB of memory"), "{error}");
    }

    #[tokio::test]
    async fn report_25_a_disk_that_is_too_full_is_named_before_anything_is_made() {
        let needs = Needs { disk_bytes: u64::MAX, inodes: 0, mem_bytes: 0 };
        let fake = Fake::at("/");
        let error = check(&fake, needs, 0).await.unwrap_err().to_string();
        assert!(error.contains("MiB free") && error.contains("/ has"), "{error}");
        assert_eq!(fake.names(), Vec::<String>::new());
    }

    #[tokio::test]
    async fn report_27_volumes_are_counted_and_too_many_are_refused() {
        let needs = Needs { disk_bytes: 0, inodes: 0, mem_bytes: 0 };
        let fake = Fake::default();
        for number in 0..VOLUMES_MAX {
            fake.create_volume(&format!("v{number}"), &std::collections::BTreeMap::new()).await.unwrap();
        }
        check(&fake, needs, 0).await.unwrap();
        fake.create_volume("one-more", &std::collections::BTreeMap::new()).await.unwrap();
        let error = check(&fake, needs, 0).await.unwrap_err().to_string();
        assert!(error.contains("1501 volumes"), "{error}");
    }
}

//! The job file of plan mode: read, checked, and turned into what the engine needs.

use std::path::Path;

use scenario::pipe::{LoadgenJob, PIPE_VERSION};

use crate::error::LoadgenError;

/// A job is a few hundred bytes; more is not a job.
const JOB_BYTES_MAX: u64 = 1 << 20;

/// Reads and checks a job file.
///
/// # Errors
/// Usage, with the file and what is wrong in it.
pub fn read(path: &Path) -> Result<LoadgenJob, LoadgenError> {
    let usage = |why: String| LoadgenError::Usage(format!("job file {}: {why}", path.display()));
    let text = crate::input::read(path, JOB_BYTES_MAX).map_err(usage)?;
    let job: LoadgenJob = serde_json::from_slice(&text).map_err(|error| usage(error.to_string()))?;
    check(&job).map_err(usage)?;
    Ok(job)
}

fn check(job: &LoadgenJob) -> Result<(), String> {
    if job.v != PIPE_VERSION {
        return Err(format!("`v` is {}, this build speaks version {PIPE_VERSION}", job.v));
    }
    for (index, step) in job.steps.iter().enumerate() {
        if step.concurrency == 0 {
            return Err(format!("step {index}: `concurrency` is 0; at least 1 request must be in flight"));
        }
        match (step.requests, step.duration) {
            (Some(0), None) => return Err(format!("step {index}: `requests` is 0")),
            (None, Some(duration)) if duration.us() == 0 => {
                return Err(format!("step {index}: `duration` is 0"));
            }
            (Some(_), None) | (None, Some(_)) => {}
            _ => return Err(format!("step {index}: give exactly one of `requests` and `duration`")),
        }
    }
    let shard = job.shard;
    if shard.of == 0 || shard.shard >= shard.of {
        return Err(format!("`shard` {}/{} does not exist; count from 0", shard.shard, shard.of));
    }
    let limits = &job.limits;
    for (name, limit) in [
        ("connect", limits.connect),
        ("headers", limits.headers),
        ("first_byte", limits.first_byte),
        ("idle", limits.idle),
        ("total", limits.total),
    ] {
        if limit.us() == 0 {
            return Err(format!("`limits.{name}` is 0; no request could succeed"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn sample() -> Value {
        json!({
            "v": 1, "gateway_url": "http://127.0.0.1:1", "model": "m", "plan": "p", "records": "r",
            "salt": "abcdefghijkl", "steps": [{"concurrency": 2, "requests": 4}],
            "limits": {"connect": "1s", "headers": "1s", "first_byte": "1s", "idle": "1s", "total": "1s",
                "drain": "0s"},
            "shard": {"shard": 0, "of": 1}
        })
    }

    fn read_value(value: &Value) -> Result<LoadgenJob, LoadgenError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("job.json");
        std::fs::write(&path, value.to_string()).unwrap();
        read(&path)
    }

    #[test]
    fn a_good_job_is_read() {
        assert_eq!(read_value(&sample()).unwrap().steps[0].concurrency, 2);
    }

    #[test]
    fn bad_jobs_are_usage_errors_that_name_the_place() {
        for (pointer, value, word) in [
            ("/v", json!(2), "`v`"),
            ("/steps/0/concurrency", json!(0), "step 0"),
            ("/steps/0/requests", json!(0), "`requests`"),
            ("/steps/0", json!({"concurrency": 1}), "exactly one"),
            ("/steps/0", json!({"concurrency": 1, "requests": 1, "duration": "1s"}), "exactly one"),
            ("/steps/0", json!({"concurrency": 1, "duration": "0s"}), "`duration`"),
            ("/steps/0", json!({"concurrency": 1, "duration": "5"}), "unit"),
            ("/shard", json!({"shard": 1, "of": 1}), "`shard`"),
            ("/limits/idle", json!("0s"), "limits.idle"),
            ("/salt", json!(7), "expected a string"),
        ] {
            let mut job = sample();
            *job.pointer_mut(pointer).unwrap() = value;
            let error = read_value(&job).unwrap_err();
            assert!(matches!(error, LoadgenError::Usage(_)), "{error}");
            assert!(error.to_string().contains(word), "{pointer}: {error}");
        }
        let mut extra = sample();
        extra["gateway"] = json!("x");
        assert!(read_value(&extra).unwrap_err().to_string().contains("unknown field `gateway`"));
        let missing = read(Path::new("/nonexistent/job.json")).unwrap_err();
        assert!(missing.to_string().contains("/nonexistent/job.json"));
    }
}

//! The stores of `--observe`: what is scraped, logs brought in, everything asked back (contract mocks 8).
//!
//! They are witnesses beside the run's own files and never an input of the verdict. What they do not give back is a gap.

use std::collections::BTreeMap;
use std::time::Duration;

use compose_engine::clock;
use compose_engine::engine::docker::Docker;
use compose_engine::engine::{Engine, LogAsk};
use compose_engine::logs::{Line, Lines};
use evidence::snapshot::Missing;
use futures_util::StreamExt;
use scenario::model::Resolved;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::project::{self, CONTROL_PORT, SERVICE_PORT};
use crate::collect::ask::{Ask, bound};
use crate::stack::Choice;
use crate::stack::postgres::percent;

/// File that is laid over the others.
pub const FILE: &str = "observability.yml";
/// What the stores gave back, in the run directory; bundles take their queries from it.
pub const RESULT: &str = "work/observability.json";
/// Stores by service, with the port in their containers.
pub const STORES: [(&str, u16); 3] = [("prometheus", 9090), ("loki", 3100), ("jaeger", 16686)];
/// Lines of one push, and of one service.
const PUSH_LINES_MAX: usize = 2_000;
const SERVICE_LINES_MAX: usize = 100_000;
/// Limit of one call.
const CALL_LIMIT: Duration = Duration::from_secs(10);
/// Looks until a store shows what it has been given.
const LOOKS_MAX: u32 = 12;
const LOOK_PAUSE: Duration = Duration::from_millis(250);

/// What is known of one store after the run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Store {
    /// `metrics`, `logs`, `traces`.
    pub what: String,
    /// Where it answered.
    pub at: String,
    /// What it was asked.
    pub query: String,
    /// Series, lines or services that it gave back.
    pub found: u64,
}

/// `work/observability.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observed {
    /// Format version.
    pub v: u32,
    /// Project, the label of everything in the stores.
    pub project: String,
    /// Unix seconds of the window.
    pub from_unix_s: u64,
    /// Its end.
    pub to_unix_s: u64,
    /// Stores.
    pub stores: Vec<Store>,
    /// Log lines that found no room.
    pub lines_dropped: u64,
}

/// Whether a service is one of the stores: nothing of the run depends on it, and no assertion looks at it.
#[must_use]
pub fn is_store(service: &str) -> bool {
    STORES.iter().any(|(name, _)| *name == service)
}

/// Service and `host:port` of everything with metrics: gateway, every host process, the mocks, each pool node.
#[must_use]
pub fn targets(resolved: &Resolved, choice: &Choice) -> Vec<(String, String, String)> {
    let at = |service: &str, port: u16, path: &str| {
        (service.to_owned(), format!("{service}:{port}"), path.to_owned())
    };
    let mut all = vec![at("gateway", SERVICE_PORT, "/metrics")];
    // A supervisor has no metrics of its own; its child's are behind the version.
    let path = if project::is_real(choice) { "/v2/metrics" } else { "/metrics" };
    all.extend(project::processes(resolved).iter().map(|process| at(&process.service, SERVICE_PORT, path)));
    all.extend(["mock-dapi", "mock-chain"].map(|mock| at(mock, CONTROL_PORT, "/metrics")));
    all.extend(resolved.nodes.iter().map(|node| at(&node.name, CONTROL_PORT, "/metrics")));
    all
}

/// What Prometheus reads. JSON is YAML.
#[must_use]
pub fn scrape_config(resolved: &Resolved, choice: &Choice, project: &str) -> Value {
    let jobs: Vec<Value> = targets(resolved, choice)
        .into_iter()
        .map(|(service, target, path)| {
            json!({ "job_name": service, "metrics_path": path, "static_configs": [
                { "targets": [target], "labels": { "compose_service": service, "compose_project": project } } ] })
        })
        .collect();
    json!({ "global": { "scrape_interval": "1s", "scrape_timeout": "1s" }, "scrape_configs": jobs })
}

/// Brings the logs in and asks every store back.
pub struct Stores<'a> {
    /// Client.
    pub ask: &'a Ask,
    /// `host:port` of each store by service.
    pub at: BTreeMap<&'static str, String>,
    /// Project.
    pub project: String,
    /// Services whose metrics must be there.
    pub services: Vec<String>,
    /// Begin of the window, Unix seconds.
    pub from_unix_s: u64,
}

impl Stores<'_> {
    /// Everything; gaps are what a store did not give back.
    pub async fn ask_all(
        &self,
        engine: &Docker,
        containers: &BTreeMap<String, String>,
    ) -> (Observed, Vec<Missing>) {
        let mut missing = Vec::new();
        let mut observed = Observed {
            v: 1,
            project: self.project.clone(),
            from_unix_s: self.from_unix_s,
            ..Observed::default()
        };
        if let Some(at) = self.at.get("loki") {
            let mut sent = 0;
            for (service, id) in containers {
                let lines = all_lines(engine, id).await;
                observed.lines_dropped += lines.len().saturating_sub(SERVICE_LINES_MAX) as u64;
                match self.push(at, service, &lines[..lines.len().min(SERVICE_LINES_MAX)]).await {
                    Ok(count) => sent += count,
                    Err(why) => missing.push(Missing { what: format!("loki/{service}"), why }),
                }
            }
            self.logs(at, sent, &mut observed, &mut missing).await;
        }
        observed.to_unix_s = clock::unix_s();
        if let Some(at) = self.at.get("prometheus") {
            self.metrics(at, &mut observed, &mut missing).await;
        }
        if let Some(at) = self.at.get("jaeger") {
            self.traces(at, &mut observed, &mut missing).await;
        }
        (observed, missing)
    }

    async fn push(&self, at: &str, service: &str, lines: &[Line]) -> Result<u64, String> {
        let mut sent = 0;
        for part in lines.chunks(PUSH_LINES_MAX) {
            let values: Vec<[String; 2]> = part
                .iter()
                .filter_map(|line| {
                    let at_ns = line.stamp.as_deref().and_then(clock::parse_ns)?;
                    Some([at_ns.to_string(), line.text.clone()])
                })
                .collect();
            sent += values.len() as u64;
            let labels = json!({ "compose_service": service, "compose_project": self.project });
            let body = json!({ "streams": [ { "stream": labels, "values": values } ] });
            let url = format!("http://{at}/loki/api/v1/push");
            let request = self.ask.client().post(&url).timeout(CALL_LIMIT).json(&body);
            let (status, _) =
                self.ask.send(request, bound::SMALL).await.map_err(|refusal| refusal.to_string())?;
            if status >= 300 {
                return Err(format!("{url} answered {status}"));
            }
        }
        Ok(sent)
    }

    async fn logs(&self, at: &str, sent: u64, observed: &mut Observed, missing: &mut Vec<Missing>) {
        let query = format!("{{compose_project=\"{}\"}}", self.project);
        let to = clock::unix_s() + 1;
        let window = to.saturating_sub(self.from_unix_s).max(1) + 60;
        let count = format!("sum(count_over_time({query}[{window}s]))");
        let parameters = [("query", count.as_str()), ("time", &to.to_string())];
        let found = self.until(at, "/loki/api/v1/query", &parameters, sent, sum).await;
        self.note("logs", at, query, (found, sent), "lines", observed, missing);
    }

    async fn metrics(&self, at: &str, observed: &mut Observed, missing: &mut Vec<Missing>) {
        let query = format!("up{{compose_project=\"{}\"}} == 1", self.project);
        let wanted = self.services.len() as u64;
        let found = self.until(at, "/api/v1/query", &[("query", &query)], wanted, series).await;
        self.note("metrics", at, query, (found, wanted), "services with metrics", observed, missing);
    }

    /// What there is of traces is information: the reference writes none, and real builds only where told to.
    async fn traces(&self, at: &str, observed: &mut Observed, missing: &mut Vec<Missing>) {
        let path = "/api/services";
        let found =
            self.until(at, path, &[], 0, |json| json["data"].as_array().map_or(0, Vec::len) as u64).await;
        self.note("traces", at, format!("GET {path}"), (found, 0), "services", observed, missing);
    }

    #[expect(clippy::too_many_arguments, reason = "one line of the result from its parts")]
    fn note(
        &self,
        what: &str,
        at: &str,
        query: String,
        (found, wanted): (Result<u64, String>, u64),
        unit: &str,
        observed: &mut Observed,
        missing: &mut Vec<Missing>,
    ) {
        let gap = |why: String| Missing { what: format!("{what} store at {at}"), why };
        match found {
            Ok(found) => {
                if found < wanted {
                    missing.push(gap(format!("{found} of {wanted} {unit} came back for {query}")));
                }
                observed.stores.push(Store { what: what.to_owned(), at: at.to_owned(), query, found });
            }
            Err(why) => missing.push(gap(why)),
        }
    }

    /// Asks until the number is there, bounded: stores show what they were given a little later.
    async fn until(
        &self,
        at: &str,
        path: &str,
        parameters: &[(&str, &str)],
        wanted: u64,
        count: fn(&Value) -> u64,
    ) -> Result<u64, String> {
        let mut found = 0;
        for _ in 0..LOOKS_MAX {
            let pairs: Vec<String> =
                parameters.iter().map(|(name, value)| format!("{name}={}", percent(value))).collect();
            let url = format!("http://{at}{path}?{}", pairs.join("&"));
            let request = self.ask.client().get(&url).timeout(CALL_LIMIT);
            let (status, text) =
                self.ask.send(request, bound::STATE).await.map_err(|refusal| refusal.to_string())?;
            if status >= 300 {
                return Err(format!("{url} answered {status}"));
            }
            found = serde_json::from_slice(&text).map(|json| count(&json)).unwrap_or_default();
            if found >= wanted {
                break;
            }
            tokio::time::sleep(LOOK_PAUSE).await;
        }
        Ok(found)
    }
}

/// Series of an instant query.
fn series(json: &Value) -> u64 {
    json.pointer("/data/result").and_then(Value::as_array).map_or(0, Vec::len) as u64
}

/// The one value of an instant query over a sum.
fn sum(json: &Value) -> u64 {
    let text = json.pointer("/data/result/0/value/1").and_then(Value::as_str).unwrap_or_default();
    text.parse().unwrap_or_default()
}

/// A container's whole log with the engine's stamps.
async fn all_lines(engine: &Docker, id: &str) -> Vec<Line> {
    let mut pieces = engine.logs(id, LogAsk::default());
    let mut lines = Lines::stamped();
    let mut all = Vec::new();
    while let Some(Ok(piece)) = pieces.next().await {
        all.extend(lines.take(&piece));
    }
    all.extend(lines.rest());
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use compose_engine::engine::Output;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// A store of canned answers by the begin of the request line; it keeps what was asked.
    async fn store(
        answers: Vec<(&'static str, &'static str)>,
    ) -> (String, tokio::sync::mpsc::Receiver<String>) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap().to_string();
        let (tell, asked) = tokio::sync::mpsc::channel(64);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut text = Vec::new();
                let mut part = [0_u8; 4096];
                while let Ok(count) = stream.read(&mut part).await {
                    text.extend_from_slice(&part[..count]);
                    let all = String::from_utf8_lossy(&text).into_owned();
                    let Some((head, body)) = all.split_once("\r\n\r\n") else { continue };
                    let length = head
                        .lines()
                        .find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
                    if count == 0 || body.len() >= length.unwrap_or(0) {
                        break;
                    }
                }
                let all = String::from_utf8_lossy(&text).into_owned();
                let body =
                    answers.iter().find(|(begin, _)| all.starts_with(begin)).map_or("{}", |(_, body)| body);
                let head =
                    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
                drop(stream.write_all(format!("{head}{body}").as_bytes()).await);
                drop(tell.send(all).await);
            }
        });
        (at, asked)
    }

    fn stores<'a>(ask: &'a Ask, service: &'static str, at: &str) -> Stores<'a> {
        Stores {
            ask,
            at: BTreeMap::from([(service, at.to_owned())]),
            project: "ds-x-1".to_owned(),
            services: vec!["gateway".to_owned(), "host-0".to_owned()],
            from_unix_s: 1_000,
        }
    }

    #[tokio::test]
    async fn lines_go_in_with_their_stamps_and_are_counted_back() {
        let counted = r#"{"data":{"result":[{"value":[1,"2"]}]}}"#;
        let (at, mut asked) = store(vec![("GET /loki/api/v1/query?", counted)]).await;
        let ask = Ask::new().unwrap();
        let stores = stores(&ask, "loki", &at);
        let line = |text: &str| Line {
            output: Output::Stdout,
            stamp: Some("2026-01-01T00:00:01.000000005Z".to_owned()),
            text: text.to_owned(),
        };
        assert_eq!(stores.push(&at, "gateway", &[line("one"), line("two")]).await.unwrap(), 2);
        let pushed = asked.recv().await.unwrap();
        assert!(
            pushed.contains("1767225601000000005") && pushed.contains("\"compose_service\":\"gateway\""),
            "{pushed}"
        );
        let (mut observed, mut missing) = (Observed::default(), Vec::new());
        stores.logs(&at, 2, &mut observed, &mut missing).await;
        assert_eq!((observed.stores[0].found, missing.len()), (2, 0));
        // One line that does not come back is a gap.
        stores.logs(&at, 3, &mut observed, &mut missing).await;
        assert!(missing[0].why.starts_with("2 of 3 lines"), "{}", missing[0].why);
    }

    #[tokio::test]
    async fn a_service_without_metrics_and_a_store_that_is_gone_are_gaps() {
        let one = r#"{"data":{"result":[{"metric":{}}]}}"#;
        let (at, _asked) = store(vec![("GET /api/v1/query?", one)]).await;
        let ask = Ask::new().unwrap();
        let (mut observed, mut missing) = (Observed::default(), Vec::new());
        stores(&ask, "prometheus", &at).metrics(&at, &mut observed, &mut missing).await;
        assert!(missing[0].why.starts_with("1 of 2 services with metrics"), "{}", missing[0].why);
        stores(&ask, "jaeger", "127.0.0.1:1").traces("127.0.0.1:1", &mut observed, &mut missing).await;
        assert_eq!((observed.stores.len(), missing.len()), (1, 2));
    }
}

//! A running environment (design section 4): endpoints come from the user, nothing is started but loadgen, nothing is
//! stopped, and no setting is changed. What can't be seen is missing evidence, never zero.

use std::collections::BTreeMap;

use evidence::event::EventKind;
use evidence::redact::Redactor;
use evidence::run::Stack;
use evidence::snapshot::ProcessIdentity;
use scenario::control::MockConfig;
use scenario::fault::FaultAction;
use scenario::model::{Resolved, ServiceAction, Storage};
use serde_json::Value;

use super::{ActError, Choice, Context, Provider, Running, Step};
use crate::collect::ask::{Ask, bound, origin};
use crate::collect::snapshot::{Mocks, OpenaiControl};
use crate::collect::{Escrows, HostSurface, Surfaces};
use crate::control::Control;
use crate::error::RunnerError;

/// Name of the provider in `run.yaml`.
pub const PROVIDER: &str = "attach";
/// Environment variable with the admin bearer of the gateway: a command line can be read by every user of a machine.
pub const ADMIN_KEY: &str = "PROOFLOAD_ADMIN_KEY";

/// Where the environment is.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct AttachArgs {
    /// Gateway of a running environment, for example http://10.0.0.5:8080; with `--stack attach`. Its admin bearer is
    /// taken from PROOFLOAD_ADMIN_KEY.
    #[arg(long, value_name = "URL", value_parser = base_url)]
    pub gateway: Option<String>,
    /// A host, repeatable, in the order of participants; its name in results is host-0, host-1, …
    #[arg(long = "host", value_name = "URL", value_parser = base_url)]
    pub hosts: Vec<String>,
    /// Path of sessions on hosts.
    #[arg(long, value_name = "PATH", default_value = "/devshard/v2")]
    pub session_path: String,
    /// An escrow, repeatable; by default those that the gateway's admin view shows as active.
    #[arg(long = "escrow", value_name = "ID")]
    pub escrows: Vec<String>,
    /// Model that is asked for; by default the first that the gateway offers.
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
    /// Control of a mock-openai process, repeatable. Rules are only possible where the control of the mock is given.
    #[arg(long = "mock-openai", value_name = "URL", value_parser = base_url)]
    pub openai: Vec<String>,
    /// Control of mock-dapi.
    #[arg(long = "mock-dapi", value_name = "URL", value_parser = base_url)]
    pub dapi: Option<String>,
    /// Control of mock-chain.
    #[arg(long = "mock-chain", value_name = "URL", value_parser = base_url)]
    pub chain: Option<String>,
}

/// `http://host:port`, without a slash at its end.
fn base_url(text: &str) -> Result<String, String> {
    let base = text.trim_end_matches('/');
    let place = base.strip_prefix("http://").or_else(|| base.strip_prefix("https://"));
    match place {
        Some(place) if !place.is_empty() && !place.contains(char::is_whitespace) => Ok(base.to_owned()),
        _ => Err("give it as http://host:port".to_owned()),
    }
}

/// The attach provider.
#[derive(Debug)]
pub struct Attach {
    args: AttachArgs,
}

impl Attach {
    /// Nothing is asked yet.
    #[must_use]
    pub fn new(choice: Choice) -> Self {
        Self { args: choice.attach }
    }

    async fn look(&self, context: &mut Context<'_>) -> Result<Running, RunnerError> {
        let gateway = self.args.gateway.clone().unwrap_or_default();
        let admin_key = std::env::var(ADMIN_KEY).unwrap_or_default();
        context.dir.set_redactor(Redactor::new([admin_key.clone()]));
        let ask = Ask::new().map_err(RunnerError::environment)?;
        let hosts = self.args.hosts.iter().enumerate().map(|(index, base)| HostSurface {
            service: format!("host-{index}"),
            base: base.clone(),
            participant: String::new(),
        });
        let surfaces = Surfaces {
            ask: ask.clone(),
            gateway,
            admin_key,
            hosts: hosts.collect(),
            session_prefix: self.args.session_path.trim_end_matches('/').to_owned(),
            escrows: Escrows::default(),
            requests_max: context.resolved.requests_max,
            perf_db: None,
        };
        let escrows = if self.args.escrows.is_empty() {
            context.dispatcher.through(escrows(&surfaces)).await??
        } else {
            self.args.escrows.clone()
        };
        surfaces.escrows.add(escrows);
        let model = match &self.args.model {
            Some(model) => model.clone(),
            None => context.dispatcher.through(model(&surfaces)).await??,
        };
        let mocks = context.dispatcher.through(self.mocks(&ask)).await??;
        knows_nodes(&mocks, context.resolved)?;
        self.say_what_is_not_given(context)?;
        let mut required = vec!["gateway".to_owned()];
        required.extend(surfaces.hosts.iter().map(|host| host.service.clone()));
        let text =
            format!("attached to {}: escrows {}", surfaces.gateway, surfaces.escrows.list().join(", "));
        context.dispatcher.log(EventKind::Note { text })?;
        Ok(Running {
            surfaces,
            mocks,
            node_urls: BTreeMap::new(),
            model,
            postgres: BTreeMap::new(),
            lease_ttl: None,
            required,
            waits_s: (0, 0),
        })
    }

    /// What of the environment nobody can look at, since no address was given: stated, so that it is never taken for
    /// quiet.
    fn say_what_is_not_given(&self, context: &mut Context<'_>) -> Result<(), RunnerError> {
        let participants = context.resolved.scenario.devshard.participants as usize;
        let hosts = (self.args.hosts.len()..participants).map(|index| format!("host-{index}"));
        let mocks = [
            ("mock-openai", self.args.openai.is_empty()),
            ("mock-dapi", self.args.dapi.is_none()),
            ("mock-chain", self.args.chain.is_none()),
        ];
        let mocks = mocks.into_iter().filter(|(_, absent)| *absent);
        let hosts = hosts.map(|host| (host, "host"));
        for (what, flag) in hosts.chain(mocks.map(|(mock, _)| (format!("{mock}/calls"), mock))) {
            let why = format!("not seen: --{flag} was not given");
            context.dispatcher.log(EventKind::EvidenceMissing { what, why })?;
        }
        Ok(())
    }

    /// Controls that were given; each must answer as the mock that it is said to be, and hold no rules: ours would
    /// replace them.
    async fn mocks(&self, ask: &Ask) -> Result<Mocks, RunnerError> {
        let mut mocks = Mocks::default();
        for (index, base) in self.args.openai.iter().enumerate() {
            let control = Control::new(ask.clone(), &origin(base));
            let MockConfig::Openai(config) = held(&control, base, "mock-openai").await? else {
                return Err(another(base, "mock-openai"));
            };
            free(base, config.rules.len())?;
            let nodes = config.nodes.into_iter().map(|node| node.name).collect();
            mocks.openai.push(OpenaiControl { service: format!("mock-openai-{index}"), nodes, control });
        }
        if let Some(base) = &self.args.dapi {
            let control = Control::new(ask.clone(), &origin(base));
            let MockConfig::Dapi(config) = held(&control, base, "mock-dapi").await? else {
                return Err(another(base, "mock-dapi"));
            };
            free(base, config.rules.len())?;
            mocks.dapi = Some(control);
        }
        if let Some(base) = &self.args.chain {
            let control = Control::new(ask.clone(), &origin(base));
            let MockConfig::Chain(config) = held(&control, base, "mock-chain").await? else {
                return Err(another(base, "mock-chain"));
            };
            free(base, config.rules.len())?;
            mocks.chain = Some(control);
        }
        Ok(mocks)
    }
}

async fn held(control: &Control, base: &str, mock: &str) -> Result<MockConfig, RunnerError> {
    let config = control.config().await;
    config.map_err(|why| RunnerError::environment(format!("{base} is no control of {mock}: {why}")))
}

fn another(base: &str, mock: &str) -> RunnerError {
    RunnerError::environment(format!("{base} is no control of {mock}: it is that of another mock"))
}

fn free(base: &str, rules: usize) -> Result<(), RunnerError> {
    if rules == 0 {
        return Ok(());
    }
    let advice = "wait for the run that they belong to, or take them off: PUT its configuration without them";
    Err(RunnerError::CannotDo(format!(
        "{base} holds {rules} rules of somebody else, which are not replaced; {advice} \
        (see /control/v1/config)"
    )))
}

/// A rule about a node that nobody here has would hit nothing.
fn knows_nodes(mocks: &Mocks, resolved: &Resolved) -> Result<(), RunnerError> {
    let known = |name: &String| mocks.openai.iter().any(|pool| pool.nodes.contains(name));
    let rules = resolved.scenario.faults.iter().filter(|rule| matches!(rule.action, FaultAction::Node(_)));
    if rules.count() == 0 {
        return Ok(());
    }
    match resolved.nodes.iter().find(|node| !known(&node.name)) {
        None => Ok(()),
        Some(node) => Err(RunnerError::CannotDo(format!(
            "the scenario has a node {}, and no mock-openai that was given serves it",
            node.name
        ))),
    }
}

/// Active escrows by the admin view (contract gateway 2.4.3).
async fn escrows(surfaces: &Surfaces) -> Result<Vec<String>, RunnerError> {
    let url = format!("{}/v1/admin/state", surfaces.gateway);
    let read = |value: &Value| {
        let list = value["devshards"].as_array().ok_or("no devshards")?;
        let active = list.iter().filter(|entry| entry["active"] != false);
        Ok(active.filter_map(|entry| entry["id"].as_str().map(str::to_owned)).collect::<Vec<_>>())
    };
    let found = surfaces.json(&url, true, bound::STATE, read).await;
    let advice = format!("give --escrow ID, or the admin bearer in {ADMIN_KEY}");
    match found {
        Ok((ids, _)) if ids.is_empty() => {
            Err(RunnerError::environment(format!("{url}: no escrow is active")))
        }
        Ok((ids, _)) => Ok(ids),
        Err(why) => Err(RunnerError::environment(format!("asking for escrows: {url}: {why}; {advice}"))),
    }
}

/// First model that the gateway offers.
async fn model(surfaces: &Surfaces) -> Result<String, RunnerError> {
    let url = format!("{}/v1/models", surfaces.gateway);
    let read =
        |value: &Value| value["data"][0]["id"].as_str().map(str::to_owned).ok_or("no data[0].id".to_owned());
    let found = surfaces.json(&url, false, bound::SMALL, read).await;
    found.map(|(id, _)| id).map_err(|why| {
        RunnerError::environment(format!("asking for models: {url}: {why}; give --model NAME"))
    })
}

/// What of the mocks a scenario wants to change.
fn wants(resolved: &Resolved, of: fn(&FaultAction) -> bool) -> bool {
    resolved.scenario.faults.iter().any(|rule| of(&rule.action))
}

impl Provider for Attach {
    fn about(&self, resolved: &Resolved) -> Stack {
        let storage = match resolved.scenario.devshard.storage {
            Storage::Sqlite => "sqlite",
            Storage::Postgres => "postgres",
        };
        Stack {
            provider: PROVIDER.to_owned(),
            devshard: "attached".to_owned(),
            personality: None,
            defect: None,
            storage: storage.to_owned(),
            isolation: "none: a running environment, which others may use at the same time".to_owned(),
            hosts_by: None,
        }
    }

    fn programs(&self, _resolved: &Resolved) -> Vec<&'static str> {
        vec!["loadgen"]
    }

    fn cannot_do(&self, resolved: &Resolved) -> Option<String> {
        if !resolved.scenario.actions.is_empty() {
            return Some(
                "this scenario has service actions, and an attached environment is never acted on".to_owned(),
            );
        }
        let needs = [
            (
                "--mock-openai",
                self.args.openai.is_empty(),
                wants(resolved, |a| matches!(a, FaultAction::Node(_))),
            ),
            ("--mock-dapi", self.args.dapi.is_none(), wants(resolved, |a| matches!(a, FaultAction::Dapi(_)))),
            (
                "--mock-chain",
                self.args.chain.is_none(),
                wants(resolved, |a| matches!(a, FaultAction::Chain(_))),
            ),
        ];
        let (flag, ..) = needs.into_iter().find(|(_, absent, wanted)| *absent && *wanted)?;
        Some(format!("this scenario has fault rules, which need the control of a mock: give {flag} URL"))
    }

    fn is_ours(&self) -> bool {
        false
    }

    fn start<'a>(&'a mut self, context: &'a mut Context<'_>) -> Step<'a, Result<Running, RunnerError>> {
        Box::pin(self.look(context))
    }

    /// Nobody here knows their process ids: the start time in their metrics tells one process from the next. One whose
    /// metrics are not shown is missing, which is no statement about it.
    fn processes<'a>(
        &'a mut self,
        running: &'a Running,
        _context: &'a mut Context<'_>,
    ) -> Step<'a, Vec<ProcessIdentity>> {
        Box::pin(async move {
            let surfaces = &running.surfaces;
            let mut processes = Vec::new();
            let hosts = surfaces.hosts.iter().map(|host| (host.service.as_str(), host.base.as_str()));
            for (service, base) in std::iter::once(("gateway", surfaces.gateway.as_str())).chain(hosts) {
                let Ok((_, series)) = surfaces.metrics(base).await else { continue };
                processes.push(ProcessIdentity {
                    service: service.to_owned(),
                    pid: 0,
                    start_ticks: 0,
                    metric_start: series.get("process_start_time_seconds").map(f64::to_string),
                    ready: true,
                });
            }
            processes
        })
    }

    fn act<'a>(
        &'a mut self,
        _action: &'a ServiceAction,
        _running: &'a Running,
        _context: &'a mut Context<'_>,
    ) -> Step<'a, Result<(), ActError>> {
        let why = "an attached environment is never acted on".to_owned();
        Box::pin(std::future::ready(Err(ActError::Refused(why))))
    }

    fn undo(&self) -> Vec<ServiceAction> {
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_base_is_a_url_without_a_slash_at_its_end() {
        assert_eq!(base_url("http://10.0.0.5:8080/"), Ok("http://10.0.0.5:8080".to_owned()));
        for text in ["10.0.0.5:8080", "http://", "ftp://x", "", "http://a b"] {
            assert!(base_url(text).is_err(), "{text}");
        }
    }
}

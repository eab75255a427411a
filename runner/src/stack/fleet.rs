//! The child processes of a stack and actions on them: end, start again at the same address, freeze and thaw.
//!
//! Names are those of the scenario. A participant with replicas and the routers are groups: an action on the group is
//! done to each member. Pool nodes share a process: theirs are orders to `mock-openai`.

use std::collections::BTreeMap;
use std::net::SocketAddrV4;
use std::time::Duration;

use scenario::control::NodeAct;
use scenario::model::ServiceAction;

use super::embedded::write_work;
use super::postgres::{self, Databases, Source};
use super::reference::random;
use super::services::{Down, config_in_force, stands_for};
use super::{ActError, Context, NOT_THE_STACKS, Running, launch};
use crate::error::RunnerError;
use crate::guard::{ServiceSignal, Spawn};

/// Why an action is not carried out on this stack.
const NOT_HERE: &str =
    "processes on loopback share one network, so that none can be taken out of it (use --stack compose)";
/// How long a service may take to end after SIGTERM or SIGKILL before the action counts as refused.
const END_LIMIT: Duration = Duration::from_secs(10);

/// How long a program of others may take until it answers; a gateway asks the chain for every escrow first.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);
/// Pause between two looks.
const LOOK_PAUSE: Duration = Duration::from_millis(100);
/// Time limit of one look.
const LOOK_LIMIT: Duration = Duration::from_secs(2);

/// Where a program of others answers once it works: it prints no ready line.
#[derive(Clone, Debug)]
pub struct Probe {
    /// Client of the run.
    pub http: reqwest::Client,
    /// Leased address.
    pub address: SocketAddrV4,
    /// Path that is answered with 200.
    pub path: &'static str,
}

/// The child processes of one stack.
#[derive(Debug, Default)]
pub struct Fleet {
    /// Every service as it is started, in start order.
    pub services: Vec<Spawn>,
    /// Programs of others among them.
    pub probes: BTreeMap<String, Probe>,
    /// Databases of the run.
    pub databases: Option<Databases>,
    down: Down,
}

impl Fleet {
    /// Starts a service for the first time.
    ///
    /// # Errors
    /// [`RunnerError::Environment`] when the guard is gone.
    pub async fn spawn(&mut self, context: &mut Context<'_>, spawn: Spawn) -> Result<(), RunnerError> {
        self.services.push(spawn.clone());
        launch::spawn(context, spawn).await
    }

    /// Starts a private server if there is none to use, and makes one database for each of these participants; gives
    /// their URLs. A shared one breaks real hosts (finding J13).
    ///
    /// # Errors
    /// [`RunnerError::Environment`] when Postgres does not come up.
    pub async fn open_databases(
        &mut self,
        context: &mut Context<'_>,
        source: Source,
        hosts: &[&str],
    ) -> Result<BTreeMap<String, String>, RunnerError> {
        let mark = hex::encode(random::<4>()?);
        let name = |host: &str| format!("proofload_{mark}_{}", host.replace('-', "_"));
        let names = hosts.iter().map(|host| name(host)).collect();
        let databases = Databases::open(source, names, context).await?;
        self.services.extend(databases.spawn.clone());
        let urls = hosts.iter().map(|host| ((*host).to_owned(), databases.url(&name(host)))).collect();
        self.databases = Some(databases);
        Ok(urls)
    }

    /// Carries out one action on every service that its name stands for.
    ///
    /// # Errors
    /// As [`super::Provider::act`].
    pub async fn carry_out(
        &mut self,
        action: &ServiceAction,
        running: &Running,
        context: &mut Context<'_>,
    ) -> Result<(), ActError> {
        let Some(name) = action.service() else { return Err(refused(NOT_THE_STACKS)) };
        if matches!(action, ServiceAction::Disconnect(_) | ServiceAction::Connect(_)) {
            return Err(refused(NOT_HERE));
        }
        if context.resolved.nodes.iter().any(|node| node.name == name) {
            return self.on_node(action, name, running).await;
        }
        let members = self.members(name);
        if members.is_empty() {
            return Err(refused(format!("this stack runs no {name} for this scenario")));
        }
        for service in members {
            match action {
                ServiceAction::Stop(_) => {
                    self.end(&service, ServiceSignal::Terminate, running, context).await?;
                }
                ServiceAction::Kill(_) => self.end(&service, ServiceSignal::Kill, running, context).await?,
                ServiceAction::Start(_) => self.start_again(&service, context).await?,
                ServiceAction::Restart(_) => {
                    self.end(&service, ServiceSignal::Terminate, running, context).await?;
                    self.start_again(&service, context).await?;
                }
                ServiceAction::Pause(_) => {
                    alive(&service, context)?;
                    self.down.until(&service, ServiceAction::Unpause);
                    context.guard.signal(&service, ServiceSignal::Stop).await?;
                }
                ServiceAction::Unpause(_) => {
                    alive(&service, context)?;
                    context.guard.signal(&service, ServiceSignal::Continue).await?;
                    self.down.back(&service);
                }
                _ => return Err(refused(NOT_THE_STACKS)),
            }
        }
        Ok(())
    }

    /// Services that a name stands for, in start order.
    fn members(&self, name: &str) -> Vec<String> {
        let services = self.services.iter().map(|spawn| &spawn.service);
        services.filter(|service| stands_for(name, service)).cloned().collect()
    }

    async fn end(
        &mut self,
        service: &str,
        signal: ServiceSignal,
        running: &Running,
        context: &mut Context<'_>,
    ) -> Result<(), ActError> {
        alive(service, context)?;
        if let Some(config) = config_in_force(service, running, context).await? {
            write_work(context, service, &config)?;
        }
        self.down.until(service, ServiceAction::Start);
        if launch::end(context, service, signal, END_LIMIT).await? {
            return Ok(());
        }
        Err(refused(format!("{service} did not end within {} s", END_LIMIT.as_secs())))
    }

    async fn start_again(&mut self, service: &str, context: &mut Context<'_>) -> Result<(), ActError> {
        if context.dispatcher.services.get(service).is_some_and(|state| state.running) {
            return Err(refused(format!("{service} runs already")));
        }
        let known = self.services.iter().find(|spawn| spawn.service == service).cloned();
        let spawn = known.ok_or_else(|| refused(format!("{service} was never started")))?;
        launch::spawn(context, spawn).await?;
        match (&self.databases, self.probes.get(service)) {
            (Some(databases), _) if service == postgres::SERVICE => databases.ready(context).await?,
            (_, Some(probe)) => answering(probe, service, context).await?,
            _ => drop(launch::ready(context, service).await?),
        }
        self.down.back(service);
        Ok(())
    }

    async fn on_node(
        &mut self,
        action: &ServiceAction,
        name: &str,
        running: &Running,
    ) -> Result<(), ActError> {
        let node = name.to_owned();
        let acts = match action {
            ServiceAction::Stop(_) => vec![NodeAct::Stop { node }],
            ServiceAction::Kill(_) => vec![NodeAct::Kill { node }],
            ServiceAction::Start(_) => vec![NodeAct::Start { node }],
            ServiceAction::Restart(_) => vec![NodeAct::Kill { node: node.clone() }, NodeAct::Start { node }],
            _ => {
                let why = "pool nodes share one process on this stack, so that one alone can't be frozen; \
                           a fault rule with `stall` does the same";
                return Err(refused(why));
            }
        };
        let pool = running.mocks.openai.iter().find(|pool| pool.nodes.iter().any(|known| known == name));
        let pool = pool.ok_or_else(|| refused(format!("no pool process serves {name}")))?;
        for act in acts {
            pool.control.act(&act).await.map_err(refused)?;
            match act {
                NodeAct::Start { .. } => self.down.back(name),
                NodeAct::Stop { .. } | NodeAct::Kill { .. } => self.down.until(name, ServiceAction::Start),
            }
        }
        Ok(())
    }

    /// Mocks first, because rules are taken off there; then in the order of the first start, nodes last.
    #[must_use]
    pub fn undo_in_order(&self) -> Vec<ServiceAction> {
        self.down.in_order(|name| {
            let found = self.services.iter().position(|spawn| spawn.service == name);
            found.unwrap_or(self.services.len())
        })
    }
}

/// Waits until a program of others answers 200 at its address, its exit, or the limit.
///
/// # Errors
/// [`RunnerError::Environment`] with its last log lines.
pub async fn answering(probe: &Probe, service: &str, context: &mut Context<'_>) -> Result<(), RunnerError> {
    let deadline = tokio::time::Instant::now() + ANSWER_LIMIT;
    let mut last = "it was not asked yet".to_owned();
    while tokio::time::Instant::now() < deadline {
        let state = context.dispatcher.services.entry(service.to_owned()).or_default();
        if let Some(error) = &state.not_spawned {
            return Err(RunnerError::environment(format!("starting {service}: {error}")));
        }
        if let Some(ended) = &state.ended {
            let message = format!("{service} ended before it answered ({ended})");
            return Err(launch::failed(context.dir, service, message));
        }
        let url = format!("http://{}{}", probe.address, probe.path);
        let ask = probe.http.get(url).timeout(LOOK_LIMIT).send();
        match context.dispatcher.through(ask).await? {
            Ok(answer) if answer.status().is_success() => return Ok(()),
            Ok(answer) => last = format!("{} answers {}", probe.path, answer.status()),
            Err(error) if error.is_connect() => last = "it accepts no connection at its port".to_owned(),
            Err(error) => last = format!("{}: {error}", probe.path),
        }
        if context.dispatcher.signals > 0 {
            return Err(RunnerError::environment("stopped while the stack was starting"));
        }
        context.dispatcher.through(tokio::time::sleep(LOOK_PAUSE)).await?;
    }
    let message = format!("{service} did not answer within {} s: {last}", ANSWER_LIMIT.as_secs());
    Err(launch::failed(context.dir, service, message))
}

fn refused(why: impl Into<String>) -> ActError {
    ActError::Refused(why.into())
}

fn alive(service: &str, context: &Context<'_>) -> Result<(), ActError> {
    if context.dispatcher.services.get(service).is_some_and(|state| state.running) {
        return Ok(());
    }
    Err(refused(format!("{service} does not run")))
}

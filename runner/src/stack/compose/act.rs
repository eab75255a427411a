//! Service actions and last evidence: each deed is in the ledger before it happens.

use std::time::Duration;

use compose_engine::engine::{Act, Engine};
use compose_engine::ledger::Phase;
use evidence::snapshot::Missing;
use scenario::model::ServiceAction;
use serde_json::json;

use super::project::config_file;
use super::start::address_of;
use super::{Compose, END_GRACE, Standing, environment, observe, watch};
use crate::collect::ask::Ask;
use crate::error::RunnerError;
use crate::stack::services::{config_in_force, stands_for};
use crate::stack::{ActError, Context, NOT_THE_STACKS, Running};

/// How long an end may take to be seen; the last lines and a mock's journal are brought before it is told.
const END_LIMIT: Duration = Duration::from_secs(20);

/// Place in the start order: what others need comes first.
fn rank(service: &str) -> u8 {
    let begins = |kind: &str| service.starts_with(kind);
    match service {
        "mock-chain" | "postgres" => 0,
        "mock-dapi" => 2,
        "gateway" => 5,
        _ if begins("host-") => 3,
        _ if begins("router-") => 4,
        _ => 1,
    }
}

impl Compose {
    /// Carries out one action on every service that its name stands for.
    pub(super) async fn carry_out(
        &mut self,
        action: &ServiceAction,
        running: &Running,
        context: &mut Context<'_>,
    ) -> Result<(), ActError> {
        let Some(name) = action.service() else {
            return Err(ActError::Refused(NOT_THE_STACKS.to_owned()));
        };
        let members = self.members(name, context);
        if members.is_empty() {
            return Err(ActError::Refused(format!("the project runs no {name} for this scenario")));
        }
        for service in members {
            self.on_one(action, &service, running, context).await?;
        }
        Ok(())
    }

    async fn on_one(
        &mut self,
        action: &ServiceAction,
        service: &str,
        running: &Running,
        context: &mut Context<'_>,
    ) -> Result<(), ActError> {
        match action {
            ServiceAction::Stop(_) => {
                self.end_service(service, Act::Stop(Some(END_GRACE)), running, context).await
            }
            ServiceAction::Kill(_) => self.end_service(service, Act::Kill, running, context).await,
            ServiceAction::Start(_) => self.start_service(service, context).await,
            ServiceAction::Restart(_) => {
                self.end_service(service, Act::Stop(Some(END_GRACE)), running, context).await?;
                self.start_service(service, context).await
            }
            ServiceAction::Pause(_) => {
                self.down.until(service, ServiceAction::Unpause);
                self.deed(service, Act::Pause, context).await
            }
            ServiceAction::Unpause(_) => {
                self.deed(service, Act::Unpause, context).await?;
                self.down.back(service);
                Ok(())
            }
            ServiceAction::Disconnect(_) => {
                self.down.until(service, ServiceAction::Connect);
                self.rewire(service, false, context).await
            }
            ServiceAction::Connect(_) => {
                self.rewire(service, true, context).await?;
                self.down.back(service);
                Ok(())
            }
            _ => Err(ActError::Refused(NOT_THE_STACKS.to_owned())),
        }
    }

    /// Services that a name stands for, in start order: a participant with several processes, the routers and the pool are
    /// groups, as on the embedded stack.
    fn members(&self, name: &str, context: &Context<'_>) -> Vec<String> {
        let Some(standing) = &self.standing else { return Vec::new() };
        let node = |service: &str| context.resolved.nodes.iter().any(|node| node.name == service);
        let own = |service: &str| stands_for(name, service) || (name == "mock-openai" && node(service));
        let mut members: Vec<String> =
            standing.up.containers.keys().filter(|service| own(service)).cloned().collect();
        members.sort_by_key(|service| rank(service));
        members
    }

    /// Mocks first, because rules are taken off there; then in start order.
    pub(super) fn undo_in_order(&self) -> Vec<ServiceAction> {
        self.down.in_order(rank)
    }

    fn id(&self, service: &str) -> Result<String, ActError> {
        let known = self.standing.as_ref().and_then(|standing| standing.up.containers.get(service));
        known.cloned().ok_or_else(|| ActError::Refused(format!("the project has no container {service}")))
    }

    async fn deed(&mut self, service: &str, act: Act, context: &mut Context<'_>) -> Result<(), ActError> {
        let id = self.id(service)?;
        let Some(standing) = &self.standing else { return Ok(()) };
        // Report 40: the ledger knows the target before anything happens to it.
        let written = standing.ledger.write(act.word(), service, Phase::Intended, "");
        written.map_err(|error| ActError::Run(environment(error)))?;
        let answer = context.dispatcher.through(standing.engine.act(&id, act)).await?;
        let (phase, note) = match &answer {
            Ok(()) => (Phase::Done, String::new()),
            Err(error) => (Phase::Failed, error.to_string()),
        };
        let written = standing.ledger.write(act.word(), service, phase, &note);
        written.map_err(|error| ActError::Run(environment(error)))?;
        answer.map_err(|error| ActError::Refused(error.to_string()))
    }

    /// Takes a service out of every network of the project, or puts it back at its address and names. Written down
    /// before it happens; the process itself goes on.
    async fn rewire(&mut self, service: &str, join: bool, context: &mut Context<'_>) -> Result<(), ActError> {
        let id = self.id(service)?;
        let Some(standing) = &self.standing else { return Ok(()) };
        let deed = if join { "connect" } else { "disconnect" };
        let write = |phase: Phase, note: &str| {
            standing
                .ledger
                .write(deed, service, phase, note)
                .map_err(|error| ActError::Run(environment(error)))
        };
        for end in standing.target.endpoints_of(service, &standing.up.subnets) {
            write(Phase::Intended, &end.network)?;
            let call = async {
                if join {
                    standing.engine.connect(&end.network, &id, &end).await
                } else {
                    standing.engine.disconnect(&end.network, &id).await
                }
            };
            if let Err(error) = context.dispatcher.through(call).await? {
                write(Phase::Failed, &error.to_string())?;
                return Err(ActError::Refused(error.to_string()));
            }
            write(Phase::Done, &end.network)?;
        }
        Ok(())
    }

    async fn end_service(
        &mut self,
        service: &str,
        act: Act,
        running: &Running,
        context: &mut Context<'_>,
    ) -> Result<(), ActError> {
        if let Some(config) = config_in_force(service, running, context).await? {
            // Written in place: the container sees the file that it was started with.
            let file = format!("work/{}", config_file(service));
            context.dir.write_json(&file, &config).map_err(|error| ActError::Run(error.into()))?;
        }
        self.down.until(service, ServiceAction::Start);
        context.dispatcher.services.entry(service.to_owned()).or_default().exit_planned = true;
        self.deed(service, act, context).await?;
        let deadline = tokio::time::Instant::now() + END_LIMIT;
        while context.dispatcher.services.get(service).is_some_and(|state| state.running) {
            match tokio::time::timeout_at(deadline, context.dispatcher.next()).await {
                Ok(taken) => taken?,
                Err(_) => {
                    let text = format!("{service} did not end within {} s", END_LIMIT.as_secs());
                    return Err(ActError::Refused(text));
                }
            }
        }
        Ok(())
    }

    async fn start_service(&mut self, service: &str, context: &mut Context<'_>) -> Result<(), ActError> {
        let id = self.id(service)?;
        self.deed(service, Act::Start, context).await?;
        let Some(standing) = &mut self.standing else { return Ok(()) };
        let looked = context.dispatcher.through(standing.engine.inspect(&id)).await?;
        let seen = looked.map_err(|error| ActError::Refused(error.to_string()))?;
        let watched = standing.watched(service, &id, context);
        // The report of this start is still on its way: until it arrives the state would tell of the end before it.
        let state = context.dispatcher.services.entry(service.to_owned()).or_default();
        state.ended = None;
        state.exit_planned = false;
        state.output.clear();
        let watcher = context.dispatcher.through(watch::follow(watched, &seen)).await?;
        standing.watchers.insert(service.to_owned(), watcher);
        self.await_ready(service, context).await?;
        self.said_ready(service, context).await?;
        self.down.back(service);
        Ok(())
    }

    pub(super) async fn kill(&mut self, service: &str, context: &mut Context<'_>) -> Result<(), RunnerError> {
        match self.deed(service, Act::Kill, context).await {
            Ok(()) | Err(ActError::Refused(_)) => Ok(()),
            Err(ActError::Run(error)) => Err(error),
        }
    }

    /// What the stores of `--observe` give back.
    async fn ask_stores(&self, standing: &Standing, context: &Context<'_>) -> Vec<Missing> {
        let ask = match Ask::new() {
            Ok(ask) => ask,
            Err(why) => return vec![Missing { what: observe::RESULT.to_owned(), why }],
        };
        let at = |(service, port)| Some((service, address_of(&standing.up, service, port)?));
        let services = observe::targets(context.resolved, &self.choice);
        let stores = observe::Stores {
            ask: &ask,
            at: observe::STORES.into_iter().filter_map(at).collect(),
            project: standing.target.project.clone(),
            services: services.into_iter().map(|(service, ..)| service).collect(),
            from_unix_s: standing.target.mark.created_unix_s,
        };
        let (observed, mut missing) = stores.ask_all(&standing.engine, &standing.up.containers).await;
        if let Err(error) = context.dir.write_json(observe::RESULT, &observed) {
            missing.push(Missing { what: observe::RESULT.to_owned(), why: error.to_string() });
        }
        missing
    }

    /// The engine's last word on every container: exits, restarts, out-of-memory kills, health logs.
    pub(super) async fn evidence(&mut self, context: &mut Context<'_>) -> Vec<Missing> {
        let mut missing = Vec::new();
        let Some(standing) = &self.standing else { return missing };
        let mut seen = Vec::new();
        for (service, id) in &standing.up.containers {
            match standing.engine.inspect(id).await {
                Ok(now) => seen.push(json!({ "service": service, "container": now })),
                Err(error) => {
                    missing.push(Missing { what: format!("{service}/inspect"), why: error.to_string() });
                }
            }
        }
        if !self.choice.compose.observe.is_empty() {
            missing.extend(self.ask_stores(standing, context).await);
        }
        let told = json!({ "containers": seen, "engine_calls": standing.engine.calls() });
        if let Err(error) = context.dir.write_json("work/containers.json", &told) {
            missing.push(Missing { what: "work/containers.json".to_owned(), why: error.to_string() });
        }
        missing
    }
}

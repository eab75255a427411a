//! Service actions and last evidence: each deed is in the ledger before it happens.

use std::time::Duration;

use compose_engine::engine::{Act, Engine};
use compose_engine::ledger::Phase;
use evidence::snapshot::Missing;
use scenario::model::ServiceAction;
use serde_json::json;

use super::{Compose, END_GRACE, environment, watch};
use crate::error::RunnerError;
use crate::stack::{ActError, Context, launch};

/// How long an end may take to be seen.
const END_LIMIT: Duration = Duration::from_secs(15);

impl Compose {
    pub(super) async fn carry_out(
        &mut self,
        action: &ServiceAction,
        context: &mut Context<'_>,
    ) -> Result<(), ActError> {
        match action {
            ServiceAction::Stop(service) => {
                self.end_service(service, Act::Stop(Some(END_GRACE)), context).await?;
                self.down.insert(service.clone(), ServiceAction::Start(service.clone()));
            }
            ServiceAction::Kill(service) => {
                self.end_service(service, Act::Kill, context).await?;
                self.down.insert(service.clone(), ServiceAction::Start(service.clone()));
            }
            ServiceAction::Pause(service) => {
                self.deed(service, Act::Pause, context).await?;
                self.down.insert(service.clone(), ServiceAction::Unpause(service.clone()));
            }
            ServiceAction::Unpause(service) => {
                self.deed(service, Act::Unpause, context).await?;
                self.down.remove(service);
            }
            ServiceAction::Start(service) => {
                self.start_service(service, context).await?;
                self.down.remove(service);
            }
            ServiceAction::Restart(service) => {
                self.end_service(service, Act::Stop(Some(END_GRACE)), context).await?;
                self.start_service(service, context).await?;
                self.down.remove(service);
            }
            ServiceAction::Deactivate(_) => {
                let why = "deactivation is a call of the gateway, not of the stack";
                return Err(ActError::Refused(why.to_owned()));
            }
        }
        Ok(())
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

    async fn end_service(
        &mut self,
        service: &str,
        act: Act,
        context: &mut Context<'_>,
    ) -> Result<(), ActError> {
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
        let watched = watch::Watched {
            engine: standing.engine.clone(),
            id,
            service: service.to_owned(),
            log: context.dir.path(&launch::log_file(service)),
            reports: context.reports.clone(),
        };
        // The report of this start is still on its way: until it arrives the state would tell of the end before it.
        let state = context.dispatcher.services.entry(service.to_owned()).or_default();
        state.ended = None;
        state.exit_planned = false;
        state.output.clear();
        let watcher = context.dispatcher.through(watch::follow(watched, &seen)).await?;
        standing.watchers.insert(service.to_owned(), watcher);
        launch::ready(context, service).await?;
        Ok(())
    }

    pub(super) async fn kill(&mut self, service: &str, context: &mut Context<'_>) -> Result<(), RunnerError> {
        match self.deed(service, Act::Kill, context).await {
            Ok(()) | Err(ActError::Refused(_)) => Ok(()),
            Err(ActError::Run(error)) => Err(error),
        }
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
        let told = json!({ "containers": seen, "engine_calls": standing.engine.calls() });
        if let Err(error) = context.dir.write_json("work/containers.json", &told) {
            missing.push(Missing { what: "work/containers.json".to_owned(), why: error.to_string() });
        }
        missing
    }
}

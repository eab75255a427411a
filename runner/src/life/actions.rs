//! Service actions (design section 3, step 5): the intention is written before the deed, the result after it. What
//! actions left down is brought back before the drain, planned and recorded.

use std::time::Duration;

use evidence::event::EventKind;
use scenario::model::ServiceAction;
use serde_json::{Value, json};

use super::chain_actions;
use crate::collect::ask::bound;
use crate::collect::counters::Counted;
use crate::collect::mocks::MockLogs;
use crate::error::RunnerError;
use crate::stack::{ActError, Context, Provider, Running};

/// Time limit of one call to the gateway: an opened escrow waits for a block.
const CALL_LIMIT: Duration = Duration::from_secs(20);
/// How long a settlement of a busy escrow is asked for again, and the pause between.
const IDLE_LIMIT: Duration = Duration::from_secs(10);
const IDLE_PAUSE: Duration = Duration::from_millis(100);
/// Part of an answer that an event keeps.
const ANSWER_LEN_MAX: usize = 300;

/// What became of an action: what was read back afterwards, or why it was refused.
pub type Deed = Result<Option<String>, String>;

/// One action of the scenario's timeline.
///
/// # Errors
/// [`RunnerError`] when the run can't go on; an action that the stack refuses is an event.
pub async fn planned(
    ordinal: usize,
    action: &ServiceAction,
    running: &Running,
    provider: &mut dyn Provider,
    context: &mut Context<'_>,
    logs: &mut MockLogs,
) -> Result<(), RunnerError> {
    let what = serde_json::to_string(action).unwrap_or_default();
    context.dispatcher.log(EventKind::ActionIntended { action: ordinal, what })?;
    let deed: Deed = match action {
        ServiceAction::Deactivate(escrow) => deactivate(*escrow, running, context).await?,
        ServiceAction::Settle(escrow) => settle(*escrow, running, context).await?,
        ServiceAction::CreateEscrow(amount) => create_escrow(*amount, running, context).await?,
        ServiceAction::Chain(action) => chain_actions::on_chain(action, running, context).await?,
        ServiceAction::Allocator(action) => chain_actions::at_allocator(action, running, context).await?,
        _ => on_service(action, running, provider, context, logs).await?.map_or(Ok(None), Err),
    };
    let (read_back, error) = match deed {
        Ok(read_back) => (read_back, None),
        Err(why) => (None, Some(why)),
    };
    context.dispatcher.log(EventKind::ActionDone { action: ordinal, error, read_back })
}

/// Brings back what actions left stopped, killed or paused: the drain needs every service.
///
/// # Errors
/// [`RunnerError::Environment`] when a service does not come back.
pub async fn undo(
    running: &Running,
    provider: &mut dyn Provider,
    context: &mut Context<'_>,
    logs: &mut MockLogs,
) -> Result<(), RunnerError> {
    chain_actions::undo(running, context).await?;
    for action in provider.undo() {
        let what = serde_json::to_string(&action).unwrap_or_default();
        context.dispatcher.log(EventKind::Note { text: format!("for the drain: {what}") })?;
        if let Some(error) = on_service(&action, running, provider, context, logs).await? {
            return Err(RunnerError::environment(format!("for the drain: {what}: {error}")));
        }
        if let Some(service) = action.service() {
            context.dispatcher.log(EventKind::BroughtBack { service: service.to_owned() })?;
        }
    }
    Ok(())
}

/// A mock's logs live in its process: they are read before it may end, completed from its journal when it has ended,
/// and begin anew after a start.
async fn on_service(
    action: &ServiceAction,
    running: &Running,
    provider: &mut dyn Provider,
    context: &mut Context<'_>,
    logs: &mut MockLogs,
) -> Result<Option<String>, RunnerError> {
    let (ends, starts) = match action {
        ServiceAction::Stop(service) | ServiceAction::Kill(service) => (Some(service), None),
        ServiceAction::Restart(service) => (Some(service), Some(service)),
        ServiceAction::Start(service) => (None, Some(service)),
        _ => (None, None),
    };
    let mut counted = Vec::new();
    if let Some(service) = ends.filter(|service| running.mocks.serves(service)) {
        context.dispatcher.through(logs.read(&running.mocks)).await??;
        for process in running.mocks.processes(service) {
            let shown = if logs.is_frozen(process) {
                Some(Counted::Lost("it was frozen then".to_owned()))
            } else {
                context.dispatcher.through(running.mocks.counted(process)).await?
            };
            counted.extend(shown.map(|shown| (process, shown)));
        }
    }
    match provider.act(action, running, context).await {
        Ok(()) => {
            match action {
                ServiceAction::Pause(service) => logs.froze(service),
                ServiceAction::Unpause(service) => logs.thawed(service),
                _ => {}
            }
            for (process, counted) in counted {
                running.mocks.counters.ended(process, counted);
            }
            if let Some(service) = ends {
                for process in running.mocks.processes(service) {
                    logs.ended(process, &running.mocks)?;
                }
            }
            if let Some(service) = starts {
                running.mocks.processes(service).into_iter().for_each(|process| logs.restarted(process));
            }
            Ok(None)
        }
        Err(ActError::Refused(why)) => Ok(Some(why)),
        Err(ActError::Run(error)) => Err(error),
    }
}

/// Id of an escrow by its ordinal, from 1.
pub(super) fn escrow_id(ordinal: u32, running: &Running) -> Result<String, String> {
    let known = running.surfaces.escrows.list();
    let place = usize::try_from(ordinal).ok().and_then(|ordinal| ordinal.checked_sub(1));
    let found = place.and_then(|place| known.get(place).cloned());
    found.ok_or_else(|| format!("there is no escrow {ordinal}: {} are known", known.len()))
}

async fn deactivate(escrow: u32, running: &Running, context: &mut Context<'_>) -> Result<Deed, RunnerError> {
    let id = match escrow_id(escrow, running) {
        Ok(id) => id,
        Err(why) => return Ok(Err(why)),
    };
    let url = format!("{}/v1/admin/devshards/{id}/deactivate", running.surfaces.gateway);
    let answer = context.dispatcher.through(running.surfaces.post(&url, CALL_LIMIT)).await?;
    match good(answer) {
        Ok(_) => is_active(&id, false, running, context).await,
        Err(why) => Ok(Err(why)),
    }
}

/// An escrow with active requests is refused with 409 (contract gateway 2.4.8): it is asked again while they end.
async fn settle(escrow: u32, running: &Running, context: &mut Context<'_>) -> Result<Deed, RunnerError> {
    let id = match escrow_id(escrow, running) {
        Ok(id) => id,
        Err(why) => return Ok(Err(why)),
    };
    let url = format!("{}/v1/admin/devshards/{id}/settle", running.surfaces.gateway);
    let deadline = tokio::time::Instant::now() + IDLE_LIMIT;
    let mut answer = context.dispatcher.through(running.surfaces.post(&url, CALL_LIMIT)).await?;
    while matches!(answer, Ok((409, _))) && tokio::time::Instant::now() < deadline {
        context.dispatcher.through(tokio::time::sleep(IDLE_PAUSE)).await?;
        answer = context.dispatcher.through(running.surfaces.post(&url, CALL_LIMIT)).await?;
    }
    match good(answer) {
        Ok(_) => chain_actions::settled(&id, running, context).await,
        Err(why) => Ok(Err(why)),
    }
}

async fn create_escrow(
    amount: u64,
    running: &Running,
    context: &mut Context<'_>,
) -> Result<Deed, RunnerError> {
    let url = format!("{}/v1/admin/escrows", running.surfaces.gateway);
    let body = json!({ "amount": amount, "model_id": running.model });
    let sent = running.surfaces.post_json(&url, &body, CALL_LIMIT);
    let text = match good(context.dispatcher.through(sent).await?) {
        Ok(text) => text,
        Err(why) => return Ok(Err(why)),
    };
    let opened: Value = serde_json::from_str(&text).unwrap_or_default();
    let Some(id) = opened["escrow_id"].as_u64().map(|id| id.to_string()) else {
        return Ok(Err(format!("the gateway named no escrow: {text}")));
    };
    running.surfaces.escrows.add([id.clone()]);
    is_active(&id, true, running, context).await
}

fn good(answer: Result<(u16, String), String>) -> Result<String, String> {
    match answer {
        Ok((status, text)) if status < 300 => Ok(text),
        Ok((status, text)) => {
            Err(format!("{status}: {}", text.chars().take(ANSWER_LEN_MAX).collect::<String>()))
        }
        Err(why) => Err(why),
    }
}

/// Whether the gateway shows an escrow as served, or as not served, as it should now.
async fn is_active(
    id: &str,
    wanted: bool,
    running: &Running,
    context: &mut Context<'_>,
) -> Result<Deed, RunnerError> {
    let url = format!("{}/v1/admin/state", running.surfaces.gateway);
    let read = running.surfaces.json(&url, true, bound::STATE, |_| Ok(()));
    let state = match context.dispatcher.through(read).await? {
        Ok(((), state)) => state,
        Err(why) => return Ok(Err(format!("reading back: {why}"))),
    };
    let entries = state["devshards"].as_array().map(Vec::as_slice).unwrap_or_default();
    let shown = entries.iter().find(|entry| entry["id"].as_str() == Some(id));
    let word = if wanted { "active" } else { "inactive" };
    Ok(if shown.is_some_and(|entry| entry["active"].as_bool() == Some(wanted)) {
        Ok(Some(format!("escrow {id} is {word}")))
    } else {
        Err(format!("reading back: the gateway does not show escrow {id} as {word}"))
    })
}

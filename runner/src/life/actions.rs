//! Service actions (design section 3, step 5): the intention is written before the deed, the result after it. What
//! actions left down is brought back before the drain, planned and recorded.

use std::time::Duration;

use evidence::event::EventKind;
use scenario::model::ServiceAction;

use crate::collect::mocks::MockLogs;
use crate::error::RunnerError;
use crate::stack::{ActError, Context, Provider, Running};

/// Time limit of a deactivation.
const DEACTIVATE_LIMIT: Duration = Duration::from_secs(10);

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
    let error = match action {
        ServiceAction::Deactivate(escrow) => deactivate(*escrow, running, context).await?,
        _ => on_service(action, running, provider, context, logs).await?,
    };
    context.dispatcher.log(EventKind::ActionDone { action: ordinal, error })
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
    for action in provider.undo() {
        let what = serde_json::to_string(&action).unwrap_or_default();
        context.dispatcher.log(EventKind::Note { text: format!("for the drain: {what}") })?;
        if let Some(error) = on_service(&action, running, provider, context, logs).await? {
            return Err(RunnerError::environment(format!("for the drain: {what}: {error}")));
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
        ServiceAction::Pause(_)
        | ServiceAction::Unpause(_)
        | ServiceAction::Disconnect(_)
        | ServiceAction::Connect(_)
        | ServiceAction::Deactivate(_) => (None, None),
    };
    if ends.is_some_and(|service| running.mocks.serves(service)) {
        context.dispatcher.through(logs.read(&running.mocks)).await??;
    }
    match provider.act(action, running, context).await {
        Ok(()) => {
            match action {
                ServiceAction::Pause(service) => logs.froze(service),
                ServiceAction::Unpause(service) => logs.thawed(service),
                _ => {}
            }
            if let Some(service) = ends {
                logs.ended(service, &running.mocks)?;
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

async fn deactivate(
    escrow: u32,
    running: &Running,
    context: &mut Context<'_>,
) -> Result<Option<String>, RunnerError> {
    let url = format!("{}/v1/admin/devshards/{escrow}/deactivate", running.surfaces.gateway);
    let answer = context.dispatcher.through(running.surfaces.post(&url, DEACTIVATE_LIMIT)).await?;
    Ok(match answer {
        Ok((status, _)) if status < 300 => None,
        Ok((status, text)) => Some(format!("{status}: {text}")),
        Err(why) => Some(why),
    })
}

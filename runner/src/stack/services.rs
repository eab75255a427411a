//! What service actions mean on every stack: which services a name stands for, what an action leaves down, and what a mock
//! starts with when it is started again.

use std::collections::BTreeMap;

use scenario::control::MockConfig;
use scenario::model::ServiceAction;

use super::{ActError, Context, Running};

/// Whether a service is the named one or a numbered member of the named group: processes of a participant, routers.
#[must_use]
pub fn stands_for(name: &str, service: &str) -> bool {
    let rest = service.strip_prefix(name).and_then(|rest| rest.strip_prefix('-'));
    service == name || rest.is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_digit()))
}

/// What actions left down, and what brings it back.
#[derive(Clone, Debug, Default)]
pub struct Down(BTreeMap<String, ServiceAction>);

impl Down {
    /// A service goes down until this is done.
    pub fn until(&mut self, service: &str, back: fn(String) -> ServiceAction) {
        self.0.insert(service.to_owned(), back(service.to_owned()));
    }

    /// It is back.
    pub fn back(&mut self, service: &str) {
        self.0.remove(service);
    }

    /// What brings everything back, in the order of `rank`.
    #[must_use]
    pub fn in_order<R: Ord>(&self, rank: impl Fn(&str) -> R) -> Vec<ServiceAction> {
        let mut all: Vec<(&String, &ServiceAction)> = self.0.iter().collect();
        all.sort_by_key(|(service, _)| rank(service));
        all.into_iter().map(|(_, action)| action.clone()).collect()
    }
}

/// A mock holds its rules in memory: what is in force now is what it has to start with the next time. `None` for a service
/// that is no mock.
///
/// # Errors
/// [`ActError::Refused`] when it does not show it: a frozen mock can't be asked, and ending it would lose the rules.
pub async fn config_in_force(
    service: &str,
    running: &Running,
    context: &mut Context<'_>,
) -> Result<Option<MockConfig>, ActError> {
    let mut controls = running.mocks.controls();
    let Some((_, control)) = controls.find(|(name, _)| *name == service) else { return Ok(None) };
    let config: Result<MockConfig, String> = context.dispatcher.through(control.config()).await?;
    let refused = |why| ActError::Refused(format!("{service} does not show its configuration: {why}"));
    config.map(Some).map_err(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stands_for_itself_and_its_numbered_members() {
        for (name, service, expected) in [
            ("host-1", "host-1", true),
            ("host-1", "host-1-0", true),
            ("host-1", "host-10", false),
            ("router", "router-2", true),
            ("mock", "mock-dapi", false),
        ] {
            assert_eq!(stands_for(name, service), expected, "{name} {service}");
        }
    }

    #[test]
    fn what_is_down_comes_back_in_order() {
        let mut down = Down::default();
        down.until("host-1", ServiceAction::Unpause);
        down.until("mock-chain", ServiceAction::Start);
        down.until("gateway", ServiceAction::Start);
        down.back("gateway");
        let order = down.in_order(|service| service != "mock-chain");
        assert_eq!(
            order,
            [ServiceAction::Start("mock-chain".into()), ServiceAction::Unpause("host-1".into())]
        );
    }
}

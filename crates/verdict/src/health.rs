//! Looks at the health of a service that failed in a row (probe events of the runner's watch), and the times in which an
//! action of the scenario explains them.

use std::collections::BTreeMap;

use evidence::event::{Event, EventKind};
use scenario::model::{Action, ServiceAction};

/// Failed looks in a row that make a service unready; one or two may be chance.
pub(crate) const IN_A_ROW: usize = 3;

/// Failed looks of one service, one after another.
#[derive(Debug)]
pub(crate) struct Row<'a> {
    /// Whose.
    pub(crate) service: &'a str,
    /// What the last one got, in words.
    pub(crate) detail: &'a str,
    /// When each began, microseconds since the run began, and the event that names it.
    looks: Vec<(u64, u64)>,
}

/// A part of a row that no action explains.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Lost {
    /// Failed looks.
    pub(crate) count: usize,
    /// Begin of the first, microseconds since the run began.
    pub(crate) first_us: u64,
    /// Begin of the last.
    pub(crate) last_us: u64,
    /// Event that names the first.
    pub(crate) seq: u64,
}

/// All rows in the order in which they ended; what had not ended comes last.
pub(crate) fn rows(events: &[Event]) -> Vec<Row<'_>> {
    let mut open: BTreeMap<&str, Row<'_>> = BTreeMap::new();
    let mut rows = Vec::new();
    for event in events {
        let EventKind::Probe { service, ready, detail, failed_at_us } = &event.event else { continue };
        if !failed_at_us.is_empty() {
            let row = open.entry(service).or_insert(Row { service, detail: "no answer", looks: Vec::new() });
            row.detail = detail.as_deref().unwrap_or(row.detail);
            row.looks.extend(failed_at_us.iter().map(|at_us| (*at_us, event.seq)));
        }
        if *ready {
            rows.extend(open.remove(service.as_str()));
        }
    }
    rows.extend(open.into_values());
    rows
}

impl Row<'_> {
    /// The longest part of looks in a row outside these windows, if it is long enough to mean something.
    pub(crate) fn lost(&self, windows: &[(u64, u64)]) -> Option<Lost> {
        let explained =
            |(at_us, _): &(u64, u64)| windows.iter().any(|(from, to)| (from..=to).contains(&at_us));
        let part = self.looks.split(explained).max_by_key(|part| part.len())?;
        let ((first_us, seq), (last_us, _)) = (*part.first()?, *part.last()?);
        let lost = Lost { count: part.len(), first_us, last_us, seq };
        (lost.count >= IN_A_ROW).then_some(lost)
    }
}

/// From when to when actions kept a service from answering: from the intention to end or freeze it until it was brought
/// back, or to the end of the run.
pub(crate) fn windows(events: &[Event], actions: &[Action], service: &str) -> Vec<(u64, u64)> {
    let mut windows = Vec::new();
    let mut open: Option<u64> = None;
    for event in events {
        let back = match &event.event {
            EventKind::ActionIntended { action, .. } => {
                if actions.get(*action).is_some_and(|action| takes_down(&action.action, service)) {
                    open.get_or_insert(event.at_us);
                }
                false
            }
            EventKind::ActionDone { action, .. } => {
                actions.get(*action).is_some_and(|action| brings_back(&action.action, service))
            }
            EventKind::BroughtBack { service: name } => names(name, service),
            _ => false,
        };
        if back {
            windows.extend(open.take().map(|from| (from, event.at_us)));
        }
    }
    windows.extend(open.map(|from| (from, u64::MAX)));
    windows
}

fn takes_down(action: &ServiceAction, service: &str) -> bool {
    use ServiceAction::{Disconnect, Kill, Pause, Restart, Stop};
    matches!(action, Stop(name) | Kill(name) | Pause(name) | Restart(name) | Disconnect(name)
        if names(name, service))
}

fn brings_back(action: &ServiceAction, service: &str) -> bool {
    use ServiceAction::{Connect, Restart, Start, Unpause};
    matches!(action, Start(name) | Unpause(name) | Restart(name) | Connect(name) if names(name, service))
}

/// Whether a name is this service's, or that of the group it belongs to: `host-1` stands for `host-1-0` and `host-1-1`,
/// `router` for every router.
pub(crate) fn names(name: &str, service: &str) -> bool {
    let group = service.rsplit_once('-').map(|(group, _)| group);
    name == service || group == Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use scenario::model::Trigger;

    fn event(at_us: u64, event: EventKind) -> Event {
        Event { v: 1, seq: at_us, at_us, unix_us: 0, event }
    }

    fn probe(at_us: u64, ready: bool, failed_at_us: &[u64]) -> Event {
        let (service, detail) = ("host-1-0".to_owned(), Some("503".to_owned()));
        event(at_us, EventKind::Probe { service, ready, detail, failed_at_us: failed_at_us.to_vec() })
    }

    fn action(action: ServiceAction) -> Action {
        Action { after: Trigger::Requests(1), action, expect: Vec::new() }
    }

    fn intended(at_us: u64, action: usize) -> Event {
        event(at_us, EventKind::ActionIntended { action, what: String::new() })
    }

    fn done(at_us: u64, action: usize) -> Event {
        event(at_us, EventKind::ActionDone { action, error: None, read_back: None })
    }

    #[test]
    fn a_row_goes_on_over_events_until_a_good_look() {
        let events = [
            probe(5, true, &[4]),
            probe(13, false, &[10, 11, 12]),
            probe(15, true, &[14]),
            probe(23, false, &[20, 21, 22]),
        ];
        let counts: Vec<usize> = rows(&events).iter().map(|row| row.looks.len()).collect();
        assert_eq!(counts, [1, 4, 3]);
        let lost = rows(&events)[1].lost(&[]).unwrap();
        assert_eq!(lost, Lost { count: 4, first_us: 10, last_us: 14, seq: 13 });
        assert_eq!(rows(&events)[0].lost(&[]), None, "one failed look is chance");
    }

    #[test]
    fn what_an_action_explains_is_not_lost_and_what_comes_after_it_is() {
        let row = |looks: &[u64]| Row {
            service: "host-1-0",
            detail: "",
            looks: looks.iter().map(|at_us| (*at_us, 0)).collect(),
        };
        let pause = [action(ServiceAction::Pause("host-1".to_owned()))];
        let mut events = vec![intended(10, 0), done(11, 0)];
        assert_eq!(windows(&events, &pause, "host-1-0"), [(10, u64::MAX)], "frozen until the end");
        assert_eq!(windows(&events, &pause, "host-2"), []);
        events.push(event(20, EventKind::BroughtBack { service: "host-1-0".to_owned() }));
        let windows = windows(&events, &pause, "host-1-0");
        assert_eq!(windows, [(10, 20)]);
        assert_eq!(row(&[9, 10, 15, 20]).lost(&windows), None);
        assert_eq!(row(&[15, 20, 21, 22]).lost(&windows), None, "two are chance, also after it");
        assert_eq!(
            row(&[15, 21, 22, 23]).lost(&windows).map(|lost| (lost.count, lost.first_us)),
            Some((3, 21))
        );
        assert_eq!(row(&[7, 8, 12, 21]).lost(&windows), None, "they are not in a row");
    }

    #[test]
    fn a_restart_explains_until_it_is_done_and_a_kill_until_the_start() {
        let actions = [
            action(ServiceAction::Restart("gateway".to_owned())),
            action(ServiceAction::Kill("host-1".to_owned())),
            action(ServiceAction::Start("host-1".to_owned())),
        ];
        let events =
            [intended(10, 0), done(30, 0), intended(40, 1), done(41, 1), intended(60, 2), done(70, 2)];
        assert_eq!(windows(&events, &actions, "gateway"), [(10, 30)]);
        assert_eq!(windows(&events, &actions, "host-1"), [(40, 70)]);
        assert_eq!(windows(&events, &actions, "host-0"), []);
    }
}

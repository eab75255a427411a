//! The plan: a DAG of operations made from what is wanted and what is there. Printable, hashable, testable without an
//! engine.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::ComposeError;
use crate::labels;
use crate::model::{Condition, PullPolicy};
use crate::observed::Observed;
use crate::spec::hash;
use crate::target::Target;

/// One operation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Op {
    /// Have the image there, by the named service's source.
    Image {
        /// Image name.
        reference: String,
        /// Service whose source it is.
        service: String,
    },
    /// Make a network.
    Network {
        /// Key.
        key: String,
    },
    /// Make a volume.
    Volume {
        /// Key.
        key: String,
    },
    /// Copy bind sources and make the container.
    Create {
        /// Service.
        service: String,
    },
    /// Start it.
    Start {
        /// Service.
        service: String,
    },
    /// Wait for a condition of `depends_on`.
    Await {
        /// Service.
        service: String,
        /// Condition.
        condition: Condition,
    },
    /// Wait until it is ready by our own rule.
    Ready {
        /// Service.
        service: String,
    },
}

impl<'de> Deserialize<'de> for Condition {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        [Self::ServiceStarted, Self::ServiceHealthy, Self::ServiceCompletedSuccessfully]
            .into_iter()
            .find(|condition| condition.text() == text)
            .ok_or_else(|| serde::de::Error::custom("no condition"))
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Image { reference, .. } => write!(f, "image {reference}"),
            Self::Network { key } => write!(f, "create network {key}"),
            Self::Volume { key } => write!(f, "create volume {key}"),
            Self::Create { service } => write!(f, "create container {service}"),
            Self::Start { service } => write!(f, "start {service}"),
            Self::Await { service, condition } => write!(f, "await {service} {}", condition.text()),
            Self::Ready { service } => write!(f, "await {service} ready"),
        }
    }
}

/// One step with the steps that come first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// Operation.
    pub op: Op,
    /// Indexes of steps that must be done before; all smaller than its own.
    pub after: Vec<usize>,
    /// Its failure is only a warning: nobody requires it.
    pub optional: bool,
    /// Hash of what is made, where something is made.
    pub shape: Option<String>,
}

/// A plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Steps; a step comes after everything it depends on.
    pub steps: Vec<Step>,
}

impl Plan {
    /// Hash of the steps: equal for every run of the same files, whatever its name, owner and secrets.
    #[must_use]
    pub fn hash(&self) -> String {
        hash(&self.steps)
    }

    /// One line for each step.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let line = |(index, step): (usize, &Step)| {
            let after: Vec<String> = step.after.iter().map(ToString::to_string).collect();
            let after =
                if after.is_empty() { String::new() } else { format!("  after {}", after.join(", ")) };
            let optional = if step.optional { "  (optional)" } else { "" };
            format!("{index:>3}  {}{after}{optional}", step.op)
        };
        self.steps.iter().enumerate().map(line).collect()
    }
}

/// Plans everything, or only some services (their dependencies must be up already or be among them).
///
/// # Errors
/// [`ComposeError::Request`] when the project is there as somebody else's or as something else: nothing is ever
/// recreated in place.
pub fn plan(target: &Target, observed: &Observed, only: Option<&[String]>) -> Result<Plan, ComposeError> {
    if let Some(foreign) = observed.foreign(&target.mark.run_id) {
        let text = format!(
            "the project {} exists already and is not this run's ({foreign}); `runner gc` removes what dead runs left",
            target.project
        );
        return Err(ComposeError::Request(text));
    }
    let mut planner = Planner { target, observed, plan: Plan::default(), done: BTreeMap::new() };
    let wanted: Vec<String> = match only {
        Some(list) => {
            if let Some(unknown) = list.iter().find(|service| !target.containers.contains_key(*service)) {
                return Err(ComposeError::Request(format!("the project has no service {unknown:?}")));
            }
            list.to_vec()
        }
        None => target.containers.keys().cloned().collect(),
    };
    planner.shared(&wanted);
    for service in &wanted {
        planner.create(service)?;
    }
    for service in &wanted {
        planner.start(service);
    }
    for service in &wanted {
        if !target.one_shots.contains(service) {
            planner.ready(service);
        }
    }
    Ok(planner.plan)
}

struct Planner<'a> {
    target: &'a Target,
    observed: &'a Observed,
    plan: Plan,
    /// Index of the step that does something, by operation.
    done: BTreeMap<Op, usize>,
}

impl Planner<'_> {
    fn push(&mut self, op: Op, after: &[Op], shape: Option<String>, optional: bool) {
        if self.done.contains_key(&op) {
            return;
        }
        let mut after: Vec<usize> = after.iter().filter_map(|op| self.done.get(op).copied()).collect();
        after.sort_unstable();
        after.dedup();
        self.done.insert(op.clone(), self.plan.steps.len());
        self.plan.steps.push(Step { op, after, optional, shape });
    }

    fn shared(&mut self, wanted: &[String]) {
        for service in wanted {
            let Some(source) = self.target.images.get(service) else { continue };
            let twice = self
                .done
                .keys()
                .any(|op| matches!(op, Op::Image { reference, .. } if *reference == source.reference));
            if !twice {
                let policy = if source.build.is_some() { PullPolicy::Build } else { source.pull };
                let op = Op::Image { reference: source.reference.clone(), service: service.clone() };
                self.push(op, &[], Some(hash(&policy)), false);
            }
        }
        for (key, spec) in &self.target.networks {
            if !self.observed.networks.contains_key(key) {
                self.push(Op::Network { key: key.clone() }, &[], Some(hash(spec)), false);
            }
        }
        for (key, labels) in &self.target.volumes {
            if !self.observed.volumes.contains_key(key) {
                self.push(Op::Volume { key: key.clone() }, &[], Some(hash(labels)), false);
            }
        }
    }

    /// Report 4: conditions apply to start, never to create.
    fn create(&mut self, service: &str) -> Result<(), ComposeError> {
        let Some(spec) = self.target.containers.get(service) else { return Ok(()) };
        if let Some(seen) = self.observed.containers.get(service) {
            let same = seen.labels.get(labels::CONFIG_HASH) == Some(&spec.config_hash());
            if same {
                return Ok(());
            }
            let text = format!(
                "{service} is there with another configuration; a run never recreates, start a new one"
            );
            return Err(ComposeError::Request(text));
        }
        let mut after: Vec<Op> =
            spec.endpoints.iter().map(|end| Op::Network { key: end.network.clone() }).collect();
        after.extend(self.target.volumes.keys().map(|key| Op::Volume { key: key.clone() }));
        let images = self
            .done
            .keys()
            .filter(|op| matches!(op, Op::Image { reference, .. } if *reference == spec.image));
        after.extend(images.cloned());
        self.push(Op::Create { service: service.to_owned() }, &after, Some(spec.shape_hash()), false);
        Ok(())
    }

    fn start(&mut self, service: &str) {
        let op = Op::Start { service: service.to_owned() };
        if self.done.contains_key(&op) {
            return;
        }
        if self.observed.containers.get(service).is_some_and(|seen| seen.state == "running") {
            return;
        }
        let mut after = vec![Op::Create { service: service.to_owned() }];
        for (other, edge) in self.target.edges.get(service).into_iter().flatten() {
            // The graph has no cycles (checked with the model), so this ends.
            self.start(other);
            after.push(Op::Start { service: other.clone() });
            if edge.condition != Condition::ServiceStarted {
                let wait = Op::Await { service: other.clone(), condition: edge.condition };
                let started = [Op::Start { service: other.clone() }];
                self.push(wait.clone(), &started, None, !edge.required);
                after.push(wait);
            }
        }
        // A dependency outside `only` is not started again: it has no container step here.
        let known = self.done.contains_key(&Op::Create { service: service.to_owned() })
            || self.observed.containers.contains_key(service);
        if known {
            self.push(op, &after, None, false);
        }
    }

    fn ready(&mut self, service: &str) {
        let start = Op::Start { service: service.to_owned() };
        self.push(Op::Ready { service: service.to_owned() }, &[start], None, false);
    }
}

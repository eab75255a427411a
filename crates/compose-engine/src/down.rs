//! Teardown by label: stop in reverse order, remove containers with their anonymous volumes, then volumes and networks;
//! looks again until nothing is left. Touches nothing that does not carry the run's label.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;

use crate::engine::{Act, ContainerListed, Engine};
use crate::error::{ComposeError, EngineError};
use crate::labels;
use crate::ledger::{Ledger, Phase};

/// Looks until the lists must be empty.
const ROUNDS_MAX: u32 = 8;
/// Wait between looks; grows with each.
const ROUND_SPACING: Duration = Duration::from_millis(100);
/// Calls at once.
const PARALLEL_MAX: usize = 8;

/// How containers are ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Stop with this grace, dependents first.
    Graceful(Duration),
    /// Kill at once: nobody waits for their last words.
    Forced,
}

/// What a teardown removed and what it could not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Containers by name.
    pub containers: Vec<String>,
    /// Volumes.
    pub volumes: Vec<String>,
    /// Networks.
    pub networks: Vec<String>,
    /// What is left, each with the reason.
    pub left: Vec<String>,
}

impl Removed {
    /// Nothing was there.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.containers.is_empty()
            && self.volumes.is_empty()
            && self.networks.is_empty()
            && self.left.is_empty()
    }
}

/// Removes everything that carries the run's label. Safe to repeat (report 19).
///
/// # Errors
/// [`ComposeError`] when the engine can't be asked what is there; what can't be removed is in [`Removed::left`].
pub async fn down<E: Engine>(
    engine: &E,
    run_id: &str,
    ending: Ending,
    ledger: &Ledger,
) -> Result<Removed, ComposeError> {
    let filter = format!("{}={run_id}", labels::RUN);
    let sweep = Sweep { engine, ledger, filter: &filter, run_id };
    let mut removed = Removed::default();
    for round in 0..ROUNDS_MAX {
        removed.left.clear();
        sweep.containers(ending, &mut removed).await?;
        sweep.volumes(&mut removed).await?;
        sweep.networks(&mut removed).await?;
        if sweep.empty().await? {
            removed.left = sweep.unlabelled().await?;
            return Ok(removed);
        }
        tokio::time::sleep(ROUND_SPACING * (round + 1)).await;
    }
    if removed.left.is_empty() {
        removed.left.push("objects that keep coming back".to_owned());
    }
    Ok(removed)
}

struct Sweep<'a, E> {
    engine: &'a E,
    ledger: &'a Ledger,
    filter: &'a str,
    run_id: &'a str,
}

impl<E: Engine> Sweep<'_, E> {
    /// The filter of the engine is one witness, the label itself the other (report 14).
    fn ours(&self, labels: &BTreeMap<String, String>) -> bool {
        labels.get(labels::RUN).map(String::as_str) == Some(self.run_id)
    }

    async fn empty(&self) -> Result<bool, ComposeError> {
        let containers = self.engine.containers(Some(self.filter)).await?;
        let volumes = self.engine.volumes(Some(self.filter)).await?;
        let networks = self.engine.networks(Some(self.filter)).await?;
        Ok(containers.is_empty() && volumes.is_empty() && networks.is_empty())
    }

    /// Report 24: what the ledger knows as made, and what is still there although no label found it. It is told and not
    /// touched: without the label nothing proves that it is the run's.
    async fn unlabelled(&self) -> Result<Vec<String>, ComposeError> {
        let mut left = Vec::new();
        for (deed, what) in
            [("create_container", "container"), ("create_volume", "volume"), ("create_network", "network")]
        {
            let made: BTreeSet<String> = self.ledger.done(deed).into_iter().collect();
            if made.is_empty() {
                continue;
            }
            let there: Vec<String> = match what {
                "container" => self.engine.containers(None).await?.into_iter().map(|c| c.name).collect(),
                "volume" => self.engine.volumes(None).await?.into_iter().map(|v| v.name).collect(),
                _ => self.engine.networks(None).await?.into_iter().map(|n| n.name).collect(),
            };
            let stays = there.into_iter().filter(|name| made.contains(name));
            left.extend(stays.map(|name| {
                format!(
                    "{what} {name}: the ledger says that this run made it, and it does not carry its label"
                )
            }));
        }
        Ok(left)
    }

    async fn containers(&self, ending: Ending, removed: &mut Removed) -> Result<(), ComposeError> {
        let all = self.engine.containers(Some(self.filter)).await?;
        let all: Vec<ContainerListed> = all.into_iter().filter(|seen| self.ours(&seen.labels)).collect();
        for level in levels(&all) {
            let ended = stream::iter(level.iter().map(|seen| self.end(seen, ending)))
                .buffer_unordered(PARALLEL_MAX)
                .collect::<Vec<_>>()
                .await;
            for result in ended {
                match result {
                    Ok(name) => removed.containers.push(name),
                    Err(text) => removed.left.push(text),
                }
            }
        }
        Ok(())
    }

    async fn end(&self, seen: &ContainerListed, ending: Ending) -> Result<String, String> {
        if let (Ending::Graceful(grace), "running" | "restarting" | "paused") = (ending, seen.state.as_str())
        {
            if seen.state == "paused" {
                // A frozen process can't take its signal.
                drop(self.engine.act(&seen.id, Act::Unpause).await);
            }
            // What can't be stopped is killed by the removal.
            drop(self.deed("stop", &seen.name, self.engine.act(&seen.id, Act::Stop(Some(grace)))).await);
        }
        self.deed("remove_container", &seen.name, self.engine.remove_container(&seen.id)).await?;
        Ok(seen.name.clone())
    }

    /// Gone, or going already, is what was wanted.
    async fn deed(
        &self,
        deed: &str,
        name: &str,
        call: impl Future<Output = Result<(), EngineError>>,
    ) -> Result<(), String> {
        // Teardown goes on without its ledger: leaving objects would be worse than leaving no line.
        drop(self.ledger.write(deed, name, Phase::Intended, ""));
        match call.await {
            Ok(()) => {
                drop(self.ledger.write(deed, name, Phase::Done, ""));
                Ok(())
            }
            Err(error) if gone(&error) => {
                drop(self.ledger.write(deed, name, Phase::Done, "gone already"));
                Ok(())
            }
            Err(error) => {
                drop(self.ledger.write(deed, name, Phase::Failed, &error.to_string()));
                Err(format!("{name}: {error}"))
            }
        }
    }

    async fn volumes(&self, removed: &mut Removed) -> Result<(), ComposeError> {
        for seen in self.engine.volumes(Some(self.filter)).await? {
            if !self.ours(&seen.labels) {
                continue;
            }
            match self.deed("remove_volume", &seen.name, self.engine.remove_volume(&seen.name)).await {
                Ok(()) => removed.volumes.push(seen.name),
                Err(text) => removed.left.push(text),
            }
        }
        Ok(())
    }

    async fn networks(&self, removed: &mut Removed) -> Result<(), ComposeError> {
        for seen in self.engine.networks(Some(self.filter)).await? {
            if !self.ours(&seen.labels) {
                continue;
            }
            match self.network(&seen.id, &seen.name).await {
                Ok(()) => removed.networks.push(seen.name),
                Err(text) => removed.left.push(text),
            }
        }
        Ok(())
    }

    /// Report 18: endpoints that are there in name only are taken out by force, then the removal is tried again.
    async fn network(&self, id: &str, name: &str) -> Result<(), String> {
        drop(self.ledger.write("remove_network", name, Phase::Intended, ""));
        let mut answer = self.engine.remove_network(id).await;
        if matches!(answer, Err(EngineError::ActiveEndpoints { .. })) {
            if let Ok(seen) = self.engine.network(id).await {
                for (container, container_name) in seen.endpoints {
                    drop(
                        self.deed("disconnect", &container_name, self.engine.disconnect(id, &container))
                            .await,
                    );
                }
            }
            answer = self.engine.remove_network(id).await;
        }
        match answer {
            Err(error) if !gone(&error) => {
                drop(self.ledger.write("remove_network", name, Phase::Failed, &error.to_string()));
                Err(format!("{name}: {error}"))
            }
            _ => {
                drop(self.ledger.write("remove_network", name, Phase::Done, ""));
                Ok(())
            }
        }
    }
}

fn gone(error: &EngineError) -> bool {
    match error {
        EngineError::NotFound { .. } => true,
        EngineError::Conflict { reason, .. } => reason.contains("already in progress"),
        _ => false,
    }
}

/// Containers in the order in which they end: dependents before what they depend on.
fn levels(all: &[ContainerListed]) -> Vec<Vec<&ContainerListed>> {
    let service = |seen: &ContainerListed| seen.labels.get(labels::SERVICE).cloned().unwrap_or_default();
    let depends = |seen: &ContainerListed| -> BTreeSet<String> {
        let label = seen.labels.get("com.docker.compose.depends_on").cloned().unwrap_or_default();
        label.split(',').filter_map(|part| part.split(':').next()).map(str::to_owned).collect()
    };
    let mut left: Vec<&ContainerListed> = all.iter().collect();
    let mut ordered = Vec::new();
    while !left.is_empty() {
        let needed: BTreeSet<String> = left.iter().flat_map(|seen| depends(seen)).collect();
        let (mut free, rest): (Vec<_>, Vec<_>) =
            left.iter().partition(|seen| !needed.contains(&service(seen)));
        if free.is_empty() {
            // Labels of another tool may run in a circle: then there is no order to keep.
            free = rest;
            left = Vec::new();
        } else {
            left = rest;
        }
        ordered.push(free);
    }
    ordered
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(service: &str, depends: &str) -> ContainerListed {
        let labels = [(labels::SERVICE, service), ("com.docker.compose.depends_on", depends)];
        let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        ContainerListed { name: service.to_owned(), labels, ..ContainerListed::default() }
    }

    #[test]
    fn dependents_end_first_and_a_circle_ends_too() {
        let all = [
            listed("db", ""),
            listed("app", "db:service_healthy:false"),
            listed("web", "app:service_started:false"),
        ];
        let names: Vec<Vec<&str>> =
            levels(&all).iter().map(|level| level.iter().map(|seen| seen.name.as_str()).collect()).collect();
        assert_eq!(names, [["web"], ["app"], ["db"]]);
        let circle = [listed("a", "b:service_started:false"), listed("b", "a:service_started:false")];
        assert_eq!(levels(&circle).len(), 1);
    }
}

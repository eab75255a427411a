//! Our mocks under real programs, at ports that the kernel chooses.

use std::collections::BTreeMap;

use scenario::control::{ChainConfig, MockConfig};
use scenario::ready::ReadyLine;

use super::super::{Context, launch};
use crate::collect::ask::Ask;
use crate::collect::snapshot::{Mocks, OpenaiControl};
use crate::control::Control;
use crate::error::RunnerError;

/// The mocks once they answer.
pub struct Started {
    /// Ready line of the chain.
    pub chain_at: ReadyLine,
    /// Ready line of the allocator.
    pub dapi_at: ReadyLine,
    /// Control of all.
    pub mocks: Mocks,
    /// Base URL of each node.
    pub node_urls: BTreeMap<String, String>,
}

/// Starts the three mocks without rules.
///
/// # Errors
/// [`RunnerError::Environment`] with the last log lines of the one that does not come up.
pub async fn start(context: &mut Context<'_>, chain: ChainConfig, ask: &Ask) -> Result<Started, RunnerError> {
    spawn(context, "mock-chain", &MockConfig::Chain(chain)).await?;
    let openai = scenario::configs::openai_config(context.resolved, false);
    spawn(context, "mock-openai", &MockConfig::Openai(openai)).await?;
    let chain_at = launch::ready(context, "mock-chain").await?;
    let openai_at = launch::ready(context, "mock-openai").await?;
    let node = |(name, address): (&String, &String)| {
        Some((name.strip_prefix("node:")?.to_owned(), format!("http://{address}")))
    };
    let node_urls: BTreeMap<String, String> = openai_at.ready.iter().filter_map(node).collect();
    let dapi = scenario::configs::dapi_config(context.resolved, &node_urls, false);
    spawn(context, "mock-dapi", &MockConfig::Dapi(dapi)).await?;
    let dapi_at = launch::ready(context, "mock-dapi").await?;
    let control = |line: &ReadyLine| Control::new(ask.clone(), address(line, "control"));
    let pool = OpenaiControl {
        service: "mock-openai".to_owned(),
        nodes: node_urls.keys().cloned().collect(),
        control: control(&openai_at),
    };
    let mocks = Mocks {
        openai: vec![pool],
        dapi: Some(control(&dapi_at)),
        chain: Some(control(&chain_at)),
        journal: Some(launch::journals(context)),
    };
    Ok(Started { chain_at, dapi_at, mocks, node_urls })
}

async fn spawn(context: &mut Context<'_>, name: &str, config: &MockConfig) -> Result<(), RunnerError> {
    let file = format!("faults/start-{name}.json");
    context.dir.write_json(&file, config)?;
    let mut args = vec!["--config".to_owned(), context.dir.path(&file).display().to_string()];
    args.extend(launch::journal(context, name));
    let spawn = launch::child(context, name, name, args, BTreeMap::new());
    context.guard.spawn(spawn).await
}

/// Address of a listener in a ready line.
#[must_use]
pub fn address<'a>(line: &'a ReadyLine, name: &str) -> &'a str {
    line.ready.get(name).map_or("", String::as_str)
}

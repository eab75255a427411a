//! Stacks: what a provider starts and hands over (design section 4).

pub mod embedded;
pub mod programs;

use evidence::run::Stack;

use crate::collect::Surfaces;
use crate::collect::snapshot::Mocks;

/// A stack that answers, whoever started it.
#[derive(Clone, Debug)]
pub struct Running {
    /// Where gateway and hosts are.
    pub surfaces: Surfaces,
    /// Control of the mocks.
    pub mocks: Mocks,
    /// Base URL of each pool node, by instance.
    pub node_urls: std::collections::BTreeMap<String, String>,
    /// Model that is served.
    pub model: String,
    /// Services that must stay up.
    pub required: Vec<String>,
    /// For `run.yaml`.
    pub about: Stack,
    /// Protocol waits as status shows them, seconds: refusal, execution.
    pub waits_s: (u64, u64),
    /// Secrets of this run, for the redactor.
    pub secrets: Vec<String>,
}

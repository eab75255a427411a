//! Planted defects of the mocks, all in this place (selftest, layer M). Without the feature `planted-defects` nothing can
//! be planted, and the flag does not exist.

#[cfg(feature = "planted-defects")]
mod planted {
    use std::sync::OnceLock;

    /// A defect of `mock-openai`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
    pub enum Defect {
        /// A call stays in the queue of every node for ever: trips A8.
        StuckQueue,
        /// Every third hit is not in the hit log: the two sources of the fault oracle disagree, A2 is unknown.
        ForgottenHit,
        /// Statistics lack the last node: A8 and V are unknown.
        HiddenNode,
    }

    static PLANTED: OnceLock<Defect> = OnceLock::new();

    /// Plants a defect for the rest of the process; the first one stays.
    pub fn plant(defect: Option<Defect>) {
        if let Some(defect) = defect {
            let _ = PLANTED.set(defect);
        }
    }

    /// Whether this defect is planted and its turn has come; then the log says so and on which request, if on one, for
    /// the self-test to read.
    fn acts(defect: Defect, turn: bool, request: Option<&str>) -> bool {
        let acts = PLANTED.get() == Some(&defect) && turn;
        if acts {
            let on = request.map(|id| format!(" request={id}")).unwrap_or_default();
            eprintln!("planted defect took effect{on}");
        }
        acts
    }

    pub(crate) fn queued(queued: u64, ended: u64) -> u64 {
        if acts(Defect::StuckQueue, ended > 0, None) { queued.max(1) } else { queued }
    }

    pub(crate) fn forgets_hit(call: u64, request: Option<&str>) -> bool {
        acts(Defect::ForgottenHit, call.is_multiple_of(3), request)
    }

    pub(crate) fn hides_node(position: usize, nodes: usize) -> bool {
        acts(Defect::HiddenNode, position + 1 == nodes, None)
    }
}

#[cfg(not(feature = "planted-defects"))]
mod planted {
    pub(crate) const fn queued(queued: u64, _ended: u64) -> u64 {
        queued
    }

    pub(crate) const fn forgets_hit(_call: u64, _request: Option<&str>) -> bool {
        false
    }

    pub(crate) const fn hides_node(_position: usize, _nodes: usize) -> bool {
        false
    }
}

#[cfg(feature = "planted-defects")]
pub use planted::{Defect, plant};
pub(crate) use planted::{forgets_hit, hides_node, queued};

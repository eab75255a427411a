//! The phase gate: what the public API says of the epoch and of participants' weights, asked every few seconds
//! (contract gateway 1.4, mocks 4.7). A failed poll keeps what was known.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use serde_json::Value;

use super::Gateway;
use super::log::Line;

/// Pause between two polls: 5 s on the real gateway, shorter here like the waits.
const POLL: Duration = Duration::from_secs(1);
/// Pause after a change of settings, which starts the gate again.
const SOON: Duration = Duration::from_millis(100);
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest document that is read.
const BODY_MAX: usize = 4 << 20;

/// What the public API said last.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct View {
    /// Phase of the chain; empty before the first answer.
    pub phase: String,
    /// Phase of a confirmation; empty when none was named.
    pub confirmation: String,
    pub block_height: u64,
    pub epoch: u64,
    /// Height at which the epoch ends for escrows; 0 when unknown.
    pub switch_height: u64,
    /// Weight by participant; empty when none is reported.
    pub weights: BTreeMap<String, u64>,
}

impl View {
    /// Blocks until the epoch ends.
    #[must_use]
    pub const fn blocks_to_switch(&self) -> u64 {
        self.switch_height.saturating_sub(self.block_height)
    }

    /// Why requests are blocked now; none outside of proofs of compute.
    #[must_use]
    pub fn block_reason(&self) -> Option<&'static str> {
        if self.phase.starts_with("PoC") {
            return Some("poc");
        }
        let confirming = ["_GRACE_PERIOD", "_GENERATION", "_VALIDATION"];
        let confirms = confirming.iter().any(|suffix| self.confirmation.ends_with(suffix));
        confirms.then_some("confirmation_poc")
    }

    /// The phase as answers show it.
    #[must_use]
    pub fn shown_phase(&self) -> &str {
        if self.phase.is_empty() { "Inference" } else { &self.phase }
    }
}

/// The gate.
#[derive(Debug)]
pub struct Gate {
    view: RwLock<Arc<View>>,
    again: tokio::sync::Notify,
    client: reqwest::Client,
}

impl Gate {
    /// A gate that has seen nothing.
    ///
    /// # Errors
    /// When the HTTP client cannot be made.
    pub fn new() -> Result<Self, reqwest::Error> {
        let client = reqwest::Client::builder().timeout(CALL_TIMEOUT).no_proxy().build()?;
        Ok(Self { view: RwLock::default(), again: tokio::sync::Notify::new(), client })
    }

    /// What is known.
    #[must_use]
    pub fn view(&self) -> Arc<View> {
        self.view.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Settings have changed: the next poll comes at once.
    pub fn restart(&self) {
        self.again.notify_one();
    }

    async fn poll(&self, base: &str) -> Result<(), String> {
        let base = base.trim_end_matches('/');
        let epochs = self.read(&format!("{base}/v1/epochs/latest")).await?;
        let participants = self.read(&format!("{base}/v1/epochs/current/participants")).await?;
        let view = view_of(&epochs, &participants);
        *self.view.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(view);
        Ok(())
    }

    async fn read(&self, url: &str) -> Result<Value, String> {
        let response = self.client.get(url).send().await.map_err(|error| error.to_string())?;
        if !response.status().is_success() {
            return Err(format!("{url} answered {}", response.status()));
        }
        if response.content_length().is_some_and(|length| length > BODY_MAX as u64) {
            return Err(format!("{url} answered more than {BODY_MAX} bytes"));
        }
        let bytes = response.bytes().await.map_err(|error| error.to_string())?;
        serde_json::from_slice(&bytes).map_err(|error| format!("{url}: {error}"))
    }
}

/// Follows the public API for as long as the gateway lives.
pub async fn follow(gateway: std::sync::Weak<Gateway>) {
    let mut failing = false;
    loop {
        let Some(alive) = gateway.upgrade() else { return };
        let base = alive.settings().public_api.clone();
        if !base.is_empty() {
            let polled = alive.gate.poll(&base).await;
            if let (Err(error), false) = (&polled, failing) {
                Line::process("phase_gate_poll_failed").field("error", error).emit();
            }
            failing = polled.is_err();
            if !failing {
                super::rotation::tick(&alive).await;
            }
        }
        let again = async {
            alive.gate.again.notified().await;
            tokio::time::sleep(SOON).await;
        };
        tokio::select! {
            () = again => {}
            () = tokio::time::sleep(POLL) => {}
        }
    }
}

/// Numbers come as text or as numbers.
fn number(value: &Value) -> u64 {
    value.as_u64().or_else(|| value.as_str()?.parse().ok()).unwrap_or(0)
}

fn view_of(epochs: &Value, participants: &Value) -> View {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let listed = participants["active_participants"]["participants"].as_array();
    let weights = listed
        .into_iter()
        .flatten()
        .map(|entry| (text(&entry["index"]), number(&entry["weight"])))
        .filter(|(index, _)| !index.is_empty())
        .collect();
    let height = number(&epochs["block_height"]);
    // Once the height of this epoch's switch has passed, the next one counts.
    let switches =
        ["epoch_stages", "next_epoch_stages"].map(|stage| number(&epochs[stage]["set_new_validators"]));
    let switch_height = switches.into_iter().find(|switch| *switch >= height).unwrap_or(0);
    View {
        phase: text(&epochs["phase"]),
        confirmation: text(&epochs["confirmation_poc_phase"]),
        block_height: height,
        epoch: number(&epochs["latest_epoch"]["index"]),
        switch_height,
        weights,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Fixture surfaces-single, `dapi-epochs-latest`.
    #[test]
    fn the_captured_documents_are_read() {
        let epochs = json!({
            "block_height": "150", "phase": "Inference", "latest_epoch": {"index": "1"},
            "epoch_stages": {"set_new_validators": "180"}, "next_epoch_stages": {"set_new_validators": "600"}
        });
        let none = json!({"active_participants": {"participants": []}});
        let view = view_of(&epochs, &none);
        assert_eq!((view.block_height, view.epoch, view.blocks_to_switch()), (150, 1, 30));
        assert_eq!((view.block_reason(), view.weights.len()), (None, 0));
        let some = json!({"active_participants": {"participants": [{"index": "a", "weight": 4000}]}});
        assert_eq!(view_of(&epochs, &some).weights["a"], 4000);
    }

    #[test]
    fn proofs_of_compute_block_requests() {
        let of = |phase: &str, confirmation: &str| {
            View { phase: phase.into(), confirmation: confirmation.into(), ..View::default() }.block_reason()
        };
        assert_eq!(of("PoCGenerate", ""), Some("poc"));
        assert_eq!(of("Inference", "CONFIRMATION_POC_GENERATION"), Some("confirmation_poc"));
        assert_eq!(of("Inference", "CONFIRMATION_POC_INACTIVE"), None);
        assert_eq!(of("", ""), None);
    }
}

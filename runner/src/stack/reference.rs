//! What every stack with the reference Devshard needs: fresh keys and the seed of the chain.

use std::collections::BTreeMap;
use std::time::Duration;

use evidence::run::Stack;
use scenario::control::{ChainConfig, ChainEscrow, ChainParams, ChainParticipant, basis_points};
use scenario::model::{Resolved, Storage};
use scenario::units::Micros;

use crate::clock::random_bytes;
use crate::error::RunnerError;
use crate::stack::Choice;
use crate::stack::embedded::MODEL;

/// Balance of an escrow: far above what any committed plan can spend (contract gateway 6.8).
const ESCROW_AMOUNT: u64 = 1_000_000_000_000;
const TOKEN_PRICE: u64 = 100;
const FEE_PER_NONCE: u64 = 1;
const VOTE_THRESHOLD_FACTOR: u32 = 50;
/// Validation leases run out soon, so that a run of seconds sees it (30 min and 5 min on a real host).
pub const LEASE_TTL: Duration = Duration::from_secs(3);
/// Pause between two looks of a host at leases that ran out.
pub const LEASE_RETRY: Duration = Duration::from_millis(250);
/// Id of the chain.
pub const CHAIN_ID: &str = "proofload-1";

/// Keys of one run, fresh for each: they protect nothing beyond it and never reach a file.
#[derive(Clone)]
pub struct Identity {
    /// Private key.
    pub key_hex: String,
    /// Address.
    pub address: String,
    /// Base64 of the compressed public key.
    pub pubkey: String,
}

impl Identity {
    /// A fresh one.
    ///
    /// # Errors
    /// [`RunnerError`] when the machine gives no random bytes.
    pub fn fresh() -> Result<Self, RunnerError> {
        let bytes: [u8; 32] = random()?;
        let key =
            wire::keys::PrivateKey::from_bytes(&bytes).map_err(|e| RunnerError::Internal(e.to_string()))?;
        let public = key.public_key();
        Ok(Self {
            key_hex: hex::encode(bytes),
            address: public.address().to_string(),
            pubkey: public.to_base64(),
        })
    }
}

/// Keys of a run.
pub struct Keys {
    /// Owner of the escrows.
    pub creator: Identity,
    /// Participants.
    pub hosts: Vec<Identity>,
    /// Bearer of the gateway's admin routes.
    pub admin: String,
}

impl Keys {
    /// Fresh ones.
    ///
    /// # Errors
    /// [`RunnerError`] when the machine gives no random bytes.
    pub fn fresh(resolved: &Resolved) -> Result<Self, RunnerError> {
        let participants = resolved.scenario.devshard.participants;
        let hosts = (0..participants).map(|_| Identity::fresh()).collect::<Result<_, _>>()?;
        Ok(Self { creator: Identity::fresh()?, hosts, admin: hex::encode(random::<24>()?) })
    }

    /// Everything that must not reach a file.
    #[must_use]
    pub fn secrets(&self) -> Vec<String> {
        let hosts = self.hosts.iter().map(|host| host.key_hex.clone());
        hosts.chain([self.creator.key_hex.clone(), self.admin.clone()]).collect()
    }
}

/// What runs, where the reference Devshard does.
#[must_use]
pub fn about(provider: &str, choice: &Choice, resolved: &Resolved, isolation: &str) -> Stack {
    let storage = match resolved.scenario.devshard.storage {
        Storage::Sqlite => "sqlite",
        Storage::Postgres => "postgres",
    };
    Stack {
        provider: provider.to_owned(),
        devshard: "reference".to_owned(),
        personality: Some(choice.personality.clone()),
        defect: choice.defect.clone(),
        storage: storage.to_owned(),
        isolation: isolation.to_owned(),
        hosts_by: None,
    }
}

/// Random bytes of the machine.
///
/// # Errors
/// [`RunnerError::Environment`].
pub fn random<const N: usize>() -> Result<[u8; N], RunnerError> {
    random_bytes().map_err(|error| RunnerError::environment(format!("reading random bytes: {error}")))
}

/// Escrows, slots and participants of a scenario; `urls` gives each participant's address on the network.
#[must_use]
pub fn chain_config(
    resolved: &Resolved,
    creator: &Identity,
    hosts: &[Identity],
    urls: &BTreeMap<String, String>,
) -> ChainConfig {
    let devshard = &resolved.scenario.devshard;
    let slots = devshard.slots.unwrap_or(devshard.participants);
    let slot_owner = |slot: u32| hosts[slot as usize % hosts.len()].address.clone();
    let participant = |host: &Identity| ChainParticipant {
        address: host.address.clone(),
        inference_url: urls.get(&host.address).cloned().unwrap_or_default(),
        pubkey: host.pubkey.clone(),
    };
    let escrow = |id: u32| ChainEscrow {
        id: u64::from(id),
        creator: creator.address.clone(),
        amount: ESCROW_AMOUNT,
        slots: (0..slots).map(slot_owner).collect(),
        model: MODEL.to_owned(),
        epoch: 1,
        token_price: TOKEN_PRICE,
        fee_per_nonce: FEE_PER_NONCE,
        validation_rate: basis_points(devshard.validation_rate),
        vote_threshold_factor: VOTE_THRESHOLD_FACTOR,
        settled: false,
    };
    ChainConfig {
        v: scenario::control::CONTROL_VERSION,
        chain_id: CHAIN_ID.to_owned(),
        participants: hosts.iter().map(participant).collect(),
        escrows: (1..=devshard.escrows).map(escrow).collect(),
        epoch: 1,
        block_interval: Micros::from_s(1),
        params: ChainParams {
            validation_rate: basis_points(devshard.validation_rate),
            vote_threshold_factor: VOTE_THRESHOLD_FACTOR,
            ..ChainParams::default()
        },
        grants: Vec::new(),
        rules: Vec::new(),
    }
}

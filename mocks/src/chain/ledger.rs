//! State of the chain without any transport: height, epoch, escrows, transactions, accounts, events.
//! Everything in [`Saved`] survives a restart when a state file is given.

use std::collections::{BTreeMap, VecDeque};

use scenario::control::{ChainConfig, ChainEscrow};
use serde::{Deserialize, Serialize};

use crate::chain::config;
use crate::chain::tx::{Transaction, Work};

/// Format version of the state file.
pub const STATE_VERSION: u32 = 1;
/// Height at start (contract mocks 2.1).
pub const HEIGHT_FIRST: u64 = 150;
/// Blocks in an epoch (contract mocks 2.1).
pub const EPOCH_LENGTH: u64 = 400;
/// Blocks between the begin of the first epoch and the height at start.
const POC_LEAD: u64 = 50;
/// Events kept for subscribers that are slow; older ones are dropped and counted.
const EVENTS_MAX: usize = 10_000;
/// Transactions kept for `GetTx`.
const TRANSACTIONS_MAX: usize = 50_000;
/// Escrows that may be created beside the seeded ones.
const CREATED_MAX: usize = 50_000;
/// Settlements that are remembered; every repeat of one is an entry too.
const SETTLEMENTS_MAX: usize = 100_000;
/// Accounts that are remembered.
const ACCOUNTS_MAX: usize = 100_000;

/// One chain event: its type and attributes in the order in which they are sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChainEvent {
    /// Type, for example `devshard_escrow_created`.
    pub kind: String,
    /// Name and value.
    pub attributes: Vec<(String, String)>,
}

/// A transaction that was accepted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoredTx {
    /// Upper-case hex of the SHA-256 of its bytes.
    pub hash: String,
    /// Block that holds it; asked for before that block exists it is not found.
    pub height: u64,
    /// What it did.
    pub event: ChainEvent,
}

/// A settlement, by transaction or by an admin action.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settlement {
    /// Escrow.
    pub escrow: u64,
    /// Who settled.
    pub settler: String,
    /// Last nonce of the session; 0 for an admin action.
    pub nonce: u64,
    /// Fees.
    pub fees: u64,
}

/// What is known of an account.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Account {
    /// Number in order of first sight.
    pub number: u64,
    /// Transactions accepted.
    pub sequence: u64,
    /// Base64 of the compressed key, when a transaction showed it; else empty.
    pub pubkey: String,
}

/// The part of the state that a restart keeps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Saved {
    /// Format version.
    pub v: u32,
    /// Chain it belongs to.
    pub chain_id: String,
    /// Last block.
    pub height: u64,
    /// Epoch.
    pub epoch: u64,
    /// Height at which the epoch began.
    pub epoch_start: u64,
    /// Escrows created by transactions.
    pub created: Vec<ChainEscrow>,
    /// Settlements in order.
    pub settlements: Vec<Settlement>,
    /// Transactions in order.
    pub transactions: Vec<StoredTx>,
    /// Transactions ever accepted.
    pub transactions_total: u64,
    /// Accounts by address.
    pub accounts: BTreeMap<String, Account>,
}

/// Why a transaction was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused(pub String);

/// An event that is in a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    /// Position in the stream of events, from 1.
    pub seq: u64,
    /// Block.
    pub height: u64,
    /// Hash of the transaction; of nothing for an admin action.
    pub hash: String,
    /// The event.
    pub event: ChainEvent,
}

/// The chain.
#[derive(Debug)]
pub struct Ledger {
    config: ChainConfig,
    saved: Saved,
    /// Events that wait for their block.
    pending: Vec<(String, ChainEvent)>,
    /// Events in blocks, bounded.
    published: VecDeque<Published>,
    events_total: u64,
}

impl Ledger {
    /// A chain from a checked configuration, continued from `saved` when there is one.
    ///
    /// # Errors
    /// What is wrong with the configuration, or why state and configuration don't belong together.
    pub fn new(config: ChainConfig, saved: Option<Saved>) -> Result<Self, String> {
        config::check(&config)?;
        let saved = match saved {
            Some(saved) => continue_from(&config, saved)?,
            None => Saved {
                v: STATE_VERSION,
                chain_id: config.chain_id.clone(),
                height: HEIGHT_FIRST,
                epoch: config.epoch,
                epoch_start: HEIGHT_FIRST - POC_LEAD,
                created: Vec::new(),
                settlements: Vec::new(),
                transactions: Vec::new(),
                transactions_total: 0,
                accounts: BTreeMap::new(),
            },
        };
        no_collision(&config, &saved.created)?;
        Ok(Self { config, saved, pending: Vec::new(), published: VecDeque::new(), events_total: 0 })
    }

    /// The configuration in force.
    #[must_use]
    pub fn config(&self) -> &ChainConfig {
        &self.config
    }

    /// What a restart keeps.
    #[must_use]
    pub fn saved(&self) -> &Saved {
        &self.saved
    }

    /// Replaces the configuration. Created escrows, settlements and height stay; the epoch never goes back.
    ///
    /// # Errors
    /// Why it was refused; nothing has changed then.
    pub fn apply(&mut self, new: ChainConfig) -> Result<(), String> {
        config::check(&new)?;
        if new.chain_id != self.config.chain_id {
            return Err(format!("`chain_id` can't change after the start: it is {:?}", self.config.chain_id));
        }
        no_collision(&new, &self.saved.created)?;
        if new.epoch > self.saved.epoch {
            self.saved.epoch = new.epoch;
            self.saved.epoch_start = self.saved.height;
        }
        self.config = new;
        Ok(())
    }

    /// An escrow, seeded or created.
    #[must_use]
    pub fn escrow(&self, id: u64) -> Option<ChainEscrow> {
        let mut escrow = self.escrows().find(|escrow| escrow.id == id)?.clone();
        escrow.settled |= self.is_settled(id);
        Some(escrow)
    }

    /// Ids of settled escrows in ascending order.
    #[must_use]
    pub fn settled(&self) -> Vec<u64> {
        let seeded = self.escrows().filter(|escrow| escrow.settled).map(|escrow| escrow.id);
        let mut ids: Vec<u64> = seeded.chain(self.saved.settlements.iter().map(|done| done.escrow)).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// Whether some escrow is for this model.
    #[must_use]
    pub fn knows_model(&self, model: &str) -> bool {
        self.escrows().any(|escrow| escrow.model == model)
    }

    /// Carries out a transaction. It is in the next block, and only then found by [`Self::transaction`]; its effects
    /// are there at once, as measured upstream (contract mocks 5.6).
    ///
    /// # Errors
    /// Why it was refused; nothing has changed then.
    pub fn submit(&mut self, transaction: &Transaction) -> Result<StoredTx, Refused> {
        if let Some(known) = self.saved.transactions.iter().find(|stored| stored.hash == transaction.hash) {
            return Ok(known.clone());
        }
        let (sender, event) = match &transaction.work {
            Work::Create { creator, amount, model } => (creator, self.create(creator, *amount, model)?),
            Work::Settle { settler, escrow, nonce, fees } => {
                (settler, self.settle(*escrow, settler, *nonce, *fees)?)
            }
        };
        if let Some(account) = self.account(sender) {
            account.sequence += 1;
            if account.pubkey.is_empty() {
                account.pubkey.clone_from(&transaction.pubkey);
            }
        }
        let stored = StoredTx { hash: transaction.hash.clone(), height: self.saved.height + 1, event };
        self.pending.push((stored.hash.clone(), public_form(&stored.event)));
        if self.saved.transactions.len() >= TRANSACTIONS_MAX {
            self.saved.transactions.remove(0);
        }
        self.saved.transactions.push(stored.clone());
        self.saved.transactions_total += 1;
        Ok(stored)
    }

    /// Settlement without a transaction of the gateway; the event says so by its settler.
    ///
    /// # Errors
    /// When there is no such escrow.
    pub fn settle_by_admin(&mut self, escrow: u64) -> Result<(), Refused> {
        let event = self.settle(escrow, "admin", 0, 0)?;
        self.pending.push((String::new(), event));
        Ok(())
    }

    /// A transaction that is in a block.
    #[must_use]
    pub fn transaction(&self, hash: &str) -> Option<&StoredTx> {
        let found =
            self.saved.transactions.iter().rev().find(|stored| stored.hash.eq_ignore_ascii_case(hash))?;
        (found.height <= self.saved.height).then_some(found)
    }

    /// The account of an address, with the next number when it is new. `None` when no more fit.
    pub fn account(&mut self, address: &str) -> Option<&mut Account> {
        let number = u64::try_from(self.saved.accounts.len()).expect("the table is bounded");
        if !self.saved.accounts.contains_key(address) && self.saved.accounts.len() >= ACCOUNTS_MAX {
            return None;
        }
        let new = || Account { number, ..Account::default() };
        Some(self.saved.accounts.entry(address.to_owned()).or_insert_with(new))
    }

    /// The key of an address: of a participant by configuration, of a grantee by its grant, else as a transaction has
    /// shown it. Empty when none is known.
    #[must_use]
    pub fn pubkey(&self, address: &str) -> String {
        let participants = self.config.participants.iter().map(|known| (&known.address, &known.pubkey));
        let grants = self.config.grants.iter().map(|grant| (&grant.grantee, &grant.pubkey));
        let shown = self.saved.accounts.iter().map(|(known, account)| (known, &account.pubkey));
        let mut known = participants.chain(grants).chain(shown);
        known
            .find(|(of, key)| *of == address && !key.is_empty())
            .map(|(_, key)| key.clone())
            .unwrap_or_default()
    }

    /// Produces blocks. What waits is in the first of them.
    pub fn produce(&mut self, count: u64) {
        if count == 0 {
            return;
        }
        let height = self.saved.height + 1;
        for (hash, event) in std::mem::take(&mut self.pending) {
            self.events_total += 1;
            self.published.push_back(Published { seq: self.events_total, height, hash, event });
            if self.published.len() > EVENTS_MAX {
                self.published.pop_front();
            }
        }
        self.saved.height = self.saved.height.saturating_add(count);
    }

    /// Next epoch: the height jumps to its begin. Not block by block: a flood of blocks made subscribers of the
    /// upstream mock deaf (contract mocks 5.5), and hosts accept any height.
    pub fn advance_epoch(&mut self) {
        self.produce(self.blocks_to_epoch());
        self.begin_epoch();
    }

    /// Blocks until the next epoch can begin, at least one.
    #[must_use]
    pub fn blocks_to_epoch(&self) -> u64 {
        let begin = self.saved.epoch_start.saturating_add(EPOCH_LENGTH).max(self.saved.height + 1);
        begin - self.saved.height
    }

    /// The next epoch begins at the height of now.
    pub fn begin_epoch(&mut self) {
        self.saved.epoch += 1;
        self.saved.epoch_start = self.saved.height;
    }

    /// Position of the newest event.
    #[must_use]
    pub fn events_total(&self) -> u64 {
        self.events_total
    }

    /// Events after a position, as far as they are still kept.
    #[must_use]
    pub fn events_after(&self, seq: u64) -> Vec<Published> {
        self.published.iter().filter(|event| event.seq > seq).cloned().collect()
    }

    fn escrows(&self) -> impl Iterator<Item = &ChainEscrow> {
        self.config.escrows.iter().chain(&self.saved.created)
    }

    fn is_settled(&self, id: u64) -> bool {
        self.saved.settlements.iter().any(|settlement| settlement.escrow == id)
    }

    fn create(&mut self, creator: &str, amount: u64, model: &str) -> Result<ChainEvent, Refused> {
        if creator.is_empty() || amount == 0 || model.is_empty() {
            return Err(Refused("creator, amount and model are all needed".to_owned()));
        }
        if self.saved.created.len() >= CREATED_MAX {
            return Err(Refused(format!("no more than {CREATED_MAX} escrows can be created")));
        }
        let id = self.escrows().map(|escrow| escrow.id).max().unwrap_or_default() + 1;
        let escrow = self.like_template(id, creator, amount, model);
        let text = |name: &str, value: String| (name.to_owned(), value);
        let attributes = vec![
            text("escrow_id", id.to_string()),
            text("creator", creator.to_owned()),
            text("amount", amount.to_string()),
            text("epoch_index", escrow.epoch.to_string()),
            text("model_id", model.to_owned()),
        ];
        self.saved.created.push(escrow);
        Ok(ChainEvent { kind: "devshard_escrow_created".to_owned(), attributes })
    }

    /// Slots and prices are those of the first seeded escrow of the model, else of the first one at all; a chain
    /// without escrows gives each participant one slot.
    fn like_template(&self, id: u64, creator: &str, amount: u64, model: &str) -> ChainEscrow {
        let of_model = self.escrows().find(|escrow| escrow.model == model);
        let base = match of_model.or_else(|| self.escrows().next()) {
            Some(template) => template.clone(),
            None => ChainEscrow {
                id,
                creator: String::new(),
                amount,
                slots: self
                    .config
                    .participants
                    .iter()
                    .map(|participant| participant.address.clone())
                    .collect(),
                model: String::new(),
                epoch: 0,
                token_price: 100,
                fee_per_nonce: 0,
                validation_rate: 5_000,
                vote_threshold_factor: 50,
                settled: false,
            },
        };
        ChainEscrow {
            id,
            creator: creator.to_owned(),
            amount,
            model: model.to_owned(),
            epoch: self.saved.epoch,
            settled: false,
            ..base
        }
    }

    /// A second settlement succeeds too, as upstream (contract mocks 5.6); every one leaves its entry.
    fn settle(&mut self, escrow: u64, settler: &str, nonce: u64, fees: u64) -> Result<ChainEvent, Refused> {
        if !self.escrows().any(|known| known.id == escrow) {
            return Err(Refused(format!("escrow {escrow} does not exist")));
        }
        if self.saved.settlements.len() >= SETTLEMENTS_MAX {
            return Err(Refused(format!("no more than {SETTLEMENTS_MAX} settlements can be kept")));
        }
        self.saved.settlements.push(Settlement { escrow, settler: settler.to_owned(), nonce, fees });
        let text = |name: &str, value: String| (name.to_owned(), value);
        let attributes = vec![
            text("escrow_id", escrow.to_string()),
            text("settler", settler.to_owned()),
            text("total_payout", fees.to_string()),
            text("fees", fees.to_string()),
            text("remainder", "0".to_owned()),
        ];
        Ok(ChainEvent { kind: "devshard_escrow_settled".to_owned(), attributes })
    }
}

/// The event as subscribers get it: without the model, which only the answer to the sender holds (contract mocks 5.4).
fn public_form(event: &ChainEvent) -> ChainEvent {
    let attributes = event.attributes.iter().filter(|(name, _)| name != "model_id").cloned().collect();
    ChainEvent { kind: event.kind.clone(), attributes }
}

fn continue_from(config: &ChainConfig, mut saved: Saved) -> Result<Saved, String> {
    if saved.v != STATE_VERSION {
        return Err(format!("the state file has version {}, this build reads {STATE_VERSION}", saved.v));
    }
    if saved.chain_id != config.chain_id {
        return Err(format!("the state file is of chain {:?}, not {:?}", saved.chain_id, config.chain_id));
    }
    if config.epoch > saved.epoch {
        saved.epoch = config.epoch;
        saved.epoch_start = saved.height;
    }
    Ok(saved)
}

fn no_collision(config: &ChainConfig, created: &[ChainEscrow]) -> Result<(), String> {
    let taken = config.escrows.iter().find(|escrow| created.iter().any(|other| other.id == escrow.id));
    taken
        .map_or(Ok(()), |escrow| Err(format!("escrow id {} is already taken by a created escrow", escrow.id)))
}

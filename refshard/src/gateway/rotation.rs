//! Rotation of escrows around the end of an epoch (contract mocks 4.7): before the switch temporary escrows
//! take over and the others are settled, after it regular ones are opened and the temporary ones settled.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};
use wire::proto::inference::MsgCreateDevshardEscrow;

use super::Gateway;
use super::admin;
use super::log::Line;
use super::settings::RotationModel;
use super::shapes::time_of;
use crate::clock;

/// Escrows poorer than this are replaced while rotation is on (contract gateway 6.8).
const BALANCE_MIN: u64 = 1_000_000;

/// One half of a rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    PrepareTemp,
    FinishRegular,
}

impl Stage {
    const fn name(self) -> &'static str {
        match self {
            Self::PrepareTemp => "prepare_temp",
            Self::FinishRegular => "finish_regular",
        }
    }

    /// Role of the escrows that this half opens.
    const fn role(self) -> &'static str {
        match self {
            Self::PrepareTemp => "temp",
            Self::FinishRegular => "regular",
        }
    }
}

#[derive(Clone, Debug, Default)]
struct Report {
    epoch: u64,
    target: u64,
    existing: u64,
    created: u64,
    settled: u64,
    settle_failed: u64,
    error: String,
    completed: bool,
    updated_ns: u64,
}

/// What rotation has done lately, by model and half.
#[derive(Debug, Default)]
pub struct Rotation {
    latest: Mutex<BTreeMap<(String, Stage), Report>>,
    /// One tick at a time: a slow chain must not open escrows twice.
    ticking: tokio::sync::Mutex<()>,
}

/// Does what is due at this moment.
pub async fn tick(gateway: &Arc<Gateway>) {
    let rotation = gateway.settings().escrow_rotation.clone();
    if !rotation.enabled {
        return;
    }
    let Ok(_ticking) = gateway.rotation.ticking.try_lock() else { return };
    let view = gateway.gate.view();
    if view.block_reason().is_some() || view.epoch == 0 {
        return;
    }
    for model in rotation.models.iter().flatten() {
        let stale = escrows(gateway, model, |role, epoch| role == "temp" && epoch < view.epoch);
        if !stale.is_empty() {
            half(gateway, model, Stage::FinishRegular, view.epoch, &stale).await;
        } else if view.switch_height > 0 && view.blocks_to_switch() <= rotation.pre_poc_blocks {
            let old = escrows(gateway, model, |role, epoch| role != "temp" || epoch < view.epoch);
            half(gateway, model, Stage::PrepareTemp, view.epoch, &old).await;
        }
        replace_poor(gateway, model, view.epoch).await;
    }
}

/// Active escrows of a model whose role and epoch are wanted.
fn escrows(gateway: &Gateway, model: &RotationModel, wanted: impl Fn(&str, u64) -> bool) -> Vec<String> {
    let residents = gateway.residents();
    let active = residents
        .iter()
        .filter(|escrow| escrow.model == model.model_id && escrow.active.load(Ordering::Acquire));
    active
        .filter(|escrow| {
            let (role, epoch) = gateway.store.role(escrow.id()).ok().flatten().unwrap_or_default();
            wanted(&role, epoch)
        })
        .map(|escrow| escrow.id().to_owned())
        .collect()
}

async fn half(gateway: &Arc<Gateway>, model: &RotationModel, stage: Stage, epoch: u64, old: &[String]) {
    let target = if stage == Stage::PrepareTemp { model.temp_count } else { model.target_count };
    let there = escrows(gateway, model, |role, made| role == stage.role() && made == epoch);
    let mut report = Report { epoch, target, existing: there.len() as u64, ..Report::default() };
    for _ in report.existing..target {
        match open(gateway, model, stage.role(), epoch).await {
            Ok(_) => report.created += 1,
            Err(error) => {
                report.error = error;
                break;
            }
        }
    }
    // Nothing is taken away before its successor is there.
    if report.error.is_empty() {
        for id in old {
            retire(gateway, id, &mut report).await;
        }
    }
    report.completed = report.error.is_empty() && report.settle_failed == 0;
    report.updated_ns = clock::unix_ns();
    if report.created + report.settled + report.settle_failed > 0 || !report.error.is_empty() {
        Line::process("escrow_rotation_stage")
            .field("model", &model.model_id)
            .field("rotation_stage", stage.name())
            .field("created", report.created)
            .field("settled", report.settled)
            .field("error", &report.error)
            .emit();
    }
    let mut latest = gateway.rotation.latest.lock().unwrap_or_else(PoisonError::into_inner);
    let known = latest.entry((model.model_id.clone(), stage)).or_default();
    if known.epoch == epoch {
        report.created += known.created;
        report.settled += known.settled;
    }
    *known = report;
}

async fn open(gateway: &Arc<Gateway>, model: &RotationModel, role: &str, epoch: u64) -> Result<u64, String> {
    let message = MsgCreateDevshardEscrow {
        creator: gateway.keys.creator.address().to_owned(),
        amount: model.amount,
        model_id: model.model_id.clone(),
    };
    let created = gateway.chain.create(&message, &gateway.keys.creator_tx, admin::now()).await;
    let (id, _) = created.map_err(|error| error.to_string())?;
    gateway.store.put_role(&id.to_string(), role, epoch).map_err(|error| error.to_string())?;
    gateway.adopt(id, Some(&model.model_id)).await.map_err(|error| error.to_string())?;
    Ok(id)
}

/// No new requests, and settlement once the last one has ended.
async fn retire(gateway: &Arc<Gateway>, id: &str, report: &mut Report) {
    let settles = gateway.settings().escrow_rotation.settlement_enabled;
    if !settles {
        gateway.deactivate(id);
        return;
    }
    if let Some(escrow) = gateway.resident(id) {
        escrow.active.store(false, Ordering::Release);
        for _ in 0..600 {
            if !escrow.is_busy() {
                break;
            }
            tokio::time::sleep(super::RETIRE_EVERY).await;
        }
    }
    let row = gateway.store.find(id).ok().flatten();
    match row {
        Some(row) if admin::settle_escrow(gateway, &row).await.is_ok() => report.settled += 1,
        _ => report.settle_failed += 1,
    }
}

async fn replace_poor(gateway: &Arc<Gateway>, model: &RotationModel, epoch: u64) {
    let poor: Vec<_> = gateway
        .residents()
        .into_iter()
        .filter(|escrow| escrow.model == model.model_id && escrow.active.load(Ordering::Acquire))
        .filter(|escrow| escrow.with_state(crate::state::Session::balance) < BALANCE_MIN)
        .collect();
    for escrow in poor {
        Line::process("escrow_balance_low").field("escrow", escrow.id()).emit();
        let (role, _) = gateway.store.role(escrow.id()).ok().flatten().unwrap_or_default();
        let role = if role.is_empty() { "regular" } else { role.as_str() };
        if open(gateway, model, role, epoch).await.is_ok() {
            let mut report = Report::default();
            retire(gateway, escrow.id(), &mut report).await;
        }
    }
}

/// `/v1/debug/rotation`.
pub fn shape(gateway: &Gateway) -> Value {
    let view = gateway.gate.view();
    let settings = gateway.settings();
    let latest: Vec<Value> = {
        let latest = gateway.rotation.latest.lock().unwrap_or_else(PoisonError::into_inner);
        latest.iter().map(|((model, stage), report)| report_shape(model, *stage, report)).collect()
    };
    let until = view.blocks_to_switch().saturating_sub(settings.escrow_rotation.pre_poc_blocks);
    json!({
        "chain": {
            "block_height": view.block_height,
            "blocks_to_epoch_switch": view.blocks_to_switch(),
            "blocks_until_next_rotation": until,
            "confirmation_poc_phase": view.confirmation,
            "epoch_index": view.epoch,
            "epoch_switch_block_height": view.switch_height,
            "phase": view.shown_phase(),
        },
        "latest": if latest.is_empty() { Value::Null } else { latest.into() },
        "settings": settings.escrow_rotation,
    })
}

fn report_shape(model: &str, stage: Stage, report: &Report) -> Value {
    json!({
        "model_id": model,
        "stage": stage.name(),
        "epoch": report.epoch,
        "role": stage.role(),
        "target_count": report.target,
        "existing_count": report.existing,
        "created_count": report.created,
        "promoted_count": 0,
        "settled_count": report.settled,
        "settle_failed_count": report.settle_failed,
        "create_error": report.error,
        "completed": report.completed,
        "updated_at": time_of(report.updated_ns),
    })
}

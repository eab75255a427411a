//! The loop over stale leases: work whose owner has died or given up is taken over, one row at a time (contract
//! hosts 5.2).

use std::sync::Arc;
use std::time::Duration;

use super::Host;
use super::leases::Lease;
use super::validate;
use crate::logline::{Level, LogLine};

/// Looks for stale leases until the host stops.
pub async fn follow(host: Arc<Host>) {
    let pause = Duration::from_millis(host.config.lease_retry_ms);
    let mut prepared = false;
    let mut epoch = 0;
    loop {
        let Some(leases) = &host.leases else { return };
        if !prepared {
            prepared = match leases.prepare().await {
                Ok(()) => true,
                Err(error) => {
                    LogLine::new(Level::Warn, "devshard storage: leases not ready")
                        .field("error", error)
                        .emit();
                    false
                }
            };
        }
        if prepared {
            let now = host.chain.epoch();
            if now != epoch && leases.prune(now).await.is_ok() {
                epoch = now;
            }
            match leases.take_over().await {
                Ok(Some(lease)) => again(&host, lease).await,
                Ok(None) => {}
                Err(error) => {
                    LogLine::new(Level::Warn, "devshardd: retry: leases not read")
                        .field("error", error)
                        .emit();
                }
            }
        }
        tokio::time::sleep(pause).await;
    }
}

async fn again(host: &Arc<Host>, lease: Lease) {
    let Some(leases) = &host.leases else { return };
    let line = |message: &str| {
        LogLine::new(Level::Info, message)
            .field("escrow", &lease.work.escrow_id)
            .field("inference", lease.work.inference_id)
    };
    line("devshardd: validation lease taken over").emit();
    host.defect.took_over(&lease.work.escrow_id, lease.work.inference_id);
    let session = host.session(&lease.work.escrow_id);
    if let Some(session) = &session {
        // The opinion may have been given by the replica that held the lease.
        let _ = session.refresh();
    }
    let candidate = session.as_ref().and_then(|session| session.open_candidate(lease.work.inference_id));
    let (Some(session), Some(candidate)) = (session, candidate) else {
        line("devshardd: retry: not in finished state").emit();
        if let Err(error) = leases.skip(&lease).await {
            line("devshardd: retry: lease not skipped").field("error", error).emit();
        }
        return;
    };
    validate::spawn_held(host, session, candidate, lease);
}

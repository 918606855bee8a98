//! The last rejection of a queue, from which the waits of its requests are known.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    decision::{Decision, DecisionKind},
    wait_request::WaitRequest,
};
use crate::{store::DecisionSource, strategy::RetryAfter};

/// Lower bound of the wait that an aged rejection reports.
const MIN_RETRY_DELAY: Duration = Duration::from_millis(1);

/// The last rejection of a queue, from which the waits of its requests are known.
pub(crate) struct LastRejection {
    decision: Decision,
    pub(crate) request: Arc<WaitRequest>,
    decided_at: Instant,
    /// When a retry can succeed.
    pub(crate) retry_at: Instant,
    /// Whether the time of a retry is unknown, since it waits for a permit or for a store that failed.
    pub(crate) needs_polling: bool,
    /// Whether the store failed.
    pub(crate) failed: bool,
}

impl LastRejection {
    pub(crate) fn new(decision: Decision, request: Arc<WaitRequest>) -> Arc<Self> {
        let decided_at = Instant::now();
        let wait = request.retry_delay(&decision);
        let failed = matches!(decision.kind, DecisionKind::StoreFailed(_));
        let retry_at = decided_at.checked_add(wait).unwrap_or(decided_at);
        // Where an override ends before, the request is decided anew.
        let override_end = request
            .override_end()
            .map(|end| end.max(decided_at + MIN_RETRY_DELAY));
        Arc::new(Self {
            decided_at,
            retry_at: override_end.map_or(retry_at, |end| end.min(retry_at)),
            needs_polling: failed || request.waits_for_permit(&decision),
            failed,
            decision,
            request,
        })
    }

    /// The rejection of the requests that were left over when a call admitted only some.
    pub(crate) fn after(admitted: &Decision, request: Arc<WaitRequest>) -> Arc<Self> {
        let entry = admitted.entries.iter();
        let entry = entry.map(|entry| entry.with_receipts(entry.receipts.split(0)));
        let mut decision = admitted.with_entries(entry);
        decision.kind = DecisionKind::Rejected;
        decision.admitted = 0;
        drop(decision.permit.take());
        for entry in &mut decision.entries {
            entry.refresh_shadow(&decision.limiter);
        }
        Self::new(decision, request)
    }

    /// Whether no retry before the deadline can succeed.
    pub(crate) fn is_past_deadline(&self, deadline: Option<Instant>, now: Instant) -> bool {
        deadline.is_some_and(|deadline| deadline <= now || deadline < self.retry_at)
    }

    /// The rejection as of `now`.
    pub(crate) fn at(&self, now: Instant) -> Decision {
        let mut decision = self.decision.clone();
        let since = now.saturating_duration_since(self.decided_at);
        if since > Duration::ZERO && !self.failed {
            decision.source = DecisionSource::RejectionCache;
            for entry in &mut decision.entries {
                entry.update_status(&decision.limiter, |status| {
                    if let RetryAfter::In(wait) = status.retry_after {
                        status.retry_after =
                            RetryAfter::In(wait.saturating_sub(since).max(MIN_RETRY_DELAY));
                    }
                    status.reset_after = status.reset_after.saturating_sub(since);
                });
                entry.receipts.age_by(since);
            }
        }
        decision
    }
}

//! A waiter's grant: before it is received, and the permit that it may hold afterwards.

use std::{fmt, sync::Arc};

use tokio::runtime::Handle;

use crate::{
    decision::{Decision, PermitHandle},
    limiter::core::{LimiterCore, QueueKey},
};

/// An admission that the leader charged for a waiter. Refunded if the waiter has left.
pub(crate) struct UnclaimedGrant {
    limiter: Arc<LimiterCore>,
    queue_key: QueueKey,
    decision: Option<Decision>,
    /// The runtime on which it was charged.
    runtime: Option<Handle>,
}

/// A permit of an in-flight limit that was waited for. Its release wakes the queue's leader.
pub(crate) struct NotifyingPermit {
    limiter: Arc<LimiterCore>,
    queue_key: QueueKey,
    permit: Option<Arc<dyn PermitHandle>>,
}

impl UnclaimedGrant {
    pub(crate) fn new(limiter: Arc<LimiterCore>, queue_key: QueueKey, decision: Decision) -> Self {
        Self {
            limiter,
            queue_key,
            decision: Some(decision),
            runtime: Handle::try_current().ok(),
        }
    }

    pub(crate) fn into_decision(mut self) -> Option<Decision> {
        self.decision.take()
    }
}

impl Drop for UnclaimedGrant {
    fn drop(&mut self) {
        if let Some(mut decision) = self.decision.take() {
            // Not dropped by the application: nothing to log.
            let _permit = decision.permit.take();
            // On a thread without a runtime nothing could be sent.
            let outside = Handle::try_current().is_err_and(|error| error.is_missing_context());
            let runtime = self.runtime.as_ref().filter(|_| outside);
            let _entered = runtime.map(Handle::enter);
            self.limiter.refund_entries(&mut decision.entries);
            self.limiter.wait_queues.notify_leader(&self.queue_key);
        }
    }
}

impl NotifyingPermit {
    pub(crate) fn new(
        limiter: Arc<LimiterCore>,
        queue_key: QueueKey,
        permit: Arc<dyn PermitHandle>,
    ) -> Self {
        Self {
            limiter,
            queue_key,
            permit: Some(permit),
        }
    }
}

impl PermitHandle for NotifyingPermit {
    fn log_unclaimed(&self) {
        if let Some(permit) = &self.permit {
            permit.log_unclaimed();
        }
    }
}

impl Drop for NotifyingPermit {
    fn drop(&mut self) {
        // Released before the leader looks for it.
        self.permit = None;
        self.limiter.wait_queues.notify_leader(&self.queue_key);
    }
}

impl fmt::Debug for NotifyingPermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.permit, f)
    }
}

//! What somebody in a queue was granted, until he has it and after he had it.

use std::{fmt, sync::Arc};

use tokio::runtime::Handle;

use super::queue::Id;
use crate::{
    decision::{Decision, Permit},
    limiter::Inner,
};

/// A charge that the head of a queue made for somebody behind it. If he has gone, it is given back.
pub(crate) struct Grant {
    limiter: Arc<Inner>,
    id: Id,
    decision: Option<Decision>,
    /// Where it was made.
    runtime: Option<Handle>,
}

/// A place of an in-flight limit that was waited for. When it is given back, the queue is told.
pub(crate) struct Flight {
    limiter: Arc<Inner>,
    id: Id,
    permit: Option<Arc<dyn Permit>>,
}

impl Grant {
    pub(crate) fn new(limiter: Arc<Inner>, id: Id, decision: Decision) -> Self {
        Self {
            limiter,
            id,
            decision: Some(decision),
            runtime: Handle::try_current().ok(),
        }
    }

    pub(crate) fn accept(mut self) -> Option<Decision> {
        self.decision.take()
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        if let Some(mut decision) = self.decision.take() {
            // Released without a call of the application's: there is nothing to log.
            let _permit = decision.permit.take();
            // A thread of the application's own, where nothing could be sent.
            let outside = Handle::try_current().is_err_and(|error| error.is_missing_context());
            let runtime = self.runtime.as_ref().filter(|_| outside);
            let _entered = runtime.map(Handle::enter);
            self.limiter.take_back(&mut decision.counted);
            self.limiter.queues.ring(&self.id);
        }
    }
}

impl Flight {
    pub(crate) fn new(limiter: Arc<Inner>, id: Id, permit: Arc<dyn Permit>) -> Self {
        Self {
            limiter,
            id,
            permit: Some(permit),
        }
    }
}

impl Permit for Flight {
    fn log_unclaimed(&self) {
        if let Some(permit) = &self.permit {
            permit.log_unclaimed();
        }
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        // Before the queue looks for it.
        self.permit = None;
        self.limiter.queues.ring(&self.id);
    }
}

impl fmt::Debug for Flight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.permit, f)
    }
}

//! The permits of in-flight limits that one request holds.

use std::{
    fmt,
    sync::{Arc, OnceLock, atomic::Ordering},
};

use smallvec::SmallVec;

use super::{core::LimiterCore, entry::PolicyEntry, wait_queue::QueueKey};
use crate::{
    key::Key,
    observe::Event,
    store::{CounterOp, KeepAlive},
};

/// The entries of one request under in-flight limits.
pub(crate) type PermitEntries = SmallVec<[PolicyEntry; 1]>;

/// The permits that one request holds. Dropping it releases them.
pub(crate) struct HeldPermits {
    limiter: Arc<LimiterCore>,
    entries: PermitEntries,
    _keep_alive: Option<KeepAlive>,
    /// The queue of [`Limiter::wait`](crate::Limiter::wait) in which the request waited for them, which their release notifies.
    queue_key: OnceLock<QueueKey>,
}

impl LimiterCore {
    /// Reports that permits are held or released.
    pub(crate) fn report_permits(
        &self,
        entries: &[PolicyEntry],
        event: impl for<'a> Fn(&'a str, &'a Key, u64) -> Event<'a>,
    ) {
        let Some(observers) = &self.observers else {
            return;
        };
        for entry in entries {
            let policy = self.bound(entry.policy).policy.name();
            observers.on_event(&event(policy, &entry.key, entry.receipts.first().remaining));
        }
    }
}

impl HeldPermits {
    /// Holds permits that were charged; `None` if there are none.
    pub(super) fn hold(limiter: &Arc<LimiterCore>, entries: PermitEntries) -> Option<Arc<Self>> {
        // One store charged all permits of a request.
        let store = limiter.store_for(entries.first()?);
        let ops = entries.iter().map(|entry| limiter.counter_op(entry));
        let keep_alive = store.keep_alive(&ops.collect::<SmallVec<[CounterOp<'_>; 1]>>());
        for entry in &entries {
            let held = &limiter.bound(entry.policy).permits_held;
            held.fetch_add(entry.receipts.first().remaining, Ordering::Relaxed);
        }
        limiter.report_permits(&entries, |policy, key, permits| Event::PermitsHeld {
            policy,
            key,
            permits,
        });
        Some(Arc::new(Self {
            limiter: limiter.clone(),
            entries,
            _keep_alive: keep_alive,
            queue_key: OnceLock::new(),
        }))
    }

    /// Logs that a decision was dropped before its permits were taken over.
    fn log_unclaimed(&self) {
        for entry in &self.entries {
            let bound = self.limiter.bound(entry.policy);
            if !bound.unclaimed_logged.swap(true, Ordering::Relaxed) {
                tracing::error!(
                    policy = bound.policy.name(),
                    "a decision was dropped with the permit of an in-flight limit, which is released: use Limiter::admit, and \
                     keep the Admission while the work runs"
                );
            }
        }
    }
}

impl Drop for HeldPermits {
    fn drop(&mut self) {
        for entry in &self.entries {
            let held = &self.limiter.bound(entry.policy).permits_held;
            held.fetch_sub(entry.receipts.first().remaining, Ordering::Relaxed);
        }
        let limiter = &self.limiter;
        limiter.report_permits(&self.entries, |policy, key, permits| {
            Event::PermitsReleased {
                policy,
                key,
                permits,
            }
        });
        self.limiter.refund_unreported(&mut self.entries);
        // Released before a request that waits looks for them.
        if let Some(queue_key) = self.queue_key.get() {
            self.limiter.wait_queues.notify(queue_key);
        }
    }
}

impl fmt::Debug for HeldPermits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeldPermits").finish_non_exhaustive()
    }
}

/// The permits of a decision, until an admission takes them over. Dropping them before that is logged as a mistake.
#[derive(Clone, Default)]
pub(crate) struct DecisionPermit(Option<Arc<HeldPermits>>);

impl DecisionPermit {
    pub(crate) fn take(&mut self) -> Option<Arc<HeldPermits>> {
        self.0.take()
    }

    /// Notifies this queue when the permits are released.
    pub(super) fn wake_on_release(&self, queue_key: &QueueKey) {
        if let Some(permits) = &self.0 {
            permits.queue_key.get_or_init(|| queue_key.clone());
        }
    }
}

impl From<Option<Arc<HeldPermits>>> for DecisionPermit {
    #[inline]
    fn from(permits: Option<Arc<HeldPermits>>) -> Self {
        Self(permits)
    }
}

impl Drop for DecisionPermit {
    #[inline]
    fn drop(&mut self) {
        // A clone, or the admission of one, may hold it still.
        if let Some(permits) = &self.0
            && Arc::strong_count(permits) == 1
        {
            permits.log_unclaimed();
        }
    }
}

//! Permits: charges of in-flight limits, which the store keeps alive until they are dropped.

use std::{
    fmt,
    sync::{Arc, atomic::Ordering},
};

use smallvec::SmallVec;

use super::{decision::Decision, entry::Entry, policy_set::PolicySet};
use crate::{
    key::Key,
    observe::Event,
    store::{CounterOp, KeepAlive, Op},
};

/// The permits of a request. They are released when it is dropped.
pub(crate) struct Permits {
    set: Arc<PolicySet>,
    entries: SmallVec<[Entry; 1]>,
    /// Renews them; `None` if the store does not.
    _keep_alive: Option<KeepAlive>,
}

impl Permits {
    /// The permits that an admitted request holds, if it does.
    #[inline]
    pub(crate) fn of(decision: &Decision) -> Option<Arc<Self>> {
        if decision.set.has_permits {
            Self::hold(decision)
        } else {
            None
        }
    }

    #[cold]
    fn hold(decision: &Decision) -> Option<Arc<Self>> {
        let set = &decision.set;
        let is_held =
            |entry: &&Entry| set.bound(entry.policy).is_permit() && entry.receipt.remaining > 0;
        let held = decision.entries.iter().filter(is_held).cloned();
        let entries: SmallVec<[Entry; 1]> = held.collect();
        // One store charged all permits of a request.
        let store = entries.first()?.store(set);
        let ops = entries.iter().map(|entry| entry.counter_op(set));
        let keep_alive = store.keep_alive(&ops.collect::<SmallVec<[CounterOp<'_>; 1]>>());
        let permits = Self {
            set: set.clone(),
            entries,
            _keep_alive: keep_alive,
        };
        for entry in &permits.entries {
            let held = &set.bound(entry.policy).state.permits_held;
            held.fetch_add(entry.receipt.remaining, Ordering::Relaxed);
        }
        permits.report(|policy, key, permits| Event::PermitsHeld {
            policy,
            key,
            permits,
        });
        Some(Arc::new(permits))
    }

    fn report(&self, event: impl for<'a> Fn(&'a str, &'a Key, u64) -> Event<'a>) {
        for entry in &self.entries {
            let policy = self.set.bound(entry.policy).policy.name();
            let permits = entry.receipt.remaining;
            self.set
                .listener
                .on_event(&event(policy, &entry.key, permits));
        }
    }
}

impl Drop for Permits {
    fn drop(&mut self) {
        let set = &*self.set;
        for entry in &self.entries {
            let held = &set.bound(entry.policy).state.permits_held;
            held.fetch_sub(entry.receipt.remaining, Ordering::Relaxed);
        }
        self.report(|policy, key, permits| Event::PermitsReleased {
            policy,
            key,
            permits,
        });
        for entry in &self.entries {
            let release = entry.counter_op(set).with_receipt(entry.receipt);
            entry
                .store(set)
                .execute_detached(Op::Adjust, &[release], None);
            set.listener
                .released(set.bound(entry.policy).policy.name(), &entry.key);
        }
    }
}

impl fmt::Debug for Permits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permits").finish_non_exhaustive()
    }
}

//! What a limiter is made of, below everything that it does.

use crate::key::Key;

pub(in crate::limiter) mod comparison;
pub(in crate::limiter) mod held;
pub(in crate::limiter) mod missing;
pub(in crate::limiter) mod share;
pub(in crate::limiter) mod tiers;
pub(in crate::limiter) mod write_back;

/// The queues of a limiter's waiting requests, as everything else of it sees them.
pub(in crate::limiter) trait WakeLeaders: Send + Sync {
    /// Wakes the leader of the queue for these keys, one or none for each policy: units or permits were refunded.
    fn notify_leader(&self, queue_key: &[Option<Key>]);

    /// Clears the last rejections of queues for these keys, each under a policy, and wakes their leaders: the keys were reset.
    fn clear_rejections(&self, keys: &[(u32, Key)]);
}

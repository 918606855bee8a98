//! What a limiter is made of, below everything that it does.

use crate::key::Key;

pub(crate) mod comparison;
pub(crate) mod held;
pub(crate) mod missing;
pub(crate) mod share;
pub(crate) mod tiers;
pub(crate) mod write_back;

/// The queues of a limiter's waiting requests, as everything else of it sees them.
pub(crate) trait WakeLeaders: Send + Sync {
    /// Wakes the leader of the queue for these keys, one or none for each policy: units or permits were refunded.
    fn notify_leader(&self, queue_key: &[Option<Key>]);

    /// Clears the last rejections of queues for these keys, each under a policy, and wakes their leaders: the keys were reset.
    fn clear_rejections(&self, keys: &[(u32, Key)]);
}

//! Waiting until a request is admitted.

use std::time::Duration;

use crate::limiter::{Limiter, keys::Keys, wait::Wait};

impl Limiter {
    /// Waits until a request is admitted, for at most `timeout` from the first poll, and charges it: for outgoing calls, jobs,
    /// and other work that is better late than rejected.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Key, Limiter, Policy, Quota, RetryAfter};
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
    /// let limiter = Limiter::builder()
    ///     .policy(Policy::new("mail", Quota::requests(1).per(Duration::from_millis(20))))
    ///     .build()?;
    /// let patience = Duration::from_secs(5);
    /// for _ in 0..3 {
    ///     let _admission = limiter.wait(Key::new("alice"), patience).await?;
    /// }
    ///
    /// // A quota of one never admits two units together: that is rejected at once.
    /// let rejected = limiter.wait(Key::new("alice"), patience).cost(2).await.unwrap_err();
    /// assert_eq!(rejected.retry_after(), RetryAfter::Never);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # First come, first served
    ///
    /// Requests for the same keys through clones of one limiter wait in a queue. The first calls the store, sleeps until the
    /// reported retry time, and calls it again, since another process may have been first. The requests behind it don't call
    /// the store, and none overtakes another: an expensive request blocks those behind it. A [`check`](Limiter::check) doesn't
    /// queue, and other processes have queues of their own: the quota holds for all of them together, but no order.
    ///
    /// # Cancellation
    ///
    /// Dropping the future leaves the queue, and a charge that was made for it is refunded. A future that is kept without being
    /// polled blocks those behind it, as with tokio's locks.
    ///
    /// # When the store fails
    ///
    /// The store is called again, after 5 ms at first and every 250 ms at most, until it responds or the timeout has passed;
    /// then the request is rejected with the store's error. If [`on_store_error`](crate::LimiterBuilder::on_store_error) is
    /// set, the request is admitted or rejected at once, or waits for its turn in process.
    ///
    /// # In-flight limits
    ///
    /// The time at which a permit will be released is unknown. A permit that was acquired by waiting wakes the queue when it is
    /// released in this process; others are found by calling the store, after 5 ms at first and every 250 ms at most. So
    /// processes don't share an exhausted in-flight limit evenly: one with a queue takes each permit that it releases again at
    /// once, and another may get none until that queue is empty. Where that matters, give each process a limit of its own, such
    /// as 2 and 1 of 3.
    ///
    /// # Errors
    ///
    /// [`Rejected`](crate::Rejected), at once, if
    /// - it is the first in the queue, and the store reports a wait that exceeds the timeout; or the timeout passes while
    ///   others are in front of it, whose waits [`retry_after`](crate::Rejected::retry_after) does not include: a service that
    ///   passes it on to its own clients adds some, such as the timeout;
    /// - the [queue](Wait::queue) is full. In both cases the store has been called once before, so that a rejection always has
    ///   a status;
    /// - it costs more than a quota ever allows;
    /// - it names a policy that the limiter doesn't have, or has no request for a policy that takes settings from requests
    ///   ([`Check::parts`](crate::Check::parts));
    /// - the store failed, and the limiter [rejects](crate::OnStoreError::Reject) then, or the store is
    ///   [misconfigured](crate::StoreError::is_misconfiguration);
    /// - it would have to wait outside of a tokio runtime with timers: [`StoreError::NoRuntime`](crate::StoreError::NoRuntime).
    ///
    /// Under [`charge_rejected`](crate::Policy::charge_rejected) each rejected store call for the first in the queue is
    /// charged.
    ///
    /// # Access lists, bans and shadow policies
    ///
    /// A request on a [deny list](crate::LimiterBuilder::deny) is rejected at once, and one on an [allow
    /// list](crate::LimiterBuilder::allow) is admitted at once. Waiting is no rejection: a [ban](crate::Ban) counts a request
    /// once, and only if this returns [`Rejected`](crate::Rejected); a banned key waits as for an exhausted quota. [Shadow
    /// policies](crate::Policy::shadow) are evaluated once too, when the wait is over; no request waits for them.
    ///
    /// After a [`reset`](Limiter::reset) or [`unblock`](Limiter::unblock) by this limiter the queue calls the store at once;
    /// those by other processes take effect at its next call.
    pub fn wait(&self, keys: impl Into<Keys>, timeout: Duration) -> Wait {
        Wait::new(self.clone(), keys.into(), timeout)
    }
}

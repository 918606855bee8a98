//! When a policy charges.

use super::Policy;
use crate::{charge::When, outcome::Outcome};

/// When to charge.
///
/// | | on arrival | at the end | concurrent requests |
/// |---|---|---|---|
/// | default | charged | | never exceed the limit |
/// | [`refund_unless`](Policy::refund_unless) | charged | refunded, unless the outcome is to be charged | never exceed the limit |
/// | [`charge_after`](Policy::charge_after) | checked | charged, if the outcome is to be charged | may exceed the limit by their number, at most by one more capacity |
///
/// ```
/// use tollgate::{Policy, Quota, outcome};
///
/// // Five successes a minute, and never more than that in flight.
/// let ocr = Policy::new("ocr", Quota::requests(5).per_minute()).refund_unless(outcome::success);
/// // Only failures count.
/// let login = Policy::new("login", Quota::requests(20).per_minute()).charge_after(outcome::failure);
/// ```
///
/// A layer knows the response, and charges or refunds by it. A call by hand ([`Limiter::admit`](crate::Limiter::admit),
/// [`check`](crate::Limiter::check), [`wait`](crate::Limiter::wait)) has no response: `charge_after` then checks and charges nothing,
/// and `refund_unless` charges and refunds nothing. The caller does that by the admission:
///
/// ```
/// use tollgate::{Limiter, Policy, Quota, outcome};
///
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let limiter = Limiter::builder()
///     .policy(Policy::new("login", Quota::requests(5).per_minute()).charge_after(outcome::failure))
///     .policy(Policy::new("ocr", Quota::requests(5).per_minute()).refund_unless(outcome::success))
///     .build()?;
/// let admission = limiter.admit("alice").await?;
/// assert_eq!((admission.remaining("login"), admission.remaining("ocr")), (Some(5), Some(4)));
/// // The password was wrong: charge the failure, and refund what has not succeeded.
/// admission.policy("login")?.charge(1).await?;
/// admission.policy("ocr")?.refund(1).await?;
/// assert_eq!((admission.remaining("login"), admission.remaining("ocr")), (Some(4), Some(5)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
impl Policy {
    /// Checks on arrival that a request fits, and charges it when it is over, if `charges` returns true for its outcome.
    /// Requests in flight together may exceed the limit; where that costs money, use
    /// [`refund_unless`](Policy::refund_unless). The last of the two calls counts.
    ///
    /// ```
    /// use tollgate::{Policy, Quota, outcome};
    ///
    /// // Only failed logins count.
    /// let login = Policy::new("login", Quota::requests(20).per_minute()).charge_after(outcome::failure);
    /// ```
    ///
    /// A request that is [dropped](crate::outcome::RequestEnd::Dropped) before it has a response is charged, or hanging up
    /// would evade a limit on failures: see [`charge_dropped`](Policy::charge_dropped).
    ///
    /// A call by hand, such as [`Limiter::check`](crate::Limiter::check), has no response and charges nothing: charge the failure
    /// by [`PolicyAdmission::charge`](crate::PolicyAdmission::charge).
    #[must_use]
    pub fn charge_after<F>(self, charges: F) -> Self
    where
        F: Fn(&Outcome<'_>) -> bool + Send + Sync + 'static,
    {
        self.charge_by(When::Response, charges)
    }

    /// Charges on arrival, and refunds the charge when the request is over, unless `charges` returns true for its outcome.
    /// The last call of this and [`charge_after`](Policy::charge_after) counts.
    ///
    /// ```
    /// use tollgate::{Policy, Quota, outcome};
    ///
    /// // Five successes a minute, and never more than that in flight.
    /// let ocr = Policy::new("ocr", Quota::requests(5).per_minute()).refund_unless(outcome::success);
    /// ```
    ///
    /// Requests under way hold units that may be refunded in a moment. Where they hold all, others are rejected, with
    /// the `Retry-After` of a charge that stays. Where failures alone are to count, [`charge_after`](Policy::charge_after) rejects
    /// no request because of others that will succeed.
    ///
    /// A refund returns only what time has not already given back, and only to the window that was charged. Under
    /// [`Gcra`](crate::Gcra) and [`TokenBucket`](crate::TokenBucket) the time that the request took stays used where other
    /// requests were charged beside it; for slow work, [`FixedWindow`](crate::FixedWindow) refunds the whole. If the process
    /// dies meanwhile the charge stays, no longer than its window.
    ///
    /// A call by hand, such as [`Limiter::check`](crate::Limiter::check), has no response and refunds nothing: refund by
    /// [`PolicyAdmission::refund`](crate::PolicyAdmission::refund).
    #[must_use]
    pub fn refund_unless<F>(self, charges: F) -> Self
    where
        F: Fn(&Outcome<'_>) -> bool + Send + Sync + 'static,
    {
        self.charge_by(When::Reserve, charges)
    }

    /// Whether [`charge_after`](Policy::charge_after) and [`refund_unless`](Policy::refund_unless) charge a request that was
    /// dropped before it had a response: true unless set.
    #[must_use]
    pub fn charge_dropped(mut self, charges: bool) -> Self {
        self.charge.dropped = charges;
        self
    }

    /// Whether a rejected request is charged by the policies that reject it, down to a debt of at most one capacity, so that
    /// a client that keeps retrying waits for longer: false unless set.
    ///
    /// Strategies that store each unit ([`SlidingLog`](crate::SlidingLog), [`ListWindow`](crate::ListWindow),
    /// [`Concurrency`](crate::Concurrency)) go into no debt.
    #[must_use]
    pub fn charge_rejected(mut self, charges: bool) -> Self {
        self.charge.rejected = charges;
        self
    }

    fn charge_by<F>(mut self, when: When, charges: F) -> Self
    where
        F: Fn(&Outcome<'_>) -> bool + Send + Sync + 'static,
    {
        self.charge.set(when, charges);
        self
    }
}

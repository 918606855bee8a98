//! When a policy charges requests.

use std::sync::Arc;

use super::Policy;
use crate::{outcome::Outcome, shared_fn::SharedFn, store::CounterMode, strategy::Lease};

/// Returns whether an outcome is charged.
pub type OutcomeFn = dyn Fn(&Outcome<'_>) -> bool + Send + Sync;

/// When requests are charged, and by which outcomes.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum Charge {
    /// On arrival, whatever their outcome.
    #[default]
    Arrival,
    /// When they have ended with this outcome; on arrival they are only checked.
    After(SharedFn<OutcomeFn>),
    /// On arrival; refunded when they have ended with another outcome.
    RefundUnless(SharedFn<OutcomeFn>),
}

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
/// A layer knows the response, and charges or refunds by it. A call by hand has no response: `charge_after` then checks and charges
/// nothing, and `refund_unless` charges and refunds nothing. The caller of [`admit`](crate::Limiter::admit) or
/// [`wait`](crate::Limiter::wait) does that by the admission:
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
    /// Charges a request when it has ended, if `charges` returns true for its outcome; on arrival it is only checked. So
    /// concurrent requests may exceed the limit together; where that costs money, use [`refund_unless`](Policy::refund_unless).
    /// The last call of the two methods counts. By default a request is charged on arrival, whatever its outcome.
    ///
    /// ```
    /// use std::convert::Infallible;
    /// use axum::body::Body;
    /// use http::{Request, Response};
    /// use tollgate::{Policy, Quota, RateLimitLayer, extract, outcome};
    /// use tower::{ServiceBuilder, ServiceExt};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// // Only failed logins count.
    /// let login = Policy::new("login", Quota::requests(1).per_minute()).charge_after(outcome::failure);
    /// let layer = RateLimitLayer::builder().policy(login.key(extract::global())).build()?;
    /// let service = ServiceBuilder::new().layer(layer).service_fn(async |request: Request<Body>| {
    ///     let status = if request.uri().path() == "/right-password" { 200 } else { 401 };
    ///     let response = Response::builder().status(status).body(Body::empty());
    ///     Ok::<_, Infallible>(response.unwrap())
    /// });
    /// let mut statuses = Vec::new();
    /// for path in ["/right-password", "/right-password", "/wrong-password", "/right-password"] {
    ///     let response = service.clone().oneshot(Request::post(path).body(Body::empty())?).await?;
    ///     statuses.push(response.status().as_u16());
    /// }
    /// assert_eq!(statuses, [200, 200, 401, 429]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A request that is [dropped](crate::outcome::RequestEnd::Dropped) before it has a response is charged, since a client
    /// could otherwise evade a limit on failures by disconnecting: see [`charge_dropped`](Policy::charge_dropped).
    ///
    /// A call by hand, such as [`Limiter::admit`](crate::Limiter::admit), has no response and charges nothing: charge a failure
    /// by [`PolicyAdmission::charge`](crate::limiter::PolicyAdmission::charge).
    #[must_use]
    pub fn charge_after<F>(self, charges: F) -> Self
    where
        F: Fn(&Outcome<'_>) -> bool + Send + Sync + 'static,
    {
        let charges: Arc<OutcomeFn> = Arc::new(charges);
        self.charge_by(Charge::After(charges.into()))
    }

    /// Charges a request on arrival, and refunds it when it has ended, unless `charges` returns true for its outcome. The last
    /// call of this method and [`charge_after`](Policy::charge_after) counts.
    ///
    /// ```
    /// use std::convert::Infallible;
    /// use axum::body::Body;
    /// use http::{Request, Response};
    /// use tollgate::{Policy, Quota, RateLimitLayer, extract, outcome};
    /// use tower::{ServiceBuilder, ServiceExt};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// // One success a minute, and never more than that in flight.
    /// let ocr = Policy::new("ocr", Quota::requests(1).per_minute()).refund_unless(outcome::success);
    /// let layer = RateLimitLayer::builder().policy(ocr.key(extract::global())).build()?;
    /// let service = ServiceBuilder::new().layer(layer).service_fn(async |request: Request<Body>| {
    ///     let status = if request.uri().path() == "/scan.png" { 200 } else { 404 };
    ///     let response = Response::builder().status(status).body(Body::empty());
    ///     Ok::<_, Infallible>(response.unwrap())
    /// });
    /// let mut statuses = Vec::new();
    /// for path in ["/missing.png", "/scan.png", "/scan.png"] {
    ///     let response = service.clone().oneshot(Request::get(path).body(Body::empty())?).await?;
    ///     statuses.push(response.status().as_u16());
    /// }
    /// assert_eq!(statuses, [404, 200, 429]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Requests in flight hold units that may be refunded soon. While they hold all units, other requests are rejected, with a
    /// `Retry-After` that assumes no refund. To count failures only, use [`charge_after`](Policy::charge_after), which rejects
    /// no request because of others that will succeed.
    ///
    /// A refund returns only what time has not already given back, and only to the window that was charged. Under
    /// [`Gcra`](crate::Gcra) and [`TokenBucket`](crate::TokenBucket) the units that would have refilled while the request ran
    /// stay charged if other requests were charged at the same time; for slow work, [`FixedWindow`](crate::FixedWindow) refunds
    /// the whole charge. If the process dies during the request, the charge stays until its window ends or it has refilled.
    ///
    /// What the handler has charged or [settled](crate::limiter::PolicyAdmission::settle) is refunded too: where a failed request costs
    /// what it has used, settle under a policy that charges on arrival.
    ///
    /// A call by hand, such as [`Limiter::admit`](crate::Limiter::admit), has no response and refunds nothing: refund it by
    /// [`PolicyAdmission::refund`](crate::limiter::PolicyAdmission::refund).
    #[must_use]
    pub fn refund_unless<F>(self, charges: F) -> Self
    where
        F: Fn(&Outcome<'_>) -> bool + Send + Sync + 'static,
    {
        let charges: Arc<OutcomeFn> = Arc::new(charges);
        self.charge_by(Charge::RefundUnless(charges.into()))
    }

    /// Sets whether [`charge_after`](Policy::charge_after) and [`refund_unless`](Policy::refund_unless) charge a request that
    /// was [dropped](crate::outcome::RequestEnd::Dropped) before it had a response. Default: true.
    #[must_use]
    pub fn charge_dropped(mut self, charges: bool) -> Self {
        self.charge_dropped = charges;
        self
    }

    /// Sets whether a policy charges the requests that it rejects, down to a debt of at most one capacity, so that a client
    /// that keeps retrying has to wait longer. Default: false.
    ///
    /// Strategies that store each charge ([`SlidingLog`](crate::SlidingLog), [`ListWindow`](crate::ListWindow)) don't go into debt.
    /// Together with [`charge_after`](Policy::charge_after), or for an in-flight limit, it is a
    /// [`ConfigError`](crate::ConfigError).
    #[must_use]
    pub fn charge_rejected(mut self, charges: bool) -> Self {
        self.charge_rejected = charges;
        self
    }

    /// Sets when requests are charged, by a shared function.
    #[must_use]
    pub fn charge_by(mut self, charge: Charge) -> Self {
        self.charge = charge;
        self
    }

    pub(crate) fn charge(&self) -> &Charge {
        &self.charge
    }

    /// Whether requests are charged on arrival, whatever their outcome.
    pub(crate) fn charges_on_arrival(&self) -> bool {
        matches!(self.charge(), Charge::Arrival)
    }

    /// Whether requests are charged when they have ended.
    pub(crate) fn charges_after(&self) -> bool {
        matches!(self.charge(), Charge::After(_))
    }

    /// Whether rejected requests are [charged too](Policy::charge_rejected).
    pub fn charges_rejected(&self) -> bool {
        self.charge_rejected
    }

    /// Whether a request with this outcome is charged.
    pub(crate) fn charges(&self, outcome: &Outcome<'_>) -> bool {
        match self.charge() {
            Charge::Arrival => true,
            _ if outcome.is_unknown() => self.charge_dropped,
            Charge::After(charges) | Charge::RefundUnless(charges) => charges(outcome),
        }
    }

    /// What a store does with a request under this policy, if it is enforced.
    pub(crate) fn counter_mode(&self) -> CounterMode {
        if self.charges_after() {
            CounterMode::Check
        } else if self.charges_rejected() {
            CounterMode::ChargeRejectedToo
        } else {
            CounterMode::Charge
        }
    }
}

impl Policy {
    /// Lets each process lease units of hot keys: it charges them in the store before they are needed, in the same batches as
    /// everything else, and admits requests by them in process. Default: no leases.
    ///
    /// A request that a lease admits takes well under a microsecond, and no call of Redis: one call charges the units of
    /// many requests, 250 at 10,000 per second with a TTL of 50 ms. The quota still holds exactly. A unit is charged before a request is admitted by it, and spent
    /// within the lease's [TTL](Lease::ttl), or not at all; the documentation of each strategy says what that means for the quota.
    /// Unlike limiters that count locally and synchronize later, leases cannot exceed the quota.
    ///
    /// - **Which requests**: those of a key that has at least 100 requests per second in this process, or 4 per TTL if that is more
    ///   (400 per second with a TTL of 10 ms), if each of their policies has leases or is a [ban](crate::Ban). On a
    ///   [cluster](crate::redis::RedisStoreBuilder::cluster) the request's keys must be in one slot. All others are counted one by one, and so
    ///   is a request that costs more than each of the held leases has left.
    /// - **Size**: the units that the key's requests in this process use in half a TTL, under each policy. At most
    ///   [`Lease::max_units`], and at most a quarter of what remains. So the last units of a quota are charged one by one, by the processes that need them. Together, a key's leases hold
    ///   at most what its requests use in 5/8 of a TTL, and no more than four times
    ///   [`Lease::max_units`].
    /// - **What is left** when traffic stops is refunded within the TTL. If a process is killed, or the reply with a lease is lost, its
    ///   units lapse: they can be used again when they have refilled.
    /// - **[`remaining`](crate::limiter::PolicyDecision::remaining)** is the store's number at its last response plus what this process holds.
    ///   Units that others hold count as used, as in [`Limiter::peek`](crate::Limiter::peek).
    /// - **[`Limiter::reset`](crate::Limiter::reset), [`block`](crate::Limiter::block) and bans** take effect in other processes within
    ///   the TTL. After a reset, or a restart that loses counts, what was leased before is spent in addition to the fresh quota: at
    ///   most one more burst.
    /// - **When the store fails**, leases are spent first; then [`on_store_error`](Policy::on_store_error) applies.
    ///
    /// Under [`Gcra`](crate::Gcra) and [`TokenBucket`](crate::TokenBucket) the burst is smaller by what refills within a TTL, in
    /// headers too: 100 per second with leases of 50 ms have a burst of 94. While processes of the same policy without leases
    /// still run, that many more units may be admitted in a burst.
    ///
    /// A [quota of a request](Policy::quota_with) whose burst is at most what refills within a TTL, rounded up to whole units,
    /// such as one per minute, is counted without leases. A declared quota ([`tier_quotas`](Policy::tier_quotas)) of this kind is an
    /// error.
    ///
    /// A [`MemoryStore`](crate::MemoryStore) needs no leases and makes none, but counts by the same burst.
    ///
    /// These are a [`ConfigError`](crate::ConfigError) when the limiter is built:
    ///
    /// - [`max_units`](Lease::max_units) or a [TTL](Lease::ttl) out of range;
    /// - a strategy that can't be leased: [`Concurrency`](crate::Concurrency), [`Ban`](crate::Ban);
    /// - leases together with [`charge_rejected`](Policy::charge_rejected) or [`charge_after`](Policy::charge_after), or of a
    ///   [shadow policy](Policy::shadow);
    /// - a burst that is at most what refills within a TTL, rounded up to whole units;
    /// - a [`SlidingLog`](crate::SlidingLog) with a TTL above a hundredth of its period.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Lease, Limiter, Policy, Quota, extract};
    ///
    /// let limiter = Limiter::builder()
    ///     .policy(
    ///         Policy::new("tenant", Quota::requests(10_000).per_second())
    ///             .key(extract::header("x-tenant"))
    ///             .lease(Lease::max_units(64).ttl(Duration::from_millis(50))),
    ///     )
    ///     .build()?;
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    #[must_use]
    pub fn lease(mut self, lease: Lease) -> Self {
        self.lease = Some(lease);
        self
    }

    /// The settings of its leases.
    pub(crate) fn lease_setting(&self) -> Option<&Lease> {
        self.lease.as_ref()
    }

    /// The policy without leases.
    pub(crate) fn without_lease(mut self) -> Self {
        self.lease = None;
        self
    }
}

//! Policies over a store, with or without HTTP.
//!
//! A request's way through it:
//!
//! 1. A call enters by a method of `Limiter`, whose `Check` (`check`) evaluates it when it is polled; a layer calls
//!    `LimiterRef::evaluate_request`. Both work on `core`: the policies, each bound to its limit in the store.
//! 2. `evaluate::request` lets `evaluate::access` decide what needs no store: access lists, skip rules and invalid calls. Then it
//!    adds an entry with key, cost and quota for each policy that applies to a `DecisionBuilder` (`evaluate::decision_builder`).
//! 3. It makes one operation of the store for all entries. `PendingDecision` awaits a response that is not
//!    ready, and quotas that have to be looked up before.
//! 4. `evaluate::response` sets each entry's status and receipt from the response, and adds shadows (`evaluate::shadow`), bans
//!    and permits (`held_permits`). After a store error, `evaluate::fallback` decides.
//! 5. The decision refers to the limiter by `backend`, which charges, refunds and settles for it later.
//!
//! `calls` has the calls of applications and operators beside a request's check, `wait` the queues of `Limiter::wait`.

use std::{
    fmt,
    sync::{Arc, Mutex},
};

use self::core::{Enforcement, LimiterCore};
use crate::{
    admission::{Admission, Rejected},
    decision::Decision,
    error::CallError,
    observe::ShadowStats,
    policy::Policy,
    store::Op,
    sync::Replaceable,
};

mod backend;
mod bind;
mod builder;
mod calls;
mod check;
mod core;
pub(crate) mod evaluate;
mod held_permits;
mod keys;
mod overrides;
mod reconfigure;
mod report;
mod status;
mod validate;
mod wait;

pub use self::{
    builder::LimiterBuilder,
    calls::{
        blocks::{Block, Blocks},
        credit::{Credit, CreditFuture, Credited},
        explain::Explain,
        explanation::{ExplainedPolicy, Explanation},
        handle::PolicyHandle,
        shutdown::ShutdownError,
    },
    check::{Check, CheckFuture},
    evaluate::trace::NotApplied,
    keys::Keys,
    status::LimitStatus,
    wait::{Wait, WaitFuture},
};
pub(crate) use self::{
    core::{LimiterRef, LimiterRefs},
    evaluate::decision_builder::{DecisionBuilder, PendingDecision},
    wait::DEFAULT_MAX_WAITERS,
};

/// A set of policies over a store. Cheap to clone; clones share everything.
///
/// A [`RateLimitLayer`](crate::RateLimitLayer) calls it for each request. It can also be called without HTTP, with keys that
/// only a handler or a job knows. It can be shared between threads and runtimes; dropping it loses no counts of the store.
///
/// ```
/// use tollgate::{Limiter, Policy, Quota};
///
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let limiter = Limiter::builder()
///     .policy(Policy::new("api", Quota::requests(5).per_minute()))
///     .build()?;
/// for left in (0..5).rev() {
///     let decision = limiter.check("alice").await;
///     assert!(decision.is_admitted());
///     assert_eq!(decision.policy("api").unwrap().remaining(), left);
/// }
/// let rejected = limiter.admit("alice").await.unwrap_err();
/// assert_eq!(rejected.retry_after().duration().unwrap().as_secs(), 11);
/// # Ok::<(), tollgate::ConfigError>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Limiter {
    shared: Arc<LimiterShared>,
}

struct LimiterShared {
    refs: Replaceable<LimiterRef>,
    /// Held while the policies are replaced.
    replacing: Mutex<()>,
}

impl Limiter {
    /// Admits a request and charges it under every policy, or rejects it and charges it under none. Made for handlers, where
    /// `?` turns a rejection into the response.
    ///
    /// The [`Admission`] holds the permits of [in-flight limits](crate::Concurrency), and releases them when it is dropped:
    /// bind it to a name for as long as the work takes. `keys` and the settings are those of [`check`](Limiter::check).
    ///
    /// The layers around the handler don't know the admission: [`RateLimitHeaders::add_to`](crate::RateLimitHeaders::add_to)
    /// adds its fields to the handler's response.
    ///
    /// The call has no response whose outcome could be charged. Under a policy with [`charge_after`](Policy::charge_after) the
    /// handler charges by [`Admission::policy`] and [`charge`](crate::PolicyAdmission::charge), and under one with
    /// [`refund_unless`](Policy::refund_unless) it refunds.
    ///
    /// ```
    /// use tollgate::{Limiter, Rejected};
    ///
    /// async fn send_mail(limiter: &Limiter, user: &str) -> Result<(), Rejected> {
    ///     let _admission = limiter.admit(user).await?;
    ///     // Here the mail is sent. The permit is released at the end.
    ///     Ok(())
    /// }
    /// # use tollgate::{Policy, Quota};
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
    /// # let limiter = Limiter::builder().policy(Policy::new("mail", Quota::concurrent(1))).build()?;
    /// # send_mail(&limiter, "alice").await?;
    /// # send_mail(&limiter, "alice").await?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Rejected`] if a quota is exhausted, a key is banned or on a [deny list](LimiterBuilder::deny), the store failed and
    /// the limiter [rejects](crate::OnStoreError::Reject) then, or the call is invalid: a name that no policy has, or no
    /// [`parts`](Check::parts) for a policy that takes settings from requests.
    ///
    /// # Cancellation
    ///
    /// Dropping the future before it completes cancels the request: a charge that was made nevertheless is refunded.
    pub fn admit(&self, keys: impl Into<Keys>) -> Check<Result<Admission, Rejected>> {
        Check::new(self.local_ref(), Op::Acquire(1), keys.into())
    }

    /// Admits or rejects a request as [`admit`](Limiter::admit) does, and returns the [`Decision`] in either case. It never
    /// fails: [`DecisionKind`](crate::DecisionKind) has the errors that `admit` returns. Cancellation is that of `admit`.
    ///
    /// `keys` is one [`Key`](crate::Key) for all policies, or pairs of a policy's name and its key.
    ///
    /// One key identifies the caller under all policies, except those by [`extract::global`](crate::extract::global), which
    /// count by their own key. Policies that count by something other than the caller, such as the peer's address or the path,
    /// have to be named, since the key would be counted as if it were an address or a path: `[("address", address), ("user",
    /// user), ("budget", Key::global())]`. Policies that are not named don't apply to the call, bans and shadow policies
    /// included; a [candidate](Policy::shadow_of) has the key of its live policy.
    ///
    /// A name that no policy has rejects the request ([`DecisionKind::UnknownPolicy`](crate::DecisionKind::UnknownPolicy)), and
    /// so does a policy that takes settings from requests, without [`parts`](Check::parts).
    ///
    /// The cost is each policy's own unless set:
    ///
    /// ```no_run
    /// # async fn f(limiter: tollgate::Limiter) {
    /// # use tollgate::Key;
    /// let address = Key::ip("192.0.2.1".parse().unwrap());
    /// let decision = limiter
    ///     .check([("address", address), ("user", Key::new("alice"))])
    ///     .cost(3)
    ///     .await;
    /// # }
    /// ```
    pub fn check(&self, keys: impl Into<Keys>) -> Check<Decision> {
        Check::new(self.local_ref(), Op::Acquire(1), keys.into())
    }

    /// Reports the status of a request's keys without charging them. [Address lists](crate::AddressList) are evaluated only if
    /// the call has an address, by [`address`](Check::address) or [`parts`](Check::parts). Dropping the future is harmless.
    ///
    /// The status is the store's: units that processes hold in [leases](crate::Policy::lease), this one included, count as used.
    /// So a process may still admit a request that the status says would be rejected.
    ///
    /// ```
    /// use tollgate::{Limiter, Policy, Quota};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let limiter = Limiter::builder()
    ///     .policy(Policy::new("api", Quota::requests(5).per_minute()))
    ///     .build()?;
    /// assert!(limiter.check("alice").times(3).await.is_admitted());
    /// let status = limiter.peek("alice").await?;
    /// assert_eq!(status.policy("api").unwrap().remaining(), 2);
    /// // Of a request that costs more.
    /// assert!(!limiter.peek("alice").cost(3).await?.would_admit());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`CallError`] if the store fails, whatever [`OnStoreError`](crate::OnStoreError) says, or the call is invalid: under a
    /// policy with [`cost_with`](crate::Policy::cost_with), say of which cost the request would be, such as `.cost(1)`, and with
    /// [`quota_with`](crate::Policy::quota_with) set [`quota_for`](Check::quota_for); or pass a request by
    /// [`parts`](Check::parts).
    pub fn peek(&self, keys: impl Into<Keys>) -> Check<Result<LimitStatus, CallError>> {
        Check::new(self.local_ref(), Op::Peek, keys.into())
    }

    /// Charges `units` under every policy, also more than are left: down to a debt of at most one capacity, which has to refill
    /// before later requests are admitted. For costs that are known only afterwards.
    ///
    /// A [ban](crate::Ban) is charged only if it is named: it then counts `units` rejections.
    ///
    /// Returns the status of a request **of as many units** afterwards: its wait is [`Never`](crate::RetryAfter::Never) if
    /// `units` are more than the quota ever admits at once. A [`peek`](Limiter::peek) has that of the caller's next request.
    ///
    /// ```
    /// use tollgate::{Limiter, Policy, Quota};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let limiter = Limiter::builder()
    ///     .policy(Policy::new("tokens", Quota::units(100).per_hour()))
    ///     .build()?;
    /// let status = limiter.charge("alice", 130).await?;
    /// assert_eq!(status.policy("tokens").unwrap().remaining(), 0);
    /// // The debt of 30 units, and one more, take 31 times 36 s to refill.
    /// let wait = limiter.peek("alice").await?.retry_after().duration().unwrap_or_default();
    /// assert_eq!(wait.as_secs() / 60, 18);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// If the future was polled and is dropped, the units may be charged nevertheless.
    ///
    /// # Errors
    ///
    /// [`CallError`] if the store fails, whatever [`OnStoreError`](crate::OnStoreError) says, or the call is invalid. A charge that
    /// could not be sent is kept, and made once the store responds: its error is [`StoreError::Deferred`](crate::StoreError::Deferred). One that timed out waits
    /// for its response in the background. So do not repeat a charge after a timeout.
    pub fn charge(
        &self,
        keys: impl Into<Keys>,
        units: u64,
    ) -> Check<Result<LimitStatus, CallError>> {
        Check::new(self.local_ref(), Op::ForceAcquire, keys.into()).cost(units)
    }

    /// Removes the usage of `keys`, so that their full quota is available, and ends [bans](crate::Ban) among their policies.
    /// Returns the status before. One key for all policies does not reset policies by
    /// [`extract::global`](crate::extract::global), which count all requests together, unless it is their own key or there are
    /// no other policies.
    ///
    /// ```
    /// use tollgate::{Limiter, Policy, Quota};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let limiter = Limiter::builder()
    ///     .policy(Policy::new("mail", Quota::requests(1).per_hour()))
    ///     .build()?;
    /// assert!(limiter.admit("alice").await.is_ok());
    /// let before = limiter.reset("alice").await?;
    /// assert_eq!(before.policy("mail").unwrap().remaining(), 0);
    /// assert!(limiter.admit("alice").await.is_ok());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// A later refund of a charge from before the reset is subtracted from the charges since, unless the strategy can
    /// distinguish them ([`FixedWindow`](crate::FixedWindow), [`ListWindow`](crate::ListWindow),
    /// [`SlidingLog`](crate::SlidingLog)): requests in flight during the reset can let as many units more be admitted as they
    /// are refunded.
    ///
    /// If the future was polled and is dropped, the keys may be reset nevertheless.
    ///
    /// # Errors
    ///
    /// [`CallError`] if the store fails, whatever [`OnStoreError`](crate::OnStoreError) says, or the call is invalid. Shares in
    /// process are not reset then either.
    pub fn reset(&self, keys: impl Into<Keys>) -> Check<Result<LimitStatus, CallError>> {
        Check::new(self.local_ref(), Op::Reset, keys.into())
    }

    fn new(core: LimiterCore) -> Self {
        let limiter = Self {
            shared: Arc::new(LimiterShared {
                refs: Replaceable::new(LimiterRefs::of(core)),
                replacing: Mutex::default(),
            }),
        };
        limiter.report_policies(limiter.local_ref().core());
        limiter
    }

    /// The references of all threads to the policies in force.
    pub(crate) fn refs(&self) -> Arc<LimiterRefs> {
        self.shared.refs.all()
    }

    /// The store that holds the counts.
    #[cfg(feature = "config")]
    pub(crate) fn store(&self) -> Arc<dyn crate::store::Store> {
        self.local_ref().store.clone()
    }

    /// This thread's reference to the policies in force.
    // Inlined, it would keep its callers from being inlined, and a `Check` would be copied: 8 % of a check in process.
    #[inline(never)]
    pub(crate) fn local_ref(&self) -> Arc<LimiterRef> {
        self.shared.refs.local()
    }

    /// Counts how the decisions of the [shadow policy](crate::Policy::shadow) of that name differ from those that were made;
    /// `None` if the limiter has no such shadow policy. See [`Policy::shadow`](crate::Policy::shadow) for an example.
    pub fn shadow_stats(&self, policy: &str) -> Option<ShadowStats> {
        let limiter = self.local_ref();
        let index = limiter.find(policy).ok()?;
        match &limiter.policies[index].enforcement {
            Enforcement::Live | Enforcement::Ban => None,
            Enforcement::Shadow { counters, .. } => Some(counters.stats()),
        }
    }

    /// The policies in force, in their order of evaluation: enforced policies, then bans, then shadow policies.
    pub fn policies(&self) -> Vec<Policy> {
        self.local_ref().core().policies().cloned().collect()
    }
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limiter = self.local_ref();
        f.debug_struct("Limiter")
            .field("store", &limiter.store)
            .field("policies", &self.policies())
            .field("on_store_error", &limiter.on_store_error)
            .field("on_misconfiguration", &limiter.on_misconfiguration)
            .finish()
    }
}

//! Policies over a store, with or without HTTP.

use std::{
    fmt,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use http::request::Parts;

use crate::{
    access::Lists,
    admission::{Admission, Rejected},
    decision::{Decision, Part},
    error::{CallError, UnknownPolicy},
    key::Key,
    log::Seldom,
    policy::{
        Policy,
        on_store_error::{OnMisconfiguration, OnStoreError},
        skip::Skips,
    },
    store::{LimitHandle, Op, Store},
};

mod bound;
mod builder;
mod calls;
mod check;
mod core;
mod desk;
mod evaluate;
mod keys;
mod permit;
mod plain;
mod settle;
mod wait;

use self::{
    core::{WakeLeaders, missing, tiers, write_back},
    evaluate::{draft::Judged, shadow::Comparison},
};
use desk::{Desk, Desks};

pub use self::calls::credit::{Credit, CreditFuture, Credited};
pub use self::calls::handle::PolicyHandle;
pub use self::calls::shutdown::ShutdownError;
pub use self::calls::status::LimitStatus;
pub(crate) use self::evaluate::judge::Judgement;
pub(crate) use self::evaluate::pending::Pending;
pub use self::evaluate::shadow::ShadowStats;
pub use builder::LimiterBuilder;
pub use check::{Check, CheckFuture};
pub use keys::Keys;
pub(crate) use wait::DEFAULT_MAX_WAITERS;
use wait::leader::Queues;
pub use wait::{Wait, WaitFuture};

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
    desks: Arc<Desks>,
    queues: Arc<Queues>,
}

pub(crate) struct Inner {
    store: Arc<dyn Store>,
    /// Where shares of quotas are counted while the store is at fault, if any are to be.
    shares: Option<write_back::Shares>,
    policies: Box<[Bound]>,
    on_store_error: Option<OnStoreError>,
    on_misconfiguration: OnMisconfiguration,
    lists: Option<Box<Lists>>,
    skips: Skips,
    counts_preflights: bool,
    /// Whether nothing but the key and the cost of a request has to be known.
    is_plain: bool,
    outages: Seldom,
    misconfigurations: Seldom,
    twice: Seldom,
    /// Whether a policy takes its quota, cost or conditions from requests.
    reads_parts: bool,
    /// Of calls that can't be carried out.
    misuse: Seldom,
    held: permit::Held,
    queues: Arc<dyn WakeLeaders>,
    /// The shortest permit TTL of any policy.
    permit_ttl: Duration,
}

/// A policy, and its limit in the store.
pub(crate) struct Bound {
    policy: Policy,
    role: Role,
    limit: LimitHandle,
    /// Quotas other than the policy's own.
    tiers: tiers::Known,
    /// `None` unless it was configured.
    on_store_error: Option<OnStoreError>,
    /// What it is judged by in process, if that is what to do when the store is at fault.
    share: Option<evaluate::fallback::Share>,
    /// The key of each request, where it's the same one whatever the request holds.
    fixed_key: Option<Key>,
    missing_keys: missing::MissingKeys,
    /// Whether it was logged that a decision was dropped with a permit of this policy.
    unclaimed_logged: AtomicBool,
}

/// What a policy does in a decision.
#[derive(Debug)]
enum Role {
    /// It is enforced.
    Live,
    /// It counts what the others refuse, and is enforced.
    Ban,
    /// It is judged, and not enforced.
    Shadow {
        /// The policy that it would take the place of.
        of: Option<u32>,
        compared: Comparison,
    },
}

impl Limiter {
    /// Returns a builder of a limiter.
    pub fn builder() -> LimiterBuilder {
        LimiterBuilder::new()
    }

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
    /// the limiter [rejects](OnStoreError::Reject) then, or the call is invalid: a name that no policy has, or no
    /// [`parts`](Check::parts) for a policy that takes settings from requests.
    ///
    /// # Cancellation
    ///
    /// Dropping the future before it completes cancels the request: a charge that was made nevertheless is refunded.
    pub fn admit(&self, keys: impl Into<Keys>) -> Check<Result<Admission, Rejected>> {
        Check::new(self.desk(), Op::Acquire(1), keys.into())
    }

    /// Admits or rejects a request as [`admit`](Limiter::admit) does, and returns the [`Decision`] in either case. It never
    /// fails: [`DecisionKind`](crate::DecisionKind) has the errors that `admit` returns. Cancellation is that of `admit`.
    ///
    /// `keys` is one [`Key`] for all policies, or pairs of a policy's name and its key.
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
        Check::new(self.desk(), Op::Acquire(1), keys.into())
    }

    /// Reports the status of a request's keys without charging them. [Address lists](crate::AddressList) are evaluated only if
    /// the call has an address, by [`address`](Check::address) or [`parts`](Check::parts). Dropping the future is harmless.
    ///
    /// # Errors
    ///
    /// [`CallError`] if the store fails, whatever [`OnStoreError`] says, or the call is invalid.
    pub fn peek(&self, keys: impl Into<Keys>) -> Check<Result<LimitStatus, CallError>> {
        Check::new(self.desk(), Op::Peek, keys.into())
    }

    /// Charges `units` under every policy, also more than are left: down to a debt of at most one capacity, which has to refill
    /// before later requests are admitted. For costs that are known only afterwards.
    ///
    /// A [ban](crate::Ban) is charged only if it is named: it then counts `units` rejections.
    ///
    /// Returns the status of a request **of as many units** afterwards: its wait is [`Never`](crate::RetryAfter::Never) if
    /// `units` are more than the quota ever admits at once. A [`peek`](Limiter::peek) has that of the caller's next request.
    ///
    /// If the future was polled and is dropped, the units may be charged nevertheless.
    ///
    /// # Errors
    ///
    /// [`CallError`] if the store fails, whatever [`OnStoreError`] says, or the call is invalid.
    pub fn charge(
        &self,
        keys: impl Into<Keys>,
        units: u64,
    ) -> Check<Result<LimitStatus, CallError>> {
        Check::new(self.desk(), Op::ForceAcquire, keys.into()).cost(units)
    }

    /// Removes the usage of `keys`, so that their full quota is available, and ends [bans](crate::Ban) among their policies.
    /// Returns the status before. One key for all policies does not reset policies by
    /// [`extract::global`](crate::extract::global), which count all requests together, unless it is their own key or there are
    /// no other policies.
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
    /// [`CallError`] if the store fails, whatever [`OnStoreError`] says, or the call is invalid. Shares in
    /// process are not reset then either.
    pub fn reset(&self, keys: impl Into<Keys>) -> Check<Result<LimitStatus, CallError>> {
        Check::new(self.desk(), Op::Reset, keys.into())
    }

    fn desk(&self) -> Arc<Desk> {
        self.desks.at_hand().clone()
    }

    /// Judges a request by what its head says.
    #[inline]
    pub(crate) fn judge_request(&self, parts: &Parts) -> Judgement {
        self.desk().judge_request(parts)
    }

    /// The policies in their order of evaluation: enforced policies, then bans, then shadow policies.
    pub fn policies(&self) -> impl ExactSizeIterator<Item = &Policy> {
        self.desks
            .inner()
            .policies
            .iter()
            .map(|bound| &bound.policy)
    }
}

impl Inner {
    /// The place of the policy of that name.
    fn find(&self, name: &str) -> Result<usize, UnknownPolicy> {
        let mut policies = self.policies.iter();
        let found = policies.position(|bound| bound.policy.name() == name);
        found.ok_or_else(|| {
            let policies = self.policies.iter();
            UnknownPolicy::new(name, policies.map(|bound| bound.policy.name().to_owned()))
        })
    }
}

impl Bound {
    fn part(&self) -> Part {
        match self.role {
            Role::Live => Part::Live,
            Role::Ban => Part::Ban,
            Role::Shadow { .. } => Part::Shadow { refuses: false },
        }
    }

    fn is_ban(&self) -> bool {
        matches!(self.role, Role::Ban)
    }

    /// What a request costs: a ban counts rejections, one by one.
    fn cost_of(&self, parts: Option<&Parts>) -> u64 {
        match parts {
            _ if self.is_ban() => 1,
            Some(parts) => self.policy.cost_of(parts),
            None => self.policy.plain_cost(),
        }
    }

    fn is_permit(&self) -> bool {
        self.limit.permit_ttl().is_some()
    }

    /// The caller stored with the charge, for strategies that record callers: the request's caller if there is one, else the key. A
    /// permit gets a caller of its own, which names it.
    fn by(&self, caller: impl FnOnce() -> Option<Key>) -> Option<Box<Key>> {
        match self.limit.permit_ttl() {
            Some(_) => Some(Box::new(Key::unique())),
            None if self.limit.records_caller() => caller().map(Box::new),
            None => None,
        }
    }
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter")
            .field("store", &self.desks.inner().store)
            .field("policies", &self.policies().collect::<Vec<_>>())
            .field("on_store_error", &self.desks.inner().on_store_error)
            .field(
                "on_misconfiguration",
                &self.desks.inner().on_misconfiguration,
            )
            .finish()
    }
}

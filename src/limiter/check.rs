//! Calls of a limiter: a builder, and its future.

use std::{
    fmt,
    future::{Future, IntoFuture},
    marker::PhantomData,
    net::IpAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use http::request::Parts;
use tokio::task::coop::poll_proceed;

use super::{
    admission::Admission,
    core::LimiterRef,
    decide::{DecisionBuilder, PendingDecision},
    decision::{Decision, DecisionKind},
    keys::Keys,
    mode::Mode,
    rejected::Rejected,
};
use crate::{quota::Quota, store::Op};

/// A call of a [`Limiter`](crate::Limiter), which is made when it is awaited. `T` is its result: a [`Decision`] for
/// [`check`](crate::Limiter::check), an [`Admission`] or [`Rejected`] for [`admit`](crate::Limiter::admit), a
/// [`LimitStatus`](crate::limiter::LimitStatus) or [`CallError`](crate::CallError) for [`peek`](crate::Limiter::peek),
/// [`charge`](crate::Limiter::charge) and [`reset`](crate::Limiter::reset).
#[must_use = "nothing is checked until this is awaited"]
#[derive(Clone)]
pub struct Check<T = Decision> {
    /// `None` once the call was made.
    limiter: Option<Arc<LimiterRef>>,
    op: Op,
    mode: Mode,
    keys: Keys,
    overrides: Option<Box<CheckOverrides>>,
    output: PhantomData<fn() -> T>,
}

/// The result of a [`Check`].
pub trait CheckOutput {
    /// Converts the limiter's decision.
    fn from_decision(decision: Decision) -> Self;
}

impl CheckOutput for Decision {
    #[inline]
    fn from_decision(decision: Decision) -> Self {
        decision
    }
}

impl CheckOutput for Result<Admission, Rejected> {
    #[inline]
    fn from_decision(decision: Decision) -> Self {
        decision.into_result()
    }
}

impl<T> Check<T> {
    pub(super) fn new(limiter: Arc<LimiterRef>, (op, mode): (Op, Mode), keys: Keys) -> Self {
        Self {
            limiter: Some(limiter),
            op,
            mode,
            keys,
            overrides: None,
            output: PhantomData,
        }
    }

    /// Sets the cost under every policy to `units`, in place of each policy's own.
    pub fn cost(mut self, units: u64) -> Self {
        self.overrides().cost = Some(units);
        self
    }

    /// Checks `n` equal requests at one instant: as many as fit are admitted and charged, each at its full cost, and
    /// [`Decision::admitted`] is their number. The decision admits if that is at least one. Default: 1; more than [`u32::MAX`]
    /// count as [`u32::MAX`].
    ///
    /// ```
    /// use tollgate::{Key, Limiter, Policy, Quota};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let limiter = Limiter::builder()
    ///     .policy(Policy::new("jobs", Quota::requests(5).per_minute()))
    ///     .build()?;
    /// assert_eq!(limiter.check(Key::global()).times(8).await.admitted(), 5);
    /// # Ok::<(), tollgate::ConfigError>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn times(mut self, n: u64) -> Self {
        if let Op::Acquire(_) = self.op {
            self.op = Op::Acquire(u32::try_from(n).unwrap_or(u32::MAX));
        }
        self
    }

    /// Sets the cost under the policy of that name to `units`, in place of its own and of [`cost`](Check::cost).
    pub fn cost_for(mut self, policy: impl Into<String>, units: u64) -> Self {
        self.overrides().costs.push((policy.into(), units));
        self
    }

    /// Sets the quota under the policy of that name, such as that of the caller's tier, in place of the policy's own: see
    /// [`Policy::quota_with`](crate::Policy::quota_with).
    pub fn quota_for(mut self, policy: impl Into<String>, quota: Quota) -> Self {
        self.overrides().quotas.push((policy.into(), quota));
        self
    }

    /// Sets the head of the request that the call is for, from which policies take their settings:
    /// [`quota_with`](crate::Policy::quota_with), [`quota_lookup`](crate::Policy::quota_lookup),
    /// [`cost_with`](crate::Policy::cost_with), [`skip_path`](crate::Policy::skip_path) and the other conditions, of a policy
    /// or of the limiter; [`caller`](crate::Policy::caller); and the address for [address lists](crate::access::AddressList). Keys are
    /// those of the call, not the request's. Settings of the call, such as [`quota_for`](Check::quota_for), take precedence.
    ///
    /// If a policy has such settings, a call without a request is an error (for a check,
    /// [`DecisionKind::PartsRequired`](crate::limiter::DecisionKind::PartsRequired)), unless the call sets what the policy takes from
    /// requests: a quota by [`quota_for`](Check::quota_for), a cost by [`cost`](Check::cost) or [`cost_for`](Check::cost_for),
    /// and, in place of conditions, the policy's name with its key.
    ///
    /// ```
    /// use http::request::Parts;
    /// use tollgate::{Limiter, Rejected};
    ///
    /// async fn handler(limiter: &Limiter, user: &str, parts: &Parts) -> Result<(), Rejected> {
    ///     let _admission = limiter.admit(user).parts(parts).await?;
    ///     Ok(())
    /// }
    /// ```
    pub fn parts(mut self, parts: &Parts) -> Self {
        self.overrides().parts = Some(Arc::new(parts.clone()));
        self
    }

    /// Sets the client's address for [address lists](crate::access::AddressList). It is not used as a key.
    pub fn address(mut self, address: IpAddr) -> Self {
        self.overrides().address = Some(address);
        self
    }

    /// The same call with settings.
    pub(super) fn with(mut self, overrides: CheckOverrides) -> Self {
        self.overrides = Some(Box::new(overrides));
        self
    }

    fn overrides(&mut self) -> &mut CheckOverrides {
        self.overrides.get_or_insert_default()
    }
}

impl<T: CheckOutput> IntoFuture for Check<T> {
    type Output = T;
    type IntoFuture = CheckFuture<T>;

    fn into_future(self) -> CheckFuture<T> {
        CheckFuture(State::NotStarted(self))
    }
}

/// The future of a [`Check`].
///
/// It takes part in tokio's [cooperative scheduling](tokio::task::coop), also if the decision is made in process: a task that
/// makes many decisions in a loop yields to others. Nothing is charged before it yields. Outside of a runtime it never yields.
///
/// # Cancellation
///
/// Dropping the future of a [`check`](crate::Limiter::check) or [`admit`](crate::Limiter::admit) before it completes cancels
/// the request: a charge that was made nevertheless is refunded. Dropping a [`peek`](crate::Limiter::peek) is harmless. A
/// [`charge`](crate::Limiter::charge) or [`reset`](crate::Limiter::reset) that was polled may be done nevertheless.
#[must_use = "futures do nothing unless polled"]
pub struct CheckFuture<T = Decision>(State<T>);

enum State<T> {
    NotStarted(Check<T>),
    Pending(PendingDecision),
}

impl<T: CheckOutput> Future for CheckFuture<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        loop {
            match &mut self.0 {
                State::Pending(pending) => return Pin::new(pending).poll(cx).map(T::from_decision),
                State::NotStarted(check) => {
                    let budget = ready!(poll_proceed(cx));
                    let Some(limiter) = check.limiter.take() else {
                        // Polled again after completion, which is a mistake: pending for ever.
                        return Poll::Pending;
                    };
                    let overrides = check.overrides.as_deref();
                    let mut builder = DecisionBuilder::new(check.op, check.mode);
                    match limiter.decide_call(&mut builder, &check.keys, overrides) {
                        None => {
                            budget.made_progress();
                            return Poll::Ready(T::from_decision(builder.finish(limiter)));
                        }
                        Some(stage) => {
                            let pending = PendingDecision::new(limiter, builder, stage);
                            self.0 = State::Pending(pending);
                        }
                    }
                }
            }
        }
    }
}

impl<T> fmt::Debug for CheckFuture<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.0 {
            State::NotStarted(_) => "CheckFuture(NotStarted)",
            State::Pending(_) => "CheckFuture(Pending)",
        })
    }
}

impl<T> fmt::Debug for Check<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Check")
            .field("op", &self.op)
            .field("keys", &self.keys)
            .field("overrides", &self.overrides)
            .finish_non_exhaustive()
    }
}

/// The settings of one call, which override those of the policies.
#[derive(Clone, Debug, Default)]
pub(crate) struct CheckOverrides {
    pub(crate) cost: Option<u64>,
    /// Costs by policy.
    pub(crate) costs: Vec<(String, u64)>,
    /// Quotas by policy.
    pub(crate) quotas: Vec<(String, Quota)>,
    /// The client's address, for access lists.
    pub(crate) address: Option<IpAddr>,
    /// The request that the call is about.
    pub(crate) parts: Option<Arc<Parts>>,
    /// What the request lacks that the call's keys were extracted from.
    pub(crate) missing: Option<DecisionKind>,
}

impl CheckOverrides {
    /// The cost under a policy, by its name or by that of the live policy that it shadows.
    pub(crate) fn cost(&self, policy: &str, live: Option<&str>) -> Option<u64> {
        let named = value_of(&self.costs, policy);
        let named = named.or_else(|| value_of(&self.costs, live?));
        named.or(self.cost)
    }

    /// The quota under a policy.
    pub(crate) fn quota(&self, policy: &str) -> Option<Quota> {
        value_of(&self.quotas, policy)
    }
}

fn value_of<T: Copy>(values: &[(String, T)], policy: &str) -> Option<T> {
    let (_, value) = values.iter().find(|(name, _)| name == policy)?;
    Some(*value)
}

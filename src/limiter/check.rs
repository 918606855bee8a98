//! Checks, admissions and peeks: a builder, and its future.

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
    decide::apply,
    decision::{Decision, LimitStatus},
    evaluate::{PendingDecision, evaluate, evaluate_now},
    keys::Keys,
    policy_set::PolicySet,
    rejected::Rejected,
    report::report,
    request::{CallSettings, KeySource, LimitRequest, Purpose, RequestHead},
};
use crate::{
    background::{block_on, runtime_to_block_on},
    error::{CallError, NotNow, StoreError},
    quota::Quota,
};

/// A call of a [`Limiter`](crate::Limiter), which is made when it is awaited, or by [`now`](Check::now) or
/// [`blocking`](Check::blocking) outside of async code. `T` is its result: a [`Decision`] for [`check`](crate::Limiter::check), an
/// [`Admission`] or [`Rejected`] for [`admit`](crate::Limiter::admit), a [`LimitStatus`] or [`CallError`] for
/// [`peek`](crate::Limiter::peek).
#[must_use = "nothing is checked until this is awaited, or `now` or `blocking` is called"]
#[derive(Clone)]
pub struct Check<T = Decision> {
    set: Arc<PolicySet>,
    call: Call,
    output: PhantomData<fn() -> T>,
}

/// What is asked of the limiter.
#[derive(Clone, Debug)]
struct Call {
    purpose: Purpose,
    keys: Keys,
    settings: Option<Box<CallSettings>>,
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
        if decision.is_admitted() {
            Ok(Admission::of(decision))
        } else {
            Err(Rejected::new(decision))
        }
    }
}

impl CheckOutput for Result<LimitStatus, CallError> {
    fn from_decision(decision: Decision) -> Self {
        LimitStatus::of(decision)
    }
}

impl<T> Check<T> {
    pub(super) fn new(set: Arc<PolicySet>, purpose: Purpose, keys: Keys) -> Self {
        Self {
            set,
            call: Call {
                purpose,
                keys,
                settings: None,
            },
            output: PhantomData,
        }
    }

    /// Sets the cost under every policy to `units`, in place of each policy's own.
    pub fn cost(mut self, units: u64) -> Self {
        self.settings().cost = Some(units);
        self
    }

    /// Sets the cost under the policy of that name to `units`, in place of its own and of [`cost`](Check::cost).
    pub fn cost_for(mut self, policy: impl Into<String>, units: u64) -> Self {
        self.settings().costs.push((policy.into(), units));
        self
    }

    /// Sets the quota under the policy of that name, such as that of the caller's tier, in place of the policy's own: see
    /// [`Policy::quota_with`](crate::Policy::quota_with).
    pub fn quota_for(mut self, policy: impl Into<String>, quota: Quota) -> Self {
        self.settings().quotas.push((policy.into(), quota));
        self
    }

    /// Sets the head of the request that the call is for, from which policies take their settings:
    /// [`quota_with`](crate::Policy::quota_with), [`cost_with`](crate::Policy::cost_with), [`skip_path`](crate::Policy::skip_path) and the other conditions, of a policy
    /// or of the limiter; [`caller`](crate::Policy::caller); and the address for [address lists](crate::access::AddressList). Keys are
    /// those of the call, not the request's. Settings of the call, such as [`quota_for`](Check::quota_for), take precedence.
    ///
    /// If a policy has such settings, a call without a request is an error (for a check,
    /// [`DecisionKind::Invalid`](crate::limiter::DecisionKind::Invalid)), unless the call sets what the policy takes from
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
        self.settings().parts = Some(Arc::new(parts.clone()));
        self
    }

    /// Sets the client's address for [address lists](crate::access::AddressList). It is not used as a key.
    pub fn address(mut self, address: IpAddr) -> Self {
        self.settings().address = Some(address);
        self
    }

    fn settings(&mut self) -> &mut CallSettings {
        self.call.settings.get_or_insert_default()
    }
}

impl Check {
    /// Checks `n` equal requests at one instant: as many as fit are admitted and charged, each at its full cost, and
    /// [`Decision::admitted`] is their number. The decision admits if that is at least one. Default: 1; more than [`u32::MAX`]
    /// count as [`u32::MAX`].
    ///
    /// A batch of `n` calls of which all are served or none, such as JSON-RPC's or the aliases of a GraphQL request, is one
    /// [`admit`](crate::Limiter::admit) with [`cost(n)`](Check::cost).
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
        self.call.purpose = Purpose::Check(u32::try_from(n).unwrap_or(u32::MAX));
        self
    }
}

impl<T: CheckOutput> Check<T> {
    /// Decides the call without waiting, if that is possible: in process always, and with a store on Redis by units of a
    /// [lease](crate::Policy::lease) that this process holds, by a cached rejection, or, while the circuit breaker is open, as
    /// [`OnStoreError`](crate::OnStoreError) says. The result is as exact as if the call were awaited.
    ///
    /// It needs no tokio runtime: it works in a plain `main`, and on the threads of a pool such as rayon's. In async code it neither
    /// yields nor uses the task's cooperative budget. What an admission settles, refunds or releases later works there too.
    ///
    /// ```
    /// use tollgate::{Limiter, Policy, Quota};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::builder()
    ///     .policy(Policy::new("lines", Quota::requests(2).per_day()))
    ///     .build()?;
    /// let admitted = (0..5).filter(|_| limiter.check("alice").now().is_ok_and(|decision| decision.is_admitted()));
    /// assert_eq!(admitted.count(), 2);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`NotNow`] if the store has to be called. Nothing is charged then. Make the call in another way:
    ///
    /// ```
    /// # use tollgate::{Decision, Limiter};
    /// fn check(limiter: &Limiter, key: &str) -> Decision {
    ///     let check = limiter.check(key);
    ///     check.clone().now().unwrap_or_else(|_| check.blocking())
    /// }
    /// # use tollgate::{Policy, Quota};
    /// # let policy = Policy::new("lines", Quota::requests(2).per_day());
    /// # let limiter = Limiter::builder().policy(policy).build().unwrap();
    /// # assert!(check(&limiter, "alice").is_admitted());
    /// ```
    ///
    /// The request counts as demand nevertheless: under a policy with leases, a key that is requested 100 times a second gets one, which
    /// is fetched in the background. Until then, and for less frequent keys, each `now` is an error, with a store on Redis. Observers are
    /// called with decisions alone.
    pub fn now(self) -> Result<T, NotNow> {
        let mut decision = Decision::begin(self.set);
        self.call
            .with_request(|request| evaluate_now(&mut decision, request))?;
        Ok(T::from_decision(decision))
    }

    /// Decides the call and blocks this thread until the decision is there: for code that is not async, such as a thread of a pool, a
    /// synchronous server, or [`spawn_blocking`](tokio::task::spawn_blocking).
    ///
    /// ```
    /// use tollgate::{Limiter, Policy, Quota};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::builder()
    ///     .policy(Policy::new("mail", Quota::requests(1).per_day()))
    ///     .build()?;
    /// let mail = |user: &str| limiter.admit(user).blocking().map(|_admission| "sent");
    /// assert_eq!(mail("alice")?, "sent");
    /// assert!(mail("alice").is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// It needs no tokio runtime. In process it is decided at once. Otherwise the call ends by the store's timeout, as one that is awaited
    /// does, also if it is made by mistake in async code, where it keeps other tasks from running meanwhile.
    ///
    /// Functions of the application, such as observers, run on the calling thread.
    ///
    /// # Errors
    ///
    /// Those of the awaited call. Where the thread `tollgate` can't be started, and on that thread itself, such as in a waker, a call that
    /// [`now`](Check::now) does not decide fails by
    /// [`StoreError::NoRuntime`](crate::StoreError::NoRuntime), a [misconfiguration](crate::StoreError::is_misconfiguration).
    pub fn blocking(self) -> T {
        // In process no thread is needed.
        if self.set.is_in_process() {
            let mut decision = Decision::begin(self.set.clone());
            let decided = self
                .call
                .with_request(|request| evaluate_now(&mut decision, request));
            if decided.is_ok() {
                return T::from_decision(decision);
            }
        }
        match runtime_to_block_on() {
            Some(background) => block_on(&background, self.into_future()),
            None => self.decide_without_background(),
        }
    }

    #[cold]
    fn decide_without_background(self) -> T {
        let (mut decision, purpose) = (Decision::begin(self.set), self.call.purpose);
        let decided = self
            .call
            .with_request(|request| evaluate_now(&mut decision, request));
        if decided.is_err() {
            let error = StoreError::NoRuntime(
                "`blocking` needs the thread `tollgate`, and does not work on it",
            );
            apply(&mut decision, purpose, Err(error));
            if purpose.charges() {
                report(&decision, purpose, None);
            }
        }
        T::from_decision(decision)
    }
}

impl Call {
    #[inline]
    fn with_request<T>(&self, f: impl FnOnce(&LimitRequest<'_>) -> T) -> T {
        let settings = self.settings.as_deref();
        let parts = settings.and_then(|settings| settings.parts.as_deref());
        let head = parts.map(RequestHead::new);
        f(&LimitRequest {
            purpose: self.purpose,
            keys: KeySource::Call(&self.keys),
            head: head.as_ref(),
            settings,
        })
    }
}

impl<T: CheckOutput> IntoFuture for Check<T> {
    type Output = T;
    type IntoFuture = CheckFuture<T>;

    fn into_future(self) -> CheckFuture<T> {
        CheckFuture(State::NotStarted(Some(self.set), self.call), PhantomData)
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
/// the request: a charge that was made nevertheless is refunded. Dropping a [`peek`](crate::Limiter::peek) is harmless.
#[must_use = "futures do nothing unless polled"]
pub struct CheckFuture<T = Decision>(State, PhantomData<fn() -> T>);

enum State {
    /// The set is `None` once the call was made.
    NotStarted(Option<Arc<PolicySet>>, Call),
    Pending(PendingDecision),
}

impl<T: CheckOutput> Future for CheckFuture<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        loop {
            match &mut self.0 {
                State::Pending(pending) => return Pin::new(pending).poll(cx).map(T::from_decision),
                State::NotStarted(set, call) => {
                    let budget = ready!(poll_proceed(cx));
                    let Some(set) = set.take() else {
                        // Polled again after completion, which is a mistake: pending for ever.
                        return Poll::Pending;
                    };
                    let mut decision = Decision::begin(set);
                    let pending = call.with_request(|request| evaluate(&mut decision, request));
                    match pending {
                        None => {
                            budget.made_progress();
                            return Poll::Ready(T::from_decision(decision));
                        }
                        Some(response) => {
                            let pending = PendingDecision::new(decision, call.purpose, response);
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
            State::NotStarted(..) => "CheckFuture(NotStarted)",
            State::Pending(_) => "CheckFuture(Pending)",
        })
    }
}

impl<T> fmt::Debug for Check<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Check")
            .field("purpose", &self.call.purpose)
            .field("keys", &self.call.keys)
            .field("settings", &self.call.settings)
            .finish_non_exhaustive()
    }
}

//! What a handler and the layers around it share: the decisions on a request, with its charges and permits.

use std::{
    fmt,
    panic::{self, AssertUnwindSafe},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use smallvec::SmallVec;

use super::{
    charge::{Charge, Refund},
    decision::Decision,
    permits::Permits,
    policy_set::PolicySet,
};
use crate::{
    error::{StoreError, UnknownPolicy},
    outcome::Outcome,
    policy::{Policy, charging::Charge as ChargeSetting},
    store::Units,
    sync::lock,
};

/// A handler's handle to the decision on its request: its status, charges and permits.
///
/// A [`RateLimitLayer`](crate::RateLimitLayer) puts it into the request's extensions, and with feature `axum` it is an
/// extractor. Stacked layers share one. [`Limiter::admit`](crate::Limiter::admit) returns one for a call by hand. Cheap to
/// clone; the permits of a call by hand are released when the last clone is dropped.
///
/// ```
/// # #[cfg(feature = "axum")] {
/// use tollgate::Admission;
///
/// async fn handler(admission: Admission) -> String {
///     format!("{:?} left", admission.remaining("burst"))
/// }
/// # let _: axum::routing::MethodRouter = axum::routing::get(handler);
/// # }
/// ```
#[derive(Clone, Default)]
#[must_use = "dropping it releases the permits of in-flight limits: bind it for as long as the work takes"]
pub struct Admission {
    shared: Arc<Mutex<State>>,
}

/// Holds the permits of in-flight limits beyond the response: for a WebSocket, or work in the background. From
/// [`Admission::hold_permits`].
#[derive(Clone, Debug)]
#[must_use = "the permits are released when this is dropped"]
pub struct PermitGuard {
    _permits: Vec<Arc<Permits>>,
}

/// What is shared. Under its lock no code of the application runs, but a strategy's rule.
#[derive(Default)]
struct State {
    /// Of the outermost layer, or of a call by hand. Most requests have no other.
    first: Option<Passed>,
    rare: Option<Box<RareState>>,
}

/// What few requests have.
#[derive(Default)]
struct RareState {
    /// Of inner layers, the outermost first.
    inner: Vec<Passed>,
    /// The permits of all of them, which their layers hold.
    permits: Vec<Weak<Permits>>,
    /// Those of a call by hand.
    own_permits: Option<Arc<Permits>>,
}

/// A limiter that the request has passed.
struct Passed {
    decision: Decision,
    /// Created when it is first adjusted; most requests never are.
    charge: Option<Arc<Charge>>,
}

/// What a layer keeps of a decision that it has added.
#[derive(Default)]
pub(crate) struct Added {
    pub(crate) index: usize,
    pub(crate) permits: Option<Arc<Permits>>,
    pub(crate) depends_on_outcome: bool,
}

/// The error of [`Admission::settle_each`](crate::Admission::settle_each).
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SettleError {
    /// No policy has the name. Nothing was settled.
    #[error(transparent)]
    UnknownPolicy(#[from] UnknownPolicy),
    /// The store failed.
    #[error("{error}; policies settled nevertheless: {settled:?}")]
    #[non_exhaustive]
    Store {
        /// The policies that were settled nevertheless: those of another layer, or in another slot of a cluster.
        settled: Vec<Arc<str>>,
        /// The store's error.
        #[source]
        error: StoreError,
    },
}

impl Admission {
    /// The decision of every layer on this request, the outermost first, with their current status. Later charges
    /// and refunds don't change them.
    pub fn decisions(&self) -> Vec<Decision> {
        let mut state = self.lock();
        state
            .passed()
            .map(|passed| passed.current().clone())
            .collect()
    }

    /// The units left under the policy of that name, after this request; `None` if the policy did not apply.
    pub fn remaining(&self, policy: &str) -> Option<u64> {
        let mut state = self.lock();
        let mut left = state.passed().filter_map(|passed| {
            let policy = passed.current().policy(policy)?;
            Some(policy.remaining())
        });
        left.next()
    }

    /// Returns a handle to the charges of this request under the policy of that name, in every layer that has one. If the
    /// policy did not apply to the request there are none, and the handle's methods do nothing.
    ///
    /// # Errors
    ///
    /// [`UnknownPolicy`] if no limiter that the request passed has a policy of that name. A request that passed none, since its
    /// layer is not [enabled](crate::RateLimitLayer::enabled), has no charges under any name.
    pub fn policy(&self, name: impl Into<Arc<str>>) -> Result<PolicyAdmission, UnknownPolicy> {
        let policy = name.into();
        self.check_policy(&policy)?;
        let admission = self.clone();
        Ok(PolicyAdmission { admission, policy })
    }

    /// Returns one [meter](PolicyAdmission::meter) for several policies, such as a caller's tokens and a global budget: they
    /// are settled to the same cost, by [`settle_each`](Admission::settle_each).
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// use tollgate::{Key, Limiter, Policy, Quota, extract};
    ///
    /// let limiter = Limiter::builder()
    ///     .policy(Policy::new("tokens", Quota::units(1_000).per_day()).cost(200))
    ///     .policy(Policy::new("budget", Quota::units(9_000).per_month()).cost(200).key(extract::global()))
    ///     .build()?;
    /// let admission = limiter.admit(Key::new("alice")).await?;
    /// let mut meter = admission.meter(["tokens", "budget"])?;
    /// meter.add(3);
    /// meter.finish().await?;
    /// assert_eq!(admission.remaining("tokens"), Some(997));
    /// assert_eq!(admission.remaining("budget"), Some(8_997));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`UnknownPolicy`] as from [`Admission::policy`].
    pub fn meter<N: Into<Arc<str>>>(
        &self,
        policies: impl IntoIterator<Item = N>,
    ) -> Result<UnitMeter, UnknownPolicy> {
        let policies: Vec<Arc<str>> = policies.into_iter().map(Into::into).collect();
        for policy in &policies {
            self.check_policy(policy)?;
        }
        Ok(UnitMeter::new(self.clone(), policies))
    }

    /// Refunds up to `units` of the request's charge under each policy, to the store that charged it.
    /// [`PolicyAdmission::refund`] refunds under one policy.
    ///
    /// Only units that have not refilled already are refunded, and only to the window, bucket or entries that were charged;
    /// under [`Gcra`](crate::Gcra) and [`TokenBucket`](crate::TokenBucket) that includes the rest of a unit. No unit is
    /// refunded twice: clones of an admission and its layers share what is left of the charge.
    ///
    /// Returns one result for each enforced policy of each layer, in the order of [`decisions`](Admission::decisions) and their
    /// [`policies`](Decision::policies). Charges of [shadow policies](crate::Policy::shadow) are refunded too, and not returned.
    ///
    /// ```
    /// use tollgate::{Limiter, Policy, Quota};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let limiter = Limiter::builder()
    ///     .policy(Policy::new("downloads", Quota::requests(10).per_hour()))
    ///     .build()?;
    /// let download = limiter.admit("alice").cost(3).await?;
    /// // Two of the three files did not exist.
    /// for refund in download.refund(2).await? {
    ///     assert_eq!((refund.policy(), refund.units()), ("downloads", 2));
    /// }
    /// // One unit is left to be refunded.
    /// assert_eq!(download.refund(5).await?[0].units(), 1);
    /// assert_eq!(download.remaining("downloads"), Some(10));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the store fails: charges before the one that failed are refunded. If the refund
    /// [may have been made](StoreError::may_have_run), it counts as made; else the units can still be refunded. Permits are released in
    /// any case, once the store responds.
    ///
    /// # Cancellation
    ///
    /// If the future is dropped, refunds that were sent are done nevertheless, and not repeated; the rest can still be
    /// refunded.
    pub async fn refund(&self, units: u64) -> Result<Vec<Refund>, StoreError> {
        self.refund_each(None, units).await
    }

    /// Settles several policies at once, each to its true cost in units, as
    /// [`PolicyAdmission::settle`](crate::limiter::PolicyAdmission::settle) settles one. Policies that are not named don't change; if
    /// one is named twice, the last cost counts.
    ///
    /// The policies of one layer are settled in one round trip, all or none of them, if that takes up to 64 charges and refunds;
    /// more take several. On a cluster, each slot takes a call of its own. Several layers are settled one after the other.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// use tollgate::{Key, Limiter, Policy, Quota};
    ///
    /// let limiter = Limiter::builder()
    ///     .policy(Policy::new("requests", Quota::requests(10).per_minute()))
    ///     .policy(Policy::new("tokens", Quota::requests(1_000).per_minute()).cost(200))
    ///     .policy(Policy::new("cents", Quota::requests(100).per_day()).cost(5))
    ///     .build()?;
    /// let admission = limiter.admit(Key::new("alice")).await?;
    /// admission.settle_each([("tokens", 500), ("cents", 3)]).await?;
    /// assert_eq!(admission.remaining("requests"), Some(9));
    /// assert_eq!(admission.remaining("tokens"), Some(500));
    /// assert_eq!(admission.remaining("cents"), Some(97));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`SettleError`]. If a name is unknown, nothing is settled. If the store fails, the error names the policies that were settled
    /// nevertheless, and the call can be repeated, as [`PolicyAdmission::settle`](crate::limiter::PolicyAdmission::settle).
    ///
    /// # Cancellation
    ///
    /// If the future is dropped, settlements that were sent are done nevertheless.
    pub async fn settle_each<N: Into<Arc<str>>>(
        &self,
        true_costs: impl IntoIterator<Item = (N, u64)>,
    ) -> Result<(), SettleError> {
        let mut settled: Vec<(Arc<str>, u64)> = Vec::new();
        for (name, true_cost) in true_costs {
            let policy = name.into();
            self.check_policy(&policy)?;
            settled.push((policy, true_cost));
        }
        self.settle_all(&settled).await
    }

    /// Holds the request's permits of in-flight limits until the returned guard is dropped. Without a guard they are released
    /// when the response's body, or stream, has been sent or dropped.
    ///
    /// The response that opens a WebSocket (RFC 6455) has no body, so its permit is released as soon as it is open, unless it
    /// is held. Policies that charge by the outcome see the handshake in any case.
    ///
    /// ```
    /// # #[cfg(feature = "axum")] {
    /// use axum::{
    ///     extract::ws::{WebSocket, WebSocketUpgrade},
    ///     response::Response,
    /// };
    /// use tollgate::Admission;
    ///
    /// async fn echo(upgrade: WebSocketUpgrade, admission: Admission) -> Response {
    ///     let permits = admission.hold_permits();
    ///     upgrade.on_upgrade(async move |mut socket: WebSocket| {
    ///         while let Some(Ok(message)) = socket.recv().await {
    ///             if socket.send(message).await.is_err() {
    ///                 break;
    ///             }
    ///         }
    ///         drop(permits);
    ///     })
    /// }
    /// # let _: axum::routing::MethodRouter = axum::routing::any(echo);
    /// # }
    /// ```
    ///
    /// A client that disappears without closing its connection keeps its permit until the connection is found broken: send
    /// pings, and close connections that don't respond.
    pub fn hold_permits(&self) -> PermitGuard {
        let state = self.lock();
        let permits = state.rare.iter().flat_map(|rare| &rare.permits);
        let permits = permits.filter_map(Weak::upgrade);
        PermitGuard {
            _permits: permits.collect(),
        }
    }

    /// Takes the permits of a call by hand, for a layer that holds them.
    pub(crate) fn take_permits(&self) -> Option<Arc<Permits>> {
        self.lock().rare.as_mut()?.own_permits.take()
    }

    /// The admission of a call by hand, which holds the decision's permits.
    pub(super) fn of(decision: Decision) -> Self {
        let (admission, added) = Self::first(&mut Some(decision));
        if added.permits.is_some() {
            admission.lock().rare().own_permits = added.permits;
        }
        admission
    }

    /// The admission of a request's outermost layer. The decision is moved out of its place only once, since it is large.
    pub(crate) fn first(decision: &mut Option<Decision>) -> (Self, Added) {
        let added = decision.as_ref().map(Added::of).unwrap_or_default();
        let mut admission = Self::default();
        if let Some(state) = admission.exclusive_state() {
            state.first = decision.take().map(Passed::new);
            state.share_permits(&added);
        }
        (admission, added)
    }

    /// The admission of a request that no layer has checked.
    pub(crate) fn none() -> Self {
        Self::default()
    }

    /// Adds the decision of an inner layer.
    pub(crate) fn join(&self, decision: Decision) -> Added {
        let mut added = Added::of(&decision);
        let mut state = self.lock();
        added.index = state.add(Passed::new(decision));
        state.share_permits(&added);
        added
    }

    /// Calls `with` with the decision of this index, whose statuses are those after the last adjustment.
    pub(crate) fn with_decision<T>(
        &self,
        index: usize,
        with: impl FnOnce(&Decision) -> T,
    ) -> Option<T> {
        let mut state = self.lock();
        Some(with(state.get(index)?.current()))
    }

    /// The same for the last reference that a layer has to the admission.
    pub(crate) fn with_last_decision(mut self, index: usize, with: impl FnOnce(&Decision)) {
        match self.exclusive_state() {
            Some(state) => {
                if let Some(passed) = state.get(index) {
                    with(passed.current());
                }
            }
            None => {
                self.with_decision(index, with);
            }
        }
    }

    /// Refunds what all layers charged a request that an inner layer rejected, without waiting for it.
    pub(crate) fn rollback(&self) {
        for charge in self.charges() {
            charge.refund_all();
        }
    }

    /// Refunds what one layer charged a request that its handler rejected, without waiting for it.
    pub(crate) fn rollback_at(&self, index: usize) {
        if let Some(charge) = self.charge_at(index) {
            charge.refund_all();
        }
    }

    /// Whether the charge of the decision of this index depends on the request's outcome.
    pub(crate) fn depends_on_outcome(&self, index: usize) -> bool {
        let mut state = self.lock();
        state
            .get(index)
            .is_some_and(|passed| passed.decision.depends_on_outcome())
    }

    /// Settles the decision of this index by the request's outcome, without waiting for it. Nothing is charged that the application
    /// has charged or settled.
    pub(crate) fn settle_outcome(&self, index: usize, outcome: &Outcome<'_>) {
        let Some((set, policies)) = self.lock().get(index).map(Passed::charging_policies) else {
            return;
        };
        let Some(charge) = self.charge_at(index) else {
            return;
        };
        let mut charged: SmallVec<[usize; 4]> = SmallVec::new();
        for (line, policy) in policies {
            let policy = &set.bound(policy).policy;
            // It may be called while a panic unwinds, where another one would abort the process. The panic hook has reported it.
            let charges = AssertUnwindSafe(|| policy.charges(outcome));
            let is_charged = panic::catch_unwind(charges).unwrap_or(true);
            match policy.charge() {
                ChargeSetting::RefundUnless(_) if !is_charged => charge.refund_line(line),
                ChargeSetting::After(_) if is_charged => charged.push(line),
                _ => {}
            }
        }
        charge.charge_after(&charged);
    }

    /// Fails if the request was checked, but by no limiter with a policy of that name.
    fn check_policy(&self, policy: &str) -> Result<(), UnknownPolicy> {
        let sets: SmallVec<[Arc<PolicySet>; 2]> = {
            let mut state = self.lock();
            let passed = state.passed();
            passed.map(|passed| passed.decision.set.clone()).collect()
        };
        let names = || sets.iter().flat_map(|set| set.policies()).map(Policy::name);
        if sets.is_empty() || names().any(|name| name == policy) {
            return Ok(());
        }
        Err(UnknownPolicy::new(policy, names().map(str::to_owned)))
    }

    async fn refund_each(
        &self,
        policy: Option<&str>,
        units: u64,
    ) -> Result<Vec<Refund>, StoreError> {
        let mut refunds = Vec::new();
        for charge in self.charges() {
            refunds.extend(charge.refund(policy, units).await?);
        }
        Ok(refunds)
    }

    async fn settle_all(&self, true_costs: &[(Arc<str>, u64)]) -> Result<(), SettleError> {
        let (mut failed, mut first_error) = (Vec::new(), None);
        for charge in self.charges() {
            if let Err(failure) = charge.settle(true_costs).await {
                failed.extend(failure.failed);
                first_error.get_or_insert(failure.error);
            }
        }
        let Some(error) = first_error else {
            return Ok(());
        };
        let names = true_costs.iter().map(|(name, _)| name.clone());
        let settled = names.filter(|name| !failed.contains(name)).collect();
        Err(SettleError::Store { settled, error })
    }

    /// The charges of all limiters that the request has passed.
    fn charges(&self) -> SmallVec<[Arc<Charge>; 2]> {
        let mut state = self.lock();
        let passed = state.passed();
        passed.map(|passed| passed.charge().clone()).collect()
    }

    fn charge_at(&self, index: usize) -> Option<Arc<Charge>> {
        let mut state = self.lock();
        Some(state.get(index)?.charge().clone())
    }

    /// The state without its lock, if this is the only reference to it.
    #[inline]
    fn exclusive_state(&mut self) -> Option<&mut State> {
        let state = Arc::get_mut(&mut self.shared)?.get_mut();
        Some(state.unwrap_or_else(PoisonError::into_inner))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.shared)
    }
}

impl fmt::Debug for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.decisions()).finish()
    }
}

impl State {
    /// Adds what an inner layer has passed, and returns its index.
    fn add(&mut self, passed: Passed) -> usize {
        if self.first.is_none() {
            self.first = Some(passed);
            return 0;
        }
        let inner = &mut self.rare().inner;
        inner.push(passed);
        inner.len()
    }

    #[inline]
    fn share_permits(&mut self, added: &Added) {
        if let Some(permits) = &added.permits {
            self.rare().permits.push(Arc::downgrade(permits));
        }
    }

    fn rare(&mut self) -> &mut RareState {
        self.rare.get_or_insert_default()
    }

    /// What the request has passed, the outermost first.
    fn passed(&mut self) -> impl Iterator<Item = &mut Passed> {
        let inner = self.rare.iter_mut().flat_map(|rare| &mut rare.inner);
        self.first.iter_mut().chain(inner)
    }

    #[inline]
    fn get(&mut self, index: usize) -> Option<&mut Passed> {
        match index.checked_sub(1) {
            None => self.first.as_mut(),
            Some(index) => self.rare.as_mut()?.inner.get_mut(index),
        }
    }
}

impl Added {
    /// Takes the decision's permits. Observers are called for them, so not under the admission's lock.
    #[inline]
    fn of(decision: &Decision) -> Self {
        Self {
            index: 0,
            permits: Permits::of(decision),
            depends_on_outcome: decision.depends_on_outcome(),
        }
    }
}

impl Passed {
    #[inline]
    fn new(decision: Decision) -> Self {
        Self {
            decision,
            charge: None,
        }
    }

    fn charge(&mut self) -> &Arc<Charge> {
        let decision = &self.decision;
        self.charge
            .get_or_insert_with(|| Arc::new(Charge::of(decision)))
    }

    /// The decision, with its status after the last adjustment.
    fn current(&mut self) -> &Decision {
        if let Some(charge) = &self.charge {
            charge.update(&mut self.decision.entries);
        }
        &self.decision
    }

    /// The lines and policies that are charged by the outcome: not those of a shadow that rejects, under which the work never began.
    fn charging_policies(&mut self) -> (Arc<PolicySet>, SmallVec<[(usize, u32); 4]>) {
        let entries = self.decision.entries.iter().enumerate();
        let charging = entries.filter(|(_, entry)| !entry.is_shadow_rejection());
        let policies = charging.map(|(line, entry)| (line, entry.policy));
        (self.decision.set.clone(), policies.collect())
    }
}

/// A handler's handle to the charge of its request under one policy. From [`Admission::policy`].
///
/// Its methods may be called at any time: in the handler, in an inner layer, and after the response, in a background task.
/// Calls for one request run one after the other: one whose future is not polled delays the next.
///
/// Under an in-flight limit ([`Concurrency`](crate::Concurrency)) a request holds the permits that it took on arrival.
/// [`charge`](PolicyAdmission::charge) and [`settle`](PolicyAdmission::settle) don't change them;
/// [`refund`](PolicyAdmission::refund) releases them early.
#[derive(Clone, Debug)]
pub struct PolicyAdmission {
    admission: Admission,
    policy: Arc<str>,
}

impl PolicyAdmission {
    /// The policy's name.
    pub fn policy(&self) -> &str {
        &self.policy
    }

    /// The units left under the policy, after this request and its later charges and refunds; `None` if the policy did not
    /// apply.
    pub fn remaining(&self) -> Option<u64> {
        self.admission.remaining(&self.policy)
    }

    /// Charges `units` more, also if fewer are left: down to a debt of at most one capacity, which has to refill before later
    /// requests are admitted.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the store fails. If the charge [may have been made](StoreError::may_have_run), it counts as made, and a
    /// repetition could charge twice; else nothing was charged. If several layers have the policy, those before the one that failed
    /// have charged nevertheless.
    ///
    /// # Cancellation
    ///
    /// If the future is dropped after it has sent the charge, the units are charged nevertheless, and later settlements and refunds
    /// count them. While another adjustment of the request is in progress, nothing is sent.
    pub async fn charge(&self, units: u64) -> Result<(), StoreError> {
        for charge in self.admission.charges() {
            charge.charge(&self.policy, Units::new(units)).await?;
        }
        Ok(())
    }

    /// Refunds up to `units` of the request's charge, as [`Admission::refund`] does: only units that
    /// have not refilled already, and no unit twice. Returns one result for each layer whose policy of this name is enforced
    /// and applied, the outermost first.
    ///
    /// ```
    /// use tollgate::{Limiter, Policy, Quota};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let limiter = Limiter::builder()
    ///     .policy(Policy::new("downloads", Quota::requests(10).per_hour()))
    ///     .build()?;
    /// let admission = limiter.admit("alice").cost(3).await?;
    /// let refunds = admission.policy("downloads")?.refund(2).await?;
    /// assert_eq!(refunds[0].units(), 2);
    /// assert_eq!(admission.remaining("downloads"), Some(9));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Cancellation
    ///
    /// If the future is dropped, refunds that were sent are done nevertheless; the rest can still be refunded.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the store fails: charges of layers before the one that failed are refunded. If the refund
    /// [may have been made](StoreError::may_have_run), it counts as made; else the units can still be refunded. Permits are released in
    /// any case, once the store responds.
    pub async fn refund(&self, units: u64) -> Result<Vec<Refund>, StoreError> {
        self.admission.refund_each(Some(&self.policy), units).await
    }

    /// Corrects the request's charge under this policy to `true_cost` units, by a charge or a refund: for costs that are known
    /// only when the work is done, such as an LLM's tokens. May be called again when the cost changes.
    /// [`Admission::settle_each`] settles several policies at once; a [meter](PolicyAdmission::meter) counts the units of a
    /// stream.
    ///
    /// A [shadow policy](crate::Policy::shadow) is settled by its own name; nothing is charged under one that rejected the
    /// request.
    ///
    /// ```
    /// use tollgate::{Limiter, Policy, Quota};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let limiter = Limiter::builder()
    ///     .policy(Policy::new("tokens", Quota::units(1_000).per_day()).cost(200))
    ///     .build()?;
    /// let admission = limiter.admit("alice").await?;
    /// let tokens = admission.policy("tokens")?;
    /// // The estimate of 200 becomes 350, then 120.
    /// tokens.settle(350).await?;
    /// assert_eq!(tokens.remaining(), Some(650));
    /// tokens.settle(120).await?;
    /// assert_eq!(tokens.remaining(), Some(880));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// A charge in process, made while the store failed, is settled in process.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the store fails: the request is charged as before, or its true cost. The call can be repeated: what
    /// [may have been done](StoreError::may_have_run) counts as done, and is not done twice. Units that it charged have no receipt: a later
    /// settlement to less leaves them to time. To have it
    /// sent after an outage instead, drop a [meter](UnitMeter) that is [set](UnitMeter::set) to the true cost.
    ///
    /// # Cancellation
    ///
    /// If the future is dropped, a settlement that was sent is done nevertheless, and later ones count it. While another adjustment of
    /// the request is in progress, nothing is sent.
    pub async fn settle(&self, true_cost: u64) -> Result<(), StoreError> {
        let true_costs = [(self.policy.clone(), true_cost)];
        store_error(self.admission.settle_all(&true_costs).await)
    }

    /// Returns a meter that counts the request's units from zero, and settles them when it is dropped: see [`UnitMeter`] for an
    /// example.
    pub fn meter(self) -> UnitMeter {
        UnitMeter::new(self.admission, vec![self.policy])
    }
}

/// The error of a settlement of policies that were checked before.
fn store_error(settled: Result<(), SettleError>) -> Result<(), StoreError> {
    match settled {
        Err(SettleError::Store { error, .. }) => Err(error),
        Ok(()) | Err(SettleError::UnknownPolicy(_)) => Ok(()),
    }
}

/// Counts the units of a request whose cost becomes known while it is served, such as the tokens of a stream, and
/// [settles](crate::limiter::PolicyAdmission::settle) them when it is dropped. From [`PolicyAdmission::meter`](crate::limiter::PolicyAdmission::meter), or [`Admission::meter`] for
/// several policies at once.
///
/// Move it into the stream: however the stream ends, also if the client disconnects, the request is charged the units that were
/// counted by then, in place of its charge on arrival. A meter that has counted nothing settles nothing: the charge on arrival
/// stays.
///
/// It may be dropped on any thread, also outside a runtime. The settlement is sent in the background. While the store fails it is
/// kept, and sent when the store is back, or by [`Limiter::shutdown`](crate::Limiter::shutdown). One whose response was lost with
/// its connection may not have been made: it is logged, counted in
/// [`HealthReport::unconfirmed`](crate::store::HealthReport::unconfirmed), and not sent again. [`finish`](UnitMeter::finish) waits for
/// the response instead, and returns the error.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// use futures_util::{StreamExt, stream};
/// use tollgate::{Key, Limiter, Policy, Quota};
///
/// let limiter = Limiter::builder()
///     .policy(Policy::new("tokens", Quota::units(1_000).per_day()).cost(200))
///     .build()?;
/// let admission = limiter.admit(Key::new("alice")).await?;
///
/// let mut meter = admission.policy("tokens")?.meter();
/// let tokens = stream::iter(["a", "b", "c"]).map(move |token| {
///     meter.add(1);
///     token
/// });
/// assert_eq!(tokens.collect::<String>().await, "abc");
/// assert_eq!(admission.remaining("tokens"), Some(997));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "it settles what was counted when it is dropped"]
pub struct UnitMeter {
    // Private, so that a closure that calls `add` captures the whole meter, and not a number in it.
    admission: Admission,
    policies: Vec<Arc<str>>,
    /// `None` until it has counted.
    units: Option<u64>,
}

impl UnitMeter {
    fn new(admission: Admission, policies: Vec<Arc<str>>) -> Self {
        Self {
            admission,
            policies,
            units: None,
        }
    }

    /// Counts `units` more. Nothing is sent before the meter is finished or dropped.
    pub fn add(&mut self, units: u64) {
        if units > 0 {
            self.units = Some(self.units().saturating_add(units));
        }
    }

    /// Replaces what was counted by `units`: for a stream that reports its true cost in its last event, while what was added
    /// before is an estimate for clients that disconnect.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// use futures_util::{StreamExt, stream};
    /// use tollgate::{Limiter, Policy, Quota};
    ///
    /// enum Event {
    ///     Text(&'static str),
    ///     Usage { total_tokens: u64 },
    /// }
    ///
    /// let limiter = Limiter::builder()
    ///     .policy(Policy::new("tokens", Quota::units(1_000).per_day()).cost(200))
    ///     .build()?;
    /// let admission = limiter.admit("alice").await?;
    /// let mut meter = admission.policy("tokens")?.meter();
    /// let answer = [Event::Text("Hel"), Event::Text("lo"), Event::Usage { total_tokens: 17 }];
    /// let answer = stream::iter(answer).inspect(move |event| match event {
    ///     Event::Text(_) => meter.add(1),
    ///     Event::Usage { total_tokens } => meter.set(*total_tokens),
    /// });
    /// assert_eq!(answer.count().await, 3);
    /// assert_eq!(admission.remaining("tokens"), Some(983));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// A meter that was set to 0 settles that: the request costs nothing.
    pub fn set(&mut self, units: u64) {
        self.units = Some(units);
    }

    /// The number of units that were counted.
    pub fn units(&self) -> u64 {
        self.units.unwrap_or(0)
    }

    /// Settles the counted units, and waits for the result. If the future is dropped, they are settled nevertheless.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the store fails. The units are not settled later: repeat it by
    /// [`PolicyAdmission::settle`](crate::limiter::PolicyAdmission::settle).
    pub async fn finish(mut self) -> Result<(), StoreError> {
        let true_costs = self.true_costs();
        let settled = self.admission.settle_all(&true_costs).await;
        // The drop does not settle it again.
        self.units = None;
        store_error(settled)
    }

    /// The true cost of each policy; none if it has not counted.
    fn true_costs(&self) -> Vec<(Arc<str>, u64)> {
        let Some(units) = self.units else {
            return Vec::new();
        };
        let policies = self.policies.iter();
        policies.map(|policy| (policy.clone(), units)).collect()
    }
}

impl Drop for UnitMeter {
    fn drop(&mut self) {
        let true_costs = self.true_costs();
        if !true_costs.is_empty() {
            for charge in self.admission.charges() {
                charge.settle_detached(&true_costs);
            }
        }
    }
}

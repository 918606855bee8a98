//! A handler's handle to the decisions on its request, which the layers around the handler share. A rejection is in `rejected`.

use std::{
    fmt, mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use smallvec::SmallVec;

use super::{
    decision::{Decision, Refund},
    permits::HeldPermits,
    policy_admission::{PolicyAdmission, UnitMeter},
    settle::{Charges, SettleError},
};
use crate::{
    error::{StoreError, UnknownPolicy},
    outcome::Outcome,
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
    shared: Arc<Mutex<AdmissionState>>,
}

/// Holds the permits of in-flight limits beyond the response: for a WebSocket, or work in the background. From
/// [`Admission::hold_permits`].
#[derive(Clone, Debug)]
#[must_use = "the permits are released when this is dropped"]
pub struct PermitGuard {
    _permits: Vec<Arc<HeldPermits>>,
}

impl Admission {
    /// The decision of every layer on this request, the outermost first, with their current status. Later charges
    /// and refunds don't change them.
    pub fn decisions(&self) -> Vec<Decision> {
        self.lock()
            .decisions()
            .map(|decision| decision.clone())
            .collect()
    }

    /// The units left under the policy of that name, after this request; `None` if the policy did not apply.
    pub fn remaining(&self, policy: &str) -> Option<u64> {
        let mut state = self.lock();
        let mut left = state
            .decisions()
            .filter_map(|decision| decision.policy(policy).map(|policy| policy.remaining()));
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
        Ok(PolicyAdmission::new(self.clone(), policy))
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

    /// Settles several policies at once, each to its true cost in units, as
    /// [`PolicyAdmission::settle`](crate::limiter::PolicyAdmission::settle) settles one. Policies that are not named don't change; if
    /// one is named twice, the last cost counts.
    ///
    /// The policies of one layer are settled in one round trip, all or none of them, if that takes up to 64 charges and refunds;
    /// more take several. Those of several layers, and on a cluster those whose keys are in several slots, are settled by one call
    /// each, all sent at once.
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
            match settled.iter_mut().find(|(name, _)| *name == policy) {
                Some((_, cost)) => *cost = true_cost,
                None => settled.push((policy, true_cost)),
            }
        }
        self.settle_all(&settled).await
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
        let _lock = self.settle_lock().lock_owned().await;
        let charges = self.charged_entries(None, Charges::All);
        self.refund_each(charges, units).await
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
        PermitGuard {
            _permits: self.lock().permits(),
        }
    }

    /// An admission that holds the decision's permit.
    pub(super) fn of(decision: Decision) -> Self {
        let (admission, added) = Self::first(&mut Some(decision));
        if added.permit.is_some() {
            admission.lock().hold(added.permit);
        }
        admission
    }

    /// The admission of a request's outermost layer. The decision is moved out of its place only once, since it is large.
    pub(crate) fn first(decision: &mut Option<Decision>) -> (Self, AddedDecision) {
        let mut admission = Self::default();
        let added = match admission.exclusive_state() {
            Some(state) => state.add_first(decision),
            None => AddedDecision::default(),
        };
        (admission, added)
    }

    /// Takes the permits of a call by hand out of its admission, for a layer that holds them in its place.
    pub(crate) fn take_permits(&self) -> Option<Arc<HeldPermits>> {
        self.lock().rare.as_mut()?.own_permit.take()
    }

    /// The state without its lock, if this is the only reference to it.
    #[inline]
    fn exclusive_state(&mut self) -> Option<&mut AdmissionState> {
        let state = Arc::get_mut(&mut self.shared)?.get_mut();
        Some(state.unwrap_or_else(PoisonError::into_inner))
    }

    /// The lock that is held while charges of this request are settled.
    pub(crate) fn settle_lock(&self) -> Arc<SettleLock> {
        self.lock().settle_lock()
    }

    /// The admission of a request that no layer has checked.
    pub(crate) fn none() -> Self {
        Self::default()
    }

    /// Adds the decision of an inner layer.
    pub(crate) fn join(&self, decision: Decision) -> AddedDecision {
        self.lock().add(decision)
    }

    /// Calls `read` with each layer's decision, and its index.
    pub(crate) fn for_each_decision(&self, mut read: impl FnMut(usize, &Decision)) {
        for (index, decision) in self.lock().decisions().enumerate() {
            read(index, decision);
        }
    }

    /// Calls `with` with the decision of this index.
    pub(crate) fn with_decision<T>(
        &self,
        index: usize,
        with: impl FnOnce(&mut Decision) -> T,
    ) -> Option<T> {
        self.lock().get(index).map(with)
    }

    /// The same for the last reference that a layer has to the admission.
    pub(crate) fn with_last_decision(mut self, index: usize, with: impl FnOnce(&mut Decision)) {
        if let Some(state) = self.exclusive_state() {
            if let Some(decision) = state.get(index) {
                with(decision);
            }
        } else {
            self.with_decision(index, with);
        }
    }

    /// Refunds what all layers charged a request that an inner layer rejected, without waiting for it.
    pub(crate) fn rollback(&self) {
        let mut state = self.lock();
        state.decisions().for_each(Decision::rollback);
    }

    /// Refunds what one layer charged a request that its handler rejected, without waiting for it.
    pub(crate) fn rollback_at(&self, index: usize) {
        self.with_decision(index, Decision::rollback);
    }

    /// Whether the charge of the decision of this index depends on the request's outcome.
    pub(crate) fn depends_on_outcome(&self, index: usize) -> bool {
        self.lock()
            .get(index)
            .is_some_and(|decision| decision.depends_on_outcome())
    }

    /// Settles the decision of this index by the request's outcome, without waiting for it.
    pub(crate) fn settle_outcome(&self, decision_index: usize, outcome: &Outcome<'_>) {
        let evaluated = self.with_decision(decision_index, |decision| {
            let policies = decision.entries.iter();
            let policies =
                policies.map(|entry| (!entry.is_shadow_rejection()).then_some(entry.policy));
            (
                decision.limiter.clone(),
                policies.collect::<SmallVec<[_; 4]>>(),
            )
        });
        let Some((limiter, policies)) = evaluated else {
            return;
        };
        // Not under the lock: the application's closures may use this admission.
        let are_charged = policies
            .iter()
            .map(|policy| policy.is_some_and(|policy| limiter.is_charged(policy, outcome)));
        let are_charged: SmallVec<[_; 4]> = are_charged.collect();
        let mut charging: SmallVec<[_; 2]> = SmallVec::new();
        if let Some(decision) = self.lock().get(decision_index) {
            let entries = decision.entries.iter_mut().zip(are_charged);
            for (index, (entry, is_charged)) in entries.enumerate() {
                let charge = limiter.settle(entry, is_charged);
                charging.extend(charge.map(|charge| (index, entry.units(), charge)));
            }
        }
        for (index, units, call) in charging {
            // A settlement by a task of the handler waits for this one, unless it is in progress already and holds the lock.
            let (settle_lock, admission) = (self.settle_lock().try_lock_owned(), self.downgrade());
            call.send_detached(move |charged| {
                // Without a result it stays pending, which counts as charged: it may have been made.
                if let (Some(admission), Ok(charged)) = (admission.upgrade(), charged) {
                    admission.with_decision(decision_index, |decision| {
                        let entry = decision.entries.get_mut(index)?;
                        entry.receipts.clear_pending(units);
                        charged
                            .iter()
                            .for_each(|charged| entry.push_charge(charged));
                        Some(())
                    });
                }
                drop(settle_lock);
            });
        }
    }

    /// Refunds up to `units` of each of these charges. Returns those of enforced policies.
    pub(super) async fn refund_each(
        &self,
        charges: Vec<EntryPosition>,
        units: u64,
    ) -> Result<Vec<Refund>, StoreError> {
        let mut refunds = Vec::new();
        for at in charges {
            let found = self.with_decision(at.decision, |decision| {
                let entry = decision.entries.get(at.entry)?;
                Some((decision.limiter.clone(), entry.clone()))
            });
            let Some((limiter, mut entry)) = found.flatten() else {
                continue;
            };
            let refunded = entry.refund(&limiter, units).await?;
            self.with_entry(at, |_, own| own.lazy_status = entry.lazy_status);
            if !entry.is_shadow() {
                let policy = &limiter.bound(entry.policy).policy;
                refunds.push(Refund::new(policy.name(), refunded));
            }
        }
        Ok(refunds)
    }

    /// A reference that holds no permit.
    pub(super) fn downgrade(&self) -> WeakAdmission {
        WeakAdmission(Arc::downgrade(&self.shared))
    }

    fn lock(&self) -> MutexGuard<'_, AdmissionState> {
        lock(&self.shared)
    }
}

impl fmt::Debug for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.lock().decisions()).finish()
    }
}

/// A reference to an admission that does not keep it.
pub(super) struct WeakAdmission(Weak<Mutex<AdmissionState>>);

impl WeakAdmission {
    pub(super) fn upgrade(&self) -> Option<Admission> {
        let shared = self.0.upgrade()?;
        Some(Admission { shared })
    }
}

/// Held while charges are settled, so that settlements of a request do not overlap.
pub(super) type SettleLock = tokio::sync::Mutex<()>;

/// Where a charge is: the index of its decision in the request's admission, and of its entry in the decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct EntryPosition {
    pub(super) decision: usize,
    pub(super) entry: usize,
}

/// The decisions on one request, and the permits that it holds.
#[derive(Default)]
pub(super) struct AdmissionState {
    /// The outermost layer's decision, or that of a call by hand.
    first: Option<Decision>,
    rare: Option<Box<RareState>>,
}

/// State that most requests don't have.
#[derive(Default)]
struct RareState {
    /// The decisions of layers further in.
    inner: Vec<Decision>,
    /// The permits that the layers hold.
    layer_permits: Vec<Weak<HeldPermits>>,
    /// The permit of a call by hand.
    own_permit: Option<Arc<HeldPermits>>,
    settle_lock: Option<Arc<SettleLock>>,
}

/// What a layer has to know of a decision that it has added to an admission.
#[derive(Default)]
pub(crate) struct AddedDecision {
    /// The decision's index in the admission.
    pub(crate) index: usize,
    /// Its permit, which the layer holds.
    pub(crate) permit: Option<Arc<HeldPermits>>,
    /// Whether a charge depends on the request's outcome.
    pub(crate) depends_on_outcome: bool,
}

impl AdmissionState {
    /// Moves the first decision here.
    pub(super) fn add_first(&mut self, decision: &mut Option<Decision>) -> AddedDecision {
        mem::swap(&mut self.first, decision);
        self.hand_over(0)
    }

    /// Adds a decision.
    pub(super) fn add(&mut self, decision: Decision) -> AddedDecision {
        if self.first.is_none() {
            return self.add_first(&mut Some(decision));
        }
        let inner = &mut self.rare().inner;
        inner.push(decision);
        let index = inner.len();
        self.hand_over(index)
    }

    /// Hands the permit of the decision of this index over to its layer.
    #[inline]
    fn hand_over(&mut self, index: usize) -> AddedDecision {
        let Some(decision) = self.get(index) else {
            return AddedDecision::default();
        };
        let added = AddedDecision {
            index,
            depends_on_outcome: decision.depends_on_outcome(),
            permit: decision.permit.take(),
        };
        if let Some(permit) = &added.permit {
            self.rare().layer_permits.push(Arc::downgrade(permit));
        }
        added
    }

    fn rare(&mut self) -> &mut RareState {
        self.rare.get_or_insert_default()
    }

    pub(super) fn decisions(&mut self) -> impl Iterator<Item = &mut Decision> {
        let inner = self.rare.iter_mut().flat_map(|rare| &mut rare.inner);
        self.first.iter_mut().chain(inner)
    }

    /// The decision with this index: 0 is the outermost layer's.
    #[inline]
    pub(super) fn get(&mut self, index: usize) -> Option<&mut Decision> {
        match index.checked_sub(1) {
            None => self.first.as_mut(),
            Some(index) => self.rare.as_mut()?.inner.get_mut(index),
        }
    }

    /// Holds the permit of a call by hand.
    pub(super) fn hold(&mut self, permit: Option<Arc<HeldPermits>>) {
        if permit.is_some() {
            self.rare().own_permit = permit;
        }
    }

    /// The permits that are still held.
    pub(super) fn permits(&self) -> Vec<Arc<HeldPermits>> {
        let permits = self.rare.iter().flat_map(|rare| &rare.layer_permits);
        permits.filter_map(Weak::upgrade).collect()
    }

    pub(super) fn settle_lock(&mut self) -> Arc<SettleLock> {
        self.rare().settle_lock.get_or_insert_default().clone()
    }
}

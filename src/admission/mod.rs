//! The results of a decision: an admission for a handler, or a rejection.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use smallvec::SmallVec;
use tokio::runtime::Handle;

use crate::{
    decision::{Brief, Decision, Permit},
    outcome::Outcome,
};

mod background;
mod judged;
pub(crate) mod meter;
pub(crate) mod policy_admission;
mod refused;
pub(crate) mod settle;

use judged::{Judged, Turn};
pub use refused::Rejected;
pub(crate) use refused::status_of;

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
    shared: Arc<Mutex<Judged>>,
}

/// Holds the permits of in-flight limits beyond the response: for a WebSocket, or work in the background. From
/// [`Admission::hold_permits`].
#[derive(Clone, Debug)]
#[must_use = "the permits are released when this is dropped"]
pub struct PermitGuard {
    _permits: Vec<Arc<dyn Permit>>,
}

impl Admission {
    /// An admission that holds the decision's permit.
    fn of(decision: Decision) -> Self {
        let (admission, permit) = Self::first(decision);
        admission.lock().hold(permit);
        admission
    }

    /// An admission for a layer that is the first; returns the decision's permit too, which the layer holds.
    pub(crate) fn first(decision: Decision) -> (Self, Option<Arc<dyn Permit>>) {
        let admission = Self::default();
        let (_, permit) = admission.lock().add(decision);
        (admission, permit)
    }

    /// An admission for a layer that is the first, of a decision in few words.
    #[inline]
    pub(crate) fn brief(decision: Brief) -> Self {
        Self {
            shared: Arc::new(Mutex::new(Judged::briefly(decision))),
        }
    }

    /// Whose turn it is to settle.
    pub(crate) fn turn(&self) -> Arc<Turn> {
        self.lock().turn()
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

    /// For requests that no layer judged.
    pub(crate) fn unlimited() -> Self {
        Self::default()
    }

    /// The decision of every layer on this request, the outermost first, with their current status. They share the charges with
    /// this admission and its layers: a unit is [refunded](Decision::refund) once.
    pub fn decisions(&self) -> Vec<Decision> {
        self.lock()
            .decisions()
            .map(|decision| decision.clone())
            .collect()
    }

    /// The units left under the policy of that name, after this request; `None` if the policy did not apply.
    pub fn remaining(&self, policy: &str) -> Option<u64> {
        let mut judged = self.lock();
        let mut left = judged
            .decisions()
            .filter_map(|decision| decision.policy(policy).map(|v| v.remaining()));
        left.next()
    }

    /// Joins the decision of a layer, which holds its permit; returns where it stands.
    pub(crate) fn join(&self, decision: Decision) -> (usize, Option<Arc<dyn Permit>>) {
        let mut judged = self.lock();
        let twice = judged.counted_before(&decision);
        let twice = twice.map(|policy| (policy, decision.books.clone()));
        let joined = judged.add(decision);
        drop(judged);
        if let Some((policy, books)) = twice {
            books.log_counted_twice(&policy);
        }
        joined
    }

    /// Looks at each layer's decision, and its place.
    pub(crate) fn each(&self, mut look: impl FnMut(usize, &Decision)) {
        for (place, decision) in self.lock().decisions().enumerate() {
            look(place, decision);
        }
    }

    /// Does something to the decision at a place.
    pub(crate) fn with<T>(&self, place: usize, with: impl FnOnce(&mut Decision) -> T) -> Option<T> {
        self.lock().at(place).map(with)
    }

    /// Looks a last time at the decision at a place, as it stands now.
    pub(crate) fn last_look(self, place: usize, look: impl FnOnce(&Decision)) {
        match Arc::try_unwrap(self.shared) {
            // This was the last reference to it.
            Ok(judged) => {
                let judged = judged.into_inner();
                judged
                    .unwrap_or_else(PoisonError::into_inner)
                    .look(place, look);
            }
            Err(shared) => {
                Self { shared }.with(place, |decision| look(decision));
            }
        }
    }

    /// Refunds what all layers charged a request that a layer further in rejected, without waiting for it.
    pub(crate) fn rollback(&self) {
        let mut judged = self.lock();
        judged.decisions().for_each(Decision::rollback);
    }

    /// Refunds what the layer at a place charged a request that its handler rejected, without waiting for it.
    pub(crate) fn rollback_at(&self, place: usize) {
        self.with(place, Decision::rollback);
    }

    /// Whether the charge of the decision at a place depends on what becomes of the request.
    pub(crate) fn settles(&self, place: usize) -> bool {
        self.lock()
            .at(place)
            .is_some_and(|decision| decision.settles())
    }

    /// Settles the decision at a place by what became of its request, without waiting for it.
    pub(crate) fn settle_by(&self, place: usize, outcome: &Outcome<'_>) {
        let judging = self.with(place, |decision| {
            let policies = decision.counted.iter();
            let policies =
                policies.map(|counted| (!counted.is_shadow_refusal()).then_some(counted.policy));
            (
                decision.books.clone(),
                policies.collect::<SmallVec<[_; 4]>>(),
            )
        });
        let Some((books, policies)) = judging else {
            return;
        };
        // Not under the lock: the application's closures may use this admission.
        let charges = policies
            .iter()
            .map(|policy| policy.is_some_and(|policy| books.charges(policy, outcome)));
        let charges: SmallVec<[_; 4]> = charges.collect();
        // A handler's task may go on and settle what the response charges.
        let watches = Arc::strong_count(&self.shared) > 1;
        let handle = Handle::try_current().ok().filter(|_| watches);
        let mut charging = Vec::new();
        if let Some(decision) = self.lock().at(place) {
            let counted = decision.counted.iter_mut().zip(charges);
            for (index, (counted, charges)) in counted.enumerate() {
                let charge = books.settle(counted, charges, handle.is_some());
                charging.extend(charge.map(|charge| (index, counted.units(), charge)));
            }
        }
        let Some(handle) = handle.filter(|_| !charging.is_empty()) else {
            return;
        };
        // It waits for its turn behind this, unless it has it already.
        let turn = self.turn().try_lock_owned();
        let admission = self.clone();
        drop(handle.spawn(async move {
            let _turn = turn;
            for (index, units, charge) in charging {
                let charged = charge.await;
                admission.with(place, |decision| {
                    let counted = decision.counted.get_mut(index)?;
                    // Without an answer it counts as charged: it may be, or will be.
                    let charged = charged.ok()?;
                    counted.receipts.answered(units);
                    charged.iter().for_each(|charged| counted.charged(charged));
                    Some(())
                });
            }
        }));
    }

    fn lock(&self) -> MutexGuard<'_, Judged> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.lock().decisions()).finish()
    }
}

impl Decision {
    /// Whether its charge depends on what becomes of the request.
    pub(crate) fn settles(&self) -> bool {
        self.counted
            .iter()
            .any(|counted| self.books.settles(counted))
    }

    /// Refunds what was charged, without waiting for it. The response charges and refunds nothing more.
    fn rollback(&mut self) {
        self.books.give_back(&mut self.counted);
        for counted in &self.counted {
            counted.receipts.settle();
        }
    }

    /// Converts the decision into an [`Admission`] that holds its permits, or into the error of a request that was not
    /// admitted.
    ///
    /// # Errors
    ///
    /// [`Rejected`] if the request was not admitted.
    pub fn into_result(self) -> Result<Admission, Rejected> {
        if self.is_admitted() {
            Ok(Admission::of(self))
        } else {
            Err(Rejected::new(self))
        }
    }
}

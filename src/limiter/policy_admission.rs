//! The charge of a request under one policy, for its handler to correct.

use std::sync::Arc;

use super::{
    adjust::Adjustment,
    admission::{Admission, EntryPosition},
    decision::Refund,
    settle::{Charges, SettleError},
};
use crate::{error::StoreError, observe::UnitsKind, store::Units};

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
    pub(super) fn new(admission: Admission, policy: Arc<str>) -> Self {
        Self { admission, policy }
    }

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
    /// If the future is dropped after it has sent the charge, the units are charged nevertheless.
    pub async fn charge(&self, units: u64) -> Result<(), StoreError> {
        let _lock = self.admission.settle_lock().lock_owned().await;
        for at in self
            .admission
            .charged_entries(Some(&self.policy), Charges::Units)
        {
            self.charge_at(at, Units::new(units)).await?;
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
        let _lock = self.admission.settle_lock().lock_owned().await;
        let charges = self
            .admission
            .charged_entries(Some(&self.policy), Charges::All);
        self.admission.refund_each(charges, units).await
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
    /// [may have been done](StoreError::may_have_run) counts as done, and is not done twice. To have it
    /// sent after an outage instead, drop a [meter](UnitMeter) that is [set](UnitMeter::set) to the true cost.
    ///
    /// # Cancellation
    ///
    /// If the future is dropped, a settlement that was sent is done nevertheless.
    pub async fn settle(&self, true_cost: u64) -> Result<(), StoreError> {
        let settling = [(self.policy.clone(), true_cost)];
        match self.admission.settle_all(&settling).await {
            Err(SettleError::Store { error, .. }) => Err(error),
            Ok(()) | Err(SettleError::UnknownPolicy(_)) => Ok(()),
        }
    }

    /// Returns a meter that counts the request's units from zero, and settles them when it is dropped: see [`UnitMeter`] for an
    /// example.
    pub fn meter(self) -> UnitMeter {
        UnitMeter::new(self.admission, vec![self.policy])
    }

    async fn charge_at(&self, at: EntryPosition, units: Units) -> Result<(), StoreError> {
        let charging = self.admission.with_entry(at, |limiter, entry| {
            (!units.is_zero()).then(|| {
                // Pending from now on: if the future is dropped, it is charged nevertheless, and counts for later calls.
                entry.receipts.add_pending(units);
                entry.receipts.mark_settled();
                limiter.adjust_call(&[Adjustment {
                    entry,
                    receipt: None,
                    units: units.get(),
                    kind: UnitsKind::Charged,
                }])
            })
        });
        let Some(call) = charging.flatten().flatten() else {
            return Ok(());
        };
        let charged = call.send().await;
        self.admission.with_entry(at, |_, entry| match &charged {
            Ok(charged) => {
                entry.receipts.clear_pending(units);
                charged
                    .iter()
                    .for_each(|charged| entry.push_charge(charged));
            }
            Err(error) => entry.receipts.fail_pending(units, error),
        });
        charged.map(drop)
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
    /// `None` until something was counted: then there is nothing to settle.
    units: Option<u64>,
}

impl UnitMeter {
    pub(super) fn new(admission: Admission, policies: Vec<Arc<str>>) -> Self {
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
        let settled = match self.true_costs() {
            Some(true_costs) => self.admission.settle_all(&true_costs).await,
            None => Ok(()),
        };
        // The drop does not settle it again.
        self.units = None;
        match settled {
            Err(SettleError::Store { error, .. }) => Err(error),
            Ok(()) | Err(SettleError::UnknownPolicy(_)) => Ok(()),
        }
    }

    fn true_costs(&self) -> Option<Vec<(Arc<str>, u64)>> {
        let units = self.units?;
        let policies = self.policies.iter();
        Some(policies.map(|policy| (policy.clone(), units)).collect())
    }
}

impl Drop for UnitMeter {
    fn drop(&mut self) {
        if let Some(true_costs) = self.true_costs() {
            self.admission.clone().settle_in_background(true_costs);
        }
    }
}

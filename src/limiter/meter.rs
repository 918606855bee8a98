//! A meter that counts units and settles them when it is dropped.

use std::sync::Arc;

use super::{admission::Admission, settle::SettleError};
use crate::error::StoreError;

/// Counts the units of a request whose cost becomes known while it is served, such as the tokens of a stream, and
/// [settles](crate::limiter::PolicyAdmission::settle) them when it is dropped. From [`PolicyAdmission::meter`](crate::limiter::PolicyAdmission::meter), or [`Admission::meter`] for
/// several policies at once.
///
/// Move it into the stream: however the stream ends, also if the client disconnects, the request is charged the units that were
/// counted by then, in place of its charge on arrival. A meter that has counted nothing settles nothing: the charge on arrival
/// stays.
///
/// It may be dropped on any thread, also outside a runtime. A settlement that takes time runs in the background. While the
/// store fails, it is kept, sent when the store is back, and flushed by [`Limiter::shutdown`](crate::Limiter::shutdown).
/// Whether a settlement that was sent and got no response was done is unknown: it is logged, counted in
/// [`HealthReport::unconfirmed`](crate::store::HealthReport::unconfirmed) and not sent again. A settlement in flight when its runtime
/// ends may be lost likewise. [`finish`](UnitMeter::finish) waits for the response instead, and returns the error.
///
/// With [`LocalFallback::write_back`](crate::LocalFallback::write_back), an estimate that was charged in process and written back
/// before the meter is dropped stays charged to the store: see [`settle`](crate::limiter::PolicyAdmission::settle).
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
    /// [`StoreError`] if the store fails: see [`PolicyAdmission::settle`](crate::limiter::PolicyAdmission::settle). The units are not settled later.
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

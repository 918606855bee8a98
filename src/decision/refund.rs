//! Refunds of a decision's charges.

use std::sync::Arc;

use tokio::task::coop::consume_budget;

use super::{Adjustment, Decision, LimiterBackend, PolicyEntry};
use crate::{error::StoreError, store::Op};

/// The result of a refund under one policy: see [`Decision::refund`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refund {
    policy: Box<str>,
    units: u64,
}

impl Refund {
    pub(crate) fn new(policy: &str, units: u64) -> Self {
        let policy = policy.into();
        Self { policy, units }
    }

    /// The policy's name.
    pub fn policy(&self) -> &str {
        &self.policy
    }

    /// The number of units that were refunded. The rest of a unit that has partly refilled counts as one.
    pub fn units(&self) -> u64 {
        self.units
    }
}

impl Decision {
    /// Refunds up to `units` of the request's charge under each policy, to the store that charged it.
    ///
    /// Only units that have not refilled already are refunded, and only to the window, bucket or entries that were charged;
    /// under [`Gcra`](crate::Gcra) and [`TokenBucket`](crate::TokenBucket) that includes the rest of a unit. No unit is
    /// refunded twice: clones of a decision, its [`Admission`](crate::Admission) and its layer share what is left of the
    /// charge.
    ///
    /// Returns one result for each of the decision's [`policies`](Decision::policies), in their order, which then have the
    /// status after the refund. Charges of [shadow policies](crate::Policy::shadow) are refunded too, and not reported.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the store fails. After [`Deferred`](StoreError::Deferred) the units are refunded once it responds: do not
    /// repeat it. After any other error policies before the one that failed may have been refunded; the units of that one are not
    /// refunded later, unless the error is a `Timeout` or `Connection`: a call that was sent may have run, or still run.
    ///
    /// # Cancellation
    ///
    /// If the future is dropped, refunds that were sent are done nevertheless, and not repeated; the rest can still be
    /// refunded.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// use tollgate::{Key, Limiter, Policy, Quota};
    ///
    /// let limiter = Limiter::builder()
    ///     .policy(Policy::new("downloads", Quota::requests(10).per_hour()))
    ///     .build()?;
    /// let mut download = limiter.check(Key::new("alice")).cost(3).await;
    /// // Two of the three files did not exist.
    /// for refund in download.refund(2).await? {
    ///     assert_eq!((refund.policy(), refund.units()), ("downloads", 2));
    /// }
    /// // One unit is left to be refunded.
    /// let refunds = download.clone().refund(5).await?;
    /// assert_eq!(refunds[0].units(), 1);
    /// # Ok(()) })
    /// # }
    /// ```
    pub async fn refund(&mut self, units: u64) -> Result<Vec<Refund>, StoreError> {
        let (mut refunds, mut deferred) = (Vec::with_capacity(self.entries.len()), None);
        for entry in &mut self.entries {
            let refunded = entry.refund(&self.backend, units).await;
            let refunded = StoreError::set_aside(refunded, &mut deferred)?;
            if let Some(refunded) = refunded.filter(|_| !entry.is_shadow()) {
                refunds.push(Refund::new(self.backend.name(entry.policy), refunded));
            }
        }
        deferred.map_or(Ok(refunds), Err)
    }
}

impl PolicyEntry {
    /// Refunds up to `units`, the newest charge first; returns how many that were.
    pub(crate) async fn refund(
        &mut self,
        backend: &Arc<dyn LimiterBackend>,
        mut units: u64,
    ) -> Result<u64, StoreError> {
        // An in-process store responds at once: without this, a loop of refunds would starve other tasks.
        consume_budget().await;
        let (mut refunded, mut before, mut deferred) = (0, usize::MAX, None);
        while let Some(step) = self.receipts.take_refund_step(before, units) {
            (units, before) = (units - step.units, step.index);
            let adjustment = Adjustment {
                entry: self,
                receipt: step.receipt,
                units: step.units,
            };
            let adjusted = backend.adjust(Op::Refund, &[adjustment]).await;
            let adjusted = adjusted.inspect_err(|error| self.receipts.note_failure(error));
            let adjusted = StoreError::set_aside(adjusted, &mut deferred)?;
            for adjusted in adjusted.into_iter().flatten() {
                self.receipts.finish_refund_step(&step, adjusted.units);
                self.set_status(&adjusted);
                refunded += adjusted.units;
            }
        }
        deferred.map_or(Ok(refunded), Err)
    }
}

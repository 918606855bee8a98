//! The charge of a request under one policy, for its handler to correct.

use std::sync::Arc;

use super::{
    Admission,
    settle::{SettleError, Which},
};
use crate::{
    decision::{Adjust, Refund},
    error::{StoreError, UnknownPolicy},
    store::{Op, Units},
    strategy::ChargeReceipt,
};

/// A handler's handle to the charge of its request under one policy. From [`Admission::policy`].
///
/// Its methods may be called at any time: in the handler, in an inner layer, and after the response, in a background task.
/// Calls for one request run one after the other.
///
/// Under an in-flight limit ([`Concurrency`](crate::Concurrency)) a request holds the permits that it took on arrival.
/// [`charge`](PolicyAdmission::charge) and [`settle`](PolicyAdmission::settle) don't change them;
/// [`refund`](PolicyAdmission::refund) releases them early.
#[derive(Clone, Debug)]
pub struct PolicyAdmission {
    admission: Admission,
    policy: Arc<str>,
}

impl Admission {
    /// Returns a handle to the charges of this request under the policy of that name, in every layer that has one. If the
    /// policy did not apply to the request there are none, and the handle's methods do nothing.
    ///
    /// # Errors
    ///
    /// [`UnknownPolicy`] if no limiter that the request passed has a policy of that name. A request that passed none, since its
    /// layer is not [enabled](crate::RateLimitLayer::enabled), has no charges under any name.
    pub fn policy(&self, name: impl Into<Arc<str>>) -> Result<PolicyAdmission, UnknownPolicy> {
        let (policy, admission) = (name.into(), self.clone());
        self.check_policy(&policy)?;
        Ok(PolicyAdmission { admission, policy })
    }
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
    /// [`StoreError`] if the store fails. After [`Timeout`](StoreError::Timeout) and [`Connection`](StoreError::Connection) it
    /// is unknown whether the units were charged.
    ///
    /// # Cancellation
    ///
    /// If the future is dropped after its first poll, the units are charged nevertheless.
    pub async fn charge(&self, units: u64) -> Result<(), StoreError> {
        let _turn = self.admission.turn().lock_owned().await;
        for at in self.admission.places(&self.policy, Which::Counted) {
            self.charge_at(at, Units::new(units)).await?;
        }
        Ok(())
    }

    /// Refunds up to `units` of the request's charge, as [`Decision::refund`](crate::Decision::refund) does: only units that
    /// have not refilled already, and no unit twice. Returns one result for each layer whose policy of this name is enforced
    /// and applied, the outermost first.
    ///
    /// # Cancellation
    ///
    /// If the future is dropped, refunds that were sent are done nevertheless; the rest can still be refunded.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the store fails. Charges of layers before the one that failed may have been refunded; the units of
    /// that one are not refunded later.
    pub async fn refund(&self, units: u64) -> Result<Vec<Refund>, StoreError> {
        let _turn = self.admission.turn().lock_owned().await;
        let mut refunds = Vec::new();
        for at in self.admission.places(&self.policy, Which::All) {
            refunds.extend(self.refund_at(at, units).await?);
        }
        Ok(refunds)
    }

    /// Corrects the request's charge under this policy to `true_cost` units, by a charge or a refund: for costs that are known
    /// only when the work is done, such as an LLM's tokens. May be called again when the cost changes.
    /// [`Admission::settle_each`] settles several policies at once; a [meter](PolicyAdmission::meter) counts the units of a
    /// stream.
    ///
    /// Shadow candidates [of this policy](crate::Policy::shadow_of) are settled with it, in the same round trip, unless they
    /// rejected the request, so that [`ShadowStats`](crate::ShadowStats) compare true costs. [`charge`](Self::charge) and
    /// [`refund`](Self::refund) don't change candidates, which have handles of their own.
    ///
    /// A charge in process, made while the store failed, is settled in process. With
    /// [`write_back`](crate::LocalFallback::write_back) the estimate stays charged to the store if it was written back before.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the store fails. After [`Timeout`](StoreError::Timeout) and [`Connection`](StoreError::Connection) it
    /// is unknown whether the settlement was done, so that the request is charged either as before or its true cost. A
    /// repetition could charge or refund twice: each further settlement under this policy is
    /// [`Unconfirmed`](StoreError::Unconfirmed), also after a [`charge`](Self::charge) or [`refund`](Self::refund) that failed
    /// so. The application may correct it by [`charge`](Self::charge) or [`PolicyHandle::credit`](crate::PolicyHandle::credit).
    /// After any other error nothing was done, and the settlement can be repeated.
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

    /// The admission, and the policy's name.
    pub(super) fn into_parts(self) -> (Admission, Arc<str>) {
        (self.admission, self.policy)
    }

    async fn charge_at(&self, at: (usize, usize), units: Units) -> Result<(), StoreError> {
        let charging = self.admission.with_counted(at, |books, counted| {
            (!units.is_zero()).then(|| {
                // Should this future be dropped, it is charged nevertheless, and counts for what comes later.
                counted.receipts.add_unanswered(units);
                counted.receipts.settle();
                let line = Adjust {
                    counted,
                    receipt: ChargeReceipt::NONE,
                    units: units.get(),
                };
                books.adjust(Op::ForceAcquire, &[line])
            })
        });
        if let Some(Some(charging)) = charging {
            let charged = charging.await;
            self.admission.with_counted(at, |_, counted| {
                counted.receipts.answered(units);
                match charged.as_deref() {
                    Ok([charged]) => counted.charged(charged),
                    Ok(_) => {}
                    Err(error) => counted.receipts.failed(error),
                }
            });
            charged?;
        }
        Ok(())
    }

    async fn refund_at(
        &self,
        at: (usize, usize),
        units: u64,
    ) -> Result<Option<Refund>, StoreError> {
        let found = self.admission.with(at.0, |decision| {
            let counted = decision.counted.get(at.1)?;
            Some((decision.books.clone(), counted.clone()))
        });
        let Some((books, mut counted)) = found.flatten() else {
            return Ok(None);
        };
        let refunded = counted.refund(&books, units).await?;
        self.admission
            .with_counted(at, |_, own| own.standing = counted.standing);
        let refund = || Refund::new(books.name(counted.policy), refunded);
        Ok((!counted.is_shadow()).then(refund))
    }
}

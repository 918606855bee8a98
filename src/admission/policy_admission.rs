//! What a request was charged under one policy, for its handler to correct.

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

/// A handler's handle to what its request was charged under one policy: see [`Admission::policy`].
///
/// Everything here may be done at any time while a clone of the [`Admission`] lives: in the handler, in a layer further
/// in, and after the response, in a task that goes on.
///
/// Under an in-flight limit ([`Concurrency`](crate::Concurrency)) a request holds the permits that it took on arrival.
/// [`charge`](PolicyAdmission::charge) and [`settle`](PolicyAdmission::settle) leave them as they are;
/// [`refund`](PolicyAdmission::refund) gives them back early.
#[derive(Clone, Debug)]
pub struct PolicyAdmission {
    admission: Admission,
    policy: Arc<str>,
}

impl Admission {
    /// The charges of this request under the policy of that name, of every layer that has one. There are none if the policy
    /// did not apply to the request, and nothing then happens.
    ///
    /// # Errors
    ///
    /// [`UnknownPolicy`] if none of the limiters that decided on the request has a policy of that name. A request that no
    /// limiter saw, behind a layer that is not [enabled](crate::RateLimitLayer::enabled), has no charges under any name.
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

    /// Units left under the policy, after this request and what was charged and refunded since; `None` if it didn't apply.
    pub fn remaining(&self) -> Option<u64> {
        self.admission.remaining(&self.policy)
    }

    /// Charges `units` more, past what is left if need be: down to a debt of at most one capacity, which later requests
    /// wait for. Dropped before it is done, it is charged nevertheless.
    ///
    /// # Errors
    ///
    /// If the store can't answer. Whether it was charged is not known then.
    pub async fn charge(&self, units: u64) -> Result<(), StoreError> {
        let _turn = self.admission.turn().lock_owned().await;
        for at in self.admission.places(&self.policy, Which::Counted) {
            self.charge_at(at, Units::new(units)).await?;
        }
        Ok(())
    }

    /// Refunds up to `units` of what the request was charged, as [`Decision::refund`](crate::Decision::refund) does: only
    /// what time has not already given back, and no unit twice. Returns one result for each layer whose policy of this name
    /// is enforced and applied, the outermost first.
    ///
    /// Dropped before it is done, it leaves what it has not sent to the store to a later refund.
    ///
    /// # Errors
    ///
    /// If the store can't answer. Under the layers before the one that failed, units may have been refunded; the
    /// units of that one are not refunded later.
    pub async fn refund(&self, units: u64) -> Result<Vec<Refund>, StoreError> {
        let _turn = self.admission.turn().lock_owned().await;
        let mut refunds = Vec::new();
        for at in self.admission.places(&self.policy, Which::All) {
            refunds.extend(self.refund_at(at, units).await?);
        }
        Ok(refunds)
    }

    /// Charges or refunds, until what the request is charged under this policy is its `true_cost`: for costs that are known
    /// only when the work is done, such as an LLM's tokens. May be called again as the cost becomes clearer. Several policies
    /// at once are settled by [`Admission::settle_each`]; a stream's units are counted by a [meter](PolicyAdmission::meter).
    ///
    /// A candidate [in the shadow](crate::Policy::shadow_of) of this policy is settled with it, in the same round trip, unless it
    /// rejected the request: [`ShadowStats`](crate::ShadowStats) compare true costs. [`charge`](Self::charge) and
    /// [`refund`](Self::refund) leave it as it is: name it to adjust it.
    ///
    /// What was charged in process while the store failed is settled in process. With
    /// [`write_back`](crate::LocalFallback::write_back) the estimate stays charged to the store if it was written back before.
    ///
    /// # Errors
    ///
    /// If the store can't answer. After [`Timeout`](StoreError::Timeout) and [`Connection`](StoreError::Connection) it is not
    /// known whether the settlement was done: it is not sent again, since it could be charged or refunded twice, and each
    /// further one under this policy is [`Unconfirmed`](StoreError::Unconfirmed), also after a [`charge`](Self::charge) or
    /// [`refund`](Self::refund) that ended so. The request is then charged what it was before, or its true cost. The
    /// application may leave it so, make up for it by [`charge`](Self::charge) or
    /// [`PolicyHandle::credit`](crate::PolicyHandle::credit), or note it for its own accounts. After any other error nothing
    /// was done, and the settlement can be repeated.
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

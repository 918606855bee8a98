//! Charging and giving back from a handler.

use std::sync::Arc;

use crate::{
    admission::Admission,
    decision::{Books, Counted, Part, Refund},
    error::{StoreError, UnknownPolicy},
    store::{Op, Units},
    strategy::ChargeReceipt,
};

/// A handler's handle to what its request was charged, under every policy or [one of them](Admission::policy).
///
/// Everything here may be done at any time while a clone of the [`Admission`] lives: in the handler, in a layer further
/// in, and after the response, in a task that goes on.
///
/// Under an in-flight limit ([`Concurrency`](crate::Concurrency)) a request holds the places that it took on arrival.
/// [`charge`](PolicyAdmission::charge) and [`settle`](PolicyAdmission::settle) leave them as they are; [`refund`](PolicyAdmission::refund) gives them
/// back early.
#[derive(Clone, Debug)]
pub struct PolicyAdmission {
    admission: Admission,
    policy: Option<String>,
}

/// Which charges of a request are meant.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    All,
    /// Those that are counted, and not held: a permit's units have names in the store, and more of them would have none.
    Counted,
}

impl Admission {
    /// The charges of this request under the policy of that name, alone. There are none if the policy did not apply to the
    /// request, and nothing then happens.
    ///
    /// # Errors
    ///
    /// [`UnknownPolicy`] if none of the limiters that judged the request has a policy of that name. A request that no
    /// limiter judged, behind a layer that is not [enabled](crate::RateLimitLayer::enabled), has no charges under any name.
    pub fn policy(&self, name: impl Into<String>) -> Result<PolicyAdmission, UnknownPolicy> {
        let (name, mut known) = (name.into(), Vec::new());
        self.each(|_, decision| {
            known.extend(decision.books.names().into_iter().map(str::to_owned));
        });
        if !known.is_empty() && !known.contains(&name) {
            return Err(UnknownPolicy { name, known });
        }
        Ok(PolicyAdmission {
            admission: self.clone(),
            policy: Some(name),
        })
    }

    fn every_policy(&self) -> PolicyAdmission {
        PolicyAdmission {
            admission: self.clone(),
            policy: None,
        }
    }

    /// See [`PolicyAdmission::charge`]; under every policy.
    ///
    /// # Errors
    ///
    /// If the store can't answer.
    pub async fn charge(&self, units: u64) -> Result<(), StoreError> {
        self.every_policy().charge(units).await
    }

    /// See [`PolicyAdmission::refund`]; under every policy.
    ///
    /// # Errors
    ///
    /// If the store can't answer.
    pub async fn refund(&self, units: u64) -> Result<Vec<Refund>, StoreError> {
        self.every_policy().refund(units).await
    }

    /// See [`PolicyAdmission::settle`]; under every policy.
    ///
    /// # Errors
    ///
    /// If the store can't answer.
    pub async fn settle(&self, true_cost: u64) -> Result<(), StoreError> {
        self.every_policy().settle(true_cost).await
    }
}

impl PolicyAdmission {
    /// Charges `units` more, past what is left if need be: down to a debt of at most one capacity, which later requests
    /// wait for. Dropped before it is done, it is charged all the same.
    ///
    /// # Errors
    ///
    /// If the store can't answer. Whether it was charged is not known then.
    pub async fn charge(&self, units: u64) -> Result<(), StoreError> {
        let _turn = self.admission.turn().lock_owned().await;
        for at in self.places(Which::Counted) {
            self.charge_at(at, units).await?;
        }
        Ok(())
    }

    /// Gives back up to `units` of what the request was charged, as [`Decision::refund`](crate::Decision::refund) does: only
    /// what time has not already given back, and no unit twice. Returns one result for each policy that is enforced and
    /// applied, those of the outermost layer first.
    ///
    /// Dropped before it is done, it leaves what it has not sent to the store to a later refund.
    ///
    /// # Errors
    ///
    /// If the store can't answer. Under the policies before the one that failed, units may have been refunded; what was
    /// asked for under that one is not refunded later.
    pub async fn refund(&self, units: u64) -> Result<Vec<Refund>, StoreError> {
        let _turn = self.admission.turn().lock_owned().await;
        let mut refunds = Vec::new();
        for at in self.places(Which::All) {
            refunds.extend(self.refund_at(at, units).await?);
        }
        Ok(refunds)
    }

    /// Charges or gives back, until what the request is charged is its `true_cost`: for costs that are known only when the
    /// work is done, such as an LLM's tokens. May be called again as the cost becomes clearer.
    ///
    /// # Errors
    ///
    /// If the store can't answer.
    pub async fn settle(&self, true_cost: u64) -> Result<(), StoreError> {
        let _turn = self.admission.turn().lock_owned().await;
        for at in self.places(Which::Counted) {
            let net = self.with(at, |_, counted| {
                counted.receipts.settle();
                counted.receipts.net()
            });
            let net = net.unwrap_or(true_cost);
            if true_cost > net {
                self.charge_at(at, true_cost - net).await?;
            } else {
                self.refund_at(at, net - true_cost).await?;
            }
        }
        Ok(())
    }

    /// Where the charges that this is about stand: decision and policy.
    fn places(&self, which: Which) -> Vec<(usize, usize)> {
        let mut places = Vec::new();
        self.admission.each(|place, decision| {
            for (index, counted) in decision.counted.iter().enumerate() {
                let name = decision.books.name(counted.policy);
                let meant = self.policy.as_deref().is_none_or(|policy| policy == name);
                // A ban counts refusals, and in a shadow that refuses, the work was never begun.
                let meant = meant && (which == Which::All || !decision.books.is_permit(counted));
                if meant && counted.part != Part::Ban && !counted.is_shadow_refusal() {
                    places.push((place, index));
                }
            }
        });
        places
    }

    fn with<T>(
        &self,
        (place, index): (usize, usize),
        with: impl FnOnce(&Arc<dyn Books>, &mut Counted) -> T,
    ) -> Option<T> {
        self.admission.with(place, |decision| {
            let counted = decision.counted.get_mut(index)?;
            Some(with(&decision.books, counted))
        })?
    }

    async fn charge_at(&self, at: (usize, usize), units: u64) -> Result<(), StoreError> {
        let units = Units::new(units);
        let asked = self.with(at, |books, counted| {
            (!units.is_zero()).then(|| {
                // Should this future be dropped, it is charged all the same, and counts for what comes later.
                counted.receipts.add_unanswered(units);
                counted.receipts.settle();
                books.adjust(Op::ForceAcquire, counted, ChargeReceipt::NONE, units.get())
            })
        });
        if let Some(Some(adjusting)) = asked {
            let adjusted = adjusting.await;
            self.with(at, |_, counted| counted.receipts.answered(units));
            let adjusted = adjusted?;
            self.with(at, |_, counted| counted.charged(&adjusted));
        }
        Ok(())
    }

    async fn refund_at(
        &self,
        at: (usize, usize),
        units: u64,
    ) -> Result<Option<Refund>, StoreError> {
        let found = self.with(at, |books, counted| (books.clone(), counted.clone()));
        let Some((books, mut counted)) = found else {
            return Ok(None);
        };
        let refunded = counted.refund(&books, units).await?;
        self.with(at, |_, own| own.standing = counted.standing);
        let refund = || Refund::new(books.name(counted.policy), refunded);
        Ok((!counted.is_shadow()).then(refund))
    }
}

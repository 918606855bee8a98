//! Charging and refunding from a handler, by policy.

use std::{
    future::Future,
    mem,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use smallvec::SmallVec;
use tokio::runtime::Handle;

use super::Admission;
use crate::{
    decision::{Adjust, Adjusting, Books, Counted, Part, Piece, Refund},
    error::{StoreError, UnknownPolicy},
    log::Seldom,
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

/// Why [several policies](crate::Admission::settle_each) were not settled.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SettleError {
    /// A name that no policy has. Nothing was settled.
    #[error(transparent)]
    UnknownPolicy(#[from] UnknownPolicy),
    /// The store could not answer.
    #[error("{error}; policies settled nevertheless: {settled:?}")]
    Store {
        /// The policies that were settled nevertheless: those of another layer, or in another slot of a cluster.
        settled: Vec<Arc<str>>,
        /// What went wrong.
        #[source]
        error: StoreError,
    },
}

/// Which charges of a request are meant.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    All,
    /// Those that are counted, and not held: a permit's units have names in the store, and more of them would have none.
    Counted,
}

/// Lines of a settlement that are sent together at most. A policy that was charged often has as many receipts.
const MAX_SETTLED_LINES: usize = 64;

/// What is still to be charged or refunded to settle one policy of one decision.
struct Correction {
    /// Where the charge stands: decision and policy.
    at: (usize, usize),
    /// Which of the policies that are settled it belongs to.
    policy: usize,
    charge: Units,
    refund: u64,
    /// The receipt that was refunded last. Older ones are next.
    before: usize,
}

/// A part of a correction: a charge, or a refund of a piece of a receipt.
struct Line {
    at: (usize, usize),
    policy: usize,
    charge: Units,
    piece: Option<Piece>,
    /// Lines of one decision and one shard are one call of the store.
    call: (usize, (bool, usize)),
}

impl Admission {
    /// The charges of this request under the policy of that name, of every layer that has one. There are none if the policy
    /// did not apply to the request, and nothing then happens.
    ///
    /// # Errors
    ///
    /// [`UnknownPolicy`] if none of the limiters that judged the request has a policy of that name. A request that no
    /// limiter judged, behind a layer that is not [enabled](crate::RateLimitLayer::enabled), has no charges under any name.
    pub fn policy(&self, name: impl Into<Arc<str>>) -> Result<PolicyAdmission, UnknownPolicy> {
        let (policy, mut known) = (name.into(), Vec::new());
        self.each(|_, decision| {
            known.extend(decision.books.names().into_iter().map(str::to_owned));
        });
        if !known.is_empty() && !known.iter().any(|known| **known == *policy) {
            return Err(UnknownPolicy::new(&policy, known));
        }
        let admission = self.clone();
        Ok(PolicyAdmission { admission, policy })
    }

    /// Settles several policies at once, each to its true cost, as [`PolicyAdmission::settle`] settles one. A policy that is
    /// not named stays as it is; of one that is named twice, the last cost counts.
    ///
    /// The policies of one layer are settled in one round trip, all or none of them. Those of several layers, and on a cluster
    /// those whose keys are in several slots, are settled by one call each, all sent at once.
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
    /// [`SettleError`]: if a name is unknown, nothing is settled. If the store can't answer, the error names the policies
    /// that were settled nevertheless; whether a charge was made that [timed out](StoreError::Timeout) is not known.
    ///
    /// # Cancellation
    ///
    /// If the future is dropped, what it has sent to the store is done nevertheless.
    pub async fn settle_each<N: Into<Arc<str>>>(
        &self,
        true_costs: impl IntoIterator<Item = (N, u64)>,
    ) -> Result<(), SettleError> {
        let mut settled: Vec<(Arc<str>, u64)> = Vec::new();
        for (name, true_cost) in true_costs {
            let PolicyAdmission { policy, .. } = self.policy(name)?;
            match settled.iter_mut().find(|(name, _)| *name == policy) {
                Some((_, cost)) => *cost = true_cost,
                None => settled.push((policy, true_cost)),
            }
        }
        self.settle_all(&settled).await
    }

    async fn settle_all(&self, true_costs: &[(Arc<str>, u64)]) -> Result<(), SettleError> {
        let _turn = self.turn().lock_owned().await;
        let mut corrections = self.corrections(true_costs);
        loop {
            let lines = self.next_lines(&mut corrections);
            if lines.is_empty() {
                return Ok(());
            }
            // All calls are sent before the first answer is awaited.
            let calls = lines.chunk_by(|line, next| line.call == next.call);
            let calls: Vec<_> = calls.map(|lines| (lines, self.send(lines))).collect();
            let (mut failed, mut error) = (Vec::new(), None);
            for (lines, answer) in calls {
                if let Err(reason) = self.note(lines, answer).await {
                    failed.extend(lines.iter().map(|line| line.policy));
                    error = Some(reason);
                }
            }
            if let Some(error) = error {
                let unfinished = corrections.iter().filter(|rest| rest.refund > 0);
                failed.extend(unfinished.map(|rest| rest.policy));
                let names = true_costs.iter().enumerate();
                let names = names.filter(|(policy, _)| !failed.contains(policy));
                let settled = names.map(|(_, (name, _))| name.clone()).collect();
                return Err(SettleError::Store { settled, error });
            }
        }
    }

    /// What is missing to each true cost. From now on the response leaves these charges alone.
    fn corrections(&self, true_costs: &[(Arc<str>, u64)]) -> Vec<Correction> {
        let mut corrections = Vec::new();
        for (policy, (name, true_cost)) in true_costs.iter().enumerate() {
            for at in self.places(name, Which::Counted) {
                let net = self.with_counted(at, |_, counted| {
                    counted.receipts.settle();
                    counted.receipts.net()
                });
                let net = net.unwrap_or(*true_cost);
                corrections.push(Correction {
                    at,
                    policy,
                    charge: Units::new(true_cost.saturating_sub(net)),
                    refund: net.saturating_sub(*true_cost),
                    before: usize::MAX,
                });
            }
        }
        corrections
    }

    /// Takes the next lines off the corrections, in the order of their calls.
    fn next_lines(&self, corrections: &mut [Correction]) -> Vec<Line> {
        let mut lines = Vec::new();
        for correction in corrections {
            let (at, policy) = (correction.at, correction.policy);
            self.with_counted(at, |books, counted| {
                let call = (at.0, books.shard(counted));
                let line = |charge, piece| Line {
                    at,
                    policy,
                    charge,
                    piece,
                    call,
                };
                let charge = mem::replace(&mut correction.charge, Units::ZERO);
                if !charge.is_zero() {
                    // Should the future be dropped, it is charged nevertheless, and counts for later calls.
                    counted.receipts.add_unanswered(charge);
                    lines.push(line(charge, None));
                }
                while correction.refund > 0 && lines.len() < MAX_SETTLED_LINES {
                    let (before, units) = (correction.before, correction.refund);
                    let Some(piece) = counted.receipts.take_piece(before, units) else {
                        correction.refund = 0;
                        break;
                    };
                    correction.refund -= piece.units;
                    correction.before = piece.place;
                    lines.push(line(Units::ZERO, Some(piece)));
                }
            });
        }
        lines.sort_by_key(|line| line.call);
        lines
    }

    /// Sends the lines of one call.
    fn send(&self, lines: &[Line]) -> Option<Adjusting> {
        self.with_lines(lines, |books, lines| books.adjust(Op::Settle, lines))
    }

    /// Notes the answer to the lines of one call.
    async fn note(&self, lines: &[Line], answer: Option<Adjusting>) -> Result<(), StoreError> {
        let Some(answer) = answer else {
            return Ok(());
        };
        let answer = answer.await;
        for (index, line) in lines.iter().enumerate() {
            self.with_counted(line.at, |_, counted| match (&answer, &line.piece) {
                (Ok(adjusted), None) => {
                    counted.receipts.answered(line.charge);
                    counted.charged(&adjusted[index]);
                }
                (Ok(adjusted), Some(piece)) => {
                    counted.receipts.put_back(piece, adjusted[index].units);
                    counted.adjusted(&adjusted[index]);
                }
                (Err(_), None) => counted.receipts.answered(line.charge),
                (Err(error), Some(piece)) if error.had_no_effect() => {
                    counted.receipts.put_back(piece, 0);
                }
                // It may have been refunded, and is not refunded twice.
                (Err(_), Some(_)) => {}
            });
        }
        answer.map(drop)
    }

    fn with_lines<T>(
        &self,
        lines: &[Line],
        with: impl FnOnce(&dyn Books, &[Adjust<'_>]) -> T,
    ) -> Option<T> {
        let place = lines.first()?.at.0;
        self.with(place, |decision| {
            let lines = lines.iter().filter_map(|line| {
                let counted = decision.counted.get(line.at.1)?;
                Some(match &line.piece {
                    None => Adjust {
                        counted,
                        receipt: ChargeReceipt::NONE,
                        units: line.charge.get(),
                    },
                    Some(piece) => Adjust {
                        counted,
                        receipt: piece.receipt,
                        units: piece.units,
                    },
                })
            });
            let lines: SmallVec<[_; 4]> = lines.collect();
            with(&*decision.books, &lines)
        })
    }

    fn with_counted<T>(
        &self,
        (place, index): (usize, usize),
        with: impl FnOnce(&dyn Books, &mut Counted) -> T,
    ) -> Option<T> {
        self.with(place, |decision| {
            let counted = decision.counted.get_mut(index)?;
            Some(with(&*decision.books, counted))
        })?
    }

    /// Where the charges under a policy stand: decision and policy.
    fn places(&self, policy: &str, which: Which) -> Vec<(usize, usize)> {
        let mut places = Vec::new();
        self.each(|place, decision| {
            for (index, counted) in decision.counted.iter().enumerate() {
                let meant = policy == decision.books.name(counted.policy);
                // A ban counts rejections, and in a shadow that rejects, the work was never begun.
                let meant = meant && (which == Which::All || !decision.books.is_permit(counted));
                if meant && counted.part != Part::Ban && !counted.is_shadow_refusal() {
                    places.push((place, index));
                }
            }
        });
        places
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

    /// Gives back up to `units` of what the request was charged, as [`Decision::refund`](crate::Decision::refund) does: only
    /// what time has not already given back, and no unit twice. Returns one result for each layer whose policy of this name
    /// is enforced and applied, the outermost first.
    ///
    /// Dropped before it is done, it leaves what it has not sent to the store to a later refund.
    ///
    /// # Errors
    ///
    /// If the store can't answer. Under the layers before the one that failed, units may have been refunded; what was
    /// asked for under that one is not refunded later.
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
    /// # Errors
    ///
    /// If the store can't answer.
    pub async fn settle(&self, true_cost: u64) -> Result<(), StoreError> {
        let settling = [(self.policy.clone(), true_cost)];
        match self.admission.settle_all(&settling).await {
            Err(SettleError::Store { error, .. }) => Err(error),
            Ok(()) | Err(SettleError::UnknownPolicy(_)) => Ok(()),
        }
    }

    /// Settles without waiting, on any thread: what is sent by the time this returns is done by the store's own runtime.
    pub(crate) fn settle_in_background(self, true_cost: u64) {
        if Handle::try_current().is_err() {
            return self.settle_unheard(true_cost);
        }
        let policy = self.clone();
        let mut settling = Box::pin(async move { policy.settle(true_cost).await });
        // The first poll sends it, so that it isn't lost with a runtime that is ending.
        match settling
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
        {
            Poll::Ready(Ok(())) => {}
            // This runtime is ending, and nothing was sent.
            Poll::Ready(Err(StoreError::Connection(_) | StoreError::NoRuntime(_))) => {
                self.settle_unheard(true_cost);
            }
            Poll::Ready(Err(error)) => self.warn(true_cost, &error),
            Poll::Pending => drop(tokio::spawn(async move {
                if let Err(error) = settling.await {
                    self.warn(true_cost, &error);
                }
            })),
        }
    }

    /// Settles without an answer: by a runtime that uses the store, or else by the next that does.
    fn settle_unheard(&self, true_cost: u64) {
        // Where another call has its turn, what that has charged counts as charged already.
        let _turn = self.admission.turn().try_lock_owned();
        let admission = &self.admission;
        let mut corrections = admission.corrections(&[(self.policy.clone(), true_cost)]);
        loop {
            let lines = admission.next_lines(&mut corrections);
            if lines.is_empty() {
                return;
            }
            for lines in lines.chunk_by(|line, next| line.call == next.call) {
                admission.with_lines(lines, |books, lines| books.tell(Op::Settle, lines));
            }
        }
    }

    fn warn(&self, true_cost: u64, error: &StoreError) {
        static FAILED: Seldom = Seldom::new();
        FAILED.then(|suppressed| {
            tracing::warn!(
                policy = &*self.policy,
                true_cost,
                %error,
                suppressed,
                "a request's true cost was not settled: the charge stays as it was"
            );
        });
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
                if let Ok([charged]) = charged.as_deref() {
                    counted.charged(charged);
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

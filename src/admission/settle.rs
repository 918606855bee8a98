//! Settling the charges of a request to their true costs, under several policies together.

use std::{mem, sync::Arc};

use smallvec::SmallVec;

use super::Admission;
use crate::{
    decision::{Adjust, Adjusting, AllAdjusted, Books, Counted, Part, Piece},
    error::{StoreError, UnknownPolicy},
    store::{Op, Units},
    strategy::ChargeReceipt,
};

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

/// Which charges of a request are meant.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Which {
    All,
    /// Those that are counted, and not held: a permit's units have names in the store, and more of them would have none.
    Counted,
}

/// Lines of a settlement that are sent together at most. A policy that was charged often has as many receipts.
const MAX_SETTLED_LINES: usize = 64;

/// What is still to be charged or refunded to settle one policy of one decision.
pub(super) struct Correction {
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
pub(super) struct Line {
    at: (usize, usize),
    policy: usize,
    charge: Units,
    piece: Option<Piece>,
    /// Lines of one decision and one shard are one call of the store.
    pub(super) call: (usize, (bool, usize)),
}

impl Admission {
    /// Settles several policies at once, each to its true cost in units, as
    /// [`PolicyAdmission::settle`](crate::PolicyAdmission::settle) settles one. Policies that are not named don't change; if
    /// one is named twice, the last cost counts.
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
    /// Shadow candidates [of a policy](crate::Policy::shadow_of) are settled with it, to the same cost, unless they are named.
    ///
    /// # Errors
    ///
    /// [`SettleError`]. If a name is unknown, nothing is settled. If the store fails, the error names the policies that were
    /// settled nevertheless; whether a charge that [timed out](StoreError::Timeout) was made is unknown.
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

    pub(super) async fn settle_all(
        &self,
        true_costs: &[(Arc<str>, u64)],
    ) -> Result<(), SettleError> {
        let _turn = self.turn().lock_owned().await;
        let unknown = |error| {
            let settled = Vec::new();
            SettleError::Store { settled, error }
        };
        let mut corrections = self.corrections(true_costs).map_err(unknown)?;
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

    /// Whether the limiters that judged the request have a policy of that name, if any has judged it.
    pub(super) fn check_policy(&self, policy: &str) -> Result<(), UnknownPolicy> {
        let mut known = Vec::new();
        self.each(|_, decision| {
            known.extend(decision.books.names().into_iter().map(str::to_owned));
        });
        if known.is_empty() || known.iter().any(|known| known == policy) {
            return Ok(());
        }
        Err(UnknownPolicy::new(policy, known))
    }

    /// What is missing to each true cost. From now on the response leaves these charges alone.
    pub(super) fn corrections(
        &self,
        true_costs: &[(Arc<str>, u64)],
    ) -> Result<Vec<Correction>, StoreError> {
        let mut corrections = Vec::new();
        for (policy, (name, true_cost)) in true_costs.iter().enumerate() {
            for at in self.settled_places(name, true_costs) {
                let unconfirmed = self.with_counted(at, |_, item| item.receipts.is_unconfirmed());
                if unconfirmed == Some(true) {
                    let policy = name.clone();
                    return Err(StoreError::Unconfirmed { policy });
                }
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
        Ok(corrections)
    }

    /// Takes the next lines off the corrections, in the order of their calls.
    pub(super) fn next_lines(&self, corrections: &mut [Correction]) -> Vec<Line> {
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
        self.note_answer(lines, &answer);
        answer.map(drop)
    }

    pub(super) fn note_answer(&self, lines: &[Line], answer: &Result<AllAdjusted, StoreError>) {
        for (index, line) in lines.iter().enumerate() {
            self.with_counted(line.at, |_, counted| match (answer, &line.piece) {
                (Ok(adjusted), None) => {
                    counted.receipts.answered(line.charge);
                    counted.charged(&adjusted[index]);
                }
                (Ok(adjusted), Some(piece)) => {
                    counted.receipts.put_back(piece, adjusted[index].units);
                    counted.adjusted(&adjusted[index]);
                }
                (Err(error), None) => {
                    counted.receipts.answered(line.charge);
                    counted.receipts.failed(error);
                }
                (Err(error), Some(piece)) if error.had_no_effect() => {
                    counted.receipts.put_back(piece, 0);
                }
                // It may have been refunded, and is not refunded twice.
                (Err(error), Some(_)) => counted.receipts.failed(error),
            });
        }
    }

    pub(super) fn with_lines<T>(
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

    pub(super) fn with_counted<T>(
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
    pub(super) fn places(&self, policy: &str, which: Which) -> Vec<(usize, usize)> {
        self.places_of(which, |name, _| name == policy)
    }

    /// The same with those of its candidates in the shadow that are not settled by their own names.
    fn settled_places(&self, policy: &str, true_costs: &[(Arc<str>, u64)]) -> Vec<(usize, usize)> {
        let is_named = |name: &str| true_costs.iter().any(|(named, _)| **named == *name);
        self.places_of(Which::Counted, |name, live| {
            name == policy || live == Some(policy) && !is_named(name)
        })
    }

    fn places_of(
        &self,
        which: Which,
        is_meant: impl Fn(&str, Option<&str>) -> bool,
    ) -> Vec<(usize, usize)> {
        let mut places = Vec::new();
        self.each(|place, decision| {
            for (index, counted) in decision.counted.iter().enumerate() {
                let (books, policy) = (&decision.books, counted.policy);
                let meant = is_meant(books.name(policy), books.live_name(policy));
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

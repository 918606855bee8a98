//! What a request is charged under one policy, and what becomes of it.

use std::{
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use smallvec::SmallVec;

use crate::{error::StoreError, store::Units, strategy::ChargeReceipt};

/// The receipts of one request under one policy. Clones share them, so that each unit is refunded once, whichever clone is
/// asked for it.
#[derive(Debug)]
pub(crate) struct Receipts {
    /// The charge on arrival. How much is left of it, the ledger says, if there is one.
    first: ChargeReceipt,
    /// Made by the first clone, refund or later charge; most requests have none.
    ledger: OnceLock<Arc<Mutex<Ledger>>>,
}

/// What became of a charge since the request's arrival.
#[derive(Debug)]
struct Ledger {
    /// The oldest first. They keep their places, also when nothing is left of them.
    receipts: SmallVec<[ChargeReceipt; 2]>,
    /// Whether the handler has settled the charge by itself.
    settled: bool,
    /// Whether a charge or refund was sent and not answered, so that what is charged is not known.
    unconfirmed: bool,
    /// Units that are charged without a receipt: by the response, or by a charge that has not been answered.
    unanswered: u64,
}

/// A part of a refund: units of one receipt.
#[derive(Debug)]
pub(crate) struct Piece {
    /// Which receipt it is.
    pub(crate) place: usize,
    /// The receipt before this piece was taken off it.
    pub(crate) receipt: ChargeReceipt,
    /// How much of it is to be refunded.
    pub(crate) units: u64,
}

impl From<ChargeReceipt> for Receipts {
    fn from(first: ChargeReceipt) -> Self {
        let ledger = OnceLock::new();
        Self { first, ledger }
    }
}

impl Clone for Receipts {
    fn clone(&self) -> Self {
        // What charged nothing has nothing to share.
        if self.first.remaining > 0 {
            self.shared();
        }
        Self {
            first: self.first,
            ledger: self.ledger.clone(),
        }
    }
}

impl Receipts {
    /// The charge on arrival, with the units that it had then.
    pub(crate) fn first(&self) -> ChargeReceipt {
        self.first
    }

    /// Dates a rejection, which charged nothing, later by this much: it is repeated from the rejection cache.
    pub(crate) fn judged_later(&mut self, by: Duration) {
        self.first.charged_at = self.first.charged_at + by;
    }

    /// Receipts of `units` of the charge on arrival, which are refunded apart from these.
    pub(crate) fn part(&self, units: u64) -> Self {
        Self::from(ChargeReceipt {
            remaining: units,
            ..self.first
        })
    }

    fn shared(&self) -> &Mutex<Ledger> {
        self.ledger.get_or_init(|| {
            Arc::new(Mutex::new(Ledger {
                receipts: SmallVec::from_iter([self.first]),
                settled: false,
                unconfirmed: false,
                unanswered: 0,
            }))
        })
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        let ledger = self.shared().lock();
        ledger.unwrap_or_else(PoisonError::into_inner)
    }

    /// How many units are charged, as far as they were not refunded.
    pub(crate) fn net(&self) -> u64 {
        let ledger = self.ledger();
        let left = ledger.receipts.iter().map(|receipt| receipt.remaining);
        left.fold(ledger.unanswered, u64::saturating_add)
    }

    /// Takes off all units that are left, for them to be refunded; returns their receipts.
    pub(crate) fn take(&mut self) -> SmallVec<[ChargeReceipt; 1]> {
        let mut taken = SmallVec::new();
        let mut take = |receipt: &mut ChargeReceipt| {
            if receipt.remaining > 0 {
                taken.push(*receipt);
                receipt.remaining = 0;
            }
        };
        if self.ledger.get().is_none() {
            take(&mut self.first);
        } else {
            self.ledger().receipts.iter_mut().for_each(take);
        }
        taken
    }

    /// Takes up to `units` off the newest receipt before a place, for them to be refunded. A refund goes from one receipt to
    /// the next, so that one that is dropped half-way leaves the others alone, and refunds nothing twice.
    pub(crate) fn take_piece(&self, before: usize, units: u64) -> Option<Piece> {
        let mut ledger = self.ledger();
        let older = ledger.receipts.iter_mut().enumerate().take(before);
        let (place, receipt) = older.filter(|(_, receipt)| receipt.remaining > 0).last()?;
        let (whole, units) = (*receipt, units.min(receipt.remaining));
        receipt.remaining -= units;
        (units > 0).then_some(Piece {
            place,
            receipt: whole,
            units,
        })
    }

    /// Puts back what the store did not refund of a piece.
    pub(crate) fn put_back(&self, piece: &Piece, refunded: u64) {
        if let Some(receipt) = self.ledger().receipts.get_mut(piece.place) {
            receipt.remaining += piece.units.saturating_sub(refunded);
        }
    }

    /// Adds a charge that was made afterwards.
    pub(crate) fn add(&self, receipt: ChargeReceipt) {
        self.ledger().receipts.push(receipt);
    }

    /// Notes units that are charged without a receipt, or without one yet.
    pub(crate) fn add_unanswered(&self, units: Units) {
        let mut ledger = self.ledger();
        ledger.unanswered = ledger.unanswered.saturating_add(units.get());
    }

    /// Notes that the store has answered a charge of so many units.
    pub(crate) fn answered(&self, units: Units) {
        let mut ledger = self.ledger();
        ledger.unanswered = ledger.unanswered.saturating_sub(units.get());
    }

    /// Whether the handler has settled the charge by itself.
    pub(crate) fn is_settled(&self) -> bool {
        self.ledger.get().is_some() && self.ledger().settled
    }

    /// Whether a charge or refund was sent and not answered.
    pub(crate) fn is_unconfirmed(&self) -> bool {
        self.ledger.get().is_some() && self.ledger().unconfirmed
    }

    /// Notes why a charge or refund has no answer: unless that proves that nothing was done, it is not known.
    pub(crate) fn failed(&self, error: &StoreError) {
        if !error.had_no_effect() {
            self.ledger().unconfirmed = true;
        }
    }

    /// Notes that the handler has settled the charge by itself.
    pub(crate) fn settle(&self) {
        self.ledger().settled = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Timestamp;

    fn of(units: u64) -> Receipts {
        Receipts::from(ChargeReceipt {
            charged_at: Timestamp::from_micros(1),
            remaining: units,
            window_id: 0,
        })
    }

    #[test]
    fn the_first_clone_of_a_charge_allocates_the_shared_ledger() {
        let (charged, free) = (of(3), of(0));
        assert!(charged.ledger.get().is_none());
        let clones = (charged.clone(), free.clone());
        assert!(charged.ledger.get().is_some() && free.ledger.get().is_none());
        assert!(clones.0.ledger.get().is_some() && clones.1.ledger.get().is_none());
    }

    #[test]
    fn taking_units_takes_them_from_all_clones() {
        let mut charged = of(3);
        let mut clone = charged.clone();
        let piece = clone.take_piece(usize::MAX, 2).expect("a piece");
        assert_eq!((piece.receipt.remaining, piece.units), (3, 2));
        assert_eq!(charged.net(), 1);
        clone.put_back(&piece, 1);
        let taken = charged.take();
        assert_eq!(
            taken.iter().map(|receipt| receipt.remaining).sum::<u64>(),
            2
        );
        assert!(clone.take().is_empty() && clone.take_piece(usize::MAX, 1).is_none());
    }

    #[test]
    fn parts_are_refunded_separately() {
        let charged = of(6);
        let part = charged.part(2);
        assert_eq!(part.take_piece(usize::MAX, 9).expect("a piece").units, 2);
        assert_eq!((charged.net(), part.net()), (6, 0));
    }

    #[test]
    fn units_are_put_back_into_the_receipt_they_came_from() {
        let mut charged = of(1);
        charged.add(ChargeReceipt {
            remaining: 2,
            ..charged.first()
        });
        let piece = charged.take_piece(usize::MAX, 5).expect("a piece");
        assert_eq!((piece.place, piece.units), (1, 2));
        assert_eq!(charged.take().len(), 1);
        charged.add(charged.first());
        charged.put_back(&piece, 0);
        let left: Vec<_> = charged
            .take()
            .iter()
            .map(|receipt| receipt.remaining)
            .collect();
        assert_eq!(left, [2, 1]);
    }
}

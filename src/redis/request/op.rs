//! The counter operations of a request, owned for as long as it is pending.

use smallvec::SmallVec;

use crate::{
    clock::Timestamp,
    key::Key,
    redis::rejection_cache::CacheKey,
    store::{CounterMode, CounterOp, LimitHandle, Units},
    strategy::{ChargeReceipt, Snapshot},
};

pub(crate) type CounterOps = SmallVec<[OwnedCounterOp; 1]>;

/// An owned [`CounterOp`]. It is moved between queue, backlog and batch, so it is kept small.
#[derive(Clone, Debug)]
pub(crate) struct OwnedCounterOp {
    pub(crate) limit: LimitHandle,
    pub(crate) key: Key,
    pub(crate) units: Units,
    pub(crate) mode: CounterMode,
    /// Boxed, since most counters have none.
    extras: Option<Box<Extras>>,
}

#[derive(Clone, Debug)]
struct Extras {
    receipt: Option<ChargeReceipt>,
    caller: Key,
}

/// What the counters of all requests in a segment of a call have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CounterTerms {
    pub(crate) units: Units,
    pub(crate) mode: CounterMode,
    /// Whether an adjustment refunds the units.
    pub(crate) refunds: bool,
}

impl OwnedCounterOp {
    pub(crate) fn of(counter: &CounterOp<'_>) -> Self {
        let plain = counter.receipt.is_none() && counter.caller == counter.key;
        let extras = || Extras {
            receipt: counter.receipt,
            caller: counter.caller,
        };
        Self {
            limit: counter.limit.clone(),
            key: counter.key,
            units: counter.units,
            mode: counter.mode,
            extras: (!plain).then(|| Box::new(extras())),
        }
    }

    pub(crate) fn terms(&self) -> CounterTerms {
        CounterTerms {
            units: self.units,
            mode: self.mode,
            refunds: self.receipt().is_some(),
        }
    }

    /// Borrows it as the operation of the [`Store`](crate::store::Store) trait.
    pub(crate) fn as_op(&self) -> CounterOp<'_> {
        CounterOp {
            limit: &self.limit,
            key: self.key,
            units: self.units,
            receipt: self.receipt(),
            caller: *self.caller(),
            mode: self.mode,
        }
    }

    /// Its key in the rejection cache.
    pub(crate) fn cache_key(&self) -> CacheKey<'_> {
        CacheKey {
            limit: &self.limit,
            key: &self.key,
            units: self.units,
            mode: self.mode,
        }
    }

    /// Whether the caller is stored with the charge. A charge of zero units stores none.
    pub(crate) fn records_caller(&self) -> bool {
        !self.units.is_zero() && self.limit.info().records_caller
    }

    pub(crate) fn caller(&self) -> &Key {
        self.extras
            .as_ref()
            .map_or(&self.key, |extras| &extras.caller)
    }

    pub(crate) fn receipt(&self) -> Option<ChargeReceipt> {
        self.extras.as_ref()?.receipt
    }

    /// Lowers the receipt's remaining units to those refunded here: other units of it may be refunded before these.
    pub(crate) fn limit_receipt_to_units(&mut self) {
        let receipt = self
            .extras
            .as_mut()
            .and_then(|extras| extras.receipt.as_mut());
        if let Some(receipt) = receipt {
            receipt.remaining = receipt.remaining.min(self.units.get());
        }
    }

    /// Turns it into the refund of all permits that `times` requests can have charged.
    pub(crate) fn set_permit_refund(&mut self, times: u32) {
        let capacity = self.limit.info().capacity;
        let units = self.units.of(times.into()).min(capacity);
        self.set_refund(units, &Snapshot::default(), Timestamp::default());
    }

    /// Turns it into the refund of `units` of a charge of `charged` units, at an instant and in a window.
    pub(crate) fn set_refund_of(
        &mut self,
        (at, window_id): (Timestamp, i64),
        charged: u64,
        units: u64,
    ) {
        self.units = Units::new(units);
        let caller = *self.caller();
        let receipt = Some(ChargeReceipt::new(at, charged).with_window_id(window_id));
        self.extras = Some(Box::new(Extras { receipt, caller }));
    }

    /// Turns it into the refund of a charge of `units`.
    pub(crate) fn set_refund(&mut self, units: u64, snapshot: &Snapshot, at: Timestamp) {
        let window_id = self.limit.rule().window_id(snapshot, at);
        self.set_refund_of((at, window_id), units, units);
    }
}

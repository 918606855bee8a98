//! The counter operations of a request, owned for as long as it is pending.

use smallvec::SmallVec;

use crate::{
    clock::Timestamp,
    key::Key,
    store::{CounterMode, CounterOp, LimitHandle, Units, redis::rejection_cache::CacheKey},
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
    /// What most counters do not have.
    more: Option<Box<More>>,
}

#[derive(Clone, Debug)]
struct More {
    receipt: ChargeReceipt,
    caller: Key,
}

impl OwnedCounterOp {
    pub(crate) fn of(line: &CounterOp<'_>) -> Self {
        let plain = line.receipt == ChargeReceipt::NONE && line.caller == line.key;
        let more = || More {
            receipt: line.receipt,
            caller: line.caller,
        };
        Self {
            limit: line.limit.clone(),
            key: line.key,
            units: line.units,
            mode: line.mode,
            more: (!plain).then(|| Box::new(more())),
        }
    }

    /// Borrows it as the store's interface has it.
    pub(crate) fn line(&self) -> CounterOp<'_> {
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
        !self.units.is_zero() && self.limit.records_caller()
    }

    pub(crate) fn caller(&self) -> &Key {
        self.more.as_ref().map_or(&self.key, |more| &more.caller)
    }

    pub(crate) fn receipt(&self) -> ChargeReceipt {
        self.more
            .as_ref()
            .map_or(ChargeReceipt::NONE, |more| more.receipt)
    }

    /// Lowers the receipt's remaining units to those refunded here: other units of it may be refunded before these.
    pub(crate) fn limit_receipt_to_units(&mut self) {
        if let Some(more) = &mut self.more {
            more.receipt.remaining = more.receipt.remaining.min(self.units.get());
        }
    }

    /// Turns it into the refund of all permits that `times` requests can have charged.
    pub(crate) fn set_permit_refund(&mut self, times: u32) {
        let capacity = self.limit.rule().capacity();
        let units = self.units.of(times.into()).min(capacity);
        self.charged(units, &Snapshot::default(), Timestamp::default());
    }

    /// Turns it into the refund of a charge of `units`.
    pub(crate) fn charged(&mut self, units: u64, snapshot: &Snapshot, at: Timestamp) {
        self.units = Units::new(units);
        let caller = *self.caller();
        let window_id = self.limit.rule().window_id(snapshot, at);
        let receipt = ChargeReceipt {
            charged_at: at,
            remaining: units,
            window_id,
        };
        self.more = Some(Box::new(More { receipt, caller }));
    }
}

//! The state of a key's counters, by the last response of the store.

use smallvec::SmallVec;

use super::super::held_lease::charged_units;
use crate::{
    clock::Timestamp,
    store::{
        CounterOp, CounterResult, LimitHandle, OpResult, Units, redis::request::op::CounterOps,
    },
    strategy::QuotaStatus,
};

/// The state of the counters by the last response of the store.
#[derive(Clone, Debug)]
pub(in crate::store::redis::lease) struct LastResponse {
    pub(in crate::store::redis::lease) received_at: Timestamp,
    pub(in crate::store::redis::lease) at: Timestamp,
    pub(in crate::store::redis::lease) results: SmallVec<[CounterResult; 1]>,
    /// The window of each counter.
    pub(in crate::store::redis::lease) window_ids: SmallVec<[i64; 2]>,
}

impl LastResponse {
    /// Whether the response to a request that was sent at `requested_at` is older, because another worker has received it. One to
    /// a request that was sent later is not: the server's clock was set back.
    pub(in crate::store::redis::lease) fn is_after(
        &self,
        requested_at: Timestamp,
        result: &OpResult,
    ) -> bool {
        result.at < self.at && requested_at <= self.received_at
    }

    /// Takes the state of each counter from an earlier response of the same instant and window if less remains by it: requests of
    /// one batch are executed at one instant, and their responses may come in any order.
    pub(in crate::store::redis::lease) fn merge(&mut self, before: &Self, counters: &CounterOps) {
        if before.at != self.at || before.window_ids != self.window_ids {
            return;
        }
        for (index, own) in counters.iter().enumerate() {
            let remaining = |response: &Self| {
                let status = response.status(index, &own.limit, Units::ONE);
                status.remaining
            };
            if remaining(before) < remaining(self) {
                self.results[index] = before.results[index];
            }
        }
    }

    /// Whether a request has enough units under each counter.
    pub(in crate::store::redis::lease) fn fits(&self, counters: &[CounterOp<'_>]) -> bool {
        let mut counters = counters.iter().enumerate();
        counters.all(|(index, counter)| {
            let status = self.status(index, counter.limit, Units::ONE);
            status.remaining >= charged_units(counter)
        })
    }

    /// The status of a counter.
    pub(in crate::store::redis::lease) fn status(
        &self,
        index: usize,
        limit: &LimitHandle,
        cost: Units,
    ) -> QuotaStatus {
        let result = &self.results[index];
        let at = self.at.shifted(result.clock_skew_us);
        limit.status(&result.snapshot, at, cost)
    }
}

//! The state of a key's counters, by the last response of the store.

use std::time::Duration;

use smallvec::SmallVec;

use crate::{
    clock::Timestamp,
    store::{CounterResult, LimitHandle, Units, redis::request::op::CounterOps},
    strategy::QuotaStatus,
};

/// The state of the counters by the last response of the store.
#[derive(Clone, Debug)]
pub(in crate::store::redis::lease) struct Latest {
    pub(in crate::store::redis::lease) received_at: Timestamp,
    pub(in crate::store::redis::lease) at: Timestamp,
    pub(in crate::store::redis::lease) results: SmallVec<[CounterResult; 1]>,
    /// The units of each counter that had been left to the store when its request was sent.
    pub(in crate::store::redis::lease) unleased: SmallVec<[u64; 2]>,
}

impl Latest {
    /// That of a stripe, which has left nothing to the store.
    pub(in crate::store::redis::lease) fn for_stripe(&self) -> Self {
        Self {
            unleased: SmallVec::from_elem(0, self.results.len()),
            ..self.clone()
        }
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

    /// The longest wait of these counters, `most` for one that does not end.
    pub(in crate::store::redis::lease) fn retry_after(
        &self,
        counters: &CounterOps,
        most: Duration,
    ) -> Duration {
        let statuses = counters.iter().enumerate();
        let statuses = statuses.map(|(index, own)| self.status(index, &own.limit, Units::ONE));
        let waits = statuses.map(|status| status.retry_after.duration().unwrap_or(most));
        waits.max().unwrap_or_default()
    }
}

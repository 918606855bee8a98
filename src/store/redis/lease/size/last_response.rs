//! The state of a key's counters, by the last response of the store.

use std::time::Duration;

use smallvec::SmallVec;

use super::super::held_lease::LeaseRequest;
use crate::{
    clock::Timestamp,
    store::{CounterResult, LimitHandle, OpResult, Units, redis::request::op::CounterOps},
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
    /// The units of each counter that the store had decided when the lease was requested.
    pub(in crate::store::redis::lease) store_decided: SmallVec<[u64; 2]>,
}

impl LastResponse {
    /// The response as a stripe has it, for which the store has decided nothing yet.
    pub(in crate::store::redis::lease) fn for_stripe(&self) -> Self {
        Self {
            store_decided: SmallVec::from_elem(0, self.results.len()),
            ..self.clone()
        }
    }

    /// Whether the response to a request is older, because another worker has received it. One to a request that was sent later is
    /// not: the server's clock was set back.
    pub(in crate::store::redis::lease) fn is_after(
        &self,
        request: &LeaseRequest,
        result: &OpResult,
    ) -> bool {
        result.at < self.at && request.requested_at.monotonic <= self.received_at
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

    /// The longest wait of these counters; `max_wait` for one that does not end.
    pub(in crate::store::redis::lease) fn retry_after(
        &self,
        counters: &CounterOps,
        max_wait: Duration,
    ) -> Duration {
        let statuses = counters.iter().enumerate();
        let statuses = statuses.map(|(index, own)| self.status(index, &own.limit, Units::ONE));
        let waits = statuses.map(|status| status.retry_after.duration().unwrap_or(max_wait));
        waits.max().unwrap_or_default()
    }
}

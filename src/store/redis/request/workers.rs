//! What requests, and the refunds of those that failed, need of the workers of their store.

use std::{fmt, sync::Arc};

use tokio::{
    runtime::{self, Handle},
    time::Instant,
};

use super::op::CounterOps;
use crate::store::{Op, OpResult, redis::rejection_cache::CacheToken};

/// The workers of a store, as requests on their way see them.
///
/// A limit has a weak reference to the workers of its store, so that whatever was charged finds its way back.
pub(crate) trait Workers: fmt::Debug + Send + Sync {
    /// Executes an operation whose result nothing waits for.
    fn execute_detached(self: Arc<Self>, op: Op, counters: CounterOps);

    /// Keeps the refunds of permits of a request that was lost with its runtime, and may have been sent.
    fn keep_lost_refunds(&self, counters: CounterOps);

    /// Caches that a request was rejected which had to be answered by `deadline`.
    fn cache_rejection(
        &self,
        counters: &CounterOps,
        deadline: Instant,
        result: &OpResult,
        cache_token: &CacheToken,
    );

    /// A runtime that uses the store, other than `stalled`.
    fn other_runtime(&self, stalled: Option<runtime::Id>) -> Option<Handle>;

    /// Sends some of the refunds that are kept of a hash tag, unless its server is being probed. Returns false once none are
    /// kept.
    fn retry_refunds(&self, tag: usize) -> bool;

    /// Notes that the task which retried the refunds of a hash tag has ended.
    fn end_refund_retries(&self, tag: usize);
}

//! What the Redis store attaches to a `LimitHandle`, and the way from there back to the store's workers.

use std::{
    fmt,
    sync::{Arc, Weak},
};

use tokio::{
    runtime::{self, Handle},
    time::Instant,
};

use super::{Sent, op::CounterOps};
use crate::{
    clock::Timestamp,
    store::{
        Op, OpResult,
        redis::{key_names::KeyNames, rejection_cache::CacheToken, script::msgpack::MsgPackWriter},
    },
    strategy::{LuaScript, Rule},
};

/// Most parameters that are sent one by one rather than as a list: Lua unpacks some thousand values at once.
const MAX_FLAT_PARAMS: usize = 24;

/// What the Redis store attaches to a [`LimitHandle`](crate::store::LimitHandle).
#[derive(Debug)]
pub(in crate::store::redis) struct RedisLimit {
    pub(in crate::store::redis) names: KeyNames,
    /// The workers of its store, which refund what was charged under it.
    pub(in crate::store::redis) workers: Weak<dyn Workers>,
    /// The strategy's number in the script.
    script_index: usize,
    /// How many numbers of a snapshot the script replies.
    pub(in crate::store::redis) snapshot_len: usize,
    params: Vec<i64>,
    /// The encoded description for rules without time parameters, and the number of its values.
    packed: (MsgPackWriter, usize),
}

impl RedisLimit {
    pub(in crate::store::redis) fn new(
        names: KeyNames,
        script_index: usize,
        rule: &dyn Rule,
        script: &LuaScript,
        workers: Weak<dyn Workers>,
    ) -> Self {
        let mut limit = Self {
            names,
            workers,
            script_index,
            snapshot_len: script.snapshot_len.clamp(1, 3),
            params: script.params.clone(),
            packed: Default::default(),
        };
        let mut packed = MsgPackWriter::default();
        let values = limit.write_with(rule, &[], &mut packed);
        limit.packed = (packed, values);
        limit
    }

    /// The rule's capacity: the first parameter.
    pub(crate) fn capacity(&self) -> usize {
        let capacity = self.params.first().copied().unwrap_or(0);
        usize::try_from(capacity).unwrap_or(0)
    }

    /// Writes the description of the policy that the script needs. Returns the number of values written.
    pub(crate) fn write(&self, rule: &dyn Rule, now: Timestamp, args: &mut MsgPackWriter) -> usize {
        let time_params = rule.time_params(now);
        if time_params.is_empty() {
            let (packed, values) = &self.packed;
            args.append(packed);
            return *values;
        }
        self.write_with(rule, &time_params, args)
    }

    fn write_with(&self, rule: &dyn Rule, time_params: &[i64], args: &mut MsgPackWriter) -> usize {
        let params = self.params.len() + time_params.len();
        args.uint(self.script_index as u64);
        args.uint(rule.records_caller().into());
        args.uint(self.snapshot_len as u64);
        let flat = params <= MAX_FLAT_PARAMS;
        args.uint(if flat { params as u64 } else { 0 });
        if !flat {
            args.list(params);
        }
        for param in self.params.iter().chain(time_params) {
            args.int(*param);
        }
        4 + if flat { params } else { 1 }
    }
}

/// The workers of a store, as requests on their way see them.
///
/// A limit has a weak reference to the workers of its store, through which a dropped request is refunded.
pub(crate) trait Workers: fmt::Debug + Send + Sync {
    /// Executes an operation without a waiter.
    fn execute_detached(self: Arc<Self>, op: Op, counters: CounterOps);

    /// Keeps what can be sent again of a charge or refund that was lost with its runtime.
    fn keep_lost(&self, op: Op, counters: CounterOps, sent: Sent);

    /// Caches the rejection of a request with this deadline.
    fn cache_rejection(
        &self,
        counters: &CounterOps,
        deadline: Instant,
        result: &OpResult,
        cache_token: &CacheToken,
    );

    /// A runtime that uses the store, other than `stalled`.
    fn other_runtime(&self, stalled: Option<runtime::Id>) -> Option<Handle>;

    /// Sends some of the pending refunds of a hash tag, unless its server is being probed. Returns false once there are none.
    fn retry_refunds(&self, tag: usize) -> bool;

    /// Records that the task which retried the refunds of a hash tag has ended.
    fn end_refund_retries(&self, tag: usize);
}

/// The workers of the store that registered the limits of a request, unless the store is gone.
pub(crate) fn workers_of(counters: &CounterOps) -> Option<Arc<dyn Workers>> {
    let limit = &counters.first()?.limit;
    limit.context::<RedisLimit>()?.workers.upgrade()
}

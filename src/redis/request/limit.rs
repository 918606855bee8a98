//! What the Redis store attaches to a `LimitHandle`, and the way from there back to the store.

use std::sync::{Arc, Weak};

use super::op::CounterOps;
use crate::{
    clock::Timestamp,
    redis::{io::Io, key_names::KeyNames, script::msgpack::MsgPackWriter},
    strategy::{LuaScript, Rule},
};

/// Most parameters that are sent one by one rather than as a list: Lua unpacks some thousand values at once.
const MAX_FLAT_PARAMS: usize = 24;

/// What the Redis store attaches to a [`LimitHandle`](crate::store::LimitHandle).
#[derive(Debug)]
pub(in crate::redis) struct RedisLimit {
    pub(in crate::redis) names: KeyNames,
    /// The IO of the store that registered it, by which a request that is dropped refunds what it charged.
    io: Weak<Io>,
    /// The strategy's number in the script.
    script_index: usize,
    /// How many numbers of a snapshot the script replies.
    pub(in crate::redis) snapshot_len: usize,
    records_caller: bool,
    params: Vec<i64>,
    /// The encoded description for rules without time parameters, and the number of its values.
    packed: (MsgPackWriter, usize),
}

impl RedisLimit {
    pub(in crate::redis) fn new(
        names: KeyNames,
        script_index: usize,
        rule: &dyn Rule,
        script: &LuaScript,
        io: Weak<Io>,
    ) -> Self {
        let mut limit = Self {
            names,
            io,
            script_index,
            snapshot_len: script.snapshot_len.clamp(1, 3),
            records_caller: rule.info().records_caller,
            params: script.params.clone(),
            packed: Default::default(),
        };
        let mut packed = MsgPackWriter::default();
        let values = limit.write_with(&[], &mut packed);
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
        self.write_with(&time_params, args)
    }

    fn write_with(&self, time_params: &[i64], args: &mut MsgPackWriter) -> usize {
        let params = self.params.len() + time_params.len();
        args.uint(self.script_index as u64);
        args.uint(self.records_caller.into());
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

/// The IO of the store that registered the limits of a request, unless it has ended.
pub(in crate::redis) fn io_of(counters: &CounterOps) -> Option<Arc<Io>> {
    let limit = &counters.first()?.limit;
    limit.context::<RedisLimit>()?.io.upgrade()
}

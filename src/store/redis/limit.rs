use std::sync::Weak;

use super::{batch::msgpack::Packed, key_names::Names, worker::pool::Lanes};
use crate::{
    clock::Timestamp,
    strategy::{LuaScript, Rule},
};

/// Parameters that are sent without a list around them, at most: Lua has room for some thousand values at once.
const MOST_FLAT: usize = 24;

/// What a Redis store knows of a limit.
#[derive(Debug)]
pub(in crate::store::redis) struct Known {
    pub(in crate::store::redis) names: Names,
    /// Where what it was asked about may be given back.
    pub(in crate::store::redis) lanes: Weak<Lanes>,
    /// The half's number in the script.
    half: usize,
    /// How many numbers of a state are answered.
    pub(in crate::store::redis) words: usize,
    params: Vec<i64>,
    /// What is sent without parameters of the moment, and how many values that are.
    packed: (Packed, usize),
}

impl Known {
    pub(in crate::store::redis) fn new(
        names: Names,
        half: usize,
        rule: &dyn Rule,
        script: &LuaScript,
        lanes: Weak<Lanes>,
    ) -> Self {
        let mut known = Self {
            names,
            lanes,
            half,
            words: script.snapshot_len.clamp(1, 3),
            params: script.params.clone(),
            packed: Default::default(),
        };
        let mut packed = Packed::default();
        let values = known.write_with(rule, &[], &mut packed);
        known.packed = (packed, values);
        known
    }

    /// The capacity, as the script knows it.
    pub(crate) fn capacity(&self) -> usize {
        let capacity = self.params.first().copied().unwrap_or(0);
        usize::try_from(capacity).unwrap_or(0)
    }

    /// Writes what the driver has to know of a policy, and tells how many values that are.
    pub(crate) fn write(&self, rule: &dyn Rule, now: Timestamp, plan: &mut Packed) -> usize {
        let more = rule.time_params(now);
        if more.is_empty() {
            let (packed, values) = &self.packed;
            plan.append(packed);
            return *values;
        }
        self.write_with(rule, &more, plan)
    }

    fn write_with(&self, rule: &dyn Rule, more: &[i64], plan: &mut Packed) -> usize {
        let params = self.params.len() + more.len();
        plan.uint(self.half as u64);
        plan.uint(rule.records_caller().into());
        plan.uint(self.words as u64);
        let flat = params <= MOST_FLAT;
        plan.uint(if flat { params as u64 } else { 0 });
        if !flat {
            plan.list(params);
        }
        for param in self.params.iter().chain(more) {
            plan.int(*param);
        }
        4 + if flat { params } else { 1 }
    }
}

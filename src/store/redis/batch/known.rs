use std::sync::Weak;

use super::super::{lanes::Lanes, names::Names, packed::Packed};
use crate::{
    clock::Timestamp,
    strategy::{Rule, Script},
};

/// What a Redis store knows of an account.
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
    /// All of it, as it is sent, where it's the same at all times.
    packed: Option<Packed>,
}

impl Known {
    pub(in crate::store::redis) fn new(
        names: Names,
        half: usize,
        rule: &dyn Rule,
        script: &Script,
        lanes: Weak<Lanes>,
    ) -> Self {
        let mut known = Self {
            names,
            lanes,
            half,
            words: script.seen.clamp(1, 3),
            params: script.params.clone(),
            packed: None,
        };
        if rule.params_at(Timestamp::default()).is_empty() {
            let mut packed = Packed::default();
            known.write(rule, Timestamp::default(), &mut packed);
            known.packed = Some(packed);
        }
        known
    }

    /// Writes what the driver has to know of a policy.
    pub(super) fn write(&self, rule: &dyn Rule, now: Timestamp, plan: &mut Packed) {
        if let Some(packed) = &self.packed {
            plan.append(packed);
            return;
        }
        let more = rule.params_at(now);
        plan.list(4);
        plan.uint(self.half as u64);
        plan.uint(rule.signs().into());
        plan.uint(self.words as u64);
        plan.list(self.params.len() + more.len());
        for param in self.params.iter().chain(&more) {
            plan.int(*param);
        }
    }
}

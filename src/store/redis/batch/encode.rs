//! Encodes a batch as the script's argument.

use redis::Cmd;
use smallvec::SmallVec;

use super::{Batch, MergedRequests, OpGroup};
use crate::{
    clock::Timestamp,
    store::{
        CounterMode, LimitHandle, Op, Units,
        redis::{
            key_names::KeyBuf, msgpack::MsgPackWriter, request::limit::RedisLimit, script::Script,
        },
    },
    strategy::Rule,
};

impl Batch {
    /// The call: `EVALSHA`, or `EVAL` with the script's text if the server does not have it. Everything is packed
    /// into one argument, since each argument costs the server about as much as reading a key.
    pub(in crate::store::redis) fn call(
        &self,
        script: &Script,
        with_text: bool,
        now: Timestamp,
        epoch: Option<&str>,
    ) -> Cmd {
        let epoch = epoch.filter(|_| self.invalidates());
        let mut cmd = Cmd::with_capacity(4 + self.keys, 128 + 40 * self.keys);
        match with_text {
            true => cmd.arg("EVAL").arg(&script.text),
            false => cmd.arg("EVALSHA").arg(&script.sha),
        };
        cmd.arg(self.keys + usize::from(epoch.is_some()));
        let mut name = KeyBuf::default();
        let mut policies = Policies::new();
        for group in &self.groups {
            for limit in &group.limits {
                if policies.iter().all(|policy| policy.id() != limit.id()) {
                    policies.push(limit);
                }
            }
            for entry in &group.entries {
                for counter in entry.counters() {
                    if let Some(limit) = counter.limit.context::<RedisLimit>() {
                        cmd.arg(limit.names.write(&counter.key, &mut name));
                    }
                }
            }
        }
        if let Some(epoch) = epoch {
            cmd.arg(epoch);
        }
        // The first value is the position of the segments; the policies precede them.
        let (mut positions, mut begin) = (ParamPositions::new(), 2);
        let mut args = MsgPackWriter::with_capacity(256);
        args.reserve_u32();
        for policy in policies {
            positions.push((policy.id(), begin));
            if let Some(context) = policy.context::<RedisLimit>() {
                begin += context.write(policy.rule(), now, &mut args);
            }
        }
        args.patch_u32(begin as u32);
        for group in &self.groups {
            group.write(&positions, &mut args);
        }
        cmd.arg(args.as_bytes());
        cmd
    }
}

type Policies<'a> = SmallVec<[&'a LimitHandle; 4]>;

/// The positions of the limits' parameters among the values.
type ParamPositions = SmallVec<[(u64, usize); 4]>;

impl OpGroup {
    fn write(&self, positions: &ParamPositions, args: &mut MsgPackWriter) {
        let has_counts = self.entries.iter().any(|entry| entry.count() != 1);
        let has_receipts = matches!(self.op, Op::Refund | Op::Renew | Op::Settle);
        let own = |entry: &MergedRequests| {
            let receipts = if has_receipts {
                3 * self.limits.len()
            } else {
                0
            };
            usize::from(has_counts) + receipts + entry.callers().count()
        };
        let own: usize = self.entries.iter().map(own).sum();
        args.uint(number(self.op));
        args.uint(self.entries.len() as u64);
        args.uint(self.limits.len() as u64);
        for (limit, (units, mode)) in self.limits.iter().zip(&self.units) {
            let mut positions = positions.iter();
            let position = positions.find(|(number, _)| *number == limit.id());
            args.uint(position.map_or(0, |(_, position)| *position as u64));
            args.uint(units.get());
            args.uint(mode_number(*mode, limit.rule()));
        }
        args.uint(has_counts.into());
        if own == 0 {
            args.uint(0);
            return;
        }
        args.list(own);
        for entry in &self.entries {
            if has_counts {
                args.uint(entry.count());
            }
            if has_receipts {
                for counter in entry.counters() {
                    args.int(counter.receipt().charged_at.as_micros());
                    args.int(counter.receipt().window_id);
                    args.uint(Units::new(counter.receipt().remaining).get());
                }
            }
            entry.callers().for_each(|caller| args.text(caller));
        }
    }
}

/// The script's number of an operation. A peek is an acquire of nothing.
fn number(op: Op) -> u64 {
    match op {
        Op::Acquire(_) | Op::Peek => 1,
        Op::ForceAcquire => 2,
        Op::Refund => 3,
        Op::Reset => 4,
        Op::Renew => 5,
        Op::Settle => 6,
    }
}

/// The script's number of a mode.
fn mode_number(mode: CounterMode, rule: &dyn Rule) -> u64 {
    match mode {
        CounterMode::Charge => 0,
        CounterMode::Check => 1,
        CounterMode::ChargeRejectedToo if rule.stores_each_unit() => 3,
        CounterMode::ChargeRejectedToo => 2,
        CounterMode::CountRejections => 4,
        CounterMode::Shadow { replaces, charges } => {
            8 * (1 + replaces.map_or(0, |index| index as u64 + 1)) + u64::from(!charges)
        }
    }
}

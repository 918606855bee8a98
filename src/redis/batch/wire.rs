//! The wire format of a batch: the script's argument, and its reply, by which the requests of the batch are completed. `script`
//! has an example of both.

use std::{
    mem,
    sync::atomic::{AtomicU32, Ordering},
};

use redis::{Cmd, Value};
use smallvec::SmallVec;

use super::{Batch, MergedRequests, OpGroup};
use crate::{
    clock::Timestamp,
    error::StoreError,
    redis::{
        error_class::{self, ErrorAction},
        io::ServerClock,
        key_names::KeyBuf,
        request::{
            PendingRequest,
            limit::RedisLimit,
            op::{CounterOps, OwnedCounterOp},
        },
        script::{
            Script,
            msgpack::{MsgPackReader, MsgPackWriter},
        },
    },
    store::{CounterMode, CounterResult, LimitHandle, Op, OpResult, Units},
    strategy::{RuleInfo, Snapshot},
};

/// Numbers the calls of all connections: a reply with another call's number is not decoded.
static CALL_SEQ: AtomicU32 = AtomicU32::new(1);

impl Batch {
    /// The call: `EVALSHA`, or `EVAL` with the script's text if the server does not have it. Everything is packed
    /// into one argument, since each argument costs the server about as much as reading a key.
    pub(in crate::redis) fn call(
        &mut self,
        script: &Script,
        with_text: bool,
        now: Timestamp,
    ) -> Cmd {
        self.call_number = CALL_SEQ.fetch_add(1, Ordering::Relaxed);
        let mut cmd = Cmd::with_capacity(4 + self.keys, 128 + 40 * self.keys);
        if with_text {
            cmd.arg("EVAL").arg(&script.text)
        } else {
            cmd.arg("EVALSHA").arg(&script.sha)
        };
        cmd.arg(self.keys);
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
        // The second value is the position of the segments; the call's number and the policies precede them.
        let (mut positions, mut begin) = (ParamPositions::new(), 4);
        let mut args = mem::take(&mut self.args);
        args.clear();
        // A server without `EVALSHA` quotes the arguments in its error, up to this NUL.
        args.uint(0);
        let position = args.reserve_u32();
        args.uint(self.call_number.into());
        for policy in policies {
            positions.push((policy.id(), begin));
            if let Some(context) = policy.context::<RedisLimit>() {
                begin += context.write(policy.rule(), now, &mut args);
            }
        }
        args.patch_u32(position, begin as u32);
        for group in &self.groups {
            group.write(&positions, &mut args);
        }
        cmd.arg(args.as_bytes());
        self.args = args;
        cmd
    }
}

type Policies<'a> = SmallVec<[&'a LimitHandle; 4]>;

/// The positions of the limits' parameters among the values.
type ParamPositions = SmallVec<[(u64, usize); 4]>;

impl OpGroup {
    fn write(&self, positions: &ParamPositions, args: &mut MsgPackWriter) {
        let has_counts = self.entries.iter().any(|entry| entry.count() != 1);
        let adjusts = self.op == Op::Adjust;
        let receipts = |entry: &MergedRequests| {
            let counters = entry.counters().iter().filter(|_| adjusts);
            counters
                .filter_map(OwnedCounterOp::receipt)
                .collect::<SmallVec<[_; 1]>>()
        };
        let own = |entry: &MergedRequests| {
            usize::from(has_counts) + 3 * receipts(entry).len() + entry.callers().count()
        };
        let own: usize = self.entries.iter().map(own).sum();
        args.uint(number(self.op));
        args.uint(self.entries.len() as u64);
        args.uint(self.limits.len() as u64);
        for (limit, terms) in self.limits.iter().zip(&self.terms) {
            let mut positions = positions.iter();
            let position = positions.find(|(number, _)| *number == limit.id());
            args.uint(position.map_or(0, |(_, position)| *position as u64));
            args.uint(terms.units.get());
            args.uint(if adjusts {
                terms.refunds.into()
            } else {
                mode_number(terms.mode, limit.info())
            });
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
            for receipt in receipts(entry) {
                args.int(receipt.charged_at.as_micros().min(MAX_EXACT));
                if receipt.is_now() {
                    args.nil();
                } else {
                    args.int(receipt.window_id);
                }
                args.uint(Units::new(receipt.remaining).get());
            }
            entry.callers().for_each(|caller| args.text(caller));
        }
    }
}

/// The script's number of an operation.
fn number(op: Op) -> u64 {
    match op {
        Op::Acquire(_) => 1,
        Op::Adjust => 2,
        Op::Peek => 3,
        Op::Reset => 4,
        Op::Renew => 5,
    }
}

/// The script's number of a mode.
fn mode_number(mode: CounterMode, info: &RuleInfo) -> u64 {
    match mode {
        CounterMode::Charge => 0,
        CounterMode::Check => 1,
        CounterMode::ChargeRejectedToo if info.stores_each_unit => 3,
        CounterMode::ChargeRejectedToo => 2,
        CounterMode::CountRejections => 4,
        CounterMode::Shadow { charges: true } => 8,
        CounterMode::Shadow { charges: false } => 9,
    }
}

/// The largest number that a reply may hold: a time in microseconds, plus a window, until the year 2540. Lua represents
/// integers exactly up to half of it, and then even ones.
const MAX_NUMBER: u64 = 1 << 54;

/// The largest integer that Lua computes with exactly.
const MAX_EXACT: i64 = (1 << 53) - 1;

/// What remains to be done after a batch's requests were completed.
pub(crate) struct BatchReply {
    /// The combined action for the errors of single requests.
    pub(crate) action: ErrorAction,
    /// The first of these errors, but for those after which the request is retried.
    pub(crate) error: Option<StoreError>,
    /// Detached requests that cannot be executed now.
    pub(crate) failed: Vec<(PendingRequest, StoreError)>,
    /// Requests to send again.
    pub(crate) retry: Vec<PendingRequest>,
    /// Counters that were reset.
    pub(crate) reset: Vec<CounterOps>,
}

/// Changes how a request is sent, if that avoids an error which left nothing charged. False if it was sent so before.
fn prepare_retry(request: &mut PendingRequest, error: &StoreError) -> bool {
    let StoreError::Server { code, message } = error else {
        return false;
    };
    let setting = match &**code {
        "STALE" => &mut request.time_synced,
        // Its slot is migrating, and an earlier entry of the batch has deleted the key. Alone it is redirected.
        "ERR" if message.contains("non local key") => &mut request.send_alone,
        _ => return false,
    };
    !mem::replace(setting, true)
}

/// Completes the requests with the script's reply, in order of arrival, once `clock` is set to the server's time. An error means that
/// the reply is malformed; the requests left in the batch have no result.
pub(crate) fn decode_and_complete(
    batch: &mut Batch,
    reply: Value,
    clock: &ServerClock,
) -> Result<BatchReply, StoreError> {
    let mut done = BatchReply {
        action: ErrorAction::default(),
        error: None,
        failed: Vec::new(),
        retry: Vec::new(),
        reset: Vec::new(),
    };
    let Value::BulkString(reply) = reply else {
        return Err(malformed("not a string"));
    };
    let list = MsgPackReader::list(&reply).ok_or_else(|| malformed("not a list"))?;
    let mut reply = Reply(list);
    if reply.int()? != i64::from(batch.call_number) {
        return Err(malformed("it is the reply to another call"));
    }
    let at = Timestamp::from_micros(reply.int()?);
    clock.set(at);
    for entry in batch.entries() {
        match reply.int()? {
            -1 => {
                let error = reply.failure(entry)?;
                if let StoreError::Server { code, .. } = &error {
                    let action = error_class::classify_code(code);
                    done.action.reconnect |= action.reconnect;
                    done.action.counts_as_failure |= action.counts_as_failure;
                }
                for mut request in entry.requests.drain(..) {
                    if prepare_retry(&mut request, &error) {
                        done.retry.push(request);
                        continue;
                    }
                    if done.error.is_none() {
                        done.error = Some(error.clone());
                    }
                    // An adjustment without a waiter is made later, or given up.
                    if request.op == Op::Adjust {
                        done.failed.push((request, error.clone()));
                    } else {
                        request.fail(error.clone());
                    }
                }
            }
            admitted => {
                if entry.op() == Op::Reset {
                    done.reset.push(entry.counters().into());
                }
                let is_acquire = matches!(entry.op(), Op::Acquire(_));
                let counters = entry
                    .counters()
                    .iter()
                    .map(|counter| reply.counter(counter, is_acquire));
                let counters = counters.collect::<Result<_, _>>()?;
                distribute(entry, at, admitted.max(0) as u64, counters);
            }
        }
    }
    Ok(done)
}

/// Distributes the admitted requests in order of arrival.
fn distribute(
    entry: &mut MergedRequests,
    at: Timestamp,
    mut admitted: u64,
    counters: SmallVec<[CounterResult; 1]>,
) {
    // Units that shadows moved and that are not distributed yet.
    let mut shadows: SmallVec<[u64; 2]> = counters.iter().map(|counter| counter.units).collect();
    for request in entry.requests.drain(..) {
        let mut counters = SmallVec::<[_; 1]>::from_slice(&counters);
        let (mut own, mut admitted_after) = (0, 0);
        if let Op::Acquire(times) = request.op {
            let times = u64::from(times);
            own = times.min(admitted);
            admitted -= own;
            admitted_after = admitted;
            // The reply has the units of all admitted requests together.
            let shadows = shadows.iter_mut();
            for ((counter, op), shadow) in counters.iter_mut().zip(&request.counters).zip(shadows) {
                counter.units = match op.mode {
                    CounterMode::Check | CounterMode::CountRejections => 0,
                    CounterMode::Charge | CounterMode::ChargeRejectedToo => op.units.of(own),
                    CounterMode::Shadow { .. } => op.units.of(times).min(*shadow),
                };
                *shadow -= counter.units.min(*shadow);
            }
        }
        request.succeed(OpResult {
            admitted_after,
            ..OpResult::of(at, own, counters)
        });
    }
}

struct Reply<'a>(MsgPackReader<'a>);

impl Reply<'_> {
    fn int(&mut self) -> Result<i64, StoreError> {
        let int = self.0.int();
        let int = int.ok_or_else(|| malformed("a number is missing"))?;
        if int.unsigned_abs() <= MAX_NUMBER {
            Ok(int)
        } else {
            Err(malformed("a number is out of range"))
        }
    }

    fn counter(
        &mut self,
        counter: &OwnedCounterOp,
        is_acquire: bool,
    ) -> Result<CounterResult, StoreError> {
        // The units of an `Acquire` follow from the number admitted, except for a shadow's.
        let is_implied = is_acquire && !counter.mode.is_shadow();
        let units = if is_implied {
            0
        } else {
            self.int()?.max(0) as u64
        };
        let snapshot_len = counter
            .limit
            .context::<RedisLimit>()
            .map_or(0, |limit| limit.snapshot_len);
        let mut snapshot = Snapshot::default();
        for word in &mut snapshot.0[..snapshot_len] {
            *word = self.int()?;
        }
        Ok(CounterResult::new(units, snapshot))
    }

    /// Why one entry failed, while the rest of its batch succeeded.
    fn failure(&mut self, entry: &MergedRequests) -> Result<StoreError, StoreError> {
        let message = self
            .0
            .text()
            .ok_or_else(|| malformed("an error is missing"))?;
        let message = String::from_utf8_lossy(message);
        let (code, rest) = error_class::read(&message);
        if !matches!(code, "FOREIGN" | "WRONGTYPE") {
            return Ok(StoreError::Server {
                code: code.into(),
                message: rest.into(),
            });
        }
        let keys: Vec<_> = entry
            .counters()
            .iter()
            .filter_map(|counter| {
                Some(
                    counter
                        .limit
                        .context::<RedisLimit>()?
                        .names
                        .of(&counter.key),
                )
            })
            .collect();
        Ok(StoreError::CorruptKey {
            key: keys.join(" or ").into(),
            message: if code == "FOREIGN" { rest } else { &message }.into(),
        })
    }
}

fn malformed(what: &str) -> StoreError {
    StoreError::Server {
        code: "GARBLED".into(),
        message: format!("the script's reply is malformed: {what}").into(),
    }
}

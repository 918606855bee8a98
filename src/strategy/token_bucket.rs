use std::sync::Arc;

use super::{
    AnyMemory, Memory, Outlook, Receipt, Rule, Script, Seen, State, Strategy,
    meter::{Meter, PER_MICRO},
};
use crate::{clock::Timestamp, error::Unfit, key::Key, quota::Quota};

/// A bucket of `burst` tokens that starts full and refills evenly, at `requests` per period.
///
/// - **Rule**: a request takes its cost in tokens, if there are as many. The same admissions as [`Gcra`](super::Gcra),
///   kept as what is missing and since when.
/// - **Exact**: in integers; refilling is rounded down by at most one part in 10,000.
/// - **Memory**: one short string a key, some 40 bytes more than [`Gcra`](super::Gcra).
/// - **Worst case over one period**: requests + burst units.
/// - **Choose it** when others read the keys: the bucket stands in them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenBucket;

impl Strategy for TokenBucket {
    fn bind(&self, quota: &Quota) -> Result<Arc<dyn Rule>, Unfit> {
        Ok(Arc::new(Tokens(Meter::of(quota)?)))
    }
}

/// A token bucket for one quota.
#[derive(Clone, Debug)]
struct Tokens(Meter);

/// How much is missing of a full bucket, in 0.1 ns of refilling, and when that was so.
#[derive(Debug, Default)]
struct Bucket {
    missing: u64,
    stamp: Timestamp,
}

impl State for Bucket {
    fn full_at(&self) -> Timestamp {
        let missing = self.missing.div_ceil(PER_MICRO);
        Timestamp::from_micros(self.stamp.as_micros().saturating_add_unsigned(missing))
    }
}

impl Tokens {
    /// What is missing at `now`, in units of time.
    fn missing(&self, state: &Bucket, now: Timestamp) -> u64 {
        // If the clock stepped back, what is missing refills from now on.
        let elapsed = now.since(state.stamp).as_micros() as u64;
        let refilled = elapsed.saturating_mul(self.0.units_per_micro());
        let missing = state
            .missing
            .div_ceil(self.0.grain)
            .saturating_sub(refilled);
        if missing > 2 * self.0.tolerance {
            // more than any debt: the quota was another one
            self.0.tolerance
        } else {
            missing
        }
    }

    fn bucket(&self, missing: u64, stamp: Timestamp) -> Bucket {
        let missing = missing.saturating_mul(self.0.grain);
        Bucket { missing, stamp }
    }
}

impl Memory for Tokens {
    type State = Bucket;

    fn room(&self, state: &mut Bucket, now: Timestamp) -> i64 {
        let missing = self.missing(state, now);
        if state.stamp > now || missing == self.0.tolerance {
            *state = self.bucket(missing, now);
        }
        self.0.room(missing)
    }

    fn take(&self, state: &mut Bucket, now: Timestamp, units: u64, _by: &Key) {
        *state = self.bucket(self.missing(state, now) + units * self.0.interval, now);
    }

    fn refund(
        &self,
        state: &mut Bucket,
        now: Timestamp,
        receipt: &Receipt,
        want: u64,
        _by: &Key,
    ) -> u64 {
        let elapsed = now.since(receipt.at).as_micros() as u64;
        let back = self.0.refund(want, receipt.left, elapsed);
        let missing = self.missing(state, now);
        *state = self.bucket(missing.saturating_sub(back), now);
        back.div_ceil(self.0.interval)
    }

    fn seen(&self, state: &Bucket, now: Timestamp, _cost: u64) -> Seen {
        [self.missing(state, now) as i64, 0, 0]
    }
}

impl Rule for Tokens {
    fn tag(&self) -> &'static str {
        "t1"
    }

    fn capacity(&self) -> u64 {
        self.0.burst
    }

    fn outlook(&self, &[missing, ..]: &Seen, _now: Timestamp, cost: u64) -> Outlook {
        self.0.outlook(missing, cost)
    }

    fn script(&self) -> Option<Script> {
        Some(Script {
            source: include_str!("token_bucket.lua"),
            shortcut: None,
            params: self.0.params(),
            seen: 1,
        })
    }

    fn memory(&self) -> Option<&dyn AnyMemory> {
        Some(self)
    }
}

use std::{borrow::Cow, collections::VecDeque, num::NonZeroU32, sync::Arc, time::Duration};

use super::{
    ChargeReceipt, ErasedLocalRule, LocalRule, LuaScript, QuotaStatus, RetryAfter, Rule, Snapshot,
    State, Strategy,
    window::{self, MOST},
};
use crate::{clock::Timestamp, error::InvalidValue, key::Key, quota::Quota};

/// Counters of the newest buckets of time, the oldest one weighted by the part of it that is still inside the window.
///
/// With one bucket it is the two-counter sliding window; with ten, "1000 a second" is counted in buckets of 100 ms.
///
/// - **Rule**: used = the counts of the newest `buckets` + ceil(the count of the one before x the part of it that is
///   still inside the window); a charge of n units is admitted if used + n stays within the quota.
/// - **Approximate**: it assumes that charges are spread evenly over the oldest bucket. With more than one bucket, never more
///   than `requests` are admitted in any period less one bucket. Cloudflare measured 0.003 % wrong decisions among 400 million
///   requests.
/// - **Memory**: buckets + 1 counters a key.
/// - **Worst case over one period**: with one bucket up to 2 x requests, if they are timed for it; with b buckets, one
///   bucket's worth more than requests.
/// - **Choose it** for large limits that should slide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlidingWindow {
    buckets: NonZeroU32,
}

/// The most buckets: each request reads them all.
const MOST_BUCKETS: u32 = 100;

impl SlidingWindow {
    /// A sliding window of one bucket: two counters.
    pub const fn new() -> Self {
        Self {
            buckets: NonZeroU32::MIN,
        }
    }

    /// Divides the period into `buckets`, at most 100. Zero is taken for one.
    #[must_use]
    pub const fn buckets(buckets: u32) -> Self {
        match NonZeroU32::new(buckets) {
            Some(buckets) => Self { buckets },
            None => Self::new(),
        }
    }
}

impl Default for SlidingWindow {
    fn default() -> Self {
        Self::new()
    }
}

impl Strategy for SlidingWindow {
    fn bind(&self, quota: &Quota) -> Result<Arc<dyn Rule>, InvalidValue> {
        let period = window::checked(quota, "sliding window", MOST)?;
        let buckets = i64::from(self.buckets.get());
        if self.buckets.get() > MOST_BUCKETS {
            return Err(InvalidValue::new(
                format!("{buckets} buckets"),
                format!("at most {MOST_BUCKETS}"),
            ));
        }
        let width = period / buckets;
        if period % buckets != 0 || width < 1_000 {
            return Err(InvalidValue::new(
                format!("{quota} in {buckets} buckets"),
                "buckets of whole microseconds, at least 1 ms each",
            ));
        }
        // A weight is count x width, where the count may be a debt's. Wider buckets are weighed by the millisecond,
        // rounded up.
        let fits = |width: i64| {
            let product = i128::from(width) * i128::from(quota.amount()) * 2;
            product < 1 << 53
        };
        let grain = match width {
            width if fits(width) => 1,
            width if width % 1_000 == 0 && fits(width / 1_000) => 1_000,
            _ => {
                return Err(InvalidValue::new(
                    format!("{quota} in {buckets} buckets, past what a sliding window weighs"),
                    "requests x bucket in milliseconds below 4,500,000,000,000,000",
                ));
            }
        };
        Ok(Arc::new(Sliding {
            requests: quota.amount(),
            buckets: buckets as usize,
            width: width / grain,
            grain,
        }))
    }
}

/// A sliding window for one quota, in units of `grain` microseconds.
#[derive(Clone, Debug)]
struct Sliding {
    requests: u64,
    buckets: usize,
    /// Of a bucket.
    width: i64,
    grain: i64,
}

/// Counters of the newest buckets, the newest first, their width in microseconds, and the newest's number since the
/// epoch. Buckets of another width, which the policy had before, count in those at hand in which they end.
#[derive(Clone, Debug, Default)]
struct Buckets {
    width: i64,
    newest: i64,
    counts: VecDeque<u64>,
    /// When the newest has left the window, in microseconds since the epoch.
    expires_at: i64,
}

impl State for Buckets {
    fn expires_at(&self) -> Timestamp {
        Timestamp::from_micros(self.expires_at)
    }
}

impl Sliding {
    /// Where we are: the bucket at hand, and how far into it, rounded down to whole units of time.
    fn current_bucket(&self, now: Timestamp) -> (i64, i64) {
        let units = now.as_micros().div_euclid(self.grain);
        (units.div_euclid(self.width), units.rem_euclid(self.width))
    }

    /// The buckets as this quota counts them.
    fn own<'a>(&self, state: &'a Buckets, now: Timestamp) -> Cow<'a, Buckets> {
        let width = self.width * self.grain;
        if state.width == width || state.counts.is_empty() {
            return Cow::Borrowed(state);
        }
        let mut own = state.clone();
        let (current_bucket, _) = self.current_bucket(now);
        (own.width, own.newest) = (width, current_bucket);
        own.counts = std::iter::repeat_n(0, self.buckets + 1).collect();
        for (number, count) in (0..).map(|back| state.newest - back).zip(&state.counts) {
            let ends = (number + 1).saturating_mul(state.width) - 1;
            let back = current_bucket - ends.div_euclid(width).min(current_bucket);
            if let Some(place) = own
                .counts
                .get_mut(usize::try_from(back).unwrap_or(usize::MAX))
            {
                *place += count;
            }
        }
        Cow::Owned(own)
    }

    /// Whether the buckets are of another width than this quota's, or the newest lies ahead: the clock stepped back.
    fn is_off(&self, state: &Buckets, now: Timestamp) -> bool {
        let (current_bucket, _) = self.current_bucket(now);
        self.is_of_other_width(state) || state.newest > current_bucket
    }

    fn is_of_other_width(&self, state: &Buckets) -> bool {
        state.width != self.width * self.grain && !state.counts.is_empty()
    }

    /// The count of the bucket `back` before the one at hand. If the clock stepped back, the newest is the one at hand.
    fn count(&self, state: &Buckets, now: Timestamp, back: usize) -> i64 {
        let behind = (self.current_bucket(now).0 - state.newest).max(0);
        let place = (back as i64).checked_sub(behind).map(usize::try_from);
        match place {
            Some(Ok(place)) => state.counts.get(place).map_or(0, |count| *count as i64),
            _ => 0,
        }
    }

    fn used(&self, state: &Buckets, now: Timestamp) -> i64 {
        let (_, into) = self.current_bucket(now);
        let whole: i64 = (0..self.buckets)
            .map(|back| self.count(state, now, back))
            .sum();
        whole + self.weighed(self.count(state, now, self.buckets), self.width - into)
    }

    /// What a count weighs of which so much of the bucket is still inside the window, rounded up. A count may be that of a
    /// larger quota: what would weigh more than any debt of this one weighs twice the requests.
    fn weighed(&self, count: i64, inside: i64) -> i64 {
        let most = 2 * self.requests as i64;
        if count > most && inside > most * self.width / count {
            return most;
        }
        (count * inside + self.width - 1) / self.width
    }

    /// After how many units of time no more than `most` are used, if there are no other requests.
    fn earliest(&self, state: &Buckets, now: Timestamp, most: i64) -> i64 {
        let (_, into) = self.current_bucket(now);
        for step in 0..=self.buckets {
            let whole: i64 = (0..self.buckets - step)
                .map(|back| self.count(state, now, back))
                .sum();
            let (count, rest) = (self.count(state, now, self.buckets - step), most - whole);
            let from = if step == 0 { into } else { 0 };
            if rest < 0 {
                continue;
            }
            // The first place in this bucket where what is weighed fits into the rest.
            let place = match count > rest {
                true => from.max(self.width - rest * self.width / count),
                false => from,
            };
            if place < self.width {
                return step as i64 * self.width - into + place;
            }
        }
        (self.buckets as i64 + 1) * self.width - into
    }

    /// Makes the bucket at hand the newest.
    fn turn(&self, state: &mut Buckets, now: Timestamp) {
        let (current_bucket, _) = self.current_bucket(now);
        for _ in 0..(current_bucket - state.newest).clamp(0, self.buckets as i64 + 1) {
            state.counts.push_front(0);
        }
        state.newest = current_bucket;
        state.width = self.width * self.grain;
        state.counts.resize(self.buckets + 1, 0);
        state.expires_at = self.expires_at(state);
    }

    /// When the newest bucket has left the window.
    fn expires_at(&self, state: &Buckets) -> i64 {
        (state.newest + self.buckets as i64 + 1) * self.width * self.grain
    }
}

impl LocalRule for Sliding {
    type State = Buckets;

    fn available(&self, state: &mut Buckets, now: Timestamp) -> i64 {
        if self.is_off(state, now) {
            if let Cow::Owned(own) = self.own(state, now) {
                *state = own;
            }
            self.turn(state, now);
        }
        // There may have been more or fewer buckets.
        state.expires_at = self.expires_at(state);
        self.requests as i64 - self.used(&self.own(state, now), now)
    }

    fn charge(&self, state: &mut Buckets, now: Timestamp, units: u64, _caller: &Key) {
        if let Cow::Owned(own) = self.own(state, now) {
            *state = own;
        }
        self.turn(state, now);
        if let Some(count) = state.counts.front_mut() {
            *count += units;
        }
    }

    fn refund(
        &self,
        state: &mut Buckets,
        now: Timestamp,
        receipt: &ChargeReceipt,
        want: u64,
        _caller: &Key,
    ) -> u64 {
        let other = self.is_of_other_width(state);
        if receipt.window_id != self.current_bucket(now).0
            || !other && state.newest != receipt.window_id
        {
            return 0;
        }
        if let Cow::Owned(own) = self.own(state, now) {
            *state = own;
        }
        let Some(count) = state.counts.front_mut() else {
            return 0;
        };
        let back = want.min(*count);
        *count -= back;
        back
    }

    fn snapshot(&self, state: &Buckets, now: Timestamp, cost: u64) -> Snapshot {
        let state = &*self.own(state, now);
        let (used, part) = (
            self.used(state, now),
            now.as_micros().rem_euclid(self.grain),
        );
        let after = |most: i64| self.earliest(state, now, most) * self.grain - part;
        let most = self.requests as i64 - cost.min(self.requests) as i64;
        Snapshot::new([
            used,
            if used > most { after(most) } else { 0 },
            if used > 0 { after(0) } else { 0 },
        ])
    }
}

impl Rule for Sliding {
    fn state_format(&self) -> &'static str {
        "s1"
    }

    fn refills_gradually(&self) -> bool {
        true
    }

    fn capacity(&self) -> u64 {
        self.requests
    }

    fn status(
        &self,
        &Snapshot([used, fits, free]): &Snapshot,
        _now: Timestamp,
        cost: u64,
    ) -> QuotaStatus {
        let left = self.requests as i64 - used;
        let wait = |micros: i64| Duration::from_micros(micros.max(0) as u64);
        QuotaStatus {
            remaining: left.max(0) as u64,
            retry_after: match () {
                () if cost > self.requests => RetryAfter::Never,
                () if left >= cost as i64 => RetryAfter::Now,
                () => RetryAfter::In(wait(fits)),
            },
            reset_after: wait(free),
        }
    }

    fn window_id(&self, _snapshot: &Snapshot, now: Timestamp) -> i64 {
        self.current_bucket(now).0
    }

    fn script(&self) -> Option<LuaScript> {
        Some(LuaScript::new(
            include_str!("sliding_window.lua"),
            [
                self.requests as i64,
                self.buckets as i64,
                self.width,
                1_000 / self.grain,
                self.grain,
            ],
        ))
    }

    fn local_rule(&self) -> Option<ErasedLocalRule<'_>> {
        Some(ErasedLocalRule::new(self))
    }
}

use std::{
    any::TypeId, borrow::Cow, collections::VecDeque, num::NonZeroU32, sync::Arc, time::Duration,
};

use super::{MAX_COUNT, validated_period_us};
use crate::{
    clock::Timestamp,
    error::InvalidValue,
    key::Key,
    quota::Quota,
    strategy::{
        ChargeReceipt, ErasedLocalRule, Lease, LocalRule, LuaScript, QuotaStatus, RetryAfter, Rule,
        RuleInfo, Snapshot, State, Strategy, Terms,
        entry::{BuiltIn, UNITS},
        rule::table::thousandths,
    },
};

/// A strategy with counters of the newest time buckets, the oldest weighted by its part inside the window.
///
/// With one bucket it is the two-counter sliding window; with ten, 1,000 per second are counted in buckets of 100 ms.
///
/// - **Rule**: used = the counts of the newest `buckets` + ceil(the count of the one before x the part of it that is
///   still inside the window); a charge of n units is admitted if used + n stays within the quota.
/// - **Approximate**: charges are assumed to be spread evenly over the oldest bucket. With more than one bucket, never more
///   than `requests` are admitted in any interval of one period less one bucket. Cloudflare measured 0.003 % wrong decisions
///   among 400 million requests.
/// - **Memory**: buckets + 1 counters per key.
/// - **Worst case over one period**: requests, and as many more as were admitted within one bucket: 2 x requests if all came at
///   the end of one.
/// - **With [leases](crate::Policy::lease)**: as without them. A lease ends with the bucket of its charge, so each bucket counts what was
///   spent in it.
/// - **Choose it** for large limits that should slide.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Limiter, ManualClock, MemoryStore, Policy, Quota, SlidingWindow};
///
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let clock = ManualClock::default();
/// let limiter = Limiter::builder()
///     .store(MemoryStore::builder().clock(clock.clone()).build())
///     .policy(
///         Policy::new("burst", Quota::requests(1_000).per_second()).strategy(SlidingWindow::buckets(10)),
///     )
///     .build()?;
/// assert_eq!(limiter.check("alice").times(1_000).await.admitted(), 1_000);
/// clock.advance(Duration::from_secs(1));
/// // Half of the oldest bucket is inside the window.
/// clock.advance(Duration::from_millis(50));
/// assert_eq!(limiter.check("alice").times(1_000).await.admitted(), 500);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlidingWindow {
    buckets: NonZeroU32,
}

/// The largest number of buckets: each request reads them all.
const MAX_BUCKETS: u32 = 100;

impl SlidingWindow {
    /// A sliding window of one bucket, with two counters.
    pub const fn new() -> Self {
        Self {
            buckets: NonZeroU32::MIN,
        }
    }

    /// A sliding window whose period is divided into `buckets`: from 1 to 100, each at least 1 ms long; 0 counts as 1. Other
    /// values are a [`ConfigError`](crate::ConfigError) when the limiter is built.
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

impl SlidingWindow {
    pub(crate) const BUILT_IN: BuiltIn = BuiltIn {
        text: "sliding_window",
        parse: |tokens| {
            if !tokens.take_word("buckets") {
                return Ok(Arc::new(Self::new()));
            }
            let number = tokens.peek_word().and_then(|word| word.parse().ok());
            let Some(buckets) = number.filter(|buckets| *buckets > 0) else {
                return Err(tokens.unexpected("a number of buckets from 1 to 100"));
            };
            tokens.take();
            Ok(Arc::new(Self::buckets(buckets)))
        },
        settings: "nothing more, or a number of buckets: sliding_window buckets 10",
        rule: TypeId::of::<SlidingWindowRule>,
        state_format: "s1",
        counts: UNITS,
    };
}

impl Strategy for SlidingWindow {
    fn bind(&self, quota: &Quota, terms: &Terms) -> Result<Arc<dyn Rule>, InvalidValue> {
        let period = validated_period_us(quota, "sliding window", MAX_COUNT)?;
        let buckets = i64::from(self.buckets.get());
        if self.buckets.get() > MAX_BUCKETS {
            return Err(InvalidValue::new(
                format!("{buckets} buckets"),
                format!("at most {MAX_BUCKETS}"),
            ));
        }
        let width = period / buckets;
        if period % buckets != 0 || width < 1_000 {
            return Err(InvalidValue::new(
                format!("{quota} in {buckets} buckets"),
                "buckets of whole microseconds, at least 1 ms each",
            ));
        }
        // The product of a bucket's width and its count, which may be a debt, must be exact in Lua. Buckets that are too wide
        // for that are measured in milliseconds.
        let is_exact = |width: i64| {
            let product = i128::from(width) * i128::from(quota.amount()) * 2;
            product < 1 << 53
        };
        let tick_us = match width {
            width if is_exact(width) => 1,
            width if width % 1_000 == 0 && is_exact(width / 1_000) => 1_000,
            _ => {
                let buckets = match buckets {
                    1 => "1 bucket".to_owned(),
                    buckets => format!("{buckets} buckets"),
                };
                return Err(InvalidValue::new(
                    format!("{quota} in {buckets}, more than a sliding window can weigh exactly"),
                    "requests x bucket in milliseconds below 4,500,000,000,000,000",
                ));
            }
        };
        Ok(Arc::new(SlidingWindowRule {
            requests: quota.amount(),
            buckets: buckets as usize,
            width: width / tick_us,
            tick_us,
            lease: terms.lease,
        }))
    }

    fn config_text(&self) -> Option<Cow<'_, str>> {
        Some(match self.buckets.get() {
            1 => "sliding_window".into(),
            buckets => format!("sliding_window buckets {buckets}").into(),
        })
    }
}

impl LocalRule for SlidingWindowRule {
    type State = Buckets;

    fn available(&self, state: &mut Buckets, now: Timestamp) -> i64 {
        if self.is_off(state, now) {
            if let Cow::Owned(converted) = self.converted(state, now) {
                *state = converted;
            }
            self.rotate(state, now);
        }
        // The policy may have had another number of buckets.
        state.expires_at = self.expires_at(state);
        self.requests as i64 - self.used(&self.converted(state, now), now)
    }

    fn charge(&self, state: &mut Buckets, now: Timestamp, units: u64, _caller: &Key) {
        if let Cow::Owned(converted) = self.converted(state, now) {
            *state = converted;
        }
        self.rotate(state, now);
        if let Some(count) = state.counts.front_mut() {
            *count = count.saturating_add(units);
        }
        state.capacity = self.requests;
    }

    fn refund(
        &self,
        state: &mut Buckets,
        now: Timestamp,
        receipt: &ChargeReceipt,
        want: u64,
        _caller: &Key,
    ) -> u64 {
        let current = self.current_bucket(now).0;
        if !receipt.is_of_window(current) || !self.has_other_width(state) && state.newest != current
        {
            return 0;
        }
        if let Cow::Owned(converted) = self.converted(state, now) {
            *state = converted;
        }
        let Some(count) = state.counts.front_mut() else {
            return 0;
        };
        let refunded = want.min(*count);
        *count -= refunded;
        refunded
    }

    fn snapshot(&self, state: &Buckets, now: Timestamp, cost: u64) -> Snapshot {
        let state = &*self.converted(state, now);
        let used = self.used(state, now);
        let into_tick = now.as_micros().rem_euclid(self.tick_us);
        let after =
            |max_used: i64| self.ticks_until(state, now, max_used) * self.tick_us - into_tick;
        let max_used = self.requests as i64 - cost.min(self.requests) as i64;
        let fits_after = if used > max_used { after(max_used) } else { 0 };
        let free_after = if used > 0 { after(0) } else { 0 };
        Snapshot::new([used, fits_after, free_after])
    }
}

impl Rule for SlidingWindowRule {
    fn info(&self) -> RuleInfo {
        RuleInfo {
            refills_gradually: true,
            lease: self.lease,
            ..RuleInfo::new(SlidingWindow::BUILT_IN.state_format, self.requests)
        }
    }

    fn status(
        &self,
        &Snapshot([used, fits_after, free_after]): &Snapshot,
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
                () => RetryAfter::In(wait(fits_after)),
            },
            reset_after: wait(free_after),
        }
    }

    fn window_id(&self, _snapshot: &Snapshot, now: Timestamp) -> i64 {
        self.current_bucket(now).0
    }

    fn window_end(&self, _snapshot: &Snapshot, now: Timestamp) -> Option<Timestamp> {
        let next = self.current_bucket(now).0.saturating_add(1);
        let ends = next.saturating_mul(self.width_us());
        Some(Timestamp::from_micros(ends))
    }

    fn script(&self) -> Option<LuaScript> {
        Some(LuaScript::new(
            include_str!("sliding_window.lua"),
            [
                self.requests as i64,
                self.buckets as i64,
                self.width,
                1_000 / self.tick_us,
                self.tick_us,
            ],
        ))
    }

    fn local_rule(&self) -> Option<ErasedLocalRule<'_>> {
        Some(ErasedLocalRule::new(self))
    }
}

/// A sliding window for one quota.
#[derive(Clone, Debug)]
pub(super) struct SlidingWindowRule {
    pub(super) requests: u64,
    pub(super) buckets: usize,
    /// The width of a bucket in ticks.
    pub(super) width: i64,
    /// The length of a tick, the unit of time, in microseconds.
    pub(super) tick_us: i64,
    pub(super) lease: Option<Lease>,
}

/// The counts of the newest buckets. Buckets of another width, which the policy had before, count in the current ones in
/// which they end.
#[derive(Clone, Debug, Default)]
pub(super) struct Buckets {
    /// In microseconds.
    pub(super) width: i64,
    /// The number of the newest bucket, counted from the epoch.
    pub(super) newest: i64,
    /// The newest first.
    pub(super) counts: VecDeque<u64>,
    /// When the newest has left the window, in microseconds since the epoch.
    pub(super) expires_at: i64,
    /// That of the last charge's quota.
    pub(super) capacity: u64,
}

impl State for Buckets {
    fn expires_at(&self) -> Timestamp {
        Timestamp::from_micros(self.expires_at)
    }

    fn eviction_order(&self, now: Timestamp) -> Option<u64> {
        let (now, width) = (now.as_micros(), self.width.max(1));
        let behind =
            usize::try_from(now.div_euclid(width).saturating_sub(self.newest)).unwrap_or(0);
        let inside = self.counts.len().saturating_sub(behind);
        let mut counts = self.counts.iter().take(inside);
        // The last of them is half-way out of the window.
        let oldest = counts.next_back().copied().unwrap_or(0);
        let left = (width - now.rem_euclid(width)) as u128;
        let weighed = u128::from(oldest) * left / width as u128;
        let used = counts.fold(weighed as u64, |sum, count| sum.saturating_add(*count));
        Some(thousandths(used, self.capacity))
    }
}

impl SlidingWindowRule {
    /// The number of the current bucket, and how many whole ticks of it have passed.
    pub(super) fn current_bucket(&self, now: Timestamp) -> (i64, i64) {
        let ticks = now.as_micros().div_euclid(self.tick_us);
        (ticks.div_euclid(self.width), ticks.rem_euclid(self.width))
    }

    /// The width of a bucket in microseconds.
    pub(super) fn width_us(&self) -> i64 {
        self.width * self.tick_us
    }

    pub(super) fn has_other_width(&self, state: &Buckets) -> bool {
        state.width != self.width_us() && !state.counts.is_empty()
    }

    /// The state in buckets of this quota's width.
    pub(super) fn converted<'a>(&self, state: &'a Buckets, now: Timestamp) -> Cow<'a, Buckets> {
        if !self.has_other_width(state) {
            return Cow::Borrowed(state);
        }
        let width = self.width_us();
        let mut converted = state.clone();
        let (current, _) = self.current_bucket(now);
        (converted.width, converted.newest) = (width, current);
        converted.counts = std::iter::repeat_n(0, self.buckets + 1).collect();
        let numbers = (0..).map(|back| state.newest.saturating_sub(back));
        for (number, count) in numbers.zip(&state.counts) {
            let next = number.saturating_add(1).saturating_mul(state.width);
            let ends = next.saturating_sub(1).div_euclid(width);
            let back = current.saturating_sub(ends.min(current));
            let back = usize::try_from(back).unwrap_or(usize::MAX);
            if let Some(sum) = converted.counts.get_mut(back) {
                *sum = sum.saturating_add(*count);
            }
        }
        Cow::Owned(converted)
    }

    /// Whether the buckets are of another width than this quota's, or the newest lies ahead, because the clock stepped back.
    pub(super) fn is_off(&self, state: &Buckets, now: Timestamp) -> bool {
        let (current, _) = self.current_bucket(now);
        self.has_other_width(state) || state.newest > current
    }

    /// The count of the bucket `back` buckets before the current one. If the newest lies ahead, it is the current one.
    fn count(&self, state: &Buckets, now: Timestamp, back: usize) -> i64 {
        let behind = self
            .current_bucket(now)
            .0
            .saturating_sub(state.newest)
            .max(0);
        let index = (back as i64).checked_sub(behind).map(usize::try_from);
        match index {
            Some(Ok(index)) => state.counts.get(index).map_or(0, |count| *count as i64),
            _ => 0,
        }
    }

    pub(super) fn used(&self, state: &Buckets, now: Timestamp) -> i64 {
        let (_, into) = self.current_bucket(now);
        let whole: i64 = (0..self.buckets)
            .map(|back| self.count(state, now, back))
            .sum();
        whole + self.weighed(self.count(state, now, self.buckets), into)
    }

    /// How many units of the oldest bucket still count, rounded up, `into` ticks into the current one. Its count may be that of
    /// a larger quota: more than any debt of this one counts as twice the requests.
    fn weighed(&self, count: i64, into: i64) -> i64 {
        let (inside, max_debt) = (self.width - into, 2 * self.requests as i64);
        if count > max_debt && inside > max_debt * self.width / count {
            return max_debt;
        }
        (count * inside + self.width - 1) / self.width
    }

    /// After how many ticks no more than `max_used` units are used, if there are no other requests.
    pub(super) fn ticks_until(&self, state: &Buckets, now: Timestamp, max_used: i64) -> i64 {
        let (_, into) = self.current_bucket(now);
        for step in 0..=self.buckets {
            let whole: i64 = (0..self.buckets - step)
                .map(|back| self.count(state, now, back))
                .sum();
            let (count, rest) = (
                self.count(state, now, self.buckets - step),
                max_used - whole,
            );
            let from = if step == 0 { into } else { 0 };
            if rest < 0 {
                continue;
            }
            // How far into this bucket the units of the oldest that still count first fit into the rest.
            let offset = match count > rest {
                true => from.max(self.width - rest * self.width / count),
                false => from,
            };
            if offset < self.width {
                return step as i64 * self.width - into + offset;
            }
        }
        (self.buckets as i64 + 1) * self.width - into
    }

    /// Makes the current bucket the newest.
    pub(super) fn rotate(&self, state: &mut Buckets, now: Timestamp) {
        let (current, _) = self.current_bucket(now);
        let passed = current.saturating_sub(state.newest);
        for _ in 0..passed.clamp(0, self.buckets as i64 + 1) {
            state.counts.push_front(0);
        }
        state.newest = current;
        state.width = self.width_us();
        state.counts.resize(self.buckets + 1, 0);
        state.expires_at = self.expires_at(state);
    }

    /// When the newest bucket has left the window.
    pub(super) fn expires_at(&self, state: &Buckets) -> i64 {
        let after = state.newest.saturating_add(self.buckets as i64 + 1);
        after.saturating_mul(self.width_us())
    }
}

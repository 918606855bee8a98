use std::{any::TypeId, borrow::Cow, num::NonZeroU32, sync::Arc, time::Duration};

use super::{
    MAX_COUNT,
    sliding_buckets::{Buckets, SlidingWindowRule},
    validated_period_us,
};
use crate::{
    clock::Timestamp,
    error::InvalidValue,
    key::Key,
    quota::Quota,
    strategy::{
        ChargeReceipt, ErasedLocalRule, LocalRule, LuaScript, QuotaStatus, RetryAfter, Rule,
        RuleInfo, Snapshot, Strategy, Terms,
        entry::{BuiltIn, Counts},
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

/// What becomes of the counts under other buckets.
const EACH_BUCKET: &str = "each old bucket counts in the new one in which it ends";

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
        counts: Counts::Units([EACH_BUCKET; 3]),
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
        if receipt.window_id != self.current_bucket(now).0
            || !self.has_other_width(state) && state.newest != receipt.window_id
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

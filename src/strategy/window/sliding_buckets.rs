//! The buckets of a sliding window: their counts, and how many units count now.

use std::{borrow::Cow, collections::VecDeque};

use crate::{
    clock::Timestamp,
    strategy::{Lease, State, rule::table::thousandths},
};

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

//! What each strategy promises, checked over the instants of all admissions.

use std::{collections::BTreeSet, iter, sync::Arc, time::Duration};

use crate::{
    CalendarWindow, FixedWindow, Gcra, ListWindow, Quota, SlidingLog, SlidingWindow, TokenBucket,
    strategy::Strategy,
};

/// Ticks of 50 ns in a microsecond.
const TICKS: i64 = 20;

/// The promise of a strategy, without regard to leases. Times are in microseconds.
#[derive(Clone, Copy, Debug)]
pub(super) enum Bound {
    /// At most `burst` units, and one per `interval` ticks, in any interval.
    Rate { burst: i64, interval: i64 },
    /// At most `requests` in any half-open interval of `length`.
    HalfOpen { requests: i64, length: i64 },
    /// At most `requests` in any closed interval of `length`.
    Closed { requests: i64, length: i64 },
    /// At most `requests` in each window of the store, of `length` each.
    Windows { requests: i64, length: i64 },
}

impl Bound {
    pub(super) fn rate(requests: i64, period: i64, burst: i64) -> Self {
        let interval = (period * TICKS + requests - 1) / requests;
        Self::Rate { burst, interval }
    }

    /// By how many units the admissions exceed the promise at most: more than 0 if it is broken. They are instants and units, in
    /// the order of time; `ends` are the ends of the store's windows.
    pub(super) fn excess(self, admissions: &[(i64, i64)], ends: &BTreeSet<i64>) -> f64 {
        match self {
            Self::Rate { burst, interval } => {
                let (mut units, mut least, mut most) = (0, i64::MAX, i64::MIN);
                let first = admissions.first().map_or(0, |(at, _)| *at);
                for (at, more) in admissions {
                    // Ticks of refilling that the units before this admission are short of.
                    let drained = (at - first) * TICKS;
                    least = least.min(units * interval - drained);
                    units += more;
                    most = most.max(units * interval - drained - least);
                }
                (most.max(0) - burst * interval) as f64 / interval as f64
            }
            Self::HalfOpen { requests, length } => {
                most_within(admissions, |first, last| last - first < length) - requests as f64
            }
            Self::Closed { requests, length } => {
                most_within(admissions, |first, last| last - first <= length) - requests as f64
            }
            Self::Windows { requests, length } => {
                let window_of = |at: i64| {
                    let end = ends.range(at + 1..).next();
                    end.copied().filter(|end| end - length <= at)
                };
                // Outside of all windows nothing may be admitted.
                if admissions.iter().any(|(at, _)| window_of(*at).is_none()) {
                    return f64::INFINITY;
                }
                let same = |first, last| window_of(first) == window_of(last);
                most_within(admissions, same) - requests as f64
            }
        }
    }

    /// What a unit counts in the [largest](Self::largest) promise of tiers that share a key.
    pub(super) fn weight(self) -> i64 {
        match self {
            Self::Rate { interval, .. } => interval,
            _ => 1,
        }
    }

    /// The promise of all tiers together that share a key: that of the one with the most units, and of rates that of the one whose
    /// burst takes longest to refill, in ticks.
    pub(super) fn largest(tiers: impl Iterator<Item = Self>) -> Self {
        let in_ticks = |tier: Self| match tier {
            Self::Rate { burst, interval } => Self::Rate {
                burst: burst * interval,
                interval: 1,
            },
            other => other,
        };
        let size = |tier: &Self| match *tier {
            Self::Rate { burst, .. } => burst,
            Self::HalfOpen { requests, .. }
            | Self::Closed { requests, .. }
            | Self::Windows { requests, .. } => requests,
        };
        tiers.map(in_ticks).max_by_key(size).expect("a tier")
    }

    /// By how many units the admissions exceed the promise, if each reset admits as much as one burst once more: in all intervals
    /// in which it is done, and in those that begin up to `reach` after it.
    pub(super) fn excess_after_resets(
        self,
        admissions: &[(i64, i64)],
        resets: &[i64],
        reach: i64,
    ) -> f64 {
        let resets_before = |at: i64| resets.iter().filter(|reset| **reset <= at).count() as i64;
        let admissions = admissions.iter();
        let admissions: Vec<_> = admissions
            .map(|(at, units)| (*at, *units, resets_before(*at)))
            .collect();
        let (burst, length) = match self {
            Self::Rate { burst, interval } => (burst * interval, i64::MAX),
            Self::HalfOpen { requests, length } => (requests, length),
            Self::Closed { requests, length } => (requests, length + 1),
            // An interval may lie in two windows.
            Self::Windows { requests, length } => (requests, length),
        };
        let mut most = i64::MIN;
        for (first, (start, ..)) in admissions.iter().enumerate() {
            let before = resets_before(start - reach);
            let mut units = 0;
            for (at, more, after) in &admissions[first..] {
                units += more;
                if at - start >= length {
                    break;
                }
                let excess = match self {
                    Self::Rate { interval, .. } => units * interval - (at - start) * TICKS,
                    Self::Windows { .. } => units - burst,
                    _ => units,
                };
                most = most.max(excess - burst * (1 + after - before));
            }
        }
        match self {
            Self::Rate { interval, .. } => most as f64 / interval as f64,
            _ => most as f64,
        }
    }
}

/// The most units between two admissions that are so near.
fn most_within(admissions: &[(i64, i64)], near: impl Fn(i64, i64) -> bool) -> f64 {
    let (mut from, mut units, mut most) = (0, 0, 0);
    for (at, more) in admissions {
        units += more;
        let far = admissions[from..]
            .iter()
            .take_while(|(first, _)| !near(*first, *at));
        let (count, gone) = far.fold((0, 0), |(count, gone), (_, units)| {
            (count + 1, gone + units)
        });
        (from, units) = (from + count, units - gone);
        most = most.max(units);
    }
    most as f64
}

#[test]
fn the_checks_find_one_unit_more_than_is_promised() {
    let windows = BTreeSet::from([1_000, 2_500]);
    let at = |times: &[i64]| -> Vec<_> { times.iter().copied().zip(iter::repeat(1)).collect() };
    let rate = Bound::rate(1, 100, 3);
    for (bound, kept, broken) in [
        (rate, [0, 0, 0, 100, 200, 300], [0, 0, 0, 100, 200, 299]),
        (
            Bound::HalfOpen {
                requests: 3,
                length: 100,
            },
            [0, 0, 0, 100, 100, 199],
            [0, 0, 0, 99, 100, 199],
        ),
        (
            Bound::Closed {
                requests: 3,
                length: 100,
            },
            [0, 0, 0, 101, 101, 201],
            [0, 0, 0, 100, 101, 201],
        ),
        (
            Bound::Windows {
                requests: 3,
                length: 1_000,
            },
            [998, 998, 999, 1_500, 1_500, 2_499],
            [998, 998, 999, 999, 1_500, 2_499],
        ),
    ] {
        assert!(bound.excess(&at(&kept), &windows) <= 0.0, "{bound:?}");
        assert!(bound.excess(&at(&broken), &windows) > 0.0, "{bound:?}");
    }
    let outside = Bound::Windows {
        requests: 3,
        length: 1_000,
    };
    assert!(outside.excess(&at(&[1_000]), &windows) > 0.0);
}

/// A policy with leases, and its promise.
#[derive(Clone, Debug)]
pub(super) struct Setting {
    pub(super) strategy: Arc<dyn Strategy>,
    pub(super) quota: Quota,
    pub(super) bound: Bound,
    /// In microseconds.
    pub(super) ttl: i64,
}

impl Setting {
    fn new(strategy: impl Strategy, quota: Quota, bound: Bound, ttl: i64) -> Self {
        Self {
            strategy: Arc::new(strategy),
            quota,
            bound,
            ttl,
        }
    }

    pub(super) fn gcra(requests: i64, period: i64, burst: i64, ttl: i64) -> Self {
        let quota = quota(requests, period).burst(burst as u64);
        Self::new(Gcra, quota, Bound::rate(requests, period, burst), ttl)
    }

    pub(super) fn token_bucket(requests: i64, period: i64, burst: i64, ttl: i64) -> Self {
        Self {
            strategy: Arc::new(TokenBucket),
            ..Self::gcra(requests, period, burst, ttl)
        }
    }

    pub(super) fn fixed_window(requests: i64, length: i64, ttl: i64) -> Self {
        let bound = Bound::Windows { requests, length };
        Self::new(FixedWindow, quota(requests, length), bound, ttl)
    }

    pub(super) fn list_window(requests: i64, length: i64, ttl: i64) -> Self {
        Self {
            strategy: Arc::new(ListWindow),
            ..Self::fixed_window(requests, length, ttl)
        }
    }

    pub(super) fn calendar_window(requests: i64, length: i64, ttl: i64) -> Self {
        Self {
            strategy: Arc::new(CalendarWindow::utc()),
            ..Self::fixed_window(requests, length, ttl)
        }
    }

    pub(super) fn sliding_log(requests: i64, length: i64, ttl: i64) -> Self {
        let bound = Bound::HalfOpen { requests, length };
        Self::new(SlidingLog, quota(requests, length), bound, ttl)
    }

    pub(super) fn sliding_window(requests: i64, period: i64, buckets: i64, ttl: i64) -> Self {
        let length = period - period / buckets;
        let bound = Bound::Closed { requests, length };
        let strategy = SlidingWindow::buckets(buckets as u32);
        Self::new(strategy, quota(requests, period), bound, ttl)
    }

    /// The length of the interval that the promise is about.
    pub(super) fn length(&self) -> i64 {
        match self.bound {
            Bound::Rate { .. } => 0,
            Bound::HalfOpen { length, .. }
            | Bound::Closed { length, .. }
            | Bound::Windows { length, .. } => length,
        }
    }
}

fn quota(requests: i64, period: i64) -> Quota {
    Quota::requests(requests as u64).per(Duration::from_micros(period as u64))
}

//! How long calls of the store took.

use crate::sync::lock;
use std::{
    sync::Mutex,
    time::{Duration, Instant},
};

/// Buckets per power of two, so that a quantile is at most an eighth too high.
const PER_POWER: usize = 8;

/// From one microsecond to more than two minutes.
const BUCKETS: usize = 28 * PER_POWER;

/// Quantiles are of the last one to two of these in which there were calls.
const WINDOW: Duration = Duration::from_secs(30);

/// The durations of calls.
#[derive(Debug)]
pub(super) struct Latency(Mutex<Windows>);

#[derive(Debug)]
struct Windows {
    began: Instant,
    current: [u64; BUCKETS],
    last: [u64; BUCKETS],
    /// Since the start of the process.
    calls: u64,
}

impl Latency {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Windows {
            began: Instant::now(),
            current: [0; BUCKETS],
            last: [0; BUCKETS],
            calls: 0,
        }))
    }

    pub(super) fn record(&self, elapsed: Duration) {
        let mut windows = lock(&self.0);
        windows.pass(Instant::now());
        windows.current[bucket(elapsed)] += 1;
        windows.calls += 1;
    }

    /// The number of calls.
    pub(super) fn calls(&self) -> u64 {
        lock(&self.0).calls
    }

    /// The duration that this share of the last calls, in percent, took at most; `None` without calls.
    pub(super) fn quantile_us(&self, percent: u64) -> Option<u64> {
        let windows = lock(&self.0);
        let counts = windows.current.iter().zip(&windows.last);
        let counts: Vec<u64> = counts.map(|(current, last)| current + last).collect();
        let total: u64 = counts.iter().sum();
        let rank = (total * percent).div_ceil(100).max(1);
        let mut below = 0;
        let index = counts.iter().position(|count| {
            below += count;
            below >= rank
        });
        index.map(highest_us)
    }
}

impl Windows {
    /// Begins another window if this one has passed.
    fn pass(&mut self, now: Instant) {
        if now.saturating_duration_since(self.began) >= WINDOW {
            self.last = std::mem::replace(&mut self.current, [0; BUCKETS]);
            self.began = now;
        }
    }
}

fn bucket(elapsed: Duration) -> usize {
    let us = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX);
    // The first buckets are of one microsecond each.
    let Some(power) = us.checked_ilog2().filter(|power| *power >= 3) else {
        return us as usize;
    };
    let within = (us >> (power - 3)) as usize % PER_POWER;
    let index = (power as usize - 2) * PER_POWER + within;
    index.min(BUCKETS - 1)
}

/// The longest duration in a bucket.
fn highest_us(bucket: usize) -> u64 {
    if bucket < PER_POWER {
        return bucket as u64;
    }
    let power = bucket / PER_POWER - 1;
    let first = (PER_POWER + bucket % PER_POWER) as u64;
    ((first + 1) << power) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_at_most_an_eighth_too_high() {
        for us in (0..10_000).chain([65_535, 65_536, 1_000_000, 99_999_999]) {
            let highest = highest_us(bucket(Duration::from_micros(us)));
            assert!(highest >= us && highest - us <= us / 8, "{us}: {highest}");
        }
        assert_eq!(bucket(Duration::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles_are_of_the_calls_that_were_recorded() {
        let latency = Latency::new();
        assert_eq!(latency.quantile_us(50), None);
        for _ in 0..98 {
            latency.record(Duration::from_micros(4));
        }
        latency.record(Duration::from_micros(7));
        latency.record(Duration::from_millis(1));
        assert_eq!(latency.calls(), 100);
        assert_eq!(latency.quantile_us(50), Some(4));
        assert_eq!(latency.quantile_us(99), Some(7));
        assert_eq!(latency.quantile_us(100), Some(1_023));
    }

    #[test]
    fn calls_of_two_windows_ago_are_forgotten() {
        let mut windows = Windows {
            began: Instant::now(),
            current: [1; BUCKETS],
            last: [0; BUCKETS],
            calls: 0,
        };
        let later = windows.began + WINDOW;
        windows.pass(later);
        assert_eq!((windows.current[0], windows.last[0]), (0, 1));
        windows.pass(later + WINDOW / 2);
        assert_eq!(windows.last[0], 1);
        windows.pass(later + WINDOW);
        assert_eq!((windows.current[0], windows.last[0]), (0, 0));
    }
}

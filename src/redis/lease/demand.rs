//! Finds the keys that this process requests often, in bounded memory.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use crate::clock::Timestamp;

/// A key is hot at this rate, in requests per second.
pub(super) const MIN_RATE: f64 = 100.0;

/// The length of an interval in which requests of keys without leases are counted.
const HOT_KEY_INTERVAL: Duration = Duration::from_millis(100);

/// The requests in one interval that make a key hot.
const HOT_KEY_REQUESTS: u64 = (MIN_RATE * HOT_KEY_INTERVAL.as_millis() as f64 / 1_000.0) as u64;

/// The shortest interval by which the rate of a key with leases is measured.
pub(super) const RATE_INTERVAL: Duration = Duration::from_millis(50);

/// The most keys that are counted at a time.
const BUCKETS: usize = 8_192;

/// Counts the requests of keys that have no leases, each key in the bucket of its hash.
///
/// Keys that share a bucket compete for it, as in the majority vote of Boyer and Moore: one that has most of its requests is
/// found, and among many cold keys none is. A bucket is an approximation: an update that another one overwrites is lost.
pub(super) struct HotKeyDetector {
    buckets: Box<[AtomicU64]>,
}

impl HotKeyDetector {
    pub(super) fn new() -> Self {
        Self {
            buckets: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Counts a request of a key, by its hash; returns whether the key is hot.
    pub(super) fn record(&self, hash: u64, now: Timestamp) -> bool {
        let interval = now.as_micros().unsigned_abs() / HOT_KEY_INTERVAL.as_micros() as u64;
        let bucket = &self.buckets[hash as usize % BUCKETS];
        let before = Bucket::unpack(bucket.load(Ordering::Relaxed));
        let after = before.count(hash >> 32, interval);
        bucket.store(after.pack(), Ordering::Relaxed);
        after.requests >= HOT_KEY_REQUESTS && after.fingerprint == hash >> 32
    }
}

/// The requests of one key in one interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bucket {
    /// The upper half of the key's hash.
    fingerprint: u64,
    /// The lowest 16 bits of the interval's number.
    interval: u64,
    requests: u64,
}

impl Bucket {
    fn unpack(bits: u64) -> Self {
        Self {
            fingerprint: bits >> 32,
            interval: bits >> 16 & 0xffff,
            requests: bits & 0xffff,
        }
    }

    fn pack(self) -> u64 {
        self.fingerprint << 32 | self.interval << 16 | self.requests.min(0xffff)
    }

    /// Counts a request of the key with this fingerprint: another key loses one.
    fn count(self, fingerprint: u64, interval: u64) -> Self {
        let interval = interval & 0xffff;
        let first = Self {
            fingerprint,
            interval,
            requests: 1,
        };
        match self {
            before if before.interval != interval || before.requests == 0 => first,
            before if before.fingerprint == fingerprint => Self {
                requests: before.requests + 1,
                ..before
            },
            before => Self {
                requests: before.requests - 1,
                ..before
            },
        }
    }
}

/// The rate at which a key with leases is requested.
#[derive(Clone, Debug)]
pub(super) struct Rate {
    /// The start of the current interval.
    since: Timestamp,
    /// The requests in the current interval.
    requests: u64,
    /// Requests per second in the last interval; before the first one has ended, an assumption.
    per_second: f64,
    is_assumed: bool,
}

/// The units that requests of a key are charged under one policy.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Demand {
    /// The units in the current interval of the [`Rate`].
    used: u64,
    /// Units per second in the last interval.
    per_second: f64,
}

impl Rate {
    /// The rate of a key that has become hot.
    pub(super) fn hot(now: Timestamp) -> Self {
        Self {
            since: now,
            requests: 0,
            per_second: MIN_RATE,
            is_assumed: true,
        }
    }

    /// Counts a request. The units under each policy are those of an interval that ends with it.
    #[inline]
    pub(super) fn record<'a>(
        &mut self,
        now: Timestamp,
        demand: impl IntoIterator<Item = &'a mut Demand>,
    ) {
        self.requests = self.requests.saturating_add(1);
        // Zero if `now` is before the interval: the request then counts in it.
        if now.since(self.since) >= RATE_INTERVAL {
            self.end_interval(now, demand);
        }
    }

    #[cold]
    fn end_interval<'a>(
        &mut self,
        now: Timestamp,
        demand: impl IntoIterator<Item = &'a mut Demand>,
    ) {
        let elapsed = now.since(self.since).as_secs_f64();
        for own in demand {
            own.per_second = own.used as f64 / elapsed;
            own.used = 0;
        }
        *self = Self {
            since: now,
            requests: 0,
            per_second: self.requests as f64 / elapsed,
            is_assumed: false,
        };
    }

    pub(super) fn per_second(&self) -> f64 {
        self.per_second
    }

    /// The units that requests are charged per second under a policy. In the first interval: the units
    /// per request until now, times the assumed rate.
    pub(super) fn units_per_second(&self, demand: Demand) -> f64 {
        if self.is_assumed {
            demand.used as f64 / self.requests.max(1) as f64 * self.per_second
        } else {
            demand.per_second
        }
    }

    /// Whether the key was hot within the last two seconds.
    pub(super) fn is_hot(&self, now: Timestamp) -> bool {
        self.per_second >= MIN_RATE && now.since(self.since) < Duration::from_secs(2)
    }
}

impl Demand {
    /// The units in the current interval.
    pub(super) fn used(&self) -> u64 {
        self.used
    }

    /// Counts the units of an admitted request.
    #[inline]
    pub(super) fn record(&mut self, units: u64) {
        self.used = self.used.saturating_add(units);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);

    #[test]
    fn a_key_is_hot_at_ten_requests_in_an_interval() {
        let keys = HotKeyDetector::new();
        let hash = 0x1234_5678_0000_0007;
        for request in 1..=20 {
            assert_eq!(keys.record(hash, NOW), request >= 10, "{request}");
        }
        // Nine per interval never are.
        let keys = HotKeyDetector::new();
        for request in 0..90 {
            let now = NOW + HOT_KEY_INTERVAL * (request / 9);
            assert!(!keys.record(hash, now), "{request}");
        }
    }

    #[test]
    fn among_cold_keys_in_one_bucket_none_is_hot_and_a_hot_one_is_found() {
        let keys = HotKeyDetector::new();
        let hash = |key: u64| key << 32 | 7;
        for request in 0..1_000 {
            assert!(!keys.record(hash(request % 50), NOW));
        }
        let hot = (0..100).any(|request| {
            keys.record(hash(request), NOW);
            keys.record(hash(9), NOW) | keys.record(hash(9), NOW)
        });
        assert!(hot);
    }
}

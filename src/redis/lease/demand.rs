//! Finds the keys that this process requests often, in bounded memory.

use std::time::Duration;

use crate::clock::Timestamp;

/// A key is hot at this rate, in requests per second.
pub(super) const MIN_RATE: f64 = 100.0;

/// The length of an interval in which requests of keys without leases are counted.
const HOT_KEY_INTERVAL: Duration = Duration::from_millis(100);

/// The requests in one interval that make a key hot.
const HOT_KEY_REQUESTS: u64 = (MIN_RATE * HOT_KEY_INTERVAL.as_millis() as f64 / 1_000.0) as u64;

/// The shortest interval by which the demand of a key with leases is measured.
pub(super) const DEMAND_INTERVAL: Duration = Duration::from_millis(50);

/// The most keys that a detector counts at a time.
const BUCKETS: usize = 512;

/// The bits of a bucket that count requests.
const REQUESTS: u64 = 0xffff;

/// Counts the requests of keys that have no leases, each key in the bucket of its hash.
///
/// Keys that share a bucket compete for it, as in the majority vote of Boyer and Moore: one that has most of its requests is
/// found, and among many cold keys none is.
pub(super) struct HotKeyDetector {
    /// From the highest bits to the lowest: the upper half of the key's hash, 16 bits of the interval's number, and 16 bits of the
    /// requests in it.
    buckets: Box<[u64]>,
}

impl Default for HotKeyDetector {
    fn default() -> Self {
        Self {
            buckets: [0; BUCKETS].into(),
        }
    }
}

impl HotKeyDetector {
    /// Counts a request of a key, by its hash; returns whether the key is hot.
    pub(super) fn record(&mut self, hash: u64, now: Timestamp) -> bool {
        let interval = now.as_micros().unsigned_abs() / HOT_KEY_INTERVAL.as_micros() as u64;
        let interval = (interval & 0xffff) << 16;
        let own = hash & !0xffff_ffff | interval;
        let bucket = &mut self.buckets[hash as usize % BUCKETS];
        let requests = *bucket & REQUESTS;
        if *bucket & !REQUESTS == own {
            *bucket = own | (requests + 1).min(REQUESTS);
        } else if *bucket & 0xffff_0000 == interval && requests > 0 {
            // Of another key, which loses one.
            *bucket -= 1;
        } else {
            *bucket = own | 1;
        }
        *bucket & !REQUESTS == own && *bucket & REQUESTS >= HOT_KEY_REQUESTS
    }
}

/// What is used of a key with leases: requests, or the units that they are charged under one policy.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Demand {
    /// What is used in the current interval.
    used: u64,
    /// What was used per second in the last interval.
    per_second: f64,
}

impl Demand {
    /// The demand of a key that has become hot, in requests.
    pub(super) const HOT: Self = Self {
        used: 0,
        per_second: MIN_RATE,
    };

    #[inline]
    pub(super) fn record(&mut self, used: u64) {
        self.used = self.used.saturating_add(used);
    }

    pub(super) fn end_interval(&mut self, elapsed: Duration) {
        self.per_second = self.used as f64 / elapsed.as_secs_f64();
        self.used = 0;
    }

    /// What was used per second in the last interval.
    pub(super) fn per_second(&self) -> f64 {
        self.per_second
    }

    /// What is used within a TTL: no less than in the current interval, so that leases grow with each response while demand rises.
    pub(super) fn within(&self, ttl: Duration) -> f64 {
        let least = self.used as f64 / ttl.max(DEMAND_INTERVAL).as_secs_f64();
        self.per_second.max(least) * ttl.as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);

    #[test]
    fn a_key_is_hot_at_ten_requests_in_an_interval() {
        let mut keys = HotKeyDetector::default();
        let hash = 0x1234_5678_0000_0007;
        for request in 1..=20 {
            assert_eq!(keys.record(hash, NOW), request >= 10, "{request}");
        }
        // Nine per interval never are.
        let mut keys = HotKeyDetector::default();
        for request in 0..90 {
            let now = NOW + HOT_KEY_INTERVAL * (request / 9);
            assert!(!keys.record(hash, now), "{request}");
        }
    }

    #[test]
    fn among_cold_keys_in_one_bucket_none_is_hot_and_a_hot_one_is_found() {
        let mut keys = HotKeyDetector::default();
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

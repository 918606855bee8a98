//! Finds the keys that this process requests often, in bounded memory.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use crate::clock::Timestamp;

/// A key is hot at this rate, in requests per second.
pub(super) const MIN_RATE: f64 = 100.0;

/// The length of an interval in which requests are counted.
const INTERVAL: Duration = Duration::from_millis(100);

/// As many requests in one interval make a key hot.
const HOT: u64 = 10;

/// Keys that are counted at a time.
const COUNTERS: usize = 8_192;

/// Counts the requests of keys that have no leases, each key in one of some counters.
///
/// Keys that share a counter compete for it, as in the majority vote of Boyer and Moore: one that has most of its requests is
/// found, and among many cold keys none is. A counter is an approximation: an update that another one overwrites is lost.
pub(super) struct HotKeys {
    counters: Box<[AtomicU64]>,
}

impl HotKeys {
    pub(super) fn new() -> Self {
        Self {
            counters: (0..COUNTERS).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Counts a request of a key, by its hash; returns whether the key is hot.
    pub(super) fn note(&self, hash: u64, now: Timestamp) -> bool {
        let interval = now.as_micros().unsigned_abs() / INTERVAL.as_micros() as u64;
        let counter = &self.counters[hash as usize % COUNTERS];
        let before = Counter::unpack(counter.load(Ordering::Relaxed));
        let after = before.count(hash >> 32, interval);
        counter.store(after.pack(), Ordering::Relaxed);
        after.requests >= HOT && after.key == hash >> 32
    }
}

/// The requests of one key in one interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counter {
    /// The upper half of its hash.
    key: u64,
    /// The interval's number, its lowest 16 bits.
    interval: u64,
    requests: u64,
}

impl Counter {
    fn unpack(bits: u64) -> Self {
        Self {
            key: bits >> 32,
            interval: bits >> 16 & 0xffff,
            requests: bits & 0xffff,
        }
    }

    fn pack(self) -> u64 {
        self.key << 32 | self.interval << 16 | self.requests.min(0xffff)
    }

    /// Counts a request of `key`: another key loses one.
    fn count(self, key: u64, interval: u64) -> Self {
        let interval = interval & 0xffff;
        let first = Self {
            key,
            interval,
            requests: 1,
        };
        match self {
            before if before.interval != interval || before.requests == 0 => first,
            before if before.key == key => Self {
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
    since: Timestamp,
    requests: u64,
    units: u64,
    /// Requests per second, in the last interval.
    per_second: f64,
    units_per_second: f64,
}

impl Rate {
    /// That of a key that has just become hot.
    pub(super) fn new(now: Timestamp) -> Self {
        Self {
            since: now,
            requests: 0,
            units: 0,
            per_second: MIN_RATE,
            units_per_second: MIN_RATE,
        }
    }

    /// Counts a request of so many units.
    #[inline]
    pub(super) fn note(&mut self, now: Timestamp, units: u64) {
        self.requests += 1;
        self.units = self.units.saturating_add(units);
        let elapsed = now.as_micros().wrapping_sub(self.since.as_micros());
        if !(0..INTERVAL.as_micros() as i64 / 2).contains(&elapsed) {
            self.end_interval(now);
        }
    }

    #[cold]
    fn end_interval(&mut self, now: Timestamp) {
        let elapsed = now.since(self.since).as_secs_f64().max(1e-6);
        self.per_second = self.requests as f64 / elapsed;
        self.units_per_second = self.units as f64 / elapsed;
        (self.since, self.requests, self.units) = (now, 0, 0);
    }

    pub(super) fn per_second(&self) -> f64 {
        self.per_second
    }

    pub(super) fn units_per_second(&self) -> f64 {
        self.units_per_second
    }

    /// Whether an interval has just ended.
    #[inline]
    pub(super) fn is_new(&self) -> bool {
        self.requests == 0
    }

    /// Whether the key was requested at this rate, per second, within the last two seconds.
    pub(super) fn was_at_least(&self, rate: f64, now: Timestamp) -> bool {
        self.per_second >= rate && now.since(self.since) < Duration::from_secs(2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);

    #[test]
    fn a_key_is_hot_at_ten_requests_in_an_interval() {
        let keys = HotKeys::new();
        let hash = 0x1234_5678_0000_0007;
        for request in 1..=20 {
            assert_eq!(keys.note(hash, NOW), request >= 10, "{request}");
        }
        // Nine per interval never are.
        let keys = HotKeys::new();
        for request in 0..90 {
            let now = NOW + INTERVAL * (request / 9);
            assert!(!keys.note(hash, now), "{request}");
        }
    }

    #[test]
    fn among_cold_keys_in_one_counter_none_is_hot_and_a_hot_one_is_found() {
        let keys = HotKeys::new();
        let hash = |key: u64| key << 32 | 7;
        for request in 0..1_000 {
            assert!(!keys.note(hash(request % 50), NOW));
        }
        let hot = (0..100).any(|request| {
            keys.note(hash(request), NOW);
            keys.note(hash(9), NOW) | keys.note(hash(9), NOW)
        });
        assert!(hot);
    }

    #[test]
    fn the_rate_is_that_of_the_last_interval() {
        let mut rate = Rate::new(NOW);
        for millisecond in 1..=1_000 {
            rate.note(NOW + Duration::from_millis(millisecond), 3);
        }
        assert!((990.0..=1_010.0).contains(&rate.per_second()), "{rate:?}");
        let ratio = rate.units_per_second() / rate.per_second();
        assert!((2.99..=3.01).contains(&ratio), "{rate:?}");
        assert!(rate.was_at_least(MIN_RATE, NOW + Duration::from_secs(1)));
        assert!(!rate.was_at_least(MIN_RATE, NOW + Duration::from_secs(4)));
        // A pause is part of the interval.
        rate.note(NOW + Duration::from_secs(11), 3);
        assert!(rate.per_second() < 10.0, "{rate:?}");
        assert!(!rate.was_at_least(MIN_RATE, NOW + Duration::from_secs(11)));
    }
}

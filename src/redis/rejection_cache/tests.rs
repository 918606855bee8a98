use std::iter::{Once, once};

use super::*;
use crate::{
    ManualClock,
    key::Key,
    store::LimitHandle,
    strategy::{Gcra, Snapshot},
};

const MAX_STALENESS: Duration = Duration::from_secs(1);

/// A cache, its clock, and a limit of one per ten seconds.
struct Scene {
    clock: ManualClock,
    rejection_cache: RejectionCache,
    limit: LimitHandle,
}

impl Scene {
    fn new(capacity: usize) -> Self {
        let clock = ManualClock::at(Timestamp::from_micros(1_800_000_000_000_000));
        Self {
            rejection_cache: RejectionCache::new(MAX_STALENESS, capacity, Arc::new(clock.clone())),
            limit: LimitHandle::unregistered(Gcra, "6/min"),
            clock,
        }
    }

    fn counters<'a>(&'a self, key: &'a Key) -> Once<CacheKey<'a>> {
        once(CacheKey {
            limit: &self.limit,
            key,
            units: Units::ONE,
            mode: CounterMode::Charge,
        })
    }

    /// The store rejects a request that arrived so long ago: a unit is available after `wait`.
    fn reject(&self, key: &Key, age: Duration, wait: Duration) {
        let counters = self.counters(key);
        let token = self.rejection_cache.token(Op::Acquire(1), counters.clone());
        self.clock.advance(age);
        // In units of 50 ns, of which a minute is the capacity.
        let used = Duration::from_secs(50) + wait;
        let snapshot = Snapshot::new([used.as_micros() as i64 * 20]);
        let result = OpResult::new(self.clock.now(), 0, [CounterResult::new(0, snapshot)]);
        let token = token.expect("it is cacheable");
        self.rejection_cache.insert(counters, &result, token, age);
    }

    /// The wait of a request that is rejected from the cache.
    fn wait(&self, key: &Key) -> Option<RetryAfter> {
        let counters = self.counters(key);
        let result = self.rejection_cache.get(Op::Acquire(1), counters)?;
        let snapshot = &result.counters[0].snapshot;
        let mut status = self.limit.status(snapshot, result.at, Units::ONE);
        status.advance(result.age, 1);
        Some(status.retry_after)
    }
}

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

#[test]
fn a_rejection_is_cached_for_its_wait_and_for_the_bound_counted_from_the_request() {
    for wait in [ms(300), ms(10_000)] {
        let (scene, key) = (Scene::new(100), Key::new("a"));
        scene.reject(&key, ms(200), wait);
        let kept = wait.min(MAX_STALENESS) - ms(200);
        scene.clock.advance(kept - ms(1));
        let left = RetryAfter::In(wait + ms(1) - kept);
        assert_eq!(scene.wait(&key), Some(left));
        scene.clock.advance(ms(1));
        assert_eq!(scene.wait(&key), None);
    }
}

#[test]
fn many_keys_take_no_more_memory_than_allowed() {
    let scene = Scene::new(10_000);
    let key = |number: u32| Key::new(format!("{number}"));
    let reject = |number: u32| scene.reject(&key(number), Duration::ZERO, ms(10_000));
    (0..50_000).for_each(reject);
    let cached = |numbers: std::ops::Range<u32>| {
        let cached = numbers.filter(|number| scene.wait(&key(*number)).is_some());
        cached.count() as u64
    };
    let held = scene.rejection_cache.len();
    let bound = 10_000 + 2 * SHARDS as u64;
    assert!((5_000..=bound).contains(&held), "{held}");
    assert_eq!(cached(0..50_000), held);
    assert_eq!(cached(47_000..50_000), 3_000, "the oldest are dropped");
    // Those that are over make room whether or not it is needed.
    for _ in 0..2 {
        scene.clock.advance(MAX_STALENESS);
        (0..1_000).for_each(reject);
    }
    assert_eq!(scene.rejection_cache.len(), 2_000);
    assert_eq!(cached(0..50_000), 1_000);
}

use super::*;
use crate::{
    ManualClock,
    key::Key,
    quota::Quota,
    store::LimitHandle,
    strategy::{FixedWindow, Gcra, Snapshot, Strategy, Terms, built_in::BUILT_IN},
};

const MAX_STALENESS: Duration = Duration::from_secs(1);

/// A cache, its clock, and a limit of one per minute.
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

    fn counters<'a>(&'a self, key: &'a Key, units: u64) -> std::iter::Once<CacheKey<'a>> {
        std::iter::once(CacheKey {
            limit: &self.limit,
            key,
            units: Units::new(units),
            mode: CounterMode::Charge,
        })
    }

    fn token(&self, key: &Key, units: u64) -> CacheToken {
        let token = self
            .rejection_cache
            .token(Op::Acquire(1), self.counters(key, units));
        token.expect("it is cacheable")
    }

    /// The store rejects: all units are used, and one is available in 10 s.
    fn rejected(&self, key: &Key, units: u64, token: CacheToken, age: Duration) {
        // 60 s in units of 50 ns.
        let tolerance = 1_200_000_000;
        let counter = CounterResult::new(0, Snapshot::new([tolerance]));
        let result = OpResult::new(self.clock.now(), 0, [counter]);
        self.rejection_cache
            .insert(self.counters(key, units), &result, token, age);
    }

    fn reject(&self, key: &Key, units: u64) {
        let token = self.token(key, units);
        self.rejected(key, units, token, Duration::ZERO);
    }

    /// The wait of such a request, if it is rejected from the cache.
    fn wait(&self, key: &Key, units: u64) -> Option<Duration> {
        let result = self
            .rejection_cache
            .get(Op::Acquire(1), self.counters(key, units))?;
        assert_eq!(
            (result.admitted, result.source),
            (0, DecisionSource::RejectionCache)
        );
        let mut status =
            self.limit
                .status(&result.counters[0].snapshot, result.at, Units::new(units));
        status.advance(result.age, units);
        match status.retry_after {
            RetryAfter::In(wait) => Some(wait),
            other => panic!("{other:?}"),
        }
    }
}

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

#[test]
fn a_cached_rejection_counts_down_and_has_the_waits_of_larger_costs() {
    let scene = Scene::new(100);
    let key = Key::new("a");
    assert_eq!(scene.wait(&key, 2), None);
    scene.reject(&key, 2);
    assert_eq!(scene.wait(&key, 2), Some(ms(20_000)));
    assert_eq!(scene.wait(&key, 3), Some(ms(30_000)));
    assert_eq!(scene.wait(&key, 1), None, "less may pass");
    assert_eq!(scene.wait(&Key::new("b"), 2), None);
    scene.clock.advance(ms(999));
    assert_eq!(scene.wait(&key, 2), Some(ms(19_001)));
}

#[test]
fn a_rejection_is_cached_for_its_wait_and_for_the_bound_counted_from_the_request() {
    for (wait, bound) in [(ms(300), ms(1_000)), (ms(10_000), ms(1_000))] {
        let scene = Scene::new(100);
        let key = Key::new("a");
        let token = scene.token(&key, 1);
        scene.clock.advance(ms(200));
        // 60 s of which are used up to the wait, in units of 50 ns.
        let used = (ms(50_000) + wait).as_micros() as i64 * 20;
        let counter = CounterResult::new(0, Snapshot::new([used]));
        let result = OpResult::new(scene.clock.now(), 0, [counter]);
        let counters = scene.counters(&key, 1);
        let cache = &scene.rejection_cache;
        cache.insert(counters, &result, token, ms(200));
        let kept = wait.min(bound) - ms(200);
        scene.clock.advance(kept - ms(1));
        assert_eq!(scene.wait(&key, 1), Some(wait + ms(1) - kept));
        scene.clock.advance(ms(1));
        assert_eq!(scene.wait(&key, 1), None);
    }
}

#[test]
fn rules_whose_state_depends_on_the_cost_say_so() {
    for rule in BUILT_IN.iter().map(|strategy| strategy.example_rule(9)) {
        let info = rule.info();
        // The others are never cached.
        if info.permit_ttl.is_none() && !info.counts_rejections {
            let source = rule.script().map(|script| script.source);
            let reads_cost = source.is_some_and(|source| source.contains("snapshot = snapshot"));
            assert_eq!(info.snapshot_ignores_cost, !reads_cost, "{rule:?}");
        }
    }
}

#[test]
fn a_clock_that_steps_back_extends_no_cached_rejection() {
    let scene = Scene::new(100);
    let key = Key::new("a");
    scene.reject(&key, 1);
    scene.clock.set(scene.clock.now() - ms(3_600_000));
    assert_eq!(scene.wait(&key, 1), None);
}

#[test]
fn requests_that_are_counted_or_admitted_in_part_are_always_sent() {
    let scene = Scene::new(100);
    let key = Key::new("a");
    scene.reject(&key, 1);
    let counts = std::iter::once(CacheKey {
        limit: &scene.limit,
        key: &key,
        units: Units::ONE,
        mode: CounterMode::ChargeRejectedToo,
    });
    let cache = &scene.rejection_cache;
    assert!(cache.get(Op::Acquire(1), counts.clone()).is_none());
    assert!(cache.token(Op::Acquire(1), counts).is_none());
    let others = [Op::Peek, Op::ForceAcquire, Op::Refund, Op::Reset];
    for op in others.into_iter().chain([Op::Acquire(2)]) {
        assert!(cache.get(op, scene.counters(&key, 1)).is_none(), "{op:?}");
        assert!(cache.token(op, scene.counters(&key, 1)).is_none(), "{op:?}");
    }
}

#[test]
fn many_keys_take_no_more_memory_than_allowed() {
    let scene = Scene::new(10_000);
    for key in 0..50_000 {
        scene.reject(&Key::new(format!("{key}")), 1);
    }
    let cached = |keys: std::ops::Range<u32>| {
        keys.filter(|key| scene.wait(&Key::new(format!("{key}")), 1).is_some())
            .count()
    };
    let held = scene.rejection_cache.len();
    assert!(
        (5_000..=10_000 + 2 * SHARDS as u64).contains(&held),
        "{held}"
    );
    assert_eq!(cached(0..50_000) as u64, held);
    assert_eq!(cached(47_000..50_000), 3_000, "the oldest are dropped");
    // Those that are over make room whether or not it is needed.
    for _ in 0..2 {
        scene.clock.advance(MAX_STALENESS);
        (0..1_000).for_each(|key| scene.reject(&Key::new(format!("{key}")), 1));
    }
    assert_eq!(scene.rejection_cache.len(), 2_000);
    assert_eq!(cached(0..50_000), 1_000);
}

/// A request under several policies, some of which reject a unit for a while.
struct Several<'a> {
    scene: &'a Scene,
    limits: Vec<LimitHandle>,
    key: Key,
}

impl<'a> Several<'a> {
    fn new(scene: &'a Scene, policies: &[&str]) -> Self {
        let limit = |name: &&str| {
            let rule = FixedWindow.bind(&Quota::requests(6).per_minute(), &Terms::default());
            LimitHandle::new(name, rule.expect("a rule"), ())
        };
        Self {
            scene,
            limits: policies.iter().map(limit).collect(),
            key: Key::new("a"),
        }
    }

    fn counters<'b>(&'b self, units: &'b [u64]) -> impl Iterator<Item = CacheKey<'b>> + Clone {
        self.limits
            .iter()
            .zip(units)
            .map(|(limit, units)| CacheKey {
                limit,
                key: &self.key,
                units: Units::new(*units),
                mode: CounterMode::Charge,
            })
    }

    /// The store rejects after `age`: of each window these units are used, and it ends in these seconds.
    fn reject(&self, units: &[u64], windows: &[(i64, u64)], after: Duration) {
        let token = self
            .scene
            .rejection_cache
            .token(Op::Acquire(1), self.counters(units));
        self.scene.clock.advance(after);
        let at = self.scene.clock.now();
        let snapshot = windows.iter().map(|(used, secs)| {
            let ends = at + Duration::from_secs(*secs);
            CounterResult::new(0, Snapshot::new([*used, ends.as_micros()]))
        });
        let result = OpResult::new(at, 0, snapshot);
        let token = token.expect("it concerns the cache");
        let cache = &self.scene.rejection_cache;
        cache.insert(self.counters(units), &result, token, after);
    }

    /// What each policy says, if it is rejected here.
    fn waits(&self, units: &[u64]) -> Option<Vec<RetryAfter>> {
        let counters = self.counters(units);
        let result = self
            .scene
            .rejection_cache
            .get(Op::Acquire(1), counters.clone())?;
        let waits = counters.zip(&result.counters).map(|(counter, decided_at)| {
            let limit = counter.limit;
            let mut status = limit.status(&decided_at.snapshot, result.at, counter.units);
            status.advance(result.age, counter.units.get());
            status.retry_after
        });
        Some(waits.collect())
    }
}

const fn after(millis: u64) -> RetryAfter {
    RetryAfter::In(ms(millis))
}

#[test]
fn a_cached_rejection_is_of_all_policies_of_its_request_and_of_no_other_request() {
    let scene = Scene::new(100);
    let both = Several::new(&scene, &["a", "b"]);
    both.reject(&[1, 1], &[(6, 20), (2, 40)], ms(100));
    scene.clock.advance(ms(500));
    assert_eq!(
        both.waits(&[1, 1]),
        Some(vec![after(19_500), RetryAfter::Now])
    );
    // What there is room for, a larger cost may wait for.
    assert_eq!(
        both.waits(&[1, 5]),
        Some(vec![after(19_500), after(39_500)])
    );
    assert_eq!(
        both.waits(&[2, 7]),
        Some(vec![after(19_500), RetryAfter::Never])
    );
    for other in [&[0, 1], &[1, 0]] {
        assert_eq!(both.waits(other), None, "a smaller cost");
    }
    let one = Several {
        limits: both.limits[..1].to_vec(),
        ..Several::new(&scene, &[])
    };
    assert_eq!(one.waits(&[1]), None, "by itself");
    let turned = Several {
        limits: both.limits.iter().rev().cloned().collect(),
        ..Several::new(&scene, &[])
    };
    assert_eq!(turned.waits(&[1, 1]), None, "in another order");
    scene
        .rejection_cache
        .invalidate(both.counters(&[1, 1]).skip(1));
    assert_eq!(both.waits(&[1, 1]), None, "ended for one of them");
}

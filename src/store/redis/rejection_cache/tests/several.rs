//! Requests under several policies.

use super::*;
use crate::strategy::FixedWindow;

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
        let (rejection_cache, token) = (
            &self.scene.rejection_cache,
            token.expect("it concerns the cache"),
        );
        rejection_cache.insert(self.counters(units), &result, &token, after);
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

/// Each is as old as its own request, whatever the ages of the others.
#[test]
fn cached_rejections_of_different_and_equal_ages_have_their_own_waits() {
    let scene = Scene::new(100);
    let [first, second, third] =
        [["a", "b"], ["b", "c"], ["c", "a"]].map(|policies| Several::new(&scene, &policies));
    first.reject(&[1, 1], &[(6, 20), (6, 30)], ms(50));
    scene.clock.advance(ms(300));
    second.reject(&[1, 1], &[(6, 40), (6, 10)], ms(50));
    third.reject(&[1, 1], &[(6, 5), (6, 5)], ms(0));
    scene.clock.advance(ms(200));
    let waits = |request: &Several<'_>| request.waits(&[1, 1]).expect("it is known");
    assert_eq!(waits(&first), [after(19_450), after(29_450)]);
    assert_eq!(waits(&second), [after(39_800), after(9_800)]);
    assert_eq!(waits(&third), [after(4_800), after(4_800)]);
}

#[test]
fn past_the_bound_a_policy_that_had_room_is_evaluated_by_the_store() {
    let scene = Scene::new(100);
    let both = Several::new(&scene, &["a", "b"]);
    scene.read("7");
    for (used, believed) in [(6, true), (5, false)] {
        both.reject(&[1, 1], &[(6, 20), (used, 20)], ms(0));
        scene.clock.advance(ms(999));
        scene.read("7");
        assert!(both.waits(&[1, 1]).is_some());
        scene.clock.advance(ms(1));
        assert_eq!(both.waits(&[1, 1]).is_some(), believed, "{used} used");
    }
}

#[test]
fn a_wait_shorter_than_the_bound_is_counted_from_the_request_too() {
    let scene = Scene::new(100);
    let key = Key::new("a");
    let token = scene.token(&key, 1);
    // A unit is available in 300 ms: 50.3 s of the 60 s are used, in units of 50 ns.
    let counter = CounterResult::new(0, Snapshot::new([50_300 * 20_000]));
    let result = OpResult::new(scene.clock.now(), 0, [counter]);
    let counters = scene.counters(&key, 1);
    scene
        .rejection_cache
        .insert(counters, &result, &token, ms(200));
    scene.clock.advance(ms(99));
    assert_eq!(scene.wait(&key, 1), Some(ms(201)));
    scene.clock.advance(ms(1));
    assert_eq!(scene.wait(&key, 1), None);
}

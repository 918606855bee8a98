use smallvec::SmallVec;

use super::*;
use crate::{
    clock::ManualClock,
    key::Key,
    quota::Quota,
    store::LimitHandle,
    strategy::{
        Ban, CalendarWindow, Concurrency, FixedWindow, Gcra, ListWindow, SlidingLog, SlidingWindow,
        Snapshot, Strategy, TokenBucket,
    },
};

mod several;

const BOUND: Duration = Duration::from_secs(1);

/// A cache, its clock, and a limit of one per minute.
struct World {
    clock: ManualClock,
    rejection_cache: RejectionCache,
    limit: LimitHandle,
}

impl World {
    fn new(most: usize) -> Self {
        let clock = ManualClock::at(Timestamp::from_micros(1_800_000_000_000_000));
        let rule = Gcra.bind(&Quota::requests(6).per_minute()).expect("a rule");
        Self {
            rejection_cache: RejectionCache::new(BOUND, most, Arc::new(clock.clone())),
            limit: LimitHandle::new("p", rule, ()),
            clock,
        }
    }

    fn line<'a>(&'a self, key: &'a Key, units: u64) -> std::iter::Once<CacheKey<'a>> {
        std::iter::once(CacheKey {
            limit: &self.limit,
            key,
            units: Units::new(units),
            mode: CounterMode::Charge,
        })
    }

    fn mark(&self, key: &Key, units: u64) -> CacheToken {
        let mark = self
            .rejection_cache
            .mark(Op::Acquire(1), self.line(key, units));
        mark.expect("such a question concerns it")
    }

    /// The store refuses: all is used, so that one unit has to wait for 10 s.
    fn refused(&self, key: &Key, units: u64, mark: &CacheToken, age: Duration) {
        // 60 s in units of 50 ns.
        let tolerance = 1_200_000_000;
        let answer = OpResult {
            admitted: 0,
            at: self.clock.now(),
            age: Duration::ZERO,
            admitted_after: 0,
            source: DecisionSource::Store,
            counters: SmallVec::from_buf([CounterResult::new(0, Snapshot::new([tolerance]))]),
        };
        self.rejection_cache
            .note(self.line(key, units), &answer, mark, age);
    }

    fn refuse(&self, key: &Key, units: u64) {
        let mark = self.mark(key, units);
        self.refused(key, units, &mark, Duration::ZERO);
    }

    /// The wait of such a request, if it is rejected from the cache.
    fn wait(&self, key: &Key, units: u64) -> Option<Duration> {
        let answer = self
            .rejection_cache
            .find(Op::Acquire(1), self.line(key, units))?;
        assert_eq!(
            (answer.admitted, answer.source),
            (0, DecisionSource::RejectionCache)
        );
        let mut status =
            self.limit
                .status(&answer.counters[0].snapshot, answer.at, Units::new(units));
        status.advance(answer.age, units);
        match status.retry_after {
            RetryAfter::In(wait) => Some(wait),
            other => panic!("{other:?}"),
        }
    }

    fn read(&self, value: &str) {
        self.read_at(value, self.clock.now());
    }

    /// From a server whose clock shows `time`.
    fn read_at(&self, value: &str, time: Timestamp) {
        self.rejection_cache
            .note_epoch(value, time, self.clock.now());
        self.rejection_cache.epoch().finish_read();
    }
}

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

#[test]
fn a_cached_rejection_counts_down_and_has_the_waits_of_larger_costs() {
    let world = World::new(100);
    let key = Key::new("a");
    assert_eq!(world.wait(&key, 2), None);
    world.refuse(&key, 2);
    assert_eq!(world.wait(&key, 2), Some(ms(20_000)));
    assert_eq!(world.wait(&key, 3), Some(ms(30_000)));
    assert_eq!(world.wait(&key, 1), None, "less may pass");
    assert_eq!(world.wait(&Key::new("b"), 2), None);
    world.clock.advance(ms(999));
    assert_eq!(world.wait(&key, 2), Some(ms(19_001)));
}

#[test]
fn a_cached_rejection_ends_after_its_wait_counted_from_the_request() {
    let world = World::new(100);
    let key = Key::new("a");
    world.read("7");
    let mark = world.mark(&key, 1);
    world.clock.advance(ms(300));
    world.refused(&key, 1, &mark, ms(300));
    world.clock.advance(ms(9_699));
    world.read("7");
    assert_eq!(world.wait(&key, 1), Some(ms(301)));
    world.clock.advance(ms(1));
    assert_eq!(world.wait(&key, 1), None);
}

#[test]
fn a_rejection_that_other_processes_may_have_ended_is_cached_for_the_bound() {
    let world = World::new(100);
    let key = Key::new("a");
    world.refuse(&key, 1);
    world.clock.advance(ms(999));
    assert!(world.wait(&key, 1).is_some());
    // An epoch that was first read after the question proves nothing about the time between.
    world.read("7");
    world.clock.advance(ms(1));
    assert_eq!(world.wait(&key, 1), None);
    // It is as old as its question.
    let mark = world.mark(&key, 1);
    world.clock.advance(ms(300));
    world.refused(&key, 1, &mark, ms(300));
    world.clock.advance(ms(699));
    assert!(world.wait(&key, 1).is_some());
    world.clock.advance(ms(1));
    assert_eq!(world.wait(&key, 1), None);
}

#[test]
fn an_unchanged_epoch_confirms_all_cached_rejections_at_once() {
    let world = World::new(100);
    let keys = ["a", "b", "c"].map(Key::new);
    world.read("7");
    keys.iter().for_each(|key| world.refuse(key, 1));
    for _ in 0..8 {
        world.clock.advance(ms(999));
        world.read("7");
        assert!(keys.iter().all(|key| world.wait(key, 1).is_some()));
    }
    world.clock.advance(ms(999));
    assert!(world.wait(&keys[0], 1).is_some());
    world.clock.advance(ms(1));
    assert_eq!(world.wait(&keys[0], 1), None, "read too long ago");
    world.read("8");
    assert_eq!(world.wait(&keys[0], 1), None, "something was given back");
    world.read("7");
    let again = "a value that is back was away";
    assert_eq!(world.wait(&keys[0], 1), None, "{again}");
}

/// The machine was suspended, or the server's clock was set.
#[test]
fn a_server_whose_clock_moved_by_more_than_the_bound_is_called_again() {
    for (step, believed) in [
        (ms(900), true),
        (ms(1_001), false),
        (Duration::from_secs(3_600), false),
    ] {
        for ahead in [true, false] {
            let world = World::new(100);
            let key = Key::new("a");
            let start = Timestamp::from_micros(1_800_000_000_000_000);
            world.read_at("7", start);
            world.refuse(&key, 1);
            world.clock.advance(ms(999));
            let time = start + ms(999);
            world.read_at("7", if ahead { time + step } else { time - step });
            world.clock.advance(ms(1));
            assert_eq!(world.wait(&key, 1).is_some(), believed, "{step:?} {ahead}");
        }
    }
}

/// Others may take what there was, and what comes with time.
#[test]
fn past_the_bound_only_rejections_of_every_cost_are_used() {
    let world = World::new(100);
    let key = Key::new("a");
    world.read("7");
    world.refuse(&key, 2);
    for _ in 0..10 {
        assert!(world.wait(&key, 2).is_some());
        world.clock.advance(ms(999));
        world.read("7");
    }
    assert_eq!(world.wait(&key, 2), Some(ms(10_010)));
    // From now on a unit may pass, and then there would be less.
    world.clock.advance(ms(10));
    assert_eq!(world.wait(&key, 2), None);
}

#[test]
fn the_epoch_is_read_by_one_request_at_a_time_and_before_the_bound() {
    let world = World::new(100);
    assert_eq!(
        world.rejection_cache.start_epoch_read(),
        None,
        "nothing to prove"
    );
    world.refuse(&Key::new("a"), 1);
    let read = world.rejection_cache.start_epoch_read();
    assert_eq!(read, Some(world.clock.now()));
    assert_eq!(
        world.rejection_cache.start_epoch_read(),
        None,
        "it's being read"
    );
    world.clock.advance(ms(500));
    assert_eq!(world.rejection_cache.start_epoch_read(), None, "still");
    world.rejection_cache.epoch().finish_read();
    assert!(
        world.rejection_cache.start_epoch_read().is_some(),
        "it could not be had"
    );
    world.rejection_cache.epoch().finish_read();
    world.clock.advance(ms(499));
    assert_eq!(
        world.rejection_cache.start_epoch_read(),
        None,
        "it was just tried"
    );
    world.clock.advance(ms(1));
    assert!(world.rejection_cache.start_epoch_read().is_some());
    world.read("7");
    assert_eq!(world.rejection_cache.start_epoch_read(), None);
    world.clock.advance(ms(500));
    assert!(world.rejection_cache.start_epoch_read().is_some());
    world.read("7");
    world.clock.set(world.clock.now() - ms(3_600_000));
    assert!(
        world.rejection_cache.start_epoch_read().is_some(),
        "whatever time it is"
    );
}

#[test]
fn a_refund_ends_a_cached_rejection_and_one_in_flight() {
    let world = World::new(100);
    let key = Key::new("a");
    world.refuse(&key, 1);
    world.rejection_cache.end(world.line(&key, 1));
    assert_eq!(world.wait(&key, 1), None);
    let mark = world.mark(&key, 1);
    world.rejection_cache.end(world.line(&key, 1));
    world.refused(&key, 1, &mark, Duration::ZERO);
    assert_eq!(world.wait(&key, 1), None, "it may have been judged before");
}

/// A quota of its own, and so a limit of its own, and the books of the same policy.
#[test]
fn a_refund_ends_the_cached_rejections_of_every_quota_of_the_key() {
    let (world, other) = (World::new(100), World::new(100));
    let (key, neighbour) = (Key::new("a"), Key::new("b"));
    world.refuse(&key, 1);
    world.refuse(&neighbour, 1);
    world.rejection_cache.end(other.line(&key, 1));
    assert_eq!(world.wait(&key, 1), None);
    assert!(world.wait(&neighbour, 1).is_some());
}

#[test]
fn rules_whose_state_depends_on_the_cost_say_so() {
    let quota = Quota::requests(9).per_minute();
    let strategies: [(&dyn Strategy, bool); 9] = [
        (&Gcra, true),
        (&TokenBucket, true),
        (&FixedWindow, true),
        (&CalendarWindow::utc(), true),
        (&ListWindow, true),
        (&SlidingLog, false),
        (&SlidingWindow::new(), false),
        // They are never cached.
        (&Concurrency::default(), false),
        (&Ban::for_duration(ms(1_000)), false),
    ];
    for (strategy, of_any_cost) in strategies {
        let rule = strategy
            .bind(&quota)
            .or_else(|_| strategy.bind(&Quota::concurrent(9)));
        let rule = rule.expect("a rule");
        assert_eq!(rule.snapshot_ignores_cost(), of_any_cost, "{rule:?}");
        let looks = rule
            .script()
            .is_some_and(|script| script.source.contains("look = look"));
        assert!(!(looks && of_any_cost), "{rule:?}");
    }
}

#[test]
fn a_clock_that_steps_back_extends_no_cached_rejection() {
    let world = World::new(100);
    let key = Key::new("a");
    world.refuse(&key, 1);
    world.clock.set(world.clock.now() - ms(3_600_000));
    assert_eq!(world.wait(&key, 1), None);
}

#[test]
fn requests_that_are_counted_or_admitted_in_part_are_always_sent() {
    let world = World::new(100);
    let key = Key::new("a");
    world.refuse(&key, 1);
    let counts = std::iter::once(CacheKey {
        limit: &world.limit,
        key: &key,
        units: Units::ONE,
        mode: CounterMode::ChargeRejectedToo,
    });
    assert!(
        world
            .rejection_cache
            .find(Op::Acquire(1), counts.clone())
            .is_none()
    );
    assert!(world.rejection_cache.mark(Op::Acquire(1), counts).is_none());
    for ask in [
        Op::Acquire(2),
        Op::Peek,
        Op::ForceAcquire,
        Op::Refund,
        Op::Reset,
    ] {
        assert!(
            world
                .rejection_cache
                .find(ask, world.line(&key, 1))
                .is_none()
        );
        assert!(
            world
                .rejection_cache
                .mark(ask, world.line(&key, 1))
                .is_none()
        );
    }
}

#[test]
fn a_million_keys_take_no_more_memory_than_allowed() {
    let world = World::new(10_000);
    for key in 0..1_000_000 {
        world.refuse(&Key::new(format!("{key}")), 1);
        if key % 100_000 == 0 {
            world.clock.advance(ms(100));
        }
    }
    let held: usize = (0..SHARDS)
        .map(|shard| {
            world.rejection_cache.shards[shard]
                .lock()
                .expect("a lock")
                .len()
        })
        .sum();
    assert!((9_000..=10_000 + SHARDS).contains(&held), "{held}");
    assert_eq!(
        world.rejection_cache.len.load(Ordering::Relaxed),
        held as isize
    );
    // Those that are over go first, as others come.
    world.clock.advance(ms(60_000));
    let late = Key::new("late");
    world.refuse(&late, 1);
    assert!(world.wait(&late, 1).is_some());
}

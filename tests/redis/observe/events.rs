//! Changes of state: bans, permits, waiters; and observers that panic.

use tollgate::observe::{DecisionEvent, Event, UnitsEvent};
use tollgate_tests::prelude::*;

use crate::observe::support::*;

/// As many events as parts, each with its own.
#[track_caller]
fn each_contains(events: &[String], parts: &[&str]) {
    assert_eq!(events.len(), parts.len(), "{events:?}");
    for (event, part) in events.iter().zip(parts) {
        assert_contains(event, [*part]);
    }
}

#[tokio::test]
async fn a_ban_is_reported_when_it_begins_and_once() {
    for world in World::both() {
        let ban = Ban::for_duration(secs(600));
        let abuse = limit("abuse", "3/h").strategy(ban);
        let (limiter, recorder) = recorded(&world, [limit("p", "1/month"), abuse]);
        let bans = || recorder.events("BanBegan");
        let keys = [("p", KEY), ("abuse", KEY)];
        assert!(limiter.check(keys).await.is_admitted());
        for _ in 0..2 {
            assert!(!limiter.check(keys).await.is_admitted());
        }
        assert_eq!(bans().len(), 0);
        // Several are rejected by one call of the store.
        let rejected = join_all((0..9).map(|_| limiter.check(keys).into_future())).await;
        assert!(rejected.iter().all(|decision| !decision.is_admitted()));
        assert_eq!(bans().len(), 1);
        let by_hand = limiter.block(("abuse", KEY), secs(60));
        by_hand.await.expect("a response");
        let lasts = ["lasts: 600s, by_hand: false", "lasts: 60s, by_hand: true"];
        each_contains(&bans(), &lasts);
    }
}

#[tokio::test]
async fn a_block_that_is_prolonged_is_reported_unless_the_ban_in_force_is_longer() {
    for world in World::both() {
        let (limiter, recorder) = recorded(&world, [Policy::block_list("refused")]);
        for seconds in [60, 5, 90, 89] {
            let prolonged = limiter.prolong_block(KEY, secs(seconds));
            prolonged.await.expect("a response");
        }
        let lasts = ["lasts: 60s, by_hand: true", "lasts: 90s, by_hand: true"];
        each_contains(&recorder.events("BanBegan"), &lasts);
    }
}

#[tokio::test]
async fn permits_are_reported_and_counted_while_they_are_held() {
    for world in World::both() {
        let policy = || Policy::new("slots", Quota::concurrent(3)).key(extract::global());
        let (limiter, recorder) = recorded(&world, [policy()]);
        let held = || limiter.stats().policies[0].permits;
        let first = limiter.admit(KEY).await.expect("admitted");
        let same = Limiter::builder().policy(policy());
        limiter.reconfigure(same).expect("valid");
        let second = limiter.admit(KEY).await.expect("admitted");
        assert_eq!(held(), 2);
        drop(first);
        assert_eq!(held(), 1);
        drop(second);
        assert_eq!(held(), 0);
        assert_eq!(recorder.events("PermitsHeld").len(), 2);
        assert_eq!(recorder.events("PermitsReleased").len(), 2);
        // A released permit is no refund.
        assert!(recorder.record().units.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn waiters_are_counted_while_they_wait() {
    let store = MemoryStore::builder().clock(TokioClock::new()).build();
    let builder = Limiter::builder().store(store);
    let limiter = stores::limiter(builder, [limit("p", "1/min burst 1")]);
    let waiters = || limiter.stats().policies[0].waiters;
    let long = secs(3_600);
    assert!(limiter.wait(KEY, long).await.is_ok());
    assert_eq!(waiters(), 0);
    let wait = |_| limiter.wait(KEY, long).into_future();
    let mut waiting: Vec<_> = (0..3).map(wait).collect();
    for waiting in &mut waiting {
        assert!(waiting.now_or_never().is_none());
    }
    assert_eq!(waiters(), 3);
    waiting.truncate(1);
    assert_eq!(waiters(), 1);
    drop(waiting);
    assert_eq!(waiters(), 0);
}

/// Panics whenever it is called.
#[derive(Debug)]
struct Panicking;

impl Observer for Panicking {
    fn on_decision(&self, _: &DecisionEvent<'_>) {
        panic!("of an observer");
    }

    fn on_units(&self, _: &UnitsEvent<'_>) {
        panic!("of an observer");
    }

    fn on_event(&self, _: &Event<'_>) {
        panic!("of an observer");
    }
}

#[tokio::test]
async fn an_observer_that_panics_changes_no_count_and_hides_nothing_from_others() {
    for world in World::both() {
        let builder = world.builder().observe(Arc::new(Panicking));
        let (limiter, recorder) = recorded_by(builder, [limit("p", "5/month")]);
        for _ in 0..2 {
            let admission = limiter.admit(KEY).await.expect("admitted");
            let p = admission.policy("p").expect("known");
            p.charge(1).await.expect("a response");
            p.refund(1).await.expect("a response");
        }
        assert_eq!(limiter.check(KEY).times(9).await.admitted(), 3);
        let record = recorder.record();
        assert_eq!(record.outcome(DecisionOutcome::Admitted), 5);
        assert_eq!(record.outcome(DecisionOutcome::Rejected), 6);
        let status = limiter.peek(KEY).await.expect("a response");
        assert_eq!(status.left("p"), 0);
    }
}

//! Changes of state: bans, permits, waiters, rejections in the log; which observers are called, and those that panic.

use tollgate::observe::{DecisionEvent, Event, LimiterStats, StatsHandle, UnitsEvent};
use tollgate_tests::{prelude::*, service::send};
use tracing::Level;

use crate::{metrics::support::value_now, observe::support::*};

#[tokio::test]
async fn a_ban_is_told_when_it_begins_once_and_by_hand_unless_one_in_force_is_longer() {
    for world in World::both() {
        let abuse = limit("abuse", "3/h").strategy(Ban::for_duration(secs(600)));
        let watched = watched(world.builder(), [limit("p", "1/month"), abuse]);
        let limiter = &watched.limiter;
        let keys = [("p", KEY), ("abuse", KEY)];
        assert!(limiter.check(keys).await.is_admitted());
        for _ in 0..2 {
            assert!(!limiter.check(keys).await.is_admitted());
        }
        assert_eq!(watched.recorder.events("BanBegan"), [""; 0]);
        // Several are rejected by one call of the store.
        let rejected = join_all((0..9).map(|_| limiter.check(keys).into_future())).await;
        assert!(rejected.iter().all(|decision| !decision.is_admitted()));
        let by_hand = limiter.block(("abuse", KEY), secs(60));
        by_hand.await.expect("a response");
        for seconds in [5, 90, 89] {
            let prolonged = limiter.prolong_block(("abuse", KEY), secs(seconds));
            prolonged.await.expect("a response");
        }
        let bans = watched.recorder.events("BanBegan");
        let parts = [
            "lasts: 600s, by_hand: false",
            "lasts: 60s, by_hand: true",
            "lasts: 90s, by_hand: true",
        ];
        assert_eq!(bans.len(), parts.len(), "{bans:?}");
        for (ban, part) in bans.iter().zip(parts) {
            assert_contains(ban, [part]);
        }
        assert_eq!(value_now(&watched.metrics, "bans_total policy=abuse"), 3.0);
        watched.figures().await;
    }
}

#[tokio::test(start_paused = true)]
async fn permits_and_waiters_are_those_of_now_and_a_request_that_waits_is_told_once() {
    let policy = || Policy::new("busy", Quota::concurrent(1)).key(extract::global());
    let store = MemoryStore::builder().clock(TokioClock::new()).build();
    let watched = watched(Limiter::builder().store(store), [policy()]);
    let limiter = &watched.limiter;
    let now = || {
        let stats = &limiter.stats().policies[0];
        for (gauge, of_stats) in [("permits", stats.permits), ("waiters", stats.waiters)] {
            let gauge = value_now(&watched.metrics, &format!("{gauge} policy=busy"));
            assert_eq!(gauge as u64, of_stats);
        }
        (stats.permits, stats.waiters)
    };
    let held = limiter.wait(KEY, secs(60)).await.expect("a permit");
    // Permits are counted across a change.
    let same = Limiter::builder().policy(policy());
    limiter.reconfigure(same).expect("valid");
    assert_eq!(now(), (1, 0));
    assert!(limiter.wait(KEY, Duration::ZERO).await.is_err());
    let mut waiting = [(); 3].map(|()| Box::pin(limiter.wait(KEY, secs(60)).into_future()));
    for waiting in &mut waiting {
        assert!(waiting.now_or_never().is_none());
    }
    assert_eq!(now(), (1, 3));
    let [first, second, third] = waiting;
    drop((second, third));
    assert_eq!(now(), (1, 1));
    tokio::time::advance(secs(3)).await;
    drop(held);
    let held = first.await.expect("a permit");
    assert_eq!(now(), (1, 0));
    drop(held);
    assert_eq!(now(), (0, 0));
    assert_eq!(watched.recorder.events("PermitsHeld").len(), 2);
    assert_eq!(watched.recorder.events("PermitsReleased").len(), 2);
    let (record, _) = watched.figures().await;
    let expected = [
        (DecisionOutcome::Admitted, 2),
        (DecisionOutcome::Rejected, 1),
        (DecisionOutcome::Cancelled, 2),
    ];
    assert_eq!((record.waits, record.outcomes), (5, expected.into()));
    // A released permit is no refund.
    assert!(record.units.is_empty());
    assert_eq!(value_now(&watched.metrics, "wait_seconds_count"), 3.0);
}

#[tokio::test]
async fn each_rejection_is_logged_once_and_no_admission_and_no_secret() {
    let log = Log::default();
    let _guard = log.at(Level::DEBUG);
    let limiter = stores::limiter(Limiter::builder(), [limit("p", "2/month")]);
    for _ in 0..2 {
        assert!(limiter.check(KEY).await.is_admitted());
    }
    assert_eq!(log.text(), "");
    for _ in 0..3 {
        assert!(!limiter.check(KEY).await.is_admitted());
    }
    assert!(limiter.wait(KEY, Duration::ZERO).await.is_err());
    // Not a request.
    assert!(limiter.peek(KEY).await.is_ok());
    assert!(!limiter.check(("unknown", KEY)).await.is_admitted());
    let lines = log.lines("a request was rejected");
    assert_eq!(lines.len(), 5, "{lines:?}");
    assert_contains(
        &lines[0],
        [r#"outcome="rejected" policy="p" key=* retry_after="#],
    );
    assert!(lines[4].contains(r#"outcome="invalid""#) && !lines[4].contains("policy="));

    let secret = limit("s", "2/month").key(extract::header("x-api-key").secret());
    let watched = watched(World::memory().builder(), [secret]);
    let layer = RateLimitLayer::new(watched.limiter.clone());
    for expected in [200, 200, 429] {
        let request = Request::get("/").header("x-api-key", "sk_live_abc");
        assert_eq!(send(&layer, request).await, expected);
    }
    let key = Key::secret("sk_live_abc");
    let charge = watched.limiter.charge(key, 1);
    charge.await.expect("a response");
    let record = watched.recorder.record();
    assert_eq!(record.keys, [key; 4]);
    // As the admin API and lists take it.
    let shown = format!("key=hash:{} ", key.as_str().trim_start_matches('#'));
    let text = log.text();
    assert!(text.contains(&shown), "{text}");
    let all = format!("{record:?} {text}");
    assert!(!all.contains("sk_live"), "{all}");
}

#[tokio::test]
async fn observers_are_kept_when_the_policies_are_replaced_unless_there_are_new_ones() {
    let (first, second) = (Recorder::new(), Recorder::new());
    let limiter = Limiter::builder().policy(limit("p", "5/month"));
    let limiter = limiter.observe(first.clone()).observe(first.clone());
    let limiter = limiter.build().expect("valid");
    assert!(limiter.check(KEY).await.is_admitted());
    let next = || Limiter::builder().policy(limit("other", "5/month"));
    limiter.reconfigure(next()).expect("valid");
    assert!(limiter.check(KEY).await.is_admitted());
    let next = next().observe(second.clone());
    limiter.reconfigure(next).expect("valid");
    assert!(limiter.check(KEY).await.is_admitted());
    let record = first.record();
    let policies = [(0, 0, "p".to_owned()), (1, 0, "other".to_owned())];
    assert_eq!((record.requests(), record.policies), (2, policies.into()));
    assert_eq!(record.events.len(), 2);
    assert_eq!(second.record().policies, [(2, 0, "other".to_owned())]);
}

/// Keeps the handle that it is passed first, and panics in all other calls.
#[derive(Debug, Default)]
struct Panicking(Mutex<Option<StatsHandle>>);

impl Observer for Panicking {
    fn on_decision(&self, _: &DecisionEvent<'_>) {
        panic!("of an observer");
    }

    fn on_units(&self, _: &UnitsEvent<'_>) {
        panic!("of an observer");
    }

    fn on_event(&self, event: &Event<'_>) {
        if let Event::PoliciesInForce { handle, .. } = event {
            *self.0.lock().expect("no panic") = Some(StatsHandle::clone(handle));
        }
        panic!("of an observer");
    }
}

#[tokio::test]
async fn an_observer_that_panics_changes_no_count_and_hides_nothing_from_others() {
    for world in World::both() {
        let builder = world.builder().observe(Arc::new(Panicking::default()));
        let watched = watched(builder, [limit("p", "5/month")]);
        for _ in 0..2 {
            let admission = watched.limiter.admit(KEY).await.expect("admitted");
            let p = admission.policy("p").expect("known");
            p.charge(1).await.expect("a response");
            p.refund(1).await.expect("a response");
        }
        assert_eq!(watched.limiter.check(KEY).times(9).await.admitted(), 3);
        let (record, _) = watched.figures().await;
        assert_eq!(record.outcome(DecisionOutcome::Admitted), 5);
        assert_eq!(record.outcome(DecisionOutcome::Rejected), 6);
        let status = watched.limiter.peek(KEY).await.expect("a response");
        assert_eq!(status.left("p"), 0);
    }
}

#[tokio::test]
async fn a_handle_reads_the_state_for_as_long_as_the_limiter_lives() {
    let observer = Arc::new(Panicking::default());
    let builder = Limiter::builder().store(MemoryStore::new());
    let limiter = stores::limiter(builder.observe(observer.clone()), [limit("p", "9/month")]);
    for key in ["a", "b", "c"] {
        assert!(limiter.check(("p", key)).await.is_admitted());
    }
    let handle = observer.0.lock().expect("no panic").take().expect("one");
    let shown = |stats: LimiterStats| (stats.generation, stats.policies[0].limit);
    let stats = handle.stats().expect("it lives");
    assert_eq!(stats.store.memory_keys, Some(3));
    assert_eq!(stats.store.memory_evictions, Some(0));
    assert_eq!(shown(stats), (0, 9));
    let next = Limiter::builder().policy(limit("p", "7/month"));
    limiter.reconfigure(next).expect("valid");
    assert_eq!(handle.stats().map(shown), Some((1, 7)));
    drop(limiter);
    assert!(handle.stats().is_none());
}

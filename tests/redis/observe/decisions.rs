//! Each request is reported once, with the outcome that its caller sees.

use std::panic::AssertUnwindSafe;

use tollgate::observe::PolicyResult;
use tollgate_tests::{prelude::*, service::send};

use crate::observe::support::*;

#[tokio::test]
async fn several_requests_at_once_are_reported_as_admitted_and_rejected() {
    for world in World::both() {
        let (limiter, recorder) = recorded(&world, [limit("p", "5/month")]);
        assert_eq!(limiter.check(KEY).times(8).await.admitted(), 5);
        assert!(limiter.admit(KEY).await.is_err());
        let record = recorder.record();
        let expected = [
            (DecisionOutcome::Admitted, 5),
            (DecisionOutcome::Rejected, 4),
        ];
        assert_eq!(record.outcomes, expected.into());
        assert_eq!(record.result("p", PolicyResult::Near), 5);
        assert_eq!(record.result("p", PolicyResult::Over), 4);
        assert_eq!(record.charged("p"), 5);
    }
}

#[tokio::test]
async fn requests_that_no_policy_decides_are_reported_with_the_reason() {
    let builder = Limiter::builder()
        .deny(KeyList::new("p", [Key::new("mallory")]))
        .allow(AddressList::new(["192.0.2.0/24"]).expect("a list"))
        .skip_path("/health");
    let (limiter, recorder) = recorded_by(builder, [Policy::new("p", quota("5/h"))]);
    let health = Request::get("/health").body(()).expect("a request");
    let (health, ()) = health.into_parts();
    let allowed = [192, 0, 2, 1].into();
    assert!(limiter.check("alice").address(allowed).await.is_admitted());
    assert!(!limiter.check("mallory").await.is_admitted());
    assert!(limiter.check("alice").parts(&health).await.is_admitted());
    assert!(!limiter.check(("no-policy", "alice")).await.is_admitted());
    // Not a request.
    assert!(limiter.peek("alice").await.is_ok());
    assert!(limiter.reset("alice").await.is_ok());
    let expected = [
        (DecisionOutcome::AllowListed, 1),
        (DecisionOutcome::DenyListed, 1),
        (DecisionOutcome::Skipped, 1),
        (DecisionOutcome::Invalid, 1),
    ];
    assert_eq!(recorder.record().outcomes, expected.into());
}

#[tokio::test]
async fn a_request_that_is_dropped_before_its_decision_is_cancelled() {
    let (limiter, recorder) = recorded(&World::redis(), [limit("p", "5/month")]);
    let pending = limiter.check(KEY).times(3).into_future();
    assert!(pending.now_or_never().is_none());
    // Never polled, it was not made.
    drop(limiter.check(KEY).into_future());
    let cancelled = [(DecisionOutcome::Cancelled, 3)];
    assert_eq!(recorder.record().outcomes, cancelled.into());
}

#[tokio::test(start_paused = true)]
async fn a_request_that_waits_is_reported_once() {
    let store = MemoryStore::builder().clock(TokioClock::new()).build();
    let builder = Limiter::builder().store(store);
    let (limiter, recorder) = recorded_by(builder, [limit("p", "1/s burst 1")]);
    let patience = secs(10);
    for _ in 0..3 {
        assert!(limiter.wait(KEY, patience).await.is_ok());
    }
    assert!(limiter.wait(KEY, Duration::ZERO).await.is_err());
    let waiting = limiter.wait(KEY, patience).into_future();
    assert!(waiting.now_or_never().is_none());
    let record = recorder.record();
    let expected = [
        (DecisionOutcome::Admitted, 3),
        (DecisionOutcome::Rejected, 1),
        (DecisionOutcome::Cancelled, 1),
    ];
    assert_eq!(record.outcomes, expected.into());
    assert_eq!((record.waits, record.timed), (5, 5));
    assert_eq!(record.charged("p"), 3);
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

#[tokio::test]
async fn requests_of_a_layer_are_reported_also_if_their_client_disconnects() {
    let by_header = limit("p", "2/month").key(extract::header("x-user"));
    let world = World::redis();
    let builder = world.builder().skip_path("/health");
    let policies = [by_header.missing_key(MissingKey::Reject)];
    let (limiter, recorder) = recorded_by(builder, policies);
    let layer = RateLimitLayer::new(limiter);
    let by = |user: &str| Request::get("/").header("x-user", user);
    assert_eq!(send(&layer, Request::get("/health")).await, 200);
    assert_eq!(send(&layer, Request::get("/")).await, 400);
    for expected in [200, 200, 429] {
        assert_eq!(send(&layer, by("alice")).await, expected);
    }
    tokio::task::yield_now().await;
    assert!(send(&layer, by("bob")).now_or_never().is_none());
    let expected = [
        (DecisionOutcome::Admitted, 2),
        (DecisionOutcome::Rejected, 1),
        (DecisionOutcome::Skipped, 1),
        (DecisionOutcome::MissingKey, 1),
        (DecisionOutcome::Cancelled, 1),
    ];
    assert_eq!(recorder.record().outcomes, expected.into());
}

#[tokio::test]
async fn a_request_that_only_a_ban_applies_to_is_counted() {
    for world in World::both() {
        let locked = Policy::block_list("locked").key(extract::global());
        let (limiter, recorder) = recorded(&world, [locked]);
        assert_eq!(limiter.check(KEY).times(3).await.admitted(), 3);
        assert!(limiter.wait(KEY, Duration::ZERO).await.is_ok());
        let record = recorder.record();
        assert_eq!(record.outcome(DecisionOutcome::Admitted), 4);
        assert_eq!(record.uncounted, 0);
    }
}

#[tokio::test]
async fn decisions_of_each_of_several_limiters_that_decide_in_turns_are_timed() {
    for number in 2..=8 {
        let limiters: Vec<_> = (0..number)
            .map(|_| recorded(&World::memory(), [limit("p", "9/month")]))
            .collect();
        for _ in 0..3_200 {
            for (limiter, _) in &limiters {
                let _ = limiter.check(KEY).await;
            }
        }
        for (_, recorder) in limiters {
            let timed = recorder.record().timed;
            assert!((15..100).contains(&timed), "{timed} in {number} limiters");
        }
    }
}

#[tokio::test]
async fn a_request_is_reported_also_if_code_of_the_application_panics() {
    let by_code = limit("p", "2/month").key(extract::from_fn(|_| -> Option<Key> {
        panic!("of an extractor")
    }));
    let (limiter, recorder) = recorded_by(Limiter::builder(), [by_code]);
    let layer = RateLimitLayer::new(limiter);
    let response = send(&layer, Request::get("/"));
    assert!(AssertUnwindSafe(response).catch_unwind().await.is_err());
    let record = recorder.record();
    assert_eq!(record.outcomes, [(DecisionOutcome::Cancelled, 1)].into());
}

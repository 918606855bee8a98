//! Each request is told once, with the outcome that its caller sees and its result under each policy; and so are units.

use std::collections::BTreeMap;

use tollgate::{
    limiter::Override,
    observe::{PolicyResult, UnitsKind},
};
use tollgate_tests::{exposition::Exposition, prelude::*, service::send};

use crate::observe::support::*;

/// A key of a request's user.
fn user(parts: &Parts) -> Option<Key> {
    parts.headers.get("x-user").map(Key::new)
}

#[tokio::test]
async fn each_request_is_told_once_with_its_outcome_and_its_result_under_each_policy() {
    for world in World::both_with_overrides() {
        let by_user = |name: &str, quota| {
            let policy = Policy::new(name, stores::quota(quota)).strategy(FixedWindow);
            policy
                .key(extract::from_fn(user))
                .missing_key(MissingKey::Reject)
        };
        let builder = world.builder().skip_path("/health");
        let builder = builder.deny(KeyList::new("p", [Key::new("mallory")]));
        let builder = builder.allow(AddressList::new(["192.0.2.0/24"]).expect("a list"));
        let policies = [by_user("p", "5/month"), by_user("next", "3/month").shadow()];
        let watched = watched(builder, policies);
        let limiter = &watched.limiter;
        let layer = RateLimitLayer::new(limiter.clone());
        let by = |user: &str| Request::get("/").header("x-user", user);
        let allowed = PeerAddr(SocketAddr::from(([192, 0, 2, 1], 4321)));
        for (request, status) in [
            (Request::get("/health"), 200),
            (Request::get("/"), 400),
            (by("mallory"), 403),
            (by("carol").extension(allowed), 200),
        ] {
            assert_eq!(send(&layer, request).await, status);
        }
        for status in [200, 200, 200, 200, 200, 429, 429] {
            assert_eq!(send(&layer, by("alice")).await, status);
        }
        assert_eq!(limiter.check("bob").times(8).await.admitted(), 5);
        assert!(limiter.wait("bob", Duration::ZERO).await.is_err());
        assert!(!limiter.check(("no-policy", "bob")).await.is_admitted());
        let (p, lifted) = (limiter.policy("p"), Override::quota(quota("100/month")));
        let set = p.expect("known").set_override("vip", lifted).await;
        set.expect("it is set");
        assert!(limiter.check("vip").times(8).await.is_admitted());
        // Not requests; the last one is never polled.
        assert!(limiter.peek("alice").await.is_ok());
        assert!(limiter.reset("carol").await.is_ok());
        drop(limiter.check("carol").into_future());
        let mut cancelled = 0;
        if world.redis_server().is_some() {
            let pending = limiter.check("carol").times(3).into_future();
            assert!(pending.now_or_never().is_none());
            tokio::task::yield_now().await;
            assert!(send(&layer, by("carol")).now_or_never().is_none());
            cancelled += 4;
        }
        let (record, _) = watched.figures().await;
        let mut expected = BTreeMap::from([
            (DecisionOutcome::Admitted, 18),
            (DecisionOutcome::Rejected, 6),
            (DecisionOutcome::DenyListed, 1),
            (DecisionOutcome::AllowListed, 1),
            (DecisionOutcome::Skipped, 1),
            (DecisionOutcome::MissingKey, 1),
            (DecisionOutcome::Invalid, 1),
        ]);
        if cancelled > 0 {
            expected.insert(DecisionOutcome::Cancelled, cancelled);
        }
        assert_eq!(record.outcomes, expected);
        assert_eq!((record.uncounted, record.charged("p")), (0, 18));
        let results = |policy| PolicyResult::ALL.map(|result| record.result(policy, result));
        assert_eq!(results("p"), [12, 6, 6, 0]);
        assert_eq!(results("next"), [2, 13, 0, 9]);
        let shadow = limiter.shadow_stats("next").expect("a shadow");
        assert_eq!((shadow.evaluated, shadow.would_reject), (18, 9));
    }
}

#[tokio::test]
async fn requests_in_an_outage_are_told_as_counted_in_process_or_not_at_all() {
    let local = LocalFallback::shared_by(1).into();
    for (action, outcomes, uncounted) in [
        (OnStoreError::Admit, vec![(DecisionOutcome::Admitted, 8)], 8),
        (
            OnStoreError::Reject,
            vec![(DecisionOutcome::StoreFailed, 8)],
            0,
        ),
        (
            local,
            vec![
                (DecisionOutcome::Admitted, 5),
                (DecisionOutcome::Rejected, 3),
            ],
            0,
        ),
    ] {
        let builder = Limiter::builder().store(StubStore::unreachable());
        let watched = watched(builder.on_store_error(action), [limit("p", "5/month")]);
        for _ in 0..4 {
            let _ = watched.limiter.check(KEY).times(2).await;
        }
        let (record, _) = watched.figures().await;
        assert_eq!(record.outcomes, BTreeMap::from_iter(outcomes));
        assert_eq!(record.sources, [(DecisionSource::Fallback, 8)].into());
        assert_eq!(record.uncounted, uncounted);
    }
}

/// The counters of requests and units.
fn counters(exposition: &Exposition) -> BTreeMap<String, u64> {
    let names = ["requests_total", "units_total", "uncounted_total"];
    let samples = exposition.0.iter();
    let counters = samples.filter(|sample| names.iter().any(|name| sample.name.ends_with(name)));
    let series = counters.map(|one| (format!("{} {:?}", one.name, one.labels), one.value as u64));
    series.collect()
}

#[tokio::test]
async fn metrics_and_activity_alone_count_what_they_count_beside_other_observers() {
    let in_outage = || {
        let builder = Limiter::builder().store(StubStore::unreachable());
        builder.on_store_error(OnStoreError::Admit)
    };
    let in_process = || Limiter::builder().store(MemoryStore::new());
    let builders: [&dyn Fn() -> LimiterBuilder; 2] = [&in_process, &in_outage];
    for builder in builders {
        let policies = || [limit("p", "300/month"), limit("all", "1000/month")];
        let both = [
            watched(builder(), policies()),
            counted(builder(), policies()),
        ];
        for watched in &both {
            // One in 64 decisions is timed, and so reported like others.
            for n in 0..200 {
                let _ = watched.limiter.check(KEY).cost(1 + n % 3).await;
            }
        }
        let [watched, counted] = both;
        let (record, exposition) = watched.figures().await;
        assert!(record.requests() == 200 && record.result("p", PolicyResult::Near) < 200);
        let alone = counted.metrics.exposition();
        assert_eq!(counters(&alone), counters(&exposition));
        let [expected, found] = [
            watched.api.get("/activity").await.json,
            counted.api.get("/activity").await.json,
        ];
        for part in ["outcomes", "uncounted", "policies"] {
            assert_eq!(found[part], expected[part], "{part}");
        }
    }
}

/// 100 units a month, of which each request costs 10.
fn units() -> Policy {
    let policy = Policy::new("units", Quota::units(100).per_month());
    policy.cost(10).key(extract::global())
}

#[tokio::test]
async fn each_kind_of_units_is_told_as_the_store_counts_it() {
    for world in World::both() {
        let watched = watched(world.builder(), [units().refund_unless(outcome::success)]);
        let (limiter, units) = (&watched.limiter, watched.limiter.policy("units"));
        let units = units.expect("known");
        let admission = limiter.admit(KEY).await.expect("admitted");
        let charged = admission.policy("units").expect("known");
        charged.charge(5).await.expect("a response");
        charged.settle(22).await.expect("a response");
        charged.settle(16).await.expect("a response");
        charged.refund(4).await.expect("a response");
        limiter.charge(KEY, 7).await.expect("a response");
        for (asked, given) in [(3, 3), (1_000, 16), (1_000, 0)] {
            let credited = units.credit(KEY, asked).await.expect("a response");
            assert_eq!(credited.units(), given);
        }
        let (record, _) = watched.figures().await;
        assert_eq!(record.charged("units"), 10);
        for (kind, units) in [
            (UnitsKind::Charged, 5 + 7),
            (UnitsKind::SettledMore, 7),
            (UnitsKind::SettledLess, 6),
            (UnitsKind::Refunded, 4),
            (UnitsKind::Credited, 3 + 16),
        ] {
            assert_eq!(record.units("units", kind), units, "{kind:?}");
        }
        assert_eq!(record.unconfirmed_units, 0);
        // What is charged in sum is what the store says is in use.
        let status = limiter.peek(KEY).await.expect("a response");
        assert_eq!(status.used("units"), 10 + 12 + 7 - 6 - 4 - 19);
    }
}

#[tokio::test]
async fn units_whose_result_is_not_known_are_told_as_asked_for() {
    let failing = StubStore::failing(StoreError::timeout());
    let failing = watched(Limiter::builder().store(failing), [units()]);
    assert!(failing.limiter.charge(KEY, 7).await.is_err());
    let (record, _) = failing.figures().await;
    assert_eq!(record.units("units", UnitsKind::Charged), 7);
    assert_eq!(record.unconfirmed_units, 7);
    // So is a refund at the end of a request.
    let refunding = units().refund_unless(|_| false);
    let refunding = watched(World::memory().builder(), [refunding]);
    let layer = RateLimitLayer::new(refunding.limiter.clone());
    assert_eq!(send(&layer, Request::get("/")).await, 200);
    let (record, _) = refunding.figures().await;
    assert_eq!(record.units("units", UnitsKind::Refunded), 10);
    assert_eq!(record.unconfirmed_units, 10);
}

#[tokio::test]
async fn units_that_rejected_requests_are_charged_are_not_counted() {
    for world in World::both() {
        let strict = limit("strict", "5/day").charge_rejected(true);
        let watched = watched(world.builder(), [strict]);
        for _ in 0..8 {
            let _ = watched.limiter.check(KEY).await;
        }
        let (record, _) = watched.figures().await;
        let over = record.result("strict", PolicyResult::Over);
        assert_eq!((record.charged("strict"), over), (5, 3));
        // They are in the store, and hold the key back for longer.
        let status = watched.limiter.peek(KEY).await.expect("a status");
        let wait = status.count("strict").retry_after();
        assert!(wait.duration().expect("a wait") > 3 * secs(86_400 / 5));
    }
}

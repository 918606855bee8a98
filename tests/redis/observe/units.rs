//! Units that are charged, refunded and settled after a decision, or by hand.

use tollgate::observe::UnitsKind;
use tollgate_tests::{prelude::*, service::send};

use crate::observe::support::*;

/// 100 units a month, of which each request costs 10.
fn policy() -> Policy {
    let policy = Policy::new("units", Quota::units(100).per_month());
    policy.cost(10).key(extract::global())
}

#[tokio::test]
async fn each_kind_of_units_is_reported_as_the_store_counts_it() {
    for world in World::both() {
        let (limiter, recorder) = recorded(&world, [policy()]);
        let admission = limiter.admit(KEY).await.expect("admitted");
        let units = admission.policy("units").expect("known");
        units.charge(5).await.expect("a response");
        units.settle(22).await.expect("a response");
        units.settle(16).await.expect("a response");
        units.refund(4).await.expect("a response");
        limiter.charge(KEY, 7).await.expect("a response");
        let credited = limiter.policy("units").expect("known").credit(KEY, 3);
        assert_eq!(credited.await.expect("a response").units(), 3);
        let record = recorder.record();
        assert_eq!(record.charged("units"), 10);
        for (kind, units) in [
            (UnitsKind::Charged, 5 + 7),
            (UnitsKind::SettledMore, 7),
            (UnitsKind::SettledLess, 6),
            (UnitsKind::Refunded, 4),
            (UnitsKind::Credited, 3),
        ] {
            assert_eq!(record.units("units", kind), units, "{kind:?}");
        }
        assert_eq!(record.unconfirmed_units, 0);
        // What is charged in sum is what the store says is in use.
        let status = limiter.peek(KEY).await.expect("a response");
        assert_eq!(status.used("units"), 10 + 12 + 7 - 6 - 4 - 3);
    }
}

#[tokio::test]
async fn credits_are_reported_as_what_they_gave() {
    for world in World::both() {
        let (limiter, recorder) = recorded(&world, [policy()]);
        let units = limiter.policy("units").expect("known");
        let _ = units.charge(KEY, 35).await.expect("a response");
        // Of more than is in use.
        for (requested, credited) in [(1_000, 35), (1_000, 0), (0, 0)] {
            let credit = units.credit(KEY, requested).await.expect("a response");
            assert_eq!(credit.units(), credited);
        }
        let record = recorder.record();
        assert_eq!(record.units("units", UnitsKind::Charged), 35);
        assert_eq!(record.units("units", UnitsKind::Credited), 35);
        assert_eq!(record.unconfirmed_units, 0);
    }
}

#[tokio::test]
async fn a_refund_at_the_end_of_a_request_is_reported_without_its_result() {
    for world in World::both() {
        let (limiter, recorder) = recorded(&world, [policy().refund_unless(|_| false)]);
        let layer = RateLimitLayer::new(limiter);
        assert_eq!(send(&layer, Request::get("/")).await, 200);
        let record = recorder.record();
        assert_eq!(record.charged("units"), 10);
        assert_eq!(record.units("units", UnitsKind::Refunded), 10);
        assert_eq!(record.unconfirmed_units, 10);
    }
}

#[tokio::test]
async fn keys_of_secrets_are_hashes_in_every_event() {
    let policy = limit("secret", "2/month").key(extract::header("x-api-key").secret());
    let (limiter, recorder) = recorded(&World::memory(), [policy]);
    let layer = RateLimitLayer::new(limiter.clone());
    for expected in [200, 200, 429] {
        let request = Request::get("/").header("x-api-key", "sk_live_abc");
        assert_eq!(send(&layer, request).await, expected);
    }
    let key = Key::secret("sk_live_abc");
    limiter.charge(key, 1).await.expect("a response");
    let record = recorder.record();
    assert_eq!(record.keys, [key; 4]);
    let text = format!("{record:?}");
    assert!(text.contains(key.as_str()) && !text.contains("sk_live"));
}

#[tokio::test]
async fn a_charge_by_hand_whose_result_is_not_known_is_reported_as_asked_for() {
    let builder = Limiter::builder().store(StubStore::failing(StoreError::Timeout));
    let (limiter, recorder) = recorded_by(builder, [policy()]);
    assert!(limiter.charge(KEY, 7).await.is_err());
    let record = recorder.record();
    assert_eq!(record.units("units", UnitsKind::Charged), 7);
    assert_eq!(record.unconfirmed_units, 7);
}

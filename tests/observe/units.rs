//! Units that are charged, refunded and settled after a decision, or by hand.

use tollgate::{Key, Policy, Quota, observe::UnitsKind};

use crate::support::{KEY, Recorder, World, secret_policy};

/// 100 units a month, of which each request costs 10.
fn policy() -> Policy {
    Policy::new("units", Quota::units(100).per_month())
        .cost(10)
        .key(tollgate::extract::global())
}

#[tokio::test]
async fn each_kind_of_units_is_reported_as_the_store_counts_it() {
    for world in World::both() {
        let recorder = Recorder::new();
        let limiter = world.builder().policy(policy());
        let limiter = limiter.observe(recorder.clone()).build().expect("valid");
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
        let used = 100 - status.policy("units").expect("known").remaining();
        assert_eq!(used, 10 + 12 + 7 - 6 - 4 - 3, "{}", world.name());
    }
}

#[tokio::test]
async fn a_refund_at_the_end_of_a_request_is_reported_without_its_result() {
    for world in World::both() {
        let recorder = Recorder::new();
        let limiter = world.builder().policy(policy().refund_unless(|_| false));
        let limiter = limiter.observe(recorder.clone()).build().expect("valid");
        let layer = tollgate::RateLimitLayer::new(limiter);
        let service = tower::ServiceBuilder::new().layer(layer).service_fn(
            async |_: http::Request<String>| {
                Ok::<_, std::convert::Infallible>(http::Response::new(String::new()))
            },
        );
        let request = http::Request::new(String::new());
        let response = tower::ServiceExt::oneshot(service, request).await;
        drop(response.expect("infallible"));
        let record = recorder.record();
        assert_eq!(record.charged("units"), 10);
        assert_eq!(record.units("units", UnitsKind::Refunded), 10);
        assert_eq!(record.unconfirmed_units, 10);
    }
}

#[tokio::test]
async fn keys_of_secrets_are_hashes_in_every_event() {
    let recorder = Recorder::new();
    let world = World::memory();
    let limiter = world.builder().policy(secret_policy());
    let limiter = limiter.observe(recorder.clone()).build().expect("valid");
    let layer = tollgate::RateLimitLayer::new(limiter.clone());
    let service =
        tower::ServiceBuilder::new()
            .layer(layer)
            .service_fn(async |_: http::Request<String>| {
                Ok::<_, std::convert::Infallible>(http::Response::new(String::new()))
            });
    for _ in 0..3 {
        let request = http::Request::builder().header("x-api-key", "sk_live_abc");
        let request = request.body(String::new()).expect("a request");
        let response = tower::ServiceExt::oneshot(service.clone(), request).await;
        drop(response.expect("infallible"));
    }
    let key = Key::secret("sk_live_abc");
    limiter.charge(key, 1).await.expect("a response");
    let record = recorder.record();
    assert_eq!(record.keys, [key; 4]);
    let text = format!("{record:?}");
    assert!(text.contains(key.as_str()) && !text.contains("sk_live"));
}

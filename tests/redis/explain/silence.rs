//! An explanation logs nothing, and records nothing of its request.

use tollgate::extract;
use tollgate_tests::{log::Log, prelude::*, service::send};
use tracing::Level;

fn head() -> Parts {
    let request = Request::get("/").body(());
    request.expect("a request").into_parts().0
}

#[tokio::test]
async fn an_explanation_of_a_request_without_address_and_keys_logs_nothing() {
    let log = Log::default();
    let _guard = log.at(Level::TRACE);
    // A quota that the strategy can't count, for a request.
    let odd = Policy::new("odd", Quota::requests(1).per_hour())
        .key(extract::global())
        .quota_with(|_| Some(Quota::concurrent(1)));
    let limiter = Limiter::builder()
        .policy(Policy::new("p", Quota::requests(1).per_hour()).missing_key(MissingKey::Shared))
        .policy(odd)
        .deny(AddressList::new(["192.0.2.1"]).expect("a list"))
        .build()
        .expect("a limiter");
    for _ in 0..20 {
        let explanation = limiter.explain(&head()).await.expect("an explanation");
        assert!(explanation.would_admit());
    }
    assert_eq!(log.text(), "");
    // A request that is made logs each of these.
    let layer = RateLimitLayer::new(limiter);
    assert_eq!(send(&layer, Request::get("/")).await, 200);
    let text = log.text();
    for event in [
        "can't find a request's address",
        "has no key",
        "can't be counted; the policy's own quota is used",
    ] {
        assert!(text.contains(event), "{event}: {text}");
    }
    assert!(text.contains("suppressed=0"), "{text}");
}

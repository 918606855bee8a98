//! What becomes of requests without a key.

use http::StatusCode;
use tollgate::{Key, MissingKey, Policy, Quota, extract};

use crate::{
    extractors::{count, policy},
    support::{hello, layer, send, status, with},
};

#[tokio::test]
async fn a_missing_key_does_what_the_policy_says() {
    let by_tenant = || policy().key(extract::header("x-tenant"));
    for (missing, expected, shared) in [
        (MissingKey::Skip, 200, 0),
        (MissingKey::Reject, 400, 0),
        (MissingKey::Shared, 200, 1),
    ] {
        let (layer, _) = layer([by_tenant().missing_key(missing)]);
        let app = hello(&layer);
        assert_eq!(status(&app, "/").await, expected, "{missing:?}");
        assert_eq!(count(&layer, Key::missing()).await, shared, "{missing:?}");
        // Those who have one are counted by it all the same.
        assert_eq!(
            send(&app, with("x-tenant", "t")).await.status,
            StatusCode::OK
        );
        assert_eq!(count(&layer, Key::new("t")).await, 1, "{missing:?}");
    }
}

#[tokio::test]
async fn a_missing_address_does_what_the_policy_says() {
    for (missing, expected) in [(MissingKey::Skip, 200), (MissingKey::Reject, 400)] {
        let (layer, _) = layer([policy().missing_key(missing)]);
        assert_eq!(status(&hello(&layer), "/").await, expected, "{missing:?}");
        assert_eq!(count(&layer, Key::missing()).await, 0, "{missing:?}");
    }
}

#[tokio::test]
async fn a_skipped_policy_leaves_the_others_in_force() {
    let quota = Quota::requests(1).per_hour();
    let tenants = Policy::new("tenants", quota).key(extract::header("x-tenant"));
    let all = Policy::new("all", quota).key(extract::global());
    let (layer, _) = layer([tenants.missing_key(MissingKey::Skip), all]);
    let app = hello(&layer);
    assert_eq!(
        [status(&app, "/").await, status(&app, "/").await],
        [200, 429]
    );
}

//! Lists of overrides, and how many there may be.

use tollgate::limiter::{Override, OverrideError};
use tollgate_tests::{prelude::*, stores::limiter};

fn of(requests: u64) -> Override {
    Override::quota(Quota::requests(requests).per_hour())
}

fn policies() -> [Policy; 2] {
    ["a", "b"].map(|name| Policy::new(name, Quota::requests(1).per_hour()))
}

#[tokio::test]
async fn a_store_has_no_more_than_it_may_have() {
    let server = Server::start();
    let redis = RedisStore::builder().url(server.url()).max_overrides(2);
    let redis = redis.timeout(TEST_TIMEOUT).build().expect("a store");
    let memory = MemoryStore::builder().max_overrides(2).build();
    for builder in [
        Limiter::builder().store(redis),
        Limiter::builder().store(memory),
    ] {
        let limiter = limiter(builder, policies());
        let [a, b] = ["a", "b"].map(|name| limiter.policy(name).expect("a policy"));
        assert!(a.set_override("alice", of(2)).await.is_ok());
        assert!(b.set_override("alice", of(3)).await.is_ok());
        let error = a.set_override("bob", of(4)).await;
        assert!(matches!(error, Err(OverrideError::TooMany { max: 2, .. })));
        // One that is there may be replaced.
        assert!(a.set_override("alice", of(5)).await.is_ok());
        assert!(a.remove_override("alice").await.is_ok());
        assert!(a.set_override("bob", of(4)).await.is_ok());
        assert_eq!(limiter.stats().policies[0].overrides, 1);
    }
}

#[tokio::test]
async fn a_list_is_ordered_by_policy_and_key_and_says_whether_it_is_complete() {
    let limiter = limiter(Limiter::builder(), policies());
    for (policy, key) in [("b", "carol"), ("a", "bob"), ("b", "alice")] {
        let policy = limiter.policy(policy).expect("a policy");
        let set = policy.set_override(Key::new(key), of(9).set_by("ops"));
        set.await.expect("it is set");
    }
    let listed = limiter.overrides(2).await.expect("a list");
    let texts: Vec<_> = listed.iter().map(ToString::to_string).collect();
    assert_eq!(texts, ["a key:bob: 9/h", "b key:alice: 9/h"]);
    assert_eq!((listed.total(), listed.is_complete()), (3, false));
    let own = limiter.policy("b").expect("a policy").overrides(9).await;
    let own = own.expect("a list");
    assert_eq!((own.len(), own.is_complete()), (2, true));
    let first = own.iter().next().expect("two");
    assert_eq!(first.setting().set_by.as_deref(), Some("ops"));
    assert!(first.is_stored() && first.key() == Key::new("alice"));
}

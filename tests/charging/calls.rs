//! Calls by hand, on both stores: what they return, and which caller they charge.

use std::time::Duration;

use http::{Request, request::Parts};
use tollgate::{Key, Limiter, RetryAfter, extract};

use crate::support::{By, KEY, World, secs, together, used};

#[tokio::test]
async fn a_peek_a_charge_and_a_reset_return_how_the_key_stands() {
    for world in World::both() {
        for by in By::ALL {
            let name = format!("{by:?} on {}", world.name());
            let limiter = world.limiter([together(by, "p", "10/min")]);
            let policy = limiter.policy("p").expect("a policy");
            let _ = policy.reset(KEY).await.expect("an answer");
            let left = |status: &tollgate::LimitStatus| {
                let p = status.policy("p").expect("p");
                (p.limit(), p.remaining(), p.retry_after() == RetryAfter::Now)
            };
            let seen = policy.peek(KEY).await.expect("an answer");
            assert_eq!(left(&seen), (10, 10, true), "{name}");
            assert!(seen.would_admit(), "{name}");
            let charged = policy.charge(KEY, 7).await.expect("an answer");
            assert_eq!(left(&charged), (10, 3, false), "{name}: 7 more");
            assert!(!charged.would_admit(), "{name}");
            let seen = limiter.peek(KEY).await.expect("an answer");
            assert_eq!(left(&seen), (10, 3, true), "{name}");
            let stood = policy.reset(KEY).await.expect("an answer");
            assert_eq!(left(&stood), (10, 3, true), "{name}: before the reset");
            assert_eq!(used(&limiter, "p").await, 0, "{name}");
        }
    }
}

fn head(user: &str) -> Parts {
    let request = Request::get("/").header("x-user", user);
    request.body(()).expect("a request").into_parts().0
}

async fn callers(limiter: &Limiter) -> Vec<Key> {
    let policy = limiter.policy("p").expect("a policy");
    policy.callers(KEY).await.expect("an answer")
}

#[tokio::test]
async fn a_call_with_its_request_records_the_caller_that_the_policy_finds_there() {
    for world in World::both() {
        let policy = together(By::List, "p", "4/min").caller(extract::header("x-user"));
        let limiter = world.limiter([policy]);
        let [alice, bob, carol, dave] = ["alice", "bob", "carol", "dave"].map(Key::new);
        assert!(limiter.check(KEY).parts(&head("alice")).await.is_admitted());
        let admission = limiter.admit(KEY).parts(&head("bob")).await;
        let admission = admission.expect("admitted");
        let waited = limiter.wait(KEY, secs(1)).parts(&head("carol")).await;
        let _waited = waited.expect("admitted");
        assert_eq!(callers(&limiter).await, [alice, bob, carol]);
        // What the admission charges and refunds is its caller's.
        let p = admission.policy("p").expect("a policy");
        p.refund(1).await.expect("an answer");
        assert_eq!(callers(&limiter).await, [alice, carol], "{}", world.name());
        // A caller that the call names comes first.
        let keys = tollgate::Keys::from(KEY).caller(dave);
        assert!(limiter.check(keys).parts(&head("erin")).await.is_admitted());
        // A request without a caller is the key's.
        let (anonymous, ()) = Request::new(()).into_parts();
        assert!(limiter.check(KEY).parts(&anonymous).await.is_admitted());
        assert_eq!(callers(&limiter).await, [alice, carol, dave, KEY]);
        let seen = limiter.peek(KEY).parts(&head("frank")).await;
        assert!(!seen.expect("an answer").would_admit());
        let waited = limiter.wait(KEY, Duration::ZERO).parts(&head("frank"));
        assert!(waited.await.is_err());
        assert_eq!(callers(&limiter).await.len(), 4, "{}", world.name());
    }
}

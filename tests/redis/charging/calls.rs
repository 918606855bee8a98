//! Calls by hand, on both stores: what they return, and which caller they charge.

use tollgate::limiter::LimitStatus;
use tollgate_tests::prelude::*;

use crate::charging::support::*;

#[tokio::test]
async fn peek_charge_and_reset_return_the_status_of_the_key() {
    on_each_strategy(async |_, _, limiter| {
        let policy = limiter.policy("p").expect("a policy");
        let is = |status: Result<LimitStatus, CallError>, left: u64, would_admit: bool| {
            let status = status.expect("a response");
            let p = status.count("p");
            assert_eq!((p.limit(), p.remaining()), (10, left));
            let waits_for_nothing = p.retry_after() == RetryAfter::Now;
            assert_eq!([waits_for_nothing, status.would_admit()], [would_admit; 2]);
        };
        is(policy.peek(KEY).await, 10, true);
        // Not seven more.
        is(policy.charge(KEY, 7).await, 3, false);
        is(limiter.peek(KEY).await, 3, true);
        // As it was before the reset.
        is(policy.reset(KEY).await, 3, true);
        assert_eq!(used(limiter, "p").await, 0);
    })
    .await;
}

fn head(user: &str) -> Parts {
    let request = Request::get("/").header("x-user", user);
    request.body(()).expect("a request").into_parts().0
}

async fn callers(limiter: &Limiter) -> Vec<Key> {
    let policy = limiter.policy("p").expect("a policy");
    policy.callers(KEY).await.expect("a response")
}

#[tokio::test]
async fn a_call_with_a_request_records_the_caller_that_the_policy_extracts() {
    for world in World::both() {
        let policy = together(StrategyKind::List, "p", "5/min").caller(extract::header("x-user"));
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
        p.refund(1).await.expect("a response");
        assert_eq!(callers(&limiter).await, [alice, carol]);
        // A caller that the call names comes first.
        let keys = Keys::from(KEY).caller(dave);
        assert!(limiter.check(keys).parts(&head("erin")).await.is_admitted());
        // A request without a caller is the key's.
        let (anonymous, ()) = Request::new(()).into_parts();
        assert!(limiter.check(KEY).parts(&anonymous).await.is_admitted());
        let charged = limiter.charge(KEY, 1).parts(&head("bob")).await;
        assert!(!charged.expect("a response").would_admit());
        assert_eq!(callers(&limiter).await, [alice, carol, dave, KEY, bob]);
        let seen = limiter.peek(KEY).parts(&head("frank")).await;
        assert!(!seen.expect("a response").would_admit());
        let waited = limiter.wait(KEY, Duration::ZERO).parts(&head("frank"));
        assert!(waited.await.is_err());
        assert_eq!(callers(&limiter).await.len(), 5);
    }
}

#[tokio::test]
async fn a_key_for_all_policies_does_not_replace_the_key_of_a_global_policy() {
    for world in World::both() {
        let limiter = world.limiter([
            even("tokens", "100/day").key(extract::header("x-user")),
            even("all", "6/day"),
            window("pair", "50/day").key((extract::global(), extract::global())),
            window("next", "7/day").shadow(),
        ]);
        let users = (0..15).map(|user| Key::new(format!("user {user}")));
        let users: Vec<Key> = users.collect();
        let mut admitted = 0;
        for user in &users {
            admitted += u64::from(limiter.check(*user).await.is_admitted());
        }
        assert_eq!(admitted, 6);
        let left = async |user: Key| {
            let seen = limiter.peek(user).await.expect("a response");
            ["tokens", "all", "pair", "next"].map(|name| seen.left(name))
        };
        assert_eq!(left(users[0]).await, [99, 0, 44, 1]);
        assert_eq!(left(users[9]).await, [100, 0, 44, 1]);
        let waited = limiter.wait(users[9], Duration::ZERO).await;
        assert!(waited.is_err());
        let rejected = limiter.admit(users[9]).await.expect_err("none is left");
        assert_eq!(rejected.decision().count("all").key(), KEY);
        // A reset of one user leaves what is counted of all users alone, unless it is named or the key is its own.
        let _ = limiter.reset(users[9]).await.expect("a response");
        assert_eq!(left(users[0]).await, [99, 0, 44, 1]);
        let _ = limiter.reset(KEY).await.expect("a response");
        assert_eq!(left(users[0]).await, [99, 6, 44, 7]);
        // A key that is named is counted by.
        let named = [("all", users[0])];
        let _ = limiter.charge(named, 2).await.expect("a response");
        assert_eq!(left(users[0]).await, [99, 6, 44, 7]);
        let _ = limiter.charge(users[1], 2).await.expect("a response");
        assert_eq!(left(users[0]).await, [99, 4, 42, 5]);
        let _ = limiter.reset(users[1]).await.expect("a response");
        // The shortest way through a limiter.
        let single = world.limiter([even("single", "3/day")]);
        let admitted = join_all(users.iter().map(|user| single.admit(*user).into_future()));
        assert_eq!(admitted.await.iter().filter(|one| one.is_ok()).count(), 3);
    }
}

#[tokio::test]
async fn a_ban_of_all_requests_is_only_imposed_by_name() {
    for world in World::both() {
        let ban = |name| ban(name, "9/min", Ban::for_duration(secs(60)));
        let limiter = world.limiter([
            StrategyKind::Gcra.policy("p", "9/day"),
            ban("one").key(extract::peer()),
            ban("all"),
        ]);
        let [alice, bob] = ["alice", "bob"].map(Key::new);
        limiter.block(alice, secs(60)).await.expect("a response");
        assert!(!limiter.check(alice).await.is_admitted());
        assert!(limiter.check(bob).await.is_admitted());
        limiter.unblock(alice).await.expect("a response");
        assert!(limiter.check(alice).await.is_admitted());
        let all = limiter.policy("all").expect("a policy");
        all.block(KEY, secs(60)).await.expect("a response");
        assert!(!limiter.check(bob).await.is_admitted());
        // Of one key nothing is lifted that others are under.
        limiter.unblock(bob).await.expect("a response");
        assert!(!limiter.check(bob).await.is_admitted());
        all.unblock(KEY).await.expect("a response");
        assert!(limiter.check(bob).await.is_admitted());
    }
}

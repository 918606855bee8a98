//! Calls by hand, on both stores: what they return, and which caller they charge; credits; quotas of a call.

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

fn head(name: &'static str, value: &str) -> Parts {
    let request = Request::get("/").header(name, value);
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
        let user = |name| head("x-user", name);
        let [alice, bob, carol, dave] = ["alice", "bob", "carol", "dave"].map(Key::new);
        assert!(limiter.check(KEY).parts(&user("alice")).await.is_admitted());
        let admission = limiter.admit(KEY).parts(&user("bob")).await;
        let admission = admission.expect("admitted");
        let waited = limiter.wait(KEY, secs(1)).parts(&user("carol")).await;
        let _waited = waited.expect("admitted");
        assert_eq!(callers(&limiter).await, [alice, bob, carol]);
        // What the admission charges and refunds is its caller's.
        let p = admission.policy("p").expect("a policy");
        p.refund(1).await.expect("a response");
        assert_eq!(callers(&limiter).await, [alice, carol]);
        // A caller that the call names comes first.
        let keys = Keys::from(KEY).caller(dave);
        assert!(limiter.check(keys).parts(&user("erin")).await.is_admitted());
        // A request without a caller is the key's.
        let (anonymous, ()) = Request::new(()).into_parts();
        assert!(limiter.check(KEY).parts(&anonymous).await.is_admitted());
        let charged = limiter.charge(KEY, 1).parts(&user("bob")).await;
        assert!(!charged.expect("a response").would_admit());
        let waited = limiter.wait(KEY, Duration::ZERO).parts(&user("frank"));
        assert!(waited.await.is_err());
        assert_eq!(callers(&limiter).await, [alice, carol, dave, KEY, bob]);
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
        let users: [Key; 15] = std::array::from_fn(|user| Key::new(format!("user {user}")));
        let sent = join_all(users.map(|user| limiter.check(user).into_future())).await;
        assert_eq!(sent.iter().filter(|sent| sent.is_admitted()).count(), 6);
        let left = async |user: Key| {
            let seen = limiter.peek(user).await.expect("a response");
            ["tokens", "all", "pair", "next"].map(|name| seen.left(name))
        };
        assert_eq!(left(users[0]).await, [99, 0, 44, 1]);
        let rejected = limiter.admit(users[9]).await.expect_err("none is left");
        assert_eq!(rejected.decision().count("all").key(), KEY);
        // A reset of one user leaves what is counted of all users alone, unless it is named or the key is its own.
        let _ = limiter.reset(users[9]).await.expect("a response");
        assert_eq!(left(users[0]).await, [99, 0, 44, 1]);
        let _ = limiter.reset(KEY).await.expect("a response");
        assert_eq!(left(users[0]).await, [99, 6, 44, 7]);
        // A key that is named is counted by.
        let _ = limiter.charge([("all", users[0])], 2).await;
        assert_eq!(left(users[0]).await, [99, 6, 44, 7]);
        let _ = limiter.charge(users[1], 2).await.expect("a response");
        assert_eq!(left(users[0]).await, [99, 4, 42, 5]);
    }
}

#[tokio::test]
async fn a_ban_of_all_requests_is_only_imposed_by_name() {
    for world in World::both() {
        let ban = |name| Policy::new(name, quota("9/min")).strategy(Ban::for_duration(secs(60)));
        let limiter = world.limiter([
            StrategyKind::Gcra.policy("p", "9/day"),
            ban("one").key(extract::peer()),
            ban("all").key(extract::global()),
        ]);
        let [alice, bob] = ["alice", "bob"].map(Key::new);
        let admitted = async |key: Key| limiter.check(key).await.is_admitted();
        limiter.block(alice, secs(60)).await.expect("a response");
        assert_eq!([admitted(alice).await, admitted(bob).await], [false, true]);
        let _ = limiter.unblock(alice).await.expect("a response");
        let all = limiter.policy("all").expect("a policy");
        all.block(KEY, secs(60)).await.expect("a response");
        // Of one key nothing is lifted that others are under.
        let _ = limiter.unblock(bob).await.expect("a response");
        assert_eq!([admitted(alice).await, admitted(bob).await], [false; 2]);
        let _ = all.unblock(KEY).await.expect("a response");
        assert_eq!([admitted(alice).await, admitted(bob).await], [true; 2]);
    }
}

#[tokio::test]
async fn a_strategy_that_stores_each_charge_cannot_be_credited() {
    use StrategyKind::*;
    on_each(&[Log, List, Sliding(10)], async |_, _, limiter| {
        let _ = limiter.charge(KEY, 7).await.expect("a response");
        let credited = limiter.policy("p").expect("a policy").credit(KEY, 3);
        let error = credited
            .await
            .expect_err("each charge is stored separately");
        assert!(matches!(error, CallError::CreditUnsupported { .. }));
        assert_eq!(used(limiter, "p").await, 7);
    })
    .await;
}

#[tokio::test]
async fn a_credit_under_a_policy_of_tiers_needs_a_quota_or_a_request_and_goes_by_it() {
    let pro = || Quota::units(20_000).per_minute();
    for world in World::both() {
        let policy = Policy::new("tokens", Quota::units(1_000).per_minute())
            .cost_with(|_| 50)
            .only_path("/chat")
            .quota_with(move |parts| (parts.headers.get("x-plan")? == "pro").then(pro));
        let limiter = world.limiter([policy]);
        let tokens = limiter.policy("tokens").expect("a policy");
        let error = tokens.credit(KEY, 500).await.expect_err("no quota");
        assert!(matches!(&error, CallError::PartsRequired { policy, .. } if &**policy == "tokens"));
        let unknown = tokens.credit(KEY, 5).quota_for("token", pro()).await;
        assert!(matches!(unknown, Err(CallError::UnknownPolicy(_))));
        let head = head("x-plan", "pro");
        let _ = tokens
            .charge(KEY, 15_000)
            .parts(&head)
            .await
            .expect("a response");
        // A condition of requests is none of a credit, nor is what a request costs.
        for (call, left) in [
            (tokens.credit(KEY, 500).parts(&head), 5_500),
            (tokens.credit(KEY, 500).quota_for("tokens", pro()), 6_000),
        ] {
            let credited = call.await.expect("a response");
            let seen = credited.status().count("tokens");
            assert_eq!((credited.units(), seen.remaining()), (500, left));
            assert_eq!(seen.limit(), 20_000);
        }
    }
}

/// A policy whose quota is that of a request's extension.
fn tiered(policy: Policy) -> Policy {
    policy.quota_with(|parts| parts.extensions.get::<Quota>().copied())
}

fn of_tier(tier: &str) -> Request<()> {
    let mut request = request();
    request.extensions_mut().insert(quota(tier));
    request
}

/// Sends a request; returns the status, and the header field with the quota.
async fn send(layer: &RateLimitLayer, request: Request<()>, status: u16) -> (u16, String) {
    let handler = move |_| async move { Ok::<_, Infallible>(text(status)) };
    let Ok(response) = call(layer, request, handler).await;
    let shown = response.headers()["ratelimit-policy"].to_str();
    let shown = shown.expect("ASCII").to_owned();
    (read(response).await.expect("a body"), shown)
}

#[tokio::test]
async fn an_extension_selects_the_quota_and_one_that_the_strategy_cannot_count_admits_nothing() {
    for world in World::both() {
        for (tier, passes, shown) in [
            ("6/min", 6, 6),
            ("6/min burst 12", 0, 3),
            ("6/1500us", 0, 3),
        ] {
            let layer = world.layer([tiered(window("p", "3/min"))]);
            forget(&layer).await;
            let field = format!(r#""p";q={shown};w=60"#);
            for n in 0..9 {
                let status = if n < passes { 200 } else { 429 };
                let sent = send(&layer, of_tier(tier), 200).await;
                assert_eq!(sent, (status, field.clone()), "{tier}");
            }
            let (_, field) = send(&layer, request(), 200).await;
            assert_eq!(field, r#""p";q=3;w=60"#);
        }
    }
}

#[tokio::test]
async fn tiers_beyond_the_cache_bound_share_one_count() {
    for world in World::both() {
        let limiter = world.limiter([window("p", "1/min")]);
        for n in 2..1_500 {
            let tier = Quota::requests(n).per_minute();
            let decision = limiter.check(KEY).quota_for("p", tier).await;
            assert!(admitted_by_store(&decision), "{n}");
            assert_eq!(decision.left("p"), 1, "{n}");
        }
        assert!(!admitted_by_store(&limiter.check(KEY).await));
    }
}

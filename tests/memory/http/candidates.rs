//! A policy in the shadow of another goes by the settings of that one, in a layer as in a call by hand.

use crate::http::support::*;

fn chat(key: &str) -> Request<Body> {
    empty(Request::get("/chat").header("x-api-key", key))
}

/// A policy with settings that a candidate takes over.
fn tokens() -> Policy {
    Policy::new("tokens", Quota::units(1_000).per_hour())
        .key(extract::header("x-api-key"))
        .strategy(FixedWindow)
        .cost_with(|_| 200)
        .only_path("/chat")
}

fn candidate() -> Policy {
    Policy::new("next", Quota::units(500).per_hour()).shadow_of("tokens")
}

#[tokio::test]
async fn a_candidate_takes_key_cost_strategy_and_conditions_from_the_live_policy() {
    for (limiter, _server) in on_each_store(|b| b.policy(candidate()).policy(tokens())) {
        let app = hello(&RateLimitLayer::new(limiter.clone()));
        for key in ["sk_1", "sk_2", "sk_3"] {
            let _ = send(&app, chat(key)).await;
        }
        let next = limiter.policy("next").expect("a policy");
        for key in ["sk_1", "sk_2", "sk_3"] {
            let key = next.key(key).expect("the key of an API key");
            let seen = next.peek(key).cost(1).await.expect("a response");
            assert_eq!(seen.left("next"), 300);
        }
        // Neither is counted on another path.
        assert_eq!(send(&app, with("x-api-key", "sk_1")).await.status, 200);
        assert_eq!(limiter.shadow_stats("next").expect("it").evaluated, 3);
        let policies = limiter.policies().into_iter();
        let strategies = policies.filter(|it| format!("{it:?}").contains("FixedWindow"));
        assert_eq!(strategies.count(), 2);
    }
}

#[tokio::test]
async fn settings_of_a_candidate_override_the_live_policys() {
    let own = candidate().key(extract::header("x-tenant"));
    let own = own.cost(100).skip_path("/free");
    for (limiter, _server) in on_each_store(|b| b.policy(tokens()).policy(own.clone())) {
        let app = hello(&RateLimitLayer::new(limiter.clone()));
        let request = |path: &str| {
            let request = Request::get(path).header("x-api-key", "sk_1");
            empty(request.header("x-tenant", "acme"))
        };
        for path in ["/chat", "/other", "/free"] {
            let _ = send(&app, request(path)).await;
        }
        let next = limiter.policy("next").expect("a policy");
        let seen = next.peek("acme").cost(1).await.expect("a response");
        assert_eq!(seen.left("next"), 300);
    }
}

#[tokio::test]
async fn settings_of_a_call_for_the_live_policy_apply_to_its_candidate() {
    for (limiter, _server) in on_each_store(|b| b.policy(tokens()).policy(candidate())) {
        let alice = Key::new("alice");
        let admission = limiter.admit([("tokens", alice)]).cost_for("tokens", 50);
        let admission = admission.await.expect("there is room for 50");
        assert_eq!(admission.remaining("tokens"), Some(950));
        assert_eq!(admission.remaining("next"), Some(450));
        let own = limiter.check([("tokens", alice)]);
        let own = own.cost_for("tokens", 50).cost_for("next", 3).await;
        assert_eq!(own.left("next"), 447);
    }
}

#[tokio::test]
async fn a_candidate_keeps_its_own_cost_where_a_call_waits() {
    let own = candidate().cost(100);
    for (limiter, _server) in on_each_store(|b| b.policy(tokens()).policy(own.clone())) {
        let alice = Key::new("alice");
        let (parts, _) = chat("alice").into_parts();
        let admission = limiter.wait(alice, Duration::ZERO).parts(&parts).await;
        let admission = admission.expect("there is room for 200");
        assert_eq!(admission.remaining("tokens"), Some(800));
        assert_eq!(admission.remaining("next"), Some(400));
    }
}

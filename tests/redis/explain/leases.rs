//! Leases, of which an explanation neither spends nor requests one.

use tollgate_tests::{hot_key::until_leased, prelude::*};

use crate::explain::stores::World;

const LIMIT: u64 = 10_000_000;

fn head() -> Parts {
    let request = Request::get("/").header("x-user", "alice").body(());
    request.expect("a request").into_parts().0
}

/// Units of a lease are held for several seconds.
fn on(world: &World) -> Limiter {
    let policy = Policy::new("api", Quota::requests(LIMIT).per_day())
        .strategy(FixedWindow)
        .key(extract::header("x-user"))
        .lease(Lease::max_units(500).ttl(secs(10)));
    let builder = Limiter::builder().store(world.redis(Duration::ZERO));
    builder.policy(policy).build().expect("a limiter")
}

/// What is left of the quota by an explanation, and by a peek.
async fn remaining(limiter: &Limiter) -> [u64; 2] {
    let explanation = limiter.explain(&head()).await.expect("an explanation");
    assert!(explanation.would_admit());
    assert_eq!(explanation.source(), DecisionSource::Store);
    let explained = explanation.policy("api").and_then(|api| api.status());
    let peeked = limiter.peek("alice").await.expect("a status");
    let peeked = peeked.policy("api").expect("a policy").remaining();
    [explained.expect("it applies").remaining(), peeked]
}

/// `[granted, spent, refunded, lapsed, held]`.
fn leases(limiter: &Limiter) -> [u64; 5] {
    let leases = limiter.stats().store.leases;
    assert_eq!(leases.len(), 1);
    let api = &leases[0];
    [api.granted, api.spent, api.refunded, api.lapsed, api.held]
}

#[tokio::test]
async fn explanations_of_a_key_make_it_no_hot_key() {
    let world = World::new();
    let limiter = on(&world);
    for _ in 0..20 {
        let explanations = (0..100).map(|_| remaining(&limiter));
        let found = join_all(explanations).await;
        assert!(found.iter().all(|left| *left == [LIMIT, LIMIT]));
    }
    assert!(limiter.stats().store.leases.is_empty());
    assert_eq!(world.dump(), Vec::<String>::new());
}

#[tokio::test]
async fn units_that_a_process_holds_count_as_used_and_explanations_spend_none() {
    let world = World::new();
    let limiter = on(&world);
    let by_store = until_leased(&limiter, "alice", 1).await;
    let spent = leases(&limiter)[1];
    // A lease may be requested or refunded meanwhile.
    until(
        "an explanation counts the leased units as used",
        async || {
            let before = leases(&limiter);
            let mut found = [0; 2];
            for _ in 0..20 {
                found = remaining(&limiter).await;
            }
            let after = leases(&limiter);
            let [granted, now_spent, refunded, lapsed, held] = after;
            assert_eq!(now_spent, spent);
            let is_settled = before == after && granted == spent + refunded + lapsed + held;
            is_settled && found == [LIMIT - (by_store + granted - refunded); 2]
        },
    )
    .await;
}

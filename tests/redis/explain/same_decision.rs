//! An explanation is the decision that the request gets, and changes nothing.

use std::fmt::Debug;

use tollgate::explain::Explanation;
use tollgate_tests::prelude::*;

use crate::explain::{
    generate,
    stores::{Layered, World},
};

/// Sets of policies, and requests to each: 2,000 in all, on each store.
const SETS: u64 = 50;
const REQUESTS: u64 = 40;

#[tokio::test(flavor = "current_thread")]
async fn an_explanation_equals_the_decision_of_2_000_generated_requests_on_both_stores() {
    let world = World::new();
    let mut seen = BTreeMap::new();
    for seed in 0..SETS {
        run(&world, seed, &mut seen).await;
    }
    // All kinds of decisions have occurred. How many come from the cache depends on when it is confirmed.
    println!("{seen:?}");
    for (what, least) in [
        ("admitted", 300),
        ("rejected", 300),
        ("deny_listed", 50),
        ("allow_listed", 2),
        ("skipped", 300),
        ("missing_key", 10),
        ("cached", 1),
        ("banned", 10),
        ("ban begun", 4),
        ("shadow rejects", 30),
        ("charged rejection", 80),
        ("own quota", 50),
        ("free", 100),
        ("no permit", 30),
    ] {
        let often = seen.get(what).copied().unwrap_or(0);
        assert!(often >= least, "{what}: {often} of at least {least}");
    }
}

async fn run(world: &World, seed: u64, seen: &mut BTreeMap<&'static str, u64>) {
    world.server.flush();
    let staleness = secs(seed % 2);
    let settings = |builder| generate::settings(seed, builder);
    let memory = Layered::new(world.memory(), settings);
    // Decides the same requests, and is never asked for an explanation.
    let twin = Layered::new(world.memory(), settings);
    let redis = Layered::new(world.redis(staleness), settings);
    let all = [&memory, &twin, &redis];
    let rng = &mut Rng::new(seed + 1_000_000);
    let mut parts = generate::request(rng);
    for number in 0..REQUESTS {
        match rng.below(100) {
            0..3 => world.pass(-(rng.below(5_000_000) as i64)),
            3..10 => world.pass(60_000_000),
            10..60 => world.pass(rng.below(4_000_000) as i64),
            _ => {}
        }
        let in_flight = rng.below(5) as usize;
        for layered in all {
            layered.end_requests(in_flight).await;
        }
        // A client repeats its request, also after a rejection.
        if rng.below(3) > 0 {
            parts = generate::request(rng);
        }
        let at = format!("seed {seed}, request {number}: {parts:?}");
        let expected = twin.send(&parts).await;

        let before = shadows(&memory);
        let explained = explain(&memory, &parts).await;
        let again = explain(&memory, &parts).await;
        assert_eq!(debug(&explained), debug(&again), "{at}");
        assert_eq!(shadows(&memory), before, "{at}");
        let decision = memory.send(&parts).await;
        assert_eq!(debug(&decision), debug(&expected), "{at}");
        compare(&memory, &explained, &decision, &at, &mut BTreeMap::new());

        let before = (shadows(&redis), world.dump());
        let explained = explain(&redis, &parts).await;
        assert_eq!((shadows(&redis), world.dump()), before, "{at}");
        let decision = redis.send(&parts).await;
        compare(&redis, &explained, &decision, &at, seen);
    }
    for layered in all {
        layered.end_requests(0).await;
    }
}

async fn explain(layered: &Layered, parts: &http::request::Parts) -> Explanation {
    let explanation = layered.limiter.explain(parts).await;
    explanation.expect("an explanation")
}

fn debug(value: &impl Debug) -> String {
    format!("{value:?}")
}

fn shadows(layered: &Layered) -> String {
    debug(&layered.limiter.shadow_stats("shadow"))
}

/// Whether a policy charges requests that it rejects.
fn charges_rejected(policy: &Policy) -> bool {
    debug(policy).contains("rejected: true")
}

fn compare(
    layered: &Layered,
    explained: &Explanation,
    decision: &Decision,
    at: &str,
    seen: &mut BTreeMap<&'static str, u64>,
) {
    let mut saw = |what| *seen.entry(what).or_default() += 1;
    let at = &format!("{at}\n{explained:?}\n{decision:?}");
    saw(explained.outcome().as_str());
    let same = match (explained.outcome(), decision.kind()) {
        (DecisionOutcome::Admitted, DecisionKind::Admitted) => {
            explained.policies().any(|policy| policy.applies())
        }
        (DecisionOutcome::AllowListed | DecisionOutcome::Skipped, DecisionKind::Admitted) => {
            decision.source() == DecisionSource::NotChecked
        }
        (DecisionOutcome::Rejected, DecisionKind::Rejected)
        | (DecisionOutcome::DenyListed, DecisionKind::DenyListed) => true,
        (
            DecisionOutcome::MissingKey,
            DecisionKind::MissingKey {
                policy, missing, ..
            },
        ) => {
            matches!(
                explained.kind(),
                DecisionKind::MissingKey { policy: of, missing: what, .. }
                    if (of, what) == (policy, missing)
            )
        }
        _ => false,
    };
    assert!(same, "{at}");
    assert_eq!(explained.would_admit(), decision.is_admitted(), "{at}");
    let in_cache_or_store = |source| {
        matches!(
            source,
            DecisionSource::RejectionCache | DecisionSource::Store
        )
    };
    // A task may have read meanwhile whether cached rejections still hold.
    let same_source = explained.source() == decision.source()
        || in_cache_or_store(explained.source()) && in_cache_or_store(decision.source());
    assert!(same_source, "{at}");
    if explained.source() == DecisionSource::RejectionCache {
        saw("cached");
    }
    let policies = layered.limiter.policies();
    let mut is_later = false;
    for (explained, policy) in explained.policies().zip(&policies) {
        assert_eq!(explained.name(), policy.name(), "{at}");
        let decided = decision.policy(policy.name());
        let Some(status) = explained.status() else {
            assert!(decided.is_none(), "{at}");
            assert!(explained.not_applied().is_some(), "{at}");
            continue;
        };
        assert!(explained.applies(), "{at}");
        if explained.is_ban() {
            match (explained.would_admit(), decided) {
                (true, None) => {}
                (true, Some(begun)) => {
                    // This rejection was the last one before a ban.
                    assert!(begun.rejected() && status.remaining() == 1, "{at}");
                    saw("ban begun");
                    is_later = true;
                }
                (false, decided) => {
                    let decided = decided.expect("a ban in force");
                    assert_eq!(status.retry_after(), decided.retry_after(), "{at}");
                    saw("banned");
                }
            }
            continue;
        }
        let decided = decided.unwrap_or_else(|| panic!("{} applies: {at}", policy.name()));
        assert_eq!(status.key(), decided.key(), "{at}");
        assert_eq!(status.cost(), decided.cost(), "{at}");
        assert_eq!(status.quota(), decided.quota(), "{at}");
        assert_eq!(status.limit(), decided.limit(), "{at}");
        assert_eq!(status.would_reject(), decided.would_reject(), "{at}");
        assert_eq!(explained.would_admit(), !decided.would_reject(), "{at}");
        assert_eq!(explained.is_shadow(), decided.is_shadow(), "{at}");
        if status.quota() != policy.quota() {
            saw("own quota");
        }
        if status.cost() == 0 {
            saw("free");
        }
        if explained.is_shadow() {
            if status.would_reject() {
                saw("shadow rejects");
            }
        } else if status.rejected() && charges_rejected(policy) {
            saw("charged rejection");
            is_later = true;
        } else if !decision.is_admitted() {
            assert_eq!(status.remaining(), decided.remaining(), "{at}");
            assert_eq!(status.retry_after(), decided.retry_after(), "{at}");
            assert_eq!(status.reset_after(), decided.reset_after(), "{at}");
            if status.rejected() && policy.quota().to_string().contains("concurrent") {
                saw("no permit");
            }
        } else {
            assert_eq!(status.retry_after(), RetryAfter::Now, "{at}");
        }
    }
    if !decision.is_admitted() && !is_later {
        assert_eq!(explained.retry_after(), decision.retry_after(), "{at}");
    }
}

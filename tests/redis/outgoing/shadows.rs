//! Shadows, which no request waits for: each request is compared once.

use tollgate_tests::prelude::*;

use crate::outgoing::support::*;

/// For how many admitted requests a shadow was evaluated, and how many of them it would have rejected.
fn stats(limiter: &Limiter, name: &str) -> (u64, u64) {
    let stats = limiter.shadow_stats(name).expect(name);
    (stats.evaluated, stats.would_reject)
}

async fn used(limiter: &Limiter, policy: &str) -> u64 {
    let seen = limiter.peek(KEY).await.expect("a response");
    seen.used(policy)
}

#[tokio::test(start_paused = true)]
async fn no_request_waits_for_a_shadow() {
    let (limiter, time) = limiter([
        window("live", "2/s"),
        window("stricter", "1/hour").shadow(),
        permits(1).shadow(),
    ]);
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(wait(&limiter).await.expect("a turn"));
    }
    assert_eq!(time.passed(), ms(1_000));
    assert_eq!(stats(&limiter, "stricter"), (3, 2));
    assert_eq!(stats(&limiter, "permits"), (3, 2));
    // Nor is a request rejected since it would never admit it.
    let _ = wait(&limiter).cost(2).await.expect("a turn");
    assert_eq!(time.passed(), ms(2_000));
    assert_eq!(stats(&limiter, "stricter"), (4, 3));
    // The next one has to wait for a second and no more, as its result reports.
    let rejected = limiter.wait(KEY, ms(999)).await;
    let rejected = rejected.expect_err("too late");
    assert_eq!(rejected.retry_after(), RetryAfter::In(ms(1_000)));
    assert_eq!(time.passed(), ms(2_000));
}

#[tokio::test(start_paused = true)]
async fn waiters_admitted_together_are_each_compared_with_the_shadow() {
    let (limiter, _) = limiter([window("live", "3/s"), window("new", "2/hour").shadow()]);
    // All of what there is, and nothing of the shadow.
    let charged = limiter.charge([("live", KEY)], 3).await;
    charged.expect("a response");
    let waiters: Vec<_> = (0..3).map(|_| queued(wait(&limiter))).collect();
    let turns = join_all(waiters).await.into_iter();
    let turns: Vec<_> = turns.map(|turn| turn.expect("a turn")).collect();
    let shown = turns.iter().map(|admission| {
        let decisions = admission.decisions();
        let shadow = decisions[0].count("new");
        (shadow.would_reject(), shadow.remaining())
    });
    let expected = [(false, 1), (false, 0), (true, 0)];
    assert_eq!(shown.collect::<Vec<_>>(), expected);
    assert_eq!(stats(&limiter, "new"), (3, 1));
    // What it charged goes back with what it was charged for.
    for (turn, charged) in turns.iter().zip([1, 0, 0]) {
        for name in ["live", "new"] {
            let policy = turn.policy(name).expect("a policy");
            policy.refund(1).await.expect("a response");
        }
        assert_eq!(used(&limiter, "new").await, charged);
    }
    assert_eq!(left(&limiter, "live").await, 3);
}

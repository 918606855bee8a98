//! Policies that are evaluated and reported, and never enforced.

use tollgate_tests::prelude::*;

use crate::charging::support::*;

/// For how many admitted requests a shadow was evaluated, and how many of them it would have rejected.
#[track_caller]
pub(crate) fn stats(limiter: &Limiter, name: &str) -> (u64, u64) {
    let stats = limiter.shadow_stats(name).expect(name);
    (stats.evaluated, stats.would_reject)
}

fn would_reject<'a>(mut shadows: impl Iterator<Item = PolicyDecision<'a>>) -> bool {
    let shadow = shadows.next().expect("a shadow");
    assert!(shadow.is_shadow() && !shadow.rejected(), "{shadow:?}");
    shadow.would_reject()
}

#[tokio::test]
async fn a_shadow_rejects_no_request_and_reports_which_it_would_have() {
    for world in World::both() {
        let limiter = world.limiter([window("live", "9/h"), window("new", "2/h").shadow()]);
        for rejects in [false, false, true, true] {
            let seen = limiter.peek(KEY).await.expect("a response");
            assert!(seen.would_admit());
            assert_eq!(would_reject(seen.shadows()), rejects);
            let decision = limiter.check(KEY).await;
            assert!(admitted_by_store(&decision));
            assert_eq!(would_reject(decision.shadows()), rejects, "{decision:?}");
            let names = |policy: PolicyDecision<'_>| policy.policy().to_owned();
            let live: Vec<_> = decision.policies().map(names).collect();
            let shadows: Vec<_> = decision.shadows().map(names).collect();
            assert_eq!([live, shadows], [["live"], ["new"]]);
            assert!(!decision.count("live").is_shadow());
            assert!(decision.retry_after() == RetryAfter::Now);
        }
        // It charges what it would admit, and nothing else.
        assert_eq!(all_used(&limiter, ["new", "live"]).await, [2, 4]);
        assert_eq!(stats(&limiter, "new"), (4, 2));
        assert_eq!(limiter.shadow_stats("live"), None);
        assert_eq!(limiter.shadow_stats("none"), None);
        world.no_key_is_immortal();
    }
}

#[tokio::test]
async fn a_shadow_charges_of_what_the_live_policies_admit_what_fits_under_itself() {
    for world in World::both() {
        let limiter = world.limiter([
            window("other", "6/h"),
            window("live", "3/h"),
            window("looser", "4/h").shadow(),
            window("stricter", "2/h").shadow(),
        ]);
        for (is_admitted, stricter_rejects) in [
            (true, false),
            (true, false),
            (true, true),
            (false, true),
            (false, true),
        ] {
            let decision = limiter.check(KEY).await;
            assert_eq!(decision.is_admitted(), is_admitted);
            let rejects = ["looser", "stricter"].map(|name| decision.count(name).would_reject());
            assert_eq!(rejects, [false, stricter_rejects]);
        }
        assert_eq!(stats(&limiter, "looser"), (3, 0));
        assert_eq!(stats(&limiter, "stricter"), (3, 1));
        let names = ["other", "live", "looser", "stricter"];
        assert_eq!(all_used(&limiter, names).await, [3, 3, 3, 2]);
    }
}

#[tokio::test]
async fn concurrent_requests_are_compared_like_sequential_ones() {
    for world in World::both() {
        let limiter = world.limiter([
            window("live", "6/h"),
            window("looser", "8/h").shadow(),
            window("stricter", "3/h").shadow(),
        ]);
        for (round, together) in [(1, true), (2, false), (3, true), (4, false)] {
            if together {
                assert_eq!(limiter.check(KEY).times(10).await.admitted(), 6);
            } else {
                let sent = (0..10).map(|_| limiter.check(KEY).into_future());
                let decisions = join_all(sent).await;
                assert_eq!(decisions.iter().filter(|d| admitted_by_store(d)).count(), 6);
                let rejected_by = |name| {
                    let rejected = decisions.iter().filter(|d| d.count(name).would_reject());
                    rejected.count()
                };
                assert_eq!(["looser", "stricter"].map(rejected_by), [0, 7], "{round}");
            }
            assert_eq!(stats(&limiter, "looser"), (6 * round, 0));
            assert_eq!(stats(&limiter, "stricter"), (6 * round, 3 * round));
            assert_eq!(all_used(&limiter, ["looser", "stricter"]).await, [6, 3]);
            let _ = limiter.reset(KEY).await.expect("a response");
        }
    }
}

#[tokio::test]
async fn over_http_a_shadow_changes_no_response_and_no_header() {
    for world in World::both() {
        let keyed = window("keyed", "1/h").key(extract::header("x-key"));
        let layer = world.layer([
            window("new", "1/h").shadow(),
            keyed.shadow(),
            window("other", "5/h").shadow(),
            window("live", "3/h"),
        ]);
        for (status, limit) in [(200, 2), (200, 1), (200, 0), (429, 0)] {
            let response = respond(&layer, text(200)).await;
            assert_eq!(response.status(), status);
            let fields = response.headers();
            assert_eq!(fields["ratelimit-policy"], "\"live\";q=3;w=3600");
            let limit = format!("\"live\";r={limit};t=3600");
            assert_eq!(fields["ratelimit"], limit.as_str());
            assert_eq!(fields.contains_key("retry-after"), status == 429);
        }
        let limiter = layer.limiter();
        assert_eq!(stats(limiter, "new"), (3, 2));
        assert_eq!(stats(limiter, "other"), (3, 0));
        // Requests without its key are none of its.
        assert_eq!(stats(limiter, "keyed"), (0, 0));
    }
}

#[tokio::test]
async fn an_impossible_shadow_is_a_config_error() {
    let new = window("new", "1/h").shadow();
    let charging = new.clone().charge_rejected(true);
    let error = Limiter::builder().policy(charging).build();
    let error = error.expect_err("a shadow that charges rejections");
    assert_eq!(error.policy(), Some("new"));
    assert_contains(error, ["without charge_rejected"]);
    // All in the shadow is a way to begin.
    let limiter = World::memory().limiter([new]);
    assert!(limiter.check(KEY).await.is_admitted() && limiter.check(KEY).await.is_admitted());
    assert_eq!(stats(&limiter, "new"), (2, 1));
    assert_eq!(waits(&limiter, "new").await.0, secs(3_600));
}

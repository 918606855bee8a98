//! Policies that are evaluated and reported, and never enforced.

use tollgate_tests::prelude::*;

use crate::charging::support::*;

/// For how many admitted requests a shadow was evaluated, and how many of them it would have rejected.
#[track_caller]
fn stats(limiter: &Limiter, name: &str) -> (u64, u64) {
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
    }
}

#[tokio::test]
async fn a_shadow_is_compared_with_what_the_live_policies_admit_and_charged_what_fits() {
    for world in World::both() {
        let limiter = world.limiter([
            window("other", "9/h"),
            window("live", "6/h"),
            window("looser", "8/h").shadow(),
            window("stricter", "3/h").shadow(),
        ]);
        for round in [1, 2] {
            if round == 1 {
                assert_eq!(limiter.check(KEY).times(10).await.admitted(), 6);
            } else {
                let sent = join_all((0..10).map(|_| limiter.check(KEY).into_future())).await;
                assert_eq!(sent.iter().filter(|d| admitted_by_store(d)).count(), 6);
            }
            assert_eq!(stats(&limiter, "looser"), (6 * round, 0));
            assert_eq!(stats(&limiter, "stricter"), (6 * round, 3 * round));
            let names = ["other", "live", "looser", "stricter"];
            assert_eq!(all_used(&limiter, names).await, [6, 6, 6, 3]);
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
        // Requests without its key are none of its.
        assert_eq!(stats(limiter, "keyed"), (0, 0));
    }
}

#[tokio::test]
async fn a_shadow_charges_by_its_mode_and_is_settled_only_where_it_would_have_admitted() {
    for world in World::both() {
        let reserve = window("reserve", "2/h").refund_unless(outcome::success);
        let response = window("response", "2/h").charge_after(outcome::success);
        let live = window("live", "100/h");
        let layer = world.layer([live.clone(), reserve.shadow(), response.shadow()]);
        pass_all(&layer, [500; 3]).await;
        for used in [0, 1, 2, 2, 2] {
            let names = ["reserve", "response"];
            assert_eq!(all_used(layer.limiter(), names).await, [used; 2]);
            pass_all(&layer, [200]).await;
        }
        assert_eq!(stats(layer.limiter(), "reserve"), (8, 3));
        assert_eq!(stats(layer.limiter(), "response"), (8, 3));

        let names = ["live", "new", "tight"];
        let [new, tight] = [window("new", "10/h"), window("tight", "1/h")].map(Policy::shadow);
        let limiter = world.limiter([live, new, tight]);
        let _ = limiter.reset(KEY).await.expect("a response");
        let admission = limiter.admit(KEY).cost(2).await.expect("a pass");
        settle_each(&admission, &names.map(|name| (name, 7))).await;
        assert_eq!(all_used(&limiter, names).await, [7, 7, 0]);
        let admission = limiter.admit(KEY).cost(3).await.expect("room");
        // Only enforced policies are reported.
        assert_eq!(admission.refund(3).await.expect("a response")[0].units(), 3);
        assert_eq!(used(&limiter, "new").await, 7);
    }
}

#[tokio::test]
async fn all_policies_may_be_shadows() {
    let limiter = World::memory().limiter([window("new", "1/h").shadow()]);
    assert!(limiter.check(KEY).await.is_admitted() && limiter.check(KEY).await.is_admitted());
    assert_eq!(stats(&limiter, "new"), (2, 1));
    assert_eq!(waits(&limiter, "new").await.0, secs(3_600));
}

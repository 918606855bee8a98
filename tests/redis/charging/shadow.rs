//! Policies that are evaluated and reported, and never enforced.

use tollgate_tests::prelude::*;

use crate::charging::support::*;

/// How often a shadow was evaluated, and would have been stricter and looser.
#[track_caller]
pub(crate) fn stats(limiter: &Limiter, name: &str) -> (u64, u64, u64) {
    let stats = limiter.shadow_stats(name).expect(name);
    assert_eq!(stats.differing(), stats.stricter + stats.looser);
    (stats.evaluated, stats.stricter, stats.looser)
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
            assert_eq!(
                (seen.would_admit(), would_reject(seen.shadows())),
                (true, rejects)
            );
            let decision = limiter.check(KEY).await;
            assert!(admitted_by_store(&decision));
            assert_eq!(would_reject(decision.shadows()), rejects, "{decision:?}");
            let names = |v: tollgate::limiter::PolicyDecision<'_>| v.policy().to_owned();
            let live: Vec<_> = decision.policies().map(names).collect();
            let shadows: Vec<_> = decision.shadows().map(names).collect();
            assert_eq!((live, shadows), (vec!["live".into()], vec!["new".into()]));
            assert!(!decision.policy("live").expect("a policy").is_shadow());
            assert!(decision.retry_after() == tollgate::RetryAfter::Now);
        }
        // It charges what it would admit, and nothing else.
        assert_eq!(used(&limiter, "new").await, 2);
        assert_eq!(used(&limiter, "live").await, 4);
        assert_eq!(stats(&limiter, "new"), (4, 2, 0));
        assert_eq!(limiter.shadow_stats("live"), None);
        assert_eq!(limiter.shadow_stats("none"), None);
        world.no_key_is_immortal();
    }
}

#[tokio::test]
async fn a_shadow_does_not_charge_what_other_policies_reject() {
    for world in World::both() {
        let limiter = world.limiter([window("new", "9/h").shadow(), window("live", "2/h")]);
        for admitted in [true, true, false, false] {
            let decision = limiter.check(KEY).await;
            assert_eq!(admitted_by_store(&decision), admitted);
            assert!(!would_reject(decision.shadows()));
        }
        assert_eq!(used(&limiter, "new").await, 2);
        assert_eq!(stats(&limiter, "new"), (4, 0, 0));
    }
}

#[tokio::test]
async fn a_candidate_is_evaluated_in_place_of_the_live_policy() {
    for world in World::both() {
        let limiter = world.limiter([
            window("other", "6/h"),
            window("live", "2/h"),
            window("looser", "4/h").shadow_of("live"),
            window("stricter", "1/h").shadow_of("live"),
            window("beside", "9/h").shadow(),
        ]);
        let mut responses = Vec::new();
        for _ in 0..5 {
            let decision = limiter.check(KEY).await;
            let says = |name| decision.policy(name).expect(name).would_reject();
            responses.push((
                admitted_by_store(&decision),
                says("looser"),
                says("stricter"),
            ));
        }
        let expected = [
            (true, false, false),
            (true, false, true),
            (false, false, true),
            (false, false, true),
            (false, true, true),
        ];
        assert_eq!(responses, expected);
        assert_eq!(stats(&limiter, "looser"), (5, 0, 2));
        assert_eq!(stats(&limiter, "stricter"), (5, 1, 0));
        assert_eq!(stats(&limiter, "beside"), (5, 0, 0));
        for (name, expected) in [("other", 2), ("live", 2), ("looser", 4), ("stricter", 1)] {
            assert_eq!(used(&limiter, name).await, expected, "{name}");
        }
        // What another policy rejects, a candidate in the live one's place would reject too.
        let _ = limiter
            .reset([("live", KEY), ("looser", KEY)])
            .await
            .expect("a response");
        let _ = limiter
            .charge([("other", KEY)], 9)
            .await
            .expect("a response");
        assert!(!admitted_by_store(&limiter.check(KEY).await));
        assert_eq!(used(&limiter, "looser").await, 0);
        assert_eq!(stats(&limiter, "looser"), (6, 0, 2));
    }
}

#[tokio::test]
async fn a_candidate_is_evaluated_in_place_of_the_live_policy_where_others_have_no_key() {
    for world in World::both() {
        let limiter = world.limiter([
            window("other", "1/h"),
            window("live", "2/h"),
            window("looser", "4/h").shadow_of("live"),
        ]);
        for _ in 0..5 {
            let _ = limiter.check([("live", KEY)]).await;
        }
        assert_eq!(stats(&limiter, "looser"), (5, 0, 2));
        for (name, expected) in [("other", 0), ("live", 2), ("looser", 4)] {
            assert_eq!(used(&limiter, name).await, expected, "{name}");
        }
    }
}

#[tokio::test]
async fn concurrent_requests_are_compared_like_sequential_ones() {
    for world in World::both() {
        let limiter = world.limiter([
            window("live", "6/h"),
            window("looser", "8/h").shadow_of("live"),
            window("stricter", "3/h").shadow(),
        ]);
        for (round, together) in [(1, true), (2, false), (3, true), (4, false)] {
            if together {
                assert_eq!(limiter.check(KEY).times(10).await.admitted(), 6);
            } else {
                let sent = (0..10).map(|_| limiter.check(KEY).into_future());
                let decisions = join_all(sent).await;
                assert_eq!(decisions.iter().filter(|d| admitted_by_store(d)).count(), 6);
                let says = |name: &'static str| {
                    let would = |d: &&Decision| d.policy(name).expect(name).would_reject();
                    decisions.iter().filter(would).count()
                };
                assert_eq!((says("looser"), says("stricter")), (2, 7), "{round}");
            }
            assert_eq!(stats(&limiter, "looser"), (10 * round, 0, 2 * round));
            assert_eq!(stats(&limiter, "stricter"), (10 * round, 3 * round, 0));
            assert_eq!(used(&limiter, "looser").await, 8);
            assert_eq!(used(&limiter, "stricter").await, 3);
            let _ = limiter.reset(KEY).await.expect("a response");
        }
    }
}

#[tokio::test]
async fn over_http_a_shadow_changes_no_response_and_no_header() {
    for world in World::both() {
        let shadows = [
            window("new", "1/h").shadow(),
            window("keyed", "1/h")
                .key(extract::header("x-key"))
                .shadow(),
            window("other", "5/h").shadow_of("live"),
        ];
        let layer = world.layer(shadows.into_iter().chain([window("live", "3/h")]));
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
        assert_eq!(stats(limiter, "new"), (4, 2, 0));
        assert_eq!(stats(limiter, "other"), (4, 0, 1));
        // Requests without its key are none of its.
        assert_eq!(stats(limiter, "keyed"), (0, 0, 0));
    }
}

#[tokio::test]
async fn an_impossible_shadow_is_a_config_error() {
    let (new, live) = (|| window("new", "1/h"), || window("live", "1/h"));
    for (live, new, valid) in [
        (live(), new().shadow_of("life"), "the name of a live policy"),
        (live(), new().shadow_of("new"), "the name of a live policy"),
        (
            live().shadow(),
            new().shadow_of("live"),
            "the name of a live policy",
        ),
        (
            live(),
            new().charge_rejected(true).shadow(),
            "without charge_rejected",
        ),
    ] {
        let error = Limiter::builder()
            .policy(live)
            .policy(new)
            .build()
            .expect_err(valid);
        assert_eq!(error.policy(), Some("new"));
        assert!(error.to_string().contains(valid), "{error}");
    }
    // All in the shadow is a way to begin.
    let limiter = World::memory().limiter([new().shadow()]);
    assert!(limiter.check(KEY).await.is_admitted() && limiter.check(KEY).await.is_admitted());
    assert_eq!(stats(&limiter, "new"), (2, 1, 0));
    assert_eq!(waits(&limiter, "new").await.0, secs(3_600));
}

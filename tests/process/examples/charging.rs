//! The examples that charge by the outcome, by the true cost, and by tiers.

use std::{
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

use testkit::Server;

use crate::examples::process::{Example, HttpResponse};

/// Sends `n` requests at once; returns how many responses have each status.
pub(crate) fn at_once(n: usize, ask: impl Fn(usize) -> HttpResponse + Sync) -> Vec<u16> {
    let start = Barrier::new(n);
    thread::scope(|scope| {
        let pending: Vec<_> = (0..n)
            .map(|i| {
                let (start, ask) = (&start, &ask);
                scope.spawn(move || {
                    start.wait();
                    ask(i).status
                })
            })
            .collect();
        let statuses = pending.into_iter().map(|sent| sent.join());
        statuses.map(|status| status.expect("a response")).collect()
    })
}

pub(crate) fn count(statuses: &[u16], status: u16) -> usize {
    statuses.iter().filter(|other| **other == status).count()
}

/// Both in process and on Redis.
pub(crate) fn each_store(name: &str, variables: &[(&str, &str)], test: impl Fn(&Example)) {
    test(&Example::start(name, variables));
    let server = Server::start();
    let url = server.url();
    let on_redis = [variables, &[("REDIS_URL", &url)]].concat();
    test(&Example::start(name, &on_redis));
    assert_eq!(server.immortal_keys(), [""; 0]);
}

#[test]
fn ocr_that_reserves_never_exceeds_five_successes_and_refunds_failures() {
    each_store("ocr", &[("RESERVE", "1")], |ocr| {
        // Eight failures at once hold at most five units, and are all refunded.
        let failures = at_once(8, |_| ocr.post("/ocr?user=alice&ms=50&fail=1", ""));
        assert!(count(&failures, 502) >= 5, "{failures:?}");
        assert_eq!(count(&failures, 502) + count(&failures, 429), 8);
        // A refund on Redis may still be in flight when the response is here.
        let deadline = Instant::now() + Duration::from_secs(10);
        let mut successes = 0;
        while successes < 5 && Instant::now() < deadline {
            let statuses = at_once(16, |_| ocr.post("/ocr?user=alice&ms=20", ""));
            successes += count(&statuses, 200);
        }
        assert_eq!(successes, 5);
        assert_eq!(ocr.post("/ocr?user=alice", "").status, 429);
        assert_eq!(ocr.post("/ocr?user=bob", "").status, 200);
    });
}

#[test]
fn ocr_that_checks_counts_successes_and_admits_too_many_concurrent_requests() {
    each_store("ocr", &[], |ocr| {
        for _ in 0..6 {
            assert_eq!(ocr.post("/ocr?user=alice&fail=1", "").status, 502);
        }
        let together = at_once(8, |_| ocr.post("/ocr?user=alice&ms=300", ""));
        assert!(count(&together, 200) > 5, "{together:?}");
        let deadline = Instant::now() + Duration::from_secs(10);
        while ocr.post("/ocr?user=alice&fail=1", "").status != 429 {
            assert!(Instant::now() < deadline, "successes are not counted");
        }
    });
}

#[test]
fn llm_tokens_are_settled_when_the_stream_has_ended() {
    each_store("llm_tokens", &[], |llm| {
        let chat = |estimate: u64, tokens: u64| {
            let path = format!("/chat?estimate={estimate}&tokens={tokens}");
            llm.get(&path, &[("x-api-key", "k")])
        };
        let response = chat(900, 10);
        assert_eq!(response.status, 200);
        assert_eq!(response.body.matches("data: token").count(), 10);
        // 890 of the estimate come back.
        let deadline = Instant::now() + Duration::from_secs(10);
        while chat(900, 10).status != 200 {
            assert!(Instant::now() < deadline, "the estimate stays");
        }
        // A stream that was longer than expected leaves a debt.
        let deadline = Instant::now() + Duration::from_secs(10);
        while chat(1, 1_500).status != 200 {
            assert!(Instant::now() < deadline, "the estimate stays");
        }
        let deadline = Instant::now() + Duration::from_secs(10);
        while chat(1, 0).status != 429 {
            assert!(
                Instant::now() < deadline,
                "no caller pays for what was streamed"
            );
        }
    });
}

#[test]
fn llm_tokens_belong_to_an_account_and_an_unknown_caller_has_none() {
    each_store("llm_tokens", &[], |llm| {
        let chat = |key: &str| llm.get("/chat?estimate=5000&tokens=5000", &[("x-api-key", key)]);
        let stranger = chat("guess");
        assert_eq!(stranger.status, 401);
        assert_eq!(stranger.field("ratelimit"), None);
        assert_eq!(llm.get("/chat?estimate=1&tokens=1", &[]).status, 401);
        let free = chat("k");
        assert_eq!(free.status, 429, "{free:?}");
        let text = "The request costs 5000, of which policy tokens allows at most 1000.";
        assert!(free.body.contains(text), "{free:?}");
        assert_eq!(chat("pro").status, 200);
    });
}

#[test]
fn llm_token_estimates_of_any_number_cost_at_least_one_and_refund_none() {
    each_store("llm_tokens", &[], |llm| {
        let chat = |estimate: u64, tokens: u64| {
            let path = format!("/chat?estimate={estimate}&tokens={tokens}");
            llm.get(&path, &[("x-api-key", "k")])
        };
        let left = |response: &HttpResponse| {
            let limit = response.field("ratelimit").expect("a limit").to_owned();
            let (_, rest) = limit.split_once(";r=").expect("what is left");
            let left = rest.split(';').next().expect("a number");
            left.parse::<u64>().expect("a number")
        };
        for estimate in [
            18_446_744_073_709_551_116,
            1 << 63,
            (1 << 63) + 1_000,
            u64::MAX,
        ] {
            let rejected = chat(estimate, 900);
            assert_eq!(rejected.status, 429, "{estimate}: {rejected:?}");
            assert_eq!(left(&rejected), 1_000, "{estimate}: {rejected:?}");
        }
        let admitted = chat(0, 0);
        assert_eq!(admitted.status, 200);
        assert_eq!(left(&admitted), 999, "{admitted:?}");
        // What is used up lets no estimate pass, not even one of nothing.
        let deadline = Instant::now() + Duration::from_secs(10);
        while chat(0, 1_500).status != 429 {
            assert!(Instant::now() < deadline, "an estimate of 0 is for free");
        }
    });
}

#[test]
fn tiers_have_their_own_quotas_and_a_look_up_that_hangs_falls_back_to_the_free_tier() {
    each_store("tiers", &[], |tiers| {
        let ask = |key: &str, n: usize| -> Vec<u16> {
            let ask = |_| tiers.get("/", &[("x-api-key", key)]).status;
            (0..n).map(ask).collect()
        };
        assert_eq!(count(&ask("paid-bob", 60), 200), 60);
        for key in ["free-alice", "slow-carol"] {
            let statuses = ask(key, 16);
            let passed = count(&statuses, 200);
            assert!((10..=13).contains(&passed), "{key}: {statuses:?}");
        }
        assert_eq!(tiers.get("/", &[]).status, 400);
    });
}

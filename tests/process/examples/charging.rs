//! The examples that charge by the outcome, by the true cost, and by tiers.

use tollgate_tests::{
    example::{HttpResponse, Stage},
    prelude::*,
};

use crate::examples::admits;

/// Repeats a request until its response is as expected: what it waits for is in flight when the response before is here.
fn eventually(ask: impl Fn() -> HttpResponse, expected: impl Fn(&HttpResponse) -> bool) {
    let start = Instant::now();
    loop {
        let response = ask();
        if expected(&response) {
            return;
        }
        assert!(start.elapsed() < TEST_TIMEOUT, "{response:?}");
    }
}

#[test]
fn ocr_counts_five_successes_and_no_failures() {
    for stage in Stage::both() {
        for reserve in ["0", "1"] {
            let ocr = stage.start("ocr", &[("RESERVE", reserve)]);
            let failure = || ocr.post(&format!("/ocr?user={reserve}&fail=1"), "");
            let success = || ocr.post(&format!("/ocr?user={reserve}"), "");
            for _ in 0..6 {
                eventually(failure, |response| response.status == 502);
            }
            if reserve == "1" {
                admits(5, success);
            } else {
                // Charged after the response, so that more than five may pass.
                for _ in 0..5 {
                    assert_eq!(success().status, 200);
                }
                eventually(failure, |response| response.status == 429);
            }
            assert_eq!(ocr.post("/ocr?user=bob", "").status, 200);
        }
    }
}

/// What is left of the tokens by a response.
fn left(response: &HttpResponse) -> u64 {
    let limit = response.field("ratelimit").expect("a limit");
    let (_, rest) = limit.split_once(";r=").expect("what is left");
    let left = rest.split(';').next().expect("a number");
    left.parse().expect("a number")
}

#[test]
fn llm_tokens_are_settled_when_the_stream_has_ended() {
    for stage in Stage::both() {
        let llm = stage.start("llm_tokens", &[]);
        let chat = |estimate: u64, tokens: u64| {
            let path = format!("/chat?estimate={estimate}&tokens={tokens}");
            llm.get(&path, &[("x-api-key", "k")])
        };
        // However large an estimate is, it is no refund.
        for estimate in [u64::MAX - 499, 1 << 63, (1 << 63) + 1_000, u64::MAX] {
            let rejected = chat(estimate, 900);
            assert_eq!(
                (rejected.status, left(&rejected)),
                (429, 1_000),
                "{estimate}"
            );
        }
        let response = chat(900, 10);
        assert_eq!((response.status, left(&response)), (200, 100));
        assert_eq!(response.body.matches("data: token").count(), 10);
        // 890 of the estimate come back. An estimate of nothing costs one, until it is settled too.
        eventually(|| chat(0, 0), |response| left(response) == 989);
        // A stream that was longer than expected leaves a debt.
        eventually(|| chat(1, 1_500), |response| response.status == 200);
        eventually(|| chat(0, 0), |response| response.status == 429);
    }
}

#[test]
fn llm_tokens_belong_to_an_account_and_an_unknown_caller_has_none() {
    let llm = Stage::in_process().start("llm_tokens", &[]);
    let chat = |key| llm.get("/chat?estimate=5000&tokens=5000", &[("x-api-key", key)]);
    let stranger = chat("guess");
    assert_eq!((stranger.status, stranger.field("ratelimit")), (401, None));
    assert_eq!(llm.get("/chat?estimate=1&tokens=1", &[]).status, 401);
    assert_eq!(chat("k").status, 429);
    assert_eq!(chat("pro").status, 200);
}

#[test]
fn a_look_up_of_a_tier_that_hangs_falls_back_to_the_free_one() {
    let stage = Stage::in_process();
    // Each request waits for 50 ms, and nothing else lets time pass.
    let tiers = stage.start_with(Timers::Advance, "tiers", &[]);
    let start = stage.clock.micros();
    admits(10, || tiers.get("/", &[("x-api-key", "slow-carol")]));
    let elapsed = Duration::from_micros(stage.clock.micros() - start);
    assert!(elapsed >= ms(12 * 50), "{elapsed:?}");
    assert_eq!(tiers.get("/", &[]).status, 400);
}

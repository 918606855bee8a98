//! The OCR service: five successes a minute, with a provider that is slow and fails.

use tokio::{sync::Barrier, task::yield_now};
use tollgate_tests::prelude::*;

use crate::charging::{outcomes::both_modes, support::*};

const CALLERS: u64 = 64;

/// All callers at once; returns how many got a 200, a 502 and a 429 of a provider, to which calls get that are admitted.
async fn all_callers<A>(
    layer: &RateLimitLayer,
    provider: impl Fn(Request<()>) -> A + Clone + Send + 'static,
) -> [u64; 3]
where
    A: Future<Output = Result<Response<PiecesBody>, Infallible>> + Send + 'static,
{
    let mut tasks = JoinSet::new();
    for _ in 0..CALLERS {
        let (layer, provider) = (layer.clone(), provider.clone());
        tasks.spawn(async move {
            let Ok(response) = call(&layer, request(), provider).await;
            read(response).await.expect("a body")
        });
    }
    let statuses = tasks.join_all().await;
    let of = |status| statuses.iter().filter(|s| **s == status).count() as u64;
    assert_eq!(of(200) + of(502) + of(429), CALLERS, "{statuses:?}");
    [of(200), of(502), of(429)]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exactly_5_of_64_retrying_callers_succeed_in_a_window() {
    for world in World::both() {
        let layer = world.layer([window("ocr", "5/min").refund_unless(outcome::success)]);
        for _ in 0..3 {
            let calls = Arc::new(AtomicU64::new(0));
            // Every third call fails.
            let provider = move |_: Request<()>| {
                let call = calls.fetch_add(1, Ordering::Relaxed);
                async move {
                    for _ in 0..20 {
                        yield_now().await;
                    }
                    Ok(text(if call % 3 == 2 { 502 } else { 200 }))
                }
            };
            let (mut succeeded, mut failed) = (0, 0);
            loop {
                let [ok, bad, rejected] = all_callers(&layer, provider.clone()).await;
                succeeded += ok;
                failed += bad;
                assert!(succeeded <= 5, "{succeeded}");
                world.no_key_is_immortal();
                if rejected == CALLERS {
                    break;
                }
            }
            // A failed call was refunded for a later one.
            assert_eq!(succeeded, 5);
            assert!(failed > 0, "no call failed");
            assert_eq!(used(layer.limiter(), "ocr").await, 5);
            world.advance(secs(61));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checks_on_arrival_may_admit_64_and_the_debt_is_at_most_one_capacity() {
    for world in World::both() {
        let layer = world.layer([window("ocr", "5/min").charge_after(outcome::success)]);
        // The provider responds when all 64 calls have reached it.
        let all = Arc::new(Barrier::new(CALLERS as usize));
        let provider = move |_: Request<()>| {
            let all = all.clone();
            async move {
                all.wait().await;
                Ok(text(200))
            }
        };
        assert_eq!(all_callers(&layer, provider).await, [CALLERS, 0, 0]);
        pass_all(&layer, [429]).await;
        let (wait, _) = waits(layer.limiter(), "ocr").await;
        assert!(wait <= secs(60), "{wait:?}");
        if let Some(server) = world.redis_server() {
            let count = server.command(&["GET", &server.only_key()]).text();
            assert_eq!(count, "10", "twice the capacity");
        }
        world.no_key_is_immortal();
        world.advance(wait + secs(1));
        pass_all(&layer, [200]).await;
    }
}

/// A success is charged to the next window if it is charged by its response.
#[tokio::test]
async fn a_call_that_outlasts_its_window_refunds_nothing_and_locks_no_caller_out() {
    for world in World::both() {
        let modes = |policy: Policy| both_modes(&policy, outcome::success);
        let [by_response, reserved] = modes(window("ocr", "5/min"));
        let [_, reserved_evenly] = modes(even("ocr", "5/min"));
        for (policy, status, expected) in [
            (&by_response, 200, 1),
            (&by_response, 502, 0),
            (&reserved, 200, 0),
            (&reserved, 502, 0),
            (&reserved_evenly, 502, 0),
        ] {
            let _case = Case(format!("{status} under {policy:?}"));
            let layer = world.layer([policy.clone()]);
            let under_way = respond(&layer, text(status)).await;
            world.advance(secs(61));
            assert_eq!(read(under_way).await.expect("a body"), status);
            assert_eq!(used(layer.limiter(), "ocr").await, expected);
            let keys = world.redis_server().map(Server::keys);
            assert_eq!(keys.map_or(expected, |keys| keys.len() as u64), expected);
            while pass(&layer, text(200)).await == 200 {}
            world.no_key_is_immortal();
            assert_eq!(used(layer.limiter(), "ocr").await, 5);
            world.advance(secs(61));
        }
    }
}

//! The OCR service: five successes a minute, with a provider that is slow and fails.

use tokio::{
    sync::{Barrier, Notify},
    task::{JoinHandle, yield_now},
};
use tollgate_tests::prelude::*;

use crate::charging::{modes::both_modes, support::*};

const CALLERS: u64 = 64;

/// All callers at once; returns how many got each status. Of the calls that get to it, the provider fails every third.
async fn all_callers(layer: &RateLimitLayer, calls: &Arc<AtomicU64>) -> [u64; 3] {
    let mut tasks = JoinSet::new();
    for _ in 0..CALLERS {
        let (layer, calls) = (layer.clone(), calls.clone());
        tasks.spawn(async move {
            let provider = move |_| {
                let call = calls.fetch_add(1, Ordering::Relaxed);
                async move {
                    for _ in 0..20 {
                        yield_now().await;
                    }
                    Ok::<_, Infallible>(text(if call % 3 == 2 { 502 } else { 200 }))
                }
            };
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
            let (mut succeeded, mut failed) = (0, 0);
            loop {
                let [ok, bad, rejected] = all_callers(&layer, &calls).await;
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
        let mut tasks = JoinSet::new();
        for _ in 0..CALLERS {
            let (layer, all) = (layer.clone(), all.clone());
            tasks.spawn(async move {
                let provider = move |_| {
                    let all = all.clone();
                    async move {
                        all.wait().await;
                        Ok::<_, Infallible>(text(200))
                    }
                };
                let Ok(response) = call(&layer, request(), provider).await;
                read(response).await.expect("a body")
            });
        }
        assert_eq!(tasks.join_all().await, [200; CALLERS as usize]);
        assert_eq!(pass(&layer, text(200)).await, 429);
        let (wait, _) = waits(layer.limiter(), "ocr").await;
        assert!(wait <= secs(60), "{wait:?}");
        if let Some(server) = world.redis_server() {
            let keys = server.keys();
            assert_eq!(keys.len(), 1, "{keys:?}");
            let count = server.command(&["GET", &keys[0]]).text();
            assert_eq!(count, "10", "twice the capacity");
            let ttl = server.command(&["PTTL", &keys[0]]).int();
            assert!((1..=60_000).contains(&ttl), "{ttl}");
        }
        world.advance(wait + secs(1));
        assert_eq!(pass(&layer, text(200)).await, 200);
    }
}

/// A call whose provider waits until the test decides its response.
struct Slow {
    tell: Arc<Notify>,
    response: JoinHandle<u16>,
}

impl Slow {
    async fn start(layer: &RateLimitLayer, status: u16) -> Self {
        let (started, tell) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (starts, go, layer) = (started.clone(), tell.clone(), layer.clone());
        let response = tokio::spawn(async move {
            let provider = move |_| {
                let (starts, go) = (starts.clone(), go.clone());
                async move {
                    starts.notify_one();
                    go.notified().await;
                    Ok::<_, Infallible>(text(status))
                }
            };
            let Ok(response) = call(&layer, request(), provider).await;
            read(response).await.expect("a body")
        });
        started.notified().await;
        Self { tell, response }
    }

    async fn end(self) -> u16 {
        self.tell.notify_one();
        self.response.await.expect("no panic")
    }
}

#[tokio::test]
async fn a_call_that_outlasts_its_window_creates_no_key() {
    for world in World::both() {
        for policy in [window("window", "5/min"), even("even", "5/min")] {
            let name = policy.name().to_owned();
            let layer = world.layer([policy.refund_unless(outcome::success)]);
            let slow = Slow::start(&layer, 502).await;
            world.advance(secs(61));
            assert_eq!(slow.end().await, 502);
            assert_eq!(used(layer.limiter(), &name).await, 0);
            let keys = world
                .redis_server()
                .map_or(0, |server| counter_keys(server).len());
            assert_eq!(keys, 0, "of {name}");
        }
    }
}

#[tokio::test]
async fn a_key_that_ends_during_a_slow_call_locks_no_caller_out() {
    for world in World::both() {
        for policy in both_modes(&window("ocr", "5/min"), outcome::success) {
            let layer = world.layer([policy]);
            for _ in 0..3 {
                // The window opens, and ends while the provider is at work.
                assert_eq!(pass(&layer, text(200)).await, 200);
                let slow = Slow::start(&layer, 200).await;
                world.advance(secs(61));
                assert_eq!(slow.end().await, 200);
                world.no_key_is_immortal();
                while pass(&layer, text(200)).await == 200 {}
                world.no_key_is_immortal();
                let (wait, _) = waits(layer.limiter(), "ocr").await;
                assert!(wait <= secs(60), "{wait:?}");
                world.advance(secs(61));
                assert_eq!(used(layer.limiter(), "ocr").await, 0);
            }
        }
    }
}

#[tokio::test]
async fn a_success_after_its_window_counts_in_the_next_only_on_response() {
    for world in World::both() {
        let policies = both_modes(&window("ocr", "5/min"), outcome::success);
        for (policy, expected) in policies.into_iter().zip([1, 0]) {
            let layer = world.layer([policy]);
            let slow = Slow::start(&layer, 200).await;
            world.advance(secs(61));
            assert_eq!(slow.end().await, 200);
            let used = used(layer.limiter(), "ocr").await;
            assert_eq!(used, expected);
            world.no_key_is_immortal();
            world.advance(secs(61));
        }
    }
}

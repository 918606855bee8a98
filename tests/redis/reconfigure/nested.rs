//! Nested layers, and the calls of a client, while the policies of all of them are replaced.

use tollgate_tests::prelude::*;

use crate::reconfigure::support::*;

const THREADS: usize = 3;

/// A policy whose window doesn't end, since the clock stands still.
fn hourly(name: &str, units: u64) -> Policy {
    window(name, &format!("{units}/h"))
}

/// The policy, with another one before it each second time.
fn nth(n: usize, kept: Policy) -> Vec<Policy> {
    let other = (n % 2 == 1).then(|| policy("other", "9000000/h"));
    other.into_iter().chain([kept]).collect()
}

fn replace_layer(layer: &RateLimitLayer, n: usize, kept: Policy) {
    let builder = RateLimitLayer::builder().on_store_error(OnStoreError::Reject);
    let builder = nth(n, kept)
        .into_iter()
        .fold(builder, LimiterBuilder::policy);
    let headers = [RateLimitHeaders::draft(), RateLimitHeaders::x_ratelimit()];
    let changes = layer.reconfigure(builder, |layer| layer.headers(headers[n % 2].clone()));
    changes.expect("valid settings");
}

#[test]
fn nested_layers_and_outgoing_calls_count_exactly_while_all_are_replaced() {
    for (world, units) in [(World::memory(), 3_000), (World::redis(), 300)] {
        let (inner_units, calls_units, outer_units) = (2 * units, 3 * units, 4 * units);
        let [inner, outer] = [("inner", inner_units), ("outer", outer_units)]
            .map(|(name, units)| RateLimitLayer::new(world.limiter([hourly(name, units)])));
        let calls = world.limiter([hourly("calls", calls_units)]);
        let app = Router::new()
            .route("/", get(async || "hello"))
            .layer(inner.clone())
            .layer(outer.clone());
        let client = ServiceBuilder::new()
            .layer(OutgoingLayer::new(calls.clone()).timeout(TEST_TIMEOUT))
            .service(app);

        let replaced = AtomicU64::new(0);
        // The statuses of responses, until a call is rejected.
        let call_all = |is_replaced: bool| {
            current_thread().block_on(async {
                let mut counts = [0, 0];
                while let Ok(response) = client.clone().oneshot(Request::new(Body::empty())).await {
                    // So that the layers are replaced meanwhile, however slowly that goes.
                    let calls = counts[0] + counts[1];
                    while is_replaced && 20 * calls / units > replaced.load(Ordering::Relaxed) {
                        thread::sleep(ms(1));
                    }
                    counts[match response.status() {
                        StatusCode::OK => 0,
                        StatusCode::TOO_MANY_REQUESTS => 1,
                        other => panic!("{other}"),
                    }] += 1;
                }
                counts
            })
        };
        let done = AtomicUsize::new(0);
        let mut counts = thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS)
                .map(|_| {
                    scope.spawn(|| {
                        let counts = call_all(true);
                        done.fetch_add(1, Ordering::Relaxed);
                        counts
                    })
                })
                .collect();
            while done.load(Ordering::Relaxed) < THREADS {
                let n = replaced.fetch_add(1, Ordering::Relaxed) as usize;
                replace_layer(&inner, n, hourly("inner", inner_units));
                replace_layer(&outer, n, hourly("outer", outer_units));
                replace(&calls, nth(n, hourly("calls", calls_units)));
                thread::yield_now();
            }
            let counts = threads
                .into_iter()
                .map(|thread| thread.join().expect("no panic"));
            counts.collect::<Vec<_>>()
        });
        counts.push(call_all(false));
        let [admitted, rejected] =
            [0, 1].map(|status| counts.iter().map(|counts| counts[status]).sum::<u64>());
        let name = world.name();
        assert_eq!((admitted, rejected), (inner_units, units), "{name}");
        current_thread().block_on(async {
            assert_eq!(used(inner.limiter(), "inner").await, inner_units, "{name}");
            // What the inner layer rejected was refunded.
            assert_eq!(used(outer.limiter(), "outer").await, inner_units, "{name}");
            assert_eq!(used(&calls, "calls").await, calls_units, "{name}");
        });
    }
}

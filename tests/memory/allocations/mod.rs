//! What a decision allocates. The allocator counts by thread, so each is made on a runtime of one thread.

use allocation_counter::measure;
use tollgate::extract::Extracted;
use tollgate_tests::prelude::*;

mod redis;

/// Decisions that are counted, so that what happens now and then shows too.
const TIMES: u64 = 1_000;

/// Never used up, and refilled so slowly that no key is removed.
fn ample() -> Quota {
    quota("10000/week burst 500000")
}

fn limiter(names: &[&str], quota: Quota) -> Limiter {
    let policies = names.iter().map(|name| Policy::new(*name, quota));
    stores::limiter(Limiter::builder(), policies)
}

/// Allocations per decision, once the first decisions have allocated what stays.
fn each<F: Future>(runtime: &Runtime, what: &str, mut decide: impl FnMut() -> F) -> f64 {
    for _ in 0..100 {
        runtime.block_on(decide());
    }
    let counted = measure(|| {
        runtime.block_on(async {
            for _ in 0..TIMES {
                decide().await;
            }
        });
    });
    // Tokio's own: it keeps a list of those that yield.
    let turns = measure(|| {
        runtime.block_on(async {
            for _ in 0..TIMES {
                tokio::task::coop::consume_budget().await;
            }
        });
    });
    let own = counted.count_total.saturating_sub(turns.count_total);
    let each = own as f64 / TIMES as f64;
    let bytes = counted.bytes_total / TIMES;
    println!("{what}: {each} allocations a decision, {bytes} bytes");
    each
}

#[test]
fn a_known_key_is_evaluated_and_rejected_in_process_without_allocating() {
    for (quota, admits) in [(ample(), true), (quota("1/week"), false)] {
        let limiter = limiter(&["one"], quota);
        let check = async || limiter.check(Key::new("alice")).await.is_admitted();
        assert!(current_thread().block_on(check()));
        let decide = async || assert_eq!(check().await, admits);
        let what = format!("in process, one policy, admitted: {admits}");
        assert_eq!(each(&current_thread(), &what, decide), 0.0);
    }
}

#[test]
fn a_decision_that_metrics_count_allocates_nothing_more() {
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    let metrics = tollgate::metrics::Metrics::with_recorder("api", recorder);
    let metrics = Arc::new(metrics);
    for (quota, admits) in [(ample(), true), (quota("1/week"), false)] {
        let builder = Limiter::builder().observe(metrics.clone());
        let limiter = builder.policy(Policy::new("one", quota)).built();
        let check = async || limiter.check(Key::new("alice")).await.is_admitted();
        assert!(current_thread().block_on(check()));
        let decide = async || assert_eq!(check().await, admits);
        let what = format!("with metrics, admitted: {admits}");
        let each = each(&current_thread(), &what, decide);
        // One decision in 64 is timed, and the recorder keeps 64 times in a block.
        assert!(each <= 2.0 / 1_000.0, "{each}");
    }
}

#[test]
fn three_policies_with_one_key_allocate_next_to_nothing() {
    let limiter = limiter(&["one", "two", "three"], ample());
    let check = async || assert!(limiter.check(Key::new("alice")).await.is_admitted());
    let each = each(&current_thread(), "in process, three policies", check);
    assert!(each <= MAX_THREE, "{each}");
}

#[test]
fn a_request_through_the_layer_allocates_little() {
    let bare = service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(String::new())));
    let runtime = current_thread();
    // What the request and the service take by themselves.
    let without = each(&runtime, "a bare service", || call(bare, 200));
    for (what, quota, status, most) in [
        ("admitted", ample(), 200, MAX_ADMITTED),
        ("rejected", quota("1/week"), 429, MAX_REJECTED),
    ] {
        let layer = RateLimitLayer::builder().policy(Policy::new("peer", quota));
        let service = layer.built().layer(bare);
        runtime.block_on(call(service.clone(), 200));
        let case = format!("through the layer, {what}");
        let with = each(&runtime, &case, || call(service.clone(), status));
        assert!(
            with - without <= most,
            "{what}: {with}, and {without} without"
        );
    }
}

async fn call<S, B>(mut service: S, status: u16)
where
    S: Service<Request<()>, Response = Response<B>, Error = Infallible>,
{
    let mut request = Request::new(());
    let peer = PeerAddr(SocketAddr::from(([192, 0, 2, 1], 4321)));
    request.extensions_mut().insert(peer);
    let Ok(_) = std::future::poll_fn(|cx| service.poll_ready(cx)).await;
    let Ok(response) = service.call(request).await;
    assert_eq!(response.status(), status);
}

/// Measured, with a little room for what other dependencies may do.
const MAX_THREE: f64 = 4.0;
const MAX_ADMITTED: f64 = 6.0;
const MAX_REJECTED: f64 = 5.0;

#[test]
fn many_values_of_binary_metadata_are_compared_without_keeping_them() {
    let request = Request::get("/").header("x-tenant-bin", ",".repeat(60_000));
    let (parts, ()) = request.body(()).expect("a request").into_parts();
    let tenant = extract::header("x-tenant-bin");
    let counted = measure(|| assert_eq!(tenant.extract(&parts), Extracted::Absent));
    assert!(counted.bytes_max < 1_000, "{counted:?}");
}

/// Of the strategies that store each charge.
#[test]
fn a_large_cost_takes_no_more_memory_in_process_than_a_small_one() {
    let rate = quota("100000/week");
    let policies = [
        Policy::new("log", rate).strategy(SlidingLog),
        Policy::new("list", rate).strategy(ListWindow),
        Policy::new("permits", Quota::concurrent(10_000)).strategy(Concurrency::new()),
    ];
    for policy in policies {
        let capacity = policy.quota().capacity();
        let (limiter, runtime) = (Limiter::builder().policy(policy).built(), current_thread());
        let admit = async |key, cost| {
            let result = limiter.admit(Key::new(key)).cost(cost).await;
            assert!(result.is_ok());
        };
        runtime.block_on(admit("first", 1));
        let [few, many] = [("few", 1), ("many", capacity)].map(|(key, cost)| {
            let counted = measure(|| runtime.block_on(admit(key, cost)));
            counted.bytes_total
        });
        assert!(many <= few + 1_000, "{many} bytes, and {few} for one unit");
    }
}

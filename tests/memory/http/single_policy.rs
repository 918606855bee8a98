//! A layer with one policy responds as one with settings beside it that change nothing. The in-process store charges one
//! existing key more directly than several.

use crate::http::support::*;
use proptest::prelude::*;

/// What a handler does with its admission.
async fn handle(admission: Admission, request: Request<Body>) -> String {
    let seen = || format!("{:?} {:?}", admission, admission.remaining("p"));
    if request.uri().path() == "/" {
        return String::new();
    }
    let before = seen();
    let policy = admission.policy("p").expect("a policy");
    match request.uri().path() {
        "/charge" => policy.charge(2).await.expect("a charge"),
        "/refund" => drop(policy.refund(1).await.expect("a refund")),
        "/settle" => policy.settle(3).await.expect("a settlement"),
        "/keep" => {
            // Another task still has it when the response gets its fields.
            tokio::spawn(async move { policy.refund(0).await });
            return before;
        }
        _ => return before,
    }
    before + &seen()
}

fn policy(strategy: usize) -> Policy {
    let policy = Policy::new("p", quota("7/min")).key(extract::header("x-key"));
    let policy = match strategy {
        0 => policy.strategy(Gcra),
        1 => policy.strategy(TokenBucket),
        2 => policy.strategy(FixedWindow),
        3 => policy.strategy(SlidingWindow::new()),
        4 => policy.strategy(SlidingLog),
        _ => policy.strategy(CalendarWindow::utc()),
    };
    policy.cost_with(|parts| {
        let cost = parts
            .headers
            .get("x-cost")
            .and_then(|cost| cost.to_str().ok());
        cost.and_then(|cost| cost.parse().ok()).unwrap_or(1)
    })
}

/// An application behind a layer of one policy, and its clock.
fn app(policy: Policy, headers: RateLimitHeaders) -> (RateLimitLayer, Router, ManualClock) {
    let (store, clock) = store();
    let layer = RateLimitLayer::builder().store(store).policy(policy);
    let layer = layer.built().headers(headers);
    let routes = ["/", "/look", "/charge", "/refund", "/settle", "/keep"];
    let routes = routes.into_iter().fold(Router::new(), |router, path| {
        router.route(path, get(handle))
    });
    (layer.clone(), routes.layer(layer), clock)
}

#[derive(Clone, Debug)]
struct Step {
    pause: u64,
    key: usize,
    cost: u64,
    path: &'static str,
    headless: bool,
}

fn step() -> impl Strategy<Value = Step> {
    const PATHS: &[&str] = &["/", "/look", "/charge", "/refund", "/settle", "/keep"];
    let part = (0_u64..20_000_000, 0_usize..3, 0_u64..9);
    (part, prop::sample::select(PATHS), 0_u8..12).prop_map(|((pause, key, cost), path, odd)| Step {
        pause,
        key,
        cost,
        path,
        headless: odd == 0,
    })
}

async fn ask(app: &Router, step: &Step) -> TestResponse {
    let mut request = Request::get(step.path).header("x-cost", step.cost);
    if !step.headless {
        request = request.header("x-key", format!("k{}", step.key));
    }
    send(app, request.body(Body::empty()).expect("a request")).await
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn single_policy_and_general_evaluation_give_the_same_responses(
        strategy in 0_usize..6,
        headers in prop::sample::select(vec![RateLimitHeaders::draft(), RateLimitHeaders::none(), RateLimitHeaders::x_ratelimit()]),
        steps in prop::collection::vec(step(), 1..40),
    ) {
        current_thread().block_on(async {
            let (plain, one, clock) = app(policy(strategy), headers.clone());
            // Each request might have its own quota, so that the general path is taken.
            let (full, other, other_clock) = app(policy(strategy).quota_with(|_| None), headers);
            for step in &steps {
                for clock in [&clock, &other_clock] {
                    clock.advance(Duration::from_micros(step.pause));
                }
                prop_assert_eq!(ask(&one, step).await, ask(&other, step).await);
                let key = Key::new(format!("k{}", step.key));
                let (parts, ()) = Request::new(()).into_parts();
                let checked = [plain.limiter().check(key).parts(&parts).await, full.limiter().check(key).parts(&parts).await];
                let [checked, as_well] = checked.map(|decision| format!("{decision:?}"));
                prop_assert_eq!(checked, as_well);
                let seen = [plain.limiter().peek(key).parts(&parts).await.expect("a response"), full.limiter().peek(key).parts(&parts).await.expect("a response")];
                let [seen, as_well] = seen.map(|decision| format!("{decision:?}"));
                prop_assert_eq!(seen, as_well);
            }
            Ok(())
        })?;
    }
}

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

fn policy(strategy: StrategyKind) -> Policy {
    let policy = strategy.policy("p", "7/min").key(extract::header("x-key"));
    policy.cost_with(|parts| {
        let cost = parts.headers.get("x-cost");
        let cost = cost.and_then(|cost| cost.to_str().ok()?.parse().ok());
        cost.unwrap_or(1)
    })
}

/// An application behind a layer of one policy, and its clock.
fn app(policy: Policy, headers: RateLimitHeaders) -> (RateLimitLayer, Router, ManualClock) {
    let (store, clock) = store();
    let layer = RateLimitLayer::builder().store(store).policy(policy);
    let layer = layer.built().headers(headers);
    let routes = PATHS.iter();
    let routes = routes.fold(Router::new(), |router, path| {
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

const PATHS: &[&str] = &["/", "/look", "/charge", "/refund", "/settle", "/keep"];

fn step() -> impl Strategy<Value = Step> {
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
    send(app, empty(request)).await
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn single_policy_and_general_evaluation_give_the_same_responses(
        strategy in prop::sample::select(&StrategyKind::ALL[..]),
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
                let parts = head(Request::get("/"));
                let mut decided = Vec::new();
                for limiter in [plain.limiter(), full.limiter()] {
                    let checked = limiter.check(key).parts(&parts).await;
                    let seen = limiter.peek(key).parts(&parts).await.expect("a response");
                    decided.push(format!("{checked:?}, {seen:?}"));
                }
                prop_assert_eq!(&decided[0], &decided[1]);
            }
            Ok(())
        })?;
    }
}

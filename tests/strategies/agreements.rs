//! Both stores say the same, and so do requests at once and one by one; what a request costs is what it says.

use std::time::Duration;

use tollgate::{Decision, Key, Limiter, Policy, RateLimitLayer, Refund, Retry, extract};
use tower::{Layer, ServiceExt};

use crate::{
    properties::{What, any_by, check, from_tasks, quota_of, quotas, runtime, steps},
    support::{By, KEY, START, World, ask, counted, fresh_key, left, ms},
};

/// What both stores must tell: equal counts, and waits within 2 ms.
#[derive(Debug)]
struct Told {
    counts: Vec<u64>,
    waits: Vec<Option<Duration>>,
}

impl Told {
    fn of(decision: &Decision) -> Self {
        let verdict = decision.verdicts().next().expect("a verdict");
        Self {
            counts: vec![decision.admitted(), verdict.remaining()],
            waits: vec![verdict.retry_after(), Some(verdict.reset_after())],
        }
    }

    fn agrees(&self, other: &Self) -> bool {
        let near = |pair: (&Option<Duration>, &Option<Duration>)| match pair {
            (Some(a), Some(b)) => a.abs_diff(*b) <= ms(2),
            (None, None) => true,
            _ => false,
        };
        self.counts == other.counts && self.waits.iter().zip(&other.waits).all(near)
    }
}

async fn tell(limiter: &Limiter, key: Key, what: &What, charged: &mut Vec<Decision>) -> Vec<Told> {
    let mut told = Vec::new();
    match what {
        What::Take { n, cost } => {
            let decision = limiter.check(key).cost(*cost).times(*n).await;
            told.push(Told::of(&decision));
            charged.push(decision);
        }
        What::Force(units) => charged.push(limiter.charge(key, *units).await),
        What::Give { of, units } if !charged.is_empty() => {
            let place = of.index(charged.len());
            let given = charged[place].refund(*units).await;
            told.push(Told {
                counts: given.expect("a refund").iter().map(Refund::units).collect(),
                waits: Vec::new(),
            });
        }
        What::Reset => drop(limiter.reset(key).await),
        What::Give { .. } | What::Look => {}
    }
    told.push(Told::of(&limiter.peek(key).cost(2).await));
    told
}

#[test]
fn memory_and_redis_agree_step_by_step() {
    let runtime = runtime();
    let worlds = World::both();
    check(
        150,
        (any_by(), quotas(), steps(true)),
        |(by, quota, steps)| {
            let (text, _) = quota_of(by, quota);
            let key = fresh_key();
            runtime.block_on(async {
                let limiters = [0, 1].map(|i: usize| worlds[i].single(by, &text));
                let mut charged = [Vec::new(), Vec::new()];
                let mut now = START;
                for (number, step) in steps.iter().enumerate() {
                    now += step.wait_ms * 1_000;
                    let mut told = Vec::new();
                    for i in 0..2 {
                        worlds[i].set(now);
                        told.push(tell(&limiters[i], key, &step.what, &mut charged[i]).await);
                    }
                    let all = told[0].iter().zip(&told[1]).all(|(a, b)| a.agrees(b));
                    assert!(all, "{by:?} {text}, step {number}, {step:?}: {told:#?}");
                }
            });
        },
    );
}

#[test]
fn requests_at_once_are_admitted_as_requests_one_by_one() {
    let runtime = runtime();
    for world in World::both() {
        let cases = (any_by(), quotas(), steps(false), 1..=24_u64, 1..=4_u64);
        check(60, cases, |(by, quota, steps, n, cost)| {
            let (text, _) = quota_of(by, quota);
            let limiter = world.single(by, &text);
            let [apart, together] = [fresh_key(), fresh_key()];
            runtime.block_on(async {
                // Both keys have seen the same.
                for key in [apart, together] {
                    for step in steps
                        .iter()
                        .filter(|step| matches!(step.what, What::Take { .. }))
                    {
                        world.set(START + step.wait_ms * 1_000);
                        let What::Take { n, cost } = step.what else {
                            continue;
                        };
                        let _ = limiter.check(key).cost(cost).times(n).await;
                    }
                    world.set(START + 3_500_000);
                    let _ = limiter.check(key).cost(1).await;
                }
                let mut one_by_one = Vec::new();
                for _ in 0..n {
                    one_by_one.push(limiter.check(apart).cost(cost).await);
                }
                let at_once = from_tasks(&limiter, together, n, cost).await;
                let seen = |decisions: &[Decision]| {
                    let mut seen: Vec<_> = decisions
                        .iter()
                        .map(|d| {
                            (
                                d.is_admitted(),
                                d.verdicts().next().expect("a verdict").remaining(),
                            )
                        })
                        .collect();
                    seen.sort_unstable();
                    seen
                };
                assert_eq!(
                    seen(&at_once),
                    seen(&one_by_one),
                    "{by:?} on {}",
                    world.name()
                );
            });
        });
    }
}

#[tokio::test]
async fn what_costs_nothing_passes_free_even_when_all_is_used_up() {
    for world in World::both() {
        for by in By::ALL {
            let limiter = world.limiter([by.policy(&format!("{by:?}"), "10/min")]);
            assert_eq!(ask(&limiter, KEY, 10).await, 10);
            // Into debt, too.
            assert!(counted(&limiter.charge(KEY, 3).await));
            for _ in 0..20 {
                let free = limiter.check(KEY).cost(0).await;
                assert!(counted(&free), "{by:?} on {}", world.name());
                assert_eq!(free.retry(), Retry::Now);
            }
            assert_eq!(limiter.check(KEY).cost(0).times(50).await.admitted(), 50);
            assert!(!counted(&limiter.check(KEY).await));
            let seen = limiter.reset(KEY).await;
            assert_eq!(seen.verdicts().next().expect("a verdict").limit(), 10);
            assert_eq!(left(&limiter, KEY).await, 10);
        }
    }
}

#[tokio::test]
async fn a_cost_above_the_capacity_is_refused_for_ever_and_charges_nothing() {
    for world in World::both() {
        for by in By::ALL {
            let limiter = world.limiter([by.policy(&format!("{by:?}"), "10/min")]);
            for cost in [11, 1_000, u64::from(u32::MAX)] {
                let refused = limiter.check(KEY).cost(cost).await;
                assert!(!counted(&refused));
                assert_eq!(refused.retry(), Retry::Never, "{by:?}");
                let refused = refused.into_result().expect_err("a refusal");
                assert_eq!(refused.retry_after(), None);
            }
            assert_eq!(left(&limiter, KEY).await, 10, "{by:?} on {}", world.name());
            assert!(counted(&limiter.check(KEY).cost(10).await));
            // Used up, it is still never, and not after some time.
            assert_eq!(
                limiter.check(KEY).cost(11).await.retry(),
                Retry::Never,
                "{by:?}"
            );
        }
    }
}

#[tokio::test]
async fn a_closure_over_the_request_says_what_it_costs() {
    use http::{Request, Response, StatusCode};

    for world in World::both() {
        for by in By::ALL {
            let policy: Policy = by
                .policy(&format!("{by:?}"), "10/min")
                .key(extract::global());
            let policy = policy.cost_with(|parts| match parts.uri.path() {
                "/free" => 0,
                "/video" => 4,
                "/library" => 11,
                _ => 1,
            });
            let layer = RateLimitLayer::new(world.limiter([policy]));
            let service = layer.layer(tower::service_fn(async |_: Request<()>| {
                Ok::<_, std::convert::Infallible>(Response::new(String::new()))
            }));
            let status = async |path: &str| {
                let request = Request::get(path).body(()).expect("a request");
                service.clone().oneshot(request).await.expect("a response")
            };
            let mut codes = Vec::new();
            for path in [
                "/video", "/video", "/video", "/free", "/", "/", "/", "/free",
            ] {
                codes.push(status(path).await.status().as_u16());
            }
            let expected = [200, 200, 429, 200, 200, 200, 429, 200];
            assert_eq!(codes, expected, "{by:?} on {}", world.name());
            let never = status("/library").await;
            assert_eq!(never.status(), StatusCode::TOO_MANY_REQUESTS);
            assert!(
                !never.headers().contains_key("retry-after"),
                "it can't come true"
            );
        }
    }
}

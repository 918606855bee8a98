//! What holds in any traffic.

use std::{collections::BTreeMap, time::Duration};

use proptest::{prelude::*, test_runner::TestRunner};
use tokio::{runtime::Runtime, task::JoinSet};
use tollgate::{Decision, Key, Limiter, Policy, RateLimitLayer, Retry, Source, extract};
use tower::{Layer, ServiceExt};

use crate::support::{By, KEY, START, World, ask, counted, fresh_key, left, ms};

const PERIOD_MS: u64 = 1_000;

/// One step of random traffic, `wait_ms` after the one before.
#[derive(Clone, Debug)]
struct Step {
    wait_ms: u64,
    what: What,
}

#[derive(Clone, Debug)]
enum What {
    /// So many requests at once.
    Take {
        n: u64,
        cost: u64,
    },
    Force(u64),
    /// Gives units back of one of the decisions so far.
    Give {
        of: prop::sample::Index,
        units: u64,
    },
    Look,
    Reset,
}

fn quotas() -> impl Strategy<Value = (u64, Option<u64>)> {
    (1..=20_u64, prop::option::of(1..=30_u64))
}

fn waits() -> impl Strategy<Value = u64> {
    prop_oneof![3 => Just(0), 4 => 1..=120_u64, 2 => 100..=999_u64, 1 => 1_000..=2_500_u64]
}

fn steps(resets: bool) -> impl Strategy<Value = Vec<Step>> {
    let what = prop_oneof![
        6 => (1..=12_u64, 0..=4_u64).prop_map(|(n, cost)| What::Take { n, cost }),
        1 => (1..=12_u64).prop_map(What::Force),
        3 => (any::<prop::sample::Index>(), 1..=6_u64).prop_map(|(of, units)| What::Give { of, units }),
        1 => Just(What::Look),
        1 => Just(if resets { What::Reset } else { What::Look }),
    ];
    let step = (waits(), what).prop_map(|(wait_ms, what)| Step { wait_ms, what });
    prop::collection::vec(step, 1..40)
}

/// The quota as text: a burst only where it has a meaning.
fn quota_of(by: By, (requests, burst): (u64, Option<u64>)) -> (String, u64) {
    let burst = burst.filter(|_| by.has_burst());
    let text = burst.map_or(String::new(), |burst| format!(" burst {burst}"));
    let capacity = burst.unwrap_or(requests);
    (format!("{requests}/{PERIOD_MS}ms{text}"), capacity)
}

fn check<S: Strategy>(cases: u32, strategy: S, test: impl Fn(S::Value)) {
    let config = ProptestConfig {
        cases,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let outcome = TestRunner::new(config).run(&strategy, |value| {
        test(value);
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}

fn runtime() -> Runtime {
    Runtime::new().expect("a runtime")
}

/// Sends n requests from as many tasks.
async fn from_tasks(limiter: &Limiter, key: Key, n: u64, cost: u64) -> Vec<Decision> {
    let mut tasks = JoinSet::new();
    for _ in 0..n {
        tasks.spawn(limiter.check(key).cost(cost).into_future());
    }
    tasks.join_all().await
}

/// What was admitted and not given back.
#[derive(Debug)]
struct Net {
    at_ms: u64,
    /// When its window ends.
    ends_ms: u64,
    units: u64,
    decision: Decision,
}

/// Sends the traffic, and returns what of it was admitted, net.
async fn traffic(world: &World, limiter: &Limiter, key: Key, steps: &[Step]) -> Vec<Net> {
    let mut now = START / 1_000;
    world.set(START);
    let (mut taken, mut forced): (Vec<Net>, Vec<Decision>) = (Vec::new(), Vec::new());
    for step in steps {
        now += step.wait_ms;
        world.set(now * 1_000);
        match &step.what {
            What::Take { n, cost } => {
                for decision in from_tasks(limiter, key, *n, *cost).await {
                    assert_eq!(decision.source(), Source::Store, "{decision:?}");
                    if decision.is_admitted() {
                        let verdict = decision.verdicts().next().expect("a verdict");
                        taken.push(Net {
                            at_ms: now,
                            ends_ms: now + verdict.reset_after().as_millis() as u64,
                            units: *cost,
                            decision,
                        });
                    }
                }
            }
            What::Force(units) => forced.push(limiter.charge(key, *units).await),
            What::Give { of, units } if !taken.is_empty() || !forced.is_empty() => {
                let place = of.index(taken.len() + forced.len());
                let decision = match place.checked_sub(taken.len()) {
                    None => &mut taken[place].decision,
                    Some(place) => &mut forced[place],
                };
                let given = limiter.refund(decision, *units).await.expect("a refund")[0];
                if let Some(net) = taken.get_mut(place) {
                    assert!(given <= net.units, "more given back than taken");
                    net.units -= given;
                }
            }
            What::Give { .. } | What::Look | What::Reset => drop(limiter.peek(key).await),
        }
    }
    taken
}

/// Checks the bound of a strategy on what was admitted, net.
fn check_bound(by: By, (requests, _): (u64, Option<u64>), capacity: u64, taken: &[Net]) {
    // The most that was admitted in any span of less than so many ms.
    let most_within = |span_ms: u64| {
        let from = taken.iter().map(|first| first.at_ms);
        let within = from.map(|from| {
            let inside = taken
                .iter()
                .filter(|net| (from..from + span_ms).contains(&net.at_ms));
            inside.map(|net| net.units).sum::<u64>()
        });
        within.max().unwrap_or(0)
    };
    let by_window = |window: &dyn Fn(&Net) -> u64| {
        let mut windows = BTreeMap::<u64, u64>::new();
        for net in taken.iter().filter(|net| net.units > 0) {
            *windows.entry(window(net)).or_default() += net.units;
        }
        windows
    };
    match by {
        By::Gcra | By::Bucket => {
            for first in taken {
                for last in taken.iter().filter(|last| last.at_ms >= first.at_ms) {
                    let span = last.at_ms - first.at_ms;
                    let most = capacity + span * requests / PERIOD_MS;
                    let inside = taken
                        .iter()
                        .filter(|net| (first.at_ms..=last.at_ms).contains(&net.at_ms));
                    let all: u64 = inside.map(|net| net.units).sum();
                    assert!(all <= most, "{by:?}: {all} in {span} ms");
                }
            }
        }
        By::Fixed | By::List => {
            let windows = by_window(&|net| net.ends_ms);
            assert!(
                windows.values().all(|units| *units <= requests),
                "{by:?}: {windows:?}"
            );
            let ends: Vec<_> = windows.keys().collect();
            assert!(
                ends.windows(2).all(|pair| pair[1] - pair[0] >= PERIOD_MS),
                "{by:?}: {ends:?}"
            );
        }
        By::Calendar | By::Sliding(1) => {
            let windows = by_window(&|net| net.at_ms / PERIOD_MS);
            assert!(
                windows.values().all(|units| *units <= requests),
                "{by:?}: {windows:?}"
            );
        }
        By::Log => assert!(
            most_within(PERIOD_MS) <= requests,
            "{by:?}: {}",
            most_within(PERIOD_MS)
        ),
        By::Sliding(buckets) => {
            let span = PERIOD_MS - PERIOD_MS / u64::from(buckets);
            assert!(
                most_within(span) <= requests,
                "{by:?}: {}",
                most_within(span)
            );
        }
    }
}

fn any_by() -> impl Strategy<Value = By> {
    prop::sample::select(&By::ALL[..])
}

#[test]
fn no_traffic_gets_more_than_the_strategy_allows_refunds_and_debts_included() {
    let runtime = runtime();
    for world in World::both() {
        check(
            120,
            (any_by(), quotas(), steps(false)),
            |(by, quota, steps)| {
                let (text, capacity) = quota_of(by, quota);
                let limiter = world.single(by, &text);
                let taken = runtime.block_on(traffic(&world, &limiter, fresh_key(), &steps));
                check_bound(by, quota, capacity, &taken);
            },
        );
    }
}

/// The microsecond before, and the instant itself.
#[test]
fn retry_after_is_honest_for_every_strategy_and_every_cost() {
    let runtime = runtime();
    for world in World::both() {
        let cases = (any_by(), quotas(), steps(false), 1..=30_u64, 0..1_000_u64);
        check(150, cases, |(by, quota, steps, cost, micros)| {
            let (text, capacity) = quota_of(by, quota);
            let cost = 1 + cost % capacity;
            let limiter = world.single(by, &text);
            let key = fresh_key();
            runtime.block_on(async {
                traffic(&world, &limiter, key, &steps).await;
                world.advance(Duration::from_micros(micros));
                let mut refused = limiter.check(key).cost(cost).await;
                for _ in 0..100 {
                    if !counted(&refused) {
                        break;
                    }
                    refused = limiter.check(key).cost(cost).await;
                }
                let Retry::After(wait) = refused.retry() else {
                    panic!("{refused:?}");
                };
                assert!(!wait.is_zero());
                let then = world.now() + wait.as_micros() as u64;
                for early in [2_001, 1_000, 1] {
                    if wait >= Duration::from_micros(early) {
                        world.set(then - early);
                        let refused = limiter.check(key).cost(cost).await;
                        assert!(!counted(&refused), "{by:?}: {early} µs early: {refused:?}");
                    }
                }
                world.set(then);
                let admitted = limiter.check(key).cost(cost).await;
                assert!(
                    counted(&admitted),
                    "{by:?} on {}: {admitted:?}",
                    world.name()
                );
            });
        });
    }
}

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
            let given = limiter.refund(&mut charged[place], *units).await;
            told.push(Told {
                counts: given.expect("a refund"),
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

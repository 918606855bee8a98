//! What holds in any traffic.

use std::collections::BTreeMap;

use proptest::{prelude::*, test_runner::TestRunner};
use tokio::{runtime::Runtime, task::JoinSet};
use tollgate::{Decision, DecisionSource, Key, Limiter};

use super::support::{START, StrategyKind, World, charge, fresh_key};

const PERIOD_MS: u64 = 1_000;

/// One step of random traffic, `wait_ms` after the one before.
#[derive(Clone, Debug)]
struct Step {
    wait_ms: u64,
    what: What,
}

#[derive(Clone, Debug)]
enum What {
    /// This many requests at once.
    Take {
        n: u64,
        cost: u64,
    },
    Force(u64),
    /// Refunds units of one of the decisions so far.
    Give {
        of: prop::sample::Index,
        units: u64,
    },
    Look,
}

fn quotas() -> impl Strategy<Value = (u64, Option<u64>)> {
    (1..=20_u64, prop::option::of(1..=30_u64))
}

fn waits() -> impl Strategy<Value = u64> {
    prop_oneof![3 => Just(0), 4 => 1..=120_u64, 2 => 100..=999_u64, 1 => 1_000..=2_500_u64]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let what = prop_oneof![
        6 => (1..=12_u64, 0..=4_u64).prop_map(|(n, cost)| What::Take { n, cost }),
        1 => (1..=12_u64).prop_map(What::Force),
        3 => (any::<prop::sample::Index>(), 1..=6_u64).prop_map(|(of, units)| What::Give { of, units }),
        2 => Just(What::Look),
    ];
    let step = (waits(), what).prop_map(|(wait_ms, what)| Step { wait_ms, what });
    prop::collection::vec(step, 1..40)
}

/// The quota as text: a burst only where it has a meaning.
fn quota_of(strategy: StrategyKind, (requests, burst): (u64, Option<u64>)) -> (String, u64) {
    let burst = burst.filter(|_| strategy.has_burst());
    let text = burst.map_or(String::new(), |burst| format!(" burst {burst}"));
    let capacity = burst.unwrap_or(requests);
    (format!("{requests}/{PERIOD_MS}ms{text}"), capacity)
}

pub(crate) fn check<S: Strategy>(cases: u32, strategy: S, test: impl Fn(S::Value)) {
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

pub(crate) fn runtime() -> Runtime {
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

/// What was admitted and not refunded.
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
                    assert_eq!(decision.source(), DecisionSource::Store, "{decision:?}");
                    if decision.is_admitted() {
                        let policy = decision.policies().next().expect("a policy");
                        taken.push(Net {
                            at_ms: now,
                            ends_ms: now + policy.reset_after().as_millis() as u64,
                            units: *cost,
                            decision,
                        });
                    }
                }
            }
            What::Force(units) => forced.push(charge(limiter, key, *units).await),
            What::Give { of, units } if !taken.is_empty() || !forced.is_empty() => {
                let place = of.index(taken.len() + forced.len());
                let decision = match place.checked_sub(taken.len()) {
                    None => &mut taken[place].decision,
                    Some(place) => &mut forced[place],
                };
                let given = decision.refund(*units).await.expect("a refund")[0].units();
                if let Some(net) = taken.get_mut(place) {
                    assert!(given <= net.units, "more given back than taken");
                    net.units -= given;
                }
            }
            What::Give { .. } | What::Look => drop(limiter.peek(key).await.expect("a response")),
        }
    }
    taken
}

/// Checks the bound of a strategy on what was admitted, net.
fn check_bound(
    strategy: StrategyKind,
    (requests, _): (u64, Option<u64>),
    capacity: u64,
    taken: &[Net],
) {
    // The most that was admitted in any span of less than this many ms.
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
    match strategy {
        StrategyKind::Gcra | StrategyKind::Bucket => {
            for first in taken {
                for last in taken.iter().filter(|last| last.at_ms >= first.at_ms) {
                    let span = last.at_ms - first.at_ms;
                    let most = capacity + span * requests / PERIOD_MS;
                    let inside = taken
                        .iter()
                        .filter(|net| (first.at_ms..=last.at_ms).contains(&net.at_ms));
                    let all: u64 = inside.map(|net| net.units).sum();
                    assert!(all <= most, "{strategy:?}: {all} in {span} ms");
                }
            }
        }
        StrategyKind::Fixed | StrategyKind::List => {
            let windows = by_window(&|net| net.ends_ms);
            assert!(
                windows.values().all(|units| *units <= requests),
                "{strategy:?}: {windows:?}"
            );
            let ends: Vec<_> = windows.keys().collect();
            assert!(
                ends.windows(2).all(|pair| pair[1] - pair[0] >= PERIOD_MS),
                "{strategy:?}: {ends:?}"
            );
        }
        StrategyKind::Calendar | StrategyKind::Sliding(1) => {
            let windows = by_window(&|net| net.at_ms / PERIOD_MS);
            assert!(
                windows.values().all(|units| *units <= requests),
                "{strategy:?}: {windows:?}"
            );
        }
        StrategyKind::Log => assert!(
            most_within(PERIOD_MS) <= requests,
            "{strategy:?}: {}",
            most_within(PERIOD_MS)
        ),
        StrategyKind::Sliding(buckets) => {
            let span = PERIOD_MS - PERIOD_MS / u64::from(buckets);
            assert!(
                most_within(span) <= requests,
                "{strategy:?}: {}",
                most_within(span)
            );
        }
    }
}

fn any_strategy() -> impl Strategy<Value = StrategyKind> {
    prop::sample::select(&StrategyKind::ALL[..])
}

#[test]
fn no_traffic_gets_more_than_the_strategy_allows_refunds_and_debts_included() {
    let runtime = runtime();
    for world in World::both() {
        check(
            120,
            (any_strategy(), quotas(), steps()),
            |(strategy, quota, steps)| {
                let (text, capacity) = quota_of(strategy, quota);
                let limiter = world.single(strategy, &text);
                let taken = runtime.block_on(traffic(&world, &limiter, fresh_key(), &steps));
                check_bound(strategy, quota, capacity, &taken);
            },
        );
    }
}

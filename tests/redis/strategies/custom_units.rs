//! What a store and a custom strategy may assume of the units that they are called with.

use tollgate::{
    store::{CounterResult, OpResult, Units},
    strategy::{RuleInfo, Snapshot},
};
use tollgate_tests::prelude::*;

use super::{costs::edges, support::Altered};

/// A store that records the units of its operations, and admits every request, but reports the state under so many policies only.
#[derive(Clone, Debug, Default)]
struct Forgetful(usize, Arc<Mutex<Vec<u64>>>);

impl Store for Forgetful {
    fn register(&self, policy: &str, rule: Arc<dyn Rule>) -> Result<LimitHandle, InvalidValue> {
        Ok(LimitHandle::new(policy, rule, ()))
    }

    fn execute(&self, _op: Op, counters: &[CounterOp<'_>]) -> StoreResponse {
        let units = counters.iter().map(|counter| counter.units.get());
        self.1.lock().expect("a lock").extend(units);
        let results = counters.iter().take(self.0).map(|counter| {
            assert_eq!(counter.caller, counter.key);
            CounterResult::new(counter.units.get(), Snapshot::default())
        });
        StoreResponse::Ready(Ok(OpResult::new(Timestamp::default(), 1, results)))
    }

    fn callers(&self, _limit: &LimitHandle, _key: &Key) -> CallersFuture {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    fn execute_detached(&self, op: Op, counters: &[CounterOp<'_>]) {
        drop(self.execute(op, counters));
    }
}

fn policy(name: &str) -> Policy {
    StrategyKind::Gcra.policy(name, "10/min")
}

#[tokio::test]
async fn no_store_is_called_with_more_units_than_documented() {
    let store = Forgetful::default();
    let builder = Limiter::builder().store(store.clone());
    let limiter = stores::limiter(builder, [policy("p"), policy("q").shadow()]);
    for cost in edges() {
        let _ = limiter.check(KEY).cost(cost).times(cost).await;
        let _ = limiter.peek(KEY).cost(cost).await;
        let _ = limiter.charge(KEY, cost).await;
        let sent = std::mem::take(&mut *store.1.lock().expect("a lock"));
        assert_eq!(sent, [cost.min(Units::MAX.get()); 6], "{cost}");
    }
}

#[tokio::test]
async fn a_result_without_one_of_the_policies_is_a_store_error() {
    for reported in 0..=2 {
        let builder = Limiter::builder().store(Forgetful(reported, Arc::default()));
        let limiter = stores::limiter(builder, ["p", "q"].map(policy));
        let decision = limiter.check(KEY).await;
        let peeked = limiter.peek(KEY).await;
        match reported {
            2 => {
                assert!(matches!(decision.kind(), DecisionKind::Admitted));
                assert!(peeked.is_ok());
            }
            _ => {
                let kind = decision.kind();
                assert!(
                    matches!(kind, DecisionKind::StoreFailed(StoreError::Unsupported(_))),
                    "{reported} of 2: {kind:?}"
                );
                assert!(matches!(peeked, Err(CallError::Store(_))), "{peeked:?}");
            }
        }
    }
}

#[test]
fn a_capacity_that_no_cost_may_exceed_is_a_config_error() {
    for (capacity, fits) in [
        (999_999_999_999_999, true),
        (1_000_000_000_000_000, false),
        (u64::MAX, false),
    ] {
        let policy = Altered::policy("p", "1/min", Gcra, |altered| {
            altered.info = RuleInfo::new("z3", capacity);
        });
        let limiter = Limiter::builder().store(Forgetful::default());
        let limiter = limiter.policy(policy).build();
        assert_eq!(limiter.is_ok(), fits, "{capacity}");
        if let Err(error) = limiter {
            assert_eq!(error.expected(), "a capacity of at most 999999999999999");
        }
    }
}

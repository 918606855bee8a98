//! What a store and a custom strategy may assume of the units that they are called with.

use tollgate::{
    store::{CounterResult, OpResult, Units},
    strategy::{ErasedLocalRule, LuaScript, QuotaStatus, RuleInfo, Snapshot, Strategy},
};
use tollgate_tests::prelude::*;

use super::costs::EDGES;

/// A store that records its operations.
#[derive(Clone, Debug, Default)]
struct Recorder(Arc<Mutex<Vec<Units>>>);

impl Store for Recorder {
    fn register(&self, policy: &str, rule: Arc<dyn Rule>) -> Result<LimitHandle, InvalidValue> {
        Ok(LimitHandle::new(policy, rule, ()))
    }

    fn execute(&self, _op: Op, counters: &[CounterOp<'_>]) -> StoreResponse {
        let mut sent = self.0.lock().expect("a lock");
        sent.extend(counters.iter().map(|line| line.units));
        StoreResponse::Ready(Err(StoreError::Unsupported("counting")))
    }

    fn callers(&self, _limit: &LimitHandle, _key: &Key) -> CallersFuture {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    fn execute_detached(&self, op: Op, counters: &[CounterOp<'_>]) {
        drop(self.execute(op, counters));
    }
}

#[tokio::test]
async fn no_store_is_called_with_more_units_than_documented() {
    let recorder = Recorder::default();
    let limiter = Limiter::builder().store(recorder.clone());
    let policy = |name: &str| Policy::new(name, Quota::requests(10).per_minute());
    let limiter = limiter.policy(policy("p")).policy(policy("q").shadow());
    let limiter = limiter.build().expect("a limiter");
    for cost in EDGES {
        let _ = limiter.check(KEY).cost(cost).times(cost).await;
        let _ = limiter.peek(KEY).cost(cost).await;
        let _ = limiter.charge(KEY, cost).await;
        let sent = std::mem::take(&mut *recorder.0.lock().expect("a lock"));
        let expected = cost.min(Units::MAX.get());
        assert_eq!(
            sent.iter().map(|units| units.get()).collect::<Vec<_>>(),
            [expected; 6]
        );
    }
}

/// A store that admits every request, and reports the state under only some of its policies.
#[derive(Clone, Copy, Debug)]
struct Forgetful(usize);

impl Store for Forgetful {
    fn register(&self, policy: &str, rule: Arc<dyn Rule>) -> Result<LimitHandle, InvalidValue> {
        Ok(LimitHandle::new(policy, rule, ()))
    }

    fn execute(&self, _op: Op, counters: &[CounterOp<'_>]) -> StoreResponse {
        let results = counters.iter().take(self.0);
        let results = results.map(|counter| {
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

#[tokio::test]
async fn a_result_without_one_of_the_policies_is_a_store_error() {
    for reported in 0..=2 {
        let policy = |name: &str| Policy::new(name, Quota::requests(10).per_minute());
        let limiter = Limiter::builder().store(Forgetful(reported));
        let limiter = limiter.policy(policy("p")).policy(policy("q"));
        let limiter = limiter.build().expect("a limiter");
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

/// A strategy that counts nothing, of this capacity.
#[derive(Clone, Debug)]
struct OfCapacity(u64);

impl Strategy for OfCapacity {
    fn bind(&self, _quota: &Quota, _terms: &Terms) -> Result<Arc<dyn Rule>, InvalidValue> {
        Ok(Arc::new(self.clone()))
    }
}

impl Rule for OfCapacity {
    fn info(&self) -> RuleInfo {
        RuleInfo::new("z3", self.0)
    }

    fn status(&self, _snapshot: &Snapshot, _now: Timestamp, _cost: u64) -> QuotaStatus {
        QuotaStatus::new(self.0, RetryAfter::Now, secs(0))
    }

    fn script(&self) -> Option<LuaScript> {
        None
    }

    fn local_rule(&self) -> Option<ErasedLocalRule<'_>> {
        None
    }
}

#[test]
fn a_capacity_that_no_cost_may_exceed_is_a_config_error() {
    for (capacity, fits) in [
        (999_999_999_999_999, true),
        (1_000_000_000_000_000, false),
        (u64::MAX, false),
    ] {
        let policy = Policy::new("p", Quota::requests(1).per_minute());
        let limiter = Limiter::builder().store(Recorder::default());
        let limiter = limiter
            .policy(policy.strategy(OfCapacity(capacity)))
            .build();
        assert_eq!(limiter.is_ok(), fits, "{capacity}");
        if let Err(error) = limiter {
            assert_eq!(error.expected(), "a capacity of at most 999999999999999");
        }
    }
}

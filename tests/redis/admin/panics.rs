//! Changes in which a store panics.

use std::sync::Arc;

use http::StatusCode;
use serde_json::json;
use tollgate::{
    InvalidValue, Key, Limiter, MemoryStore,
    store::{CallersFuture, CounterOp, LimitHandle, Op, Store, StoreResponse},
    strategy::Rule,
};

use crate::admin::{
    log::Log,
    support::{self, Api},
};

/// Panics at each change by an operator.
#[derive(Clone, Debug, Default)]
struct Panics(MemoryStore);

impl Store for Panics {
    fn register(&self, policy: &str, rule: Arc<dyn Rule>) -> Result<LimitHandle, InvalidValue> {
        self.0.register(policy, rule)
    }

    fn execute(&self, op: Op, counters: &[CounterOp<'_>]) -> StoreResponse {
        let changes = [Op::Reset, Op::Refund, Op::Settle, Op::ForceAcquire];
        let is_change = changes.contains(&op);
        assert!(!is_change, "as the test expects: {op:?}");
        self.0.execute(op, counters)
    }

    fn execute_detached(&self, op: Op, counters: &[CounterOp<'_>]) {
        self.0.execute_detached(op, counters);
    }

    fn callers(&self, limit: &LimitHandle, key: &Key) -> CallersFuture {
        self.0.callers(limit, key)
    }
}

/// A limiter whose store panics at each change by an operator, and whose key `sk_1` has units in use.
pub(crate) async fn limiter() -> Limiter {
    let builder = Limiter::builder().store(Panics::default());
    let builder = support::policies()
        .into_iter()
        .fold(builder, |all, one| all.policy(one));
    let limiter = builder.build().expect("a limiter");
    let used = limiter.check(("api", Key::secret("sk_1"))).await;
    assert!(used.is_admitted());
    limiter
}

#[tokio::test]
async fn a_change_that_panics_is_logged_as_one_that_failed() {
    let api = Api::of(limiter().await);
    let log = Log::default();
    let _guard = log.info();
    let key = Key::secret("sk_1").as_str().replace('#', "hash:");
    for (change, policy) in [
        ("reset", "api"),
        ("credit", "api"),
        ("block", "blocked"),
        ("unblock", "blocked"),
    ] {
        let mut body = support::good_body(&format!("/{change}"));
        body["policy"] = json!(policy);
        let answer = api.post(&format!("/{change}"), &body).await;
        assert_eq!(answer.status, StatusCode::INTERNAL_SERVER_ERROR);
        let detail = answer.json["detail"].as_str().expect("a detail");
        assert!(detail.contains("panicked"), "{detail}");
        let lines = log.lines(&format!("change=\"{change}\""));
        assert_eq!(lines.len(), 1, "{}", log.text());
        for part in ["WARN", "user=\"ops\"", policy, &key, detail] {
            assert!(lines[0].contains(part), "{part} in {}", lines[0]);
        }
    }
}

//! Changes in which a store panics.

use tollgate_tests::prelude::*;

use crate::admin::support::{self, *};

/// A limiter whose store panics at each change by an operator, and whose key `sk_1` has units in use.
pub(crate) async fn limiter() -> Limiter {
    let store = StubStore::responding(|op| {
        let changes = [Op::Reset, Op::Refund, Op::Settle, Op::ForceAcquire];
        assert!(!changes.contains(&op), "as the test expects: {op:?}");
        None
    });
    let limiter = stores::limiter(Limiter::builder().store(store), support::policies());
    let used = limiter.check(("api", Key::secret("sk_1"))).await;
    assert!(used.is_admitted());
    limiter
}

#[tokio::test]
async fn a_change_that_panics_is_logged_as_one_that_failed() {
    let api = Api::of(limiter().await);
    let (log, _guard) = Log::of_info();
    let key = shown("sk_1");
    let of_list = [("block", "blocked"), ("unblock", "blocked")];
    for (change, policy) in [("reset", "api"), ("credit", "api")]
        .into_iter()
        .chain(of_list)
    {
        let mut body = support::good_body(&format!("/{change}"));
        body["policy"] = json!(policy);
        let answer = api.post(&format!("/{change}"), &body).await;
        assert_eq!(answer.status, StatusCode::INTERNAL_SERVER_ERROR);
        let detail = answer.json["detail"].as_str().expect("a detail");
        assert_contains(detail, ["panicked"]);
        let parts = ["WARN", "user=\"ops\"", policy, &key, detail];
        assert_logged(&log, &format!("change=\"{change}\""), parts);
    }
}

//! Limiters that share their metrics, at the same time or one after the other.

use tollgate_tests::prelude::*;

use crate::metrics::support::*;

/// The requests within and over the limits of a policy, and those that were admitted and rejected.
#[track_caller]
fn counted(observed: &Observed, policy: &str) -> [f64; 4] {
    let exposition = observed.exposition();
    let requests = |outcome| value(&exposition, &format!("requests_total outcome={outcome}"));
    let [within, near, over] = ["within", "near", "over"].map(|result| {
        let series = format!("policy_requests_total policy={policy} result={result}");
        value(&exposition, &series)
    });
    let (admitted, rejected) = (requests("admitted"), requests("rejected"));
    [within + near, over, admitted, rejected]
}

#[tokio::test]
async fn requests_of_two_limiters_are_counted_together_and_stay_counted() {
    let observed = Observed::default();
    let first = in_process(&observed, [daily("api", 5), daily("one", 100)]);
    let second = in_process(&observed, [daily("api", 2), daily("two", 100)]);
    let quota = || value_now(&observed, "policy_quota_units policy=api");
    assert_eq!(quota(), 2.0, "that of the limiter that was built last");
    send(&first, 7).await;
    send(&second, 3).await;
    assert_eq!(counted(&observed, "api"), [7.0, 3.0, 7.0, 3.0]);
    // The older one still counts when the newer is dropped.
    drop(second);
    assert_eq!(counted(&observed, "api"), [7.0, 3.0, 7.0, 3.0]);
    send(&first, 2).await;
    assert_eq!(counted(&observed, "api"), [7.0, 5.0, 7.0, 5.0]);
    // A limiter that is reconfigured is the last one again.
    let next = Limiter::builder().observe(observed.metrics.clone());
    let next = next.policy(daily("api", 9)).policy(daily("one", 100));
    first.reconfigure(next).expect("valid policies");
    assert_eq!(quota(), 9.0);
    drop(first);
    for _ in 0..2 {
        assert_eq!(counted(&observed, "api"), [7.0, 5.0, 7.0, 5.0]);
        assert_eq!(counted(&observed, "one")[..2], [9.0, 0.0]);
        assert_eq!(counted(&observed, "two")[..2], [3.0, 0.0]);
    }
    // The next one goes on with them.
    let third = in_process(&observed, [daily("api", 1)]);
    assert_eq!(counted(&observed, "api"), [7.0, 5.0, 7.0, 5.0]);
    send(&third, 3).await;
    assert_eq!(counted(&observed, "api"), [8.0, 7.0, 8.0, 7.0]);
}

//! Leases of policies: how they are set, written and changed, and the mistakes in them.

use crate::documents::support::*;
use tollgate::strategy::Strategy;

/// A policy that can be leased, from line 1 on, with these settings from line 3 on.
fn leased(quota: &str, settings: &str) -> String {
    format!("[policies.api]\nquota = '{quota}'\n{settings}\n")
}

#[test]
fn a_lease_is_in_force_with_a_ttl_of_50_ms_unless_another_is_set() {
    let default = "{ max_units = 64, ttl = '50ms' }";
    for (lease, written) in [
        ("{ max_units = 64 }", default),
        (default, default),
        (
            "{ ttl = '20ms', max_units = 2 }",
            "{ max_units = 2, ttl = '20ms' }",
        ),
    ] {
        let of = |lease| document(&leased("10000/s", &format!("lease = {lease}")));
        let (set, registry) = (of(lease), Registry::new());
        let limiter = set.limiter(&registry).expect("a limiter");
        assert_eq!(limiter.document(), of(written), "{lease}");
        let changes = set.reconfigure(&limiter, &registry);
        assert!(changes.expect("the same").is_empty());
    }
}

#[tokio::test]
async fn the_burst_of_a_documents_policy_is_that_with_its_leases() {
    let text = leased("100/s", "key = 'global'\nlease = { max_units = 64 }");
    let limiter = document(&text)
        .limiter(&Registry::new())
        .expect("a limiter");
    let status = limiter.peek("").await.expect("a status");
    assert_eq!(status.policy("api").expect("api").limit(), 94);
}

/// A strategy of an application that ignores the terms of its policies.
#[derive(Debug)]
struct Own;

impl Strategy for Own {
    fn bind(&self, quota: &Quota, _terms: &Terms) -> Result<Arc<dyn Rule>, InvalidValue> {
        FixedWindow.bind(quota, &Terms::default())
    }
}

#[test]
fn a_registered_strategy_that_knows_nothing_of_leases_is_not_leased() {
    let registry = Registry::new().strategy("mine", Own);
    let limiter = |lease| {
        let text = leased("100/s", &format!("strategy = 'mine'\n{lease}"));
        document(&text).limiter(&registry)
    };
    let error = limiter("lease = { max_units = 8 }").expect_err("a lease");
    let expected = "4:9: policies.api.lease: found a lease under mine; \
                    expected a strategy that can be leased, such as Gcra or FixedWindow, or no lease";
    assert_eq!(error.to_string(), expected);
    limiter("").expect("a limiter");
}

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

#[test]
fn a_registered_strategy_is_leased_as_it_is_without_a_name() {
    let text = leased("100/s", "strategy = 'mine'\nlease = { max_units = 8 }");
    let registry = Registry::new().strategy("mine", SlidingWindow::buckets(5));
    let limiter = document(&text).limiter(&registry);
    let limiter = limiter.unwrap_or_else(|error| panic!("{error}"));
    let text = limiter.document().to_text(Format::Toml).expect("a text");
    assert_contains(&text, ["[policies.api.lease]\nmax_units = 8\n"]);
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

#[test]
fn each_mistake_in_a_lease_is_found_at_its_place_with_what_would_be_valid() {
    let max_units = "policies.api.lease.max_units: found leases with max_units = 0; expected from 2 to 1,000,000 units, or no lease";
    let ttl = "policies.api.lease.ttl: found leases with a TTL of 1ms; expected from 5 ms to 10 s, in whole microseconds";
    let both = format!("3:23: {max_units}\n3:32: {ttl}");
    #[rustfmt::skip]
    let rows = [
        ("100/s", "lease = { max_units = 0, ttl = '1ms' }", &*both),
        ("100/s", "lease = { max_units = 2, ttl = 50 }",
            "3:32: policies.api.lease.ttl: found 50; expected a duration such as \"50ms\", \"2s\" or \"1day\""),
        ("100/s", "lease = { max_units = 2, time = '50ms' }",
            "3:26: policies.api.lease.time: found an unknown field; expected one of max_units, ttl"),
        ("100/s", "lease = {}", "3:9: policies.api.lease.max_units: found nothing; expected max_units, which is required"),
        ("100/s", "lease = 64", "3:9: policies.api.lease: found a number; expected a table"),
        ("100/s", "lease = { max_units = 64 }\ntier = 'plan'\ntiers = { pro = '1000/s', free = '10/s burst 1' }",
            "5:34: policies.api.tiers.free: found 10/s burst 1 with a lease of 50ms, by which the burst is 1 smaller; expected a \
            burst of at least 2, or no lease"),
        ("1/s", "strategy = 'fixed_window 2'\nlease = { max_units = 64 }",
            "3:12: policies.api.strategy: found \"2\" in the strategy \"fixed_window 2\"; expected nothing more: this strategy has \
            no settings"),
    ];
    for (quota, settings, expected) in rows {
        assert_eq!(mistakes_in(&leased(quota, settings)), expected);
    }
}

//! Leases of policies: how they are set, written and changed, and the mistakes in them.

use std::{fs, path::Path, sync::Arc};

use tollgate::{
    FixedWindow, Quota, SlidingWindow,
    config::{Document, Format, Registry},
    error::InvalidValue,
    strategy::{Rule, Strategy, Terms},
};

use crate::documents::support::{document, registry};

/// A policy that can be leased, from line 1 on, with these settings from line 3 on.
fn leased(quota: &str, settings: &str) -> String {
    format!("[policies.api]\nquota = '{quota}'\n{settings}\n")
}

/// The mistakes of a file, one line each.
fn mistakes(folder: &Path, text: &str) -> String {
    let path = folder.join("limits.toml");
    fs::write(&path, text).expect("a file");
    let registry = registry();
    let error = Document::load_with(&path, &registry)
        .and_then(|document| document.layer(&registry))
        .expect_err(text);
    let folder = format!("{}/", folder.display());
    error.to_string().replace(&folder, "")
}

#[test]
fn a_lease_is_in_force_with_a_ttl_of_50_ms_unless_another_is_set() {
    for (lease, written) in [
        ("{ max_units = 64 }", "{ max_units = 64, ttl = '50ms' }"),
        (
            "{ max_units = 64, ttl = '50ms' }",
            "{ max_units = 64, ttl = '50ms' }",
        ),
        (
            "{ ttl = '20ms', max_units = 2 }",
            "{ max_units = 2, ttl = '20ms' }",
        ),
    ] {
        let [set, written] =
            [lease, written].map(|lease| document(&leased("10000/s", &format!("lease = {lease}"))));
        let limiter = set.limiter(&Registry::new()).expect("a limiter");
        assert_eq!(limiter.document(), written, "{lease}");
        assert!(
            set.reconfigure(&limiter, &Registry::new())
                .expect("the same")
                .is_empty()
        );
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
    assert!(
        text.contains("[policies.api.lease]\nmax_units = 8\n"),
        "{text}"
    );
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
fn a_change_of_the_lease_alone_is_a_change_of_this_setting() {
    let text = |lease: &str| document(&leased("100/s", lease));
    let limiter = text("").limiter(&Registry::new()).expect("a limiter");
    for (lease, expected) in [
        (
            "lease = { max_units = 8 }",
            "lease none -> { max_units = 8, ttl = 50ms } (the counts stay; the burst in force is 94 rather than 100)",
        ),
        (
            "lease = { max_units = 9 }",
            "lease { max_units = 8, ttl = 50ms } -> { max_units = 9, ttl = 50ms } (the counts stay)",
        ),
        (
            "",
            "lease { max_units = 9, ttl = 50ms } -> none (the counts stay; the burst in force is 100 rather than 94)",
        ),
    ] {
        let changes = text(lease).reconfigure(&limiter, &Registry::new());
        let changes = changes.expect("valid").to_string();
        assert_eq!(changes, format!("api: altered: {expected}"));
    }
}

#[test]
fn each_mistake_in_a_lease_is_found_at_its_place_with_what_would_be_valid() {
    let folder = testkit::folder();
    let together = "one of them: a lease charges units before the requests that spend them";
    let leasable = "a strategy that can be leased, such as Gcra or FixedWindow, or no lease";
    let lease = "lease = { max_units = 64 }";
    for (quota, settings, expected) in [
        (
            "100/s",
            "lease = { max_units = 1 }",
            "3:23: policies.api.lease.max_units: found leases with max_units = 1; expected from 2 to 1,000,000 units, or no lease",
        ),
        (
            "100/s",
            "lease = { max_units = 2, ttl = '1ms' }",
            "3:32: policies.api.lease.ttl: found leases with a TTL of 1ms; expected from 5 ms to 10 s, in whole microseconds",
        ),
        (
            "100/s",
            "lease = { max_units = 2, ttl = '11s' }",
            "3:32: policies.api.lease.ttl: found leases with a TTL of 11s; expected from 5 ms to 10 s, in whole microseconds",
        ),
        (
            "100/s",
            "lease = { max_units = 2, ttl = 50 }",
            "3:32: policies.api.lease.ttl: found 50; expected a duration such as \"50ms\", \"2s\" or \"1day\"",
        ),
        (
            "100/s",
            "lease = { max_units = 2, time = '50ms' }",
            "3:26: policies.api.lease.time: found an unknown field; expected one of max_units, ttl",
        ),
        (
            "100/s",
            "lease = {}",
            "3:9: policies.api.lease.max_units: found nothing; expected max_units, which is required",
        ),
        (
            "100/s",
            "lease = 64",
            "3:9: policies.api.lease: found a number; expected a table",
        ),
        (
            "100/s burst 3",
            lease,
            "3:9: policies.api.lease: found 100/s burst 3 with a lease of 50ms, by which the burst is 6 smaller; \
             expected a burst of at least 7, or a lease with a TTL of at most 18ms",
        ),
        (
            "100/s",
            "strategy = 'sliding_log'\nlease = { max_units = 64 }",
            "4:9: policies.api.lease: found 100/s in a sliding log with a lease of 50ms; \
             expected a TTL of at most a hundredth of the period, 10ms",
        ),
        (
            "8 concurrent",
            lease,
            &format!(
                "3:9: policies.api.lease: found a lease under concurrency; expected {leasable}"
            ),
        ),
        (
            "8/min",
            "strategy = 'ban 10min'\nlease = { max_units = 64 }",
            &format!("4:9: policies.api.lease: found a lease under ban 10min; expected {leasable}"),
        ),
        (
            "100/s",
            "lease = { max_units = 64 }\ncharge_rejected = true",
            &format!(
                "4:19: policies.api.charge_rejected: found a lease together with charge_rejected; expected {together}"
            ),
        ),
        (
            "100/s",
            "lease = { max_units = 64 }\ncharge = { after = 'success' }",
            &format!(
                "4:10: policies.api.charge: found a lease together with charge_after; expected {together}"
            ),
        ),
        (
            "100/s",
            "lease = { max_units = 64 }\nshadow = true",
            &format!(
                "4:10: policies.api.shadow: found a lease together with shadow; expected {together}"
            ),
        ),
        (
            "100/s",
            "lease = { max_units = 64 }\nshadow_of = 'live'\n[policies.live]\nquota = '1/s'",
            &format!(
                "4:13: policies.api.shadow_of: found a lease together with shadow_of; expected {together}"
            ),
        ),
        (
            "100/s",
            "lease = { max_units = 64 }\ncost = 95",
            "4:8: policies.api.cost: found a cost of 95 under 100/s with a lease of 50ms; \
             expected a cost of at most 94, or a larger quota among Policy::tier_quotas",
        ),
        (
            "100/s",
            "lease = { max_units = 64 }\ntier = 'plan'\ntiers = { pro = '1000/s', free = '10/s burst 1' }",
            "5:34: policies.api.tiers.free: found 10/s burst 1 with a lease of 50ms, by which the burst is 1 smaller; \
             expected a burst of at least 2, or no lease",
        ),
        // A strategy that is a mistake may be one that the lease fits.
        (
            "1/s",
            "strategy = 'fixed_window 2'\nlease = { max_units = 64 }",
            "3:12: policies.api.strategy: found \"2\" in the strategy \"fixed_window 2\"; \
             expected nothing more: this strategy has no settings",
        ),
    ] {
        let found = mistakes(folder.path(), &leased(quota, settings));
        assert_eq!(found, format!("limits.toml:{expected}"));
    }
    let both = leased("100/s", "lease = { max_units = 0, ttl = '1ms' }");
    assert_eq!(mistakes(folder.path(), &both).lines().count(), 2);
}

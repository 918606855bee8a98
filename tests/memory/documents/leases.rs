//! Leases of policies: how they are set, written and changed, and the mistakes in them.

use crate::documents::support::*;
use tollgate::{
    error::InvalidValue,
    strategy::{Rule, Strategy, Terms},
};

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
    // Each is a quota, the policy's other settings, and their mistake.
    for case in include_str!("lease_mistakes.txt").trim_end().split("\n\n") {
        let (text, expected) = case.rsplit_once('\n').expect(case);
        let (quota, settings) = text.split_once('\n').expect(case);
        let found = mistakes(folder.path(), &leased(quota, settings));
        assert_eq!(found, format!("limits.toml:{expected}"));
    }
    let both = leased("100/s", "lease = { max_units = 0, ttl = '1ms' }");
    assert_eq!(mistakes(folder.path(), &both).lines().count(), 2);
}

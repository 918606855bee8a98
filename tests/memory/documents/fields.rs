//! A mistake of a builder is found in a document, too: at the setting that it is in, with the same words.

use std::time::Duration;

use tollgate::{
    Ban, ConfigError, FixedWindow, Lease, Limiter, LocalFallback, Policy, Quota, SlidingLog,
    outcome,
};

use crate::documents::support::{document, registry};

/// The error of a limiter with these policies.
fn of_builder(policies: impl IntoIterator<Item = Policy>) -> ConfigError {
    let policies = policies.into_iter();
    let builder = policies.fold(Limiter::builder(), |all, one| all.policy(one));
    builder.build().expect_err("a mistake")
}

fn policy(quota: &str) -> Policy {
    Policy::new("api", quota.parse::<Quota>().expect(quota))
}

fn leased(quota: &str) -> Policy {
    policy(quota).lease(Lease::max_units(64))
}

#[test]
fn a_builder_and_a_document_find_a_mistake_in_the_same_setting() {
    let lease = "lease = { max_units = 64 }";
    let short = Lease::max_units(64).ttl(Duration::from_millis(1));
    let charged_after = |quota: &str| policy(quota).charge_after(outcome::success);
    let ban = || policy("8/min").strategy(Ban::for_duration(Duration::from_secs(600)));
    for (setting, quota, settings, policy) in [
        ("quota", "0/min", "", policy("0/min")),
        (
            "quota",
            "0/min",
            "strategy = 'fixed_window'",
            policy("0/min").strategy(FixedWindow),
        ),
        ("quota", "1/401days", lease, leased("1/401days")),
        (
            "strategy",
            "10/min burst 20",
            "strategy = 'fixed_window'",
            policy("10/min burst 20").strategy(FixedWindow),
        ),
        (
            "strategy",
            "10/min",
            "strategy = 'concurrency'",
            policy("10/min").strategy(tollgate::Concurrency::new()),
        ),
        (
            "lease.max_units",
            "100/s",
            "lease = { max_units = 1 }",
            policy("100/s").lease(Lease::max_units(1)),
        ),
        (
            "lease.ttl",
            "100/s",
            "lease = { max_units = 64, ttl = '1ms' }",
            policy("100/s").lease(short),
        ),
        ("lease", "100/s burst 3", lease, leased("100/s burst 3")),
        (
            "lease",
            "100/s",
            "strategy = 'sliding_log'\nlease = { max_units = 64 }",
            leased("100/s").strategy(SlidingLog),
        ),
        (
            "charge",
            "100/s",
            "lease = { max_units = 64 }\ncharge = { after = 'success' }",
            leased("100/s").charge_after(outcome::success),
        ),
        (
            "charge_rejected",
            "100/s",
            "lease = { max_units = 64 }\ncharge_rejected = true",
            leased("100/s").charge_rejected(true),
        ),
        (
            "shadow",
            "100/s",
            "lease = { max_units = 64 }\nshadow = true",
            leased("100/s").shadow(),
        ),
        (
            "charge_rejected",
            "10/min",
            "charge = { after = 'success' }\ncharge_rejected = true",
            charged_after("10/min").charge_rejected(true),
        ),
        (
            "charge",
            "8 concurrent",
            "charge = { after = 'success' }",
            charged_after("8 concurrent"),
        ),
        (
            "charge_rejected",
            "8 concurrent",
            "charge_rejected = true",
            policy("8 concurrent").charge_rejected(true),
        ),
        (
            "shadow",
            "10/min",
            "charge_rejected = true\nshadow = true",
            policy("10/min").charge_rejected(true).shadow(),
        ),
        (
            "charge",
            "8/min",
            "strategy = 'ban 10min'\ncharge = { refund_unless = 'success' }",
            ban().refund_unless(outcome::success),
        ),
        (
            "shadow",
            "8/min",
            "strategy = 'ban 10min'\nshadow = true",
            ban().shadow(),
        ),
        (
            "quota_lookup.timeout",
            "10/min",
            "quota_lookup = { name = 'lookup', timeout = '0s' }",
            policy("10/min").quota_lookup(Duration::ZERO, |_| async { None }),
        ),
        (
            "tier_quotas",
            "10/min",
            "tier_quotas = ['20/min', '1/401days']",
            policy("10/min")
                .tier_quotas(["20/min", "1/401days"].map(|tier| tier.parse().expect(tier))),
        ),
        ("cost", "10/min", "cost = 11", policy("10/min").cost(11)),
        (
            "skip.paths[1]",
            "10/min",
            "skip.paths = ['/a', 'health']",
            policy("10/min").skip_path("/a").skip_path("health"),
        ),
        (
            "only.paths[0]",
            "10/min",
            "only.paths = ['/users/:id']",
            policy("10/min").only_path("/users/:id"),
        ),
        (
            "on_store_error.local_fallback.processes",
            "10/min",
            "on_store_error = { local_fallback = { processes = 0 } }",
            policy("10/min").on_store_error(LocalFallback::shared_by(0)),
        ),
    ] {
        let error = of_builder([policy]);
        assert_eq!(error.policy(), Some("api"));
        let text = format!("[policies.api]\nquota = '{quota}'\n{settings}\n");
        let in_document = document(&text).limiter(&registry()).expect_err(&text);
        let [mistake] = in_document.mistakes() else {
            panic!("{in_document}\n{text}");
        };
        let found = (mistake.found(), mistake.expected());
        assert_eq!(found, (error.value(), error.expected()), "{text}");
        let path = format!("policies.api.{setting}");
        assert_eq!(mistake.path(), path, "{text}");
    }
}

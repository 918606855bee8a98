//! A mistake of a builder is found in a document, too: at the setting that it is in, with the same words.

use crate::documents::support::*;

/// The error of a limiter with these policies.
fn of_builder(policies: impl IntoIterator<Item = Policy>) -> ConfigError {
    let policies = policies.into_iter();
    let builder = policies.fold(Limiter::builder(), |all, one| all.policy(one));
    builder.build().expect_err("a mistake")
}

fn policy(words: &str) -> Policy {
    Policy::new("api", quota(words))
}

fn leased(quota: &str) -> Policy {
    policy(quota).lease(Lease::max_units(64))
}

#[test]
fn a_builder_and_a_document_find_a_mistake_in_the_same_setting() {
    let lease = "lease = { max_units = 64 }";
    let fixed = "strategy = 'fixed_window'";
    let after_success = "charge = { after = 'success' }";
    let rejected = "charge_rejected = true";
    let short = Lease::max_units(64).ttl(ms(1));
    let charged_after = |quota: &str| policy(quota).charge_after(outcome::success);
    let ban = || policy("8/min").strategy(Ban::for_duration(secs(600)));
    let processes = LocalFallback::shared_by(0);
    let tiers = policy("10/min").tier_quotas(["20/min", "1/401days"].map(quota));
    #[rustfmt::skip]
    let rows = [
        ("quota", "", policy("0/min")),
        ("quota", fixed, policy("0/min").strategy(FixedWindow)),
        ("quota", lease, leased("1/401days")),
        ("strategy", fixed, policy("10/min burst 20").strategy(FixedWindow)),
        ("strategy", "strategy = 'concurrency'", policy("10/min").strategy(Concurrency::new())),
        ("lease.max_units", "lease = { max_units = 1 }", policy("100/s").lease(Lease::max_units(1))),
        ("lease.ttl", "lease = { max_units = 64, ttl = '1ms' }", policy("100/s").lease(short)),
        ("lease", lease, leased("100/s burst 3")),
        ("lease", lease, leased("8 concurrent")),
        ("lease", "strategy = 'ban 10min'\nlease = { max_units = 64 }", ban().lease(Lease::max_units(64))),
        ("lease", "strategy = 'sliding_log'\nlease = { max_units = 64 }", leased("100/s").strategy(SlidingLog)),
        ("charge", "lease = { max_units = 64 }\ncharge = { after = 'success' }", leased("100/s").charge_after(outcome::success)),
        ("charge_rejected", "lease = { max_units = 64 }\ncharge_rejected = true", leased("100/s").charge_rejected(true)),
        ("shadow", "lease = { max_units = 64 }\nshadow = true", leased("100/s").shadow()),
        ("charge_rejected", "charge = { after = 'success' }\ncharge_rejected = true", charged_after("10/min").charge_rejected(true)),
        ("charge", after_success, charged_after("8 concurrent")),
        ("charge_rejected", rejected, policy("8 concurrent").charge_rejected(true)),
        ("shadow", "charge_rejected = true\nshadow = true", policy("10/min").charge_rejected(true).shadow()),
        ("charge", "strategy = 'ban 10min'\ncharge = { refund_unless = 'success' }", ban().refund_unless(outcome::success)),
        ("shadow", "strategy = 'ban 10min'\nshadow = true", ban().shadow()),
        ("tier_quotas[1]", "tier_quotas = ['20/min', '1/401days']", tiers),
        ("cost", "cost = 11", policy("10/min").cost(11)),
        ("cost", "cost = 95\nlease = { max_units = 64 }", leased("100/s").cost(95)),
        ("skip.paths[1]", "skip.paths = ['/a', 'health']", policy("10/min").skip_path("/a").skip_path("health")),
        ("only.paths[0]", "only.paths = ['/users/:id']", policy("10/min").only_path("/users/:id")),
        ("on_store_error.local_fallback.processes", "on_store_error = { local_fallback = { processes = 0 } }",
            policy("10/min").on_store_error(processes)),
    ];
    for (setting, settings, policy) in rows {
        let quota = policy.quota();
        let text = format!("[policies.api]\nquota = '{quota}'\n{settings}\n");
        finds_both([policy], &text, setting);
    }
}

/// Asserts that a builder and a document find the same mistake in a setting of the policy `api`.
fn finds_both(policies: impl IntoIterator<Item = Policy>, text: &str, setting: &str) {
    let error = of_builder(policies);
    assert_eq!(error.policy(), Some("api"), "{error}");
    assert_eq!(error.setting().as_deref(), Some(setting), "{error}");
    let in_document = document(text).limiter(&registry()).expect_err(text);
    let [mistake] = in_document.mistakes() else {
        panic!("{in_document}\n{text}");
    };
    let found = (mistake.found(), mistake.expected());
    assert_eq!(found, (error.value(), error.expected()), "{text}");
    assert_eq!(mistake.path(), format!("policies.api.{setting}"), "{text}");
}

#[test]
fn a_mistake_outside_of_policies_has_the_path_of_its_field() {
    let processes = "on_store_error.local_fallback.processes";
    let fallback = "on_store_error = { local_fallback = { processes = 0 } }";
    let builder = Limiter::builder;
    #[rustfmt::skip]
    let rows = [
        ("skip.paths[0]", "skip.paths = ['a']", builder().skip_path("a")),
        (processes, fallback, builder().on_store_error(LocalFallback::shared_by(0))),
    ];
    for (setting, text, builder) in rows {
        let error = builder.policy(policy("1/s")).build().expect_err(setting);
        assert_eq!(error.setting().as_deref(), Some(setting));
        let text = format!("policies.api.quota = '1/s'\n{text}");
        let in_document = document(&text).limiter(&registry()).expect_err(&text);
        assert_eq!(paths_of(&in_document), [setting]);
    }
}

#[test]
fn what_depends_on_a_mistake_is_no_mistake_of_its_own() {
    #[rustfmt::skip]
    let rows = [
        // A tier without its function still allows a cost.
        ("quota = '10/min'\ncost = 99\ntier = 'plans'\ntiers = { pro = '100/min' }", "policies.api.tier"),
        // A lease may fit the strategy that was meant.
        ("quota = '1/s'\nstrategy = 'fixed'\nlease = { max_units = 1 }", "policies.api.strategy"),
        // The client's address is found otherwise.
        ("quota = '1/s'\nkey = 'client_ip'\n[client_ip]\nhops = 65", "client_ip"),
        ("quota = '0/min'\nstrategy = 'fixed_window'\ncost = 10\nlease = { max_units = 64 }", "policies.api.quota"),
        ("quota = '1/s'\ncaller = 'mine'\ncost = 1", "policies.api.caller"),
        ("quota = '10/min'\ncost = [{ method = 'get', cost = 11 }]", "policies.api.cost[0].method policies.api.cost[0].cost"),
    ];
    // An extractor of the application that can never find a key is a mistake in its field.
    let registry = registry().key("mine", extract::header("x key"));
    for (text, expected) in rows {
        let text = format!("[policies.api]\n{text}");
        let error = document(&text).limiter(&registry).expect_err(&text);
        assert_eq!(paths_of(&error).join(" "), expected, "{error}");
    }
}

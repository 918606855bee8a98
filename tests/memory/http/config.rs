//! Every mistake in a configuration is an error when it is built, which names its place and what would be valid.

use crate::http::support::*;
use tollgate::{
    error::InvalidValue,
    outcome,
    strategy::{Rule, Strategy, Terms},
};

/// The mistake in a layer of these policies, which is the same in process and on Redis.
fn mistake(policies: impl IntoIterator<Item = Policy>) -> ConfigError {
    let policies = policies.into_iter();
    let builder = policies.fold(RateLimitLayer::builder(), |all, one| all.policy(one));
    let error = builder.clone().build().expect_err("a mistake");
    let redis = RedisStore::open("redis://127.0.0.1:1").expect("a store");
    assert_eq!(builder.store(redis).build().expect_err("a mistake"), error);
    // The parts of an error are in its message.
    let text = error.to_string();
    let policy = error.policy().map(|name| format!("policy {name:?}: "));
    for part in [
        policy.as_deref().unwrap_or_default(),
        error.value(),
        error.expected(),
    ] {
        assert!(text.contains(part), "{part:?} isn't in {text:?}");
    }
    error
}

/// Asserts that a limiter of these policies is built.
#[track_caller]
fn assert_valid(policies: impl IntoIterator<Item = Policy>) {
    let policies = policies.into_iter();
    let builder = policies.fold(RateLimitLayer::builder(), |all, one| all.policy(one));
    let built = builder.build();
    assert!(built.is_ok(), "{built:?}");
}

/// Asserts that a policy of this quota is rejected, by its name, and that the error names `valid`.
fn unfit(quota: Quota, strategy: impl Strategy, value: &str, valid: &str) {
    let fine = Policy::new("fine", Quota::requests(1).per_second());
    let error = mistake([fine, Policy::new("wrong", quota).strategy(strategy)]);
    assert_eq!(error.policy(), Some("wrong"));
    assert!(error.value().contains(value), "{error}");
    assert!(error.expected().contains(valid), "{error}");
}

#[test]
fn an_invalid_quota_is_a_config_error_under_every_strategy() {
    let ten = Quota::requests(10);
    for (quota, value, valid) in [
        (ten.per(Duration::ZERO), "a period of 0ns", "at least 1 µs"),
        (ten.per(Duration::from_nanos(999)), "999ns", "at least 1 µs"),
        (
            ten.per(Duration::from_nanos(1_500)),
            "1.5µs",
            "whole number of microseconds",
        ),
        (
            ten.per(secs(u64::MAX)),
            "a period of",
            "at most 584,942 years",
        ),
        (ten.per(Duration::MAX), "a period of", "microseconds"),
        (ten.per_second().burst(0), "a burst of 0", "at least 1"),
        (
            Quota::requests(0).per_second(),
            "a quota of 0 requests",
            "at least 1",
        ),
        (
            Quota::requests(0).per_second().burst(5),
            "a quota of 0 requests",
            "at least 1",
        ),
    ] {
        unfit(quota, Gcra, value, valid);
        unfit(quota, FixedWindow, value, valid);
    }
}

#[test]
fn a_quota_beyond_the_range_of_gcra_is_a_config_error() {
    for quota in [
        Quota::requests(7_000_000_000).per_second(),
        Quota::requests(u64::MAX).per_second(),
        Quota::requests(u64::MAX).per(secs(u64::MAX / 1_000_000)),
    ] {
        let valid = "1,000,000 units per second";
        unfit(quota, Gcra, &quota.to_string(), valid);
        unfit(quota, TokenBucket, &quota.to_string(), valid);
    }
    for quota in [
        Quota::requests(1).per(secs(401 * 86_400)),
        Quota::requests(1).per_month().burst(u64::MAX),
        Quota::requests(10).per_second().burst(9_000_000_000_000),
    ] {
        let valid = "a burst that refills within 400 days, or CalendarWindow";
        unfit(quota, Gcra, &quota.to_string(), valid);
        unfit(quota, TokenBucket, &quota.to_string(), valid);
    }
}

#[test]
fn a_quota_beyond_the_range_of_a_fixed_window_is_a_config_error() {
    let (second, day) = (secs(1), secs(86_400));
    for (quota, valid) in [
        (Quota::requests(u64::MAX).per(second), "requests"),
        (Quota::requests(10).per(second).burst(20), "leave it out"),
        (
            Quota::requests(10).per(Duration::from_micros(1_500)),
            "whole milliseconds",
        ),
        (Quota::requests(10).per(73_000 * day), "at most 100 years"),
    ] {
        unfit(quota, FixedWindow, &quota.to_string(), valid);
    }
}

#[test]
fn a_name_that_is_no_valid_header_text_is_a_config_error() {
    let long = "n".repeat(65);
    let no_text = ["", "two\nlines", "tab\t", "nul\0", "delete\u{7f}"];
    let no_string = [" a", "n\u{e4}me", "a \"quote\"", "back\\slash", &long];
    for name in no_text.into_iter().chain(no_string) {
        let error = mistake([Policy::new(name, quota("1/s"))]);
        assert_eq!(error.policy(), Some(name));
        let expected = "1 to 64 printable ASCII characters";
        assert!(error.expected().contains(expected), "{error}");
        // An error that is printed must not break a line of the log.
        assert!(!error.to_string().contains(['\n', '\t', '\0']), "{error:?}");
    }
    let longest = "n".repeat(64);
    for name in [&longest, "a day's worth (of {braces}; and, commas)"] {
        assert_valid([Policy::new(name, quota("1/s"))]);
    }
}

#[test]
fn a_name_used_twice_is_a_config_error() {
    let of = |quota: &str| Policy::new("burst", quota.parse::<Quota>().expect(quota));
    let error = mistake([of("1/s"), of("100/day").strategy(FixedWindow)]);
    assert_eq!(error.policy(), Some("burst"));
    assert_contains(error.value(), ["second policy of this name"]);
    assert!(error.expected().contains("a unique name"), "{error}");
}

#[test]
fn a_limiter_without_a_policy_is_a_config_error() {
    let error = mistake([]);
    assert_eq!(error.policy(), None);
    assert!(error.value().contains("without a policy"), "{error}");
    assert!(error.expected().contains("at least one"), "{error}");
}

#[test]
fn an_extractor_that_can_never_find_a_key_is_a_config_error() {
    let of = || Policy::new("keyed", quota("1/s"));
    for (policy, value) in [
        (of().key(extract::header("x key")), "x key"),
        (of().key(extract::header("")), "a header \"\""),
        (of().key(extract::header("n\u{e4}me").secret()), "a header"),
        (of().key((extract::path(), extract::header("a:b"))), "a:b"),
        (
            of().key((extract::path(), (extract::method(), extract::header("a:b")))),
            "a:b",
        ),
    ] {
        let error = mistake([policy]);
        assert_eq!(error.policy(), Some("keyed"));
        assert!(error.value().contains(value), "{error}");
        assert!(error.expected().contains("RFC 9110"), "{error}");
    }
    for peer in [
        extract::peer().ipv4_prefix(33),
        extract::peer().ipv6_prefix(129),
    ] {
        let error = mistake([of().key((peer, extract::path()))]);
        assert_eq!(error.policy(), Some("keyed"));
        let expected = "at most 32 bits of IPv4 and 128 of IPv6";
        assert!(error.expected().contains(expected), "{error}");
    }
}

#[test]
fn a_cost_above_the_capacity_is_a_config_error_unless_a_tier_has_room() {
    let costly = || Policy::new("costly", quota("1/min")).cost(5);
    let error = mistake([costly()]);
    assert_eq!(error.policy(), Some("costly"));
    assert!(error.value().contains("a cost of 5 under 1/min"), "{error}");
    assert!(error.expected().contains("a cost of at most 1"), "{error}");
    let mistakes = [
        Policy::new("burst", quota("10/min burst 4")).cost(5),
        Policy::new("places", Quota::concurrent(4))
            .strategy(Concurrency::default())
            .cost(5),
        costly().shadow(),
    ];
    for policy in mistakes {
        assert!(mistake([policy]).value().contains("a cost of 5"));
    }
    let tier = quota("5/min");
    assert_valid([costly().tier_quotas([tier])]);
}

/// The text of the mistake in these policies, one of which is `leased` and the mistake is about.
fn lease_mistake(policies: impl IntoIterator<Item = Policy>) -> (String, String) {
    let error = mistake(policies);
    assert_eq!(error.policy(), Some("leased"), "{error}");
    (error.value().to_owned(), error.expected().to_owned())
}

fn leased(quota: &str) -> Policy {
    let policy = Policy::new("leased", quota.parse::<Quota>().expect(quota));
    policy.lease(Lease::max_units(64))
}

/// A strategy of an application that binds under these leases, whatever those of its policy are.
#[derive(Clone, Copy, Debug)]
struct Own(Option<Lease>);

impl Strategy for Own {
    fn bind(&self, quota: &Quota, terms: &Terms) -> Result<Arc<dyn Rule>, InvalidValue> {
        let mut own = terms.clone();
        own.lease = self.0;
        FixedWindow.bind(quota, &own)
    }
}

#[test]
fn a_strategy_that_cannot_be_leased_is_a_config_error() {
    let ban = Ban::for_duration(secs(60));
    let ttl = Concurrency::with_ttl(secs(9));
    for (policy, value) in [
        (leased("8 concurrent"), "a lease under concurrency"),
        (
            leased("8 concurrent").strategy(ttl),
            "a lease under concurrency ttl 9s",
        ),
        (leased("8/min").strategy(ban), "a lease under ban 1min"),
        (
            Policy::block_list("leased").lease(Lease::max_units(64)),
            "a lease under ban 1day",
        ),
        (
            leased("8/min").strategy(Own(None)),
            "a lease under Own(None)",
        ),
    ] {
        let expected = "a strategy that can be leased, such as Gcra or FixedWindow, or no lease";
        let expected = (value.to_owned(), expected.to_owned());
        assert_eq!(lease_mistake([policy]), expected);
    }
    // Without the lease it is counted.
    let own = Policy::new("own", quota("8/min"));
    assert_valid([own.strategy(Own(None))]);
}

#[test]
fn a_strategy_with_other_leases_than_its_policy_is_a_config_error() {
    let lease = Lease::max_units(64);
    assert_valid([leased("8/min").strategy(Own(Some(lease)))]);
    for other in [Lease::max_units(65), lease.ttl(ms(51))] {
        let own = Own(Some(other));
        let (value, _) = lease_mistake([leased("8/min").strategy(own)]);
        assert_eq!(value, format!("a lease under {own:?}"));
    }
}

#[test]
fn a_lease_of_charges_that_cannot_be_made_ahead_of_need_is_a_config_error() {
    let policy = || leased("100/s");
    let live = || Policy::new("live", quota("100/s"));
    for (policy, other) in [
        (policy().charge_rejected(true), "charge_rejected"),
        (policy().charge_after(outcome::success), "charge_after"),
        (policy().shadow(), "shadow"),
        (policy().shadow_of("live"), "shadow_of"),
    ] {
        let (value, expected) = lease_mistake([live(), policy]);
        assert_eq!(value, format!("a lease together with {other}"));
        assert!(expected.contains("one of them"), "{expected}");
    }
    // The other settings of charges, and a candidate, which does not take the lease from its live policy.
    for policies in [
        vec![policy().refund_unless(outcome::success)],
        vec![policy().charge_dropped(false).cost(2)],
        vec![
            policy(),
            Policy::new("next", quota("1/s")).shadow_of("leased"),
        ],
    ] {
        assert_valid(policies);
    }
}

#[test]
fn a_quota_that_has_no_room_for_its_leases_is_a_config_error_that_says_what_has() {
    let ttl = |policy: Policy, millis| policy.lease(Lease::max_units(64).ttl(ms(millis)));
    for (policy, value, expected) in [
        (
            leased("100/s burst 6"),
            "100/s burst 6 with a lease of 50ms, by which the burst is 6 smaller",
            "a burst of at least 7, or a lease with a TTL of at most 48ms",
        ),
        (
            leased("100/s burst 6").strategy(TokenBucket),
            "100/s burst 6 with a lease of 50ms, by which the burst is 6 smaller",
            "a burst of at least 7, or a lease with a TTL of at most 48ms",
        ),
        (
            leased("1/h"),
            "1/h with a lease of 50ms, by which the burst is 1 smaller",
            "a burst of at least 2, or no lease",
        ),
        (
            leased("100/min").tier_quotas([quota("1000/s burst 9")]),
            "1000/s burst 9 with a lease of 50ms, by which the burst is 52 smaller",
            "a burst of at least 53, or a lease with a TTL of at most 6ms",
        ),
        (
            leased("100/s").cost(95),
            "a cost of 95 under 100/s with a lease of 50ms",
            "a cost of at most 94, or a larger quota among Policy::tier_quotas",
        ),
        (
            leased("100/4s").strategy(SlidingLog),
            "100/4s in a sliding log with a lease of 50ms",
            "a TTL of at most a hundredth of the period, 40ms",
        ),
        (
            ttl(leased("100/300ms").strategy(SlidingLog), 5),
            "100/300ms in a sliding log with a lease of 5ms",
            "a period of at least 500 ms, or no lease",
        ),
        (
            ttl(leased("100/s"), 4),
            "leases with a TTL of 4ms",
            "from 5 ms to 10 s, in whole microseconds",
        ),
        (
            leased("100/s").lease(Lease::max_units(1)),
            "leases with max_units = 1",
            "from 2 to 1,000,000 units, or no lease",
        ),
    ] {
        let expected = (value.to_owned(), expected.to_owned());
        assert_eq!(lease_mistake([policy]), expected);
    }
    // What the errors name is valid.
    for policy in [
        leased("100/s burst 7"),
        ttl(leased("100/s burst 6"), 48),
        ttl(leased("100/s burst 6").strategy(TokenBucket), 48),
        leased("1/h burst 2"),
        leased("100/min").tier_quotas([quota("1000/s burst 53")]),
        ttl(leased("100/min"), 6).tier_quotas([quota("1000/s burst 9")]),
        leased("100/s").cost(94),
        ttl(leased("100/4s").strategy(SlidingLog), 40),
        ttl(leased("100/500ms").strategy(SlidingLog), 5),
    ] {
        assert_valid([policy]);
    }
    for (quota, millis) in [("100/s burst 6", 49), ("1000/s burst 9", 7)] {
        lease_mistake([ttl(leased(quota), millis)]);
    }
}

#[test]
fn a_block_list_is_no_candidate_whatever_the_live_policy_counts_by() {
    let live = || Policy::new("live", quota("10/min"));
    for live in [live(), live().strategy(FixedWindow)] {
        let candidate = Policy::block_list("next").shadow_of("live");
        assert_eq!(mistake([live, candidate]).policy(), Some("next"));
    }
}

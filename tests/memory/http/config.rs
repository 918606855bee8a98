//! Every mistake in a configuration is an error when it is built, which names its place and what would be valid.

use crate::http::support::*;
use tollgate::{
    store::Completion,
    strategy::{ErasedLocalRule, LuaScript, QuotaStatus, RuleInfo, Snapshot, Strategy},
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
    let policy = policy.as_deref().unwrap_or_default();
    for part in [policy, error.value(), error.expected()] {
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

/// A policy that is rejected.
fn wrong(quota: Quota) -> Policy {
    Policy::new("wrong", quota)
}

/// Asserts that a policy is rejected by its name, beside one that is fine, and what is found and would be valid.
#[track_caller]
fn finds(policy: Policy, value: &str, valid: &str) {
    let name = policy.name().to_owned();
    let error = mistake([Policy::new("fine", quota("1/s")), policy]);
    assert_eq!(error.policy(), Some(&*name));
    assert_contains(error.value(), [value]);
    assert_contains(error.expected(), [valid]);
}

#[test]
fn an_invalid_quota_is_a_config_error_under_every_strategy() {
    let ten = |period| Quota::requests(10).per(period);
    let none = Quota::requests(0).per_second();
    #[rustfmt::skip]
    let rows = [
        (ten(Duration::ZERO), "a period of 0ns", "at least 1 µs"),
        (ten(Duration::from_nanos(999)), "999ns", "at least 1 µs"),
        (ten(Duration::from_nanos(1_500)), "1.5µs", "whole number of microseconds"),
        (ten(secs(u64::MAX)), "a period of", "at most 584,942 years"),
        (ten(Duration::MAX), "a period of", "microseconds"),
        (ten(secs(1)).burst(0), "a burst of 0", "at least 1"),
        (none, "a quota of 0 requests", "at least 1"),
        (none.burst(5), "a quota of 0 requests", "at least 1"),
    ];
    for (quota, value, valid) in rows {
        finds(wrong(quota).strategy(Gcra), value, valid);
        finds(wrong(quota).strategy(FixedWindow), value, valid);
    }
}

#[test]
fn a_quota_beyond_the_range_of_its_strategy_is_a_config_error() {
    let (second, day) = (secs(1), secs(86_400));
    let rate = "1,000,000 units per second";
    let burst = "a burst that refills within 400 days, or CalendarWindow";
    let [one, ten, max] = [1, 10, u64::MAX].map(Quota::requests);
    #[rustfmt::skip]
    let of_gcra = [
        (Quota::requests(1_000_001).per(second), rate),
        (Quota::requests(7_000_000_000).per(second), rate),
        (max.per(second), rate),
        (max.per(secs(u64::MAX / 1_000_000)), rate),
        (one.per(401 * day), burst),
        (one.per_month().burst(u64::MAX), burst),
        (ten.per(second).burst(9_000_000_000_000), burst),
    ];
    for (quota, valid) in of_gcra {
        let text = quota.to_string();
        finds(wrong(quota).strategy(Gcra), &text, valid);
        finds(wrong(quota).strategy(TokenBucket), &text, valid);
    }
    #[rustfmt::skip]
    let of_windows = [
        (max.per(second), "requests"),
        (ten.per(second).burst(20), "leave it out"),
        (ten.per(Duration::from_micros(1_500)), "whole milliseconds"),
        (ten.per(73_000 * day), "at most 100 years"),
    ];
    for (quota, valid) in of_windows {
        let text = quota.to_string();
        finds(wrong(quota).strategy(FixedWindow), &text, valid);
    }
}

#[test]
fn a_name_that_is_no_valid_header_text_or_used_twice_is_a_config_error() {
    let [longest, long] = [64, 65].map(|length| "n".repeat(length));
    let no_text = ["", "two\nlines", "tab\t", "nul\0", "delete\u{7f}"];
    let no_string = [" a", "n\u{e4}me", "a \"quote\"", "back\\slash", &long];
    for name in no_text.into_iter().chain(no_string) {
        let error = mistake([Policy::new(name, quota("1/s"))]);
        assert_eq!(error.policy(), Some(name));
        assert_contains(error.expected(), ["1 to 64 printable ASCII characters"]);
        // An error that is printed must not break a line of the log.
        assert!(!error.to_string().contains(['\n', '\t', '\0']), "{error:?}");
    }
    for name in [&longest, "a day's worth (of {braces}; and, commas)"] {
        assert_valid([Policy::new(name, quota("1/s"))]);
    }
    finds(
        Policy::new("fine", quota("100/day")),
        "second policy of this name",
        "a unique name",
    );
    let error = mistake([]);
    assert_eq!(error.policy(), None);
    assert_contains(error.expected(), ["at least one"]);
}

#[test]
fn an_extractor_that_can_never_find_a_key_is_a_config_error() {
    let by = |extractor: Arc<dyn KeyExtractor>| wrong(quota("1/s")).key(extractor);
    let header = |name: &str| extract::header(name);
    let path = extract::path;
    let prefixes = "at most 32 bits of IPv4 and 128 of IPv6";
    #[rustfmt::skip]
    let rows = [
        (arc(header("x key")), "x key", "RFC 9110"),
        (arc(header("")), "a header \"\"", "RFC 9110"),
        (arc(header("n\u{e4}me").secret()), "a header", "RFC 9110"),
        (arc((path(), header("a:b"))), "a:b", "RFC 9110"),
        (arc((path(), (extract::method(), header("a:b")))), "a:b", "RFC 9110"),
        (arc((extract::peer().ipv4_prefix(33), path())), "", prefixes),
        (arc((extract::peer().ipv6_prefix(129), path())), "", prefixes),
        (arc(extract::cookie("")), "", "a token of RFC 6265"),
        (arc(extract::cookie("a b")), "", "a token of RFC 6265"),
        (arc(extract::cookie("a=b")), "", "a token of RFC 6265"),
        (arc(extract::cookie("\u{e9}")), "", "a token of RFC 6265"),
        (arc(extract::query("")), "", "a parameter's name"),
    ];
    for (extractor, value, valid) in rows {
        finds(by(extractor), value, valid);
    }
    for name in ["__Host-SID", "a.b", "!#$%&'*+-.^_`|~"] {
        assert_valid([by(arc(extract::cookie(name)))]);
    }
}

#[test]
fn a_cost_above_the_capacity_is_a_config_error_unless_a_tier_has_room() {
    let costly = |text: &str| wrong(quota(text)).cost(5);
    let under = "a cost of 5 under 1/min";
    finds(costly("1/min"), under, "a cost of at most 1");
    finds(costly("1/min").shadow(), "a cost of 5", "");
    finds(costly("10/min burst 4"), "a cost of 5", "");
    let permits = costly("4 concurrent").strategy(Concurrency::default());
    finds(permits, "a cost of 5", "");
    assert_valid([costly("1/min").tier_quotas([quota("5/min")])]);
}

fn leased(text: &str) -> Policy {
    Policy::new("leased", quota(text)).lease(Lease::max_units(64))
}

/// Asserts what is wrong with `leased`, one of these policies, and returns what would be valid.
#[track_caller]
fn finds_of_lease(policies: impl IntoIterator<Item = Policy>, value: &str) -> String {
    let error = mistake(policies);
    assert_eq!((error.policy(), error.value()), (Some("leased"), value));
    error.expected().to_owned()
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
    let lease = Lease::max_units(64);
    let per_minute = || leased("8/min");
    let ttl = Concurrency::with_ttl(secs(9));
    #[rustfmt::skip]
    let rows = [
        (leased("8 concurrent"), "a lease under concurrency"),
        (leased("8 concurrent").strategy(ttl), "a lease under concurrency ttl 9s"),
        (per_minute().strategy(Ban::for_duration(secs(60))), "a lease under ban 1min"),
        (Policy::block_list("leased").lease(lease), "a lease under ban 1day"),
        (per_minute().strategy(Own(None)), "a lease under Own(None)"),
    ];
    let valid = "a strategy that can be leased, such as Gcra or FixedWindow, or no lease";
    for (policy, value) in rows {
        assert_eq!(finds_of_lease([policy], value), valid);
    }
    // Without the lease it is counted, and with the policy's own one it is leased.
    assert_valid([Policy::new("own", quota("8/min")).strategy(Own(None))]);
    assert_valid([per_minute().strategy(Own(Some(lease)))]);
    for other in [Lease::max_units(65), lease.ttl(ms(51))] {
        let own = Own(Some(other));
        let value = format!("a lease under {own:?}");
        finds_of_lease([per_minute().strategy(own)], &value);
    }
}

#[test]
fn a_quota_that_has_no_room_for_its_leases_is_a_config_error_that_says_what_has() {
    let ttl = |text: &str, millis| leased(text).lease(Lease::max_units(64).ttl(ms(millis)));
    let with = |lease| leased("100/s").lease(lease);
    let six = "100/s burst 6 with a lease of 50ms, by which the burst is 6 smaller";
    let seven = "a burst of at least 7, or a lease with a TTL of at most 48ms";
    let range = "from 5 ms to 10 s, in whole microseconds";
    let tier = leased("100/min").tier_quotas([quota("1000/s burst 9")]);
    #[rustfmt::skip]
    let rows = [
        (leased("100/s burst 6"), six, seven),
        (leased("100/s burst 6").strategy(TokenBucket), six, seven),
        (tier, "1000/s burst 9 with a lease of 50ms, by which the burst is 52 smaller",
            "a burst of at least 53, or a lease with a TTL of at most 6ms"),
        (leased("100/s").cost(95), "a cost of 95 under 100/s with a lease of 50ms",
            "a cost of at most 94, or a larger quota among Policy::tier_quotas"),
        (leased("100/4s").strategy(SlidingLog), "100/4s in a sliding log with a lease of 50ms",
            "a TTL of at most a hundredth of the period, 40ms"),
        (ttl("100/300ms", 5).strategy(SlidingLog), "100/300ms in a sliding log with a lease of 5ms",
            "a period of at least 500 ms, or no lease"),
        (ttl("100/s", 4), "leases with a TTL of 4ms", range),
        (ttl("100/s", 10_001), "leases with a TTL of 10001ms", range),
        (with(Lease::max_units(1)), "leases with max_units = 1", "from 2 to 1,000,000 units, or no lease"),
        (with(Lease::max_units(1_000_001)), "leases with max_units = 1000001", "from 2 to 1,000,000 units, or no lease"),
    ];
    for (policy, value, valid) in rows {
        assert_eq!(finds_of_lease([policy], value), valid);
    }
    // What the errors name is valid.
    for policy in [
        leased("100/s burst 7"),
        ttl("100/s burst 6", 48),
        leased("1/h burst 2"),
        ttl("100/min", 6).tier_quotas([quota("1000/s burst 9")]),
        leased("100/s").cost(94),
        ttl("100/4s", 40).strategy(SlidingLog),
        ttl("100/500ms", 5).strategy(SlidingLog),
        with(Lease::max_units(2)),
        with(Lease::max_units(1_000_000).ttl(secs(10))).strategy(FixedWindow),
    ] {
        assert_valid([policy]);
    }
    for (quota, millis) in [("100/s burst 6", 49), ("1000/s burst 9", 7)] {
        assert_eq!(mistake([ttl(quota, millis)]).policy(), Some("leased"));
    }
}

/// A strategy without a half for the store it is to count in.
#[derive(Clone, Debug)]
struct HalfOf(Arc<dyn Rule>, bool);

impl Strategy for HalfOf {
    fn bind(&self, _: &Quota, _terms: &Terms) -> Result<Arc<dyn Rule>, InvalidValue> {
        Ok(Arc::new(self.clone()))
    }
}

impl Rule for HalfOf {
    fn info(&self) -> RuleInfo {
        RuleInfo::new("h1", self.0.info().capacity)
    }

    fn status(&self, snapshot: &Snapshot, now: Timestamp, cost: u64) -> QuotaStatus {
        self.0.status(snapshot, now, cost)
    }

    fn script(&self) -> Option<LuaScript> {
        self.0.script().filter(|_| !self.1)
    }

    fn local_rule(&self) -> Option<ErasedLocalRule<'_>> {
        self.0.local_rule().filter(|_| self.1)
    }
}

/// A store that does not keep permits alive.
#[derive(Debug, Default)]
struct WithoutKeepAlive(MemoryStore);

impl Store for WithoutKeepAlive {
    fn register(&self, policy: &str, rule: Arc<dyn Rule>) -> Result<LimitHandle, InvalidValue> {
        self.0.register(policy, rule)
    }

    fn execute(&self, op: Op, counters: &[CounterOp<'_>]) -> StoreResponse {
        self.0.execute(op, counters)
    }

    fn execute_detached(&self, op: Op, counters: &[CounterOp<'_>], completion: Option<Completion>) {
        self.0.execute_detached(op, counters, completion);
    }
}

#[test]
fn an_in_flight_limit_on_a_store_that_keeps_no_permits_alive_is_a_config_error_of_its_policy() {
    let builder = || Limiter::builder().store(WithoutKeepAlive::default());
    let others = Policy::new("others", Quota::requests(1).per_second());
    let limiter = builder().policy(others).build().expect("a limiter");
    let in_flight = Policy::new("in flight", Quota::concurrent(1));
    let reconfigured = limiter.reconfigure(Limiter::builder().policy(in_flight.clone()));
    for built in [
        builder().policy(in_flight).build().map(drop),
        reconfigured.map(drop),
    ] {
        let error = built.expect_err("a mistake");
        assert_eq!(error.policy(), Some("in flight"));
        assert!(error.to_string().contains("keep permits alive"), "{error}");
        assert!(error.expected().contains("Store::keep_alive"), "{error}");
    }
}

#[test]
fn a_strategy_that_the_store_cannot_run_is_a_config_error_of_its_policy() {
    let quota = Quota::requests(1).per_second();
    let of = |in_process| {
        let rule = Gcra.bind(&quota, &Terms::default()).expect("a rule");
        Policy::new("half", quota).strategy(HalfOf(rule, in_process))
    };
    let redis = || RedisStore::open("redis://127.0.0.1:1").expect("a store");
    let on_redis = || Limiter::builder().store(redis());
    assert!(Limiter::builder().policy(of(true)).build().is_ok());
    assert!(on_redis().policy(of(false)).build().is_ok());
    for (built, valid) in [
        (Limiter::builder().policy(of(false)).build(), "a RedisStore"),
        (on_redis().policy(of(true)).build(), "a MemoryStore"),
    ] {
        let error = built.expect_err("a mistake");
        assert!(error.to_string().contains("half"), "{error}");
        assert!(error.expected().contains(valid), "{error}");
        assert_eq!(error.policy(), Some("half"));
    }
}

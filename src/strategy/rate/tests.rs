//! Rates that are counted exactly, by the in-process half of [`Gcra`](super::Gcra).

use std::time::Duration;

use proptest::prelude::*;

use super::{
    RateParams,
    gcra::{GcraRule, Tat},
};
use crate::{
    clock::Timestamp,
    error::ConfigError,
    key::Key,
    quota::Quota,
    strategy::{LocalRule, RetryAfter, Rule, Terms, rule::try_charge},
};

const CALLER: Key = Key::global();
const NOW: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);

fn gcra(quota: &str) -> GcraRule {
    let quota = quota.parse().expect(quota);
    GcraRule(RateParams::new(&quota, &Terms::default()).expect("a quota in range"))
}

/// The promised share of a rate.
fn share(quota: &Quota) -> f64 {
    match quota.amount() as f64 / quota.period().as_secs_f64() {
        ..=2_000.0 => 0.9999,
        _ => 0.999,
    }
}

/// Charges every unit as soon as it is available, for `periods`; returns how many these were.
fn sustained(rule: &GcraRule, period: Duration, periods: u32) -> u64 {
    let mut state = Tat::default();
    let (mut now, end) = (NOW, NOW + period * periods);
    let mut charged = 0;
    while now < end {
        let available = LocalRule::available(rule, &mut state, now).max(0) as u64;
        LocalRule::charge(rule, &mut state, now, available, &CALLER);
        charged += available;
        let snapshot = LocalRule::snapshot(rule, &state, now, 1);
        now = match rule.status(&snapshot, now, 1).retry_after {
            RetryAfter::In(wait) => now + wait,
            _ => now,
        };
    }
    charged
}

#[test]
fn the_sustained_rate_is_the_quota_and_never_above() {
    for (quota, periods) in [
        ("1/month", 120),
        ("7/week", 500),
        ("1000/day", 20),
        ("100/min", 100),
        ("30000/s", 2),
        ("298508/s", 2),
        ("952381/s", 2),
        ("1000000/s", 2),
        ("952381/s burst 3", 2),
    ] {
        let (rule, quota) = (gcra(quota), quota.parse::<Quota>().expect(quota));
        let charged = sustained(&rule, quota.period(), periods);
        let most = quota.amount() * u64::from(periods) + quota.capacity();
        // What the first burst adds is no rate.
        let least = (quota.amount() * u64::from(periods)) as f64 * share(&quota) - 1.0;
        assert!(charged <= most, "{quota}: {charged} > {most}");
        assert!(charged as f64 >= least, "{quota}: {charged} < {least}");
    }
}

#[test]
fn a_rate_that_no_step_of_time_meets_is_refused_with_those_beside_it() {
    for (quota, expected) in [
        ("999999/s", "952381 or 1000000 "),
        ("60000/s", "59881 or 60061 "),
        ("3600000/min", "3592815 or 3603604 "),
        // Of a short period those beside it are no better.
        ("300/ms", "290 or 308 "),
        ("8/11us", "5 or 10 "),
    ] {
        let quota: Quota = quota.parse().expect(quota);
        let invalid = RateParams::new(&quota, &Terms::default()).expect_err("a coarse one");
        let error = ConfigError::at("", invalid);
        assert!(error.expected().starts_with(expected), "{error}");
        for requests in expected.trim().split(" or ") {
            let requests = requests.parse().expect("a number");
            let beside = Quota::requests(requests).per(quota.period());
            assert!(
                RateParams::new(&beside, &Terms::default()).is_ok(),
                "{beside}"
            );
        }
    }
}

proptest! {
    #[test]
    fn units_that_remain_are_those_of_the_status(
        requests in 1_u64..=1_000, burst in 1_u64..1_000, used in -10_i64..100_000_000_000, more in 0_u64..3,
    ) {
        let quota = Quota::requests(requests).per_minute().burst(burst);
        let params = RateParams::new(&quota, &Terms::default()).expect("a quota in range");
        let remaining = params.status(used, 1).remaining;
        for units in [remaining.saturating_sub(more), remaining + more] {
            prop_assert_eq!(params.has_remaining(used, units), remaining >= units);
        }
    }

    #[test]
    fn the_sustained_rate_is_at_most_the_quotas_and_at_least_the_promised_share(
        requests in 1_u64..=1_000_000, period in 1_000_000_u64..=30 * 86_400_000_000, burst in 1_u64..1_000,
    ) {
        let quota = Quota::requests(requests).per(Duration::from_micros(period)).burst(burst);
        if let Ok(params) = RateParams::new(&quota, &Terms::default()) {
            let exact = u128::from(period) * 20;
            let ours = u128::from(params.interval) * u128::from(requests);
            prop_assert!(ours >= exact);
            prop_assert!(exact as f64 >= ours as f64 * share(&quota));
        }
    }

    #[test]
    fn one_step_charges_what_several_do(
        used in 0_u64..60, step in -30_000_000_i64..30_000_000, units in 0_u64..50, times in 0_u64..4,
    ) {
        // Debts, and states of a clock that stepped, included.
        let rule = gcra("10/min burst 20");
        let mut state = Tat::default();
        LocalRule::charge(&rule, &mut state, NOW, used, &CALLER);
        let now = Timestamp::from_micros(NOW.as_micros() + step);
        let mut other = Tat(state.0);
        let fast = LocalRule::try_charge(&rule, &mut state, now, times, units, &CALLER);
        prop_assert_eq!(fast, try_charge(&rule, &mut other, now, times, units, &CALLER));
        prop_assert_eq!(state.0, other.0);
    }
}

//! Eight days of traffic.

use tollgate_tests::prelude::*;

use super::support::*;

/// A policy, its quota, and where its windows begin, in seconds since 1970 (computed by Python's `zoneinfo`).
struct Rule {
    policy: Policy,
    quota: u64,
    begins: Vec<u64>,
    used: u64,
    window: usize,
}

impl Rule {
    fn new(name: &str, quota: Quota, windows: CalendarWindow, begins: &[u64]) -> Self {
        Self {
            policy: Policy::new(name, quota).strategy(windows),
            quota: quota.amount(),
            begins: begins.iter().map(|at| at * SECOND).collect(),
            used: 0,
            window: usize::MAX,
        }
    }

    /// Moves on to the current window; returns what is left in it, and its end.
    fn turn(&mut self, now: u64) -> (u64, u64) {
        let next = self.begins.iter().position(|begins| *begins > now);
        let next = next.expect("a boundary");
        if self.window != next {
            (self.window, self.used) = (next, 0);
        }
        (self.quota - self.used, self.begins[next])
    }
}

/// A day that is used up by noon, a week by its sixth day, a month that isn't.
fn rules(zone: &str, days: &[u64], weeks: &[u64], months: &[u64], week: Weekday) -> Vec<Rule> {
    let windows = || CalendarWindow::zone(zone).week_starts_on(week);
    vec![
        Rule::new("day", Quota::requests(20).per_day(), windows(), days),
        Rule::new("week", Quota::requests(110).per_week(), windows(), weeks),
        Rule::new("month", Quota::requests(150).per_month(), windows(), months),
    ]
}

/// Two requests an hour, between the hours and on them, three policies on each; each store's decision is that of a
/// count by the hard-coded boundaries.
async fn eight_days(mut rules: Vec<Rule>, from: u64) {
    let from = from * SECOND;
    let stores: Vec<_> = worlds(from).collect();
    let policies = || rules.iter().map(|rule| rule.policy.clone());
    let limiters: Vec<_> = stores
        .iter()
        .map(|world| world.limiter(policies()))
        .collect();
    let (mut admitted, mut rejected) = (0, 0);
    for step in 0..=8 * 24 * 2 {
        // On a boundary, the instant before it, and in between.
        for shift in [0, HOUR / 2 - 1] {
            let now = from + step * HOUR / 2 + shift;
            let outlook: Vec<_> = rules.iter_mut().map(|rule| rule.turn(now)).collect();
            let passes = outlook.iter().all(|(left, _)| *left > 0);
            for (world, limiter) in stores.iter().zip(&limiters) {
                world.set(now);
                let decision = limiter.check(KEY).await;
                let _case = Case(format!("{} at {} of {now}", world.name(), now - from));
                assert_eq!(admitted_by_store(&decision), passes, "{outlook:?}");
                compare(&decision, &outlook, now, passes);
            }
            match passes {
                true => {
                    rules.iter_mut().for_each(|rule| rule.used += 1);
                    admitted += 1;
                }
                false => rejected += 1,
            }
        }
    }
    assert!(admitted > 100 && rejected > 100, "{admitted}, {rejected}");
    stores.iter().for_each(World::no_key_is_immortal);
}

fn compare(decision: &Decision, outlook: &[(u64, u64)], now: u64, passed: bool) {
    for (policy, (left, ends)) in decision.policies().zip(outlook) {
        let left = left - u64::from(passed);
        assert_eq!(policy.remaining(), left, "{policy:?}");
        let wait = policy.retry_after().duration().expect("a wait").as_micros() as u64;
        let honest = if left > 0 { 0 } else { ends - now };
        let bounds = honest..=honest + 2_000;
        assert!(bounds.contains(&wait), "{policy:?}, not {honest}");
    }
    assert_eq!(decision.policies().len(), outlook.len());
}

/// The first instants of windows that are so many hours long.
fn begins(first: u64, hours: &[u64]) -> Vec<u64> {
    let lengths = hours.iter().map(|hours| hours * 3_600);
    let ends = lengths.scan(first, |begins, length| {
        *begins += length;
        Some(*begins)
    });
    std::iter::once(first).chain(ends).collect()
}

/// A day of 25 hours on Sunday, November 1, which is a new month.
#[tokio::test]
async fn eight_days_across_the_end_of_daylight_saving_time_in_new_york() {
    // From 2026-10-29 Thu 00:00 -04:00, and from October 1.
    let days = begins(1_793_246_400, &[24, 24, 24, 25, 24, 24, 24, 24]);
    let months = begins(1_790_827_200, &[744, 721]);
    // From October 26, and from October 25.
    for (weeks, first) in [
        (begins(1_792_987_200, &[169, 168]), Weekday::Monday),
        (begins(1_792_900_800, &[168, 169]), Weekday::Sunday),
    ] {
        let rules = rules("America/New_York", &days, &weeks, &months, first);
        eight_days(rules, days[0]).await;
    }
}

/// A day of 23 hours on Sunday, March 28.
#[tokio::test]
async fn eight_days_across_the_start_of_daylight_saving_time_in_berlin() {
    // From 2027-03-24 Wed 00:00 +01:00, from March 1, and from March 22.
    let days = begins(1_805_842_800, &[24, 24, 24, 24, 23, 24, 24, 24, 24]);
    let months = begins(1_803_855_600, &[743, 720]);
    let weeks = begins(1_805_670_000, &[167, 168]);
    let rules = rules("Europe/Berlin", &days, &weeks, &months, Weekday::Monday);
    eight_days(rules, days[0]).await;
}

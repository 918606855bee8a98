//! Eight days of traffic.

use tollgate::{CalendarWindow, Decision, Key, Policy, Quota, Weekday};

use crate::calendar::support::{HOUR, SECOND, World, admitted_by_store};

/// A policy, its quota, and where its windows begin, in seconds since 1970 (computed by Python's `zoneinfo`).
struct Rule {
    policy: Policy,
    quota: u64,
    begins: Vec<i64>,
    used: u64,
    window: usize,
}

impl Rule {
    fn new(name: &str, quota: Quota, windows: CalendarWindow, begins: &[i64]) -> Self {
        Self {
            policy: Policy::new(name, quota).strategy(windows),
            quota: quota.amount(),
            begins: begins.iter().map(|at| at * SECOND).collect(),
            used: 0,
            window: usize::MAX,
        }
    }

    /// Moves on to the current window; returns what is left in it, and its end.
    fn turn(&mut self, now: i64) -> (u64, i64) {
        let next = self
            .begins
            .iter()
            .position(|begins| *begins > now)
            .expect("a boundary");
        if self.window != next {
            (self.window, self.used) = (next, 0);
        }
        (self.quota - self.used, self.begins[next])
    }
}

/// A day that is used up by noon, a week by its sixth day, a month that isn't.
fn rules(zone: &str, days: &[i64], weeks: &[i64], months: &[i64], week: Weekday) -> Vec<Rule> {
    let windows = || CalendarWindow::zone(zone).week_starts_on(week);
    vec![
        Rule::new("day", Quota::requests(20).per_day(), windows(), days),
        Rule::new("week", Quota::requests(110).per_week(), windows(), weeks),
        Rule::new("month", Quota::requests(150).per_month(), windows(), months),
    ]
}

/// Two requests an hour, between the hours and on them, three policies on each; each store's decision is that of a
/// count by the hard-coded boundaries.
async fn eight_days(mut rules: Vec<Rule>, from: i64) {
    let from = from * SECOND;
    let stores = World::both(from);
    let limiters = stores
        .each_ref()
        .map(|world| world.limiter(rules.iter().map(|rule| rule.policy.clone())));
    let (mut admitted, mut rejected) = (0, 0);
    for step in 0..=8 * 24 * 2 {
        // On a boundary, the instant before it, and in between.
        for shift in [0, HOUR / 2 - 1] {
            let now = from + step * HOUR / 2 + shift;
            let outlook: Vec<_> = rules.iter_mut().map(|rule| rule.turn(now)).collect();
            let passes = outlook.iter().all(|(left, _)| *left > 0);
            for (world, limiter) in stores.iter().zip(&limiters) {
                world.set(now);
                let decision = limiter.check(Key::new("key")).await;
                let case = format!("{} at {} of {now}", world.name(), now - from);
                assert_eq!(
                    admitted_by_store(&decision),
                    passes,
                    "{case}: {outlook:?} {decision:?}"
                );
                compare(&decision, &outlook, now, passes, &case);
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
    assert!(
        admitted > 100 && rejected > 100,
        "{admitted} admitted, {rejected} rejected"
    );
    stores.iter().for_each(World::holds_nothing_immortal);
}

fn compare(decision: &Decision, outlook: &[(u64, i64)], now: i64, passed: bool, case: &str) {
    for (policy, (left, ends)) in decision.policies().zip(outlook) {
        let left = left - u64::from(passed);
        assert_eq!(policy.remaining(), left, "{case}: {policy:?}");
        let wait = policy.retry_after().duration().expect("a wait").as_micros() as i64;
        let honest = if left > 0 { 0 } else { ends - now };
        assert!(
            (honest..=honest + 2_000).contains(&wait),
            "{case}: {policy:?}, not {honest}"
        );
    }
    assert_eq!(decision.policies().len(), outlook.len());
}

/// A day of 25 hours on Sunday, November 1, which is a new month.
#[tokio::test]
async fn eight_days_across_the_end_of_daylight_saving_time_in_new_york() {
    let days = [
        1_793_246_400, // 2026-10-29 Thu 00:00 -04:00
        1_793_332_800, // Fri
        1_793_419_200, // Sat
        1_793_505_600, // 2026-11-01 Sun 00:00 -04:00, 25 h
        1_793_595_600, // 2026-11-02 Mon 00:00 -05:00
        1_793_682_000, // Tue
        1_793_768_400, // Wed
        1_793_854_800, // Thu
        1_793_941_200, // 2026-11-06 Fri 00:00 -05:00
    ];
    let months = [1_790_827_200, 1_793_505_600, 1_796_101_200]; // October 1, November 1, December 1
    let mondays = [1_792_987_200, 1_793_595_600, 1_794_200_400]; // October 26, November 2, November 9
    eight_days(
        rules(
            "America/New_York",
            &days,
            &mondays,
            &months,
            Weekday::Monday,
        ),
        days[0],
    )
    .await;
    let sundays = [1_792_900_800, 1_793_505_600, 1_794_114_000]; // October 25, November 1, November 8
    eight_days(
        rules(
            "America/New_York",
            &days,
            &sundays,
            &months,
            Weekday::Sunday,
        ),
        days[0],
    )
    .await;
}

/// A day of 23 hours on Sunday, March 28.
#[tokio::test]
async fn eight_days_across_the_start_of_daylight_saving_time_in_berlin() {
    let days = [
        1_805_842_800, // 2027-03-24 Wed 00:00 +01:00
        1_805_929_200, // Thu
        1_806_015_600, // Fri
        1_806_102_000, // Sat
        1_806_188_400, // 2027-03-28 Sun 00:00 +01:00, 23 h
        1_806_271_200, // 2027-03-29 Mon 00:00 +02:00
        1_806_357_600, // Tue
        1_806_444_000, // Wed
        1_806_530_400, // 2027-04-01 Thu 00:00 +02:00
        1_806_616_800, // Fri
    ];
    let months = [1_803_855_600, 1_806_530_400, 1_809_122_400]; // March 1, April 1, May 1
    let mondays = [1_805_670_000, 1_806_271_200, 1_806_876_000]; // March 22, March 29, April 5
    eight_days(
        rules("Europe/Berlin", &days, &mondays, &months, Weekday::Monday),
        days[0],
    )
    .await;
}

//! Where windows begin and end.
//!
//! The boundaries were computed by Python's `zoneinfo` (tzdata 2026), as the first minute whose local date is the next one or a
//! later one: no rule of a zone was used, and no code of this crate.

use tollgate_tests::{prelude::*, world::fresh_key};

use super::{check, exhaust};

const SECOND: u64 = 1_000_000;
const HOUR: u64 = 3_600 * SECOND;

const REQUESTS: u64 = 3;

/// Such as `Europe/Berlin`, `UTC`, `epoch`, or minutes from UTC as in `+330`; in `sunday:UTC` weeks begin on Sunday.
fn calendar(text: &str) -> CalendarWindow {
    let minutes = |text: &str| secs(text.parse::<u64>().expect(text) * 60);
    match text.split_at(1) {
        ("+", east) => CalendarWindow::east_of_utc(minutes(east)),
        ("-", west) => CalendarWindow::west_of_utc(minutes(west)),
        _ if text == "UTC" => CalendarWindow::utc(),
        _ if text == "epoch" => CalendarWindow::from_epoch(),
        _ => match text.strip_prefix("sunday:") {
            Some(text) => calendar(text).week_starts_on(Weekday::Sunday),
            None => CalendarWindow::zone(text),
        },
    }
}

/// A policy of three requests.
fn policy(unit: &str, text: &str) -> Policy {
    let quota = quota(&format!("{REQUESTS}/{unit}"));
    Policy::new("calendar", quota).strategy(calendar(text))
}

/// Steps through the windows of each row, `day of Europe/Berlin from 1806102000: 24 23 24`: the first of which begins so many seconds
/// after 1970, by their lengths in hours. Each admits exactly the quota, wherever in the window requests come, and the wait of a
/// rejected request ends at the boundary.
async fn windows(rows: &[&str]) {
    for row in rows {
        let (first, hours) = row.split_once(": ").expect(row);
        let words: Vec<&str> = first.split(' ').collect();
        let [unit, "of", calendar, "from", begins] = words[..] else {
            panic!("no row: {row}");
        };
        let begins: u64 = begins.parse().expect(row);
        let hours: Vec<f64> = hours
            .split(' ')
            .map(|text| text.parse().expect(row))
            .collect();
        for world in World::both() {
            world.set(begins * SECOND);
            let _case = Case(format!("{row}, {}", world.name()));
            step_through(&world, policy(unit, calendar), begins * SECOND, &hours).await;
        }
    }
}

async fn step_through(world: &World, policy: Policy, mut begins: u64, hours: &[f64]) {
    let (limiter, key) = (world.limiter([policy]), fresh_key());
    for hours in hours {
        let ends = begins + (hours * HOUR as f64) as u64;
        world.set(begins);
        assert!(check(&limiter, key).await, "its first instant: {begins}");
        world.set(begins + (ends - begins) / 2);
        let used_up = (REQUESTS - 1, ends - world.now());
        assert_eq!(exhaust(&limiter, key, 9).await, used_up, "from {begins}");
        // Wherever in it: its first hours, when it was used up, and its last instants.
        let hours = (1..26).map(|hour| begins + hour * HOUR);
        let hours = hours.filter(|at| *at < ends);
        for at in hours.chain([ends - HOUR, ends - 1_000, ends - 1]) {
            world.set(at.max(begins));
            let (admitted, wait) = exhaust(&limiter, key, 9).await;
            let late = wait - (ends - world.now());
            assert!(admitted == 0 && late <= 2_000, "at {at}: {late} µs late");
        }
        begins = ends;
    }
    world.no_key_is_immortal();
}

#[tokio::test]
async fn windows_begin_and_end_where_the_calendar_has_it_and_each_has_one_quota() {
    windows(&[
        // Days of any length have one quota.
        // From 2026-10-31 Sat 00:00 -04:00, and from 2027-03-13 Sat 00:00 -05:00.
        "day of America/New_York from 1793419200: 24 25 24",
        "day of America/New_York from 1804914000: 24 23 24",
        // From 2027-03-27 Sat 00:00 +01:00.
        "day of Europe/Berlin from 1806102000: 24 23 24",
        // Whose clocks change by half an hour: from 2026-10-03 Sat 00:00 +10:30, and from 2027-04-03 Sat 00:00 +11:00.
        "day of Australia/Lord_Howe from 1790947800: 24 23.5 24",
        "day of Australia/Lord_Howe from 1806670800: 24 24.5 24",
        // Samoa had no December 30 in 2011: a day that a zone skipped is no window. From 2011-12-28 Wed 00:00 -10:00.
        "day of Pacific/Apia from 1325066400: 24 24 24",
        // Days without a midnight begin with their first instant, and days with two with the first.
        // From 2018-11-03 Sat 00:00 -03:00; the next day begins at 01:00 -02:00.
        "day of America/Sao_Paulo from 1541214000: 24 23 24",
        // From 2027-04-29 Thu 00:00 +02:00, and from 2027-03-27 Sat 00:00 +02:00.
        "day of Africa/Cairo from 1808949600: 24 23 24",
        "day of Asia/Beirut from 1806098400: 24 23 24",
        // From 2026-10-24 Sat 00:00 +03:00: at midnight clocks go back to 23:00 of the day that was over.
        "day of Asia/Beirut from 1792789200: 25 24 24",
        // From 2026-10-31 Sat 00:00 -04:00: at 01:00 they go back to midnight, so that there are two of it.
        "day of America/Havana from 1793419200: 24 25 24",
        // From 2010-11-06 Sat 00:00 -02:30: at 00:01 they went back to 23:01, so that a day began twice. It begins the first time.
        "day of America/St_Johns from 1289010600: 24 25 24",
        // Weeks, months and years are as long as they are.
        // From 2026-10-01 00:00 -04:00, and in UTC from 2027-12-01 00:00: February has 29 days in 2028.
        "month of America/New_York from 1790827200: 744 721 744 744 672 743",
        "month of UTC from 1827619200: 744 744 696 744",
        // From 2028-02-28 00:00.
        "day of UTC from 1835308800: 24 24 24",
        // From 2027-01-01 00:00: 2028 has 366 days. In New York from 00:00 -05:00.
        "year of UTC from 1798761600: 8760 8784 8760",
        "year of America/New_York from 1798779600: 8760 8784 8760",
        // From Monday, unless set: from 2026-10-26 Mon 00:00 -04:00, and from 2026-12-28 Mon 00:00, over New Year.
        "week of America/New_York from 1792987200: 169 168 168",
        "week of UTC from 1798416000: 168 168",
        // From 2026-10-25 Sun 00:00 -04:00, and from 2026-12-27 Sun 00:00, over New Year.
        "week of sunday:America/New_York from 1792900800: 168 169 168",
        "week of sunday:UTC from 1798329600: 168 168",
        // Windows from the epoch have one length, and others begin at an offset from UTC.
        // 2027-01-14 Thu, 20,832 days after 1970: 2,976 weeks, which begin on Thursday.
        "week of epoch from 1799884800: 168 168 168",
        "day of epoch from 1799884800: 24 24 24",
        "h of epoch from 1799884800: 1 1 1",
        // 57 years of 365 days, from 2026-12-18 on; 694 months of 30 days, from 2027-01-02 on.
        "year of epoch from 1797552000: 8760 8760 8760",
        "month of epoch from 1798848000: 720 720 720",
        // 2027-01-01 00:00 at +05:30, -09:30 and +14:00.
        "day of +330 from 1798741800: 24 24",
        "day of -570 from 1798795800: 24 24",
        "day of +840 from 1798711200: 24 24",
        // 2027-01-01 00:00 +05:30 is 18:30 UTC.
        "h of +330 from 1798741800: 1 1",
        "h of UTC from 1798740000: 1 1",
    ])
    .await;
}

/// No request came before that hour, so that the window is determined within it.
#[tokio::test]
async fn an_hour_of_two_days_is_in_the_window_of_the_later_one() {
    // 2010-11-08 Mon 00:00 -03:30
    let ends = 1_289_187_000 * SECOND;
    for world in World::both() {
        for into in [30, 60, 61, 1_000, 3_599] {
            let now = (1_289_097_000 + into) * SECOND;
            world.set(now);
            let limiter = world.limiter([policy("day", "America/St_Johns")]);
            let found = exhaust(&limiter, fresh_key(), 9).await;
            assert_eq!(found, (REQUESTS, ends - now), "{into}");
        }
    }
}

/// A window that has ended does not open again.
#[tokio::test]
async fn a_clock_that_steps_back_and_forth_over_an_end_gives_two_windows_and_no_more() {
    // 2026-09-01 00:00 UTC, the end of a month.
    let ends = 1_788_220_800 * SECOND;
    for (unit, text) in [
        ("min", "UTC"),
        ("day", "UTC"),
        ("month", "UTC"),
        ("day", "+0"),
    ] {
        for world in World::both() {
            let (limiter, key) = (world.limiter([policy(unit, text)]), fresh_key());
            let mut admitted = 0;
            for _ in 0..12 {
                for now in [ends - SECOND / 2, ends + SECOND / 4] {
                    world.set(now);
                    admitted += u64::from(check(&limiter, key).await);
                }
            }
            assert!(
                (REQUESTS..=2 * REQUESTS).contains(&admitted),
                "{unit}: {admitted}"
            );
        }
    }
}

#[test]
fn windows_that_cannot_be_are_config_errors() {
    let (zone, berlin) = (CalendarWindow::zone, || {
        CalendarWindow::zone("Europe/Berlin")
    });
    let monday = CalendarWindow::from_epoch().week_starts_on(Weekday::Monday);
    let whole = "a day, a week, a month or a year";
    for (quota, windows, expected) in [
        ("1/day", zone("Europe/Berlim"), "Europe/Berlin"),
        ("1/day", zone(""), "IANA"),
        ("1/day", zone("../../etc/passwd"), "IANA"),
        ("1/h", berlin(), whole),
        ("1/2days", berlin(), whole),
        ("1/week", monday, "thursday"),
        (
            "1/day",
            CalendarWindow::east_of_utc(secs(26 * 3_600)),
            "less than 26 hours",
        ),
        (
            "1/day",
            CalendarWindow::west_of_utc(Duration::MAX),
            "less than 26 hours",
        ),
        ("5/day burst 9", CalendarWindow::utc(), "leave it out"),
        ("5 concurrent", CalendarWindow::utc(), "Concurrency"),
        ("1/1500us", CalendarWindow::utc(), "whole milliseconds"),
    ] {
        let policy = Policy::new("calendar", quota.parse().expect(quota)).strategy(windows);
        let error = Limiter::builder().policy(policy).build().expect_err(quota);
        assert_eq!(error.policy(), Some("calendar"));
        assert!(error.expected().contains(expected), "{error}");
    }
}

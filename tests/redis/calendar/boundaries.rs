//! Where windows begin and end.
//!
//! The boundaries were computed by Python's `zoneinfo` (tzdata 2026), as the first minute whose local date is the next one or a
//! later one: no rule of a zone was used, and no code of this crate.

use tollgate_tests::{prelude::*, scene::fresh_key};

use super::support::*;

const REQUESTS: u64 = 3;

fn zone(name: &str) -> CalendarWindow {
    CalendarWindow::zone(name)
}

fn east(minutes: u64) -> CalendarWindow {
    CalendarWindow::east_of_utc(secs(minutes * 60))
}

/// A policy of three requests.
fn policy(unit: &str, windows: &CalendarWindow) -> Policy {
    let quota = format!("{REQUESTS}/{unit}");
    Policy::new("calendar", quota.parse().expect(unit)).strategy(windows.clone())
}

/// Steps through windows of a unit, the first of which begins so many seconds after 1970, by their lengths in hours: each admits
/// exactly the quota, wherever in the window requests come, and the wait of a rejected request ends at the boundary.
async fn windows(unit: &str, windows: CalendarWindow, begins: u64, hours: &[f64]) {
    for world in worlds(begins * SECOND) {
        let (limiter, key) = (world.limiter([policy(unit, &windows)]), fresh_key());
        let mut begins = begins * SECOND;
        for hours in hours {
            let ends = begins + (hours * HOUR as f64) as u64;
            let name = world.name();
            let _case = Case(format!("{windows:?}, {name}, from {}", begins / SECOND));
            world.set(begins);
            assert!(check(&limiter, key).await, "its first instant");
            world.set(begins + (ends - begins) / 2);
            let used_up = (REQUESTS - 1, ends - world.now());
            assert_eq!(exhaust(&limiter, key, 9).await, used_up);
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
}

#[tokio::test]
async fn a_day_of_any_length_has_one_quota() {
    for (name, begins, hours) in [
        // From 2026-10-31 Sat 00:00 -04:00, and from 2027-03-13 Sat 00:00 -05:00.
        ("America/New_York", 1_793_419_200, [24., 25., 24.]),
        ("America/New_York", 1_804_914_000, [24., 23., 24.]),
        // From 2027-03-27 Sat 00:00 +01:00.
        ("Europe/Berlin", 1_806_102_000, [24., 23., 24.]),
        // Whose clocks change by half an hour: from 2026-10-03 Sat 00:00 +10:30, and from 2027-04-03 Sat 00:00 +11:00.
        ("Australia/Lord_Howe", 1_790_947_800, [24., 23.5, 24.]),
        ("Australia/Lord_Howe", 1_806_670_800, [24., 24.5, 24.]),
    ] {
        windows("day", zone(name), begins, &hours).await;
    }
}

#[tokio::test]
async fn a_day_without_a_midnight_begins_with_its_first_instant() {
    for (name, begins, hours) in [
        // From 2018-11-03 Sat 00:00 -03:00; the next day begins at 01:00 -02:00.
        ("America/Sao_Paulo", 1_541_214_000, [24., 23., 24.]),
        // From 2027-04-29 Thu 00:00 +02:00, and from 2027-03-27 Sat 00:00 +02:00.
        ("Africa/Cairo", 1_808_949_600, [24., 23., 24.]),
        ("Asia/Beirut", 1_806_098_400, [24., 23., 24.]),
    ] {
        windows("day", zone(name), begins, &hours).await;
    }
}

#[tokio::test]
async fn a_day_with_a_repeated_hour_at_midnight_has_one_quota() {
    for (name, begins, hours) in [
        // From 2026-10-24 Sat 00:00 +03:00: at midnight clocks go back to 23:00 of the day that was over.
        ("Asia/Beirut", 1_792_789_200, [25., 24., 24.]),
        // From 2026-10-31 Sat 00:00 -04:00: at 01:00 they go back to midnight, so that there are two of it.
        ("America/Havana", 1_793_419_200, [24., 25., 24.]),
        // From 2010-11-06 Sat 00:00 -02:30: at 00:01 they went back to 23:01, so that a day began twice. It begins the first time.
        ("America/St_Johns", 1_289_010_600, [24., 25., 24.]),
    ] {
        windows("day", zone(name), begins, &hours).await;
    }
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
            let limiter = world.limiter([policy("day", &zone("America/St_Johns"))]);
            let found = exhaust(&limiter, fresh_key(), 9).await;
            assert_eq!(found, (REQUESTS, ends - now), "{into}");
        }
    }
}

/// Samoa had no December 30 in 2011.
#[tokio::test]
async fn a_day_that_a_zone_skipped_is_no_window() {
    // From 2011-12-28 Wed 00:00 -10:00.
    windows("day", zone("Pacific/Apia"), 1_325_066_400, &[24.; 3]).await;
}

#[tokio::test]
async fn months_are_as_long_as_they_are() {
    // From 2026-10-01 00:00 -04:00, and in UTC from 2027-12-01 00:00: February has 29 days in 2028.
    let new_york = [744., 721., 744., 744., 672., 743.];
    windows("month", zone("America/New_York"), 1_790_827_200, &new_york).await;
    let leap_year = [744., 744., 696., 744.];
    windows("month", CalendarWindow::utc(), 1_827_619_200, &leap_year).await;
    // From 2028-02-28 00:00.
    windows("day", CalendarWindow::utc(), 1_835_308_800, &[24.; 3]).await;
}

#[tokio::test]
async fn years_are_those_of_the_calendar() {
    // From 2027-01-01 00:00: 2028 has 366 days. In New York from 00:00 -05:00.
    let hours = [8_760., 8_784., 8_760.];
    windows("year", CalendarWindow::utc(), 1_798_761_600, &hours).await;
    windows("year", zone("America/New_York"), 1_798_779_600, &hours).await;
}

#[tokio::test]
async fn windows_from_the_epoch_have_one_length_and_weeks_begin_on_thursday() {
    let days = |days: u64| days * 86_400;
    for (unit, begins, hours) in [
        // 2027-01-14 Thu, 20,832 days after 1970: 2,976 weeks.
        ("week", days(20_832), 168.),
        // 57 years of 365 days, from 2026-12-18 on; 694 months of 30 days, from 2027-01-02 on.
        ("year", days(57 * 365), 8_760.),
        ("month", days(694 * 30), 720.),
        ("day", days(20_832), 24.),
        ("h", days(20_832), 1.),
    ] {
        windows(unit, CalendarWindow::from_epoch(), begins, &[hours; 3]).await;
    }
}

#[tokio::test]
async fn weeks_begin_on_monday_unless_set() {
    // From 2026-10-26 Mon 00:00 -04:00, and from 2026-12-28 Mon 00:00, over New Year.
    let new_york = [169., 168., 168.];
    windows("week", zone("America/New_York"), 1_792_987_200, &new_york).await;
    windows("week", CalendarWindow::utc(), 1_798_416_000, &[168.; 2]).await;
}

#[tokio::test]
async fn weeks_begin_on_sunday_where_that_is_set() {
    let from_sunday = |windows: CalendarWindow| windows.week_starts_on(Weekday::Sunday);
    // From 2026-10-25 Sun 00:00 -04:00, and from 2026-12-27 Sun 00:00, over New Year.
    let new_york = from_sunday(zone("America/New_York"));
    windows("week", new_york, 1_792_900_800, &[168., 169., 168.]).await;
    let utc = from_sunday(CalendarWindow::utc());
    windows("week", utc, 1_798_329_600, &[168.; 2]).await;
}

#[tokio::test]
async fn days_and_hours_begin_at_an_offset_from_utc() {
    // 2027-01-01 00:00 at +05:30, -09:30 and +14:00.
    windows("day", east(330), 1_798_741_800, &[24.; 2]).await;
    let west = CalendarWindow::west_of_utc(secs(570 * 60));
    windows("day", west, 1_798_795_800, &[24.; 2]).await;
    windows("day", east(840), 1_798_711_200, &[24.; 2]).await;
    // 2027-01-01 00:00 +05:30 is 18:30 UTC.
    windows("h", east(330), 1_798_741_800, &[1.; 2]).await;
    windows("h", CalendarWindow::utc(), 1_798_740_000, &[1.; 2]).await;
}

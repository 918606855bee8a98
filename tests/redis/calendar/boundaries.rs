//! Where windows begin and end.
//!
//! The boundaries were computed by Python's `zoneinfo` (tzdata 2026), as the first minute whose local date is the one in
//! the comment or a later one: no rule of a zone was used, and no code of this crate.

use tollgate::{CalendarWindow, Key, Policy, Quota, Weekday};

use crate::calendar::support::{HOUR, SECOND, World, check, exhaust};

const REQUESTS: u64 = 3;

fn per_day() -> Quota {
    Quota::requests(REQUESTS).per_day()
}

fn per_week() -> Quota {
    Quota::requests(REQUESTS).per_week()
}

fn per_month() -> Quota {
    Quota::requests(REQUESTS).per_month()
}

/// Steps through the windows between `boundaries`, in seconds since 1970: each admits exactly the quota, wherever in
/// the window requests come, and the wait of a rejected request ends at the boundary.
async fn windows(quota: Quota, windows: CalendarWindow, boundaries: &[i64]) {
    let boundaries: Vec<_> = boundaries.iter().map(|at| at * SECOND).collect();
    for world in World::both(boundaries[0]) {
        let policy = Policy::new("calendar", quota).strategy(windows.clone());
        let (limiter, key) = (world.limiter([policy]), Key::global());
        for window in boundaries.windows(2) {
            let [begins, ends] = *window else {
                unreachable!()
            };
            let case = format!("{windows:?} {} from {}", world.name(), begins / SECOND);
            world.set(begins);
            assert!(check(&limiter, key).await, "{case}: its first instant");
            world.set(begins + (ends - begins) / 2);
            assert_eq!(
                exhaust(&limiter, key, 9).await,
                (REQUESTS - 1, ends - world.now()),
                "{case}"
            );
            // Wherever in it: its first hours, when it was used up, and its last instants.
            let hours = (1..26)
                .map(|hour| begins + hour * HOUR)
                .filter(|at| *at < ends);
            for at in hours.chain([ends - HOUR, ends - 1_000, ends - 1]) {
                world.set(at.max(begins));
                let (admitted, wait) = exhaust(&limiter, key, 9).await;
                assert_eq!(admitted, 0, "{case} at {at}");
                let late = wait - (ends - world.now());
                assert!(
                    (0..=2_000).contains(&late),
                    "{case} at {at}: late by {late} µs"
                );
            }
        }
        world.holds_nothing_immortal();
    }
}

#[tokio::test]
async fn a_day_of_25_hours_in_new_york_has_one_quota() {
    let days = [
        1_793_419_200, // 2026-10-31 Sat 00:00 -04:00, 24 h
        1_793_505_600, // 2026-11-01 Sun 00:00 -04:00, 25 h
        1_793_595_600, // 2026-11-02 Mon 00:00 -05:00, 24 h
        1_793_682_000, // 2026-11-03 Tue 00:00 -05:00
    ];
    windows(per_day(), CalendarWindow::zone("America/New_York"), &days).await;
}

#[tokio::test]
async fn a_day_of_23_hours_in_new_york_has_one_quota() {
    let days = [
        1_804_914_000, // 2027-03-13 Sat 00:00 -05:00, 24 h
        1_805_000_400, // 2027-03-14 Sun 00:00 -05:00, 23 h
        1_805_083_200, // 2027-03-15 Mon 00:00 -04:00, 24 h
        1_805_169_600, // 2027-03-16 Tue 00:00 -04:00
    ];
    windows(per_day(), CalendarWindow::zone("America/New_York"), &days).await;
}

#[tokio::test]
async fn a_day_of_23_hours_in_berlin_has_one_quota() {
    let days = [
        1_806_102_000, // 2027-03-27 Sat 00:00 +01:00, 24 h
        1_806_188_400, // 2027-03-28 Sun 00:00 +01:00, 23 h
        1_806_271_200, // 2027-03-29 Mon 00:00 +02:00, 24 h
        1_806_357_600, // 2027-03-30 Tue 00:00 +02:00
    ];
    windows(per_day(), CalendarWindow::zone("Europe/Berlin"), &days).await;
}

/// Whose clocks change by half an hour.
#[tokio::test]
async fn days_of_23_and_a_half_and_of_24_and_a_half_hours_have_one_quota() {
    let zone = CalendarWindow::zone("Australia/Lord_Howe");
    let spring = [
        1_790_947_800, // 2026-10-03 Sat 00:00 +10:30, 24 h
        1_791_034_200, // 2026-10-04 Sun 00:00 +10:30, 23.5 h
        1_791_118_800, // 2026-10-05 Mon 00:00 +11:00, 24 h
        1_791_205_200, // 2026-10-06 Tue 00:00 +11:00
    ];
    windows(per_day(), zone.clone(), &spring).await;
    let autumn = [
        1_806_670_800, // 2027-04-03 Sat 00:00 +11:00, 24 h
        1_806_757_200, // 2027-04-04 Sun 00:00 +11:00, 24.5 h
        1_806_845_400, // 2027-04-05 Mon 00:00 +10:30, 24 h
        1_806_931_800, // 2027-04-06 Tue 00:00 +10:30
    ];
    windows(per_day(), zone, &autumn).await;
}

#[tokio::test]
async fn a_day_without_a_midnight_begins_with_its_first_instant() {
    let sao_paulo = [
        1_541_214_000, // 2018-11-03 Sat 00:00 -03:00, 24 h
        1_541_300_400, // 2018-11-04 Sun 01:00 -02:00, 23 h
        1_541_383_200, // 2018-11-05 Mon 00:00 -02:00, 24 h
        1_541_469_600, // 2018-11-06 Tue 00:00 -02:00
    ];
    windows(
        per_day(),
        CalendarWindow::zone("America/Sao_Paulo"),
        &sao_paulo,
    )
    .await;
    let cairo = [
        1_808_949_600, // 2027-04-29 Thu 00:00 +02:00, 24 h
        1_809_036_000, // 2027-04-30 Fri 01:00 +03:00, 23 h
        1_809_118_800, // 2027-05-01 Sat 00:00 +03:00, 24 h
        1_809_205_200, // 2027-05-02 Sun 00:00 +03:00
    ];
    windows(per_day(), CalendarWindow::zone("Africa/Cairo"), &cairo).await;
    let beirut = [
        1_806_098_400, // 2027-03-27 Sat 00:00 +02:00, 24 h
        1_806_184_800, // 2027-03-28 Sun 01:00 +03:00, 23 h
        1_806_267_600, // 2027-03-29 Mon 00:00 +03:00, 24 h
        1_806_354_000, // 2027-03-30 Tue 00:00 +03:00
    ];
    windows(per_day(), CalendarWindow::zone("Asia/Beirut"), &beirut).await;
}

#[tokio::test]
async fn a_day_with_a_repeated_hour_at_midnight_has_one_quota() {
    // At midnight clocks go back to 23:00 of the day that was over.
    let beirut = [
        1_792_789_200, // 2026-10-24 Sat 00:00 +03:00, 25 h
        1_792_879_200, // 2026-10-25 Sun 00:00 +02:00, 24 h
        1_792_965_600, // 2026-10-26 Mon 00:00 +02:00, 24 h
        1_793_052_000, // 2026-10-27 Tue 00:00 +02:00
    ];
    windows(per_day(), CalendarWindow::zone("Asia/Beirut"), &beirut).await;
    // At 01:00 they go back to midnight, so that there are two of it.
    let havana = [
        1_793_419_200, // 2026-10-31 Sat 00:00 -04:00, 24 h
        1_793_505_600, // 2026-11-01 Sun 00:00 -04:00, 25 h
        1_793_595_600, // 2026-11-02 Mon 00:00 -05:00, 24 h
        1_793_682_000, // 2026-11-03 Tue 00:00 -05:00
    ];
    windows(per_day(), CalendarWindow::zone("America/Havana"), &havana).await;
}

/// At 00:01 of November 7 clocks went back to 23:01 of November 6.
#[tokio::test]
async fn a_day_that_begins_twice_begins_the_first_time() {
    let st_johns = [
        1_289_010_600, // 2010-11-06 Sat 00:00 -02:30, 24 h
        1_289_097_000, // 2010-11-07 Sun 00:00 -02:30, 25 h
        1_289_187_000, // 2010-11-08 Mon 00:00 -03:30, 24 h
        1_289_273_400, // 2010-11-09 Tue 00:00 -03:30
    ];
    windows(
        per_day(),
        CalendarWindow::zone("America/St_Johns"),
        &st_johns,
    )
    .await;
}

/// No request came before that hour, so that the window is determined within it.
#[tokio::test]
async fn an_hour_of_two_days_is_in_the_window_of_the_later_one() {
    for into in [30, 60, 61, 1_000, 3_599] {
        let now = (1_289_097_000 + into) * SECOND;
        for world in World::both(now) {
            let policy = Policy::new("calendar", per_day());
            let limiter =
                world.limiter([policy.strategy(CalendarWindow::zone("America/St_Johns"))]);
            let ends = 1_289_187_000 * SECOND; // 2010-11-08 Mon 00:00 -03:30
            let found = exhaust(&limiter, Key::global(), 9).await;
            assert_eq!(
                found,
                (REQUESTS, ends - now),
                "{} {into} s into it",
                world.name()
            );
        }
    }
}

/// Samoa had no December 30 in 2011.
#[tokio::test]
async fn a_day_that_a_zone_skipped_is_no_window() {
    let apia = [
        1_325_066_400, // 2011-12-28 Wed 00:00 -10:00, 24 h
        1_325_152_800, // 2011-12-29 Thu 00:00 -10:00, 24 h
        1_325_239_200, // 2011-12-31 Sat 00:00 +14:00, 24 h
        1_325_325_600, // 2012-01-01 Sun 00:00 +14:00
    ];
    windows(per_day(), CalendarWindow::zone("Pacific/Apia"), &apia).await;
}

#[tokio::test]
async fn months_are_as_long_as_they_are() {
    let new_york = [
        1_790_827_200, // 2026-10-01 00:00 -04:00, 744 h
        1_793_505_600, // 2026-11-01 00:00 -04:00, 721 h
        1_796_101_200, // 2026-12-01 00:00 -05:00, 744 h
        1_798_779_600, // 2027-01-01 00:00 -05:00, 744 h
        1_801_458_000, // 2027-02-01 00:00 -05:00, 672 h
        1_803_877_200, // 2027-03-01 00:00 -05:00, 743 h
        1_806_552_000, // 2027-04-01 00:00 -04:00
    ];
    windows(
        per_month(),
        CalendarWindow::zone("America/New_York"),
        &new_york,
    )
    .await;
}

#[tokio::test]
async fn february_has_29_days_in_2028() {
    let months = [
        1_827_619_200, // 2027-12-01 00:00, 744 h
        1_830_297_600, // 2028-01-01 00:00, 744 h
        1_832_976_000, // 2028-02-01 00:00, 696 h
        1_835_481_600, // 2028-03-01 00:00, 744 h
        1_838_160_000, // 2028-04-01 00:00
    ];
    windows(per_month(), CalendarWindow::utc(), &months).await;
    let days = [
        1_835_308_800, // 2028-02-28 00:00, 24 h
        1_835_395_200, // 2028-02-29 00:00, 24 h
        1_835_481_600, // 2028-03-01 00:00, 24 h
        1_835_568_000, // 2028-03-02 00:00
    ];
    windows(per_day(), CalendarWindow::utc(), &days).await;
}

#[tokio::test]
async fn weeks_begin_on_monday_unless_set() {
    let weeks = [
        1_792_987_200, // 2026-10-26 Mon 00:00 -04:00, 169 h
        1_793_595_600, // 2026-11-02 Mon 00:00 -05:00, 168 h
        1_794_200_400, // 2026-11-09 Mon 00:00 -05:00, 168 h
        1_794_805_200, // 2026-11-16 Mon 00:00 -05:00
    ];
    windows(per_week(), CalendarWindow::zone("America/New_York"), &weeks).await;
    let over_new_year = [
        1_798_416_000, // 2026-12-28 Mon 00:00
        1_799_020_800, // 2027-01-04 Mon 00:00
        1_799_625_600, // 2027-01-11 Mon 00:00
    ];
    windows(per_week(), CalendarWindow::utc(), &over_new_year).await;
}

#[tokio::test]
async fn weeks_begin_on_sunday_where_that_is_set() {
    let weeks = [
        1_792_900_800, // 2026-10-25 Sun 00:00 -04:00, 168 h
        1_793_505_600, // 2026-11-01 Sun 00:00 -04:00, 169 h
        1_794_114_000, // 2026-11-08 Sun 00:00 -05:00, 168 h
        1_794_718_800, // 2026-11-15 Sun 00:00 -05:00
    ];
    let zone = CalendarWindow::zone("America/New_York").week_starts_on(Weekday::Sunday);
    windows(per_week(), zone, &weeks).await;
    let over_new_year = [
        1_798_329_600, // 2026-12-27 Sun 00:00
        1_798_934_400, // 2027-01-03 Sun 00:00
        1_799_539_200, // 2027-01-10 Sun 00:00
    ];
    let utc = CalendarWindow::utc().week_starts_on(Weekday::Sunday);
    windows(per_week(), utc, &over_new_year).await;
}

const MINUTES: u64 = 60;

fn east(minutes: u64) -> CalendarWindow {
    CalendarWindow::east_of_utc(std::time::Duration::from_secs(minutes * MINUTES))
}

#[tokio::test]
async fn days_begin_at_an_offset_from_utc_to_the_east_and_to_the_west() {
    let five_and_a_half_east = [
        1_798_741_800, // 2027-01-01 00:00 +05:30
        1_798_828_200, // 2027-01-02 00:00 +05:30
        1_798_914_600, // 2027-01-03 00:00 +05:30
    ];
    windows(per_day(), east(330), &five_and_a_half_east).await;
    let nine_and_a_half_west = [
        1_798_795_800, // 2027-01-01 00:00 -09:30
        1_798_882_200, // 2027-01-02 00:00 -09:30
        1_798_968_600, // 2027-01-03 00:00 -09:30
    ];
    let west = CalendarWindow::west_of_utc(std::time::Duration::from_secs(570 * MINUTES));
    windows(per_day(), west, &nine_and_a_half_west).await;
    let fourteen_east = [
        1_798_711_200, // 2027-01-01 00:00 +14:00
        1_798_797_600, // 2027-01-02 00:00 +14:00
        1_798_884_000, // 2027-01-03 00:00 +14:00
    ];
    windows(per_day(), east(840), &fourteen_east).await;
}

#[tokio::test]
async fn hours_at_an_offset_of_half_an_hour_begin_at_half_past() {
    let hours = [
        1_798_741_800, // 2027-01-01 00:00 +05:30, which is 18:30 UTC
        1_798_745_400, // 01:00 +05:30
        1_798_749_000, // 02:00 +05:30
    ];
    windows(Quota::requests(REQUESTS).per_hour(), east(330), &hours).await;
    let whole = [
        1_798_740_000, // 2026-12-31 18:00 UTC
        1_798_743_600, // 19:00
        1_798_747_200, // 20:00
    ];
    windows(
        Quota::requests(REQUESTS).per_hour(),
        CalendarWindow::utc(),
        &whole,
    )
    .await;
}

//! Mistakes are found when a limiter is built.

use tollgate_tests::prelude::*;

fn build(quota: Quota, windows: CalendarWindow) -> Result<Limiter, ConfigError> {
    let policy = Policy::new("calendar", quota).strategy(windows);
    Limiter::builder().policy(policy).build()
}

/// The error names the policy, the value that was found, and what is expected in its place.
#[track_caller]
fn is_mistake(quota: &str, windows: CalendarWindow, value: &str, expected: &[&str]) {
    let error = build(quota.parse().expect(quota), windows).expect_err("a mistake");
    assert_eq!(error.policy(), Some("calendar"));
    assert!(error.value().contains(value), "{error}");
    for part in expected {
        assert!(error.expected().contains(part), "{error}");
    }
}

#[test]
fn an_unknown_zone_is_an_error_that_names_it_and_shows_a_valid_one() {
    for name in [
        "Europe/Berlim",
        "",
        "Mars/Phobos",
        "../../etc/passwd",
        "EST5EDT4",
    ] {
        let (zone, value) = (CalendarWindow::zone(name), format!("{name:?}"));
        is_mistake("1/day", zone, &value, &["IANA", "Europe/Berlin"]);
    }
}

#[test]
fn a_zone_can_have_windows_of_days_weeks_months_and_years_and_utc_any() {
    for quota in ["1/s", "1/min", "1/h", "1/2days", "1/366days"] {
        let berlin = CalendarWindow::zone("Europe/Berlin");
        let expected = ["a day, a week, a month or a year"];
        is_mistake(quota, berlin, "Europe/Berlin", &expected);
        assert!(build(quota.parse().expect(quota), CalendarWindow::utc()).is_ok());
    }
    for quota in ["1/day", "1/week", "1/month", "1/year"] {
        for zone in ["America/New_York", "Asia/Kolkata", "UTC", "Etc/GMT+12"] {
            let built = build(quota.parse().expect(quota), CalendarWindow::zone(zone));
            assert!(built.is_ok(), "{quota} {zone}");
        }
    }
}

#[test]
fn weeks_from_the_epoch_begin_on_no_other_day() {
    let from = |day| CalendarWindow::from_epoch().week_starts_on(day);
    for quota in ["1/s", "1/week", "1/90min"] {
        is_mistake(quota, from(Weekday::Monday), "monday", &["thursday"]);
        assert!(build(quota.parse().expect(quota), from(Weekday::Thursday)).is_ok());
    }
}

#[test]
fn an_offset_out_of_range_is_a_config_error() {
    for offset in [secs(26 * 3_600), Duration::MAX] {
        for windows in [CalendarWindow::east_of_utc, CalendarWindow::west_of_utc] {
            is_mistake("1/day", windows(offset), "", &["less than 26 hours"]);
        }
    }
}

#[test]
fn a_calendar_window_with_a_burst_or_in_flight_quota_is_a_config_error() {
    for (quota, expected) in [
        ("5/day burst 9", "leave it out"),
        ("5 concurrent", "Concurrency"),
        ("1/1500us", "whole milliseconds"),
    ] {
        is_mistake(quota, CalendarWindow::utc(), "", &[expected]);
    }
}

//! Mistakes are found when a limiter is built.

use std::time::Duration;

use tollgate::{CalendarWindow, ConfigError, Limiter, Policy, Quota};

fn mistake(quota: Quota, windows: CalendarWindow) -> ConfigError {
    let policy = Policy::new("calendar", quota).strategy(windows);
    let error = Limiter::builder()
        .policy(policy)
        .build()
        .expect_err("a mistake");
    assert_eq!(error.policy(), Some("calendar"));
    error
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
        let error = mistake(Quota::requests(1).per_day(), CalendarWindow::zone(name));
        assert!(error.value().contains(&format!("{name:?}")), "{error}");
        assert!(
            error.expected().contains("IANA") && error.expected().contains("Europe/Berlin"),
            "{error}"
        );
    }
}

#[test]
fn windows_that_a_zone_cannot_have_are_errors_that_list_those_it_can() {
    let quotas = [
        Quota::requests(1).per_second(),
        Quota::requests(1).per_minute(),
        Quota::requests(1).per_hour(),
        Quota::requests(1).per(Duration::from_secs(2 * 86_400)),
        Quota::requests(1).per(Duration::from_secs(365 * 86_400)),
    ];
    for quota in quotas {
        let error = mistake(quota, CalendarWindow::zone("Europe/Berlin"));
        assert!(error.value().contains("Europe/Berlin"), "{error}");
        assert!(
            error.expected().contains("a day, a week or a month"),
            "{error}"
        );
        let policy = Policy::new("calendar", quota).strategy(CalendarWindow::utc());
        Limiter::builder()
            .policy(policy)
            .build()
            .expect("UTC has all of them");
    }
}

#[test]
fn a_zone_can_have_windows_of_days_weeks_and_months() {
    let requests = || Quota::requests(1);
    for quota in [
        requests().per_day(),
        requests().per_week(),
        requests().per_month(),
    ] {
        for zone in ["America/New_York", "Asia/Kolkata", "UTC", "Etc/GMT+12"] {
            let policy = Policy::new("calendar", quota).strategy(CalendarWindow::zone(zone));
            Limiter::builder()
                .policy(policy)
                .build()
                .expect("a limiter");
        }
    }
}

#[test]
fn an_offset_out_of_range_is_a_config_error() {
    for offset in [Duration::from_secs(26 * 3_600), Duration::MAX] {
        for windows in [
            CalendarWindow::east_of_utc(offset),
            CalendarWindow::west_of_utc(offset),
        ] {
            let error = mistake(Quota::requests(1).per_day(), windows);
            assert!(error.expected().contains("less than 26 hours"), "{error}");
        }
    }
}

#[test]
fn a_calendar_window_with_a_burst_or_in_flight_quota_is_a_config_error() {
    let error = mistake(Quota::requests(5).per_day().burst(9), CalendarWindow::utc());
    assert!(error.expected().contains("leave it out"), "{error}");
    let error = mistake(Quota::concurrent(5), CalendarWindow::utc());
    assert!(error.expected().contains("Concurrency"), "{error}");
    let error = mistake(
        Quota::requests(1).per(Duration::from_micros(1_500)),
        CalendarWindow::utc(),
    );
    assert!(error.expected().contains("whole milliseconds"), "{error}");
}

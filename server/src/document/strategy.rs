//! Strategies by their names.

use tollgate::{
    CalendarWindow, FixedWindow, Gcra, Limiter, ListWindow, Policy, SlidingLog, SlidingWindow,
    TokenBucket,
    strategy::{Strategy, Weekday},
};

/// The strategy without a name in a document.
pub(super) const DEFAULT: &str = "gcra";

/// The text of the strategy that `calendar: true` stands for.
pub(super) const CALENDAR: &str = "calendar_window utc";

const WEEKDAYS: [(&str, Weekday); 7] = [
    ("monday", Weekday::Monday),
    ("tuesday", Weekday::Tuesday),
    ("wednesday", Weekday::Wednesday),
    ("thursday", Weekday::Thursday),
    ("friday", Weekday::Friday),
    ("saturday", Weekday::Saturday),
    ("sunday", Weekday::Sunday),
];

/// What is wrong with a strategy, or with its quota.
#[derive(Debug)]
pub(super) enum Invalid {
    Text(String),
    Quota(String),
}

/// The policy under the strategy of a text, such as `sliding_window buckets 10`.
pub(super) fn with_strategy(policy: Policy, text: &str) -> Result<Policy, Invalid> {
    let words: Vec<_> = text.split_ascii_whitespace().collect();
    match &*words {
        ["gcra"] => with(policy, Gcra),
        ["token_bucket"] => with(policy, TokenBucket),
        ["fixed_window"] => with(policy, FixedWindow),
        ["list_window"] => with(policy, ListWindow),
        ["sliding_log"] => with(policy, SlidingLog),
        ["sliding_window"] => with(policy, SlidingWindow::new()),
        ["sliding_window", "buckets", number] => match number.parse() {
            Ok(buckets) => with(policy, SlidingWindow::buckets(buckets)),
            Err(_) => Err(unknown("a number of buckets")),
        },
        ["calendar_window", settings @ ..] => with(policy, calendar_window(settings)?),
        ["concurrency", ..] => Err(unknown(
            "another: the protocol does not say when a request ends",
        )),
        ["ban", ..] => Err(unknown("another: the service has no bans")),
        _ => Err(unknown(
            "gcra, token_bucket, fixed_window, calendar_window, sliding_window, sliding_log or list_window",
        )),
    }
}

fn calendar_window(settings: &[&str]) -> Result<CalendarWindow, Invalid> {
    let (window, rest) = match settings {
        ["zone", name, rest @ ..] => (CalendarWindow::zone(*name), rest),
        ["from_epoch", rest @ ..] => (CalendarWindow::from_epoch(), rest),
        ["utc", rest @ ..] | rest => (CalendarWindow::utc(), rest),
    };
    match rest {
        [] => Ok(window),
        ["week_starts_on", name] => {
            let day = WEEKDAYS.iter().find(|(known, _)| known == name);
            let (_, day) = day.ok_or_else(|| unknown("a day such as week_starts_on sunday"))?;
            Ok(window.week_starts_on(*day))
        }
        _ => Err(unknown(
            "utc, from_epoch or zone Europe/Berlin, and week_starts_on sunday",
        )),
    }
}

fn unknown(expected: &str) -> Invalid {
    Invalid::Text(expected.to_owned())
}

/// The policy under a strategy that can count its quota.
fn with(policy: Policy, strategy: impl Strategy) -> Result<Policy, Invalid> {
    let policy = policy.strategy(strategy);
    match Limiter::builder().policy(policy.clone()).build() {
        Ok(_) => Ok(policy),
        Err(error) => Err(Invalid::Quota(error.to_string())),
    }
}

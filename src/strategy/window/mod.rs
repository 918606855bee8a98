//! Strategies that count in windows, and what they share: which quotas they can count, which window an instant is in, and
//! what a request may expect of one.

use std::time::Duration;

use jiff::{
    ToSpan,
    civil::{self, Date},
    tz::TimeZone,
};

use crate::{
    clock::Timestamp,
    error::InvalidValue,
    quota::{MAX_CAPACITY, Quota},
    strategy::{Lease, QuotaStatus, RetryAfter, RuleInfo, Snapshot, Terms},
};

pub(crate) mod calendar_window;
pub(crate) mod fixed_window;
pub(crate) mod list_window;
pub(crate) mod sliding_log;
pub(crate) mod sliding_window;

pub(crate) use calendar_window::CalendarWindow;
pub(crate) use fixed_window::FixedWindow;
pub(crate) use list_window::ListWindow;
pub(crate) use sliding_log::SlidingLog;
pub(crate) use sliding_window::SlidingWindow;

/// The largest count; twice that, a debt, is still exact in Lua.
const MAX_COUNT: u64 = MAX_CAPACITY;

/// The longest window: its end is a number of milliseconds since the epoch, which Lua must hold exactly.
const MAX_PERIOD: Duration = Duration::from_secs(100 * 365 * 86_400);

/// The period, in microseconds, of a quota for windows of at most `max_count` units.
pub(super) fn validated_period_us(
    quota: &Quota,
    kind: &str,
    max_count: u64,
) -> Result<i64, InvalidValue> {
    let period = quota.validated_period_us()?;
    if quota.capacity() != quota.amount() {
        return Err(InvalidValue::new(
            format!("{quota}, a burst of its own for a {kind}"),
            "no burst, since a window's is its number of requests: leave it out",
        ));
    }
    if quota.amount() > max_count {
        return Err(InvalidValue::new(
            format!("{quota}, more than a {kind} can count"),
            format!("at most {max_count} requests"),
        ));
    }
    if period % 1_000 != 0 || quota.period() > MAX_PERIOD {
        return Err(InvalidValue::new(
            format!("{quota}, a period that a {kind} can't have"),
            "whole milliseconds, at most 100 years",
        ));
    }
    Ok(period as i64)
}

/// A day of the week.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Weekday {
    /// Monday, on which weeks start unless set (ISO 8601).
    #[default]
    Monday,
    /// Tuesday.
    Tuesday,
    /// Wednesday.
    Wednesday,
    /// Thursday.
    Thursday,
    /// Friday.
    Friday,
    /// Saturday.
    Saturday,
    /// Sunday.
    Sunday,
}

impl Weekday {
    /// The days of a week.
    pub(crate) const ALL: [Self; 7] = [
        Self::Monday,
        Self::Tuesday,
        Self::Wednesday,
        Self::Thursday,
        Self::Friday,
        Self::Saturday,
        Self::Sunday,
    ];

    /// The day's name in a configuration document.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Monday => "monday",
            Self::Tuesday => "tuesday",
            Self::Wednesday => "wednesday",
            Self::Thursday => "thursday",
            Self::Friday => "friday",
            Self::Saturday => "saturday",
            Self::Sunday => "sunday",
        }
    }

    fn civil(self) -> civil::Weekday {
        match self {
            Self::Monday => civil::Weekday::Monday,
            Self::Tuesday => civil::Weekday::Tuesday,
            Self::Wednesday => civil::Weekday::Wednesday,
            Self::Thursday => civil::Weekday::Thursday,
            Self::Friday => civil::Weekday::Friday,
            Self::Saturday => civil::Weekday::Saturday,
            Self::Sunday => civil::Weekday::Sunday,
        }
    }
}

/// Windows that follow each other without a gap.
#[derive(Clone, Debug)]
enum Windows {
    /// Of equal length; one begins `offset` after the epoch. In microseconds.
    Even { period: i64, offset: i64 },
    /// Days, weeks, months or years.
    Calendar { zone: TimeZone, unit: CalendarUnit },
}

#[derive(Clone, Copy, Debug)]
enum CalendarUnit {
    Day,
    /// A week from this day on.
    Week(civil::Weekday),
    Month,
    Year,
}

impl Windows {
    /// When the window that contains `now` begins and ends, in microseconds since the epoch.
    fn window_at(&self, now: i64) -> (i64, i64) {
        match self {
            Self::Even { period, offset } => {
                let windows = now.saturating_sub(*offset).div_euclid(*period);
                let start = windows.saturating_mul(*period).saturating_add(*offset);
                (start, start.saturating_add(*period))
            }
            Self::Calendar { zone, unit } => {
                // Outside of the years that jiff supports there is one window that never ends.
                unit.window_at(zone, now).unwrap_or((i64::MIN, i64::MAX))
            }
        }
    }
}

impl CalendarUnit {
    fn window_at(self, zone: &TimeZone, now: i64) -> Option<(i64, i64)> {
        let instant = jiff::Timestamp::from_microsecond(now).ok()?;
        let today = zone.to_datetime(instant).date();
        let (starts, ends) = self.window_of(zone, today)?;
        if now < ends {
            return Some((starts, ends));
        }
        // The zone's clocks went back over midnight, so that this date comes twice: its window has ended.
        self.window_of(zone, today.tomorrow().ok()?)
    }

    /// The window that contains a date.
    fn window_of(self, zone: &TimeZone, date: Date) -> Option<(i64, i64)> {
        let (first, next) = match self {
            Self::Day => (date, date.tomorrow().ok()?),
            Self::Week(start) => {
                let since = date.weekday().since(start);
                let first = date.checked_sub(i64::from(since).days()).ok()?;
                (first, first.checked_add(7.days()).ok()?)
            }
            Self::Month => {
                let first = date.first_of_month();
                (first, first.checked_add(1.month()).ok()?)
            }
            Self::Year => {
                let first = date.first_of_year();
                (first, first.checked_add(1.year()).ok()?)
            }
        };
        // Where midnight doesn't exist, a day begins with its first instant.
        let begins = |date: Date| {
            let begins = date.to_zoned(zone.clone()).ok()?.start_of_day().ok()?;
            Some(begins.timestamp().as_microsecond())
        };
        Some((begins(first)?, begins(next)?))
    }
}

/// A window of which `count` of `requests` units are used, and which ends at `ends` if it has begun.
#[derive(Clone, Copy, Debug)]
struct Window {
    requests: u64,
    count: i64,
    ends: Option<i64>,
}

impl Window {
    fn status(self, now: Timestamp, cost: u64) -> QuotaStatus {
        let left = self.requests as i64 - self.count;
        let reset_after = self.ends.map_or(Duration::ZERO, |ends| {
            Timestamp::from_micros(ends).since(now)
        });
        let retry_after = if cost > self.requests {
            RetryAfter::Never
        } else if left >= cost as i64 {
            RetryAfter::Now
        } else {
            RetryAfter::In(reset_after)
        };
        QuotaStatus {
            remaining: left.max(0) as u64,
            retry_after,
            reset_after,
        }
    }
}

/// A quota in windows that each begin with the first charge after the one before, as [`FixedWindow`] and [`ListWindow`] count them.
#[derive(Clone, Debug)]
struct OpenedWindows {
    requests: u64,
    /// In microseconds.
    period: i64,
    lease: Option<Lease>,
}

impl OpenedWindows {
    fn new(quota: &Quota, terms: &Terms, kind: &str, max_count: u64) -> Result<Self, InvalidValue> {
        Ok(Self {
            requests: quota.amount(),
            period: validated_period_us(quota, kind, max_count)?,
            lease: terms.lease,
        })
    }

    fn info(&self, state_format: &'static str) -> RuleInfo {
        RuleInfo {
            snapshot_ignores_cost: true,
            lease: self.lease,
            ..RuleInfo::new(state_format, self.requests)
        }
    }

    /// The current window, by the count and the end of the last one: its count, its end, and whether it is fresh, so that it
    /// opens with the next charge.
    fn current(&self, (count, ends): (u64, i64), now: Timestamp) -> (u64, i64, bool) {
        let now = now.as_micros();
        let opened = now.saturating_add(self.period);
        if ends <= now {
            (0, opened, true)
        } else {
            // A window that would outlast its period, because the clock stepped back, ends one period from now.
            (count, ends.min(opened), false)
        }
    }

    fn status(
        &self,
        &Snapshot([count, ends, fresh]): &Snapshot,
        now: Timestamp,
        cost: u64,
    ) -> QuotaStatus {
        let window = Window {
            requests: self.requests,
            count,
            // 0 and 2: a window is open. 2 is reported by the Lua half alone.
            ends: matches!(fresh, 0 | 2).then_some(ends),
        };
        window.status(now, cost)
    }

    /// The parameters `p` of the Lua halves.
    fn params(&self) -> [i64; 2] {
        [self.requests as i64, self.period / 1_000]
    }
}

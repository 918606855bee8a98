use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
    time::Duration,
};

use jiff::{
    ToSpan,
    civil::{self, Date},
    tz::{Offset, TimeZone},
};

use super::{
    ChargeReceipt, ErasedLocalRule, LocalRule, LuaScript, QuotaStatus, Rule, Snapshot, State,
    Strategy,
    window::{self, MOST, Window},
};
use crate::{clock::Timestamp, error::InvalidValue, key::Key, quota::Quota};

/// One counter per window of the calendar: each second, minute, hour, day, week or month, in UTC, at an offset from it, or in
/// a time zone.
///
/// - **Rule**: a charge of n units is admitted if the count of the current window stays within the quota. A day, a week
///   (from Monday unless set) and a month (a period of 30 days is taken for one) are the calendar's own, as long or
///   short as they are, daylight-saving time included. Other periods follow each other from midnight, January 1, 1970.
/// - **Clock**: windows follow the [wall clock](crate::Clock::wall), also in process. A window that has ended doesn't open
///   again if the clock steps back: the next one stays current, and takes all charges. Only a clock that steps back by more
///   than a window's length opens earlier ones, less what was used in the newest. A key whose next window was never used
///   remembers the one that ended for as long as that lasted, an hour at most.
/// - **Memory**: one short string a key, until an hour (or the window's length, if that is less) after the window.
/// - **Worst case over one period**: 2 x requests, across the edge of two windows.
/// - **Choose it** for quotas by the calendar: 5,000 a day, from midnight on.
///
/// ```
/// use tollgate::{CalendarWindow, Policy, Quota};
///
/// let daily = Policy::new("daily", Quota::requests(5_000).per_day()).strategy(CalendarWindow::utc());
/// let in_shanghai = Policy::new("daily", Quota::requests(5_000).per_day())
///     .strategy(CalendarWindow::zone("Asia/Shanghai"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CalendarWindow {
    place: Place,
    week_start: Weekday,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Place {
    /// Seconds east of UTC.
    Offset(i64),
    Zone(String),
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

impl CalendarWindow {
    /// Windows of UTC.
    pub fn utc() -> Self {
        Self::place(Place::Offset(0))
    }

    /// Windows of a clock that is `ahead` of UTC: east of Greenwich.
    pub fn east_of_utc(ahead: Duration) -> Self {
        Self::place(Place::Offset(
            ahead.as_secs().try_into().unwrap_or(i64::MAX),
        ))
    }

    /// Windows of a clock that is `behind` UTC: west of Greenwich.
    pub fn west_of_utc(behind: Duration) -> Self {
        let behind: i64 = behind.as_secs().try_into().unwrap_or(i64::MAX);
        Self::place(Place::Offset(-behind))
    }

    /// Windows of a time zone of the IANA database, such as `Asia/Shanghai`. The system's copy of the database is used;
    /// feature `time-zones` brings one along.
    pub fn zone(name: impl Into<String>) -> Self {
        Self::place(Place::Zone(name.into()))
    }

    /// Starts weeks on `day`, in place of Monday.
    #[must_use]
    pub fn week_starts_on(mut self, day: Weekday) -> Self {
        self.week_start = day;
        self
    }

    fn place(place: Place) -> Self {
        Self {
            place,
            week_start: Weekday::Monday,
        }
    }

    fn time_zone(&self) -> Result<TimeZone, InvalidValue> {
        match &self.place {
            Place::Offset(seconds) => {
                let offset = i32::try_from(*seconds).ok().map(Offset::from_seconds);
                match offset {
                    Some(Ok(offset)) => Ok(TimeZone::fixed(offset)),
                    _ => Err(InvalidValue::new(
                        format!("a clock {seconds} seconds from UTC"),
                        "less than 26 hours",
                    )),
                }
            }
            Place::Zone(name) => TimeZone::get(name).map_err(|error| {
                InvalidValue::new(
                    format!("the time zone {name:?} ({error})"),
                    "a name of the IANA database, such as \"Europe/Berlin\"; \
                     if this machine has no such database, enable feature `time-zones`",
                )
            }),
        }
    }
}

const DAY: i64 = 86_400_000_000;

impl Strategy for CalendarWindow {
    fn bind(&self, quota: &Quota) -> Result<Arc<dyn Rule>, InvalidValue> {
        let period = window::checked(quota, "calendar window", MOST)?;
        let zone = self.time_zone()?;
        let unit = match period / DAY {
            1 => Unit::Day,
            7 => Unit::Week(self.week_start),
            30 => Unit::Month,
            _ => Unit::Day,
        };
        let by_calendar = [DAY, 7 * DAY, 30 * DAY].contains(&period);
        let windows = match &self.place {
            _ if by_calendar => Windows::Calendar { zone, unit },
            Place::Offset(seconds) => Windows::Even {
                period,
                offset: (-seconds * 1_000_000).rem_euclid(period),
            },
            Place::Zone(name) => {
                return Err(InvalidValue::new(
                    format!("{quota} in time zone {name:?}"),
                    "a day, a week or a month; shorter windows don't differ between time zones, except by their offset",
                ));
            }
        };
        let mut kind = DefaultHasher::new();
        (&self.place, self.week_start, period).hash(&mut kind);
        Ok(Arc::new(Calendar {
            requests: quota.amount(),
            windows,
            kind: kind.finish(),
        }))
    }
}

/// Calendar windows for one quota.
#[derive(Clone, Debug)]
struct Calendar {
    requests: u64,
    windows: Windows,
    /// Tells these windows from those of another length or place.
    kind: u64,
}

#[derive(Clone, Debug)]
enum Windows {
    /// Of equal length, in microseconds.
    Even { period: i64, offset: i64 },
    /// Days, weeks or months.
    Calendar { zone: TimeZone, unit: Unit },
}

#[derive(Clone, Copy, Debug)]
enum Unit {
    Day,
    Week(Weekday),
    Month,
}

impl Windows {
    /// When the window at hand began, and when it ends, in microseconds since the epoch.
    fn around(&self, now: i64) -> (i64, i64) {
        match self {
            Self::Even { period, offset } => {
                let start = offset + (now - offset).div_euclid(*period) * period;
                (start, start + period)
            }
            Self::Calendar { zone, unit } => {
                // Beyond the years that the library knows there is one window that never ends.
                unit.around(zone, now).unwrap_or((i64::MIN, i64::MAX))
            }
        }
    }
}

impl Unit {
    fn around(self, zone: &TimeZone, now: i64) -> Option<(i64, i64)> {
        let instant = jiff::Timestamp::from_microsecond(now).ok()?;
        let today = zone.to_datetime(instant).date();
        let (starts, ends) = self.with(zone, today)?;
        if now < ends {
            return Some((starts, ends));
        }
        // The zone's clocks went back over midnight: what is called today once more is over.
        self.with(zone, today.tomorrow().ok()?)
    }

    /// The window that a date is in.
    fn with(self, zone: &TimeZone, date: Date) -> Option<(i64, i64)> {
        let (first, next) = match self {
            Self::Day => (date, date.tomorrow().ok()?),
            Self::Week(start) => {
                let since = date.weekday().since(start.civil());
                let first = date.checked_sub(i64::from(since).days()).ok()?;
                (first, first.checked_add(7.days()).ok()?)
            }
            Self::Month => {
                let first = date.first_of_month();
                (first, first.checked_add(1.month()).ok()?)
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

impl Weekday {
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

/// A window's count, and the window, in microseconds since the epoch: the newest that was charged. What was counted in a
/// window of another length, which the policy had before, counts in the one at hand while both last.
#[derive(Clone, Copy, Debug, Default)]
struct Counter {
    count: u64,
    starts: i64,
    ends: i64,
    kind: u64,
}

/// How long a window is remembered after its end, at most: a clock that steps back into it by less finds it used up still.
const REMEMBERED: i64 = 3_600_000_000;

impl State for Counter {
    fn expires_at(&self) -> Timestamp {
        let length = self.ends.saturating_sub(self.starts);
        Timestamp::from_micros(self.ends.saturating_add(length.min(REMEMBERED)))
    }
}

impl Calendar {
    /// The window at hand, and its count.
    fn current(&self, state: &Counter, now: Timestamp) -> Counter {
        let now = now.as_micros();
        let lasts = now < state.ends;
        if lasts && state.starts <= now && state.kind == self.kind {
            return *state;
        }
        let (starts, ends) = self.windows.around(now);
        let (starts, kind) = (starts.max(0), self.kind);
        // The clock stepped back into the window before, which is over: it doesn't open again.
        if lasts && state.starts == ends {
            let (starts, ends) = self.windows.around(ends);
            return Counter {
                count: state.count,
                starts,
                ends,
                kind,
            };
        }
        Counter {
            // What was counted in a window that begins only later counts in the one at hand: the clock stepped back by more
            // than a window.
            count: if lasts { state.count } else { 0 },
            starts,
            ends,
            kind,
        }
    }
}

impl LocalRule for Calendar {
    type State = Counter;

    fn available(&self, state: &mut Counter, now: Timestamp) -> i64 {
        let current = self.current(state, now);
        if current.count > 0 {
            *state = current;
        }
        self.requests as i64 - current.count as i64
    }

    fn charge(&self, state: &mut Counter, now: Timestamp, units: u64, _caller: &Key) {
        *state = self.current(state, now);
        state.count += units;
    }

    fn refund(
        &self,
        state: &mut Counter,
        now: Timestamp,
        receipt: &ChargeReceipt,
        want: u64,
        _caller: &Key,
    ) -> u64 {
        let mut current = self.current(state, now);
        if current.ends != receipt.window_id {
            return 0;
        }
        let back = want.min(current.count);
        current.count -= back;
        if back > 0 {
            *state = current;
        }
        back
    }

    fn snapshot(&self, state: &Counter, now: Timestamp, _cost: u64) -> Snapshot {
        let Counter { count, ends, .. } = self.current(state, now);
        Snapshot::new([count as i64, ends])
    }
}

impl Rule for Calendar {
    fn state_format(&self) -> &'static str {
        "c1"
    }

    fn units_in_use(&self, &Snapshot([count, ..]): &Snapshot, _now: Timestamp) -> Option<u64> {
        Some(count.max(0) as u64)
    }

    fn snapshot_ignores_cost(&self) -> bool {
        true
    }

    fn capacity(&self) -> u64 {
        self.requests
    }

    fn status(
        &self,
        &Snapshot([count, ends, _]): &Snapshot,
        now: Timestamp,
        cost: u64,
    ) -> QuotaStatus {
        let window = Window {
            requests: self.requests,
            count,
            ends: Some(ends),
        };
        let mut status = window.status(now, cost);
        if count == 0 {
            status.reset_after = Duration::ZERO;
        }
        status
    }

    fn window_id(&self, &Snapshot([_, ends, _]): &Snapshot, _now: Timestamp) -> i64 {
        ends
    }

    fn follows_wall_clock(&self) -> bool {
        true
    }

    fn script(&self) -> Option<LuaScript> {
        let (period, offset) = match self.windows {
            Windows::Even { period, offset } => (period, offset),
            Windows::Calendar { .. } => (0, 0),
        };
        Some(
            LuaScript::new(
                include_str!("calendar_window.lua"),
                [self.requests as i64, period, offset],
            )
            .snapshot_len(2),
        )
    }

    /// Lua knows no calendar: it is sent the window before, the one at hand and the one after.
    fn time_params(&self, now: Timestamp) -> Vec<i64> {
        if let Windows::Even { .. } = self.windows {
            return Vec::new();
        }
        let (starts, ends) = self.windows.around(now.as_micros());
        let (before, _) = self.windows.around(starts.saturating_sub(1));
        let (_, after) = self.windows.around(ends);
        vec![before, starts, ends, after]
    }

    fn local_rule(&self) -> Option<ErasedLocalRule<'_>> {
        Some(ErasedLocalRule::new(self))
    }
}

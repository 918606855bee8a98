use std::{
    any::TypeId,
    borrow::Cow,
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
    time::Duration,
};

use jiff::tz::{Offset, TimeZone};

use super::{CalendarUnit, MAX_COUNT, Weekday, Window, Windows, validated_period_us};
use crate::{
    clock::Timestamp,
    error::InvalidValue,
    key::Key,
    quota::{DurationText, Quota},
    scan::Scanner,
    strategy::{
        ChargeReceipt, ErasedLocalRule, Lease, LocalRule, LuaScript, QuotaStatus, Rule, RuleInfo,
        Snapshot, State, Strategy, Terms,
        entry::{BuiltIn, UNITS},
        rule::table::thousandths,
    },
};

/// A strategy with one counter per calendar window: each second, minute, hour, day, week, month or year, in UTC, at an offset from
/// it, or in a time zone.
///
/// - **Rule**: a charge of n units is admitted if the count of the current window stays within the quota. Days, weeks (from
///   Monday unless set), months (periods of 30 days) and years (periods of 365 days) are those of the calendar, with their varying
///   lengths, daylight-saving time included. Windows of other periods follow each other from midnight, January 1, 1970; those
///   [`from_epoch`](CalendarWindow::from_epoch) all do.
/// - **Clock**: windows follow the [wall clock](crate::clock::Clock::wall), also in process. A window that has ended doesn't open
///   again if the clock steps back: the next one stays current, and takes all charges. Only a clock that steps back by more
///   than a window's length opens earlier windows, less the usage of the newest. A key whose next window was not used keeps the
///   ended one for its length, at most for an hour.
/// - **Memory**: one short string per key, until an hour (or the window's length, if that is less) after the window's end.
/// - **Worst case over one period**: 2 x requests, across the edge of two windows.
/// - **With [leases](crate::Policy::lease)**: as without them, at most `requests` in each window. A lease ends with the window of its
///   charge, by the time at which it was requested, so each unit that is spent in a window was charged in it.
/// - **Choose it** for quotas by the calendar: 5,000 a day, from midnight on.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{CalendarWindow, Limiter, ManualClock, MemoryStore, Policy, Quota};
///
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// // At 08:00 UTC, it is 16:00 eight hours east.
/// let clock = ManualClock::default();
/// let daily = |name: &str| Policy::new(name, Quota::requests(5_000).per_day());
/// let east = CalendarWindow::east_of_utc(Duration::from_secs(8 * 3_600));
/// let limiter = Limiter::builder()
///     .store(MemoryStore::builder().clock(clock.clone()).build())
///     .policy(daily("utc").strategy(CalendarWindow::utc()))
///     .policy(daily("east").strategy(east))
///     .build()?;
/// assert!(limiter.check("alice").cost(5_000).await.is_admitted());
/// let status = limiter.peek("alice").await?;
/// let hours = |policy| status.policy(policy).map(|policy| policy.reset_after().as_secs() / 3_600);
/// assert_eq!((hours("utc"), hours("east")), (Some(16), Some(8)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CalendarWindow {
    zone: Zone,
    week_start: Weekday,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Zone {
    /// Seconds east of UTC.
    Offset(i64),
    /// A name of the IANA database.
    Named(String),
    /// No time zone: windows of fixed lengths from 1970 on.
    Epoch,
}

impl CalendarWindow {
    /// Windows in UTC.
    pub fn utc() -> Self {
        Self::in_zone(Zone::Offset(0))
    }

    /// Windows at a fixed offset of `ahead` from UTC, east of Greenwich: whole seconds, less than 26 hours.
    pub fn east_of_utc(ahead: Duration) -> Self {
        Self::in_zone(Zone::Offset(ahead.as_secs().try_into().unwrap_or(i64::MAX)))
    }

    /// Windows at a fixed offset of `behind` from UTC, west of Greenwich: whole seconds, less than 26 hours.
    pub fn west_of_utc(behind: Duration) -> Self {
        let behind: i64 = behind.as_secs().try_into().unwrap_or(i64::MAX);
        Self::in_zone(Zone::Offset(-behind))
    }

    /// Windows in a time zone of the IANA database, such as `Asia/Shanghai`: days, weeks or months. The system's copy of the
    /// database is used; feature `time-zones` includes one. An unknown name is a [`ConfigError`](crate::ConfigError) when the
    /// limiter is built.
    ///
    /// ```
    /// use tollgate::{CalendarWindow, Limiter, Policy, Quota};
    ///
    /// let limiter = |zone: &str| {
    ///     let daily = Policy::new("daily", Quota::requests(5_000).per_day());
    ///     Limiter::builder().policy(daily.strategy(CalendarWindow::zone(zone))).build()
    /// };
    /// assert!(limiter("Asia/Shanghai").is_ok());
    /// assert!(limiter("Asia/Shangri-La").is_err());
    /// ```
    pub fn zone(name: impl Into<String>) -> Self {
        Self::in_zone(Zone::Named(name.into()))
    }

    /// Windows of the quota's period that follow each other from 1970-01-01 00:00 UTC, whatever the calendar says: weeks from
    /// Thursday, months of 30 days and years of 365 days. Envoy's reference rate limit service counts so.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{CalendarWindow, Limiter, ManualClock, MemoryStore, Policy, Quota};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// // Friday, 2027-01-15 at 08:00 UTC.
    /// let clock = ManualClock::default();
    /// let weekly = |name: &str| Policy::new(name, Quota::requests(9).per_week());
    /// let limiter = Limiter::builder()
    ///     .store(MemoryStore::builder().clock(clock.clone()).build())
    ///     .policy(weekly("calendar").strategy(CalendarWindow::utc()))
    ///     .policy(weekly("from 1970").strategy(CalendarWindow::from_epoch()))
    ///     .build()?;
    /// let decision = limiter.check("alice").await;
    /// let hours = |policy| decision.policy(policy).map(|policy| policy.reset_after().as_secs() / 3_600);
    /// assert_eq!((hours("calendar"), hours("from 1970")), (Some(2 * 24 + 16), Some(5 * 24 + 16)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn from_epoch() -> Self {
        Self {
            zone: Zone::Epoch,
            week_start: EPOCH_WEEKDAY,
        }
    }

    /// Sets the first day of weeks. Default: Monday. Those [from the epoch](CalendarWindow::from_epoch) begin on Thursday: another
    /// day is a [`ConfigError`](crate::ConfigError) when the limiter is built.
    #[must_use]
    pub fn week_starts_on(mut self, day: Weekday) -> Self {
        self.week_start = day;
        self
    }

    fn in_zone(zone: Zone) -> Self {
        Self {
            zone,
            week_start: Weekday::Monday,
        }
    }

    fn time_zone(&self) -> Result<TimeZone, InvalidValue> {
        match &self.zone {
            Zone::Epoch => Ok(TimeZone::UTC),
            Zone::Offset(seconds) => {
                let offset = i32::try_from(*seconds).ok().map(Offset::from_seconds);
                match offset {
                    Some(Ok(offset)) => Ok(TimeZone::fixed(offset)),
                    _ => Err(InvalidValue::new(
                        format!("a clock {seconds} seconds from UTC"),
                        "less than 26 hours",
                    )),
                }
            }
            Zone::Named(name) => TimeZone::get(name).map_err(|error| {
                InvalidValue::new(
                    format!("the time zone {name:?} ({error})"),
                    "a name of the IANA database, such as \"Europe/Berlin\"; \
                     if this machine has no such database, enable feature `time-zones`",
                )
            }),
        }
    }
}

// In microseconds.
const DAY: i64 = 86_400_000_000;
const WEEK: i64 = 7 * DAY;
const MONTH: i64 = 30 * DAY;
const YEAR: i64 = 365 * DAY;

/// The day of the week of 1970-01-01.
const EPOCH_WEEKDAY: Weekday = Weekday::Thursday;

impl CalendarWindow {
    pub(crate) const BUILT_IN: BuiltIn = BuiltIn {
        text: "calendar_window",
        parse: |tokens| Ok(Arc::new(Self::parse(tokens)?)),
        settings: "from_epoch, or utc, east_of_utc 2h, west_of_utc 5h or zone Europe/Berlin, and week_starts_on sunday",
        rule: TypeId::of::<CalendarRule>,
        state_format: "c1",
        counts: UNITS,
    };

    fn parse(tokens: &mut Scanner<'_>) -> Result<Self, InvalidValue> {
        let window = if tokens.take_word("zone") {
            let Some(zone) = tokens.peek_word() else {
                return Err(tokens.unexpected("a time zone such as zone Europe/Berlin"));
            };
            tokens.take();
            Self::zone(zone)
        } else if tokens.take_word("east_of_utc") {
            Self::east_of_utc(tokens.take_duration("east_of_utc 2h")?)
        } else if tokens.take_word("west_of_utc") {
            Self::west_of_utc(tokens.take_duration("west_of_utc 5h")?)
        } else if tokens.take_word("from_epoch") {
            Self::from_epoch()
        } else {
            tokens.take_word("utc");
            Self::utc()
        };
        if !tokens.take_word("week_starts_on") {
            return Ok(window);
        }
        let name = tokens.peek_word().unwrap_or_default();
        let Some(day) = Weekday::ALL.into_iter().find(|day| day.name() == name) else {
            return Err(tokens.unexpected("a day such as week_starts_on sunday"));
        };
        tokens.take();
        Ok(window.week_starts_on(day))
    }
}

impl Strategy for CalendarWindow {
    fn bind(&self, quota: &Quota, terms: &Terms) -> Result<Arc<dyn Rule>, InvalidValue> {
        let period = validated_period_us(quota, "calendar window", MAX_COUNT)?;
        let zone = self.time_zone()?;
        let unit = match period {
            DAY => Some(CalendarUnit::Day),
            WEEK => Some(CalendarUnit::Week(self.week_start.civil())),
            MONTH => Some(CalendarUnit::Month),
            YEAR => Some(CalendarUnit::Year),
            _ => None,
        };
        let windows = match (unit, &self.zone) {
            (_, Zone::Epoch) if self.week_start != EPOCH_WEEKDAY => {
                return Err(InvalidValue::new(
                    format!(
                        "weeks from the epoch that start on {}",
                        self.week_start.name()
                    ),
                    "thursday, on which 1970 began, or windows in a time zone",
                ));
            }
            (_, Zone::Epoch) => Windows::Even { period, offset: 0 },
            (Some(unit), _) => Windows::Calendar { zone, unit },
            (None, Zone::Offset(seconds)) => Windows::Even {
                period,
                offset: (-seconds * 1_000_000).rem_euclid(period),
            },
            (None, Zone::Named(name)) => {
                return Err(InvalidValue::new(
                    format!("{quota} in time zone {name:?}"),
                    "a day, a week, a month or a year; shorter windows don't differ between time zones, except by their offset",
                ));
            }
        };
        let mut windows_id = DefaultHasher::new();
        (&self.zone, self.week_start, period).hash(&mut windows_id);
        Ok(Arc::new(CalendarRule {
            requests: quota.amount(),
            windows,
            windows_id: windows_id.finish(),
            lease: terms.lease,
        }))
    }

    fn config_text(&self) -> Option<Cow<'_, str>> {
        let offset = |seconds: i64| DurationText(Duration::from_secs(seconds.unsigned_abs()));
        let zone = match &self.zone {
            Zone::Offset(0) => "utc".to_owned(),
            Zone::Offset(seconds @ 1..) => format!("east_of_utc {}", offset(*seconds)),
            Zone::Offset(seconds) => format!("west_of_utc {}", offset(*seconds)),
            Zone::Named(name) => format!("zone {name}"),
            Zone::Epoch => "from_epoch".to_owned(),
        };
        let default = match &self.zone {
            Zone::Epoch => EPOCH_WEEKDAY,
            _ => Weekday::Monday,
        };
        let week = match self.week_start {
            day if day == default => String::new(),
            day => format!(" week_starts_on {}", day.name()),
        };
        Some(format!("calendar_window {zone}{week}").into())
    }
}

/// Calendar windows for one quota.
#[derive(Clone, Debug)]
struct CalendarRule {
    requests: u64,
    windows: Windows,
    /// Equal only for windows of the same length in the same time zone.
    windows_id: u64,
    lease: Option<Lease>,
}

/// The newest window that was charged, in microseconds since the epoch, and its count. The count of a window of another
/// length, which the policy had before, is carried over to the current one while both last.
#[derive(Clone, Copy, Debug, Default)]
struct Counter {
    count: u64,
    starts: i64,
    ends: i64,
    windows_id: u64,
    /// That of the last charge's quota.
    capacity: u64,
}

/// How long a key outlasts its window, at most: a clock that steps back into the window by less finds it as it was.
const RETENTION: i64 = 3_600_000_000;

impl State for Counter {
    fn expires_at(&self) -> Timestamp {
        let length = self.ends.saturating_sub(self.starts);
        Timestamp::from_micros(self.ends.saturating_add(length.min(RETENTION)))
    }

    fn eviction_order(&self, now: Timestamp) -> Option<u64> {
        let is_open = now.as_micros() < self.ends;
        let used = if is_open { self.count } else { 0 };
        Some(thousandths(used, self.capacity))
    }
}

impl CalendarRule {
    /// The current window, and its count.
    fn current(&self, state: &Counter, now: Timestamp) -> Counter {
        let now = now.as_micros();
        let is_open = now < state.ends;
        if is_open && state.starts <= now && state.windows_id == self.windows_id {
            return *state;
        }
        let (starts, ends) = self.windows.window_at(now);
        let (starts, windows_id) = (starts.max(0), self.windows_id);
        // The clock stepped back into the previous window, which has ended and doesn't open again.
        if is_open && state.starts == ends {
            let (starts, ends) = self.windows.window_at(ends);
            return Counter {
                count: state.count,
                starts,
                ends,
                windows_id,
                capacity: state.capacity,
            };
        }
        Counter {
            // A window that begins later, because the clock stepped back by more than a window, is carried over too.
            count: if is_open { state.count } else { 0 },
            starts,
            ends,
            windows_id,
            capacity: state.capacity,
        }
    }
}

impl LocalRule for CalendarRule {
    type State = Counter;

    fn available(&self, state: &mut Counter, now: Timestamp) -> i64 {
        let current = self.current(state, now);
        // Also if all of it was refunded.
        if now.as_micros() < state.ends {
            *state = current;
        }
        self.requests as i64 - current.count as i64
    }

    fn charge(&self, state: &mut Counter, now: Timestamp, units: u64, _caller: &Key) {
        *state = self.current(state, now);
        state.count = state.count.saturating_add(units);
        state.capacity = self.requests;
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
        if !receipt.is_of_window(current.ends) {
            return 0;
        }
        let refunded = want.min(current.count);
        current.count -= refunded;
        if refunded > 0 {
            *state = current;
        }
        refunded
    }

    fn snapshot(&self, state: &Counter, now: Timestamp, _cost: u64) -> Snapshot {
        let Counter { count, ends, .. } = self.current(state, now);
        Snapshot::new([count as i64, ends])
    }
}

impl Rule for CalendarRule {
    fn info(&self) -> RuleInfo {
        RuleInfo {
            snapshot_ignores_cost: true,
            follows_wall_clock: true,
            lease: self.lease,
            ..RuleInfo::new(CalendarWindow::BUILT_IN.state_format, self.requests)
        }
    }

    fn units_in_use(&self, &Snapshot([count, ..]): &Snapshot, _now: Timestamp) -> Option<u64> {
        Some(count.max(0) as u64)
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

    fn window_end(&self, &Snapshot([_, ends, _]): &Snapshot, _now: Timestamp) -> Option<Timestamp> {
        Some(Timestamp::from_micros(ends))
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

    /// The boundaries of the previous, the current and the next window, since Lua has no calendar.
    fn time_params(&self, now: Timestamp) -> Vec<i64> {
        if let Windows::Even { .. } = self.windows {
            return Vec::new();
        }
        let (starts, ends) = self.windows.window_at(now.as_micros());
        let (previous_starts, _) = self.windows.window_at(starts.saturating_sub(1));
        let (_, next_ends) = self.windows.window_at(ends);
        vec![previous_starts, starts, ends, next_ends]
    }

    fn local_rule(&self) -> Option<ErasedLocalRule<'_>> {
        Some(ErasedLocalRule::new(self))
    }
}

//! What every strategy counts, as it is defined: in integers without bounds, and by the simplest means.
//!
//! `redis/conformance/model.py` is a second opinion. Both say nothing of clocks that step back, except that here GCRA's arrival
//! times stay where they are.

use std::{collections::BTreeMap, time::Duration};

use jiff::{Timestamp, ToSpan, tz::TimeZone};

/// Ticks of 50 ns in a microsecond: the unit of even rates.
const TICKS: i128 = 20;

const DAY: i128 = 86_400_000_000;

/// How a quota is counted; times are in microseconds.
#[derive(Clone, Debug)]
pub enum Rule {
    /// GCRA and the token bucket: a unit takes `interval` ticks.
    Even {
        interval: i128,
    },
    /// Fixed and list windows.
    Window {
        period: i128,
    },
    /// Of a time zone; without one, windows of the period follow each other from 1970 on.
    Calendar {
        zone: Option<TimeZone>,
        period: i128,
    },
    Log {
        period: i128,
    },
    /// Time is counted in steps of `tick` microseconds.
    Sliding {
        width: i128,
        buckets: i128,
        tick: i128,
    },
}

/// A quota, and its rule.
#[derive(Clone, Debug)]
pub struct Limit {
    pub rule: Rule,
    pub capacity: i128,
    /// How long a full burst of an even rate takes without leases, in ticks of whole microseconds: what tiers are compared by.
    pub refill: i128,
}

/// What is used under a key.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// GCRA's theoretical arrival time, in ticks.
    tat: i128,
    /// The units of each window (by its end), calendar window (by its start), instant of a log, or bucket of a sliding window
    /// (by its number).
    units: BTreeMap<i128, i128>,
}

/// A charge, of which `left` units are not refunded.
#[derive(Clone, Copy, Debug, Default)]
pub struct Receipt {
    pub at: i128,
    pub left: i128,
    /// Where [`State::units`] has them.
    place: Option<i128>,
}

/// What a request of some cost finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    pub remaining: u64,
    /// `None` if it will never be admitted.
    pub wait: Option<Duration>,
    pub reset: Duration,
}

impl Limit {
    /// An even rate, whose units are spent up to `spread` after their charge: what refills meanwhile is taken off the burst.
    pub fn even(requests: u64, period: u64, burst: u64, spread: u64) -> Self {
        let interval = div_ceil(i128::from(period) * TICKS, requests.into());
        let refill = div_ceil(interval * i128::from(burst), TICKS) * TICKS;
        let reserve = div_ceil(i128::from(spread) * TICKS, interval);
        Self {
            rule: Rule::Even { interval },
            capacity: i128::from(burst) - reserve,
            refill,
        }
    }

    pub fn counted(rule: Rule, requests: u64) -> Self {
        Self {
            rule,
            capacity: requests.into(),
            refill: 0,
        }
    }

    pub fn sliding(requests: u64, period: u64, buckets: u32) -> Self {
        let (buckets, period) = (i128::from(buckets), i128::from(period));
        let width = period / buckets;
        // Products of a width and a count have 53 bits.
        let is_exact = width * i128::from(requests) * 2 < 1 << 53;
        let tick = if is_exact { 1 } else { 1_000 };
        let rule = Rule::Sliding {
            width,
            buckets,
            tick,
        };
        Self::counted(rule, requests)
    }

    /// Units that can be charged at `now`; negative in debt. `longest` is the refill of the slowest quota that shares the key:
    /// an arrival time further ahead than any debt is cut.
    pub fn room(&self, state: &mut State, now: i128, longest: i128) -> i128 {
        let Rule::Even { interval } = self.rule else {
            return self.capacity - self.used(state, now);
        };
        (self.tolerance() - self.ahead(state, now, longest)).div_euclid(interval)
    }

    pub fn charge(&self, state: &mut State, now: i128, longest: i128, units: i128) -> Receipt {
        let mut receipt = Receipt {
            at: now,
            left: units,
            place: None,
        };
        if units == 0 {
            return receipt;
        }
        if let Rule::Even { interval } = self.rule {
            let ahead = self.ahead(state, now, longest);
            state.tat = now * TICKS + ahead + units * interval;
            return receipt;
        }
        let place = self.place_in(state, now);
        *state.units.entry(place).or_default() += units;
        receipt.place = Some(place);
        receipt
    }

    /// Refunds what time has not given back; returns how many units, rounded up.
    pub fn refund(
        &self,
        state: &mut State,
        now: i128,
        longest: i128,
        receipt: &mut Receipt,
        units: i128,
    ) -> i128 {
        let want = units.min(receipt.left);
        let back = if let Rule::Even { interval } = self.rule {
            let held = receipt.left * interval - (now - receipt.at).max(0) * TICKS;
            let back = held.min(want * interval).max(0);
            let ahead = self.ahead(state, now, longest);
            let left = (ahead - back).max(0);
            if left == 0 {
                // Nothing is left of the key, also if the clock steps back.
                state.tat = 0;
            } else if back > 0 {
                state.tat = now * TICKS + left;
            }
            div_ceil(back, interval)
        } else {
            let is_current = |place: &i128| match self.rule {
                Rule::Window { .. } => *place > now,
                Rule::Log { period } => *place > now - period,
                _ => *place == self.place(now),
            };
            let place = receipt.place.filter(is_current);
            let counted = place.and_then(|place| state.units.get_mut(&place));
            counted.map_or(0, |counted| {
                let back = want.min(*counted);
                *counted -= back;
                back
            })
        };
        receipt.left -= back;
        back
    }

    /// Refunds up to `units` of all that is used now, of an even rate or a window.
    pub fn credit(&self, state: &mut State, now: i128, longest: i128, units: i128) -> i128 {
        let used = match self.rule {
            Rule::Even { interval } => div_ceil(self.ahead(state, now, longest), interval),
            _ => self.used(state, now),
        };
        let mut all = Receipt {
            at: now,
            left: units.max(used),
            place: Some(self.place_in(state, now)),
        };
        self.refund(state, now, longest, &mut all, units.min(used))
    }

    pub fn status(&self, state: &mut State, now: i128, longest: i128, cost: u64) -> Status {
        let cost_units = i128::from(cost);
        if let Rule::Even { interval } = self.rule {
            let ahead = self.ahead(state, now, longest);
            let over = ahead + cost_units * interval - self.tolerance();
            return Status {
                remaining: ((self.tolerance() - ahead).max(0) / interval) as u64,
                wait: self.wait(cost, micros(div_ceil(over.max(0), TICKS))),
                reset: micros(div_ceil(ahead, TICKS)),
            };
        }
        let used = self.used(state, now);
        let until = |most: i128| micros(self.earliest(state, now, most) - now);
        let reset = match (&self.rule, state.units.last_key_value()) {
            // An open window may be empty.
            (Rule::Window { .. }, Some((ends, _))) => micros((ends - now).max(0)),
            _ => until(0),
        };
        Status {
            remaining: (self.capacity - used).max(0) as u64,
            wait: self.wait(cost, until(self.capacity - cost_units)),
            reset,
        }
    }

    fn wait(&self, cost: u64, wait: Duration) -> Option<Duration> {
        match cost {
            0 => Some(Duration::ZERO),
            cost if i128::from(cost) > self.capacity => None,
            _ => Some(wait),
        }
    }

    /// Of an even rate: the burst in ticks.
    fn tolerance(&self) -> i128 {
        match self.rule {
            Rule::Even { interval } => interval * self.capacity,
            _ => 0,
        }
    }

    /// How far ahead the arrival time lies, in ticks.
    fn ahead(&self, state: &mut State, now: i128, longest: i128) -> i128 {
        let (now, tolerance) = (now * TICKS, self.tolerance());
        let slowest = if longest > div_ceil(tolerance, TICKS) * TICKS {
            longest
        } else {
            tolerance
        };
        if state.tat - now > 2 * slowest {
            state.tat = now + tolerance;
        }
        (state.tat - now).max(0)
    }

    /// Where a charge of now is counted: an open window, or one that opens now.
    fn place_in(&self, state: &State, now: i128) -> i128 {
        let Rule::Window { period } = self.rule else {
            return self.place(now);
        };
        let last = state.units.last_key_value().map_or(0, |(ends, _)| *ends);
        if last > now { last } else { now + period }
    }

    fn place(&self, now: i128) -> i128 {
        match &self.rule {
            Rule::Sliding { width, .. } => now.div_euclid(*width),
            Rule::Calendar { zone, period } => calendar_window(zone.as_ref(), *period, now).0,
            _ => now,
        }
    }

    fn used(&self, state: &State, now: i128) -> i128 {
        let current = self.place(now);
        let weight = |(place, units): (&i128, &i128)| match self.rule {
            Rule::Window { .. } if *place > now => *units,
            Rule::Calendar { .. } if *place == current => *units,
            Rule::Log { period } if *place > now - period => *units,
            Rule::Sliding { buckets, .. } if *place > current - buckets => *units,
            Rule::Sliding {
                width,
                buckets,
                tick,
            } if *place == current - buckets => {
                let inside = width - now.rem_euclid(width) / tick * tick;
                // More than any debt counts as the deepest one.
                div_ceil(units * inside, width).min(2 * self.capacity)
            }
            _ => 0,
        };
        state.units.iter().map(weight).sum()
    }

    /// The first instant from now on at which no more than `most` units are used, without requests.
    fn earliest(&self, state: &State, now: i128, most: i128) -> i128 {
        if self.used(state, now) <= most {
            return now;
        }
        let horizon = match &self.rule {
            Rule::Window { period } | Rule::Log { period } => now + period,
            Rule::Calendar { zone, period } => {
                return calendar_window(zone.as_ref(), *period, now).1;
            }
            Rule::Sliding { width, buckets, .. } => now + (buckets + 1) * width,
            Rule::Even { .. } => now,
        };
        let (mut from, mut to) = (now, horizon);
        while from < to {
            let middle = from + (to - from) / 2;
            match self.used(state, middle) <= most {
                true => to = middle,
                false => from = middle + 1,
            }
        }
        from
    }
}

/// When the window of the calendar that contains an instant begins and ends: a day, a week from Monday, a month or a year of a time
/// zone, or an even one.
fn calendar_window(zone: Option<&TimeZone>, period: i128, now: i128) -> (i128, i128) {
    let Some(zone) = zone else {
        let start = now.div_euclid(period) * period;
        return (start, start + period);
    };
    let instant = Timestamp::from_microsecond(now as i64).expect("an instant");
    let today = zone.to_datetime(instant).date();
    let first = match period {
        DAY => today,
        _ if period == 7 * DAY => today - i64::from(today.weekday().to_monday_zero_offset()).days(),
        _ if period == 30 * DAY => today.first_of_month(),
        _ if period == 365 * DAY => today.first_of_year(),
        _ => {
            let ahead = i128::from(zone.to_offset(instant).seconds()) * 1_000_000;
            let start = (now + ahead).div_euclid(period) * period - ahead;
            return (start, start + period);
        }
    };
    let next = match period {
        DAY => first + 1.day(),
        _ if period == 7 * DAY => first + 7.days(),
        _ if period == 30 * DAY => first + 1.month(),
        _ => first + 1.year(),
    };
    let begins = |date: jiff::civil::Date| {
        let begins = date
            .to_zoned(zone.clone())
            .and_then(|day| day.start_of_day());
        i128::from(begins.expect("a day").timestamp().as_microsecond())
    };
    (begins(first), begins(next))
}

fn div_ceil(dividend: i128, divisor: i128) -> i128 {
    (dividend + divisor - 1) / divisor
}

fn micros(micros: i128) -> Duration {
    Duration::from_micros(micros as u64)
}

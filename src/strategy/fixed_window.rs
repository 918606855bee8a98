use std::{sync::Arc, time::Duration};

use super::{AnyMemory, Memory, Outlook, Receipt, Retry, Rule, Script, Seen, State, Strategy};
use crate::{clock::Timestamp, error::Unfit, quota::Quota};

/// One counter, and a window that opens at the first charged request and lives for one period: the articles'
/// `count_limit.lua` with its time to live repaired.
///
/// - **Rule**: a charge of n units is admitted if the window's count stays within the quota. The window's end doesn't
///   move while it lasts. On Redis the key's time to live is the window; every touch looks at the time to live, not at
///   the count, and gives a counter that has none (or one longer than the period) one period.
/// - **Memory**: one integer a key.
/// - **Worst case over one period**: 2 x requests, across the edge of two windows. If that's too much, take
///   [`Gcra`](super::Gcra).
/// - **Choose it** when people must be told "so many per window, back at that time". Periods are whole milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FixedWindow;

/// The most that is counted: twice that (a debt) is still exact in Lua.
const MOST: u64 = 1_000_000_000_000_000;

/// The longest window. Times to live are milliseconds since the epoch.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 86_400);

impl Strategy for FixedWindow {
    fn bind(&self, quota: &Quota) -> Result<Arc<dyn Rule>, Unfit> {
        let period = quota.checked()?;
        if quota.capacity() != quota.units() {
            return Err(Unfit::new(
                format!("{quota}, a burst of its own for a fixed window"),
                "a window's burst is its number of requests: leave it out",
            ));
        }
        if quota.units() > MOST {
            return Err(Unfit::new(
                format!("{quota}, past what a fixed window counts"),
                "at most 1,000,000,000,000,000 requests",
            ));
        }
        if period % 1_000 != 0 || quota.period() > LONGEST {
            return Err(Unfit::new(
                format!("{quota}, a period that is no fixed window"),
                "whole milliseconds, at most 100 years",
            ));
        }
        Ok(Arc::new(Window {
            requests: quota.units(),
            period: period as i64,
        }))
    }
}

/// A fixed window for one quota.
#[derive(Clone, Debug)]
struct Window {
    requests: u64,
    /// In microseconds.
    period: i64,
}

/// A window's count, and its end in microseconds since the epoch.
#[derive(Debug, Default)]
struct Counter {
    count: u64,
    ends: i64,
}

impl State for Counter {
    fn full_at(&self) -> Timestamp {
        Timestamp::from_micros(self.ends)
    }
}

impl Window {
    /// The window as it stands at `now`, and whether it is yet to open.
    fn current(&self, state: &Counter, now: Timestamp) -> (u64, i64, bool) {
        let (now, opened) = (now.as_micros(), now.as_micros() + self.period);
        if state.ends <= now {
            (0, opened, true)
        } else {
            // A window that would outlast its period, because the clock stepped back, ends one period from now.
            (state.count, state.ends.min(opened), false)
        }
    }
}

impl Memory for Window {
    type State = Counter;

    fn room(&self, state: &mut Counter, now: Timestamp) -> i64 {
        let (count, ends, fresh) = self.current(state, now);
        if !fresh {
            state.ends = ends;
        }
        self.requests as i64 - count as i64
    }

    fn take(&self, state: &mut Counter, now: Timestamp, units: u64) {
        let (count, ends, _) = self.current(state, now);
        *state = Counter {
            count: count + units,
            ends,
        };
    }

    fn give(&self, state: &mut Counter, now: Timestamp, receipt: &Receipt, want: u64) -> u64 {
        let (count, ends, fresh) = self.current(state, now);
        if fresh || ends != receipt.mark {
            return 0;
        }
        let back = want.min(receipt.left).min(count);
        state.count = count - back;
        back
    }

    fn seen(&self, state: &Counter, now: Timestamp, _cost: u64) -> Seen {
        let (count, ends, fresh) = self.current(state, now);
        [count as i64, ends, i64::from(fresh)]
    }
}

impl Rule for Window {
    fn tag(&self) -> &'static str {
        "f1"
    }

    fn capacity(&self) -> u64 {
        self.requests
    }

    fn outlook(&self, &[count, ends, fresh]: &Seen, now: Timestamp, cost: u64) -> Outlook {
        let remaining = (self.requests as i64 - count).max(0) as u64;
        let open = count > 0 || fresh == 0;
        let reset_after = match open {
            true => Timestamp::from_micros(ends).since(now),
            false => Duration::ZERO,
        };
        let retry = if cost > self.requests {
            Retry::Never
        } else if cost <= remaining && (cost > 0 || count <= self.requests as i64) {
            Retry::Now
        } else {
            Retry::After(reset_after)
        };
        Outlook {
            remaining,
            retry,
            reset_after,
        }
    }

    fn mark(&self, &[_, ends, _]: &Seen, _now: Timestamp) -> i64 {
        ends
    }

    fn script(&self) -> Option<Script> {
        Some(Script {
            source: include_str!("fixed_window.lua"),
            params: vec![self.requests as i64, self.period / 1_000],
        })
    }

    fn memory(&self) -> Option<&dyn AnyMemory> {
        Some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);

    #[test]
    fn a_quota_that_is_no_window_says_what_is() {
        for (quota, valid) in [
            ("10/s burst 20", "leave it out"),
            ("10/500us", "whole milliseconds"),
            ("10/2000000days", "at most 100 years"),
            ("9000000000000000/s", "at most 1,000,000,000,000,000"),
        ] {
            let error = FixedWindow
                .bind(&quota.parse().expect(quota))
                .expect_err(quota);
            assert!(format!("{error:?}").contains(valid), "{error:?}");
        }
    }

    #[test]
    fn a_window_that_a_step_of_the_clock_made_too_long_ends_after_one_period() {
        let window = Window {
            requests: 1,
            period: 60_000_000,
        };
        let mut state = Counter::default();
        Memory::take(&window, &mut state, NOW + Duration::from_secs(3_600), 1);
        assert_eq!(Memory::room(&window, &mut state, NOW), 0);
        let minute = Duration::from_secs(60);
        assert_eq!(Memory::room(&window, &mut state, NOW + minute), 1);
    }
}

use std::{borrow::Cow, sync::Arc};

use super::{MAX_COUNT, OpenedWindows};
use crate::{
    clock::Timestamp,
    error::InvalidValue,
    key::Key,
    quota::Quota,
    strategy::{
        ChargeReceipt, ErasedLocalRule, LocalRule, LuaScript, QuotaStatus, Rule, RuleInfo,
        Snapshot, State, Strategy, Terms,
        entry::{BuiltIn, UNITS},
        rule::table::thousandths,
    },
};

/// A strategy with one counter per key, and a window that begins with the first charged request and lasts for one period:
/// `INCR` with `EXPIRE` on Redis, with the TTL repaired.
///
/// - **Rule**: a charge of n units is admitted if the window's count stays within the quota. The window's end doesn't move
///   while it lasts. On Redis the key's TTL is the window: a counter whose TTL was lost, or is longer than the period, gets a
///   TTL of one period when it is next read.
/// - **Memory**: one integer per key.
/// - **Worst case over one period**: 2 x requests, across the edge of two windows. If that is too much, use
///   [`Gcra`](crate::Gcra).
/// - **With [leases](crate::Policy::lease)**: as without them, at most `requests` in each window. A lease ends with the window of its
///   charge, by the time at which it was requested, so each unit that is spent in a window was charged in it.
/// - **Choose it** when the limit is documented as "so many per window", with a time at which it is reset. Periods are whole
///   milliseconds, at most 100 years.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{FixedWindow, Limiter, ManualClock, MemoryStore, Policy, Quota};
///
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let clock = ManualClock::default();
/// let limiter = Limiter::builder()
///     .store(MemoryStore::builder().clock(clock.clone()).build())
///     .policy(Policy::new("codes", Quota::requests(3).per_minute()).strategy(FixedWindow))
///     .build()?;
/// assert_eq!(limiter.check("alice").times(9).await.admitted(), 3);
/// clock.advance(Duration::from_secs(59));
/// assert_eq!(limiter.check("alice").times(9).await.admitted(), 0);
/// // All units come back at the end of the window.
/// clock.advance(Duration::from_secs(1));
/// assert_eq!(limiter.check("alice").times(9).await.admitted(), 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FixedWindow;

impl FixedWindow {
    pub(crate) const BUILT_IN: BuiltIn =
        BuiltIn::without_settings::<Self, FixedWindowRule>("fixed_window", "f1", UNITS);
}

impl Strategy for FixedWindow {
    fn bind(&self, quota: &Quota, terms: &Terms) -> Result<Arc<dyn Rule>, InvalidValue> {
        let windows = OpenedWindows::new(quota, terms, "fixed window", MAX_COUNT)?;
        Ok(Arc::new(FixedWindowRule(windows)))
    }

    fn config_text(&self) -> Option<Cow<'_, str>> {
        Some(Self::BUILT_IN.text.into())
    }
}

/// A fixed window for one quota.
#[derive(Clone, Debug)]
struct FixedWindowRule(OpenedWindows);

/// A window's count, and its end in microseconds since the epoch.
#[derive(Debug, Default)]
struct Counter {
    count: u64,
    ends: i64,
    /// That of the last charge's quota.
    capacity: u64,
}

impl State for Counter {
    fn expires_at(&self) -> Timestamp {
        Timestamp::from_micros(self.ends)
    }

    fn eviction_order(&self, _now: Timestamp) -> Option<u64> {
        Some(thousandths(self.count, self.capacity))
    }
}

impl FixedWindowRule {
    /// The count of the current window, its end, and whether it is fresh.
    fn current(&self, state: &Counter, now: Timestamp) -> (u64, i64, bool) {
        self.0.current((state.count, state.ends), now)
    }
}

impl LocalRule for FixedWindowRule {
    type State = Counter;

    fn available(&self, state: &mut Counter, now: Timestamp) -> i64 {
        let (count, ends, fresh) = self.current(state, now);
        if !fresh {
            state.ends = ends;
        }
        self.0.requests as i64 - count as i64
    }

    fn charge(&self, state: &mut Counter, now: Timestamp, units: u64, _caller: &Key) {
        let (count, ends, _) = self.current(state, now);
        *state = Counter {
            count: count.saturating_add(units),
            ends,
            capacity: self.0.requests,
        };
    }

    fn refund(
        &self,
        state: &mut Counter,
        now: Timestamp,
        receipt: &ChargeReceipt,
        want: u64,
        _caller: &Key,
    ) -> u64 {
        let (count, ends, fresh) = self.current(state, now);
        if fresh || !receipt.is_of_window(ends) {
            return 0;
        }
        let refunded = want.min(count);
        state.count = count - refunded;
        refunded
    }

    fn snapshot(&self, state: &Counter, now: Timestamp, _cost: u64) -> Snapshot {
        let (count, ends, fresh) = self.current(state, now);
        Snapshot::new([count as i64, ends, i64::from(fresh)])
    }
}

impl Rule for FixedWindowRule {
    fn info(&self) -> RuleInfo {
        RuleInfo {
            ..self.0.info(FixedWindow::BUILT_IN.state_format)
        }
    }

    fn units_in_use(&self, &Snapshot([count, ..]): &Snapshot, _now: Timestamp) -> Option<u64> {
        Some(count.max(0) as u64)
    }

    fn status(&self, snapshot: &Snapshot, now: Timestamp, cost: u64) -> QuotaStatus {
        self.0.status(snapshot, now, cost)
    }

    fn window_id(&self, &Snapshot([_, ends, _]): &Snapshot, _now: Timestamp) -> i64 {
        ends
    }

    fn window_end(&self, &Snapshot([_, ends, _]): &Snapshot, _now: Timestamp) -> Option<Timestamp> {
        Some(Timestamp::from_micros(ends))
    }

    fn script(&self) -> Option<LuaScript> {
        Some(LuaScript::new(
            include_str!("fixed_window.lua"),
            self.0.params(),
        ))
    }

    fn local_rule(&self) -> Option<ErasedLocalRule<'_>> {
        Some(ErasedLocalRule::new(self))
    }
}

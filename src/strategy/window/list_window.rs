use std::{borrow::Cow, iter::repeat_n, sync::Arc};

use super::OpenedWindows;
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

/// A strategy like [`FixedWindow`](crate::FixedWindow) that records the callers of all charges.
///
/// Each charge is stored with the policy's [caller](crate::Policy::caller), or else its key;
/// [`PolicyHandle::callers`](crate::limiter::PolicyHandle::callers) lists them, once for each unit.
///
/// - **Rule**: that of a fixed window. A refund removes its units of the caller's last charges.
/// - **Memory**: one entry for each request of the window, whatever it cost: at most 25 bytes on Redis, and 10 more if it cost
///   several units; 32 in process. So a key has at most as many entries as its quota has requests. Quotas are limited to 100,000
///   requests for that reason.
/// - **Worst case over one period**: 2 x requests, across the edge of two windows.
/// - **With [leases](crate::Policy::lease)**: as without them, at most `requests` in each window. A lease ends with the window of its
///   charge, by the time at which it was requested, so each unit that is spent in a window was charged in it.
/// - **Choose it** to find out which callers exhausted a limit.
///
/// ```
/// use tollgate::{Key, Limiter, ListWindow, Policy, Quota, limiter::Keys};
///
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let limiter = Limiter::builder()
///     .policy(Policy::new("tenant", Quota::requests(3).per_day()).strategy(ListWindow))
///     .build()?;
/// for user in ["alice", "bob", "alice"] {
///     let keys = Keys::from("acme").caller(Key::new(user));
///     assert!(limiter.admit(keys).await.is_ok());
/// }
/// let callers = limiter.policy("tenant")?.callers("acme").await?;
/// assert_eq!(callers, ["alice", "bob", "alice"].map(Key::new));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListWindow;

/// The largest quota: each unit may be an entry of the list.
const MAX_ENTRIES: u64 = 100_000;

impl ListWindow {
    pub(crate) const BUILT_IN: BuiltIn =
        BuiltIn::without_settings::<Self, ListWindowRule>("list_window", "r2", UNITS);
}

impl Strategy for ListWindow {
    fn bind(&self, quota: &Quota, terms: &Terms) -> Result<Arc<dyn Rule>, InvalidValue> {
        let windows = OpenedWindows::new(quota, terms, "list window", MAX_ENTRIES)?;
        Ok(Arc::new(ListWindowRule(windows)))
    }

    fn config_text(&self) -> Option<Cow<'_, str>> {
        Some(Self::BUILT_IN.text.into())
    }
}

/// A list window for one quota.
#[derive(Clone, Debug)]
struct ListWindowRule(OpenedWindows);

/// The charges of a window, in order, and its end in microseconds since the epoch.
#[derive(Debug, Default)]
struct CallerList {
    charges: Vec<CallerCharge>,
    /// The units of all charges.
    count: u64,
    ends: i64,
    /// That of the last charge's quota.
    capacity: u64,
}

/// Units that a caller was charged. Those of requests that follow each other are one.
#[derive(Clone, Copy, Debug)]
struct CallerCharge {
    caller: Key,
    units: u64,
}

impl State for CallerList {
    fn expires_at(&self) -> Timestamp {
        Timestamp::from_micros(self.ends)
    }

    fn eviction_order(&self, _now: Timestamp) -> Option<u64> {
        Some(thousandths(self.count, self.capacity))
    }
}

impl ListWindowRule {
    /// The count of the current window, its end, and whether it is fresh.
    fn current(&self, state: &CallerList, now: Timestamp) -> (u64, i64, bool) {
        self.0.current((state.count, state.ends), now)
    }
}

impl LocalRule for ListWindowRule {
    type State = CallerList;

    fn available(&self, state: &mut CallerList, now: Timestamp) -> i64 {
        let (count, ends, fresh) = self.current(state, now);
        if !fresh {
            state.ends = ends;
        }
        self.0.requests as i64 - count as i64
    }

    fn charge(&self, state: &mut CallerList, now: Timestamp, units: u64, caller: &Key) {
        let (_, ends, fresh) = self.current(state, now);
        if fresh {
            state.charges.clear();
            state.count = 0;
        }
        state.ends = ends;
        state.capacity = self.0.requests;
        state.count += units;
        match state.charges.last_mut() {
            Some(last) if last.caller == *caller => last.units += units,
            _ => state.charges.push(CallerCharge {
                caller: *caller,
                units,
            }),
        }
    }

    fn refund(
        &self,
        state: &mut CallerList,
        now: Timestamp,
        receipt: &ChargeReceipt,
        want: u64,
        caller: &Key,
    ) -> u64 {
        let (_, ends, fresh) = self.current(state, now);
        if fresh || !receipt.is_of_window(ends) {
            return 0;
        }
        let mut left = want;
        let mut first = state.charges.len();
        for (index, charge) in state.charges.iter_mut().enumerate().rev() {
            if left == 0 {
                break;
            }
            if charge.caller == *caller {
                let refunded = left.min(charge.units);
                charge.units -= refunded;
                left -= refunded;
                first = index;
            }
        }
        let last = state.charges.split_off(first);
        state
            .charges
            .extend(last.into_iter().filter(|charge| charge.units > 0));
        state.count -= want - left;
        want - left
    }

    fn snapshot(&self, state: &CallerList, now: Timestamp, _cost: u64) -> Snapshot {
        let (count, ends, fresh) = self.current(state, now);
        Snapshot::new([count as i64, ends, i64::from(fresh)])
    }

    fn callers(&self, state: &CallerList, now: Timestamp) -> Vec<Key> {
        let (count, ..) = self.current(state, now);
        let charges = state.charges.iter();
        let units = charges.flat_map(|charge| repeat_n(charge.caller, charge.units as usize));
        units.take(count as usize).collect()
    }
}

impl Rule for ListWindowRule {
    fn info(&self) -> RuleInfo {
        RuleInfo {
            records_caller: true,
            stores_each_unit: true,
            ..self.0.info(ListWindow::BUILT_IN.state_format)
        }
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
            include_str!("list_window.lua"),
            self.0.params(),
        ))
    }

    fn local_rule(&self) -> Option<ErasedLocalRule<'_>> {
        Some(ErasedLocalRule::new(self))
    }
}

use std::{borrow::Cow, iter::repeat_n, sync::Arc, time::Duration};

use super::{Window, lifetime_until, validated_period_us};
use crate::{
    clock::Timestamp,
    error::InvalidValue,
    key::Key,
    quota::Quota,
    strategy::{
        ChargeReceipt, ErasedLocalRule, Lease, LocalRule, LuaScript, QuotaStatus, Rule, Snapshot,
        State, Strategy, TierRefills, rule::table::thousandths,
    },
};

/// A strategy like [`FixedWindow`](crate::FixedWindow) that records the callers of all charges.
///
/// Each charge is stored with the policy's [caller](crate::Policy::caller), or else its key;
/// [`PolicyHandle::callers`](crate::PolicyHandle::callers) lists them, once for each unit.
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
/// use tollgate::{Key, Keys, Limiter, ListWindow, Policy, Quota};
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

impl Strategy for ListWindow {
    fn bind(&self, quota: &Quota) -> Result<Arc<dyn Rule>, InvalidValue> {
        let rule = ListWindowRule::new(quota)?;
        Ok(Arc::new(rule))
    }

    fn bind_leased(
        &self,
        quota: &Quota,
        _refills: &TierRefills,
        lease: &Lease,
    ) -> Result<Arc<dyn Rule>, InvalidValue> {
        let lease = Some(*lease);
        let rule = ListWindowRule::new(quota)?;
        Ok(Arc::new(ListWindowRule { lease, ..rule }))
    }

    fn config_text(&self) -> Option<Cow<'_, str>> {
        Some("list_window".into())
    }
}

/// A list window for one quota.
#[derive(Clone, Debug)]
struct ListWindowRule {
    requests: u64,
    /// In microseconds.
    period: i64,
    lease: Option<Lease>,
}

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
    fn new(quota: &Quota) -> Result<Self, InvalidValue> {
        let period = validated_period_us(quota, "list window", MAX_ENTRIES)?;
        Ok(Self {
            requests: quota.amount(),
            period,
            lease: None,
        })
    }

    /// The count of the current window, its end, and whether it is fresh: it opens with the next charge.
    fn current(&self, state: &CallerList, now: Timestamp) -> (u64, i64, bool) {
        let now = now.as_micros();
        let opened = now.saturating_add(self.period);
        if state.ends <= now {
            (0, opened, true)
        } else {
            // A window that would outlast its period, because the clock stepped back, ends one period from now.
            (state.count, state.ends.min(opened), false)
        }
    }
}

impl LocalRule for ListWindowRule {
    type State = CallerList;

    fn available(&self, state: &mut CallerList, now: Timestamp) -> i64 {
        let (count, ends, fresh) = self.current(state, now);
        if !fresh {
            state.ends = ends;
        }
        self.requests as i64 - count as i64
    }

    fn charge(&self, state: &mut CallerList, now: Timestamp, units: u64, caller: &Key) {
        let (_, ends, fresh) = self.current(state, now);
        if fresh {
            state.charges.clear();
            state.count = 0;
        }
        state.ends = ends;
        state.capacity = self.requests;
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
        if fresh || ends != receipt.window_id {
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
    fn state_format(&self) -> &'static str {
        "r2"
    }

    fn snapshot_ignores_cost(&self) -> bool {
        true
    }

    fn capacity(&self) -> u64 {
        self.requests
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

    fn window_id(&self, &Snapshot([_, ends, _]): &Snapshot, _now: Timestamp) -> i64 {
        ends
    }

    fn records_caller(&self) -> bool {
        true
    }

    fn stores_each_unit(&self) -> bool {
        true
    }

    fn lease(&self) -> Option<Lease> {
        self.lease
    }

    fn lease_lifetime(&self, &Snapshot([_, ends, _]): &Snapshot, now: Timestamp) -> Duration {
        lifetime_until(self.lease, ends, now)
    }

    fn script(&self) -> Option<LuaScript> {
        Some(LuaScript::new(
            include_str!("list_window.lua"),
            [self.requests as i64, self.period / 1_000],
        ))
    }

    fn local_rule(&self) -> Option<ErasedLocalRule<'_>> {
        Some(ErasedLocalRule::new(self))
    }
}

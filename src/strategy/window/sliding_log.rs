use std::{borrow::Cow, collections::VecDeque, sync::Arc, time::Duration};

use super::validated_period_us;
use crate::{
    clock::Timestamp,
    error::InvalidValue,
    key::Key,
    quota::{DurationText, Quota},
    strategy::{
        ChargeReceipt, ErasedLocalRule, Lease, LocalRule, LuaScript, QuotaStatus, RetryAfter, Rule,
        RuleInfo, Snapshot, State, Strategy, Terms,
        entry::{BuiltIn, UNITS},
        rule::table::thousandths,
    },
};

/// A strategy that stores each charge with its instant for exactly one period: never more than `requests` in any period,
/// whenever it begins.
///
/// - **Rule**: a charge of n units is admitted if, with it, no more than `requests` units are younger than the period.
/// - **Exact**: to the microsecond.
/// - **Memory**: one entry for each instant at which a key was charged within the period, whatever the charge's units: about 12
///   bytes on Redis, 25 for several units, and 16 in process. So a key has at most as many entries as its quota has requests.
///   Quotas are limited to 100,000 requests for that reason; the strategy is meant for far fewer.
/// - **Worst case over one period**: requests. It is the only strategy with this guarantee.
/// - **With [leases](crate::Policy::lease)**: as without them, at most `requests` in any period. What is spent within a period was charged
///   within the period and the lease's [spread](crate::Lease::spread), and a unit counts for so long. So at least 98.8 % of the quota can
///   be used: the TTL is at most a hundredth of the period.
/// - **Choose it** for small limits that must hold in any period: five codes by text message a day.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Limiter, ManualClock, MemoryStore, Policy, Quota, SlidingLog};
///
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let clock = ManualClock::default();
/// let limiter = Limiter::builder()
///     .store(MemoryStore::builder().clock(clock.clone()).build())
///     .policy(Policy::new("codes", Quota::requests(5).per_day()).strategy(SlidingLog))
///     .build()?;
/// assert_eq!(limiter.check("alice").times(2).await.admitted(), 2);
/// clock.advance(Duration::from_secs(3_600));
/// assert_eq!(limiter.check("alice").times(9).await.admitted(), 3);
/// // Each unit comes back a day after it was charged.
/// clock.advance(Duration::from_secs(23 * 3_600));
/// assert_eq!(limiter.check("alice").times(9).await.admitted(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlidingLog;

/// How many TTLs a period has, at least. A unit counts for a period and a lease's spread, so that part of the quota can't be used.
const MIN_TTLS_PER_PERIOD: u32 = 100;

/// The largest quota: each unit may be an entry of the log.
const MAX_ENTRIES: u64 = 100_000;

impl SlidingLog {
    pub(crate) const BUILT_IN: BuiltIn =
        BuiltIn::without_settings::<Self, SlidingLogRule>("sliding_log", "l2", UNITS);
}

impl Strategy for SlidingLog {
    fn bind(&self, quota: &Quota, terms: &Terms) -> Result<Arc<dyn Rule>, InvalidValue> {
        let mut period = validated_period_us(quota, "sliding log", MAX_ENTRIES)?;
        if let Some(lease) = &terms.lease {
            let max_ttl = quota.period() / MIN_TTLS_PER_PERIOD;
            if lease.lifetime() > max_ttl {
                return Err(InvalidValue::new(
                    format!(
                        "{quota} in a sliding log with a lease of {}",
                        DurationText(lease.lifetime())
                    ),
                    match Lease::valid_ttl(max_ttl) {
                        Some(ttl) => format!(
                            "a TTL of at most a hundredth of the period, {}",
                            DurationText(ttl)
                        ),
                        None => "a period of at least 500 ms, or no lease".to_owned(),
                    },
                ));
            }
            // Each unit counts for one period after it may have been spent.
            period += lease.spread().as_micros() as i64;
        }
        Ok(Arc::new(SlidingLogRule {
            requests: quota.amount(),
            period,
            lease: terms.lease,
        }))
    }

    fn config_text(&self) -> Option<Cow<'_, str>> {
        Some(Self::BUILT_IN.text.into())
    }
}

/// A sliding log for one quota.
#[derive(Clone, Debug)]
struct SlidingLogRule {
    requests: u64,
    /// In microseconds.
    period: i64,
    lease: Option<Lease>,
}

/// The units charged at one instant.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// In microseconds since the epoch.
    at: i64,
    /// The units of this entry and of all before it, removed ones included.
    total: u64,
}

/// The charges, the oldest first. No two entries have the same instant.
#[derive(Debug, Default)]
struct Log {
    entries: VecDeque<Entry>,
    /// The total of the last entry that was removed because it had expired.
    removed: u64,
    /// When the newest entry expires.
    expires_at: i64,
    /// That of the last charge's quota.
    capacity: u64,
}

impl Log {
    /// How many entries are of an earlier instant than `at`.
    fn count_before(&self, at: i64) -> usize {
        self.entries.partition_point(|entry| entry.at < at)
    }

    /// How many entries are of no later instant than `at`.
    fn count_until(&self, at: i64) -> usize {
        self.entries.partition_point(|entry| entry.at <= at)
    }

    /// The units of the first so many entries, and of those that were removed.
    fn total(&self, entries: usize) -> u64 {
        let last = entries
            .checked_sub(1)
            .and_then(|index| self.entries.get(index));
        last.map_or(self.removed, |last| last.total)
    }

    /// The units of all entries but the first so many.
    fn units_after(&self, entries: usize) -> u64 {
        self.total(self.entries.len()) - self.total(entries)
    }

    fn newest(&self) -> Option<i64> {
        self.entries.back().map(|entry| entry.at)
    }
}

impl State for Log {
    fn expires_at(&self) -> Timestamp {
        Timestamp::from_micros(self.expires_at)
    }

    fn eviction_order(&self, now: Timestamp) -> Option<u64> {
        let newest = self.newest().unwrap_or_default();
        let oldest = now
            .as_micros()
            .saturating_sub(self.expires_at.saturating_sub(newest));
        let used = self.units_after(self.count_until(oldest));
        Some(thousandths(used, self.capacity))
    }
}

impl SlidingLogRule {
    /// How many entries have expired.
    fn expired(&self, state: &Log, now: Timestamp) -> usize {
        state.count_until(now.as_micros().saturating_sub(self.period))
    }

    /// When the units charged at an instant expire.
    fn expires_at(&self, at: i64) -> i64 {
        at.saturating_add(self.period)
    }
}

impl LocalRule for SlidingLogRule {
    type State = Log;

    fn available(&self, state: &mut Log, now: Timestamp) -> i64 {
        let at = now.as_micros();
        if state.newest().is_some_and(|newest| newest > at) {
            // The clock stepped back: charges of a later time count as charges of now.
            let total = state.total(state.entries.len());
            state.entries.truncate(state.count_before(at));
            state.entries.push_back(Entry { at, total });
        }
        // The period may have been another one when the newest entry was charged.
        state.expires_at = state.newest().map_or(0, |at| self.expires_at(at));
        let count = state.units_after(self.expired(state, now));
        self.requests as i64 - count as i64
    }

    fn charge(&self, state: &mut Log, now: Timestamp, units: u64, _caller: &Key) {
        let expired = self.expired(state, now);
        state.removed = state.total(expired);
        state.entries.drain(..expired);
        let at = now.as_micros();
        let total = state.total(state.entries.len()) + units;
        match state.entries.back_mut() {
            Some(newest) if newest.at == at => newest.total = total,
            _ => state.entries.push_back(Entry { at, total }),
        }
        state.expires_at = self.expires_at(at);
        state.capacity = self.requests;
    }

    fn refund(
        &self,
        state: &mut Log,
        now: Timestamp,
        receipt: &ChargeReceipt,
        want: u64,
        _caller: &Key,
    ) -> u64 {
        let at = receipt.charged_at.as_micros();
        if at <= now.as_micros().saturating_sub(self.period) {
            return 0;
        }
        let (first, end) = (state.count_before(at), state.count_until(at));
        let units = state.total(end) - state.total(first);
        let refunded = want.min(units);
        for entry in state.entries.range_mut(first..) {
            entry.total -= refunded;
        }
        if refunded == units {
            state.entries.drain(first..end);
        }
        state.expires_at = state.newest().map_or(0, |at| self.expires_at(at));
        refunded
    }

    fn snapshot(&self, state: &Log, now: Timestamp, cost: u64) -> Snapshot {
        let expires_at = |entry: &Entry| self.expires_at(entry.at.min(now.as_micros()));
        let expired = self.expired(state, now);
        let count = state.units_after(expired);
        let (mut fits_at, mut free_at) = (0, 0);
        if count > 0 {
            free_at = state.entries.back().map_or(0, expires_at);
            let over = (count + cost.min(self.requests)).saturating_sub(self.requests);
            if over > 0 {
                let enough = state.total(expired) + over;
                let index = state.entries.partition_point(|entry| entry.total < enough);
                fits_at = state.entries.get(index).map_or(0, expires_at);
            }
        }
        Snapshot::new([count as i64, fits_at, free_at])
    }
}

impl Rule for SlidingLogRule {
    fn info(&self) -> RuleInfo {
        RuleInfo {
            refills_gradually: true,
            stores_each_unit: true,
            lease: self.lease,
            ..RuleInfo::new(SlidingLog::BUILT_IN.state_format, self.requests)
        }
    }

    fn status(
        &self,
        &Snapshot([count, fits_at, free_at]): &Snapshot,
        now: Timestamp,
        cost: u64,
    ) -> QuotaStatus {
        let left = self.requests as i64 - count;
        let wait = |at: i64| Timestamp::from_micros(at).since(now);
        QuotaStatus {
            remaining: left.max(0) as u64,
            retry_after: match () {
                () if cost > self.requests => RetryAfter::Never,
                () if left >= cost as i64 => RetryAfter::Now,
                () => RetryAfter::In(wait(fits_at)),
            },
            reset_after: if count > 0 {
                wait(free_at)
            } else {
                Duration::ZERO
            },
        }
    }

    fn script(&self) -> Option<LuaScript> {
        Some(LuaScript::new(
            include_str!("sliding_log.lua"),
            [self.requests as i64, self.period],
        ))
    }

    fn local_rule(&self) -> Option<ErasedLocalRule<'_>> {
        Some(ErasedLocalRule::new(self))
    }
}

use std::{borrow::Cow, collections::VecDeque, sync::Arc, time::Duration};

use super::validated_period_us;
use crate::{
    clock::Timestamp,
    error::InvalidValue,
    key::Key,
    quota::{DurationText, Quota},
    strategy::{
        ChargeReceipt, ErasedLocalRule, Lease, LocalRule, LuaScript, QuotaStatus, RetryAfter, Rule,
        Snapshot, State, Strategy, TierRefills, rule::table::thousandths,
    },
};

/// A strategy that stores the instant of every charged unit for exactly one period: never more than `requests` in any period,
/// whenever it begins.
///
/// - **Rule**: a charge of n units is admitted if, with it, no more than `requests` units are younger than the period.
/// - **Exact**: to the microsecond.
/// - **Memory**: O(requests) per key, about 9 bytes per unit on Redis. Quotas are limited to 100,000 requests for that reason;
///   the strategy is meant for far fewer.
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

/// How many leases fit into a period, at least: a unit counts for a period and a lease, so this share of the quota is not used.
const MIN_PERIODS: u32 = 100;

/// The largest quota: each unit is an entry of the log.
const MAX_ENTRIES: u64 = 100_000;

impl Strategy for SlidingLog {
    fn bind(&self, quota: &Quota) -> Result<Arc<dyn Rule>, InvalidValue> {
        let period = validated_period_us(quota, "sliding log", MAX_ENTRIES)?;
        Ok(Arc::new(SlidingLogRule {
            requests: quota.amount(),
            period,
            lease: None,
        }))
    }

    /// Each unit counts for one period after it may have been spent.
    fn bind_leased(
        &self,
        quota: &Quota,
        _refills: &TierRefills,
        lease: &Lease,
    ) -> Result<Arc<dyn Rule>, InvalidValue> {
        let period = validated_period_us(quota, "sliding log", MAX_ENTRIES)?;
        if lease.lifetime() > quota.period() / MIN_PERIODS {
            return Err(InvalidValue::new(
                format!(
                    "{quota} in a sliding log with a lease of {}",
                    DurationText(lease.lifetime())
                ),
                match Lease::valid_ttl(quota.period() / MIN_PERIODS) {
                    Some(ttl) => format!(
                        "a TTL of at most a hundredth of the period, {}",
                        DurationText(ttl)
                    ),
                    None => "a period of at least 500 ms, or no lease".to_owned(),
                },
            ));
        }
        Ok(Arc::new(SlidingLogRule {
            requests: quota.amount(),
            period: period + lease.spread().as_micros() as i64,
            lease: Some(*lease),
        }))
    }

    fn config_text(&self) -> Option<Cow<'_, str>> {
        Some("sliding_log".into())
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

/// The instants of the charged units, in microseconds since the epoch, the oldest first.
#[derive(Debug, Default)]
struct Instants {
    log: VecDeque<i64>,
    /// When the newest entry expires.
    expires_at: i64,
    /// That of the last charge's quota.
    capacity: u64,
}

impl State for Instants {
    fn expires_at(&self) -> Timestamp {
        Timestamp::from_micros(self.expires_at)
    }

    fn eviction_order(&self, now: Timestamp) -> Option<u64> {
        let newest = self.log.back().copied().unwrap_or_default();
        let oldest = now.as_micros().saturating_sub(self.expires_at - newest);
        let expired = self.log.partition_point(|at| *at <= oldest);
        let used = (self.log.len() - expired) as u64;
        Some(thousandths(used, self.capacity))
    }
}

impl SlidingLogRule {
    /// How many entries have expired.
    fn expired_len(&self, state: &Instants, now: Timestamp) -> usize {
        let oldest = now.as_micros() - self.period;
        state.log.partition_point(|at| *at <= oldest)
    }

    /// When the entry at `index` expires.
    fn entry_expires_at(&self, state: &Instants, index: usize, now: Timestamp) -> i64 {
        let at = state.log.get(index).copied().unwrap_or_default();
        at.min(now.as_micros()) + self.period
    }
}

impl LocalRule for SlidingLogRule {
    type State = Instants;

    fn available(&self, state: &mut Instants, now: Timestamp) -> i64 {
        if state.log.back().is_some_and(|at| *at > now.as_micros()) {
            // The clock stepped back: charges of a later time count as charges of now.
            for at in &mut state.log {
                *at = (*at).min(now.as_micros());
            }
        }
        // The period may have been another one when the newest entry was charged.
        state.expires_at = state.log.back().map_or(0, |at| at + self.period);
        let count = state.log.len() - self.expired_len(state, now);
        self.requests as i64 - count as i64
    }

    fn charge(&self, state: &mut Instants, now: Timestamp, units: u64, _caller: &Key) {
        state.log.drain(..self.expired_len(state, now));
        let at = now.as_micros();
        state.log.extend(std::iter::repeat_n(at, units as usize));
        state.expires_at = at + self.period;
        state.capacity = self.requests;
    }

    fn refund(
        &self,
        state: &mut Instants,
        now: Timestamp,
        receipt: &ChargeReceipt,
        want: u64,
        _caller: &Key,
    ) -> u64 {
        let at = receipt.charged_at.as_micros();
        if at <= now.as_micros() - self.period {
            return 0;
        }
        let first = state.log.partition_point(|entry| *entry < at);
        let end = state.log.partition_point(|entry| *entry <= at);
        let refunded = want.min((end - first) as u64);
        state.log.drain(first..first + refunded as usize);
        state.expires_at = state.log.back().map_or(0, |at| at + self.period);
        refunded
    }

    fn snapshot(&self, state: &Instants, now: Timestamp, cost: u64) -> Snapshot {
        let expired_len = self.expired_len(state, now);
        let count = state.log.len() - expired_len;
        let (mut fits_at, mut free_at) = (0, 0);
        if count > 0 {
            free_at = self.entry_expires_at(state, expired_len + count - 1, now);
            let over = (count as u64 + cost.min(self.requests)).saturating_sub(self.requests);
            if over > 0 {
                fits_at = self.entry_expires_at(state, expired_len + over as usize - 1, now);
            }
        }
        Snapshot::new([count as i64, fits_at, free_at])
    }
}

impl Rule for SlidingLogRule {
    fn state_format(&self) -> &'static str {
        "l1"
    }

    fn refills_gradually(&self) -> bool {
        true
    }

    fn capacity(&self) -> u64 {
        self.requests
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

    fn stores_each_unit(&self) -> bool {
        true
    }

    fn lease(&self) -> Option<Lease> {
        self.lease
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

use std::{borrow::Cow, sync::Arc};

use super::{RateParams, to_duration, to_ticks};
use crate::{
    clock::Timestamp,
    error::InvalidValue,
    key::Key,
    quota::Quota,
    strategy::{
        ChargeReceipt, ErasedLocalRule, LocalRule, LuaScript, QuotaStatus, Rule, RuleInfo,
        Snapshot, State, Strategy, Terms,
        entry::{BuiltIn, Counts},
    },
};

/// A strategy with a bucket of `burst` tokens that starts full and refills evenly, at `requests` per period.
///
/// - **Rule**: a request takes as many tokens as it costs, if there are enough. It admits the same requests as
///   [`Gcra`](crate::Gcra), and stores the number of missing tokens with the instant.
/// - **Exact**: in integers; the time in which a token refills is rounded up as [`Gcra`](crate::Gcra)'s emission interval is,
///   and the same quotas are a [`ConfigError`](crate::ConfigError).
/// - **Memory**: one short string per key, about 40 bytes more than [`Gcra`](crate::Gcra).
/// - **Worst case over one period**: requests + burst units.
/// - **With [leases](crate::Policy::lease)**: as [`Gcra`](crate::Gcra), by a burst that is smaller by what refills within a lease.
/// - **Choose it** if other programs read the keys.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Limiter, ManualClock, MemoryStore, Policy, Quota, TokenBucket};
///
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let clock = ManualClock::default();
/// let limiter = Limiter::builder()
///     .store(MemoryStore::builder().clock(clock.clone()).build())
///     .policy(Policy::new("burst", Quota::requests(10).per_second().burst(20)).strategy(TokenBucket))
///     .build()?;
/// assert_eq!(limiter.check("alice").times(99).await.admitted(), 20);
/// clock.advance(Duration::from_millis(500));
/// assert_eq!(limiter.check("alice").times(99).await.admitted(), 5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenBucket;

impl TokenBucket {
    pub(crate) const BUILT_IN: BuiltIn =
        BuiltIn::without_settings::<Self, TokenBucketRule>("token_bucket", "t2", Counts::Time);
}

impl Strategy for TokenBucket {
    fn bind(&self, quota: &Quota, terms: &Terms) -> Result<Arc<dyn Rule>, InvalidValue> {
        Ok(Arc::new(TokenBucketRule(RateParams::new(quota, terms)?)))
    }

    fn tiers_share_period(&self) -> bool {
        false
    }

    fn config_text(&self) -> Option<Cow<'_, str>> {
        Some(Self::BUILT_IN.text.into())
    }
}

/// A token bucket for one quota.
#[derive(Clone, Debug)]
struct TokenBucketRule(RateParams);

/// How much is missing of a full bucket, in ticks (50 ns) of refilling, and when that was so.
#[derive(Debug, Default)]
struct Bucket {
    deficit: u64,
    stamp: Timestamp,
}

impl State for Bucket {
    fn expires_at(&self) -> Timestamp {
        self.stamp + to_duration(self.deficit)
    }
}

impl TokenBucketRule {
    /// The deficit at `now` in ticks, and whether the state is off and has to be written: because the stamp lies ahead (the
    /// clock stepped back, and the bucket refills from now on), or the deficit is deeper than any debt.
    fn deficit(&self, state: &Bucket, now: Timestamp) -> (u64, bool) {
        let elapsed = to_ticks(now.since(state.stamp));
        let deficit = state.deficit.saturating_sub(elapsed);
        let capped = self.0.capped(deficit);
        (capped, state.stamp > now || capped < deficit)
    }
}

impl LocalRule for TokenBucketRule {
    type State = Bucket;

    fn available(&self, state: &mut Bucket, now: Timestamp) -> i64 {
        let (deficit, off) = self.deficit(state, now);
        if off {
            let stamp = now;
            *state = Bucket { deficit, stamp };
        }
        self.0.available(deficit)
    }

    fn charge(&self, state: &mut Bucket, now: Timestamp, units: u64, _caller: &Key) {
        let step = units.saturating_mul(self.0.interval);
        *state = Bucket {
            deficit: self.deficit(state, now).0.saturating_add(step),
            stamp: now,
        };
    }

    fn refund(
        &self,
        state: &mut Bucket,
        now: Timestamp,
        receipt: &ChargeReceipt,
        want: u64,
        _caller: &Key,
    ) -> u64 {
        let (deficit, _) = self.deficit(state, now);
        let (ticks, refunded) = self.0.refundable(receipt, deficit, now, want);
        if ticks > 0 && deficit > 0 {
            *state = Bucket {
                deficit: deficit.saturating_sub(ticks),
                stamp: now,
            };
        }
        refunded
    }

    fn snapshot(&self, state: &Bucket, now: Timestamp, _cost: u64) -> Snapshot {
        Snapshot::new([self.deficit(state, now).0 as i64])
    }
}

impl Rule for TokenBucketRule {
    fn info(&self) -> RuleInfo {
        self.0.info(TokenBucket::BUILT_IN.state_format)
    }

    fn units_in_use(&self, &Snapshot([deficit, ..]): &Snapshot, _now: Timestamp) -> Option<u64> {
        Some(self.0.units_in_use(deficit))
    }

    fn status(
        &self,
        &Snapshot([deficit, ..]): &Snapshot,
        _now: Timestamp,
        cost: u64,
    ) -> QuotaStatus {
        self.0.status(deficit, cost)
    }

    fn has_remaining(
        &self,
        &Snapshot([deficit, ..]): &Snapshot,
        _now: Timestamp,
        units: u64,
    ) -> bool {
        self.0.has_remaining(deficit, units)
    }

    fn script(&self) -> Option<LuaScript> {
        Some(LuaScript::new(include_str!("token_bucket.lua"), self.0.params()).snapshot_len(1))
    }

    /// Computed for each call not because of the time, but because tiers may be registered later.
    fn time_params(&self, _now: Timestamp) -> Vec<i64> {
        self.0.max_debt_of_tiers()
    }

    fn local_rule(&self) -> Option<ErasedLocalRule<'_>> {
        Some(ErasedLocalRule::new(self))
    }
}

use std::{borrow::Cow, sync::Arc};

use super::{RateParams, ticks_since_epoch, to_timestamp};
use crate::{
    clock::Timestamp,
    error::InvalidValue,
    key::Key,
    quota::Quota,
    strategy::{
        ChargeReceipt, ErasedLocalRule, LocalRule, LuaScript, QuotaStatus, Rule, RuleInfo,
        Snapshot, State, Strategy, Terms,
        entry::{BuiltIn, Counts},
        rule::try_charge,
    },
};

/// The generic cell rate algorithm (ITU-T I.371), the default strategy: a bucket of `burst` units that refills evenly, at
/// `requests` per period.
///
/// - **Rule**: a charge of n units moves the theoretical arrival time TAT to max(TAT, now) + n x T, where the emission
///   interval T is period / requests; it is admitted if that lies no more than burst x T ahead of now.
/// - **Exact**: in integers. T is rounded up to 50 ns, so the sustained rate is never above the quota: it is equal if the
///   requests per second divide 20,000,000, and else at least 99.99 % of any rate up to 2,000 per second, and 99.9 % of a faster one.
///   A quota above 20,000 per second of which it would be less, such as 60,000, one above 1,000,000, and a burst that takes more than 400 days to
///   refill are a [`ConfigError`](crate::ConfigError), which names the next quotas that are counted.
/// - **Memory**: one integer per key; 129 bytes on Redis, all overhead included. A key expires within a minute after its burst
///   is full again.
/// - **Speed on Redis**: a charge is a single `INCRBY`; the first charge of a key, and each that moves its TAT across a full
///   minute, is one command more.
/// - **Worst case over one period**: requests + burst units.
/// - **With [leases](crate::Policy::lease)**: as without them, at most burst + d x requests / period units are admitted in any interval
///   of length d. What is spent in it was charged in the interval lengthened by v, the lease's [spread](crate::Lease::spread); and every
///   charge of the key, leased or not, is by a burst that is smaller by ceil(v / T). So at most burst - v / T + (d + v) / T units
///   are charged in the longer interval, which is burst + d / T. A cost above the smaller burst is never admitted.
/// - **Choose it** unless you need the guarantees of another strategy.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Limiter, ManualClock, MemoryStore, Policy, Quota};
///
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let clock = ManualClock::default();
/// let limiter = Limiter::builder()
///     .store(MemoryStore::builder().clock(clock.clone()).build())
///     .policy(Policy::new("burst", Quota::requests(10).per_second().burst(2)))
///     .build()?;
/// assert_eq!(limiter.check("alice").times(9).await.admitted(), 2);
/// // A unit comes back every 100 ms.
/// clock.advance(Duration::from_millis(100));
/// assert_eq!(limiter.check("alice").times(9).await.admitted(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gcra;

impl Gcra {
    pub(crate) const BUILT_IN: BuiltIn =
        BuiltIn::without_settings::<Self, GcraRule>("gcra", "g3", Counts::Time);
}

impl Strategy for Gcra {
    fn bind(&self, quota: &Quota, terms: &Terms) -> Result<Arc<dyn Rule>, InvalidValue> {
        Ok(Arc::new(GcraRule(RateParams::new(quota, terms)?)))
    }

    fn tiers_share_period(&self) -> bool {
        false
    }

    fn config_text(&self) -> Option<Cow<'_, str>> {
        Some(Self::BUILT_IN.text.into())
    }
}

/// GCRA for one quota.
#[derive(Clone, Debug)]
pub(super) struct GcraRule(pub(super) RateParams);

/// The theoretical arrival time, in ticks (50 ns) since 1970.
#[derive(Debug, Default)]
pub(super) struct Tat(pub(super) i64);

impl State for Tat {
    fn expires_at(&self) -> Timestamp {
        to_timestamp(self.0)
    }
}

impl GcraRule {
    /// How far ahead of now the theoretical arrival time lies, in ticks: the tolerance if it lies further than any debt.
    fn ahead(&self, &Tat(tat): &Tat, now: Timestamp) -> u64 {
        let ahead = tat.saturating_sub(ticks_since_epoch(now));
        self.0.capped(u64::try_from(ahead).unwrap_or(0))
    }

    /// The theoretical arrival time that lies so far ahead of now.
    fn tat(&self, ahead: u64, now: Timestamp) -> Tat {
        Tat(ticks_since_epoch(now).saturating_add_unsigned(ahead))
    }
}

impl LocalRule for GcraRule {
    type State = Tat;

    fn available(&self, state: &mut Tat, now: Timestamp) -> i64 {
        let ahead = self.ahead(state, now);
        if ahead == self.0.tolerance {
            // The stored TAT may lie further ahead than `ahead`, which is capped: write it back.
            *state = self.tat(ahead, now);
        }
        self.0.available(ahead)
    }

    fn charge(&self, state: &mut Tat, now: Timestamp, units: u64, _caller: &Key) {
        let ahead = self.ahead(state, now);
        let step = units.saturating_mul(self.0.interval);
        *state = self.tat(ahead.saturating_add(step), now);
    }

    fn try_charge(
        &self,
        state: &mut Tat,
        now: Timestamp,
        times: u64,
        units: u64,
        caller: &Key,
    ) -> (u64, Snapshot) {
        if times != 1 {
            return try_charge(self, state, now, times, units, caller);
        }
        // One request needs no division.
        let ahead = self.ahead(state, now);
        let after = units.saturating_mul(self.0.interval).saturating_add(ahead);
        let fits = after <= self.0.tolerance || units == 0;
        let ahead = if fits { after } else { ahead };
        if fits && units > 0 || ahead == self.0.tolerance {
            *state = self.tat(ahead, now);
        }
        (fits.into(), Snapshot::new([ahead as i64]))
    }

    fn refund(
        &self,
        state: &mut Tat,
        now: Timestamp,
        receipt: &ChargeReceipt,
        want: u64,
        _caller: &Key,
    ) -> u64 {
        // Writes back a TAT that is capped.
        LocalRule::available(self, state, now);
        let ahead = self.ahead(state, now);
        let (ticks, refunded) = self.0.refundable(receipt, ahead, now, want);
        if ticks >= ahead {
            // Should the clock step back, nothing is charged either.
            *state = Tat::default();
        } else if ticks > 0 {
            *state = self.tat(ahead - ticks, now);
        }
        refunded
    }

    fn snapshot(&self, state: &Tat, now: Timestamp, _cost: u64) -> Snapshot {
        Snapshot::new([self.ahead(state, now) as i64])
    }
}

impl Rule for GcraRule {
    fn info(&self) -> RuleInfo {
        self.0.info(Gcra::BUILT_IN.state_format)
    }

    fn units_in_use(&self, &Snapshot([ahead, ..]): &Snapshot, _now: Timestamp) -> Option<u64> {
        Some(self.0.units_in_use(ahead))
    }

    fn status(&self, &Snapshot([ahead, ..]): &Snapshot, _now: Timestamp, cost: u64) -> QuotaStatus {
        self.0.status(ahead, cost)
    }

    fn has_remaining(
        &self,
        &Snapshot([ahead, ..]): &Snapshot,
        _now: Timestamp,
        units: u64,
    ) -> bool {
        self.0.has_remaining(ahead, units)
    }

    fn script(&self) -> Option<LuaScript> {
        Some(
            LuaScript::new(include_str!("gcra.lua"), self.0.params())
                .with_fast_path(include_str!("gcra_fast.lua"))
                .snapshot_len(1),
        )
    }

    /// Computed for each call not because of the time, but because tiers may be registered later.
    fn time_params(&self, _now: Timestamp) -> Vec<i64> {
        self.0.max_debt_of_tiers()
    }

    fn local_rule(&self) -> Option<ErasedLocalRule<'_>> {
        Some(ErasedLocalRule::new(self))
    }
}

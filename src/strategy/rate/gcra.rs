use std::{borrow::Cow, sync::Arc};

use super::{RateParams, ticks_since_epoch, to_timestamp};
use crate::{
    clock::Timestamp,
    error::InvalidValue,
    key::Key,
    quota::Quota,
    strategy::{
        ChargeReceipt, ErasedLocalRule, Lease, LocalRule, LuaScript, QuotaStatus, Rule, Snapshot,
        State, Strategy, TierRefills, rule::try_charge,
    },
};

/// The generic cell rate algorithm (ITU-T I.371), the default strategy: a bucket of `burst` units that refills evenly, at
/// `requests` per period.
///
/// - **Rule**: a charge of n units moves the theoretical arrival time TAT to max(TAT, now) + n x T, where the emission
///   interval T is period / requests; it is admitted if that lies no more than burst x T ahead of now.
/// - **Exact**: in integers. T is rounded up to 50 ns, so the sustained rate is never above the quota: it is equal if the
///   requests per second divide 20,000,000, and else at least 99.99 % of any rate up to 2,000 per second, 99.5 % up to 100,000
///   and 95 % up to 1,000,000. A faster quota, or a burst that takes more than 400 days to refill, is a
///   [`ConfigError`](crate::ConfigError).
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

impl Strategy for Gcra {
    fn bind(&self, quota: &Quota) -> Result<Arc<dyn Rule>, InvalidValue> {
        self.bind_tier(quota, &TierRefills::default())
    }

    fn bind_tier(
        &self,
        quota: &Quota,
        refills: &TierRefills,
    ) -> Result<Arc<dyn Rule>, InvalidValue> {
        Ok(Arc::new(GcraRule(RateParams::new(quota, refills)?)))
    }

    fn bind_leased(
        &self,
        quota: &Quota,
        refills: &TierRefills,
        lease: &Lease,
    ) -> Result<Arc<dyn Rule>, InvalidValue> {
        let params = RateParams::leased(quota, refills, lease)?;
        Ok(Arc::new(GcraRule(params)))
    }

    fn tiers_share_period(&self) -> bool {
        false
    }

    fn config_text(&self) -> Option<Cow<'_, str>> {
        Some("gcra".into())
    }
}

/// GCRA for one quota.
#[derive(Clone, Debug)]
struct GcraRule(RateParams);

/// The theoretical arrival time, in ticks (50 ns) since 1970.
#[derive(Debug, Default)]
struct Tat(i64);

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
        let (ticks, refunded) = self
            .0
            .refundable(receipt.charged_at, receipt.remaining, now, want);
        // Writes back a TAT that is capped.
        LocalRule::available(self, state, now);
        let ahead = self.ahead(state, now);
        if ticks > 0 && ahead > 0 {
            *state = self.tat(ahead.saturating_sub(ticks), now);
        }
        refunded
    }

    fn snapshot(&self, state: &Tat, now: Timestamp, _cost: u64) -> Snapshot {
        Snapshot::new([self.ahead(state, now) as i64])
    }
}

impl Rule for GcraRule {
    fn state_format(&self) -> &'static str {
        "g3"
    }

    fn units_in_use(&self, &Snapshot([ahead, ..]): &Snapshot, _now: Timestamp) -> Option<u64> {
        Some(self.0.units_in_use(ahead))
    }

    fn snapshot_ignores_cost(&self) -> bool {
        true
    }

    fn refills_gradually(&self) -> bool {
        true
    }

    fn capacity(&self) -> u64 {
        self.0.burst
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

    fn lease(&self) -> Option<Lease> {
        self.0.lease
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy::RetryAfter;
    use proptest::prelude::*;
    use std::time::Duration;

    const CALLER: Key = Key::global();
    const NOW: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);

    fn gcra(quota: &str) -> GcraRule {
        GcraRule(params(quota).expect(quota))
    }

    fn params(quota: &str) -> Result<RateParams, InvalidValue> {
        RateParams::new(&quota.parse().expect(quota), &TierRefills::default())
    }

    #[test]
    fn a_quota_that_cannot_be_counted_exactly_is_an_error_that_shows_one_that_can() {
        for quota in ["1000001/s", "33333333/s"] {
            let error = params(quota).expect_err(quota);
            let words = "at most 1,000,000 units per second";
            assert!(format!("{error:?}").contains(words), "{error:?}");
        }
        for quota in ["1/401days", "10/s burst 9000000000000", "1/month burst 15"] {
            let error = params(quota).expect_err(quota);
            assert!(format!("{error:?}").contains("CalendarWindow"), "{error:?}");
        }
        for quota in ["1/400days", "1000000/s", "1/month burst 13"] {
            assert!(params(quota).is_ok(), "{quota}");
        }
    }

    #[test]
    fn a_debt_that_a_declared_tier_allows_is_cut_under_no_tier() {
        let refills = TierRefills::default();
        let tier = |quota: &str| {
            let quota: Quota = quota.parse().expect(quota);
            GcraRule(RateParams::new(&quota, &refills).expect("a quota in range"))
        };
        let (large, small) = (tier("10000/day"), tier("10/min"));
        let mut state = Tat::default();
        LocalRule::charge(&large, &mut state, NOW, 20_000, &CALLER);
        assert!(LocalRule::available(&small, &mut state, NOW) < 0);
        assert_eq!(LocalRule::available(&large, &mut state, NOW), -10_000);
        // One unit more is no debt that any tier allows.
        LocalRule::charge(&large, &mut state, NOW, 1, &CALLER);
        assert_eq!(LocalRule::available(&small, &mut state, NOW), 0);
    }

    #[test]
    fn a_state_further_ahead_than_any_debt_is_cut_to_one_burst() {
        // The clock stepped back by an hour; an hour of waiting would be 60 times the period.
        let rule = gcra("10/min");
        let mut state = Tat::default();
        LocalRule::charge(
            &rule,
            &mut state,
            NOW + Duration::from_secs(3_600),
            10,
            &CALLER,
        );
        let snapshot = LocalRule::snapshot(&rule, &state, NOW, 1);
        assert_eq!(
            rule.status(&snapshot, NOW, 1).retry_after,
            RetryAfter::In(Duration::from_secs(6))
        );
    }

    /// The promised share of a rate.
    fn share(quota: &Quota) -> f64 {
        match quota.amount() as f64 / quota.period().as_secs_f64() {
            ..=2_000.0 => 0.9999,
            ..=100_000.0 => 0.995,
            _ => 0.95,
        }
    }

    /// Charges every unit as soon as it is available, for `periods`; returns how many these were.
    fn sustained(rule: &GcraRule, period: Duration, periods: u32) -> u64 {
        let mut state = Tat::default();
        let (mut now, end) = (NOW, NOW + period * periods);
        let mut charged = 0;
        while now < end {
            let available = LocalRule::available(rule, &mut state, now).max(0) as u64;
            LocalRule::charge(rule, &mut state, now, available, &CALLER);
            charged += available;
            let snapshot = LocalRule::snapshot(rule, &state, now, 1);
            now = match rule.status(&snapshot, now, 1).retry_after {
                RetryAfter::In(wait) => now + wait,
                _ => now,
            };
        }
        charged
    }

    #[test]
    fn the_sustained_rate_is_the_quota_and_never_above() {
        for (quota, periods) in [
            ("1/month", 120),
            ("7/week", 500),
            ("1000/day", 20),
            ("100/min", 100),
            ("333333/s", 2),
            ("700000/s", 2),
            ("999999/s", 2),
            ("1000000/s", 2),
            ("999999/s burst 3", 2),
        ] {
            let (rule, quota) = (gcra(quota), quota.parse::<Quota>().expect(quota));
            let charged = sustained(&rule, quota.period(), periods);
            let most = quota.amount() * u64::from(periods) + quota.capacity();
            // What the first burst adds is no rate.
            let least = (quota.amount() * u64::from(periods)) as f64 * share(&quota) - 1.0;
            assert!(charged <= most, "{quota}: {charged} > {most}");
            assert!(charged as f64 >= least, "{quota}: {charged} < {least}");
        }
    }

    proptest! {
        #[test]
        fn units_that_remain_are_those_of_the_status(
            requests in 1_u64..=1_000, burst in 1_u64..1_000, used in -10_i64..100_000_000_000, more in 0_u64..3,
        ) {
            let quota = Quota::requests(requests).per_minute().burst(burst);
            let params = RateParams::new(&quota, &TierRefills::default()).expect("a quota in range");
            let remaining = params.status(used, 1).remaining;
            for units in [remaining.saturating_sub(more), remaining + more] {
                prop_assert_eq!(params.has_remaining(used, units), remaining >= units);
            }
        }

        #[test]
        fn the_sustained_rate_is_at_most_the_quotas_and_at_least_the_promised_share(
            requests in 1_u64..=1_000_000, period in 1_000_000_u64..=30 * 86_400_000_000, burst in 1_u64..1_000,
        ) {
            let quota = Quota::requests(requests).per(Duration::from_micros(period)).burst(burst);
            if let Ok(params) = RateParams::new(&quota, &TierRefills::default()) {
                let exact = u128::from(period) * 20;
                let ours = u128::from(params.interval) * u128::from(requests);
                prop_assert!(ours >= exact);
                prop_assert!(exact as f64 >= ours as f64 * share(&quota));
            }
        }

        #[test]
        fn a_rate_that_divides_20_million_is_exact(requests in 1_u64..=1_000_000) {
            if 20_000_000 % requests == 0 {
                let params = RateParams::new(&Quota::requests(requests).per_second(), &TierRefills::default());
                prop_assert_eq!(params.expect("a quota in range").interval * requests, 20_000_000);
            }
        }

        #[test]
        fn one_step_charges_what_several_do(
            used in 0_u64..60, step in -30_000_000_i64..30_000_000, units in 0_u64..50, times in 0_u64..4,
        ) {
            // Debts, and states of a clock that stepped, included.
            let rule = gcra("10/min burst 20");
            let mut state = Tat::default();
            LocalRule::charge(&rule, &mut state, NOW, used, &CALLER);
            let now = Timestamp::from_micros(NOW.as_micros() + step);
            let mut other = Tat(state.0);
            let fast = LocalRule::try_charge(&rule, &mut state, now, times, units, &CALLER);
            prop_assert_eq!(fast, try_charge(&rule, &mut other, now, times, units, &CALLER));
            prop_assert_eq!(state.0, other.0);
        }

        #[test]
        fn a_charge_that_is_refunded_at_once_leaves_no_trace(used in 0_u64..20, units in 1_u64..20) {
            let rule = gcra("10/min burst 20");
            let mut state = Tat::default();
            LocalRule::charge(&rule, &mut state, NOW, used, &CALLER);
            let before = state.0;
            LocalRule::charge(&rule, &mut state, NOW, units, &CALLER);
            let receipt = ChargeReceipt { charged_at: NOW, remaining: units, window_id: 0 };
            prop_assert_eq!(LocalRule::refund(&rule, &mut state, NOW, &receipt, units, &CALLER), units);
            prop_assert_eq!(LocalRule::available(&rule, &mut state, NOW), 20 - used as i64);
            prop_assert!(before == 0 || state.0 == before);
        }
    }
}

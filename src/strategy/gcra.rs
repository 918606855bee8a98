use std::sync::Arc;
use std::time::Duration;

use super::{AnyMemory, Memory, Outlook, Receipt, Retry, Rule, Script, Seen, State, Strategy};
use crate::{clock::Timestamp, error::Unfit, quota::Quota};

/// The generic cell rate algorithm (ITU-T I.371): a bucket of `burst` units that drains evenly, at `requests` per
/// period. The default.
///
/// - **Rule**: a charge of n units moves the theoretical arrival time TAT to max(TAT, now) + n x T, where the emission
///   interval T is period / requests; it is admitted if that lies no more than burst x T ahead of now.
/// - **Exact**: T is rounded up to 0.1 ns, so that the sustained rate is never above the quota and at least 99.99 % of
///   it.
/// - **Memory**: one integer a key; 129 bytes on Redis, all overhead included.
/// - **Worst case over one period**: requests + burst units.
/// - **Choose it** unless you need one of the others' promises.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gcra;

/// Time is counted in 0.1 ns, from 2020 on: the resolution that 99.99 % of 1,000,000 per second needs.
const PER_MICRO: u64 = 10_000;

/// 2020-01-01T00:00:00Z in seconds.
const EPOCH: i64 = 1_577_836_800;

/// What Lua can count exactly, with room for a debt and a sum.
const EXACT: u128 = 1 << 51;

/// Capacity x emission interval at most: what an int64 of 0.1 ns since 2020 can hold for years to come, twice over.
const LONGEST: Duration = Duration::from_secs(10 * 365 * 86_400);

impl Strategy for Gcra {
    fn bind(&self, quota: &Quota) -> Result<Arc<dyn Rule>, Unfit> {
        Ok(Arc::new(Meter::of(quota)?))
    }
}

/// GCRA for one quota, in units of `grain` x 0.1 ns.
#[derive(Clone, Debug)]
struct Meter {
    burst: u64,
    /// The emission interval T, in units.
    interval: u64,
    /// Burst x interval, in units: how far ahead of now the theoretical arrival time may lie.
    tolerance: u64,
    /// 0.1 ns per unit: a power of ten, the smallest with which Lua counts exactly.
    grain: u64,
}

impl Meter {
    fn of(quota: &Quota) -> Result<Self, Unfit> {
        let period = u128::from(quota.checked()?) * u128::from(PER_MICRO);
        let (requests, burst) = (u128::from(quota.units()), u128::from(quota.capacity()));
        let unfit = || {
            Unfit::new(
                format!("{quota}, past what GCRA counts exactly"),
                "at most 1,000,000 units per second and 100,000,000,000 at once, \
                 and a burst that is used up within ten years is regained in",
            )
        };
        let precise = |grain: u128| {
            let interval = period.div_ceil(requests * grain);
            // Rounding up may cost one part in 10,000 of the rate, no more.
            let loss = interval * requests * grain - period;
            let tolerance = interval.checked_mul(burst)?;
            (tolerance < EXACT && loss * 10_000 <= interval * requests * grain)
                .then_some((grain, interval, tolerance))
        };
        let (grain, interval, tolerance) = [1, 10, 100, 1_000, 10_000]
            .into_iter()
            .find_map(precise)
            .ok_or_else(unfit)?;
        if tolerance * grain > LONGEST.as_nanos() * 10 {
            return Err(unfit());
        }
        // All three are below 2^52.
        Ok(Self {
            burst: quota.capacity(),
            interval: interval as u64,
            tolerance: tolerance as u64,
            grain: grain as u64,
        })
    }

    /// How far ahead of now the theoretical arrival time lies, in units.
    fn ahead(&self, tat: u64, now: Timestamp) -> u64 {
        let ahead = tat.saturating_sub(tenths(now)).div_ceil(self.grain);
        if ahead > 2 * self.tolerance {
            // further than any debt: the clock stepped back, or the quota was another one
            self.tolerance
        } else {
            ahead
        }
    }

    fn tat(&self, ahead: u64, now: Timestamp) -> u64 {
        tenths(now).saturating_add(ahead.saturating_mul(self.grain))
    }

    fn units_per_micro(&self) -> u64 {
        PER_MICRO / self.grain
    }

    fn wait(&self, units: u64) -> Duration {
        Duration::from_micros(units.div_ceil(self.units_per_micro()))
    }
}

/// 0.1 ns from 2020 to `now`.
fn tenths(now: Timestamp) -> u64 {
    let micros = (now.as_micros() - EPOCH * 1_000_000).max(0) as u64;
    micros.saturating_mul(PER_MICRO)
}

/// The theoretical arrival time, in 0.1 ns since 2020.
#[derive(Debug, Default)]
struct Tat(u64);

impl State for Tat {
    fn full_at(&self) -> Timestamp {
        Timestamp::from_micros(self.0.div_ceil(PER_MICRO) as i64 + EPOCH * 1_000_000)
    }
}

impl Memory for Meter {
    type State = Tat;

    fn room(&self, state: &mut Tat, now: Timestamp) -> i64 {
        let ahead = self.ahead(state.0, now);
        if ahead > 0 {
            state.0 = state.0.min(self.tat(ahead, now));
        }
        (self.tolerance as i64 - ahead as i64).div_euclid(self.interval as i64)
    }

    fn take(&self, state: &mut Tat, now: Timestamp, units: u64) {
        state.0 = self.tat(self.ahead(state.0, now) + units * self.interval, now);
    }

    fn give(&self, state: &mut Tat, now: Timestamp, receipt: &Receipt, want: u64) -> u64 {
        let elapsed = now.since(receipt.at).as_micros() as u64;
        let drained = elapsed
            .saturating_mul(self.units_per_micro())
            .div_ceil(self.interval);
        let back = want.min(receipt.left.saturating_sub(drained));
        let ahead = self
            .ahead(state.0, now)
            .saturating_sub(back.saturating_mul(self.interval));
        state.0 = self.tat(ahead, now);
        back
    }

    fn seen(&self, state: &Tat, now: Timestamp, _cost: u64) -> Seen {
        [self.ahead(state.0, now) as i64, 0, 0]
    }
}

impl Rule for Meter {
    fn tag(&self) -> &'static str {
        "g1"
    }

    fn capacity(&self) -> u64 {
        self.burst
    }

    fn outlook(&self, &[ahead, ..]: &Seen, _now: Timestamp, cost: u64) -> Outlook {
        let ahead = ahead.max(0) as u64;
        // Where the theoretical arrival time would be after this request, and how far that is past the tolerance.
        let over = u128::from(ahead) + u128::from(cost) * u128::from(self.interval);
        let retry = match over.saturating_sub(u128::from(self.tolerance)) as u64 {
            _ if cost > self.burst => Retry::Never,
            0 => Retry::Now,
            over => Retry::After(self.wait(over)),
        };
        Outlook {
            remaining: self.tolerance.saturating_sub(ahead) / self.interval,
            retry,
            reset_after: self.wait(ahead),
        }
    }

    fn script(&self) -> Option<Script> {
        let per_micro = self.units_per_micro();
        let params = [
            self.burst,
            self.interval,
            self.tolerance,
            self.grain,
            per_micro * 1_000_000,
            per_micro * 1_000,
            per_micro,
        ];
        Some(Script {
            source: include_str!("gcra.lua"),
            params: params.map(|param| param as i64).to_vec(),
        })
    }

    fn memory(&self) -> Option<&dyn AnyMemory> {
        Some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);

    fn meter(quota: &str) -> Meter {
        Meter::of(&quota.parse().expect(quota)).expect(quota)
    }

    #[test]
    fn a_quota_that_cannot_be_counted_exactly_says_what_can() {
        for quota in [
            "20000000/s",
            "1/20000days",
            "10/s burst 9000000000000",
            "1/month burst 200",
        ] {
            let error = Meter::of(&quota.parse().expect(quota)).expect_err(quota);
            assert!(
                format!("{error:?}").contains("at most 1,000,000 units per second"),
                "{error:?}"
            );
        }
    }

    #[test]
    fn a_state_further_ahead_than_any_debt_is_one_burst_and_no_longer() {
        // The clock stepped back by an hour; an hour of waiting would be 60 times the period.
        let meter = meter("10/min");
        let mut state = Tat::default();
        Memory::take(&meter, &mut state, NOW + Duration::from_secs(3_600), 10);
        let seen = Memory::seen(&meter, &state, NOW, 1);
        assert_eq!(
            meter.outlook(&seen, NOW, 1).retry,
            Retry::After(Duration::from_secs(6))
        );
    }

    /// Takes one unit whenever one is to be had, for `periods`; returns how many that were.
    fn sustained(meter: &Meter, period: Duration, periods: u32) -> u64 {
        let mut state = Tat::default();
        let (mut now, end) = (NOW, NOW + period * periods);
        let mut taken = 0;
        while now < end {
            let room = Memory::room(meter, &mut state, now).max(0) as u64;
            Memory::take(meter, &mut state, now, room);
            taken += room;
            let seen = Memory::seen(meter, &state, now, 1);
            now = match meter.outlook(&seen, now, 1).retry {
                Retry::After(wait) => now + wait,
                _ => now,
            };
        }
        taken
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
            let quota: Quota = quota.parse().expect(quota);
            let meter = Meter::of(&quota).expect("a quota in range");
            let taken = sustained(&meter, quota.period(), periods);
            let most = quota.units() * u64::from(periods) + quota.capacity();
            // What the first burst adds is no rate.
            let least = (quota.units() * u64::from(periods)) as f64 * 0.9999 - 1.0;
            assert!(taken <= most, "{quota}: {taken} > {most}");
            assert!(taken as f64 >= least, "{quota}: {taken} < {least}");
        }
    }

    proptest! {
        #[test]
        fn the_interval_is_never_shorter_than_the_quotas_nor_longer_than_a_ten_thousandth(
            requests in 1_u64..=1_000_000, period in 1_000_000_u64..=30 * 86_400_000_000, burst in 1_u64..1_000,
        ) {
            let quota = Quota::requests(requests).per(Duration::from_micros(period)).burst(burst);
            if let Ok(meter) = Meter::of(&quota) {
                let exact = u128::from(period) * 10_000;
                let ours = u128::from(meter.interval) * u128::from(meter.grain) * u128::from(requests);
                prop_assert!(ours >= exact);
                prop_assert!(exact * 10_000 >= ours * 9_999);
            }
        }

        #[test]
        fn what_is_given_back_at_once_was_never_taken(used in 0_u64..20, units in 1_u64..20) {
            let meter = meter("10/min burst 20");
            let mut state = Tat::default();
            Memory::take(&meter, &mut state, NOW, used);
            let before = state.0;
            Memory::take(&meter, &mut state, NOW, units);
            let receipt = Receipt { at: NOW, left: units, mark: 0 };
            prop_assert_eq!(Memory::give(&meter, &mut state, NOW, &receipt, units), units);
            prop_assert_eq!(Memory::room(&meter, &mut state, NOW), 20 - used as i64);
            prop_assert!(before == 0 || state.0 == before);
        }
    }
}

//! The arithmetic of an even rate, which GCRA and the token bucket share.

use std::time::Duration;

use super::{Outlook, Retry};
use crate::{clock::Timestamp, error::Unfit, quota::Quota};

/// Time is counted in 0.1 ns, from 2020 on: the resolution that 99.99 % of 1,000,000 per second needs.
pub(super) const PER_MICRO: u64 = 10_000;

/// 2020-01-01T00:00:00Z in seconds.
pub(super) const EPOCH: i64 = 1_577_836_800;

/// What Lua can count exactly, with room for a debt and a sum.
const EXACT: u128 = 1 << 51;

/// Capacity x emission interval at most: what an int64 of 0.1 ns since 2020 can hold for years to come, twice over.
const LONGEST: Duration = Duration::from_secs(10 * 365 * 86_400);

/// An even rate, counted in units of `grain` x 0.1 ns.
#[derive(Clone, Debug)]
pub(super) struct Meter {
    pub(super) burst: u64,
    /// The emission interval T, in units.
    pub(super) interval: u64,
    /// Burst x interval, in units: how far ahead of now the theoretical arrival time may lie.
    pub(super) tolerance: u64,
    /// 0.1 ns per unit: a power of ten, the smallest with which Lua counts exactly.
    pub(super) grain: u64,
}

impl Meter {
    pub(super) fn of(quota: &Quota) -> Result<Self, Unfit> {
        let period = u128::from(quota.checked()?) * u128::from(PER_MICRO);
        let (requests, burst) = (u128::from(quota.units()), u128::from(quota.capacity()));
        let unfit = || {
            Unfit::new(
                format!("{quota}, past what an even rate can count exactly"),
                "at most 1,000,000 units per second, and a burst that refills within ten years",
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

    pub(super) fn units_per_micro(&self) -> u64 {
        PER_MICRO / self.grain
    }

    /// So many 0.1 ns in units, rounded up.
    pub(super) fn grains(&self, tenths: u64) -> u64 {
        match self.grain {
            1 => tenths,
            grain => tenths.div_ceil(grain),
        }
    }

    fn wait(&self, units: u64) -> Duration {
        Duration::from_micros(match self.grain {
            1 => units.div_ceil(PER_MICRO),
            _ => units.div_ceil(self.units_per_micro()),
        })
    }

    /// Units of time to give back for `want` units of a charge of `left`, made `elapsed` microseconds ago: at most what
    /// time has not given back of it.
    pub(super) fn refund(&self, want: u64, left: u64, elapsed: u64) -> u64 {
        let drained = elapsed.saturating_mul(self.units_per_micro());
        let held = left.saturating_mul(self.interval).saturating_sub(drained);
        held.min(want.saturating_mul(self.interval))
    }

    /// How many units there is room for while `used` of the tolerance is in use.
    pub(super) fn room(&self, used: u64) -> i64 {
        (self.tolerance as i64 - used as i64).div_euclid(self.interval as i64)
    }

    /// What a caller who asks for `cost` may expect while `used` of the tolerance is in use.
    pub(super) fn outlook(&self, used: i64, cost: u64) -> Outlook {
        let used = used.max(0) as u64;
        // What would be in use after this request, and how far that is past the tolerance.
        let after = cost.saturating_mul(self.interval).saturating_add(used);
        let retry = match after.saturating_sub(self.tolerance) {
            _ if cost > self.burst => Retry::Never,
            0 => Retry::Now,
            over => Retry::After(self.wait(over)),
        };
        Outlook {
            remaining: self.tolerance.saturating_sub(used) / self.interval,
            retry,
            reset_after: self.wait(used),
        }
    }

    /// What the Lua halves call `p`.
    pub(super) fn params(&self) -> Vec<i64> {
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
        params.map(|param| param as i64).to_vec()
    }
}

/// 0.1 ns from 2020 to `now`.
pub(super) fn tenths(now: Timestamp) -> u64 {
    let micros = (now.as_micros() - EPOCH * 1_000_000).max(0) as u64;
    micros.saturating_mul(PER_MICRO)
}

//! What a store must hold, by each strategy's own definition: computed from what was charged and refunded at which
//! instant, in whatever order within the instant.

use tollgate_tests::prelude::*;

/// What all clients together may have at once.
pub(super) const LIMIT: i64 = 120;

/// In microseconds.
pub(super) const PERIOD: i64 = 60_000_000;

/// The quota, as policies are given it.
pub(super) const QUOTA: &str = "120/min";

/// The emission interval of an even rate, in microseconds.
const INTERVAL: i64 = PERIOD / LIMIT;

/// What was charged at an instant and not refunded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Receipt {
    pub(super) at: i64,
    pub(super) left: i64,
}

/// The charges of keys, as a correct store counts them.
#[derive(Clone, Debug)]
pub(super) struct Counts {
    counting: Counting,
    now: i64,
    /// Under an even rate: how long until all of it has drained, in microseconds.
    ahead: i64,
    /// Under the others: the units of each instant.
    units: BTreeMap<i64, i64>,
    /// For windows that open with the first charge: when the current one opened.
    opened: i64,
}

impl Counts {
    pub(super) fn new(strategy: StrategyKind, now: i64) -> Self {
        Self {
            counting: strategy.counting(),
            now,
            ahead: 0,
            units: BTreeMap::new(),
            opened: i64::MIN / 2,
        }
    }

    pub(super) fn now(&self) -> i64 {
        self.now
    }

    pub(super) fn go_to(&mut self, now: i64) {
        self.ahead = (self.ahead - (now - self.now)).max(0);
        self.now = now;
    }

    pub(super) fn charge(&mut self, units: i64) {
        self.ahead += units * INTERVAL;
        if self.now >= self.opened + PERIOD {
            self.opened = self.now;
        }
        *self.units.entry(self.now).or_default() += units;
    }

    /// Gives up to `want` units of a receipt back. Returns how many that were, the rest of one for a whole.
    pub(super) fn refund(&mut self, receipt: Receipt, want: i64) -> i64 {
        let want = want.min(receipt.left);
        if self.counting == Counting::EvenRate {
            // Units that have refilled are not refunded.
            let held = (receipt.left * INTERVAL - (self.now - receipt.at)).max(0);
            let back = held.min(want * INTERVAL);
            self.ahead -= back;
            assert!(self.ahead >= 0, "more given back than there was: {self:?}");
            return (back + INTERVAL - 1) / INTERVAL;
        }
        let same = match self.counting {
            Counting::Log => receipt.at > self.now - PERIOD,
            Counting::OpenedWindows => receipt.at >= self.opened && self.now < self.opened + PERIOD,
            _ => self.window(receipt.at) == self.window(self.now),
        };
        if !same {
            return 0;
        }
        let units = self.units.entry(receipt.at).or_default();
        *units -= want;
        assert!(*units >= 0, "more given back than there was: {self:?}");
        want
    }

    /// Which calendar window or bucket an instant lies in.
    fn window(&self, at: i64) -> i64 {
        match self.counting {
            Counting::Buckets(buckets) => at.div_euclid(PERIOD / i64::from(buckets)),
            _ => at.div_euclid(PERIOD),
        }
    }

    /// How many units are used now, a part of one for a whole.
    pub(super) fn used(&self) -> i64 {
        let within = |from: i64| self.units.range(from..).map(|(_, units)| units).sum();
        match self.counting {
            Counting::EvenRate => (self.ahead + INTERVAL - 1) / INTERVAL,
            Counting::OpenedWindows if self.now >= self.opened + PERIOD => 0,
            Counting::OpenedWindows => within(self.opened),
            Counting::CalendarWindows => within(self.window(self.now) * PERIOD),
            Counting::Log => within(self.now - PERIOD + 1),
            Counting::Buckets(buckets) => {
                let (buckets, width) = (i64::from(buckets), PERIOD / i64::from(buckets));
                let bucket = self.window(self.now);
                let whole: i64 = within((bucket - buckets + 1) * width);
                let oldest = within((bucket - buckets) * width) - whole;
                let rest = width - self.now.rem_euclid(width);
                whole + (oldest * rest + width - 1) / width
            }
        }
    }
}

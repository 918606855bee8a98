//! What a store must hold, by the reference model: computed from what was charged and refunded at which instant, in whatever order
//! within the instant.

pub(super) use tollgate_tests::model::Receipt;
use tollgate_tests::{
    model::{Limit, Rule, State},
    prelude::*,
};

/// What all clients together may have at once.
pub(super) const LIMIT: i64 = 120;

/// In microseconds.
pub(super) const PERIOD: i64 = 60_000_000;

/// The quota, as policies are given it.
pub(super) const QUOTA: &str = "120/min";

/// The charges of a key, as a correct store counts them.
#[derive(Clone, Debug)]
pub(super) struct Counts {
    limit: Limit,
    state: State,
    now: i128,
    /// A refill that no debt exceeds: nothing is cut short.
    deepest: i128,
}

impl Counts {
    pub(super) fn new(strategy: StrategyKind, now: i64) -> Self {
        let (requests, period) = (LIMIT as u64, i128::from(PERIOD));
        let counted = |rule| Limit::counted(rule, requests);
        let limit = match strategy.counting() {
            Counting::EvenRate => Limit::even(requests, PERIOD as u64, requests, 0),
            Counting::Buckets(buckets) => Limit::sliding(requests, PERIOD as u64, buckets),
            Counting::OpenedWindows => counted(Rule::Window { period }),
            Counting::CalendarWindows => counted(Rule::Calendar { zone: None, period }),
            Counting::Log => counted(Rule::Log { period }),
        };
        Self {
            deepest: 100 * limit.refill,
            limit,
            state: State::default(),
            now: now.into(),
        }
    }

    pub(super) fn go_to(&mut self, now: i64) {
        self.now = now.into();
    }

    pub(super) fn charge(&mut self, units: i64) -> Receipt {
        let (limit, units) = (&self.limit, units.into());
        limit.charge(&mut self.state, self.now, self.deepest, units)
    }

    /// Gives up to `want` units of a receipt back. Returns how many that were, the rest of one for a whole.
    pub(super) fn refund(&mut self, mut receipt: Receipt, want: i64) -> i64 {
        let (limit, want) = (&self.limit, want.into());
        let back = limit.refund(&mut self.state, self.now, self.deepest, &mut receipt, want);
        back as i64
    }

    /// How many units are used now, a part of one for a whole.
    pub(super) fn used(&mut self) -> i64 {
        let limit = &self.limit;
        let room = limit.room(&mut self.state, self.now, self.deepest);
        (limit.capacity - room) as i64
    }
}

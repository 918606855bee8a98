//! How a quota decides on any cost while the clock is frozen.

use proptest::prelude::*;

use crate::strategies::costs::EDGES;

/// A number of units or requests.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Number {
    Exactly(u64),
    /// The capacity, and this many more.
    Near(i64),
}

pub(crate) fn numbers() -> impl Strategy<Value = Number> {
    prop_oneof![
        5 => (0..=12_u64).prop_map(Number::Exactly),
        3 => (-2..=2_i64).prop_map(Number::Near),
        4 => prop::sample::select(&EDGES[..]).prop_map(Number::Exactly),
        2 => (0..1_000_u64).prop_map(|below| Number::Exactly(u64::MAX - below)),
        1 => any::<u64>().prop_map(Number::Exactly),
    ]
}

/// The state of a policy.
#[derive(Clone, Debug)]
pub(crate) struct Quota {
    pub(crate) capacity: u64,
    pub(crate) used: u64,
    pub(crate) is_shadow: bool,
    /// How deep a debt rejections make, if they count.
    pub(crate) counts: Option<u64>,
}

impl Quota {
    pub(crate) fn of(capacity: u64) -> Self {
        Self {
            capacity,
            used: 0,
            is_shadow: false,
            counts: None,
        }
    }

    pub(crate) fn left(&self) -> u64 {
        self.capacity.saturating_sub(self.used)
    }

    pub(crate) fn fits(&self, cost: u64, times: u64) -> u64 {
        self.left().checked_div(cost).unwrap_or(times).min(times)
    }

    /// Charges past what is left; returns how much.
    pub(crate) fn force(&mut self, units: u64) -> u64 {
        let charged = units.min(2 * self.capacity - self.used);
        self.used += charged;
        charged
    }
}

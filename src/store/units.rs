//! The number of units of an operation.

/// The number of units of an operation on a store: at most [`Units::MAX`], which is more than any quota holds.
///
/// The cost of a request may be any `u64`, and clients often choose it: the length of a body, an estimate in a query. It is
/// converted into `Units` before a store is called, so that no store gets a number that it would read as negative, or that Lua
/// can't represent exactly. A request whose cost is cut to the maximum is never admitted.
///
/// ```
/// use tollgate::store::Units;
///
/// assert_eq!(Units::new(7).get(), 7);
/// assert_eq!(Units::new(u64::MAX), Units::MAX);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Units(u64);

impl Units {
    /// No units.
    pub const ZERO: Self = Self(0);

    /// One unit.
    pub const ONE: Self = Self(1);

    /// The maximum, more than twice the largest capacity of a quota, so that a charge that is cut to it still makes the deepest
    /// debt. Four times as many are an exact number in Lua.
    pub const MAX: Self = Self(2_000_000_000_000_000);

    /// A number of units, at most [`MAX`](Units::MAX): larger numbers are cut to it.
    pub const fn new(units: u64) -> Self {
        if units < Self::MAX.0 {
            Self(units)
        } else {
            Self::MAX
        }
    }

    /// The number of units.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The units of so many requests, as far as they can be counted.
    pub(crate) const fn of(self, requests: u64) -> u64 {
        self.0.saturating_mul(requests)
    }

    pub(crate) const fn is_zero(self) -> bool {
        self.0 == 0
    }
}

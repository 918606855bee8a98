//! Which clock a limit is counted by.

use super::{CounterOp, LimitHandle};
use crate::clock::{Clock, Timestamp};

/// What the clock shows that a limit's rule counts by.
#[inline]
pub(super) fn read(clock: &dyn Clock, limit: &LimitHandle) -> Timestamp {
    match limit.follows_wall_clock() {
        false => clock.now(),
        true => clock.wall(),
    }
}

/// How far the wall clock is ahead, in microseconds.
pub(super) fn ahead(clock: &dyn Clock) -> i64 {
    clock
        .wall()
        .as_micros()
        .saturating_sub(clock.now().as_micros())
}

/// What the clocks show, for all of a request's lines.
pub(super) struct Clocks {
    pub(super) now: Timestamp,
    wall: Timestamp,
}

impl Clocks {
    /// Reads the wall clock only if a line follows it.
    pub(super) fn read(clock: &dyn Clock, lines: &[CounterOp<'_>]) -> Self {
        let now = clock.now();
        let follows = lines.iter().any(|line| line.limit.follows_wall_clock());
        let wall = if follows { clock.wall() } else { now };
        Self { now, wall }
    }

    /// The clock that a limit's rule counts by.
    pub(super) fn of(&self, limit: &LimitHandle) -> Timestamp {
        match limit.follows_wall_clock() {
            false => self.now,
            true => self.wall,
        }
    }
}

//! The half of a rule that counts in process.

use super::{ChargeReceipt, Rule, Snapshot};
use crate::{clock::Timestamp, key::Key};

/// The half of a rule that counts in process. Its state is of a type of its own.
pub trait LocalRule: Rule {
    /// What is kept for a key. The default is a key that was never charged.
    type State: State;

    /// How many units could be charged now; negative in debt. A state that can't be (the clock stepped back) is mended.
    fn available(&self, state: &mut Self::State, now: Timestamp) -> i64;

    /// Charges `units`, into debt if fewer are available. `caller` is for rules that [record it](Rule::records_caller).
    fn charge(&self, state: &mut Self::State, now: Timestamp, units: u64, caller: &Key);

    /// Charges for as many of `times` requests of `units` each as there are units [available](LocalRule::available) for;
    /// returns how many, and the [snapshot](LocalRule::snapshot) afterwards. The default calls the other methods; a rule
    /// that does it in one step is faster, and does the same.
    fn try_charge(
        &self,
        state: &mut Self::State,
        now: Timestamp,
        times: u64,
        units: u64,
        caller: &Key,
    ) -> (u64, Snapshot) {
        try_charge(self, state, now, times, units, caller)
    }

    /// Gives up to `want` units of `receipt` back, and returns how many: only what time has not given back already, and only
    /// where they were taken from. Where time gives units back continuously, the part of a unit that is left is given back
    /// too, and counts as one.
    fn refund(
        &self,
        state: &mut Self::State,
        now: Timestamp,
        receipt: &ChargeReceipt,
        want: u64,
        caller: &Key,
    ) -> u64;

    /// Extends the permit that `caller` holds to one TTL from now; returns its units, or 0 if it is gone.
    fn renew(&self, _state: &mut Self::State, _now: Timestamp, _caller: &Key) -> u64 {
        0
    }

    /// The state in the three numbers that [`Rule::status`] reads, for a request of `cost` units.
    fn snapshot(&self, state: &Self::State, now: Timestamp, cost: u64) -> Snapshot;

    /// Who made the charges that count now, in order, one for each unit; nothing where the state doesn't say.
    fn callers(&self, _state: &Self::State, _now: Timestamp) -> Vec<Key> {
        Vec::new()
    }
}

/// [`LocalRule::try_charge`] by the methods that every rule has.
pub(super) fn try_charge<M: LocalRule + ?Sized>(
    rule: &M,
    state: &mut M::State,
    now: Timestamp,
    times: u64,
    units: u64,
    caller: &Key,
) -> (u64, Snapshot) {
    let available = u64::try_from(rule.available(state, now)).unwrap_or(0);
    let fits = match times {
        1 => u64::from(available >= units),
        times => available.checked_div(units).unwrap_or(times).min(times),
    };
    if fits * units > 0 {
        rule.charge(state, now, fits * units, caller);
    }
    (fits, rule.snapshot(state, now, units))
}

/// What is kept for a key in process.
pub trait State: Default + Send + 'static {
    /// When the full quota is available again, so that the key need not be kept.
    fn expires_at(&self) -> Timestamp;
}

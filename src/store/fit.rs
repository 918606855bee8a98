//! For how many requests the counters of an operation have enough units. `free` holds the available units of each counter,
//! which are 0 in debt.

use crate::{
    store::{CounterMode, CounterOp},
    strategy::rule,
};

/// For how many of `times` equal requests a counter with `free` units has enough.
pub(crate) fn fit(counter: &CounterOp<'_>, free: u64, times: u64) -> u64 {
    let units = counter.units.get();
    let fits = match counter.mode {
        // A banned key is rejected also if no units would be charged.
        CounterMode::CountRejections => free > 0,
        CounterMode::Check | CounterMode::Shadow { charges: false } => free >= units,
        _ => return rule::fit(free, units, times),
    };
    if fits { times } else { 0 }
}

/// How many of `times` equal requests are admitted, and how many rejected ones are counted by a ban.
pub(crate) fn admit(counters: &[CounterOp<'_>], free: &[u64], times: u64) -> (u64, u64) {
    let (mut admitted, mut banned) = (times, false);
    for (counter, free) in counters.iter().zip(free) {
        match counter.mode {
            CounterMode::CountRejections => banned |= *free == 0,
            CounterMode::Shadow { .. } => {}
            _ => admitted = fit(counter, *free, admitted),
        }
    }
    if banned {
        admitted = 0;
    }
    let rejected = countable_rejections(counters, free, times - admitted);
    (admitted, rejected)
}

/// How many of so many rejected requests count, one after the other: those before a ban begins, which rejects the rest
/// uncounted.
pub(crate) fn countable_rejections(counters: &[CounterOp<'_>], free: &[u64], rejected: u64) -> u64 {
    let bans = counters.iter().zip(free);
    let bans = bans.filter(|(counter, _)| counter.mode == CounterMode::CountRejections);
    let before_ban = bans.map(|(counter, free)| match counter.units.get() {
        0 if *free > 0 => rejected,
        units => free.div_ceil(units.max(1)),
    });
    before_ban.fold(rejected, u64::min)
}

/// How many of the `wanted` units of rejected requests a counter is charged, if `free` units are left after the admitted ones;
/// negative in debt. Only a policy that has too few units for a request rejects it, and is charged for it.
pub(crate) fn rejected_charge(counter: &CounterOp<'_>, free: i64, wanted: u64) -> u64 {
    let info = counter.limit.info();
    if u64::try_from(free).is_ok_and(|free| free >= counter.units.get()) {
        return 0;
    }
    let max_debt = if info.stores_each_unit {
        0
    } else {
        info.capacity
    };
    let max = free.saturating_add_unsigned(max_debt);
    wanted.min(u64::try_from(max).unwrap_or(0))
}

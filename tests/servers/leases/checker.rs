//! Finds the interval in which most was admitted, from recorded instants.

use std::collections::BTreeSet;

/// Requests that were admitted within an interval of the wall clock, in microseconds.
///
/// A process may be stopped between two of its instructions, so one instant is not known. An admission counts only where its
/// whole interval lies: what is found is certain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Admission {
    pub(crate) before: u64,
    pub(crate) after: u64,
    pub(crate) units: u64,
}

/// By how many units more was admitted in any interval than is allowed in one of its length; negative if less was.
pub(crate) fn excess(admissions: &[Admission], allowed: impl Fn(u64) -> f64) -> f64 {
    let starts: BTreeSet<u64> = admissions.iter().map(|one| one.before).collect();
    let mut by_end = admissions.to_vec();
    by_end.sort_unstable_by_key(|one| one.after);
    let mut worst = f64::MIN;
    for start in starts {
        let mut units = 0;
        for one in by_end.iter().filter(|one| one.before >= start) {
            units += one.units;
            worst = worst.max(units as f64 - allowed(one.after - start));
        }
    }
    worst
}

/// What a rate with a burst allows in an interval of so many microseconds.
pub(crate) fn rate(per_second: u64, burst: u64) -> impl Fn(u64) -> f64 {
    move |length| burst as f64 + per_second as f64 * length as f64 / 1e6
}

/// The units that were admitted in `[start, end)`.
pub(crate) fn units_in(admissions: &[Admission], (start, end): (u64, u64)) -> u64 {
    let inside = |one: &&Admission| one.before >= start && one.after < end;
    admissions.iter().filter(inside).map(|one| one.units).sum()
}

#[test]
fn the_worst_interval_is_found() {
    let at = |instants: &[u64]| -> Vec<Admission> {
        let one = |at: &u64| Admission {
            before: at * 1_000,
            after: at * 1_000,
            units: 1,
        };
        instants.iter().map(one).collect()
    };
    // A unit in 100 ms.
    let excess_of = |admissions: &[Admission]| excess(admissions, rate(10, 3));
    for (instants, expected) in [
        (&[0, 0, 0][..], 0.0),
        (&[0, 0, 0, 100, 200], 0.0),
        (&[0, 0, 0, 50], 0.5),
        (&[0, 500, 550, 560, 500, 590], 1.1),
        // Spread over less than what refills.
        (&[0, 900, 1_800], -2.0),
    ] {
        let found = excess_of(&at(instants));
        assert!((found - expected).abs() < 1e-9, "{instants:?}: {found}");
    }
    // It may have been made outside.
    let mut wide = at(&[0, 500, 550, 560, 500, 590]);
    wide[4].after = 10_000_000;
    wide[5].before = 10_000;
    assert!(excess_of(&wide) <= -0.4 + 1e-9);
    assert_eq!(units_in(&at(&[0, 10, 99, 100]), (10_000, 100_000)), 2);
}

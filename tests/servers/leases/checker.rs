//! Finds the interval in which most was admitted, from recorded instants.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// An admission: it was made in an interval of the wall clock, which is that of a server on this machine, in microseconds.
///
/// A process may be stopped between two of its instructions, so one instant is not known. An admission counts only where its
/// whole interval lies: what is found is certain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Admission {
    pub(crate) before: u64,
    pub(crate) after: u64,
    pub(crate) units: u64,
}

/// A rejection by the store, in an interval of the wall clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rejection {
    pub(crate) before: u64,
    pub(crate) after: u64,
}

pub(crate) fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.expect("it is after 1970").as_micros() as u64
}

/// The bound on what is admitted in each interval: `burst + rate * length`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    pub(crate) burst: u64,
    /// Units, and the microseconds in which they refill.
    pub(crate) rate: (u64, u64),
}

/// By how many units the bound is exceeded in the worst interval; negative if it is kept.
pub(crate) fn excess(admissions: &[Admission], bound: Bound) -> f64 {
    let (units, period) = bound.rate;
    let per_us = units as f64 / period as f64;
    let mut starts: Vec<u64> = admissions.iter().map(|one| one.before).collect();
    starts.sort_unstable();
    starts.dedup();
    let Some(&first) = starts.first() else {
        return -(bound.burst as f64);
    };
    let mut by_end = admissions.to_vec();
    by_end.sort_unstable_by_key(|one| one.after);
    // Of each start: the units since, less what refills in all the time since.
    let values = starts.iter().map(|start| (start - first) as f64 * per_us);
    let mut tree = MaxTree::new(values.collect());
    let mut worst = f64::MIN;
    for one in by_end {
        // It counts in each interval that starts at or before `one.before`.
        let upto = starts.partition_point(|start| *start <= one.before);
        tree.add_before(upto, one.units as f64);
        let begun = starts.partition_point(|start| *start <= one.after);
        worst = worst.max(tree.max_before(begun) - (one.after - first) as f64 * per_us);
    }
    worst - bound.burst as f64
}

/// The most units that were admitted in an interval of this length: `[t, t + length)`.
pub(crate) fn most_within(admissions: &[Admission], length: Duration) -> u64 {
    let length = length.as_micros() as u64;
    let starts = SumsBefore::new(admissions.iter().map(|one| (one.before, one.units)));
    let ends = SumsBefore::new(admissions.iter().map(|one| (one.after, one.units)));
    let is_longer = |one: &&Admission| one.after - one.before > length;
    let longer: Vec<_> = admissions.iter().filter(is_longer).collect();
    let within = |start: u64| {
        let around = |one: &&&Admission| one.before < start && one.after >= start + length;
        let around: u64 = longer.iter().filter(around).map(|one| one.units).sum();
        // Those that ended before its end, but for those that began before it.
        ends.before(start + length) + around - starts.before(start)
    };
    let within = admissions.iter().map(|one| within(one.before));
    within.max().unwrap_or(0)
}

/// Units at instants, of which those before any instant are summed.
struct SumsBefore {
    instants: Vec<u64>,
    sums: Vec<u64>,
}

impl SumsBefore {
    fn new(units: impl Iterator<Item = (u64, u64)>) -> Self {
        let mut units: Vec<_> = units.collect();
        units.sort_unstable();
        let mut sums = vec![0];
        sums.extend(units.iter().scan(0, |sum, (_, units)| {
            *sum += units;
            Some(*sum)
        }));
        Self {
            instants: units.iter().map(|(instant, _)| *instant).collect(),
            sums,
        }
    }

    fn before(&self, instant: u64) -> u64 {
        self.sums[self.instants.partition_point(|one| *one < instant)]
    }
}

/// The units that were admitted in `[start, end)`.
pub(crate) fn units_in(admissions: &[Admission], (start, end): (u64, u64)) -> u64 {
    let inside = |one: &&Admission| one.before >= start && one.after < end;
    admissions.iter().filter(inside).map(|one| one.units).sum()
}

/// Numbers of which a front part can be raised, and the largest of a front part be found.
struct MaxTree {
    size: usize,
    /// The largest number below a node, without what was added above it.
    largest: Vec<f64>,
    added: Vec<f64>,
}

impl MaxTree {
    fn new(values: Vec<f64>) -> Self {
        let size = values.len().next_power_of_two();
        let mut largest = vec![f64::MIN; 2 * size];
        largest[size..size + values.len()].copy_from_slice(&values);
        for node in (1..size).rev() {
            largest[node] = largest[2 * node].max(largest[2 * node + 1]);
        }
        Self {
            size,
            largest,
            added: vec![0.0; 2 * size],
        }
    }

    /// The largest of the first `len` numbers.
    fn max_before(&self, len: usize) -> f64 {
        self.max_in(1, (0, self.size), len)
    }

    fn max_in(&self, node: usize, (from, to): (usize, usize), len: usize) -> f64 {
        if from >= len {
            return f64::MIN;
        }
        if to <= len {
            return self.largest[node];
        }
        let middle = from.midpoint(to);
        let [left, right] = [(2 * node, (from, middle)), (2 * node + 1, (middle, to))];
        let [left, right] = [left, right].map(|(node, part)| self.max_in(node, part, len));
        self.added[node] + left.max(right)
    }

    /// Adds to the first `len` numbers.
    fn add_before(&mut self, len: usize, units: f64) {
        self.add(1, (0, self.size), len, units);
    }

    fn add(&mut self, node: usize, (from, to): (usize, usize), len: usize, units: f64) {
        if from >= len {
            return;
        }
        if to <= len {
            self.largest[node] += units;
            self.added[node] += units;
            return;
        }
        let middle = from.midpoint(to);
        self.add(2 * node, (from, middle), len, units);
        self.add(2 * node + 1, (middle, to), len, units);
        let below = self.largest[2 * node].max(self.largest[2 * node + 1]);
        self.largest[node] = below + self.added[node];
    }
}

#[test]
fn the_worst_interval_is_found() {
    let at = |instants: &[u64]| -> Vec<Admission> {
        let one = |at: &u64| Admission {
            before: *at,
            after: *at,
            units: 1,
        };
        instants.iter().map(one).collect()
    };
    let bound = Bound {
        burst: 3,
        rate: (1, 100),
    };
    assert!((excess(&at(&[0, 0, 0]), bound) - (0.0)).abs() < 1e-9);
    assert!((excess(&at(&[0, 0, 0, 100, 200]), bound) - (0.0)).abs() < 1e-9);
    assert!((excess(&at(&[0, 0, 0, 50]), bound) - (0.5)).abs() < 1e-9);
    assert!((excess(&at(&[0, 500, 550, 560, 500, 590]), bound) - (1.1)).abs() < 1e-9);
    // Spread over less than what refills.
    assert!((excess(&at(&[0, 900, 1_800]), bound) - (-2.0)).abs() < 1e-9);
    // It may have been made outside.
    let mut wide = at(&[0, 500, 550, 560, 500, 590]);
    wide[4].after = 10_000;
    wide[5].before = 10;
    assert!(
        excess(&wide, bound) <= -0.4 + 1e-9,
        "{}",
        excess(&wide, bound)
    );

    // Against each pair of a start and an end.
    let mut random = 7_u64;
    let mut next = |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005) + 1;
        (random >> 33) % below
    };
    for _ in 0..50 {
        let one = |before: u64, wide: u64, units| Admission {
            before,
            after: before + wide,
            units,
        };
        let some: Vec<_> = (0..30)
            .map(|_| one(next(1_000), next(90), 1 + next(3)))
            .collect();
        let pairs = some
            .iter()
            .flat_map(|s| some.iter().map(|e| (s.before, e.after)));
        let over = |(start, end): (u64, u64)| {
            units_in(&some, (start, end + 1)) as f64 - 3.0 - (end - start) as f64 / 100.0
        };
        let worst = pairs
            .filter(|(s, e)| s <= e)
            .map(over)
            .fold(f64::MIN, f64::max);
        let found = excess(&some, bound);
        assert!((found - worst).abs() < 1e-9, "{found} {worst}");

        let length = next(120);
        let units = |one: &Admission| units_in(&some, (one.before, one.before + length));
        let most = some.iter().map(units).max().unwrap_or(0);
        assert_eq!(most_within(&some, Duration::from_micros(length)), most);
    }
    assert_eq!(
        most_within(&at(&[0, 10, 99, 100, 101]), Duration::from_micros(100)),
        4
    );
    assert_eq!(units_in(&at(&[0, 10, 99, 100]), (10, 100)), 2);
}

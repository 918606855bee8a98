//! Demand above the limit reaches 99 % of it, for as long as it lasts.
//!
//! What is used is found out at the moments at which the store rejects a request, from what it must have charged by then. So a
//! machine that is slow makes the test take longer, and not fail.

use std::time::{Duration, Instant};

use testkit::Server;
use tollgate::{Key, Lease, Limiter};

use crate::leases::{
    checker::{Admission, Rejection, now},
    support::{StrategyKind, TEST_TIMEOUT, TTL, limiter, ms, store},
    traffic::{Record, Traffic},
};

/// Each with a store of its own.
const LIMITERS: usize = 4;

/// The tasks of each limiter: enough to use the quota without leases.
const TASKS: usize = 4;

/// How long the quota is used, at least, after a first period.
const LENGTH: Duration = Duration::from_millis(1_500);

const UNITS: u64 = 2_000;
const PERIOD: Duration = Duration::from_secs(2);

/// So large that it is never full.
const BURST: u64 = 4_000;

/// What the store has charged by the time it rejects a request.
#[derive(Clone, Copy, Debug)]
enum Charged {
    /// All that has refilled since another rejection.
    Refilled,
    /// The quota within the last so many microseconds.
    Within(u64),
    /// The quota since the last multiple of so many microseconds.
    InWindow(u64),
}

struct Case {
    strategy: StrategyKind,
    lease: Lease,
    charged: Charged,
}

impl Case {
    fn new(strategy: StrategyKind) -> Self {
        let ttl = match strategy {
            // What is leased counts for the spread longer than the period.
            StrategyKind::Log => ms(5),
            _ => TTL,
        };
        let lease = Lease::max_units(64).ttl(ttl);
        let charged = match strategy {
            StrategyKind::Log => Charged::Within(micros(PERIOD + lease.spread())),
            StrategyKind::Calendar => Charged::InWindow(micros(PERIOD)),
            _ => Charged::Refilled,
        };
        Self {
            strategy,
            lease,
            charged,
        }
    }

    fn is_rate(&self) -> bool {
        matches!(self.charged, Charged::Refilled)
    }

    fn start(&self, server: &Server) -> Traffic {
        let mut quota = format!("{UNITS}/{}s", PERIOD.as_secs());
        if self.is_rate() {
            quota += &format!(" burst {BURST}");
        }
        let policy = || self.strategy.policy("p", &quota).lease(self.lease);
        let limiters: Vec<_> = (0..LIMITERS)
            .map(|_| limiter(store(server), [policy()]))
            .collect();
        let tasks = limiters.iter().cycle().take(LIMITERS * TASKS);
        let tasks: Vec<Limiter> = tasks.cloned().collect();
        // In turns, one limiter pauses for a tenth of a second while the demand of the others is above the limit.
        let is_paused =
            |number: usize| now() / 100_000 % LIMITERS as u64 == (number % LIMITERS) as u64;
        let key = Key::new(format!("{:?}", self.strategy));
        Traffic::start_pausing(&tasks, key, &[1], ms(4), is_paused)
    }

    /// The used part of the quota, if the run was long enough to know it.
    fn used(&self, record: &Record) -> Option<f64> {
        let begin = record.admissions.first()?.before;
        let counted = |from: fn(u64, u64) -> u64, length| {
            let begin = begin + length;
            used_of_count(record, begin, |at| from(at, length))
        };
        match self.charged {
            Charged::Refilled => used_of_rate(record),
            Charged::Within(length) => {
                // The store counts for longer than the quota's period.
                let quota = length as f64 / micros(PERIOD) as f64;
                Some(counted(|at, length| at - length, length)? / quota)
            }
            Charged::InWindow(length) => counted(|at, length| at - at % length, length),
        }
    }
}

/// The instants at which admissions of one unit each were made, to count them in any interval.
struct Instants(Vec<u64>);

impl Instants {
    fn new(admissions: &[Admission]) -> Self {
        let mut instants: Vec<_> = admissions.iter().map(|one| one.after).collect();
        instants.sort_unstable();
        Self(instants)
    }

    /// How many lie in `(start, end]`.
    fn count(&self, start: u64, end: u64) -> u64 {
        let before = |end: u64| self.0.partition_point(|at| *at <= end) as u64;
        before(end) - before(start)
    }
}

/// At a rejection the bucket is empty. Until the next one all that refills is charged, and spent, unless the machine pauses for
/// about as long as leases last: such times are left out.
fn used_of_rate(record: &Record) -> Option<f64> {
    // Units that were leased before the first rejection are spent by then.
    let begin = record.rejections.first()?.after + 2 * micros(TTL);
    let mut rejections = record.rejections.iter().filter(|one| one.before > begin);
    let mut last = rejections.next()?;
    let mut intervals = vec![(last.after, last.after)];
    for next in rejections {
        if next.after > last.before + micros(TTL) / 2 {
            intervals.push((next.after, next.after));
        }
        if let Some((start, end)) = intervals.last_mut() {
            *end = next.before.max(*start);
        }
        last = next;
    }
    let time: u64 = intervals.iter().map(|(start, end)| end - start).sum();
    if time < micros(LENGTH) {
        return None;
    }
    let instants = Instants::new(&record.admissions);
    let units = intervals
        .iter()
        .map(|(start, end)| instants.count(*start, *end));
    let refilled = time as f64 * UNITS as f64 / micros(PERIOD) as f64;
    Some(units.sum::<u64>() as f64 / refilled)
}

/// At a rejection the whole quota was charged since an instant before. The mean over all rejections, since some of these units
/// may be spent later.
fn used_of_count(record: &Record, begin: u64, since: impl Fn(u64) -> u64) -> Option<f64> {
    let late: Vec<&Rejection> = record
        .rejections
        .iter()
        .filter(|one| one.before > begin)
        .collect();
    if late.last()?.before < begin + micros(LENGTH) {
        return None;
    }
    let instants = Instants::new(&record.admissions);
    let units = late
        .iter()
        .map(|one| instants.count(since(one.before), one.after));
    let mean = units.sum::<u64>() as f64 / late.len() as f64;
    Some(mean / UNITS as f64)
}

fn micros(duration: Duration) -> u64 {
    duration.as_micros() as u64
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn demand_above_the_limit_uses_all_of_it_also_while_a_limiter_pauses() {
    let server = Server::start();
    let running = [
        StrategyKind::Gcra,
        StrategyKind::Bucket,
        StrategyKind::Log,
        StrategyKind::Calendar,
    ];
    let running = running.map(|strategy| {
        let case = Case::new(strategy);
        let traffic = case.start(&server);
        (case, traffic)
    });
    let start = Instant::now();
    for (case, traffic) in running {
        let strategy = case.strategy;
        let used = loop {
            tokio::time::sleep(ms(100)).await;
            let used = traffic.seen(|record| case.used(record));
            let is_late = start.elapsed() > TEST_TIMEOUT;
            // What a pause of the machine takes off a rate, or adds to it, counts for less and less.
            let is_enough = |used| used >= 0.99 || is_late || !case.is_rate();
            match used.filter(|used| is_enough(*used)) {
                Some(used) => break used,
                None => assert!(!is_late, "{strategy:?}: no demand above the limit"),
            }
        };
        assert!(used >= 0.99, "{strategy:?}: {used} of the quota");
        let record = traffic.stop().await;
        assert!(record.by_lease > 0, "{strategy:?}");
    }
}

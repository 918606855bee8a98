//! Charges and refunds in any order: many tasks in two processes acquire, charge, settle, refund and drop at random,
//! and one process is killed in the middle of it. The store then holds what both have recorded, to the unit; only the
//! last operation of the killed process may be there or not.
//!
//! A failure prints its seed; `TOLLGATE_SEED=…` runs that one alone. The seed determines what each task does, not the
//! order.

use std::hash::{BuildHasher, RandomState};

use tollgate_tests::{charges::charge, prelude::*, world::START};

use self::{
    counts::AdmittedUnits,
    process::Child,
    records::{Expected, Record},
    store::{LIMIT, PERIOD},
    traffic::{Kind, Process, ROUNDS, Recorder},
};

mod counts;
mod process;
mod records;
mod request;
mod store;
mod traffic;

/// Requests of the other process have numbers from here on.
const OTHER_PROCESS: u64 = 1_000_000;

const SEED: &str = "TOLLGATE_SEED";

/// What is tried.
#[derive(Clone, Copy, Debug)]
struct Case {
    strategy: StrategyKind,
    kind: Kind,
    /// Whether time goes on between the rounds.
    clock_moves: bool,
    seed: u64,
}

/// `n` random seeds, or the one that is set.
fn seeds(n: usize) -> Vec<u64> {
    match env::var(SEED) {
        Ok(seed) => vec![seed.parse().expect("a seed is a number")],
        Err(_) => (0..n).map(|n| RandomState::new().hash_one(n)).collect(),
    }
}

/// What both processes have written down.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<(u64, Record)>>>);

impl Log {
    fn recorder(&self) -> Recorder {
        let log = self.clone();
        Arc::new(move |request, record| log.add(request, record))
    }

    fn add(&self, request: u64, record: Record) {
        self.0.lock().expect("a lock").push((request, record));
    }

    fn copy_to(&self, expected: &mut Expected) {
        for (request, record) in self.0.lock().expect("a lock").drain(..) {
            expected.record(request, record);
        }
    }
}

/// The longest that anything charged now can stay.
fn longest(strategy: StrategyKind) -> Duration {
    let period = Duration::from_micros(PERIOD as u64);
    match strategy.counting() {
        Counting::Buckets(buckets) => period + period / buckets,
        // A debt of one capacity takes one period more.
        Counting::EvenRate => 2 * period,
        _ => period,
    }
}

/// How many units are used, debts included, by what there is room for down to the deepest debt.
async fn measure(limiter: &Limiter) -> i64 {
    let charged = charge(limiter, KEY, 2 * LIMIT as u64).await;
    let back = charged.refund(2 * LIMIT as u64).await;
    2 * LIMIT - back.expect("a response")[0].units() as i64
}

/// The store holds what is expected, and releases it in time.
async fn compare(world: &World, limiter: &Limiter, expected: &mut Expected, case: Case) {
    let (least, most) = expected.used();
    let used = measure(limiter).await;
    assert!(
        (least..=most).contains(&used),
        "the store has {used} units for {least} to {most}"
    );
    if case.kind == Kind::Never {
        assert!(used <= LIMIT, "{used} units admitted");
    }
    let seen = limiter.peek(KEY).cost(1).await.expect("a response");
    let reset_after = seen.count("p").reset_after();
    let is_in_time = reset_after <= longest(case.strategy);
    assert!(is_in_time, "stranded for {reset_after:?}");
    world.no_key_is_immortal();
}

/// After the last reported reset time, all units have refilled, and nothing is left in the store.
async fn assert_all_refills(world: &World, limiter: &Limiter, strategy: StrategyKind) {
    let seen = limiter.peek(KEY).cost(1).await.expect("a response");
    let reset_after = seen.count("p").reset_after();
    world.advance(reset_after);
    let seen = limiter.peek(KEY).cost(1).await.expect("a response");
    assert_eq!(seen.left("p"), LIMIT as u64, "free after {reset_after:?}");
    // The last refund left a key for one window more, to the end of its last millisecond.
    world.advance(longest(strategy) + ms(1));
    if let Some(server) = world.redis_server() {
        assert_eq!(server.keys(), [""; 0]);
    }
}

/// Tries one scene; returns how much the killed process had reserved.
async fn run_case(world: &World, case: Case) -> i64 {
    let _printed = Case(format!("{case:?}; again with {SEED}={}", case.seed));
    let (mut rng, mut now) = (Rng::new(case.seed), world.now());
    let (log, mut expected) = (Log::default(), Expected::new(case.strategy, now as i64));
    let mut child = world
        .redis_server()
        .map(|server| Child::start(server, case));
    let admitted_units = match world.redis_server() {
        Some(server) => AdmittedUnits::on(&server.url()).await,
        None => AdmittedUnits::Local(Arc::default()),
    };
    let parameters = (case.strategy, case.kind, case.seed);
    let recorders = (log.recorder(), admitted_units);
    let mut own = Process::new(parameters, |policy| world.limiter([policy]), recorders, 0);
    let observer = world.limiter([case.strategy.policy("p", store::QUOTA)]);
    let mut reserved = 0;
    for round in 0..ROUNDS {
        let instant = if case.clock_moves { round } else { 0 };
        own.open(instant).await;
        let last = round + 2 == ROUNDS;
        let killed_after = last.then(|| 10 + rng.below(60));
        let other = async {
            if let Some(child) = &mut child {
                child.round(instant, killed_after, &log).await;
            }
        };
        tokio::join!(own.round(instant), other);
        log.copy_to(&mut expected);
        if last && child.take().is_some() {
            reserved = expected.kill_process(|request| request >= OTHER_PROCESS);
        }
        expected.assert_idle();
        compare(world, &observer, &mut expected, case).await;
        if case.clock_moves {
            let waits = [0, 1_000, 250_000, 7_000_000, 31_000_000, 61_000_000];
            now += waits[rng.below(6) as usize] + 1_000 * rng.below(1_000);
            world.set(now);
            expected.go_to(now as i64);
        }
    }
    let instant = if case.clock_moves { ROUNDS } else { 0 };
    own.open(instant).await;
    own.finish(instant).await;
    log.copy_to(&mut expected);
    expected.assert_idle();
    compare(world, &observer, &mut expected, case).await;
    assert_all_refills(world, &observer, case.strategy).await;
    reserved
}

/// Tries every strategy, from some seeds.
async fn run_all(world: &World, kind: Kind, clock_moves: bool, n: usize) {
    let mut reserved = 0;
    for seed in seeds(n) {
        for strategy in StrategyKind::ALL {
            // Full minutes, which some strategies count by, lie where they lie.
            world.set(world.now().div_ceil(PERIOD as u64) * PERIOD as u64 + seed % 60_000 * 1_000);
            if let Some(server) = world.redis_server() {
                server.flush();
            }
            let case = Case {
                strategy,
                kind,
                clock_moves,
                seed,
            };
            reserved += run_case(world, case).await;
        }
    }
    let is_killed = world.redis_server().is_some();
    assert!(
        !is_killed || reserved > 0,
        "no process was killed that had reserved something"
    );
    assert!(world.now() > START);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_processes_never_exceed_the_limit_and_a_killed_one_leaves_its_reservations() {
    run_all(&World::redis(), Kind::Never, false, 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_processes_one_of_them_killed_leave_exactly_their_charges() {
    run_all(&World::redis(), Kind::Little, false, 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_processes_one_of_them_killed_leave_what_has_not_refilled() {
    run_all(&World::redis(), Kind::Little, true, 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_processes_one_of_them_killed_go_into_debt_and_out_of_it() {
    run_all(&World::redis(), Kind::Debts, true, 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_of_one_process_leave_exactly_their_charges() {
    for kind in Kind::ALL {
        for clock_moves in [false, true] {
            run_all(&World::memory(), kind, clock_moves, 4).await;
        }
    }
}

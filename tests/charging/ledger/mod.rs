//! The ledger, in any order of things: many tasks in two processes take, charge, settle, give back and drop what they are
//! about, at random, and one process is killed in the middle of it. What the store holds is then what both have written
//! down that they did, to the unit; only what the killed one was about in its last moment may be there or not.
//!
//! A failure names its seed; `TOLLGATE_SEED=…` tries that one alone. The seed decides what each task does, not which comes
//! first.

use std::{
    env,
    hash::{BuildHasher, RandomState},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use tollgate::Limiter;

use self::{
    counts::Tally,
    process::Child,
    records::{Books, Note},
    rng::Dice,
    store::{LIMIT, PERIOD},
    traffic::{Kind, Notes, Process, ROUNDS},
};
use crate::charges::charge;
use crate::support::books;
use crate::{
    strategy_kind::By,
    world::{KEY, START, World, ms},
};

mod counts;
mod process;
mod records;
mod request;
mod rng;
mod store;
mod traffic;

/// Requests of the other process have numbers from here on.
const OTHERS: u64 = 1_000_000;

const SEED: &str = "TOLLGATE_SEED";

/// What is tried.
#[derive(Clone, Copy, Debug)]
struct Scene {
    by: By,
    kind: Kind,
    /// Whether time goes on between the rounds.
    moves: bool,
    seed: u64,
}

/// Says what was tried when it fails.
struct Named(Scene);

impl Drop for Named {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("{:?}; again with {SEED}={}", self.0, self.0.seed);
        }
    }
}

/// So many seeds, or the one that is to be tried again.
fn seeds(n: usize) -> Vec<u64> {
    match env::var(SEED) {
        Ok(seed) => vec![seed.parse().expect("a seed is a number")],
        Err(_) => (0..n).map(|n| RandomState::new().hash_one(n)).collect(),
    }
}

/// What both processes have written down.
#[derive(Clone, Default)]
struct Diary(Arc<Mutex<Vec<(u64, Note)>>>);

impl Diary {
    fn notes(&self) -> Notes {
        let diary = self.clone();
        Arc::new(move |request, note| diary.add(request, note))
    }

    fn add(&self, request: u64, note: Note) {
        self.0.lock().expect("a lock").push((request, note));
    }

    fn copy_to(&self, books: &mut Books) {
        for (request, note) in self.0.lock().expect("a lock").drain(..) {
            books.note(request, note);
        }
    }
}

/// The longest that anything charged now can stay.
fn longest(by: By) -> Duration {
    let period = Duration::from_micros(PERIOD as u64);
    match by {
        By::Sliding(buckets) => period + period / buckets,
        // A debt of one capacity takes one period more.
        By::Gcra | By::Bucket => 2 * period,
        _ => period,
    }
}

/// How many units are used, debts included, by what there is room for down to the deepest debt.
async fn measure(limiter: &Limiter) -> i64 {
    let mut charged = charge(limiter, KEY, 2 * LIMIT as u64).await;
    let back = charged.refund(2 * LIMIT as u64).await;
    2 * LIMIT - back.expect("an answer")[0].units() as i64
}

/// The store holds what the ledger says, and lets go of it in time.
async fn compare(world: &World, limiter: &Limiter, books: &Books, scene: Scene) {
    let (least, most) = books.used();
    let used = measure(limiter).await;
    assert!(
        (least..=most).contains(&used),
        "the store has {used} units for {least} to {most}"
    );
    if scene.kind == Kind::Never {
        assert!(used <= LIMIT, "{used} units admitted");
    }
    let seen = limiter.peek(KEY).cost(1).await.expect("an answer");
    let reset_after = seen.policy("p").expect("a verdict").reset_after();
    assert!(
        reset_after <= longest(scene.by),
        "stranded for {reset_after:?}"
    );
    world.no_key_is_immortal();
}

/// After the reset time of the last answer, all is free again, and nothing is left in the store.
async fn all_comes_back(world: &World, limiter: &Limiter, by: By) {
    let seen = limiter.peek(KEY).cost(1).await.expect("an answer");
    let reset_after = seen.policy("p").expect("a verdict").reset_after();
    world.advance(reset_after);
    let seen = limiter.peek(KEY).cost(1).await.expect("an answer");
    let left = seen.policy("p").expect("a verdict").remaining();
    assert_eq!(left, LIMIT as u64, "free after {reset_after:?}");
    // What was given back at last left a key for one window more, to the end of its last millisecond.
    world.advance(longest(by) + ms(1));
    if let Some(server) = world.redis_server() {
        assert_eq!(books(server), [""; 0]);
    }
}

/// Tries one scene; returns how much the killed process had reserved.
async fn play(world: &World, scene: Scene) -> i64 {
    let _named = Named(scene);
    let (mut dice, mut now) = (Dice::new(scene.seed), world.now());
    let (diary, mut books) = (Diary::default(), Books::new(scene.by, now as i64));
    let mut child = world
        .redis_server()
        .map(|server| Child::start(server, scene));
    let tally = match world.redis_server() {
        Some(server) => Tally::on(&server.url()).await,
        None => Tally::Local(Arc::default()),
    };
    let limiter = |policy| world.limiter([policy]);
    let by = (scene.by, scene.kind, scene.seed);
    let mut own = Process::new(by, limiter, (diary.notes(), tally), 0);
    let judge = world.limiter([scene.by.policy("p", store::QUOTA)]);
    let mut stranded = 0;
    for round in 0..ROUNDS {
        let instant = if scene.moves { round } else { 0 };
        own.open(instant).await;
        let last = round + 2 == ROUNDS;
        let killed_after = last.then(|| 10 + dice.roll(60));
        let other = async {
            if let Some(child) = &mut child {
                child.round(instant, killed_after, &diary).await;
            }
        };
        tokio::join!(own.round(instant), other);
        diary.copy_to(&mut books);
        if last && child.take().is_some() {
            stranded = books.crash(|request| request >= OTHERS);
        }
        books.quiet();
        compare(world, &judge, &books, scene).await;
        if scene.moves {
            let waits = [0, 1_000, 250_000, 7_000_000, 31_000_000, 61_000_000];
            now += waits[dice.roll(6) as usize] + 1_000 * dice.roll(1_000);
            world.set(now);
            books.go_to(now as i64);
        }
    }
    let instant = if scene.moves { ROUNDS } else { 0 };
    own.open(instant).await;
    own.finish(instant).await;
    diary.copy_to(&mut books);
    books.quiet();
    compare(world, &judge, &books, scene).await;
    all_comes_back(world, &judge, scene.by).await;
    stranded
}

/// Tries every strategy, from some seeds.
async fn play_all(world: &World, kind: Kind, moves: bool, n: usize) {
    let mut stranded = 0;
    for seed in seeds(n) {
        for by in By::ALL {
            // Full minutes, which some strategies count by, lie where they lie.
            world.set(world.now().div_ceil(PERIOD as u64) * PERIOD as u64 + seed % 60_000 * 1_000);
            if let Some(server) = world.redis_server() {
                server.flush();
            }
            let scene = Scene {
                by,
                kind,
                moves,
                seed,
            };
            stranded += play(world, scene).await;
        }
    }
    if world.redis_server().is_some() {
        assert!(
            stranded > 0,
            "no process was killed that had reserved something"
        );
    }
    assert!(world.now() > START);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_processes_never_exceed_the_limit_and_a_killed_one_leaves_its_reservations() {
    play_all(&World::redis(), Kind::Never, false, 4).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_processes_one_of_them_killed_leave_exactly_their_charges() {
    play_all(&World::redis(), Kind::Little, false, 4).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_processes_one_of_them_killed_leave_what_has_not_refilled() {
    play_all(&World::redis(), Kind::Little, true, 6).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_processes_one_of_them_killed_go_into_debt_and_out_of_it() {
    play_all(&World::redis(), Kind::Debts, true, 4).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_of_one_process_leave_exactly_their_charges() {
    for kind in Kind::ALL {
        for moves in [false, true] {
            play_all(&World::memory(), kind, moves, 4).await;
        }
    }
}

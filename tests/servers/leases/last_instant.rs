//! The last instant at which a unit is spent, to the microsecond, by clocks of a process that are set.

use std::{
    env,
    fs::{File, OpenOptions},
    future::IntoFuture,
    os::unix::fs::FileExt,
    thread,
    time::{Duration, Instant},
};

use futures_util::FutureExt;
use testkit::{Clock, Server, Timers};
use tollgate::{Decision, DecisionSource, RedisStore};

use crate::leases::{
    holder::{Case, HALF_SECOND_LEFT, Holder, LASTING, LeasingLimiter},
    support::{builder, leases, ms, used},
};

const URL: &str = "TOLLGATE_LEASES_CLOCKS_URL";
/// The file of the process's own clock, and that of the server's.
const CELLS: [&str; 2] = ["TESTKIT_CLOCK", "TOLLGATE_LEASES_CLOCKS_SERVER"];

/// What both clocks show first, in microseconds: half a second before a multiple of ten seconds.
const START: u64 = 1_799_999_999_500_000;

/// A clock that a process sets.
struct Cell(File);

impl Cell {
    fn open(variable: &str) -> Self {
        let path = env::var(variable).expect("a file");
        let file = OpenOptions::new().write(true).open(path);
        Self(file.expect("a file"))
    }

    fn set(&self, micros: u64) {
        let bytes = micros.to_ne_bytes();
        self.0.write_all_at(&bytes, 0).expect("it is set");
    }
}

fn own_store() -> RedisStore {
    let url = env::var(URL).expect("a URL");
    builder(url).build().expect("a store")
}

/// Runs a test of this file as a process of its own, on clocks that it sets.
#[track_caller]
fn run(child: &str, timers: Timers) {
    let [own, server_clock] = [(); 2].map(|()| Clock::at(START));
    let server = Server::builder().clock(&server_clock).start();
    let [_, (_, server_cell), _] = server_clock.variables(timers);
    let output = tollgate_tests::child::test(module_path!(), child)
        .env(URL, server.url())
        .env(CELLS[1], server_cell)
        .envs(own.variables(timers))
        .output()
        .expect("a process");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("as it should be"),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// A decision that is not waited for: while it is made, nothing else runs.
fn decide_at_once(own: &LeasingLimiter) -> Option<Decision> {
    own.limiter.check(own.key).into_future().now_or_never()
}

fn is_by_lease(own: &LeasingLimiter) -> bool {
    let decision = decide_at_once(own);
    decision.is_some_and(|it| it.source() == DecisionSource::Lease && it.is_admitted())
}

fn granted(own: &LeasingLimiter) -> u64 {
    leases(&own.limiter, "p").map_or(0, |stats| stats.granted)
}

/// Calls the store until more units are leased: no timer expires while the clock stands still.
async fn until_more_is_granted(own: &LeasingLimiter, request: bool) {
    let before = granted(own);
    for _ in 0..1_000 {
        if request {
            assert!(own.limiter.check(own.key).await.is_admitted());
        }
        used(&own.limiter, own.key).await;
        tokio::task::yield_now().await;
        if granted(own) > before {
            return;
        }
    }
    panic!("{:?}: nothing is leased", own.strategy);
}

/// Requests a lease at an instant, whose response comes later, and spends units of it at its last microsecond.
async fn is_spent_for(
    own: &LeasingLimiter,
    life: Duration,
    [own_clock, server_clock]: [&Cell; 2],
    at: u64,
) {
    own_clock.set(at);
    server_clock.set(START);
    until_more_is_granted(own, true).await;
    // The first lease is of two units: the next one is requested now.
    assert!(is_by_lease(own), "{:?}", own.strategy);
    let before = own.held();
    // The store counts at the instant of the request, however late that is.
    own_clock.set(at + 300_000);
    until_more_is_granted(own, false).await;
    assert!(own.held() > before, "{:?}", own.strategy);
    let end = at + life.as_micros() as u64;
    own_clock.set(end - 1);
    for _ in 0..5 {
        assert!(is_by_lease(own), "{:?}: it ends early", own.strategy);
    }
    assert!(own.held() > 0);
    own_clock.set(end);
    assert!(!is_by_lease(own), "{:?}: it ends late", own.strategy);
}

#[test]
fn child_process_on_clocks_that_stand_still() {
    if env::var(URL).is_err() {
        return;
    }
    let cells = CELLS.map(Cell::open);
    let whole = Duration::from_secs(1);
    // Half a second less a thousandth, in which clocks of different speeds drift apart, and one microsecond.
    let rest = Duration::from_micros(499_499);
    let ten = Duration::from_secs(10);
    let mut at = START;
    for (cases, ttl, life) in [(&LASTING[..], whole, whole), (&HALF_SECOND_LEFT, ten, rest)] {
        let cases: &[Case] = cases;
        let holder = Holder::new(cases, ttl, own_store);
        for own in holder.limiters() {
            at += 1_000_000_000;
            own.run(is_spent_for(own, life, [&cells[0], &cells[1]], at));
        }
        // Their keys are counted afresh.
        cells[1].set(START + 3_600_000_000);
    }
    println!("as it should be");
}

/// A lease lives for its TTL, or for the rest of its window, from the moment of its request, whenever its response comes.
#[test]
fn a_lease_is_spent_up_to_the_last_microsecond_of_its_ttl_or_window_and_not_after_that() {
    run("child_process_on_clocks_that_stand_still", Timers::Stopped);
}

#[test]
fn child_process_whose_wall_clock_is_set() {
    if env::var(URL).is_err() {
        return;
    }
    let [wall, _] = CELLS.map(Cell::open);
    let ttl = Duration::from_secs(10);
    let micros = ttl.as_micros() as u64;
    let forward = (START + micros - 1, START + micros);
    let back = (START - micros, START - micros - 1);
    for (last, over) in [forward, back] {
        wall.set(START);
        let holder = Holder::new(&LASTING, ttl, own_store);
        let start = Instant::now();
        holder.hold();
        for own in holder.limiters() {
            wall.set(last);
            let is_spent = own.run(async { is_by_lease(own) });
            let in_time = start.elapsed() < ttl / 2;
            assert!(is_spent || !in_time, "{:?}: {last}", own.strategy);
            wall.set(over);
            let is_spent = own.run(async { is_by_lease(own) });
            assert!(!is_spent, "{:?}: {over}", own.strategy);
            wall.set(START);
        }
    }
    // The wall clock stands still.
    let ttl = ms(200);
    let holder = Holder::new(&LASTING, ttl, own_store);
    holder.hold();
    thread::sleep(ttl * 5 / 4);
    for own in holder.limiters() {
        let is_spent = own.run(async { is_by_lease(own) });
        assert!(!is_spent, "{:?}", own.strategy);
    }
    println!("as it should be");
}

/// The monotonic clock stands still while a machine sleeps: the wall clock says how long that was, or has been set back meanwhile.
#[test]
fn a_lease_ends_by_the_clock_that_has_moved_by_its_ttl() {
    run("child_process_whose_wall_clock_is_set", Timers::Real);
}

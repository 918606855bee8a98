//! Clocks and timers that stand still until a test moves them: of a process, of a runtime, of a store.

use std::{
    any::type_name,
    panic::Location,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use testkit::{Clock as ServerClock, Timers};
use tokio::{
    task::{spawn_blocking, yield_now},
    time,
};
use tollgate::clock::{Clock, Timestamp};

use crate::{child, until::TEST_TIMEOUT, world::START};

/// The clock of this process, if it is one of its own for the test that calls it; otherwise runs the test in such a process.
///
/// All clocks of that process show [`START`] first, and its timers expire by them; only its wall clock is set with [`Timers::Real`].
///
/// # Panics
/// If the test fails there, and if `Scene` is no closure in the test.
#[track_caller]
pub fn of_own_process<Scene>(timers: Timers) -> Option<ServerClock> {
    if let Some(clock) = ServerClock::of_this_process() {
        return Some(clock);
    }
    // `program::module::test::{{closure}}`.
    let path = type_name::<Scene>().trim_end_matches("::{{closure}}");
    let (module, test) = path.rsplit_once("::").expect("a closure in a test");
    let clock = ServerClock::at(START);
    let output = child::test(module, test)
        .envs(clock.variables(timers))
        .output()
        .expect("a process");
    let has_passed = output.status.success();
    let [text, errors] = [output.stdout, output.stderr];
    let text = String::from_utf8_lossy(&text);
    assert!(
        has_passed && text.contains("1 passed"),
        "{path}: {}\n{text}{}",
        output.status,
        String::from_utf8_lossy(&errors)
    );
    None
}

/// Lets other tasks, processes and servers run for a millisecond of real time, while a clock stands still.
pub async fn real_pause() {
    let pause = || thread::sleep(Duration::from_millis(1));
    let pause = spawn_blocking(pause);
    pause.await.expect("no panic");
}

/// Polls until it is true, for about [`TEST_TIMEOUT`] of real time at least. No time passes by a clock that stands still.
#[track_caller]
pub fn until(what: &str, mut probe: impl AsyncFnMut() -> bool) -> impl Future<Output = ()> {
    let caller = Location::caller();
    async move {
        for _ in 0..TEST_TIMEOUT.as_millis() {
            if probe().await {
                return;
            }
            real_pause().await;
        }
        panic!("it does not happen: {what}, at {caller}");
    }
}

/// The time of a runtime of one thread, which stands still but for [`advance`](Self::advance) until [`end`](Self::end). So no
/// timeout passes before it is to, however slow the machine is, and those that are to pass take no time. No other clock is
/// changed, and nothing that sleeps, such as [`until`](crate::until::until), goes on.
#[derive(Debug)]
pub struct StillTime {
    _end: mpsc::Sender<()>,
}

impl StillTime {
    #[allow(clippy::new_without_default, reason = "it stops the time")]
    pub fn new() -> Self {
        time::pause();
        // While a thread is busy, time does not leap to the next timer.
        let (_end, ended) = mpsc::channel();
        drop(spawn_blocking(move || ended.recv()));
        Self { _end }
    }

    pub async fn advance(&self, by: Duration) {
        time::advance(by).await;
    }

    /// Lets tasks run until all that they send over connections that are open has been sent.
    pub async fn settle(&self) {
        for _ in 0..10 {
            thread::sleep(Duration::from_millis(1));
            yield_now().await;
        }
    }

    /// Lets all calls with the timeout [`TEST_TIMEOUT`] time out, once they were sent.
    pub async fn time_out(&self) {
        self.settle().await;
        // Timers are rounded up to milliseconds.
        self.advance(TEST_TIMEOUT + Duration::from_millis(5)).await;
    }

    /// Lets tasks run until it is true.
    pub async fn until(&self, what: &str, mut probe: impl FnMut() -> bool) {
        let start = Instant::now();
        while !probe() {
            assert!(start.elapsed() < TEST_TIMEOUT, "not in time: {what}");
            thread::sleep(Duration::from_millis(1));
            yield_now().await;
        }
    }

    /// Lets time pass by itself again.
    pub fn end(self) {
        time::resume();
    }
}

/// A monotonic clock and a wall clock, set by hand.
#[derive(Clone, Debug, Default)]
pub struct TwoClocks {
    now: Arc<AtomicI64>,
    wall: Arc<AtomicI64>,
}

impl TwoClocks {
    /// A clock of which both hands show `micros` since 1970.
    pub fn at(micros: i64) -> Self {
        let hands = Self::default();
        hands.pass(micros);
        hands
    }

    /// Time passes; back if `micros` is negative.
    pub fn pass(&self, micros: i64) {
        self.now.fetch_add(micros, Ordering::SeqCst);
        self.step(micros);
    }

    /// The wall clock steps, back if `micros` is negative.
    pub fn step(&self, micros: i64) {
        self.wall.fetch_add(micros, Ordering::SeqCst);
    }

    /// What the monotonic clock shows.
    pub fn micros(&self) -> i64 {
        self.now.load(Ordering::SeqCst)
    }
}

impl Clock for TwoClocks {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.micros())
    }

    fn wall(&self) -> Timestamp {
        Timestamp::from_micros(self.wall.load(Ordering::SeqCst))
    }
}

/// A server's clock, as the process reads it: rejections are cached by it too.
#[derive(Debug)]
pub struct SameTime(pub ServerClock);

impl Clock for SameTime {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.micros() as i64)
    }
}

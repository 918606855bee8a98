//! Processes that run nothing while their leases end, and send requests before anything else when they go on.

use std::{
    env, io,
    process::{Child, Stdio},
    thread,
    time::{Duration, Instant},
};

use testkit::{Clock, Server};

use crate::leases::{
    holder::{Admitted, Case, HALF_SECOND_LEFT, Holder, LASTING},
    processes::{is_stopped, signal},
    support::{ms, store},
};

const URL: &str = "TOLLGATE_LEASES_STOPPED_URL";

/// The servers' time: half a second before a multiple of ten seconds.
const START: u64 = 1_799_999_999_500_000;

const STOPPED_TTL: Duration = ms(400);

/// How long a process stands still: longer than the TTL, and as long as the rest of a window; shorter than a lease of twice the TTL.
const PAUSE: Duration = ms(500);

/// A server on whose clock time passes only when it is set.
struct Scene {
    clock: Clock,
    server: Server,
    cases: &'static [Case],
    ttl: Duration,
}

impl Scene {
    fn new(cases: &'static [Case], ttl: Duration) -> Self {
        let clock = Clock::at(START);
        let server = Server::builder().clock(&clock).start();
        Self {
            clock,
            server,
            cases,
            ttl,
        }
    }

    fn holder(&self) -> Holder {
        Holder::new(self.cases, self.ttl, || store(&self.server))
    }

    /// So much time passes on the server that all that was counted has refilled, and others use the whole quotas.
    fn others_take_all(&self) {
        self.clock.advance(Duration::from_secs(100 * 86_400));
        let others = self.holder();
        let taken = others.take_all();
        assert_eq!(taken, others.limits());
    }

    /// What others could take now.
    fn left(&self) -> u64 {
        let others = self.holder();
        others.take_all().iter().sum()
    }

    /// Holds units, and sends requests after a pause in which the runtime is not polled.
    fn spend_after_a_pause(&self) {
        let holder = self.holder();
        holder.hold();
        let start = Instant::now();
        self.others_take_all();
        thread::sleep(PAUSE.saturating_sub(start.elapsed()));
        let admitted = holder.spend();
        holder.shutdown();
        assert_eq!(admitted, vec![Admitted::default(); self.cases.len()]);
        assert_eq!(self.left(), 0, "a refund of units that have refilled");
    }
}

#[test]
fn a_process_that_was_not_polled_for_longer_than_the_ttl_spends_nothing_of_what_it_held() {
    Scene::new(&LASTING, STOPPED_TTL).spend_after_a_pause();
}

/// The TTL has not passed.
#[test]
fn a_process_that_was_not_polled_until_its_window_has_ended_spends_nothing_of_what_it_held() {
    let scene = Scene::new(&HALF_SECOND_LEFT, Duration::from_secs(10));
    scene.spend_after_a_pause();
}

/// Runs as a process of its own, below, and stops itself.
#[test]
fn child_process() {
    let Ok(url) = env::var(URL) else { return };
    let store = || {
        crate::leases::support::builder(&url)
            .build()
            .expect("a store")
    };
    let holder = Holder::new(&LASTING, STOPPED_TTL, store);
    holder.hold();
    signal(std::process::id(), "STOP");
    // A thread may run on for a moment.
    let mut line = String::new();
    io::stdin().read_line(&mut line).expect("a line");
    println!("admitted: {:?};", holder.spend());
    holder.shutdown();
}

/// It stops while it holds units, which others have used by the time at which it goes on.
#[test]
fn a_process_that_was_stopped_for_longer_than_the_ttl_spends_nothing_of_what_it_held() {
    let scene = Scene::new(&LASTING, STOPPED_TTL);
    let child = tollgate_tests::child::test(module_path!(), "child_process")
        .env(URL, scene.server.url())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let child = KillOnDrop(Some(child.expect("a process")));
    let start = Instant::now();
    while !is_stopped(child.id()) {
        assert!(start.elapsed() < crate::leases::support::TEST_TIMEOUT);
        thread::sleep(ms(2));
    }
    let stopped = Instant::now();
    scene.others_take_all();
    thread::sleep(PAUSE.saturating_sub(stopped.elapsed()));
    signal(child.id(), "CONT");
    let printed = child.output();
    let none = format!("admitted: {:?};", [Admitted::default(); LASTING.len()]);
    assert!(printed.contains(&none), "{printed}");
    assert_eq!(scene.left(), 0, "a refund of units that have refilled");
}

/// A process that is killed if the test fails.
struct KillOnDrop(Option<Child>);

impl KillOnDrop {
    fn id(&self) -> u32 {
        self.0.as_ref().map_or(0, Child::id)
    }

    /// What it prints, now that it goes on.
    fn output(mut self) -> String {
        let child = self.0.take().expect("a process");
        // Its input ends.
        let output = child.wait_with_output().expect("its end");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

//! Tests in processes of their own, whose clocks stand still until they are set: nothing depends on how fast the machine is.

use std::{any::type_name, panic::Location, time::Duration};

use testkit::{Clock, Timers};

use crate::{child, until::TEST_TIMEOUT, world::START};

/// The clock of this process, if it is one of its own for the test that calls it; otherwise runs the test in such a process.
///
/// All clocks of that process show [`START`] first, and its timers expire by them; only its wall clock is set with [`Timers::Real`].
///
/// # Panics
/// If the test fails there, and if `Scene` is no closure in the test.
#[track_caller]
pub fn of_own_process<Scene>(timers: Timers) -> Option<Clock> {
    if let Some(clock) = Clock::of_this_process() {
        return Some(clock);
    }
    // `program::module::test::{{closure}}`.
    let path = type_name::<Scene>().trim_end_matches("::{{closure}}");
    let (module, test) = path.rsplit_once("::").expect("a closure in a test");
    let clock = Clock::at(START);
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
    let pause = || std::thread::sleep(Duration::from_millis(1));
    let pause = tokio::task::spawn_blocking(pause);
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

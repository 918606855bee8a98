//! Timeouts that pass when a test says so.

use std::{
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use tokio::{
    task::{spawn_blocking, yield_now},
    time,
};

use crate::until::TEST_TIMEOUT;

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

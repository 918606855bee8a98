//! Waiting for what happens meanwhile.

use std::{
    panic::Location,
    time::{Duration, Instant},
};

/// How long a test waits before it is taken for hung. No outcome depends on it: the machine may be busy.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(300);

/// Polls until it is true, for at most [`TEST_TIMEOUT`].
#[track_caller]
pub fn until(what: &str, mut probe: impl AsyncFnMut() -> bool) -> impl Future<Output = ()> {
    let caller = Location::caller();
    async move {
        let start = Instant::now();
        while !probe().await {
            assert!(
                start.elapsed() < TEST_TIMEOUT,
                "not within {TEST_TIMEOUT:?}: {what}, at {caller}"
            );
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

//! Waiting with a bound.

use std::thread::sleep;
use std::time::{Duration, Instant};

/// Polls `probe` until it returns a value, and panics with `what` after `limit`.
#[track_caller]
pub(crate) fn until<T>(what: &str, limit: Duration, mut probe: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = probe() {
            return value;
        }
        assert!(start.elapsed() < limit, "not within {limit:?}: {what}");
        sleep(Duration::from_millis(10));
    }
}

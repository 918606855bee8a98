//! Waiting with a bound.

use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long anything is waited for before it is taken for hung: a start, a reply, an end. No outcome depends on it: the
/// machine may be busy.
pub const TIMEOUT: Duration = Duration::from_secs(300);

/// Polls `probe` until it returns a value.
///
/// # Panics
/// With `what`, after [`TIMEOUT`].
#[track_caller]
pub fn until<T>(what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = probe() {
            return value;
        }
        assert!(start.elapsed() < TIMEOUT, "not within {TIMEOUT:?}: {what}");
        sleep(Duration::from_millis(10));
    }
}

//! The thread `tollgate-events`: calls observers, and logs, on behalf of the IO thread, which must not wait for either.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
};

use crate::log::LogThrottle;

/// Most events that wait for the thread.
const MAX_WAITING: usize = 1_024;

/// Calls an observer or logs.
type Event = Box<dyn FnOnce() + Send>;

/// The events that did not fit since the last that did.
static DROPPED: AtomicU64 = AtomicU64::new(0);

/// Runs `event` on the thread, which the first one starts. One that does not fit is dropped, and counted.
pub(crate) fn defer(event: impl FnOnce() + Send + 'static) {
    static THREAD: OnceLock<Option<SyncSender<Event>>> = OnceLock::new();
    let thread = THREAD.get_or_init(|| {
        let (sender, events) = sync_channel(MAX_WAITING);
        let thread = thread::Builder::new().name("tollgate-events".into());
        let started = thread.spawn(move || run(&events));
        started.is_ok().then_some(sender)
    });
    let sent = thread
        .as_ref()
        .is_some_and(|thread| thread.try_send(Box::new(event)).is_ok());
    if !sent {
        DROPPED.fetch_add(1, Ordering::Relaxed);
    }
}

fn run(events: &Receiver<Event>) {
    for event in events {
        // A log of the application may panic. The panic hook reports it.
        let _ = catch_unwind(AssertUnwindSafe(event));
        if DROPPED.load(Ordering::Relaxed) > 0 {
            static SLOW: LogThrottle = LogThrottle::new();
            SLOW.log_with(|suppressed| {
                let dropped = DROPPED.swap(0, Ordering::Relaxed);
                tracing::warn!(
                    dropped,
                    suppressed,
                    "events of the store were dropped: an observer or the log was too slow"
                );
            });
        }
    }
}

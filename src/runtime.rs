//! What the current tokio runtime can do. tokio panics where a timer is created in a runtime in which it is not enabled,
//! and has no call that says whether it is. A request must not panic, so code that needs one of them asks here first. (Where
//! panics abort, tokio's still ends the process.)

use std::{
    cell::Cell,
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    task::{Context, Poll},
    thread::LocalKey,
    time::Duration,
};

use tokio::{
    runtime::{self, Handle},
    time::{Instant, Sleep, sleep, sleep_until},
};

use crate::background::background_runtime;

/// The runtime that a thread was last in, and whether it can do something.
type LastRuntime = Cell<Option<(runtime::Id, bool)>>;

/// The current runtime, if its timers are enabled; `None` outside of a runtime.
pub(crate) fn runtime_with_timers() -> Option<Handle> {
    thread_local! {
        static LAST: LastRuntime = const { Cell::new(None) };
    }
    let runtime = Handle::try_current().ok()?;
    can(&LAST, &runtime, || drop(sleep(Duration::ZERO))).then_some(runtime)
}

/// Ready at an instant, or never, by the timers of the runtime in which it is polled, or else of the thread `tollgate`. The runtime in
/// which it was polled before may stand still, or have ended, after which its timers panic.
pub(crate) struct Timer {
    deadline: Option<Instant>,
    /// Set where the runtime with this id was the current one; `None` outside of a runtime.
    sleep: Option<(Option<runtime::Id>, Pin<Box<Sleep>>)>,
}

impl Timer {
    pub(crate) fn at(deadline: impl Into<Option<Instant>>) -> Self {
        Self {
            deadline: deadline.into(),
            sleep: None,
        }
    }
}

impl Future for Timer {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Some(deadline) = self.deadline else {
            return Poll::Pending;
        };
        let here = Handle::try_current().ok().map(|here| here.id());
        if let Some((_, sleep)) = self.sleep.as_mut().filter(|(there, _)| *there == here)
            && let Some(polled) = poll_sleep(sleep, cx)
        {
            return polled;
        }
        for runtime in [runtime_with_timers, background_runtime] {
            let Some(runtime) = runtime() else { continue };
            let entered = runtime.enter();
            let mut sleep = Box::pin(sleep_until(deadline));
            drop(entered);
            if let Some(polled) = poll_sleep(&mut sleep, cx) {
                self.sleep = Some((here, sleep));
                return polled;
            }
        }
        // Nothing would wake the task.
        Poll::Ready(())
    }
}

/// `None` if its runtime has ended. The panic hook reports it.
fn poll_sleep(sleep: &mut Pin<Box<Sleep>>, cx: &mut Context<'_>) -> Option<Poll<()>> {
    catch_unwind(AssertUnwindSafe(|| sleep.as_mut().poll(cx))).ok()
}

/// Whether `attempt` does not panic in this runtime, by the last attempt of this thread if that was in the same one.
fn can(last: &'static LocalKey<LastRuntime>, runtime: &Handle, attempt: fn()) -> bool {
    let id = runtime.id();
    // A thread that is ending may have dropped it.
    let known = last.try_with(Cell::get).ok().flatten();
    if let Some((_, can)) = known.filter(|(known, _)| *known == id) {
        return can;
    }
    // The panic hook reports a runtime that can't, once for each of its threads.
    let can = catch_unwind(attempt).is_ok();
    let _ = last.try_with(|last| last.set(Some((id, can))));
    can
}

//! The timers of a tokio runtime. tokio panics where a timer is created without them, and has no call that says whether they are
//! there. A request must not panic, so code that needs a timer asks here first. (Where panics abort, tokio's still ends the process.)

use std::{cell::Cell, panic::catch_unwind, time::Duration};

use tokio::{
    runtime::{self, Handle},
    time::sleep,
};

/// The current runtime, if its timers are enabled; `None` outside of a runtime.
pub(crate) fn runtime_with_timers() -> Option<Handle> {
    thread_local! {
        static LAST: Cell<Option<(runtime::Id, bool)>> = const { Cell::new(None) };
    }
    let runtime = Handle::try_current().ok()?;
    let id = runtime.id();
    // A thread that is ending may have dropped it.
    let last = LAST.try_with(Cell::get).ok().flatten();
    let has_timers = match last.filter(|(last, _)| *last == id) {
        Some((_, has_timers)) => has_timers,
        None => {
            // The panic hook reports a runtime without timers, once for each of its threads.
            let has_timers = catch_unwind(|| drop(sleep(Duration::ZERO))).is_ok();
            let _ = LAST.try_with(|last| last.set(Some((id, has_timers))));
            has_timers
        }
    };
    has_timers.then_some(runtime)
}

#[cfg(test)]
mod tests {
    use tokio::runtime::Builder;

    use super::*;

    #[test]
    fn a_runtime_is_returned_if_its_timers_are_enabled() {
        let with = Builder::new_current_thread().enable_time().build();
        let without = Builder::new_current_thread().build();
        let (with, without) = (with.expect("a runtime"), without.expect("a runtime"));
        for _ in 0..2 {
            assert!(runtime_with_timers().is_none(), "outside of a runtime");
            let found = with.block_on(async { runtime_with_timers() });
            assert_eq!(found.expect("timers").id(), with.handle().id());
            assert!(without.block_on(async { runtime_with_timers() }).is_none());
        }
    }
}

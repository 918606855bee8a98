//! The thread `tollgate`: one per process, for what may not wait for the threads of the application, such as the IO of stores.

use std::{
    cell::Cell,
    future::{Future, pending},
    pin::pin,
    sync::{Arc, Mutex, mpsc},
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
};

use tokio::{
    runtime::{Builder, Handle},
    task::coop::unconstrained,
};

use crate::sync::lock;

/// The thread's runtime.
static THREAD: Mutex<Option<Handle>> = Mutex::new(None);

/// The runtime of the thread, which is started when it is first needed and never ends. `None` if it can't be started;
/// the next call tries again.
pub(crate) fn background_runtime() -> Option<Handle> {
    let mut thread = lock(&THREAD);
    if thread.is_none() {
        *thread = start();
    }
    thread.clone()
}

thread_local! {
    static IS_BACKGROUND: Cell<bool> = const { Cell::new(false) };
}

/// Whether this is the thread.
pub(crate) fn is_background() -> bool {
    IS_BACKGROUND.try_with(Cell::get).unwrap_or(false)
}

/// The runtime of the thread, for another thread to [block on](block_on). `None` also on the thread itself: it would wait for itself.
pub(crate) fn runtime_to_block_on() -> Option<Handle> {
    (!is_background()).then(background_runtime).flatten()
}

/// Runs a future on this thread, which parks while it waits. Its timers, sockets and tasks are those of `runtime`, not of the caller's
/// runtime, which may stand still meanwhile. For the same reason the budget of the caller's task does not apply.
pub(crate) fn block_on<F: Future>(runtime: &Handle, future: F) -> F::Output {
    let _entered = runtime.enter();
    let mut future = pin!(unconstrained(future));
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            // A future that polls this code may have been woken while the thread was parked here.
            thread::current().unpark();
            return output;
        }
        thread::park();
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Starts the thread. The runtime is built there: one that is dropped in a task panics.
fn start() -> Option<Handle> {
    let (started, runtime) = mpsc::channel();
    let run = move || {
        IS_BACKGROUND.set(true);
        // Timers and, with the feature `redis`, IO.
        if let Ok(runtime) = Builder::new_current_thread().enable_all().build() {
            let _ = started.send(runtime.handle().clone());
            runtime.block_on(pending::<()>());
        }
    };
    thread::Builder::new()
        .name("tollgate".into())
        .spawn(run)
        .ok()?;
    let runtime = runtime.recv();
    // A future that is polled here, by a thread that parks in between, may have been woken while `recv` was parked.
    thread::current().unpark();
    runtime.ok()
}

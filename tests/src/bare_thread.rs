//! A thread on which there is no runtime.

use std::{
    future::Future,
    sync::{Arc, mpsc},
    task::{Context, Poll, Wake, Waker},
    thread,
};

use crate::until::TEST_TIMEOUT;

/// What `f` returns on a thread of its own. Panics if `f` does, and if it hangs.
#[track_caller]
pub fn on_bare_thread<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, result) = mpsc::channel();
    thread::spawn(move || drop(sender.send(f())));
    result
        .recv_timeout(TEST_TIMEOUT)
        .expect("it neither panics nor hangs")
}

/// Drives a future on this thread alone.
pub fn block_on<F: Future + Unpin>(mut future: F) -> F::Output {
    struct Unpark(thread::Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        let mut future = Box::pin(&mut future);
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        thread::park();
    }
}

//! A task whose future other tasks may poll once, in place of waking the task.
//!
//! Waking a task costs a scheduling turn and often a thread's wake-up. So a request that finds its worker idle polls the
//! worker's future inline, which sends the batch; the reply wakes the worker's own task, as does everything else that it waits
//! for. A dropped request loses nothing: the poll happens within one poll of the request, or not at all. On a current-thread
//! runtime the task is woken instead: all requests of one scheduling turn then share a batch.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker},
};

use crate::sync::lock;
use tokio::{
    runtime::{Handle, RuntimeFlavor},
    sync::Notify,
};

#[derive(Default)]
pub(crate) struct SharedTask {
    /// `Some` from the task's first poll until the future completes.
    work: Mutex<Option<SharedFuture>>,
    /// Set before an inline poll, which the future takes for a notification.
    notified_inline: AtomicBool,
    wake: Notify,
}

struct SharedFuture {
    future: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// The task's waker: events wake the task, whichever task polled last.
    waker: Waker,
    /// Whether other tasks may poll it.
    shared: bool,
}

impl SharedTask {
    /// Runs `work` as the task that owns it. It is dropped with the task.
    pub(crate) async fn run(&self, work: impl Future<Output = ()> + Send + 'static) {
        let _ends = TaskGuard(self);
        let shared = Handle::current().runtime_flavor() != RuntimeFlavor::CurrentThread;
        let mut new = Some(Box::pin(work) as Pin<Box<_>>);
        poll_fn(|cx| {
            let mut work = self.lock();
            if let Some(future) = new.take() {
                let waker = cx.waker().clone();
                *work = Some(SharedFuture {
                    future,
                    waker,
                    shared,
                });
            }
            if let Some(work) = work.as_mut() {
                work.waker.clone_from(cx.waker());
            }
            poll_once(&mut work)
        })
        .await;
    }

    /// Notifies the future, polling it inline where possible. To be called within the task's runtime only.
    pub(crate) fn poll_inline(&self) {
        let Ok(mut work) = self.work.try_lock() else {
            // Another task polls it, and may have passed the point where it would see the flag.
            return self.wake.notify_one();
        };
        let shared = work.as_ref().filter(|work| work.shared);
        let Some(waker) = shared.map(|work| work.waker.clone()) else {
            return self.wake.notify_one();
        };
        self.notified_inline.store(true, Ordering::Relaxed);
        let mut ended = WakeGuard(Some(waker));
        if poll_once(&mut work).is_pending() {
            ended.0 = None;
        }
    }

    /// Notifies the future by waking its task. Can be called from any thread.
    pub(crate) fn wake(&self) {
        self.wake.notify_one();
    }

    /// Waits until the future is notified.
    pub(crate) async fn notified(&self) {
        let mut woken = std::pin::pin!(self.wake.notified());
        poll_fn(|cx| {
            if self.notified_inline.swap(false, Ordering::Relaxed) {
                Poll::Ready(())
            } else {
                woken.as_mut().poll(cx)
            }
        })
        .await;
    }

    fn lock(&self) -> MutexGuard<'_, Option<SharedFuture>> {
        lock(&self.work)
    }
}

/// Polls the future once.
fn poll_once(work: &mut Option<SharedFuture>) -> Poll<()> {
    let Some(SharedFuture { future, waker, .. }) = work else {
        return Poll::Ready(());
    };
    let waker = waker.clone();
    let done = future.as_mut().poll(&mut Context::from_waker(&waker));
    if done.is_ready() {
        *work = None;
    }
    done
}

/// Wakes the task of a future that has ended when it is dropped: also after a panic, by which the task ends, too. Nothing else would
/// wake it.
struct WakeGuard(Option<Waker>);

impl Drop for WakeGuard {
    fn drop(&mut self) {
        if let Some(waker) = self.0.take() {
            waker.wake();
        }
    }
}

/// Drops the future with its task, since it may own what owns this.
struct TaskGuard<'a>(&'a SharedTask);

impl Drop for TaskGuard<'_> {
    fn drop(&mut self) {
        let work = self.0.lock().take();
        // Not under the lock: a destructor may notify.
        drop(work);
    }
}

impl std::fmt::Debug for SharedTask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedTask").finish_non_exhaustive()
    }
}

//! The slot through which the IO thread hands a result to the waiter.

use std::mem;

/// A slot for one result. Used under a mutex that is held for a move.
#[derive(Debug)]
pub(crate) enum ResponseSlot<T, W> {
    /// No result yet. Holds the waiter's waker once it was polled.
    Empty(Option<W>),
    /// A result that was not read yet.
    Ready(T),
    /// The result was read, or no waiter will read it.
    Closed,
}

impl<T, W: Clone> ResponseSlot<T, W> {
    /// Takes the result, or registers the waker. Returns the previous content, which must be dropped after the lock is released.
    #[inline]
    pub(crate) fn poll_take(&mut self, waker: &W) -> Self {
        let next = match self {
            Self::Empty(_) => Self::Empty(Some(waker.clone())),
            Self::Ready(_) | Self::Closed => Self::Closed,
        };
        mem::replace(self, next)
    }

    /// Takes the result out of `result` and returns the waker to wake; leaves it there if the slot is closed.
    #[inline]
    pub(crate) fn put(&mut self, result: &mut Option<T>) -> Option<W> {
        let Self::Empty(waker) = self else {
            return None;
        };
        let waker = waker.take();
        if let Some(result) = result.take() {
            *self = Self::Ready(result);
        }
        waker
    }

    /// Closes the slot. Returns the previous content, as [`poll_take`](Self::poll_take) does.
    pub(crate) fn close(&mut self) -> Self {
        mem::replace(self, Self::Closed)
    }
}

/// Every interleaving of a result with a waiter that reads it or leaves, explored by loom.
#[cfg(test)]
mod tests {
    use super::*;
    use loom::{
        sync::{
            Arc, Mutex, Notify,
            atomic::{AtomicUsize, Ordering},
        },
        thread,
    };

    type Shared = Arc<Mutex<ResponseSlot<u8, Arc<Notify>>>>;

    /// Puts a result, as a request does. Returns whether no waiter will read it.
    fn put_result(slot: &Shared) -> bool {
        let mut result = Some(7);
        let waker = slot.lock().expect("a lock").put(&mut result);
        if let Some(waker) = waker {
            waker.notify();
        }
        result.is_some()
    }

    #[test]
    fn the_waiter_gets_the_result_in_every_order() {
        loom::model(|| {
            let slot: Shared = Arc::new(Mutex::new(ResponseSlot::Empty(None)));
            let shared = slot.clone();
            let io = thread::spawn(move || assert!(!put_result(&shared), "it's read"));
            // A lost wake-up would make this wait for ever, which loom reports.
            let read = loop {
                let waker = Arc::new(Notify::new());
                let previous = slot.lock().expect("a lock").poll_take(&waker);
                match previous {
                    ResponseSlot::Empty(_) => waker.wait(),
                    ResponseSlot::Ready(result) => break result,
                    ResponseSlot::Closed => panic!("it was not read"),
                }
            };
            assert_eq!(read, 7);
            io.join().expect("it ends");
            let waker = Arc::new(Notify::new());
            let again = slot.lock().expect("a lock").poll_take(&waker);
            assert!(matches!(again, ResponseSlot::Closed), "once");
        });
    }

    #[test]
    fn a_result_that_is_not_read_is_refunded_once() {
        loom::model(|| {
            let slot: Shared = Arc::new(Mutex::new(ResponseSlot::Empty(None)));
            let refunded = Arc::new(AtomicUsize::new(0));
            let (shared, refunds) = (slot.clone(), refunded.clone());
            let io = thread::spawn(move || {
                refunds.fetch_add(put_result(&shared).into(), Ordering::SeqCst);
            });
            let waker = Arc::new(Notify::new());
            let previous = slot.lock().expect("a lock").poll_take(&waker);
            let read = matches!(previous, ResponseSlot::Ready(7));
            let left = slot.lock().expect("a lock").close();
            refunded.fetch_add(
                matches!(left, ResponseSlot::Ready(7)).into(),
                Ordering::SeqCst,
            );
            io.join().expect("it ends");
            let refunded = refunded.load(Ordering::SeqCst);
            assert_eq!(refunded, usize::from(!read), "read or given back, once");
        });
    }
}

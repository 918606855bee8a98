//! Where an answer is handed over by whoever has it to whoever waits for it.

use std::mem;

/// A place for one answer. It stands under a lock, held for a move.
#[derive(Debug)]
pub(crate) enum ResponseSlot<T, W> {
    /// Nobody has answered yet. Who is to be woken, once somebody waits.
    Empty(Option<W>),
    /// Answered, and not read yet.
    Ready(T),
    /// It was read, or nobody will read it.
    Closed,
}

impl<T, W: Clone> ResponseSlot<T, W> {
    /// Reads what was told, or notes who is to be woken. Returns what stood there: not before the lock is released is it to
    /// be dropped.
    #[inline]
    pub(crate) fn poll_take(&mut self, waker: &W) -> Self {
        let next = match self {
            Self::Empty(_) => Self::Empty(Some(waker.clone())),
            Self::Ready(_) | Self::Closed => Self::Closed,
        };
        mem::replace(self, next)
    }

    /// Tells an answer. Takes it, and returns who is to be woken, unless nobody reads it.
    #[inline]
    pub(crate) fn put(&mut self, answer: &mut Option<T>) -> Option<W> {
        let Self::Empty(waker) = self else {
            return None;
        };
        let waker = waker.take();
        if let Some(answer) = answer.take() {
            *self = Self::Ready(answer);
        }
        waker
    }

    /// Nobody will read it any more. Returns what stood there, as above.
    pub(crate) fn close(&mut self) -> Self {
        mem::replace(self, Self::Closed)
    }
}

/// Every order in which an answer, and whoever waits for it or goes, can meet, tried by loom.
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

    /// Answers, as a question does. Returns whether nobody will read it.
    fn answer(place: &Shared) -> bool {
        let mut answer = Some(7);
        let waker = place.lock().expect("a lock").put(&mut answer);
        if let Some(waker) = waker {
            waker.notify();
        }
        answer.is_some()
    }

    #[test]
    fn whoever_waits_hears_it_whichever_comes_first() {
        loom::model(|| {
            let place: Shared = Arc::new(Mutex::new(ResponseSlot::Empty(None)));
            let theirs = place.clone();
            let worker = thread::spawn(move || assert!(!answer(&theirs), "it's read"));
            // Were he not woken, this would wait for ever, which loom reports.
            let heard = loop {
                let waker = Arc::new(Notify::new());
                let stood = place.lock().expect("a lock").poll_take(&waker);
                match stood {
                    ResponseSlot::Empty(_) => waker.wait(),
                    ResponseSlot::Ready(answer) => break answer,
                    ResponseSlot::Closed => panic!("nobody has read it"),
                }
            };
            assert_eq!(heard, 7);
            worker.join().expect("it ends");
            let waker = Arc::new(Notify::new());
            let again = place.lock().expect("a lock").poll_take(&waker);
            assert!(matches!(again, ResponseSlot::Closed), "once");
        });
    }

    #[test]
    fn what_is_not_read_is_given_back_once_by_whoever_comes_last() {
        loom::model(|| {
            let place: Shared = Arc::new(Mutex::new(ResponseSlot::Empty(None)));
            let back = Arc::new(AtomicUsize::new(0));
            let (theirs, given) = (place.clone(), back.clone());
            let worker = thread::spawn(move || {
                given.fetch_add(answer(&theirs).into(), Ordering::SeqCst);
            });
            let waker = Arc::new(Notify::new());
            let stood = place.lock().expect("a lock").poll_take(&waker);
            let read = matches!(stood, ResponseSlot::Ready(7));
            let left = place.lock().expect("a lock").close();
            back.fetch_add(
                matches!(left, ResponseSlot::Ready(7)).into(),
                Ordering::SeqCst,
            );
            worker.join().expect("it ends");
            let back = back.load(Ordering::SeqCst);
            assert_eq!(back, usize::from(!read), "read or given back, once");
        });
    }
}

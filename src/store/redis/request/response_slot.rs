//! Where an answer is handed over by whoever has it to whoever waits for it.

use std::mem;

/// A place for one answer. It stands under a lock, held for a move.
#[derive(Debug)]
pub(crate) enum Place<T, W> {
    /// Nobody has answered yet. Who is to be woken, once somebody waits.
    Open(Option<W>),
    /// Answered, and not read yet.
    Told(T),
    /// It was read, or nobody will read it.
    Over,
}

impl<T, W: Clone> Place<T, W> {
    /// Reads what was told, or notes who is to be woken. Returns what stood there: not before the lock is released is it to
    /// be dropped.
    #[inline]
    pub(crate) fn watch(&mut self, waker: &W) -> Self {
        let next = match self {
            Self::Open(_) => Self::Open(Some(waker.clone())),
            Self::Told(_) | Self::Over => Self::Over,
        };
        mem::replace(self, next)
    }

    /// Tells an answer. Takes it, and returns who is to be woken, unless nobody reads it.
    #[inline]
    pub(crate) fn tell(&mut self, answer: &mut Option<T>) -> Option<W> {
        let Self::Open(waker) = self else {
            return None;
        };
        let waker = waker.take();
        if let Some(answer) = answer.take() {
            *self = Self::Told(answer);
        }
        waker
    }

    /// Nobody will read it any more. Returns what stood there, as above.
    pub(crate) fn leave(&mut self) -> Self {
        mem::replace(self, Self::Over)
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

    type Shared = Arc<Mutex<Place<u8, Arc<Notify>>>>;

    /// Answers, as a question does. Returns whether nobody will read it.
    fn answer(place: &Shared) -> bool {
        let mut answer = Some(7);
        let waker = place.lock().expect("a lock").tell(&mut answer);
        if let Some(waker) = waker {
            waker.notify();
        }
        answer.is_some()
    }

    #[test]
    fn whoever_waits_hears_it_whichever_comes_first() {
        loom::model(|| {
            let place: Shared = Arc::new(Mutex::new(Place::Open(None)));
            let theirs = place.clone();
            let lane = thread::spawn(move || assert!(!answer(&theirs), "it's read"));
            // Were he not woken, this would wait for ever, which loom reports.
            let heard = loop {
                let waker = Arc::new(Notify::new());
                let stood = place.lock().expect("a lock").watch(&waker);
                match stood {
                    Place::Open(_) => waker.wait(),
                    Place::Told(answer) => break answer,
                    Place::Over => panic!("nobody has read it"),
                }
            };
            assert_eq!(heard, 7);
            lane.join().expect("it ends");
            let waker = Arc::new(Notify::new());
            let again = place.lock().expect("a lock").watch(&waker);
            assert!(matches!(again, Place::Over), "once");
        });
    }

    #[test]
    fn what_is_not_read_is_given_back_once_by_whoever_comes_last() {
        loom::model(|| {
            let place: Shared = Arc::new(Mutex::new(Place::Open(None)));
            let back = Arc::new(AtomicUsize::new(0));
            let (theirs, given) = (place.clone(), back.clone());
            let lane = thread::spawn(move || {
                given.fetch_add(answer(&theirs).into(), Ordering::SeqCst);
            });
            let waker = Arc::new(Notify::new());
            let stood = place.lock().expect("a lock").watch(&waker);
            let read = matches!(stood, Place::Told(7));
            let left = place.lock().expect("a lock").leave();
            back.fetch_add(matches!(left, Place::Told(7)).into(), Ordering::SeqCst);
            lane.join().expect("it ends");
            let back = back.load(Ordering::SeqCst);
            assert_eq!(back, usize::from(!read), "read or given back, once");
        });
    }
}

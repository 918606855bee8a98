//! A value that is swapped while it is read.

use std::sync::{
    Arc, Mutex, PoisonError, RwLock, TryLockError,
    atomic::{AtomicUsize, Ordering},
};

/// A value that others read while it is replaced: they see the old one or the new one, and wait for nobody.
///
/// There are two slots. A writer fills the one that isn't in use, and then has it used.
#[derive(Debug)]
pub(super) struct Swap<T> {
    slots: [RwLock<Arc<T>>; 2],
    in_use: AtomicUsize,
    writing: Mutex<()>,
}

impl<T> Swap<T> {
    pub(super) fn new(value: T) -> Self {
        let value = Arc::new(value);
        Self {
            slots: [RwLock::new(value.clone()), RwLock::new(value)],
            in_use: AtomicUsize::new(0),
            writing: Mutex::new(()),
        }
    }

    pub(super) fn load(&self) -> Arc<T> {
        loop {
            match self.slots[self.in_use.load(Ordering::Acquire)].try_read() {
                Ok(value) => return value.clone(),
                Err(TryLockError::Poisoned(value)) => return value.into_inner().clone(),
                // It was replaced just now, and the other slot is in use.
                Err(TryLockError::WouldBlock) => {}
            }
        }
    }

    pub(super) fn store(&self, value: T) {
        let value = Arc::new(value);
        let _turn = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let next = 1 - self.in_use.load(Ordering::Acquire);
        let mut slot = self.slots[next]
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let old = std::mem::replace(&mut *slot, value);
        drop(slot);
        self.in_use.store(next, Ordering::Release);
        drop(old);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{sync::atomic::AtomicBool, thread};

    #[test]
    fn readers_see_whole_values_that_never_go_back() {
        let swap = Swap::new((0_u64, 0_u64));
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut last = 0;
                    while !done.load(Ordering::Relaxed) {
                        let value = swap.load();
                        assert_eq!(value.0 * 3, value.1, "half of another");
                        assert!(value.0 >= last, "{} after {last}", value.0);
                        last = value.0;
                    }
                });
            }
            for n in 1..=20_000 {
                swap.store((n, n * 3));
            }
            done.store(true, Ordering::Relaxed);
        });
        assert_eq!(*swap.load(), (20_000, 60_000));
    }

    #[test]
    fn a_reader_waits_for_no_writer() {
        let swap = Swap::new(1);
        // As far as a writer gets before the value is in use.
        let _writing = swap.writing.lock().expect("a lock");
        let _slot = swap.slots[1].write().expect("a lock");
        assert_eq!(*swap.load(), 1);
    }
}

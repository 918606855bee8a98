//! Sharing between threads without contention.

use std::{
    ops::{Deref, DerefMut},
    sync::{
        Arc, LazyLock, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

mod replaceable;

pub(crate) use self::replaceable::{
    Replaceable, ReplaceableValue, ReplacedFlag, ThreadRefs, replaceable_value,
};

/// Locks a mutex, also after a thread has panicked while it held the lock: the values that are guarded are usable after each step.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The same for reading.
pub(crate) fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

/// The same for writing.
pub(crate) fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

/// A value on cache lines of its own: writes to its neighbours do not slow it down. 128 bytes, because processors fetch
/// lines of 64 bytes in pairs.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(128))]
pub(crate) struct CachePadded<T>(T);

impl<T> CachePadded<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(value)
    }
}

impl<T> Deref for CachePadded<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for CachePadded<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

/// Several `Arc`s of equal values, of which each thread uses one. With a single `Arc` all threads would contend for its
/// reference count. The value should start a cache line, see [`CachePadded`].
#[derive(Debug)]
pub(crate) struct ShardedArc<T>(Box<[Arc<T>]>);

impl<T> ShardedArc<T> {
    pub(crate) fn new(mut make: impl FnMut() -> T) -> Self {
        // The system reads files to find it out.
        static THREADS: LazyLock<usize> = LazyLock::new(|| {
            thread::available_parallelism().map_or(1, |threads| threads.get().min(64))
        });
        // A power of two, so that a thread's `Arc` is found without a division.
        let shards = THREADS.next_power_of_two();
        Self((0..shards).map(|_| Arc::new(make())).collect())
    }

    /// One of them, for what is the same in all.
    pub(crate) fn first(&self) -> &T {
        &self.0[0]
    }

    /// All of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|shard| &**shard)
    }

    /// The `Arc` of this thread.
    #[inline]
    pub(crate) fn local(&self) -> &Arc<T> {
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static THREAD: usize = THREADS.fetch_add(1, Ordering::Relaxed);
        }
        // A thread that is ending may have dropped its number.
        let thread = THREAD.try_with(|thread| *thread).unwrap_or(0);
        &self.0[thread & (self.0.len() - 1)]
    }
}

//! A value that is replaced while threads read it.

use std::{
    cell::RefCell,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::LocalKey,
};

use arc_swap::ArcSwap;

use super::ShardedArc;

/// The number of references that each thread keeps. Where two values that it reads in turn have the same slot, each read is a
/// load of [`ArcSwap`].
const SLOTS: u64 = 16;

/// A [`ShardedArc`] that can be replaced as a whole. Reading it costs what a clone of an `Arc` costs: each thread keeps a weak
/// reference, and the value that it leads to says whether it was replaced. (A load of [`ArcSwap`] costs as much again as the
/// clone.) A thread that no longer reads keeps no value alive.
#[derive(Debug)]
pub(crate) struct Replaceable<T> {
    /// Identifies it in the threads' caches.
    id: u64,
    current: ArcSwap<ShardedArc<T>>,
}

/// A value that knows whether it was replaced, and the threads' references to such values.
pub(crate) trait ReplaceableValue: Sized + 'static {
    fn replaced_flag(&self) -> &ReplacedFlag;

    fn thread_refs() -> &'static LocalKey<ThreadRefs<Self>>;
}

/// Implements [`ReplaceableValue`] for a type with a [`ReplacedFlag`] in the named field. Each type has threads' references of
/// its own.
macro_rules! replaceable_value {
    ($value:ty, $flag:tt) => {
        impl $crate::sync::ReplaceableValue for $value {
            #[inline]
            fn replaced_flag(&self) -> &$crate::sync::ReplacedFlag {
                &self.$flag
            }

            #[inline]
            fn thread_refs() -> &'static std::thread::LocalKey<$crate::sync::ThreadRefs<Self>> {
                thread_local! {
                    static REFS: $crate::sync::ThreadRefs<$value> =
                        const { $crate::sync::ThreadRefs::new() };
                }
                &REFS
            }
        }
    };
}

pub(crate) use replaceable_value;

/// Whether a value was replaced.
#[derive(Debug, Default)]
pub(crate) struct ReplacedFlag(AtomicBool);

/// A thread's references to current values.
pub(crate) struct ThreadRefs<T>(RefCell<[(u64, Weak<T>); SLOTS as usize]>);

impl<T: ReplaceableValue> Replaceable<T> {
    pub(crate) fn new(first: ShardedArc<T>) -> Self {
        // 0 is the id of unused slots.
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            current: ArcSwap::from_pointee(first),
        }
    }

    /// This thread's `Arc` of the current value.
    #[inline]
    pub(crate) fn local(&self) -> Arc<T> {
        let refs = T::thread_refs();
        // A thread that is ending may have dropped them.
        let found = refs.try_with(|refs| refs.get(self.id)).ok().flatten();
        match found {
            Some(value) if !value.replaced_flag().is_set() => value,
            _ => self.load(),
        }
    }

    #[cold]
    fn load(&self) -> Arc<T> {
        let value = self.current.load().local().clone();
        let keep = |refs: &ThreadRefs<T>| refs.set(self.id, &value);
        let _ = T::thread_refs().try_with(keep);
        value
    }

    /// Replaces the value. Calls of `local` that begin later return the new one. An `Arc` of the old one stays valid.
    pub(crate) fn replace(&self, next: ShardedArc<T>) {
        let last = self.current.swap(Arc::new(next));
        for value in last.iter() {
            value.replaced_flag().set();
        }
    }
}

impl ReplacedFlag {
    #[inline]
    pub(crate) fn is_set(&self) -> bool {
        // A thread that learns of the replacement by other means has synchronized with the thread that set it. Others may read
        // the old value a moment longer.
        self.0.load(Ordering::Relaxed)
    }

    fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl<T> ThreadRefs<T> {
    pub(crate) const fn new() -> Self {
        Self(RefCell::new([const { (0, Weak::new()) }; SLOTS as usize]))
    }

    #[inline]
    fn get(&self, id: u64) -> Option<Arc<T>> {
        let slots = self.0.borrow();
        let (of, value) = &slots[(id % SLOTS) as usize];
        (*of == id).then(|| value.upgrade())?
    }

    fn set(&self, id: u64, value: &Arc<T>) {
        self.0.borrow_mut()[(id % SLOTS) as usize] = (id, Arc::downgrade(value));
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    struct Value(u32, ReplacedFlag);

    replaceable_value!(Value, 1);

    fn value(n: u32) -> ShardedArc<Value> {
        ShardedArc::new(|| Value(n, ReplacedFlag::default()))
    }

    #[test]
    fn a_thread_reads_the_current_value_and_keeps_no_replaced_one_alive() {
        let replaceable = Replaceable::new(value(1));
        let first = replaceable.local();
        assert_eq!(first.0, 1);
        assert!(Arc::ptr_eq(&first, &replaceable.local()));
        replaceable.replace(value(2));
        assert_eq!(first.0, 1);
        let of_first = Arc::downgrade(&first);
        drop(first);
        assert!(of_first.upgrade().is_none());
        assert_eq!(replaceable.local().0, 2);
        let of_second = Arc::downgrade(&replaceable.local());
        drop(replaceable);
        assert!(of_second.upgrade().is_none());
    }

    #[test]
    fn no_thread_reads_an_older_value_than_before_or_than_was_announced() {
        let replaceable = Replaceable::new(value(0));
        let announced = AtomicU64::new(0);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut last = 0;
                    while last < 1_000 {
                        let least = announced.load(Ordering::Acquire) as u32;
                        let read = replaceable.local().0;
                        assert!(read >= last && read >= least, "{read}, {last}, {least}");
                        last = read;
                    }
                });
            }
            for n in 1..=1_000 {
                replaceable.replace(value(n));
                announced.store(n.into(), Ordering::Release);
            }
        });
    }
}

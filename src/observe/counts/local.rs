//! A thread's way to its counters.

use std::{cell::RefCell, sync::Arc};

use super::{
    counters::{Counter, Counters, PolicyCounts, Requests},
    threads::Threads,
};

/// The counters that this thread writes, and the names of their policies.
#[derive(Debug)]
pub(super) struct LocalCounters {
    /// Identifies the [`Threads`].
    of: u64,
    counters: Arc<Counters>,
    /// The policies' names, by slot.
    names: Vec<Arc<str>>,
    /// The slots of the policies that were last seen at each index: a guess.
    slots: Vec<usize>,
}

impl LocalCounters {
    fn new(threads: &Threads) -> Self {
        let (counters, names) = threads.new_counters();
        Self {
            of: threads.id,
            counters,
            names,
            slots: Vec::new(),
        }
    }

    #[inline]
    pub(super) fn requests(&self) -> &Requests<Counter> {
        &self.counters.requests
    }

    /// The counters of a policy, which is at this index of its limiter's policies.
    #[inline]
    pub(super) fn policy(
        &mut self,
        threads: &Threads,
        index: usize,
        name: &str,
    ) -> &PolicyCounts<Counter> {
        let guess = self.slots.get(index).copied();
        let slot = match guess {
            Some(slot)
                if self
                    .names
                    .get(slot)
                    .is_some_and(|known| is_same(known, name)) =>
            {
                slot
            }
            _ => self.find(threads, index, name),
        };
        &self.counters.policies[slot]
    }

    /// The counters of a policy of this name.
    pub(super) fn policy_named(&mut self, threads: &Threads, name: &str) -> &PolicyCounts<Counter> {
        let slot = self.slot(threads, name);
        &self.counters.policies[slot]
    }

    #[cold]
    fn find(&mut self, threads: &Threads, index: usize, name: &str) -> usize {
        let slot = self.slot(threads, name);
        if self.slots.len() <= index {
            self.slots.resize(index + 1, 0);
        }
        self.slots[index] = slot;
        slot
    }

    /// The slot of a policy's name, for which there are counters on return.
    fn slot(&mut self, threads: &Threads, name: &str) -> usize {
        let known = self.names.iter().position(|known| **known == *name);
        known.unwrap_or_else(|| {
            let slot = threads.slot(name);
            (self.counters, self.names) = threads.new_counters();
            slot
        })
    }
}

/// Most names are those of the policies in force, at the same address.
#[inline]
fn is_same(known: &str, name: &str) -> bool {
    std::ptr::eq(known, name) || known == name
}

/// Calls `write` with this thread's counters of `threads`, once.
#[inline]
pub(super) fn with_local(threads: &Threads, mut write: impl FnMut(&mut LocalCounters)) {
    thread_local! {
        /// The counters of this thread, of each [`Threads`] that it has written.
        static LOCAL: RefCell<Vec<LocalCounters>> = const { RefCell::new(Vec::new()) };
    }
    let written = LOCAL.try_with(|all| {
        let Ok(mut all) = all.try_borrow_mut() else {
            return false;
        };
        match all.iter_mut().find(|local| local.of == threads.id) {
            Some(local) => write(local),
            None => write(add_local(threads, &mut all)),
        }
        true
    });
    if written != Ok(true) {
        // The thread is ending, and has dropped its counters. These are summed up once it has left them.
        write(&mut LocalCounters::new(threads));
    }
}

#[cold]
fn add_local<'a>(threads: &Threads, all: &'a mut Vec<LocalCounters>) -> &'a mut LocalCounters {
    // Those that nothing will read any more.
    all.retain(|local| Arc::strong_count(&local.counters) > 1);
    let index = all.len();
    all.push(LocalCounters::new(threads));
    &mut all[index]
}

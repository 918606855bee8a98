//! The counters of all threads.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use super::counters::{Counters, Totals};
use crate::sync::lock;

/// The counters of all threads, and the names of all policies.
#[derive(Debug)]
pub(super) struct Threads {
    /// Identifies it in the threads' lists.
    pub(super) id: u64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Those that are written, and those that a thread has left since the last look at them.
    counters: Vec<Arc<Counters>>,
    /// The sums of those that were left, with the names of all policies.
    left: Totals,
    /// The place of each policy in them, by its name.
    slots: HashMap<Arc<str>, usize>,
}

impl Default for Threads {
    fn default() -> Self {
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            state: Mutex::default(),
        }
    }
}

impl Threads {
    /// The sums of all counters.
    pub(super) fn totals(&self) -> Totals {
        let mut state = lock(&self.state);
        state.collect_left();
        let mut totals = state.left.clone();
        for counters in &state.counters {
            totals.add(counters);
        }
        totals
    }

    /// The slot of a policy's name, which is added if it is new.
    pub(super) fn slot(&self, name: impl Into<Arc<str>> + AsRef<str>) -> usize {
        let state = &mut *lock(&self.state);
        if let Some(slot) = state.slots.get(name.as_ref()) {
            return *slot;
        }
        let (name, slot) = (name.into(), state.left.policies().len());
        state.slots.insert(name.clone(), slot);
        state.left.push(name);
        slot
    }

    /// Counters for one thread, with a slot for each policy, and the policies' names.
    pub(super) fn new_counters(&self) -> (Arc<Counters>, Vec<Arc<str>>) {
        let mut state = lock(&self.state);
        state.collect_left();
        let policies = state.left.policies().iter();
        let names: Vec<_> = policies.map(|policy| policy.name().clone()).collect();
        let counters = Arc::new(Counters::new(names.len()));
        state.counters.push(counters.clone());
        (counters, names)
    }

    /// The counters that are not summed up for good.
    #[cfg(test)]
    pub(super) fn counters(&self) -> Vec<std::sync::Weak<Counters>> {
        lock(&self.state)
            .counters
            .iter()
            .map(Arc::downgrade)
            .collect()
    }
}

impl State {
    /// Sums up the counters that no thread writes any more.
    fn collect_left(&mut self) {
        let left = &mut self.left;
        self.counters
            .retain_mut(|counters| match Arc::get_mut(counters) {
                // Having the only reference, this thread sees all that was written.
                Some(counters) => {
                    left.add(counters);
                    false
                }
                None => true,
            });
    }
}

//! Charging in the store what was charged in process while it was at fault.

use std::{
    collections::HashMap,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use super::Inner;
use crate::{
    decision::Counted,
    key::Key,
    quota::Quota,
    store::{Ask, Line, Manner, Reply, Store, Units},
    strategy::Receipt,
    tier::Tier,
};

/// Keys that are remembered at most. What is charged under others stays in process.
const MOST: usize = 10_000;

/// How many are written back on each answer of the store: nobody is held up by all of them.
const AT_ONCE: usize = 64;

/// Keys under which something was charged in process, and not yet in the store.
#[derive(Debug, Default)]
pub(super) struct Owed {
    /// Read by each decision.
    any: AtomicBool,
    keys: Mutex<HashMap<(u32, Key, Quota), Debt>>,
}

/// Where something was charged, and where it is to be.
#[derive(Debug)]
struct Debt {
    share: Tier,
    whole: Option<Tier>,
}

impl Owed {
    /// Notes that `item` is counted by a share.
    pub(super) fn note(&self, item: &Counted, share: &Tier) {
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (item.policy, item.key, share.quota);
        if keys.len() < MOST || keys.contains_key(&key) {
            let (share, whole) = (share.clone(), item.tier.clone());
            keys.insert(key, Debt { share, whole });
            self.any.store(true, Ordering::Relaxed);
        }
    }

    fn take(&self) -> Vec<((u32, Key, Quota), Debt)> {
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        let some: Vec<_> = keys.keys().take(AT_ONCE).copied().collect();
        let taken = some
            .into_iter()
            .filter_map(|key| keys.remove_entry(&key))
            .collect();
        self.any.store(!keys.is_empty(), Ordering::Relaxed);
        taken
    }
}

impl Inner {
    /// The store answers: charges there some of what counts now in process, where it is forgotten before it is sent. So it is
    /// charged once, or not at all.
    #[inline]
    pub(super) fn write_back(&self) {
        if self.owed.any.load(Ordering::Relaxed) {
            self.write_some_back();
        }
    }

    #[cold]
    fn write_some_back(&self) {
        let Some(in_process) = &self.in_process else {
            return;
        };
        for ((policy, key, _), Debt { share, whole }) in self.owed.take() {
            let line = |account, units| Line {
                account,
                key,
                units: Units::new(units),
                receipt: Receipt::NONE,
                by: key,
                manner: Manner::Charge,
            };
            let reset = in_process.ask(Ask::Reset, &[line(&share.account, 1)]);
            let Reply::Now(Ok(answer)) = reset else {
                continue;
            };
            let account = &share.account;
            let stood = answer.lines.first();
            let left =
                stood.map(|line| account.outlook(&line.seen, answer.at, Units::ONE).remaining);
            let used = left.map_or(0, |left| account.rule().capacity().saturating_sub(left));
            if used > 0 {
                let own = &self.bound(policy).account;
                let account = whole.as_ref().map_or(own, |tier| &tier.account);
                self.store.tell(Ask::Force, &[line(account, used)]);
            }
        }
    }
}

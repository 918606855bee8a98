//! This process's shares: counted in process while the store fails, and charged to the store afterwards.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use smallvec::SmallVec;

use super::Inner;
use crate::{
    error::InvalidValue,
    key::Key,
    store::{
        Account, Answer, Ask, CallersFuture, Line, LineAnswer, Manner, Reply, Store, Units,
        memory::MemoryStore,
    },
    strategy::Rule,
};

/// Keys that await their write-back at most. What is charged under others stays in process.
const MAX_UNWRITTEN_KEYS: usize = 10_000;

/// How many are written back on each answer of the store, so that none is delayed by all of them.
const WRITTEN_AT_ONCE: usize = 64;

/// Counts shares in process, through all outages, and notes what the store has not been charged for yet.
#[derive(Debug, Default)]
pub(super) struct Shares {
    counts: MemoryStore,
    /// Whether there are any unwritten charges. Read by each decision.
    any: AtomicBool,
    unwritten: Mutex<Unwritten>,
}

/// The context of a share's account that is written back: where it is counted in process, and where in the store.
struct WrittenBack {
    local: Account,
    whole: Account,
}

/// Charges in process that the store has not been charged for, by the share's account and key.
#[derive(Debug, Default)]
struct Unwritten {
    by_key: HashMap<(u64, Key), Charged>,
    /// Charges that were not noted, since there were too many keys.
    dropped: u64,
    /// Whether some were dropped since there were none to write back.
    is_dropping: bool,
}

#[derive(Debug)]
struct Charged {
    share: Account,
    units: u64,
}

impl Shares {
    /// Opens a share. With the account of the `whole` quota, what it counts is charged there afterwards; but not bans, and
    /// not permits, which are given back in process.
    pub(super) fn open_share(
        &self,
        policy: &str,
        rule: Arc<dyn Rule>,
        whole: Option<&Account>,
    ) -> Result<Account, InvalidValue> {
        let local = self.counts.open(policy, rule.clone())?;
        match whole.filter(|_| rule.life().is_none() && !rule.counts_refusals()) {
            None => Ok(local),
            Some(whole) => {
                let whole = whole.clone();
                Ok(Account::new(policy, rule, WrittenBack { local, whole }))
            }
        }
    }

    /// Charges that were dropped instead of noted, so far.
    pub(super) fn dropped(&self) -> u64 {
        self.unwritten().dropped
    }

    /// Notes what became of a line.
    fn note(&self, ask: Ask, line: &Line<'_>, answer: &Answer, answered: &LineAnswer) {
        match ask {
            Ask::Take(times) => {
                let refused = match line.manner {
                    Manner::ChargeDenied => u64::from(times).saturating_sub(answer.admitted),
                    _ => 0,
                };
                let denied = line.units.of(refused);
                self.add(line, answered.units.saturating_add(denied));
            }
            Ask::Force => self.add(line, answered.units),
            Ask::Refund => self.subtract(line, answered.units),
            Ask::Peek | Ask::Reset | Ask::Renew => {}
        }
    }

    fn add(&self, line: &Line<'_>, units: u64) {
        if units == 0 {
            return;
        }
        let mut unwritten = self.unwritten();
        let full = unwritten.by_key.len() >= MAX_UNWRITTEN_KEYS;
        let key = (line.account.number(), line.key);
        if full && !unwritten.by_key.contains_key(&key) {
            unwritten.dropped += 1;
            let begins = !std::mem::replace(&mut unwritten.is_dropping, true);
            drop(unwritten);
            if begins {
                tracing::warn!(
                    max_keys = MAX_UNWRITTEN_KEYS,
                    "write-backs are dropped: too many keys were charged in process while the store failed"
                );
            }
            return;
        }
        let charged = unwritten.by_key.entry(key).or_insert_with(|| Charged {
            share: line.account.clone(),
            units: 0,
        });
        charged.units = charged.units.saturating_add(units);
        self.any.store(true, Ordering::Relaxed);
    }

    fn subtract(&self, line: &Line<'_>, units: u64) {
        let mut unwritten = self.unwritten();
        let key = (line.account.number(), line.key);
        if let Some(charged) = unwritten.by_key.get_mut(&key) {
            charged.units = charged.units.saturating_sub(units);
        }
    }

    fn forget(&self, line: &Line<'_>) {
        let key = (line.account.number(), line.key);
        let forgotten = self.unwritten().by_key.remove(&key);
        drop(forgotten);
    }

    /// Takes some of what is to be written back.
    fn take_some(&self) -> Vec<(Key, Charged)> {
        let mut unwritten = self.unwritten();
        let keys = unwritten.by_key.keys().take(WRITTEN_AT_ONCE);
        let some: Vec<_> = keys.copied().collect();
        let taken = some.into_iter().filter_map(|key| {
            let charged = unwritten.by_key.remove(&key)?;
            Some((key.1, charged))
        });
        let taken = taken.collect();
        let any = !unwritten.by_key.is_empty();
        unwritten.is_dropping &= any;
        self.any.store(any, Ordering::Relaxed);
        taken
    }

    /// How many units count now under a key.
    fn used(&self, local: &Account, key: Key) -> u64 {
        let Reply::Now(Ok(answer)) = self.counts.ask(Ask::Peek, &[Line::plain(local, key)]) else {
            return 0;
        };
        let left = answer.lines.first();
        let left = left.map(|line| local.outlook(&line.seen, answer.at, Units::ONE).remaining);
        left.map_or(0, |left| local.rule().capacity().saturating_sub(left))
    }

    fn unwritten(&self) -> MutexGuard<'_, Unwritten> {
        self.unwritten
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whatever is done to a share is done here, so that nothing is charged and not noted.
impl Store for Shares {
    fn open(&self, policy: &str, rule: Arc<dyn Rule>) -> Result<Account, InvalidValue> {
        self.open_share(policy, rule, None)
    }

    fn ask(&self, ask: Ask, lines: &[Line<'_>]) -> Reply {
        let written_back = |line: &&Line<'_>| line.account.context::<WrittenBack>().is_some();
        if ask == Ask::Reset {
            // First, so that what is charged meanwhile is forgotten with the rest, or written back, and not more than that.
            lines
                .iter()
                .filter(written_back)
                .for_each(|line| self.forget(line));
        }
        let local = lines.iter().map(|line| Line {
            account: match line.account.context::<WrittenBack>() {
                Some(share) => &share.local,
                None => line.account,
            },
            ..*line
        });
        let local: SmallVec<[Line<'_>; 4]> = local.collect();
        let reply = self.counts.ask(ask, &local);
        if let Reply::Now(Ok(answer)) = &reply {
            let lines = lines.iter().zip(&answer.lines);
            let lines = lines.filter(|(line, _)| written_back(line));
            lines.for_each(|(line, answered)| self.note(ask, line, answer, answered));
        }
        reply
    }

    fn callers(&self, account: &Account, key: &Key) -> CallersFuture {
        let share = account.context::<WrittenBack>();
        let local = share.map_or(account, |share| &share.local);
        self.counts.callers(local, key)
    }

    fn tell(&self, ask: Ask, lines: &[Line<'_>]) {
        // It is done at once.
        drop(self.ask(ask, lines));
    }
}

impl Inner {
    /// The store answers: charges there some of what was charged in process. Each charge is sent once, so it is charged once
    /// or not at all.
    #[inline]
    pub(super) fn write_back(&self) {
        if let Some(shares) = &self.shares
            && shares.any.load(Ordering::Relaxed)
        {
            self.write_some_back(shares);
        }
    }

    #[cold]
    fn write_some_back(&self, shares: &Shares) {
        for (key, charged) in shares.take_some() {
            let Some(WrittenBack { local, whole }) = charged.share.context() else {
                continue;
            };
            // What time has given back since is not charged.
            let units = charged.units.min(shares.used(local, key));
            if units > 0 {
                let line = Line {
                    units: Units::new(units),
                    ..Line::plain(whole, key)
                };
                self.store.tell(Ask::Force, &[line]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        quota::Quota,
        strategy::{Concurrency, FixedWindow, Receipt, Strategy},
    };

    fn share(shares: &Shares, strategy: &dyn Strategy, quota: Quota) -> Account {
        let rule = strategy.bind(&quota).expect("a rule");
        let whole = Account::new("p", rule.clone(), ());
        let account = shares.open_share("p", rule, Some(&whole));
        account.expect("a share")
    }

    fn unwritten(shares: &Shares) -> Vec<u64> {
        let unwritten = shares.unwritten();
        let charged = unwritten.by_key.values();
        charged.map(|charged| charged.units).collect()
    }

    #[test]
    fn what_is_charged_is_noted_and_what_is_refunded_or_reset_is_not() {
        let (shares, key) = (Shares::default(), Key::global());
        let account = share(&shares, &FixedWindow, Quota::requests(9).per_month());
        let line = |units, receipt| Line {
            units: Units::new(units),
            receipt,
            ..Line::plain(&account, key)
        };
        for (ask, units, noted) in [
            (Ask::Peek, 1, vec![]),
            (Ask::Reset, 1, vec![]),
            (Ask::Take(2), 2, vec![4]),
            // There is room for five more.
            (Ask::Take(9), 2, vec![8]),
            (Ask::Take(1), 2, vec![8]),
            (Ask::Force, 3, vec![11]),
            (Ask::Peek, 1, vec![11]),
            (Ask::Reset, 1, vec![]),
            (Ask::Take(1), 5, vec![5]),
        ] {
            shares.tell(ask, &[line(units, Receipt::NONE)]);
            assert_eq!(unwritten(&shares), noted, "{ask:?}");
        }
        let Reply::Now(Ok(answer)) = shares.ask(Ask::Take(1), &[line(3, Receipt::NONE)]) else {
            panic!("it is answered at once");
        };
        let receipt = Receipt {
            at: answer.at,
            left: 3,
            mark: account.rule().mark(&answer.lines[0].seen, answer.at),
        };
        shares.tell(Ask::Refund, &[line(2, receipt)]);
        assert_eq!(unwritten(&shares), [6]);
        assert_eq!(shares.take_some().len(), 1);
        assert!(unwritten(&shares).is_empty() && !shares.any.load(Ordering::Relaxed));
        // It counts in process for as long as it would.
        let context: &WrittenBack = account.context().expect("one that is written back");
        assert_eq!(shares.used(&context.local, key), 6);
    }

    #[test]
    fn permits_are_counted_in_process_alone() {
        let shares = Shares::default();
        let account = share(&shares, &Concurrency::new(), Quota::concurrent(9));
        shares.tell(Ask::Take(1), &[Line::plain(&account, Key::global())]);
        assert!(unwritten(&shares).is_empty());
    }
}

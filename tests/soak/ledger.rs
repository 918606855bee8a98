//! What must hold of an epoch that is over.

use std::{sync::atomic::Ordering::Relaxed, time::Duration};

use crate::{
    DEADLINE,
    interval::Epoch,
    limiters::{PLACES, QUOTA, SHARE},
};

/// What a request may take past its deadline, on a machine that has nothing else to do.
const SLACK: Duration = Duration::from_millis(50);
/// A machine that wakes tasks so late may make calls late, too.
const BUSY: Duration = Duration::from_millis(60);

/// What the machine adds to any wait: a request is woken a few times, in its own task, in its worker's and in its connection's.
pub(crate) fn slack(lag: Duration) -> Duration {
    SLACK + 4 * lag
}

/// Whether the machine had time enough that no call can have been late without it.
pub(crate) fn had_time(epoch: &Epoch) -> bool {
    epoch.lag() < BUSY
}

/// What the store says of an epoch that is over.
#[derive(Debug)]
pub(crate) struct Said {
    /// How often it may have forgotten what it counted.
    pub(crate) forgot: u64,
    /// What is used of the shared key, by each policy.
    pub(crate) used: Option<[u64; 2]>,
    /// What is charged at once, or afterwards.
    pub(crate) owed: Option<u64>,
    /// The most permits that were held at once.
    pub(crate) flying: u64,
}

/// What must hold, whatever happened.
pub(crate) fn whatever_happened(epoch: &Epoch, said: &Said, wrong: &mut Vec<String>) {
    let mut must = |holds: bool, what: String| {
        if !holds {
            wrong.push(format!("{}: {what}", epoch.key));
        }
    };
    let (forgot, slowest) = (said.forgot, epoch.slowest());
    must(
        slowest <= DEADLINE + slack(epoch.lag()),
        format!(
            "an answer after {slowest:?}, where tasks were {:?} late",
            epoch.lag()
        ),
    );
    let by_store = epoch.sum(|counts| &counts.shared_by_store);
    must(
        by_store <= QUOTA * (1 + forgot),
        format!("the store admitted {by_store} of {QUOTA}, having forgotten {forgot} times"),
    );
    for (process, counts) in epoch.counts.iter().enumerate() {
        let admitted = counts.shared_in_process.load(Relaxed);
        must(
            admitted <= SHARE,
            format!("process {process} admitted {admitted} by itself, of {SHARE}"),
        );
    }
    must(
        said.flying <= PLACES * (1 + forgot),
        format!("{} in flight at once, of {PLACES}", said.flying),
    );
    if let Some([narrow, wide]) = said.used {
        must(
            narrow == wide.min(QUOTA) && wide <= QUOTA,
            format!("charged under one policy alone: {narrow} and {wide}"),
        );
        let faults = epoch.sum(|counts| &counts.shared_faults);
        must(
            forgot > 0 || (by_store <= wide && wide <= by_store + faults),
            format!(
                "the store admitted {by_store}, {wide} are charged, and {faults} had no answer"
            ),
        );
    }
    if let Some(owed) = said.owed {
        let [at_once, afterwards, lost] = debts(epoch);
        must(
            (forgot > 0 || at_once <= owed) && owed <= at_once + afterwards + lost,
            format!(
                "{owed} are charged, of {at_once} at once, {afterwards} afterwards, and {lost} without an answer"
            ),
        );
    }
}

/// What was charged in the store at once, in its place, and without a word of it.
pub(crate) fn debts(epoch: &Epoch) -> [u64; 3] {
    let at_once = epoch.sum(|counts| &counts.debt_by_store);
    let afterwards = epoch.sum(|counts| &counts.debt_in_process);
    [at_once, afterwards, epoch.sum(|counts| &counts.debt_sent)]
}

/// What must hold where nothing happened.
pub(crate) fn nothing_happened(epoch: &Epoch, said: &Said, wrong: &mut Vec<String>) {
    whatever_happened(epoch, said, wrong);
    if !had_time(epoch) {
        return;
    }
    let faults = epoch.sum(|counts| &counts.in_process);
    let admitted = epoch.sum(|counts| &counts.shared_by_store);
    let due = epoch.sum(|counts| &counts.shared).min(QUOTA);
    let [at_once, afterwards, _] = debts(epoch);
    if faults + afterwards > 0 || admitted != due || said.used.is_none() {
        wrong.push(format!(
            "{}: {faults} faults and {afterwards} debts while there were none, {admitted} admitted of {due}, {:?} charged",
            epoch.key, said.used
        ));
    } else if said.owed != Some(at_once) {
        let owed = said.owed;
        wrong.push(format!("{}: {owed:?} charged of {at_once}", epoch.key));
    }
}

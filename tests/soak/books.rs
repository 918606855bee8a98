//! What must hold of an epoch that is over.

use std::{sync::atomic::Ordering::Relaxed, time::Duration};

use crate::{
    DEADLINE,
    epoch::Epoch,
    house::{QUOTA, SHARE},
};

/// What a request may take past its deadline, on a machine that has nothing else to do.
const SLACK: Duration = Duration::from_millis(50);
/// A machine that wakes tasks so late may make calls late, too.
const BUSY: Duration = Duration::from_millis(60);

/// What the machine adds to any wait: a request is woken a few times, in its own task, in its lane's and in its connection's.
pub(crate) fn slack(lag: Duration) -> Duration {
    SLACK + 4 * lag
}

/// Whether the machine had time enough that no call can have been late for want of it.
pub(crate) fn had_time(epoch: &Epoch) -> bool {
    epoch.lag() < BUSY
}

/// What must hold, whatever happened. `emptied` is how often the store forgot everything; `used` is what it says, by each
/// policy.
pub(crate) fn whatever_happened(
    epoch: &Epoch,
    emptied: u64,
    used: Option<[u64; 2]>,
    wrong: &mut Vec<String>,
) {
    let mut must = |holds: bool, what: String| {
        if !holds {
            wrong.push(format!("{}: {what}", epoch.key));
        }
    };
    let slowest = epoch.slowest();
    must(
        slowest <= DEADLINE + slack(epoch.lag()),
        format!(
            "an answer after {slowest:?}, where tasks were {:?} late",
            epoch.lag()
        ),
    );
    let by_store = epoch.sum(|counts| &counts.shared_by_store);
    must(
        by_store <= QUOTA * (1 + emptied),
        format!("the store admitted {by_store} of {QUOTA}, having been emptied {emptied} times"),
    );
    for (process, counts) in epoch.counts.iter().enumerate() {
        let admitted = counts.shared_in_process.load(Relaxed);
        must(
            admitted <= SHARE,
            format!("process {process} admitted {admitted} by itself, of {SHARE}"),
        );
    }
    if let Some([narrow, wide]) = used {
        must(
            narrow == wide.min(QUOTA) && wide <= QUOTA,
            format!("charged under one policy alone: {narrow} and {wide}"),
        );
        let faults = epoch.sum(|counts| &counts.shared_faults);
        must(
            emptied > 0 || (by_store <= wide && wide <= by_store + faults),
            format!(
                "the store admitted {by_store}, {wide} are charged, and {faults} had no answer"
            ),
        );
    }
}

/// What must hold where nothing happened.
pub(crate) fn nothing_happened(epoch: &Epoch, used: Option<[u64; 2]>, wrong: &mut Vec<String>) {
    whatever_happened(epoch, 0, used, wrong);
    if !had_time(epoch) {
        return;
    }
    let faults = epoch.sum(|counts| &counts.in_process);
    let admitted = epoch.sum(|counts| &counts.shared_by_store);
    let due = epoch.sum(|counts| &counts.shared).min(QUOTA);
    if faults > 0 || admitted != due || used.is_none() {
        wrong.push(format!(
            "{}: {faults} faults while there were none, {admitted} admitted of {due}, {used:?} charged",
            epoch.key
        ));
    }
}

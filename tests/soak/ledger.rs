//! What must hold of an epoch that is over.

use std::sync::atomic::Ordering::Relaxed;

use crate::{
    interval::Interval,
    limiters::{MAX_PERMITS, QUOTA, SHARE},
};
use tollgate_tests::prelude::*;

/// What the store holds of an interval that is over.
#[derive(Debug)]
pub(crate) struct StoreCounts {
    /// How often it may have lost its counts.
    pub(crate) losses: u64,
    /// What is used of the shared key, by each policy.
    pub(crate) used: [u64; 2],
    /// The most permits that were held at once.
    pub(crate) held: u64,
}

/// What must hold, whatever happened.
pub(crate) fn check_always(interval: &Interval, stored: &StoreCounts, wrong: &mut Vec<String>) {
    let mut must = |holds: bool, what: String| {
        if !holds {
            wrong.push(format!("{}: {what}", interval.key));
        }
    };
    let (losses, overdue) = (stored.losses, interval.overdue());
    must(
        overdue == Duration::ZERO,
        format!("an answer {overdue:?} later than its timeout and the machine's delays allow"),
    );
    let by_store = interval.sum(|counts| &counts.shared_by_store);
    must(
        by_store <= QUOTA * (1 + losses),
        format!("the store admitted {by_store} of {QUOTA}, having forgotten {losses} times"),
    );
    for (process, counts) in interval.counts.iter().enumerate() {
        let admitted = counts.shared_in_process.load(Relaxed);
        must(
            admitted <= SHARE,
            format!("process {process} admitted {admitted} by itself, of {SHARE}"),
        );
    }
    must(
        stored.held <= MAX_PERMITS * (1 + losses),
        format!("{} in flight at once, of {MAX_PERMITS}", stored.held),
    );
    let [narrow, wide] = stored.used;
    must(
        narrow == wide.min(QUOTA) && wide <= QUOTA,
        format!("charged under one policy alone: {narrow} and {wide}"),
    );
    let faults = interval.sum(|counts| &counts.shared_faults);
    must(
        losses > 0 || (by_store <= wide && wide <= by_store + faults),
        format!("the store admitted {by_store}, {wide} are charged, and {faults} had no answer"),
    );
}

/// What must hold where nothing happened. On a machine so busy that a call timed out, that is no more than always.
pub(crate) fn check_calm(interval: &Interval, stored: &StoreCounts, wrong: &mut Vec<String>) {
    check_always(interval, stored, wrong);
    if !is_exact(interval) {
        return;
    }
    let admitted = interval.sum(|counts| &counts.shared_by_store);
    let due = interval.sum(|counts| &counts.shared).min(QUOTA);
    if admitted != due {
        wrong.push(format!(
            "{}: {admitted} admitted of {due} while all calls were answered",
            interval.key
        ));
    }
}

/// Whether each call was answered, so that all is known to the unit.
pub(crate) fn is_exact(interval: &Interval) -> bool {
    interval.sum(|counts| &counts.in_process) == 0
}

//! What must hold of an epoch that is over.

use std::{sync::atomic::Ordering::Relaxed, time::Duration};

use crate::{
    TIMEOUT,
    interval::Interval,
    limiters::{MAX_PERMITS, QUOTA, SHARE},
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
pub(crate) fn had_time(interval: &Interval) -> bool {
    interval.lag() < BUSY
}

/// What the store holds of an interval that is over.
#[derive(Debug)]
pub(crate) struct StoreCounts {
    /// How often it may have lost its counts.
    pub(crate) losses: u64,
    /// What is used of the shared key, by each policy.
    pub(crate) used: Option<[u64; 2]>,
    /// What is charged at once, or afterwards.
    pub(crate) charged: Option<u64>,
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
    let (losses, slowest) = (stored.losses, interval.slowest());
    must(
        slowest <= TIMEOUT + slack(interval.lag()),
        format!(
            "an answer after {slowest:?}, where tasks were {:?} late",
            interval.lag()
        ),
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
    if let Some([narrow, wide]) = stored.used {
        must(
            narrow == wide.min(QUOTA) && wide <= QUOTA,
            format!("charged under one policy alone: {narrow} and {wide}"),
        );
        let faults = interval.sum(|counts| &counts.shared_faults);
        must(
            losses > 0 || (by_store <= wide && wide <= by_store + faults),
            format!(
                "the store admitted {by_store}, {wide} are charged, and {faults} had no answer"
            ),
        );
    }
    if let Some(charged) = stored.charged {
        let [at_once, afterwards, lost] = debts(interval);
        must(
            (losses > 0 || at_once <= charged) && charged <= at_once + afterwards + lost,
            format!(
                "{charged} are charged, of {at_once} at once, {afterwards} afterwards, and {lost} without an answer"
            ),
        );
    }
}

/// What was charged in the store at once, by the local fallback, and without a reply.
pub(crate) fn debts(interval: &Interval) -> [u64; 3] {
    let at_once = interval.sum(|counts| &counts.debt_by_store);
    let afterwards = interval.sum(|counts| &counts.debt_in_process);
    [
        at_once,
        afterwards,
        interval.sum(|counts| &counts.debt_sent),
    ]
}

/// What must hold where nothing happened.
pub(crate) fn check_calm(interval: &Interval, stored: &StoreCounts, wrong: &mut Vec<String>) {
    check_always(interval, stored, wrong);
    if !had_time(interval) {
        return;
    }
    let faults = interval.sum(|counts| &counts.in_process);
    let admitted = interval.sum(|counts| &counts.shared_by_store);
    let due = interval.sum(|counts| &counts.shared).min(QUOTA);
    let [at_once, afterwards, _] = debts(interval);
    if faults + afterwards > 0 || admitted != due || stored.used.is_none() {
        wrong.push(format!(
            "{}: {faults} faults and {afterwards} debts while there were none, {admitted} admitted of {due}, {:?} charged",
            interval.key, stored.used
        ));
    } else if stored.charged != Some(at_once) {
        let charged = stored.charged;
        wrong.push(format!(
            "{}: {charged:?} charged of {at_once}",
            interval.key
        ));
    }
}

//! The results of a soak.

use std::{collections::BTreeMap, fmt};

use crate::{
    interval::{Counts, Interval},
    limiters::MAX_PERMITS,
    sums::Sums,
};
use tollgate_tests::prelude::*;

/// How much memory a process may gain on a ground once it is warm, in kB.
const GAIN: u64 = 8 * 1024;

#[derive(Debug, Default)]
pub(crate) struct Report {
    /// All requests, by what their callers saw.
    pub(crate) sums: Sums,
    /// Those of the limiters with two policies whose callers were patient.
    pub(crate) admitted: u64,
    pub(crate) by_store: u64,
    pub(crate) in_process: u64,
    /// Stretches without a fault, and those of them in which a call timed out all the same.
    pub(crate) calm: u64,
    pub(crate) inexact: u64,
    pub(crate) faults: BTreeMap<&'static str, u64>,
    /// The slowest decision.
    pub(crate) slowest: Duration,
    /// The longest time from a store's return to the last request whose call of the store failed.
    pub(crate) recovery: Duration,
    /// On each ground in kB, once warm and at the end.
    pub(crate) memory: Vec<(&'static str, [u64; 2])>,
    /// Permits that were acquired, the most of them at once, and how long until all were free again at the end.
    pub(crate) permits: u64,
    pub(crate) held: u64,
    pub(crate) freed: Duration,
    pub(crate) wrong: Vec<String>,
}

impl Report {
    pub(crate) fn is_ok(&self) -> bool {
        self.wrong.is_empty()
    }

    /// Adds an epoch's sums.
    pub(crate) fn add(&mut self, interval: &Interval, held: u64) {
        let sum = |what: fn(&Counts) -> &AtomicU64| interval.sum(what);
        self.admitted += sum(|counts| &counts.admitted);
        self.by_store += sum(|counts| &counts.by_store);
        self.in_process += sum(|counts| &counts.in_process);
        self.slowest = self.slowest.max(interval.slowest());
        self.held = self.held.max(held);
    }

    /// What must hold of the whole.
    pub(crate) fn check(&mut self) {
        if self.permits == 0 {
            self.wrong.push("no permit was taken".into());
        }
        for (topology, [warm, end]) in &self.memory {
            // Zero where there was no time to become warm.
            if *warm > 0 && *end > warm + GAIN {
                self.wrong
                    .push(format!("memory grew from {warm} to {end} kB on {topology}"));
            }
        }
    }
}

/// What this process has in memory, in kB; zero if the system doesn't report it.
pub(crate) fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Sums {
            asked,
            admitted,
            rejected,
            failed,
            left,
        } = self.sums;
        writeln!(
            f,
            "requests        {asked}: {admitted} admitted, {rejected} rejected, {failed} failed, {left} left by their callers"
        )?;
        writeln!(
            f,
            "by two policies {} answered by the store, {} in process, {} of them admitted",
            self.by_store, self.in_process, self.admitted
        )?;
        writeln!(f, "faults          {}", self.faults.values().sum::<u64>())?;
        for (fault, times) in &self.faults {
            writeln!(f, "    {fault:<28} {times:>5}")?;
        }
        writeln!(
            f,
            "calm stretches  {}, counted to the unit ({} only bounded: calls timed out)",
            self.calm, self.inexact
        )?;
        writeln!(f, "longest answer  {:?}", self.slowest)?;
        writeln!(
            f,
            "full service    {:?} after a store's return at the latest",
            self.recovery
        )?;
        writeln!(
            f,
            "in flight       {} in all, up to {} at once where {MAX_PERMITS} may be; all free again {:?} after the end",
            self.permits, self.held, self.freed
        )?;
        for (topology, [warm, end]) in &self.memory {
            writeln!(
                f,
                "memory          {warm} kB once warm, {end} kB at the end, on {topology}"
            )?;
        }
        for wrong in &self.wrong {
            writeln!(f, "WRONG: {wrong}")?;
        }
        Ok(())
    }
}

//! What a soak saw.

use std::{collections::BTreeMap, fmt, fs, sync::atomic::AtomicU64, time::Duration};

use crate::{
    interval::{Counts, Epoch},
    ledger,
    limiters::PLACES,
};

/// How much memory a process may gain on a ground once it is warm, in kB.
const GAIN: u64 = 8 * 1024;

#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) requests: u64,
    /// Those whose callers left.
    pub(crate) left: u64,
    pub(crate) admitted: u64,
    pub(crate) by_store: u64,
    pub(crate) in_process: u64,
    /// Stretches without a fault, and those of them in which the machine had no time.
    pub(crate) calm: u64,
    pub(crate) busy: u64,
    pub(crate) faults: BTreeMap<&'static str, u64>,
    /// The longest answer, and how late tasks were woken at worst.
    pub(crate) slowest: Duration,
    pub(crate) lag: Duration,
    /// The longest time from a store's return to the last request that it did not answer.
    pub(crate) recovery: Duration,
    /// On each ground in kB, once warm and at the end.
    pub(crate) memory: Vec<(&'static str, [u64; 2])>,
    /// Permits that were taken, the most of them at once, and how long until all were free again at the end.
    pub(crate) places: u64,
    pub(crate) flying: u64,
    pub(crate) freed: Duration,
    /// Units charged in the store's place, and those of them that it was charged with afterwards.
    pub(crate) debts: u64,
    pub(crate) paid: u64,
    pub(crate) wrong: Vec<String>,
}

impl Report {
    pub(crate) fn is_well(&self) -> bool {
        self.wrong.is_empty()
    }

    /// Adds an epoch's sums.
    pub(crate) fn enter(&mut self, epoch: &Epoch, flying: u64) {
        let sum = |what: fn(&Counts) -> &AtomicU64| epoch.sum(what);
        self.admitted += sum(|counts| &counts.admitted);
        self.by_store += sum(|counts| &counts.by_store);
        self.in_process += sum(|counts| &counts.in_process);
        self.slowest = self.slowest.max(epoch.slowest());
        self.lag = self.lag.max(epoch.lag());
        self.flying = self.flying.max(flying);
    }

    /// Adds what was charged afterwards.
    pub(crate) fn enter_debts(&mut self, epoch: &Epoch, owed: Option<u64>) {
        let [at_once, afterwards, _] = ledger::debts(epoch);
        self.debts += afterwards;
        let paid = owed.map_or(0, |owed| owed.saturating_sub(at_once));
        self.paid += paid.min(afterwards);
    }

    /// What must hold of the whole.
    pub(crate) fn check(&mut self) {
        if self.places == 0 || self.debts > 1_000 && self.paid == 0 {
            let wrong = format!(
                "{} places taken, {} paid of {}",
                self.places, self.paid, self.debts
            );
            self.wrong.push(wrong);
        }

        for (ground, [warm, end]) in &self.memory {
            if *end > warm + GAIN {
                self.wrong
                    .push(format!("memory grew from {warm} to {end} kB on {ground}"));
            }
        }
    }
}

/// What this process has in memory, in kB; zero where the system doesn't say.
pub(crate) fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let refused = self.by_store + self.in_process - self.admitted;
        writeln!(
            f,
            "requests        {} ({} answered by the store, {} in process, {} left by their callers)",
            self.requests, self.by_store, self.in_process, self.left
        )?;
        writeln!(f, "admitted        {}, refused {refused}", self.admitted)?;
        writeln!(f, "faults          {}", self.faults.values().sum::<u64>())?;
        for (fault, times) in &self.faults {
            writeln!(f, "    {fault:<28} {times:>5}")?;
        }
        writeln!(
            f,
            "calm stretches  {}, counted to the unit ({} only bounded: the machine was busy)",
            self.calm, self.busy
        )?;
        writeln!(
            f,
            "longest answer  {:?}, where tasks were woken up to {:?} late",
            self.slowest, self.lag
        )?;
        writeln!(
            f,
            "full service    {:?} after a store's return at the latest",
            self.recovery
        )?;
        writeln!(
            f,
            "in flight       {} in all, up to {} at once where {PLACES} may be; all free again {:?} after the end",
            self.places, self.flying, self.freed
        )?;
        writeln!(
            f,
            "written back    {} of {} units that were charged in process",
            self.paid, self.debts
        )?;
        for (ground, [warm, end]) in &self.memory {
            writeln!(
                f,
                "memory          {warm} kB once warm, {end} kB at the end, on {ground}"
            )?;
        }
        for wrong in &self.wrong {
            writeln!(f, "WRONG: {wrong}")?;
        }
        Ok(())
    }
}

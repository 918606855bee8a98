//! Denials that still hold: a client who hammers is refused in process, without a word to the store.

use std::{
    fmt,
    hash::BuildHasher,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicI64, AtomicIsize, AtomicU64, Ordering},
    },
    time::Duration,
};

use hashbrown::DefaultHashBuilder;

use self::shard::{Denial, Shard};
use crate::{
    clock::{Clock, Timestamp},
    key::Key,
    store::{Account, Answer, Ask, LineAnswer, Manner, Source, Units},
    strategy::Retry,
};

mod shard;
#[cfg(test)]
mod tests;

/// Shards, each under a lock of its own.
const SHARDS: usize = 16;

/// What was refused to whom until when. Only the state of the policy that refused is kept: from it follows how long any cost
/// at least as large has to wait.
///
/// A denial ends by itself at its time. What may end it early is that somebody gives back, or resets. What this process does
/// of that ends its denials at once. What others do shows in the store's generation, which changes with it. So a denial is
/// believed for as long as the bound says, and longer if the generation was read within the bound and is still what it was
/// before the denial was asked for: one read for all of them.
pub(crate) struct Denials {
    bound: Duration,
    clock: Arc<dyn Clock>,
    hasher: DefaultHashBuilder,
    shards: [Part; SHARDS],
    /// In each shard.
    most: usize,
    len: AtomicIsize,
    generation: Generation,
}

/// Neighbouring locks on one cache line would slow each other down.
#[derive(Default)]
#[repr(align(128))]
struct Part {
    shard: Mutex<Shard>,
    /// How often something of it was ended early by this process.
    ended: AtomicU64,
}

#[derive(Default)]
struct Generation {
    /// Zero: not known.
    number: AtomicU64,
    /// When it was read, in microseconds on this process's clock.
    read: AtomicI64,
    /// When it was last asked for, whatever came of it.
    asked: AtomicI64,
    /// Whether it is being read.
    reading: AtomicBool,
}

/// One line of a question, as far as it matters here.
#[derive(Clone, Copy)]
pub(crate) struct Asked<'a> {
    pub(crate) account: &'a Account,
    pub(crate) key: &'a Key,
    pub(crate) units: Units,
    pub(crate) manner: Manner,
}

/// What was known when a question was asked. Its denial is noted with it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    generation: Option<u64>,
    /// How often something was ended in any of the lines' shards. It only grows: while the sum is the same, so is each.
    ended: u64,
}

impl Denials {
    /// At most some `most`, none of which outlives its early end by more than `bound`. A bound of zero: none at all.
    pub(crate) fn new(bound: Duration, most: usize, clock: Arc<dyn Clock>) -> Self {
        Self {
            bound,
            clock,
            hasher: DefaultHashBuilder::default(),
            shards: Default::default(),
            most: most.div_ceil(SHARDS),
            len: AtomicIsize::new(0),
            generation: Generation::default(),
        }
    }

    /// The refusal of a question of which a line is known to be refused.
    pub(crate) fn find<'a>(
        &self,
        ask: Ask,
        lines: impl Iterator<Item = Asked<'a>> + Clone,
    ) -> Option<Answer> {
        if self.len.load(Ordering::Relaxed) <= 0 || !self.concerns(ask, lines.clone()) {
            return None;
        }
        let now = self.clock.now();
        let (mut at, mut age, mut known) = (Timestamp::default(), Duration::MAX, false);
        let answers = lines.map(|line| {
            let Some(denial) = self.find_line(&line, now) else {
                return LineAnswer::UNKNOWN;
            };
            // Of several the latest speaks for the time: to the others it only adds.
            let since = now.since(denial.answered);
            if since < age {
                (at, age) = (denial.judged, since);
            }
            known = true;
            LineAnswer::of(0, denial.seen)
        });
        let lines = answers.collect();
        known.then_some(Answer {
            admitted: 0,
            at,
            age,
            later: 0,
            source: Source::Cache,
            lines,
        })
    }

    fn find_line(&self, line: &Asked<'_>, now: Timestamp) -> Option<Denial> {
        if line.units.is_zero() {
            return None;
        }
        let hash = self.hash(line);
        let mut shard = self.lock(hash);
        let denial = *shard.find(hash, line)?;
        // A clock that stepped back makes no denial longer.
        if now < denial.asked || denial.until <= now {
            self.count(-isize::from(shard.remove(hash, line)));
            return None;
        }
        drop(shard);
        (denial.units <= line.units && self.believes(&denial, now)).then_some(denial)
    }

    /// Whether nobody can have ended it early, but within the bound.
    fn believes(&self, denial: &Denial, now: Timestamp) -> bool {
        let read = Timestamp::from_micros(self.generation.read.load(Ordering::Acquire));
        now.since(denial.asked) < self.bound
            || self.generation() == denial.generation
                && denial.generation.is_some()
                && read <= now
                && now.since(read) < self.bound
    }

    /// What is known when a question is asked; `None` if its answer is nothing to be noted.
    pub(crate) fn mark<'a>(
        &self,
        ask: Ask,
        lines: impl Iterator<Item = Asked<'a>> + Clone,
    ) -> Option<Mark> {
        self.concerns(ask, lines.clone()).then(|| Mark {
            generation: self.generation(),
            ended: self.ended(lines),
        })
    }

    /// How often something was ended in the shards of these lines.
    fn ended<'a>(&self, lines: impl Iterator<Item = Asked<'a>>) -> u64 {
        lines.fold(0, |sum, line| {
            let part = self.part(self.hash(&line));
            sum.wrapping_add(part.ended.load(Ordering::Acquire))
        })
    }

    /// A refusal that counts has to be counted, and one of many requests at once may be refused in part.
    fn concerns<'a>(&self, ask: Ask, mut lines: impl Iterator<Item = Asked<'a>>) -> bool {
        let plain = |line: Asked<'_>| matches!(line.manner, Manner::Charge | Manner::Check);
        ask == Ask::Take(1) && !self.bound.is_zero() && lines.all(plain)
    }

    /// Notes a refusal of what was asked so long ago.
    pub(crate) fn note<'a>(
        &self,
        lines: impl Iterator<Item = Asked<'a>> + Clone,
        answer: &Answer,
        mark: &Mark,
        age: Duration,
    ) {
        let answered = self.clock.now();
        let asked = answered - age;
        for (line, answered_line) in lines.clone().zip(&answer.lines) {
            // A place of an in-flight limit may be free at any moment.
            if line.units.is_zero() || line.account.rule().life().is_some() {
                continue;
            }
            let outlook = line
                .account
                .outlook(&answered_line.seen, answer.at, line.units);
            let Retry::After(wait) = outlook.retry else {
                continue;
            };
            let hash = self.hash(&line);
            let denial = Denial {
                hash,
                account: line.account.number(),
                key: *line.key,
                units: line.units,
                seen: answered_line.seen,
                judged: answer.at,
                asked,
                answered,
                until: asked + wait,
                generation: mark.generation,
            };
            let mut shard = self.lock(hash);
            // Else something was given back meanwhile, maybe after it was judged.
            if self.ended(lines.clone()) == mark.ended {
                self.count(shard.add(denial, &line, answered, self.most));
            }
        }
    }

    /// Ends what is known of lines of which something is given back, or that are reset.
    pub(crate) fn end<'a>(&self, lines: impl Iterator<Item = Asked<'a>>) {
        for line in lines {
            let hash = self.hash(&line);
            let mut shard = self.lock(hash);
            self.part(hash).ended.fetch_add(1, Ordering::AcqRel);
            self.count(-isize::from(shard.remove(hash, &line)));
        }
    }

    /// Whether the store's generation is to be read now, and when now is.
    pub(crate) fn should_read(&self) -> Option<Timestamp> {
        if self.len.load(Ordering::Relaxed) <= 0 {
            return None;
        }
        let now = self.clock.now();
        let Generation { asked, reading, .. } = &self.generation;
        let last = Timestamp::from_micros(asked.load(Ordering::Acquire));
        // Early enough for none to be doubted meanwhile.
        let due = now < last || now.since(last) >= self.bound / 2;
        if !due || reading.swap(true, Ordering::AcqRel) {
            return None;
        }
        asked.store(now.as_micros(), Ordering::Release);
        Some(now)
    }

    /// Notes the generation that was asked for at `read`.
    pub(crate) fn note_generation(&self, number: u64, read: Timestamp) {
        // Those who see one of them without the other believe too little.
        self.generation.read.store(i64::MIN, Ordering::Release);
        self.generation
            .number
            .store(number.max(1), Ordering::Release);
        self.generation
            .read
            .store(read.as_micros(), Ordering::Release);
    }

    /// Whoever was to read it is done.
    pub(crate) fn end_reading(&self) {
        self.generation.reading.store(false, Ordering::Release);
    }

    fn generation(&self) -> Option<u64> {
        let number = self.generation.number.load(Ordering::Acquire);
        (number > 0).then_some(number)
    }

    fn hash(&self, line: &Asked<'_>) -> u64 {
        self.hasher.hash_one((line.account.number(), line.key))
    }

    fn part(&self, hash: u64) -> &Part {
        &self.shards[(hash >> 40) as usize % SHARDS]
    }

    fn lock(&self, hash: u64) -> MutexGuard<'_, Shard> {
        let shard = &self.part(hash).shard;
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, more: isize) {
        if more != 0 {
            self.len.fetch_add(more, Ordering::Relaxed);
        }
    }
}

impl fmt::Debug for Denials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Denials")
            .field("bound", &self.bound)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

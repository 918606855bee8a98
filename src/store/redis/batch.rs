//! Many questions in one script call.

use std::{
    hash::{BuildHasher, Hash, Hasher},
    mem,
    sync::Weak,
};

use hashbrown::{DefaultHashBuilder, HashTable};
use redis::Cmd;
use smallvec::SmallVec;
use tokio::time::Instant;

use super::{
    lanes::Lanes,
    names::{Name, Names},
    packed::Packed,
    question::{OwnLine, Question},
    script::Script,
};
use crate::{
    clock::Timestamp,
    error::StoreError,
    store::{Account, Ask, Manner},
    strategy::{self, Rule},
};

/// Keys that one call judges at most: 512 blocked a server for 1.8 ms.
pub(super) const MOST_KEYS: usize = 128;

/// Equal requests that one question stands for at most: ten thousand of such questions are a number still.
const MOST_TIMES: u64 = 1 << 40;

/// The same, of questions that are signed for the sake of a shadow alone.
const MOST_SHADOWED: u64 = 10_000;

/// What a Redis store knows of an account.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) names: Names,
    /// Where what it was asked about may be given back.
    pub(super) lanes: Weak<Lanes>,
    /// The half's number in the script.
    half: usize,
    /// How many numbers of a state are answered.
    pub(super) words: usize,
    params: Vec<i64>,
    /// All of it, as it is sent, where it's the same at all times.
    packed: Option<Packed>,
}

/// Questions on one trip: like ones in segments, equal ones merged.
#[derive(Debug, Default)]
pub(super) struct Batch {
    segments: Vec<Segment>,
    /// Segments of trips that are over: their memory is used again.
    spare: Vec<Segment>,
    keys: usize,
    /// Nothing but what is equal goes with what it holds.
    alone: bool,
    /// No one's time is up before.
    soonest: Option<Instant>,
    hasher: DefaultHashBuilder,
}

/// Questions of one kind, under the same policies at the same cost.
#[derive(Debug)]
struct Segment {
    ask: Ask,
    accounts: SmallVec<[Account; 2]>,
    units: SmallVec<[(u64, Manner); 2]>,
    entries: Vec<Entry>,
    /// Which entry is of which keys.
    places: HashTable<u32>,
}

/// Equal questions, in order of arrival.
#[derive(Debug, Default)]
pub(super) struct Entry {
    pub(super) questions: SmallVec<[Question; 1]>,
    hash: u64,
}

impl Batch {
    /// Takes a question in, or hands it back if the batch is full.
    pub(super) fn push(&mut self, question: Question) -> Result<(), Box<Question>> {
        let fits = self.keys + question.lines.len() <= MOST_KEYS && !self.alone && !question.alone;
        let fits = fits || self.keys == 0;
        let merges = matches!(question.ask, Ask::Take(_) | Ask::Peek);
        let segments = &mut self.segments;
        let segment = segments
            .iter_mut()
            .position(|segment| segment.takes(&question));
        let mut hasher = self.hasher.build_hasher();
        question
            .lines
            .iter()
            .for_each(|line| line.key.hash(&mut hasher));
        let hash = hasher.finish();
        if merges
            && let Some(segment) = segment
            && let Some(entry) = segments[segment].equal(hash, &question)
        {
            let soonest = self.soonest.unwrap_or(question.deadline);
            self.soonest = Some(soonest.min(question.deadline));
            entry.questions.push(question);
            return Ok(());
        }
        if !fits {
            return Err(Box::new(question));
        }
        self.keys += question.lines.len();
        self.alone = question.alone;
        let segment = segment.unwrap_or_else(|| {
            let mut segment = self.spare.pop().unwrap_or_default();
            segment.begin(&question);
            segments.push(segment);
            segments.len() - 1
        });
        let soonest = self.soonest.unwrap_or(question.deadline);
        self.soonest = Some(soonest.min(question.deadline));
        segments[segment].add(hash, question);
        Ok(())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.keys == 0
    }

    /// Forgets its questions, and keeps its memory for the next ones.
    pub(super) fn clear(&mut self) {
        for mut segment in self.segments.drain(..) {
            segment.entries.clear();
            self.spare.push(segment);
        }
        self.keys = 0;
        self.alone = false;
        self.soonest = None;
    }

    /// The next instant at which somebody's time is up; once nobody waits, the last at which somebody's was, if that is
    /// still to come.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.soonest.or_else(|| {
            let last = self.questions().map(|question| question.deadline).max();
            last.filter(|last| *last > Instant::now())
        })
    }

    /// Tells those whose time is up. Their questions stay: they have been sent.
    pub(super) fn time_out(&mut self, now: Instant) {
        for entry in self.entries() {
            for question in &mut entry.questions {
                if question.deadline <= now
                    && let Some(waiter) = question.waiter.take()
                {
                    drop(waiter.send(Err(StoreError::Timeout)));
                }
            }
        }
        let waiting = self.questions().filter(|q| q.waiter.is_some());
        let soonest = waiting.map(|question| question.deadline).min();
        self.soonest = soonest;
    }

    fn questions(&self) -> impl Iterator<Item = &Question> {
        let entries = self.segments.iter().flat_map(|segment| &segment.entries);
        entries.flat_map(|entry| &entry.questions)
    }

    /// The entries, in the order in which they are answered.
    pub(super) fn entries(&mut self) -> impl Iterator<Item = &mut Entry> {
        self.segments
            .iter_mut()
            .flat_map(|segment| &mut segment.entries)
    }

    /// Whether a refusal that is remembered somewhere may be over with it.
    pub(super) fn lifts(&self) -> bool {
        self.segments.iter().any(Segment::lifts)
    }

    /// Takes all questions out.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Question> {
        self.entries().flat_map(|entry| entry.questions.drain(..))
    }

    /// The call: `EVALSHA`, or `EVAL` with the text if the server doesn't have the script. Calls are written in full and in
    /// one argument as far as they can be: each argument costs the server about as much as reading a key.
    pub(super) fn call(
        &self,
        script: &Script,
        whole: bool,
        now: Timestamp,
        generation: Option<&str>,
    ) -> Cmd {
        let generation = generation.filter(|_| self.lifts());
        let mut cmd = Cmd::with_capacity(4 + self.keys, 128 + 40 * self.keys);
        match whole {
            true => cmd.arg("EVAL").arg(&script.text),
            false => cmd.arg("EVALSHA").arg(&script.sha),
        };
        cmd.arg(self.keys + usize::from(generation.is_some()));
        let mut name = Name::default();
        let mut policies = Policies::new();
        for segment in &self.segments {
            for account in &segment.accounts {
                if policies
                    .iter()
                    .all(|policy| policy.number() != account.number())
                {
                    policies.push(account);
                }
            }
            for entry in &segment.entries {
                for line in entry.lines() {
                    if let Some(known) = line.account.context::<Known>() {
                        cmd.arg(known.names.write(&line.key, &mut name));
                    }
                }
            }
        }
        if let Some(generation) = generation {
            cmd.arg(generation);
        }
        let mut plan = Packed::with_capacity(128);
        plan.uint(policies.len() as u64);
        for policy in &policies {
            if let Some(known) = policy.context::<Known>() {
                known.write(policy.rule(), now, &mut plan);
            }
        }
        for segment in &self.segments {
            segment.write(&policies, &mut plan);
        }
        cmd.arg(plan.as_bytes());
        cmd
    }
}

/// The policies of a batch, as the driver counts them.
type Policies<'a> = SmallVec<[&'a Account; 4]>;

impl Known {
    pub(super) fn new(
        names: Names,
        half: usize,
        rule: &dyn Rule,
        script: &strategy::Script,
        lanes: Weak<Lanes>,
    ) -> Self {
        let mut known = Self {
            names,
            lanes,
            half,
            words: script.seen.clamp(1, 3),
            params: script.params.clone(),
            packed: None,
        };
        if rule.params_at(Timestamp::default()).is_empty() {
            let mut packed = Packed::default();
            known.write(rule, Timestamp::default(), &mut packed);
            known.packed = Some(packed);
        }
        known
    }

    /// Writes what the driver has to know of a policy.
    fn write(&self, rule: &dyn Rule, now: Timestamp, plan: &mut Packed) {
        if let Some(packed) = &self.packed {
            plan.append(packed);
            return;
        }
        let more = rule.params_at(now);
        plan.list(4);
        plan.uint(self.half as u64);
        plan.uint(rule.signs().into());
        plan.uint(self.words as u64);
        plan.list(self.params.len() + more.len());
        for param in self.params.iter().chain(&more) {
            plan.int(*param);
        }
    }
}

impl Default for Segment {
    fn default() -> Self {
        Self {
            ask: Ask::Peek,
            accounts: SmallVec::new(),
            units: SmallVec::new(),
            entries: Vec::with_capacity(MOST_KEYS),
            places: HashTable::with_capacity(MOST_KEYS),
        }
    }
}

impl Segment {
    /// Makes it one for questions such as this.
    fn begin(&mut self, question: &Question) {
        let lines = question.lines.iter();
        self.ask = question.ask;
        self.accounts.clear();
        self.units.clear();
        self.places.clear();
        self.accounts
            .extend(lines.clone().map(|line| line.account.clone()));
        self.units
            .extend(lines.map(|line| (line.units, line.manner)));
    }

    /// The entry of equal questions.
    fn equal(&mut self, hash: u64, question: &Question) -> Option<&mut Entry> {
        let entries = &mut self.entries;
        let equal = |place: &u32| {
            let entry = &entries[*place as usize];
            let mut lines = entry.lines().iter().zip(&question.lines);
            entry.hash == hash && lines.all(|(line, other)| line.key == other.key)
        };
        let place = *self.places.find(hash, equal)?;
        entries.get_mut(place as usize)
    }

    fn add(&mut self, hash: u64, question: Question) {
        let entries = &self.entries;
        let rehash = |place: &u32| entries[*place as usize].hash;
        self.places
            .insert_unique(hash, entries.len() as u32, rehash);
        self.entries.push(Entry {
            questions: SmallVec::from_buf([question]),
            hash,
        });
    }

    fn takes(&self, question: &Question) -> bool {
        mem::discriminant(&self.ask) == mem::discriminant(&question.ask)
            && self.accounts.len() == question.lines.len()
            && question
                .lines
                .iter()
                .zip(self.accounts.iter().zip(&self.units))
                .all(|(line, (account, units))| {
                    line.account.number() == account.number() && (line.units, line.manner) == *units
                })
    }
}

impl Segment {
    /// Whether a refusal that is remembered somewhere may be over with it. Those of in-flight limits are not remembered.
    fn lifts(&self) -> bool {
        let remembered = |account: &Account| account.life().is_none();
        self.ask.lifts() && self.accounts.iter().any(remembered)
    }

    fn write(&self, policies: &Policies<'_>, plan: &mut Packed) {
        let listed = self.entries.iter().any(|entry| entry.times() != 1);
        let gives = matches!(self.ask, Ask::Give | Ask::Withdraw | Ask::Renew);
        let own = |entry: &Entry| {
            let receipts = if gives { 3 * self.accounts.len() } else { 0 };
            usize::from(listed) + receipts + entry.signatures().count()
        };
        let own: usize = self.entries.iter().map(own).sum();
        plan.list(3 + 3 * self.accounts.len() + 1 + own);
        plan.uint(number(self.ask));
        plan.uint(self.entries.len() as u64);
        plan.uint(self.accounts.len() as u64);
        for (account, (units, manner)) in self.accounts.iter().zip(&self.units) {
            let mut places = policies.iter();
            let place = places.position(|policy| policy.number() == account.number());
            plan.uint(place.map_or(0, |place| place as u64 + 1));
            plan.uint(*units);
            plan.uint(manner_number(*manner, account.rule()));
        }
        plan.uint(listed.into());
        for entry in &self.entries {
            if listed {
                plan.uint(entry.times());
            }
            if gives {
                for line in entry.lines() {
                    plan.int(line.receipt().at.as_micros());
                    plan.int(line.receipt().mark);
                    plan.uint(line.receipt().left);
                }
            }
            entry.signatures().for_each(|by| plan.text(by));
        }
    }
}

impl Entry {
    /// What is asked; a list that is empty asks nothing.
    pub(super) fn ask(&self) -> Ask {
        self.questions.first().map_or(Ask::Peek, |q| q.ask)
    }

    pub(super) fn lines(&self) -> &[OwnLine] {
        self.questions
            .first()
            .map_or(&[], |question| &question.lines)
    }

    /// How many equal requests it stands for.
    fn times(&self) -> u64 {
        let most = self.most();
        self.questions.iter().map(|q| times(q, most)).sum()
    }

    /// Signatures are written out one by one; more than the quota are not needed.
    fn most(&self) -> u64 {
        let signing = self.lines().iter().filter(|line| line.signs());
        let most = signing.map(|line| match line.manner {
            // It may be smaller than what the others let in.
            Manner::Shadow { .. } => MOST_SHADOWED,
            _ => line.account.rule().capacity(),
        });
        most.min().unwrap_or(MOST_TIMES)
    }

    /// Who asks, where that is signed: as many as there are equal requests.
    fn signatures(&self) -> impl Iterator<Item = &str> {
        let most = self.most();
        let signing = self.lines().iter().enumerate();
        let signing = signing.filter(|(_, line)| line.signs());
        signing.flat_map(move |(place, _)| {
            self.questions.iter().flat_map(move |question| {
                let by = question.lines[place].by().as_str();
                (0..times(question, most)).map(move |_| by)
            })
        })
    }
}

fn times(question: &Question, most: u64) -> u64 {
    match question.ask {
        Ask::Take(times) => times.min(most),
        Ask::Peek => 0,
        Ask::Force | Ask::Give | Ask::Withdraw | Ask::Reset | Ask::Renew => 1,
    }
}

/// What the driver calls it. A look is a take for nobody.
fn number(ask: Ask) -> u64 {
    match ask {
        Ask::Take(_) | Ask::Peek => 1,
        Ask::Force => 2,
        Ask::Give => 3,
        Ask::Reset => 4,
        Ask::Renew => 5,
        Ask::Withdraw => 6,
    }
}

/// What the driver calls it.
fn manner_number(manner: Manner, rule: &dyn Rule) -> u64 {
    match manner {
        Manner::Charge => 0,
        Manner::Check => 1,
        Manner::ChargeDenied if rule.grows() => 3,
        Manner::ChargeDenied => 2,
        Manner::ChargeRefused => 4,
        Manner::Shadow { of, charges } => {
            8 * (1 + of.map_or(0, |place| place as u64 + 1)) + u64::from(!charges)
        }
    }
}

//! Many questions in one script call.

use std::mem;

use hashbrown::HashMap;
use redis::Cmd;
use smallvec::SmallVec;
use tokio::time::Instant;

use super::{
    names::Names,
    question::{OwnLine, Question},
    script::Script,
};
use crate::{
    clock::Timestamp,
    error::StoreError,
    key::Key,
    store::{Account, Ask, Manner},
    strategy::Rule,
};

/// Keys that one call judges at most: 512 blocked a server for 1.8 ms.
pub(super) const MOST_KEYS: usize = 128;

/// Equal requests that one question stands for at most: ten thousand of such questions are a number still.
const MOST_TIMES: u64 = 1 << 40;

/// What a Redis store knows of an account.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) names: Names,
    /// The half's number in the script, and its parameters, as they are sent.
    pub(super) half: usize,
    pub(super) params: Vec<i64>,
}

/// Questions on one trip: like ones in segments, equal ones merged.
#[derive(Debug, Default)]
pub(super) struct Batch {
    segments: Vec<Segment>,
    keys: usize,
}

/// Questions of one kind, under the same policies at the same cost.
#[derive(Debug)]
struct Segment {
    ask: Ask,
    accounts: SmallVec<[Account; 2]>,
    units: SmallVec<[(u64, Manner); 2]>,
    entries: Vec<Entry>,
    /// Where the entry of these keys is.
    places: HashMap<SmallVec<[Key; 2]>, usize>,
}

/// Equal questions, in order of arrival.
#[derive(Debug, Default)]
pub(super) struct Entry {
    pub(super) questions: SmallVec<[Question; 1]>,
}

impl Batch {
    /// Takes a question in, or hands it back if the batch is full.
    pub(super) fn push(&mut self, question: Question) -> Result<(), Box<Question>> {
        let fits = self.keys == 0 || self.keys + question.lines.len() <= MOST_KEYS;
        let merges = matches!(question.ask, Ask::Take(_) | Ask::Peek);
        let segment = self
            .segments
            .iter()
            .position(|segment| segment.takes(&question));
        let keys: SmallVec<[Key; 2]> = question.lines.iter().map(|line| line.key).collect();
        if merges
            && let Some(segment) = segment
            && let Some(place) = self.segments[segment].places.get(&keys)
        {
            let place = *place;
            self.segments[segment].entries[place]
                .questions
                .push(question);
            return Ok(());
        }
        if !fits {
            return Err(Box::new(question));
        }
        self.keys += keys.len();
        let segment = segment.unwrap_or_else(|| {
            self.segments.push(Segment {
                ask: question.ask,
                accounts: question.lines.iter().map(|l| l.account.clone()).collect(),
                units: question.lines.iter().map(|l| (l.units, l.manner)).collect(),
                entries: Vec::new(),
                places: HashMap::new(),
            });
            self.segments.len() - 1
        });
        let segment = &mut self.segments[segment];
        segment.places.insert(keys, segment.entries.len());
        segment.entries.push(Entry {
            questions: SmallVec::from_iter([question]),
        });
        Ok(())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.keys == 0
    }

    /// The next instant at which somebody's time is up; once nobody waits, the last at which somebody's was, if that is
    /// still to come.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let waiting = self
            .questions()
            .filter(|question| question.waiter.is_some());
        let next = waiting.map(|question| question.deadline).min();
        next.or_else(|| {
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

    /// All questions.
    pub(super) fn into_questions(self) -> impl Iterator<Item = Question> {
        let entries = self
            .segments
            .into_iter()
            .flat_map(|segment| segment.entries);
        entries.flat_map(|entry| entry.questions)
    }

    /// The call: `EVALSHA`, or `EVAL` with the text if the server doesn't have the script.
    pub(super) fn call(&self, script: &Script, whole: bool, now: Timestamp) -> Cmd {
        let mut cmd = Cmd::with_capacity(16 + 2 * self.keys, 512 + 48 * self.keys);
        match whole {
            true => cmd.arg("EVAL").arg(&script.text),
            false => cmd.arg("EVALSHA").arg(&script.sha),
        };
        cmd.arg(self.keys);
        let mut policies: SmallVec<[&Account; 4]> = SmallVec::new();
        for segment in &self.segments {
            let known: SmallVec<[Option<&Known>; 2]> = segment
                .accounts
                .iter()
                .map(Account::context::<Known>)
                .collect();
            for account in &segment.accounts {
                if policies.iter().all(|policy| policy.id() != account.id()) {
                    policies.push(account);
                }
            }
            for entry in &segment.entries {
                for (line, known) in entry.lines().iter().zip(&known) {
                    cmd.arg(known.map(|known| known.names.of(&line.key)));
                }
            }
        }
        cmd.arg(policies.len());
        for policy in &policies {
            if let Some(known) = policy.context::<Known>() {
                let more = policy.rule().params_at(now);
                cmd.arg(known.half)
                    .arg(u8::from(policy.rule().signs()))
                    .arg(known.params.len() + more.len())
                    .arg(&known.params)
                    .arg(more);
            }
        }
        for segment in &self.segments {
            cmd.arg(number(segment.ask)).arg(segment.accounts.len());
            for account in &segment.accounts {
                let place = policies
                    .iter()
                    .position(|policy| policy.id() == account.id());
                cmd.arg(place.map(|place| place + 1));
            }
            for ((units, manner), account) in segment.units.iter().zip(&segment.accounts) {
                cmd.arg(*units).arg(manner_number(*manner, account.rule()));
            }
            cmd.arg(segment.entries.len());
            for entry in &segment.entries {
                entry.write(segment.ask, &mut cmd);
            }
        }
        cmd
    }
}

impl Segment {
    fn takes(&self, question: &Question) -> bool {
        mem::discriminant(&self.ask) == mem::discriminant(&question.ask)
            && self.accounts.len() == question.lines.len()
            && question
                .lines
                .iter()
                .zip(self.accounts.iter().zip(&self.units))
                .all(|(line, (account, units))| {
                    line.account.id() == account.id() && (line.units, line.manner) == *units
                })
    }
}

impl Entry {
    pub(super) fn lines(&self) -> &[OwnLine] {
        self.questions
            .first()
            .map_or(&[], |question| &question.lines)
    }

    /// Writes how many equal requests it stands for, what is to be given back, and who asks.
    fn write(&self, ask: Ask, cmd: &mut Cmd) {
        // Signatures are written out one by one; more than the quota are not needed.
        let signing = self.lines().iter().filter(|line| line.signs());
        let most = signing.map(|line| line.account.rule().capacity());
        let most = most.min().unwrap_or(MOST_TIMES);
        let times = |question: &Question| match question.ask {
            Ask::Take(times) => times.min(most),
            Ask::Peek => 0,
            Ask::Force | Ask::Give | Ask::Withdraw | Ask::Reset | Ask::Renew => 1,
        };
        cmd.arg(self.questions.iter().map(times).sum::<u64>());
        if matches!(ask, Ask::Give | Ask::Withdraw | Ask::Renew) {
            for line in self.lines() {
                let receipt = &line.receipt;
                cmd.arg(receipt.at.as_micros())
                    .arg(receipt.mark)
                    .arg(receipt.left);
            }
        }
        for (place, line) in self.lines().iter().enumerate() {
            if line.signs() {
                for question in &self.questions {
                    for _ in 0..times(question) {
                        cmd.arg(question.lines[place].by.as_str());
                    }
                }
            }
        }
    }
}

/// What the driver calls it. A look is a take for nobody.
fn number(ask: Ask) -> usize {
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
fn manner_number(manner: Manner, rule: &dyn Rule) -> u8 {
    match manner {
        Manner::Charge => 0,
        Manner::Check => 1,
        Manner::ChargeDenied if rule.grows() => 3,
        Manner::ChargeDenied => 2,
    }
}

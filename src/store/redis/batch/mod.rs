//! Many questions in one script call.

use std::mem;

use hashbrown::HashTable;
use smallvec::SmallVec;
use tokio::time::Instant;

use super::{
    rejection_cache::Asked,
    request::{Question, op::OwnLine},
    worker::deadline_timer::Alarm,
};
use crate::store::{CounterMode, LimitHandle, Op, Units};

pub(super) use super::limit::Known;

pub(crate) mod decode;
pub(crate) mod encode;
pub(crate) mod msgpack;

/// Keys that one call judges at most: 512 blocked a server for 1.8 ms.
pub(super) const MOST_KEYS: usize = 128;

/// Equal requests that one entry stands for at most: what Lua counts exactly.
const MOST_TIMES: u64 = 1 << 52;

/// Questions on one trip: like ones in segments, equal ones merged.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    segments: Vec<Segment>,
    /// Segments of trips that are over: their memory is used again.
    spare: Vec<Segment>,
    keys: usize,
    /// Nothing but what is equal goes with what it holds.
    alone: bool,
    /// No one's time is up before.
    soonest: Option<Instant>,
    /// Goes off then.
    pub(super) alarm: Alarm,
    /// Whether somebody's time is up who may be in it still.
    late: bool,
}

/// Questions of one kind, under the same policies at the same cost.
#[derive(Debug)]
struct Segment {
    ask: Op,
    limits: SmallVec<[LimitHandle; 2]>,
    units: SmallVec<[(Units, CounterMode); 2]>,
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
        let merges = matches!(question.ask, Op::Acquire(_) | Op::Peek);
        let segments = &mut self.segments;
        let segment = segments
            .iter_mut()
            .position(|segment| segment.takes(&question));
        let hash = question.hash;
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

    /// How many keys it is about.
    pub(super) fn keys(&self) -> usize {
        self.keys
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
        self.late = false;
    }

    /// The next instant at which somebody's time is up; once nobody waits, the last at which somebody's was, if that is
    /// still to come.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.soonest.or_else(|| {
            let last = self.questions().map(|question| question.deadline).max();
            last.filter(|last| *last > Instant::now())
        })
    }

    /// Tells those whose time is up. Their questions stay: they may have been sent.
    pub(super) fn time_out(&mut self, now: Instant) {
        self.late = true;
        for entry in self.entries() {
            for question in &mut entry.questions {
                if question.deadline <= now {
                    question.time_out();
                }
            }
        }
        let waiting = self.questions().filter(|q| q.is_awaited());
        let soonest = waiting.map(|question| question.deadline).min();
        self.soonest = soonest;
    }

    /// Leaves those behind whose time is up, before they are sent. What is given back is given back for others.
    pub(super) fn leave_late(&mut self) {
        if !mem::take(&mut self.late) {
            return;
        }
        let now = Instant::now();
        let gone = |question: &mut Question| {
            let asks = matches!(question.ask, Op::Acquire(_) | Op::Peek);
            asks && !question.is_awaited() && question.deadline <= now
        };
        for segment in &mut self.segments {
            let width = segment.limits.len();
            segment.entries.retain_mut(|entry| {
                entry.questions.retain(|question| !gone(question));
                let stays = !entry.questions.is_empty();
                self.keys -= if stays { 0 } else { width };
                stays
            });
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

    /// Whether a rejection that is cached somewhere may no longer hold after it.
    pub(super) fn lifts(&self) -> bool {
        self.segments.iter().any(Segment::lifts)
    }

    /// The lines after which that is so.
    pub(super) fn lifted(&self) -> impl Iterator<Item = Asked<'_>> {
        let lifting = self.segments.iter().filter(|segment| segment.lifts());
        let entries = lifting.flat_map(|segment| &segment.entries);
        entries.flat_map(|entry| entry.lines().iter().map(OwnLine::asked))
    }

    /// Takes all questions out.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Question> {
        self.entries().flat_map(|entry| entry.questions.drain(..))
    }
}

impl Default for Segment {
    fn default() -> Self {
        Self {
            ask: Op::Peek,
            limits: SmallVec::new(),
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
        self.limits.clear();
        self.units.clear();
        self.places.clear();
        self.limits
            .extend(lines.clone().map(|line| line.limit.clone()));
        self.units.extend(lines.map(|line| (line.units, line.mode)));
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
            && self.limits.len() == question.lines.len()
            && question
                .lines
                .iter()
                .zip(self.limits.iter().zip(&self.units))
                .all(|(line, (limit, units))| {
                    line.limit.number() == limit.number() && (line.units, line.mode) == *units
                })
    }
}

impl Segment {
    /// Whether a rejection that is cached somewhere may no longer hold after it. Those of in-flight limits are not cached.
    fn lifts(&self) -> bool {
        let remembered = |limit: &LimitHandle| limit.permit_ttl().is_none();
        self.ask.lifts() && self.limits.iter().any(remembered)
    }
}

impl Entry {
    /// What is asked; a list that is empty asks nothing.
    pub(super) fn ask(&self) -> Op {
        self.questions.first().map_or(Op::Peek, |q| q.ask)
    }

    pub(super) fn lines(&self) -> &[OwnLine] {
        self.questions
            .first()
            .map_or(&[], |question| &question.lines)
    }

    /// How many equal requests it stands for.
    fn times(&self) -> u64 {
        self.questions
            .iter()
            .map(times)
            .sum::<u64>()
            .min(MOST_TIMES)
    }

    /// The caller of each request, under each policy that records callers: at most as many as a full quota has units, since
    /// no more are charged.
    fn signatures(&self) -> impl Iterator<Item = &str> {
        let signing = self.lines().iter().enumerate();
        let signing = signing.filter(|(_, line)| line.records_caller());
        signing.flat_map(move |(place, line)| {
            let each = self.questions.iter().flat_map(move |question| {
                let by = question.lines[place].caller().as_str();
                (0..times(question)).map(move |_| by)
            });
            let known = line.limit.context::<Known>();
            each.take(known.map_or(0, Known::capacity))
        })
    }
}

/// How many equal requests a question stands for.
fn times(question: &Question) -> u64 {
    match question.ask {
        Op::Acquire(times) => times.into(),
        Op::Peek => 0,
        Op::ForceAcquire | Op::Refund | Op::Settle | Op::Reset | Op::Renew => 1,
    }
}

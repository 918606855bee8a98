//! Taking under keys in several slots.

use std::{future::Future, sync::Arc};

use smallvec::SmallVec;
use tokio::time::Instant;

use super::{Answered, Asked, Part, answers, answers_by, ask_parts, charged, join, late, parts};
use crate::{
    clock::Timestamp,
    error::StoreError,
    store::{
        CounterMode, CounterResult, Op, OpResult, Units,
        redis::{
            lanes::Lanes,
            line::{Lines, OwnLine},
        },
    },
    strategy::{RetryAfter, Snapshot},
};

/// What is being taken.
struct Taking {
    lanes: Arc<Lanes>,
    deadline: Instant,
    times: u32,
    count: usize,
    asked: SmallVec<[Asked; 2]>,
    /// Shadows, and the lines that they stand for.
    shadows: Vec<(usize, OwnLine, Option<usize>)>,
}

/// What became of it.
struct Outcome {
    /// How many requests all parts admitted.
    admitted: u64,
    /// How many each part did.
    each: SmallVec<[u64; 2]>,
    /// Each line as it was judged, with the time that it was judged at; shadows are not.
    judged: Vec<Option<(Snapshot, Timestamp)>>,
}

/// Asks about all lines but the shadows.
pub(super) fn ask(
    lanes: &Arc<Lanes>,
    times: u32,
    lines: Lines,
    deadline: Instant,
) -> impl Future<Output = Result<OpResult, StoreError>> + Send + use<> {
    let count = lines.len();
    let mut shadows = Vec::new();
    for (place, line) in lines.iter().enumerate() {
        if let CounterMode::Shadow { replaces, charges } = line.manner {
            let mut line = line.clone();
            line.manner = CounterMode::Shadow {
                replaces: None,
                charges,
            };
            shadows.push((place, line, replaces));
        }
    }
    let mut parts = parts(lanes, lines);
    parts.iter_mut().for_each(Part::drop_shadows);
    parts.retain(|part| !part.lines.is_empty());
    let taking = Taking {
        asked: ask_parts(lanes, Op::Acquire(times), parts, deadline),
        lanes: lanes.clone(),
        deadline,
        times,
        count,
        shadows,
    };
    taking.take()
}

impl Part {
    fn drop_shadows(&mut self) {
        let Self { lines, places } = self;
        let mut kept = lines.iter().map(|line| !line.manner.is_shadow());
        places.retain(|_| kept.next().unwrap_or(false));
        lines.retain(|line| !line.manner.is_shadow());
    }

    fn of(place: usize, line: OwnLine) -> Self {
        Self {
            lines: [line].into(),
            places: [place].into_iter().collect(),
        }
    }
}

impl Taking {
    async fn take(mut self) -> Result<OpResult, StoreError> {
        let asked = std::mem::take(&mut self.asked);
        let (mut answered, error) = answers(asked).await;
        if let Some(error) = error {
            // What the others charged goes back with them.
            return Err(error);
        }
        let outcome = self.give_back(&mut answered).await?;
        let mut beside = self.ask_beside(&answered, &outcome);
        // What was decided stands, whatever becomes of those.
        let (mut beside, _) = answers_by(self.deadline, beside.drain(..)).await;
        let mut answer = join(&mut answered, self.count);
        answer.admitted = outcome.admitted;
        for Answered { part, delivery } in &mut beside {
            let Some(told) = delivery.read() else {
                continue;
            };
            let at = told.at;
            for ((place, line), told) in part.places.iter().zip(&part.lines).zip(told.lines) {
                // A ban is charged by refusals, not by requests.
                let units = if line.manner.is_shadow() {
                    told.units
                } else {
                    0
                };
                answer.lines[*place] = late(CounterResult::of(units, told.seen), &answer, at);
            }
        }
        Ok(answer)
    }

    /// Has given back what not all parts admitted.
    async fn give_back(&self, answered: &mut [Answered]) -> Result<Outcome, StoreError> {
        let mut outcome = Outcome {
            admitted: self.times.into(),
            each: SmallVec::new(),
            judged: vec![None; self.count],
        };
        for Answered { part, delivery } in answered.iter_mut() {
            let Some(answer) = delivery.answer() else {
                continue;
            };
            outcome.admitted = outcome.admitted.min(answer.admitted);
            outcome.each.push(answer.admitted);
            for (place, line) in part.places.iter().zip(&answer.lines) {
                outcome.judged[*place] = Some((line.seen, answer.at));
            }
        }
        let mut back = SmallVec::<[Part; 2]>::new();
        for Answered { part, delivery } in answered.iter_mut() {
            let Some(answer) = delivery.answer() else {
                continue;
            };
            let over = answer.admitted - outcome.admitted;
            if over > 0 {
                let given = charged(part, answer, over, answer.admitted);
                for line in &mut answer.lines {
                    line.units = line.units / answer.admitted * outcome.admitted;
                }
                answer.admitted = outcome.admitted;
                answer.later = 0;
                back.push(given);
            }
        }
        back.retain(|part| !part.lines.is_empty());
        // They are given back also if nobody waits for it any more.
        let back = ask_parts(&self.lanes, Op::Refund, back, self.deadline);
        let (given, error) = answers_by(self.deadline, back).await;
        if let Some(error) = error {
            return Err(error);
        }
        for Answered { part, mut delivery } in given {
            let Some(now) = delivery.read() else {
                continue;
            };
            for (place, line) in part.places.iter().zip(now.lines) {
                let theirs = answered.iter_mut().find_map(|answered| {
                    let mut places = answered.part.places.iter();
                    let here = places.position(|its| its == place)?;
                    answered.delivery.answer()?.lines.get_mut(here)
                });
                if let Some(theirs) = theirs {
                    theirs.seen = line.seen;
                }
            }
        }
        Ok(outcome)
    }

    /// Tells bans what they could not see, and asks shadows, now that it's known what became of the request.
    fn ask_beside(&self, answered: &[Answered], outcome: &Outcome) -> SmallVec<[Asked; 2]> {
        let mut beside = SmallVec::new();
        if !answered.iter().any(|answered| answered.is_banned(outcome)) {
            for (Answered { part, .. }, admitted) in answered.iter().zip(&outcome.each) {
                for (place, line) in part.places.iter().zip(&part.lines) {
                    if line.manner == CounterMode::CountRejections && *admitted > outcome.admitted {
                        let mut line = line.clone();
                        line.manner = CounterMode::Charge;
                        line.units = Units::new(admitted - outcome.admitted);
                        let part = [Part::of(*place, line)];
                        beside.extend(ask_parts(
                            &self.lanes,
                            Op::ForceAcquire,
                            part,
                            self.deadline,
                        ));
                    }
                }
            }
        }
        for (place, line, of) in &self.shadows {
            let ask = match self.admitted_without(*of, answered, outcome) {
                0 => Op::Peek,
                times => Op::Acquire(u32::try_from(times).unwrap_or(u32::MAX)),
            };
            let part = [Part::of(*place, line.clone())];
            beside.extend(ask_parts(&self.lanes, ask, part, self.deadline));
        }
        beside
    }

    /// How many requests would have been admitted without the line that a shadow stands for.
    fn admitted_without(&self, of: Option<usize>, answered: &[Answered], outcome: &Outcome) -> u64 {
        let Some(of) = of else {
            return outcome.admitted;
        };
        let parts = answered.iter().zip(&outcome.each);
        let without = parts.map(|(answered, admitted)| {
            let part = &answered.part;
            let others_have_room = part.places.contains(&of)
                && part
                    .places
                    .iter()
                    .zip(&part.lines)
                    .all(|(place, line)| *place == of || outcome.has_room(*place, line));
            if others_have_room {
                self.times.into()
            } else {
                *admitted
            }
        });
        without.min().unwrap_or(0)
    }
}

impl Answered {
    /// Whether it was refused by a ban.
    fn is_banned(&self, outcome: &Outcome) -> bool {
        self.part
            .places
            .iter()
            .zip(&self.part.lines)
            .any(|(place, line)| {
                line.manner == CounterMode::CountRejections && !outcome.has_room(*place, line)
            })
    }
}

impl Outcome {
    /// Whether a line had room for the request, by what was found when it was judged.
    fn has_room(&self, place: usize, line: &OwnLine) -> bool {
        let Some((seen, at)) = self.judged.get(place).copied().flatten() else {
            return true;
        };
        let units = match line.manner {
            CounterMode::CountRejections => Units::ONE,
            _ => line.units,
        };
        line.account.outlook(&seen, at, units).retry == RetryAfter::Now
    }
}

//! A question on its way to Redis, and its answer on the way back.

use std::{mem, sync::Arc};

use smallvec::SmallVec;
use tokio::{sync::oneshot, time::Instant};

use super::{batch::Known, lanes::Lanes};
use crate::{
    clock::Timestamp,
    error::StoreError,
    guard::denials::{Asked, Mark},
    key::Key,
    store::{Account, Answer, Ask, Line, Manner},
    strategy::{Receipt, Seen},
};

/// A question that waits for its trip.
#[derive(Debug)]
pub(super) struct Question {
    pub(super) ask: Ask,
    pub(super) lines: Lines,
    pub(super) deadline: Instant,
    /// Whether it has been told that it has another idea of the time than the server.
    pub(super) told_time: bool,
    /// Whether it goes by itself: a cluster is moving its keys, and can't answer for several at once meanwhile.
    pub(super) alone: bool,
    /// None where nobody waits.
    pub(super) waiter: Option<Waiter>,
}

/// Who waits for the answer.
#[derive(Debug)]
pub(super) struct Waiter {
    answer: oneshot::Sender<Result<Delivery, StoreError>>,
    /// Whether what he has given back is given back all the same if it can't be now.
    pub(super) insists: bool,
}

impl From<oneshot::Sender<Result<Delivery, StoreError>>> for Waiter {
    fn from(answer: oneshot::Sender<Result<Delivery, StoreError>>) -> Self {
        let insists = false;
        Self { answer, insists }
    }
}

impl Waiter {
    pub(super) fn has_gone(&self) -> bool {
        self.answer.is_closed()
    }

    /// Tells him. What is charged for one who has gone is given back.
    pub(super) fn tell(self, answer: Result<Delivery, StoreError>) {
        drop(self.answer.send(answer));
    }
}

pub(super) type Lines = SmallVec<[OwnLine; 1]>;

/// A line of a question. It is moved a few times on its way, so it is kept small.
#[derive(Clone, Debug)]
pub(super) struct OwnLine {
    pub(super) account: Account,
    pub(super) key: Key,
    pub(super) units: u64,
    pub(super) manner: Manner,
    /// What most lines don't have.
    more: Option<Box<More>>,
}

#[derive(Clone, Debug)]
struct More {
    receipt: Receipt,
    by: Key,
}

impl OwnLine {
    pub(super) fn of(line: &Line<'_>) -> Self {
        let more = More {
            receipt: line.receipt,
            by: line.by,
        };
        let plain = more.receipt == Receipt::NONE && more.by == line.key;
        Self {
            account: line.account.clone(),
            key: line.key,
            units: line.units,
            manner: line.manner,
            more: (!plain).then(|| Box::new(more)),
        }
    }

    /// Where it may be asked again.
    pub(super) fn lanes(&self) -> Option<Arc<Lanes>> {
        self.account.context::<Known>()?.lanes.upgrade()
    }

    /// What the cache of denials has to know of it.
    pub(super) fn asked(&self) -> Asked<'_> {
        Asked {
            account: &self.account,
            key: &self.key,
            units: self.units,
            manner: self.manner,
        }
    }

    /// Whether it is signed: what costs nothing is not.
    pub(super) fn signs(&self) -> bool {
        self.units > 0 && self.account.signs()
    }

    pub(super) fn by(&self) -> &Key {
        self.more.as_ref().map_or(&self.key, |more| &more.by)
    }

    pub(super) fn receipt(&self) -> Receipt {
        self.more
            .as_ref()
            .map_or(Receipt::NONE, |more| more.receipt)
    }

    /// Makes it the line of a charge of so many units.
    pub(super) fn charged(&mut self, units: u64, seen: &Seen, at: Timestamp) {
        self.units = units;
        let by = *self.by();
        let mark = self.account.rule().mark(seen, at);
        let receipt = Receipt {
            at,
            left: units,
            mark,
        };
        self.more = Some(Box::new(More { receipt, by }));
    }
}

impl Question {
    /// Whether whoever asked has gone, and nothing is lost if it isn't asked. What is given back is given back for others.
    pub(super) fn is_abandoned(&self) -> bool {
        let gone = self.waiter.as_ref().is_some_and(Waiter::has_gone);
        gone && matches!(self.ask, Ask::Take(_) | Ask::Peek)
    }

    pub(super) fn fail(self, error: StoreError) {
        if let Some(waiter) = self.waiter {
            // Nothing was charged, so nothing is lost with whoever has gone.
            waiter.tell(Err(error));
        }
    }

    pub(super) fn answer(self, answer: Answer) {
        let charged = matches!(self.ask, Ask::Take(_)) && answer.admitted > 0;
        let delivery = Delivery {
            answer: Some(answer),
            charged,
            lines: self.lines,
        };
        match self.waiter {
            Some(waiter) => waiter.tell(Ok(delivery)),
            None => drop(delivery),
        }
    }
}

/// An answer that gives back what it charged if nobody reads it: whoever asked had gone by then.
#[derive(Debug)]
pub(super) struct Delivery {
    answer: Option<Answer>,
    /// Whether something has to be given back.
    charged: bool,
    /// What was asked.
    pub(super) lines: Lines,
}

impl Delivery {
    pub(super) fn read(&mut self) -> Option<Answer> {
        self.answer.take()
    }

    /// What it will say, and give back.
    pub(super) fn answer(&mut self) -> Option<&mut Answer> {
        self.answer.as_mut()
    }

    /// Remembers that it was refused.
    pub(super) fn note_denial(&self, answer: &Answer, mark: &Mark) {
        if let Some(lanes) = self.lanes() {
            lanes.note_denial(&self.lines, answer, mark);
        }
    }

    fn lanes(&self) -> Option<Arc<Lanes>> {
        self.lines.first()?.lanes()
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        let Some(answer) = self.answer.take().filter(|_| self.charged) else {
            return;
        };
        let lanes = self.lanes();
        let mut lines = mem::take(&mut self.lines);
        for (line, charged) in lines.iter_mut().zip(&answer.lines) {
            line.charged(charged.units, &charged.seen, answer.at);
        }
        if let Some(lanes) = lanes {
            lanes.tell(Ask::Withdraw, lines);
        }
    }
}

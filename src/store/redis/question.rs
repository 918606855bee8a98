//! A question on its way to Redis, and its answer on the way back.

use std::sync::{Arc, Weak};

use smallvec::SmallVec;
use tokio::{sync::oneshot, time::Instant};

use super::lane::Lane;
use crate::{
    error::StoreError,
    key::Key,
    store::{Account, Answer, Ask, Line, Manner},
    strategy::Receipt,
};

/// A question that waits for its trip.
#[derive(Debug)]
pub(super) struct Question {
    pub(super) ask: Ask,
    pub(super) lines: Lines,
    pub(super) deadline: Instant,
    /// Whether it has been told that it has another idea of the time than the server.
    pub(super) told_time: bool,
    /// None where nobody waits.
    pub(super) waiter: Option<oneshot::Sender<Result<Delivery, StoreError>>>,
}

pub(super) type Lines = SmallVec<[OwnLine; 2]>;

#[derive(Clone, Debug)]
pub(super) struct OwnLine {
    pub(super) account: Account,
    pub(super) key: Key,
    pub(super) units: u64,
    pub(super) receipt: Receipt,
    pub(super) by: Key,
    pub(super) manner: Manner,
}

impl OwnLine {
    /// Whether it is signed: what costs nothing is not.
    pub(super) fn signs(&self) -> bool {
        self.units > 0 && self.account.rule().signs()
    }

    pub(super) fn of(line: &Line<'_>) -> Self {
        Self {
            account: line.account.clone(),
            key: line.key,
            units: line.units,
            receipt: line.receipt,
            by: line.by,
            manner: line.manner,
        }
    }
}

impl Question {
    /// Whether whoever asked has gone, and nothing is lost if it isn't asked. What is given back is given back for others.
    pub(super) fn is_abandoned(&self) -> bool {
        let gone = self.waiter.as_ref().is_some_and(oneshot::Sender::is_closed);
        gone && matches!(self.ask, Ask::Take(_) | Ask::Peek)
    }

    pub(super) fn fail(self, error: StoreError) {
        if let Some(waiter) = self.waiter {
            // Nothing was charged, so nothing is lost with whoever has gone.
            drop(waiter.send(Err(error)));
        }
    }

    pub(super) fn answer(self, answer: Answer, lane: &Arc<Lane>) {
        let charged = matches!(self.ask, Ask::Take(_)) && answer.admitted > 0;
        let unread = charged.then_some(self.lines);
        let delivery = Delivery {
            answer: Some(answer),
            unread,
            lane: Arc::downgrade(lane),
        };
        match self.waiter {
            Some(waiter) => drop(waiter.send(Ok(delivery))),
            None => drop(delivery),
        }
    }
}

/// An answer that gives back what it charged if nobody reads it: whoever asked had gone by then.
#[derive(Debug)]
pub(super) struct Delivery {
    answer: Option<Answer>,
    /// What was charged.
    unread: Option<Lines>,
    lane: Weak<Lane>,
}

impl Delivery {
    pub(super) fn read(mut self) -> Option<Answer> {
        self.unread = None;
        self.answer.take()
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        let (Some(mut lines), Some(answer)) = (self.unread.take(), self.answer.take()) else {
            return;
        };
        let Some(lane) = self.lane.upgrade() else {
            return;
        };
        for (line, charged) in lines.iter_mut().zip(&answer.lines) {
            let rule = line.account.rule();
            line.units = charged.units;
            line.receipt = Receipt {
                at: answer.at,
                left: charged.units,
                mark: rule.mark(&charged.seen, answer.at),
            };
        }
        lane.tell(Ask::Withdraw, lines);
    }
}

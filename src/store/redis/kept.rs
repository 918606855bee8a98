//! Give-backs that nobody waits for, kept while the server is at fault: a place in flight that was left meanwhile is not to be
//! taken for as long as its permit lives.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use super::{
    batch::MOST_KEYS,
    question::{Lines, OwnLine, Question},
};
use crate::{error::StoreError, store::Ask};

/// As many are kept at most; more are lost, and come back with time.
const MOST: usize = 10_000;

#[derive(Debug, Default)]
pub(super) struct Kept {
    /// Read by each trip.
    any: AtomicBool,
    give_backs: Mutex<Vec<(Ask, Lines)>>,
}

impl Kept {
    /// Tells whoever asked that it failed. What nobody waits for is kept if it is safe to ask again: if it was not sent, or
    /// giving it back twice is giving it back once, since a permit has a name of its own.
    pub(super) fn fail(&self, mut question: Question, error: StoreError, sent: bool) {
        let gives = matches!(question.ask, Ask::Give | Ask::Withdraw);
        if question.waiter.is_some() || !gives {
            return question.fail(error);
        }
        question.lines.retain(|line| !sent || is_permit(line));
        let mut kept = self
            .give_backs
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if !question.lines.is_empty() && kept.len() < MOST {
            kept.push((question.ask, question.lines));
            self.any.store(true, Ordering::Relaxed);
        }
    }

    /// Has some of them sent, as many as go on one trip, now that the server answers. When that is answered, the next ones go.
    pub(super) fn send(&self) {
        if !self.any.load(Ordering::Relaxed) {
            return;
        }
        let mut kept = self
            .give_backs
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let rest = kept.len().saturating_sub(MOST_KEYS);
        let some = kept.split_off(rest);
        self.any.store(!kept.is_empty(), Ordering::Relaxed);
        // What can't be sent comes back here.
        drop(kept);
        for (ask, lines) in some {
            if let Some(lanes) = lines.first().and_then(OwnLine::lanes) {
                lanes.tell(ask, lines);
            }
        }
    }
}

fn is_permit(line: &OwnLine) -> bool {
    line.account.rule().life().is_some()
}

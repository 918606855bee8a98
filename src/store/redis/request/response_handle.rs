//! What waits for the answer to a question.

use std::{
    future::poll_fn,
    mem,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll, ready},
};

use tokio::{
    runtime::{self, Handle},
    time::sleep_until,
};

use super::{Matter, ended, op::OwnLine, response_slot::Place};
use crate::{
    error::StoreError,
    store::{OpResult, PendingResponse, PollResponse},
};

/// An answer that is waited for. Dropped, it withdraws the question, and gives back what that had charged.
#[derive(Debug)]
pub(crate) struct Awaited {
    /// None once it is read.
    matter: Option<Arc<Matter>>,
    /// The runtime that sees to the deadline: the lane's, until this is polled on another. None if it was polled outside of
    /// all runtimes.
    timed_by: Option<runtime::Id>,
}

impl Awaited {
    /// Of a question in a lane of a runtime.
    pub(crate) fn new(matter: Arc<Matter>, lane: Option<runtime::Id>) -> Self {
        Self {
            matter: Some(matter),
            timed_by: lane,
        }
    }

    /// What was answered, which is read with it, and what was asked.
    #[inline]
    fn poll_read(&mut self, cx: &Context<'_>) -> Poll<(Arc<Matter>, Result<OpResult, StoreError>)> {
        // It was read before, which futures need not say.
        let Some(matter) = &self.matter else {
            return Poll::Pending;
        };
        let stood = matter.place().watch(cx.waker());
        match (stood, cx.waker()) {
            (Place::Told(result), _) => match self.matter.take() {
                Some(matter) => Poll::Ready((matter, result)),
                None => Poll::Pending,
            },
            (Place::Open(Some(before)), waker) if before.will_wake(waker) => Poll::Pending,
            (Place::Open(_), _) => {
                self.keep_deadline();
                Poll::Pending
            }
            (Place::Over, _) => Poll::Pending,
        }
    }

    /// A lane keeps the deadlines of its questions, unless its runtime stands still. What is polled on another runtime keeps
    /// its own.
    #[inline]
    fn keep_deadline(&mut self) {
        let here = Handle::try_current().ok();
        let timed_by = here.as_ref().map(Handle::id);
        if timed_by != self.timed_by {
            let before = mem::replace(&mut self.timed_by, timed_by);
            self.keep_deadline_on(here, before);
        }
    }

    #[cold]
    fn keep_deadline_on(&self, here: Option<Handle>, before: Option<runtime::Id>) {
        let Some(matter) = self.matter.clone() else {
            return;
        };
        let lanes = matter.lines.first().and_then(OwnLine::lanes);
        let other = || lanes.and_then(|lanes| lanes.other_runtime(before));
        // In a task, since a runtime without timers panics.
        if let Some(runtime) = here.or_else(other) {
            drop(runtime.spawn(async move {
                sleep_until(matter.deadline).await;
                matter.time_out();
            }));
        }
    }

    /// The answer. Whoever is refused is remembered.
    #[inline]
    pub(crate) fn poll_answer(&mut self, cx: &Context<'_>) -> Poll<Result<OpResult, StoreError>> {
        let (matter, result) = ready!(self.poll_read(cx));
        if let Ok(answer) = &result
            && answer.admitted == 0
        {
            matter.note_denial(answer);
        }
        Poll::Ready(result)
    }

    /// The answer, which is given back unless it's read.
    pub(crate) async fn delivery(mut self) -> Result<Delivery, StoreError> {
        let (matter, result) = poll_fn(|cx| self.poll_read(cx)).await;
        let answer = Some(result?);
        Ok(Delivery { matter, answer })
    }
}

impl From<Awaited> for PendingResponse {
    fn from(mut awaited: Awaited) -> Self {
        match awaited.matter.take() {
            Some(matter) => Self::shared(matter, awaited.timed_by),
            None => Self::ready(Err(ended())),
        }
    }
}

impl PollResponse for Matter {
    #[inline]
    fn poll_response(
        self: Arc<Self>,
        cx: &Context<'_>,
        runtime: &mut Option<runtime::Id>,
    ) -> Result<Result<OpResult, StoreError>, Arc<dyn PollResponse>> {
        let mut awaited = Awaited::new(self, *runtime);
        match awaited.poll_answer(cx) {
            Poll::Ready(response) => Ok(response),
            Poll::Pending => {
                *runtime = awaited.timed_by;
                match awaited.matter.take() {
                    Some(matter) => Err(matter),
                    None => Ok(Err(ended())),
                }
            }
        }
    }

    fn cancel(self: Arc<Self>) {
        drop(Awaited::new(self, None));
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        let Some(matter) = self.matter.take() else {
            return;
        };
        matter.left.store(true, Ordering::Relaxed);
        let stood = matter.place().leave();
        if let Place::Told(Ok(answer)) = &stood {
            matter.give_back(answer);
        }
    }
}

/// An answer that gives back what it charged if nobody reads it.
#[derive(Debug)]
pub(crate) struct Delivery {
    matter: Arc<Matter>,
    answer: Option<OpResult>,
}

impl Delivery {
    pub(crate) fn read(&mut self) -> Option<OpResult> {
        self.answer.take()
    }

    /// What it will say, and give back.
    pub(crate) fn answer(&self) -> Option<&OpResult> {
        self.answer.as_ref()
    }

    /// The same, to be changed.
    pub(crate) fn answer_mut(&mut self) -> Option<&mut OpResult> {
        self.answer.as_mut()
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        if let Some(answer) = self.answer.take() {
            self.matter.give_back(&answer);
        }
    }
}

//! A lane: one connection that carries, on each trip, what arrived while the last one was under way.

use std::{
    collections::VecDeque,
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use redis::{RedisError, Value};
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

use super::{
    Shared,
    batch::Batch,
    fault,
    link::Link,
    question::{Lines, Question},
    reply,
};
use crate::{error::StoreError, store::Ask};

#[derive(Debug)]
pub(super) struct Lane {
    shared: Arc<Shared>,
    queue: Mutex<Queue>,
    wake: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    questions: Vec<Question>,
    /// Nobody will carry what is put in here any more.
    closed: bool,
}

impl Lane {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            queue: Mutex::default(),
            wake: Notify::new(),
        }
    }

    /// Puts a question in the queue.
    pub(super) fn push(&self, question: Question) {
        let mut queue = self.queue();
        if queue.closed {
            drop(queue);
            question.fail(ended());
            return;
        }
        queue.questions.push(question);
        let first = queue.questions.len() == 1;
        drop(queue);
        if first {
            self.wake.notify_one();
        }
    }

    /// Has something done that nobody waits for.
    pub(super) fn tell(&self, ask: Ask, lines: Lines) {
        self.push(Question {
            ask,
            lines,
            deadline: Instant::now() + self.shared.deadline,
            told_time: false,
            waiter: None,
        });
    }

    /// Ends the lane once its queue is empty.
    pub(super) fn close(&self) {
        self.queue().closed = true;
        self.wake.notify_one();
    }

    /// Carries questions until it is closed.
    pub(super) async fn run(self: Arc<Self>) {
        let (mut come, mut backlog) = (Vec::new(), VecDeque::new());
        let (mut batch, mut link) = (Batch::default(), None);
        loop {
            let closed = self.take_queue(&mut come);
            board(&mut batch, &mut backlog, &mut come);
            if !batch.is_empty() {
                let again = self.trip(&mut batch, &mut link).await;
                again.into_iter().rev().for_each(|q| backlog.push_front(q));
                batch.clear();
            } else if closed {
                return;
            } else if backlog.is_empty() {
                self.wake.notified().await;
            }
        }
    }

    /// Takes what is queued, in exchange for the memory of what was taken before; true if nothing will be any more.
    fn take_queue(&self, come: &mut Vec<Question>) -> bool {
        let mut queue = self.queue();
        mem::swap(&mut queue.questions, come);
        queue.closed
    }

    /// One trip: sends the batch and hands its answers out, or tells everybody why not. No one waits past his deadline.
    /// Returns questions that are to be asked again.
    async fn trip(self: &Arc<Self>, batch: &mut Batch, link: &mut Option<Link>) -> Vec<Question> {
        let result = self.carry(batch, link).await;
        let error = match result {
            Ok(reply) => match reply::deliver(batch, reply) {
                Ok(mut delivered) => {
                    self.shared.note_server_time(delivered.at);
                    if delivered.severs {
                        discard(link);
                    }
                    for question in &mut delivered.stale {
                        question.told_time = true;
                    }
                    return delivered.stale;
                }
                Err(error) => error,
            },
            Err(Stopped::Late) => {
                // Whatever comes now comes too late, and on this connection it would be taken for the next answer.
                discard(link);
                return Vec::new();
            }
            Err(Stopped::Failed(error)) => {
                if fault::severs(&error) {
                    discard(link);
                }
                fault::of(&error)
            }
            Err(Stopped::Unlinked(error)) => error,
        };
        for question in batch.drain() {
            question.fail(error.clone());
        }
        Vec::new()
    }

    /// Takes the batch to the server and back. While it is under way, those whose deadline passes are told so.
    async fn carry(&self, batch: &mut Batch, link: &mut Option<Link>) -> Result<Value, Stopped> {
        let script = self.shared.script();
        let call = batch.call(&script, false, self.shared.server_time());
        match on_time(batch, self.query(link, call)).await {
            // The server was restarted, or its scripts were flushed: the text goes along, on the same connection.
            Err(Stopped::Failed(error)) if fault::lacks_script(&error) => {
                let call = batch.call(&script, true, self.shared.server_time());
                on_time(batch, self.query(link, call)).await
            }
            result => result,
        }
    }

    async fn query(&self, link: &mut Option<Link>, call: redis::Cmd) -> Result<Value, Stopped> {
        if link.as_ref().is_some_and(Link::is_stale) {
            let lives = match link {
                Some(link) => link.answers().await,
                None => false,
            };
            if !lives {
                discard(link);
            }
        }
        let link = match link {
            Some(link) => link,
            None => {
                let opened = Link::open(&self.shared.source).await;
                link.insert(opened.map_err(Stopped::Unlinked)?)
            }
        };
        link.query(&call).await.map_err(Stopped::Failed)
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whatever is left in a lane whose runtime has ended is answered, not left hanging.
impl Drop for Lane {
    fn drop(&mut self) {
        let questions = mem::take(&mut self.queue().questions);
        for question in questions {
            question.fail(ended());
        }
    }
}

/// Why a trip brought no answer.
enum Stopped {
    /// The server's own error, or a broken connection.
    Failed(RedisError),
    /// There is no connection to be had; nothing was sent.
    Unlinked(StoreError),
    /// Everybody's deadline has passed.
    Late,
}

/// Fills a batch from the backlog, and then from those who have come since, who are its end if they don't fit: first come,
/// first served. Those whose time is up, and those who have gone, stay behind.
fn board(batch: &mut Batch, backlog: &mut VecDeque<Question>, come: &mut Vec<Question>) {
    let now = Instant::now();
    let mut board = |question: Question| {
        if question.deadline <= now {
            question.fail(StoreError::Timeout);
        } else if !question.is_abandoned() {
            return batch.push(question);
        }
        Ok(())
    };
    let mut come = come.drain(..);
    while let Some(question) = backlog.pop_front().or_else(|| come.next()) {
        if let Err(question) = board(question) {
            backlog.push_front(*question);
            break;
        }
    }
    backlog.extend(come);
}

/// Awaits `trip`, telling those whose deadline passes meanwhile; until it has passed for all.
async fn on_time<T>(
    batch: &mut Batch,
    trip: impl Future<Output = Result<T, Stopped>>,
) -> Result<T, Stopped> {
    let mut trip = std::pin::pin!(trip);
    while let Some(deadline) = batch.next_deadline() {
        tokio::select! {
            biased;
            result = &mut trip => return result,
            () = sleep_until(deadline) => batch.time_out(Instant::now()),
        }
    }
    Err(Stopped::Late)
}

fn discard(link: &mut Option<Link>) {
    if let Some(link) = link.take() {
        link.discard();
    }
}

fn ended() -> StoreError {
    StoreError::Connection("its runtime has ended".into())
}

//! A decision that something is being waited for.

use std::{
    future::Future,
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::time::{Instant, timeout_at};

use super::{Desk, judge::Items};
use crate::{
    decision::Decision,
    error::StoreError,
    log::Seldom,
    policy::LookUp,
    quota::Quota,
    store::{Answer, Ask, Reply},
};

/// A decision that something is being waited for.
pub(crate) struct Pending {
    desk: Arc<Desk>,
    ask: Ask,
    retries: bool,
    items: Items,
    waits: Waits,
}

/// Quotas that are being looked up, by item.
type LookUps = Pin<Box<dyn Future<Output = Vec<(usize, Quota)>> + Send>>;

enum Waits {
    /// For requests' own quotas.
    LookUp(LookUps),
    /// For the store.
    Store(Pin<Box<dyn Future<Output = Result<Answer, StoreError>> + Send>>),
}

impl Pending {
    /// The store has been asked.
    pub(super) fn asked(
        desk: Arc<Desk>,
        (ask, retries): (Ask, bool),
        items: Items,
        answer: Pin<Box<dyn Future<Output = Result<Answer, StoreError>> + Send>>,
    ) -> Self {
        Self {
            desk,
            ask,
            retries,
            items,
            waits: Waits::Store(answer),
        }
    }

    /// Requests' own quotas are looked up before the store is asked.
    pub(super) fn looking_up(
        desk: Arc<Desk>,
        items: Items,
        lookups: Vec<(usize, LookUp, Duration)>,
    ) -> Self {
        Self {
            desk,
            ask: Ask::Take(1),
            retries: false,
            items,
            waits: Waits::LookUp(Box::pin(look_up(lookups))),
        }
    }
}

impl Future for Pending {
    type Output = Decision;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Decision> {
        let this = &mut *self;
        loop {
            match &mut this.waits {
                Waits::LookUp(look_up) => {
                    for (item, quota) in ready!(look_up.as_mut().poll(cx)) {
                        let bound = this.desk.bound(this.items[item].policy);
                        this.items[item].tier = this.desk.tier(bound, Some(quota));
                    }
                    match this.desk.ask(this.ask, this.retries, &this.items) {
                        Reply::Now(answer) => {
                            this.waits = Waits::Store(Box::pin(std::future::ready(answer)))
                        }
                        Reply::Later(answer) => this.waits = Waits::Store(answer),
                    }
                }
                Waits::Store(answer) => {
                    let answer = ready!(answer.as_mut().poll(cx));
                    let (items, retries) = (mem::take(&mut this.items), this.retries);
                    let desk = this.desk.clone();
                    return Poll::Ready(desk.decide(this.ask, retries, items, answer));
                }
            }
        }
    }
}

/// Awaits quotas that are being looked up, each no longer than its deadline.
async fn look_up(lookups: Vec<(usize, LookUp, Duration)>) -> Vec<(usize, Quota)> {
    let start = Instant::now();
    let mut found = Vec::new();
    let mut waiting: Vec<_> = lookups
        .into_iter()
        .map(|(item, look_up, deadline)| {
            (
                item,
                deadline,
                Box::pin(timeout_at(start + deadline, look_up)),
            )
        })
        .collect();
    std::future::poll_fn(|cx| {
        waiting.retain_mut(|(item, deadline, look_up)| {
            let Poll::Ready(quota) = look_up.as_mut().poll(cx) else {
                return true;
            };
            match quota {
                Ok(quota) => found.extend(quota.map(|quota| (*item, quota))),
                Err(_) => {
                    static LATE: Seldom = Seldom::new();
                    LATE.then(|unsaid| {
                        tracing::warn!(
                            ?deadline,
                            unsaid,
                            "a quota was not found in time; the policy's is used"
                        );
                    });
                }
            }
            false
        });
        if waiting.is_empty() {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
    found
}

//! A decision that something is being waited for.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use http::request::Parts;
use tokio::{runtime::Handle, sync::Semaphore, time::sleep};

use super::draft::Draft;
use crate::{
    decision::Decision,
    limiter::Desk,
    log::Seldom,
    policy::{LookUp, Policy, Tiers},
    quota::Quota,
    store::{PendingResponse, StoreResponse},
};

/// A decision that something is being waited for.
pub(crate) struct Pending {
    /// Taken when it is answered.
    open: Option<(Arc<Desk>, Draft)>,
    waits: Waits,
}

/// Quotas that are being looked up, by item.
type LookUps = Pin<Box<dyn Future<Output = Vec<(usize, Quota)>> + Send>>;

/// What a decision waits for.
pub(crate) enum Waits {
    /// For requests' own quotas.
    LookUp(LookUps),
    /// For the store.
    Store(PendingResponse),
}

impl Pending {
    pub(crate) fn new(desk: Arc<Desk>, draft: Draft, waits: Waits) -> Self {
        let open = Some((desk, draft));
        Self { open, waits }
    }
}

impl Future for Pending {
    type Output = Decision;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Decision> {
        let this = &mut *self;
        loop {
            // Polled again after it was ready, which futures must not be.
            let Some((desk, draft)) = &mut this.open else {
                return Poll::Pending;
            };
            match &mut this.waits {
                Waits::LookUp(look_up) => {
                    for (item, quota) in ready!(look_up.as_mut().poll(cx)) {
                        let item = &mut draft.items[item];
                        item.tier = desk.tier(desk.bound(item.policy), quota);
                    }
                    this.waits = Waits::Store(match desk.ask(draft) {
                        StoreResponse::Ready(answer) => PendingResponse::ready(answer),
                        StoreResponse::Pending(answer) => answer,
                    });
                }
                Waits::Store(answer) => {
                    let answer = ready!(Pin::new(answer).poll(cx));
                    desk.decide(draft, answer);
                    return match this.open.take() {
                        Some((desk, draft)) => Poll::Ready(draft.finish(desk)),
                        None => Poll::Pending,
                    };
                }
            }
        }
    }
}

/// The quota of a request under one policy, while it is looked up.
pub(crate) struct QuotaLookUp {
    /// Returned with the quota.
    pub(crate) index: usize,
    /// The policy's name.
    pub(crate) policy: Arc<str>,
    pub(crate) look_up: LookUp,
    pub(crate) timeout: Duration,
}

/// The quota that a policy takes from a request. One that has to be looked up is added to `lookups`, to be returned with `index`.
pub(crate) fn quota_of_request(
    policy: &Policy,
    parts: &Parts,
    index: usize,
    lookups: &mut Vec<QuotaLookUp>,
) -> Option<Quota> {
    match policy.tiers() {
        Tiers::None => None,
        Tiers::Found(find) => find(parts),
        Tiers::LookedUp(look_up, timeout) => {
            lookups.push(QuotaLookUp {
                index,
                policy: policy.shared_name(),
                look_up: look_up(parts),
                timeout: *timeout,
            });
            None
        }
    }
}

/// How many look-ups that took too long run on at a time, in this process.
const MAX_LATE_LOOK_UPS: usize = 64;

/// Looks up quotas before the store is asked, by item.
pub(crate) fn look_up(lookups: Vec<QuotaLookUp>) -> Waits {
    Waits::LookUp(Box::pin(look_up_each(lookups)))
}

/// Awaits quotas that are being looked up, each no longer than its timeout.
pub(crate) async fn look_up_each(lookups: Vec<QuotaLookUp>) -> Vec<(usize, Quota)> {
    let mut found = Vec::new();
    let mut waiting: Vec<_> = lookups
        .into_iter()
        .map(|look_up| {
            let late = Box::pin(sleep(look_up.timeout));
            (Some(look_up), late)
        })
        .collect();
    poll_fn(|cx| {
        waiting.retain_mut(|(pending, late)| {
            if let Some(QuotaLookUp { index, look_up, .. }) = pending
                && let Poll::Ready(quota) = look_up.as_mut().poll(cx)
            {
                found.extend(quota.map(|quota| (*index, quota)));
                return false;
            }
            if late.as_mut().poll(cx).is_pending() {
                return true;
            }
            if let Some(pending) = pending.take() {
                run_on(pending);
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

/// Lets a look-up that took too long run on in the background, so that the application's cache fills.
#[cold]
fn run_on(pending: QuotaLookUp) {
    let QuotaLookUp {
        policy,
        look_up,
        timeout,
        ..
    } = pending;
    static RUNNING: Semaphore = Semaphore::const_new(MAX_LATE_LOOK_UPS);
    static LATE: Seldom = Seldom::new();
    let place = RUNNING.try_acquire().ok();
    let runs_on = match (place, Handle::try_current()) {
        (Some(place), Ok(runtime)) => {
            drop(runtime.spawn(async move {
                let _ = look_up.await;
                drop(place);
            }));
            true
        }
        _ => false,
    };
    LATE.then(|suppressed| {
        tracing::warn!(
            policy = &*policy,
            ?timeout,
            runs_on,
            suppressed,
            "quota_lookup exceeded its timeout; the policy's own quota is used"
        );
    });
}

//! Decisions that wait for the store, or for quotas to be looked up.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use http::request::Parts;
use tokio::{runtime::Handle, sync::Semaphore, time::sleep};

use super::decision_builder::DecisionBuilder;
use crate::{
    decision::Decision,
    limiter::{core::LimiterRef, keys::Keys, overrides::CheckOverrides},
    log::LogThrottle,
    policy::{Policy, QuotaLookupFuture, QuotaSource},
    quota::Quota,
    store::{Op, PendingResponse, StoreResponse},
};

/// A decision, ready or not.
pub(crate) enum MaybePending {
    Ready(Decision),
    Pending(PendingDecision),
}

/// A decision that waits for the store, or for quotas to be looked up. Dropping it cancels the request: the store refunds what it
/// charges for it (on Redis, `ResponseHandle`).
pub(crate) struct PendingDecision {
    /// Taken when the decision is made.
    state: Option<(Arc<LimiterRef>, DecisionBuilder)>,
    stage: PendingStage,
}

/// Quotas that are being looked up, with the index of their entry.
type QuotaLookups = Pin<Box<dyn Future<Output = Vec<(usize, Quota)>> + Send>>;

/// What a pending decision waits for.
pub(crate) enum PendingStage {
    QuotaLookup(QuotaLookups),
    Store(PendingResponse),
}

impl LimiterRef {
    /// Decides a call with its own keys.
    pub(crate) fn decide_keys(
        self: Arc<Self>,
        op: Op,
        keys: &Keys,
        overrides: &CheckOverrides,
    ) -> MaybePending {
        let mut builder = DecisionBuilder::of_call(op, Some(overrides));
        match self.evaluate_keys(&mut builder, keys, Some(overrides)) {
            None => MaybePending::Ready(builder.finish(self)),
            Some(stage) => MaybePending::Pending(PendingDecision::new(self, builder, stage)),
        }
    }
}

impl PendingDecision {
    pub(crate) fn new(
        limiter: Arc<LimiterRef>,
        builder: DecisionBuilder,
        stage: PendingStage,
    ) -> Self {
        let state = Some((limiter, builder));
        Self { state, stage }
    }
}

impl Future for PendingDecision {
    type Output = Decision;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Decision> {
        let this = &mut *self;
        loop {
            // Polled again after it was ready, which is a mistake: pending for ever.
            let Some((limiter, builder)) = &mut this.state else {
                return Poll::Pending;
            };
            match &mut this.stage {
                PendingStage::QuotaLookup(lookups) => {
                    for (index, quota) in ready!(lookups.as_mut().poll(cx)) {
                        let entry = &mut builder.entries[index];
                        let bound = limiter.bound(entry.policy);
                        entry.quota_override = limiter.quota_override(bound, quota);
                    }
                    this.stage = PendingStage::Store(match limiter.execute(builder) {
                        StoreResponse::Ready(response) => PendingResponse::ready(response),
                        StoreResponse::Pending(response) => response,
                    });
                }
                PendingStage::Store(response) => {
                    let response = ready!(Pin::new(response).poll(cx));
                    limiter.apply_response(builder, response);
                    return match this.state.take() {
                        Some((limiter, builder)) => Poll::Ready(builder.finish(limiter)),
                        None => Poll::Pending,
                    };
                }
            }
        }
    }
}

/// The lookup of a request's quota under one policy.
pub(crate) struct QuotaLookup {
    /// Returned with the quota.
    pub(crate) index: usize,
    /// The policy's name.
    pub(crate) policy: Arc<str>,
    pub(crate) lookup: QuotaLookupFuture,
    pub(crate) timeout: Duration,
}

/// The quota that a policy takes from a request. One that has to be looked up is added to `lookups`, to be returned with `index`.
pub(crate) fn quota_of_request(
    policy: &Policy,
    parts: &Parts,
    index: usize,
    lookups: &mut Vec<QuotaLookup>,
) -> Option<Quota> {
    match policy.quota_source() {
        QuotaSource::Policy => None,
        QuotaSource::FromRequest(find) => find(parts),
        QuotaSource::Lookup(look_up, timeout) => {
            lookups.push(QuotaLookup {
                index,
                policy: policy.shared_name(),
                lookup: look_up(parts),
                timeout: *timeout,
            });
            None
        }
    }
}

/// Upper bound of the lookups past their timeout that run on, in this process.
const MAX_LATE_LOOKUPS: usize = 64;

/// Starts lookups, after which the store is called.
pub(crate) fn start_lookups(lookups: Vec<QuotaLookup>) -> PendingStage {
    PendingStage::QuotaLookup(Box::pin(run_lookups(lookups)))
}

/// Awaits lookups, each no longer than its timeout.
pub(crate) async fn run_lookups(lookups: Vec<QuotaLookup>) -> Vec<(usize, Quota)> {
    let mut found = Vec::new();
    let mut waiting: Vec<_> = lookups
        .into_iter()
        .map(|pending| {
            let late = Box::pin(sleep(pending.timeout));
            (Some(pending), late)
        })
        .collect();
    poll_fn(|cx| {
        waiting.retain_mut(|(pending, late)| {
            if let Some(QuotaLookup { index, lookup, .. }) = pending
                && let Poll::Ready(quota) = lookup.as_mut().poll(cx)
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

/// Lets a lookup past its timeout run on in the background, so that the application's cache fills.
#[cold]
fn run_on(pending: QuotaLookup) {
    let QuotaLookup {
        policy,
        lookup,
        timeout,
        ..
    } = pending;
    static RUNNING: Semaphore = Semaphore::const_new(MAX_LATE_LOOKUPS);
    static LATE: LogThrottle = LogThrottle::new();
    let permit = RUNNING.try_acquire().ok();
    let runs_on = match (permit, Handle::try_current()) {
        (Some(permit), Ok(runtime)) => {
            drop(runtime.spawn(async move {
                let _ = lookup.await;
                drop(permit);
            }));
            true
        }
        _ => false,
    };
    LATE.log_with(|suppressed| {
        tracing::warn!(
            policy = &*policy,
            ?timeout,
            in_background = runs_on,
            suppressed,
            "quota_lookup exceeded its timeout; the policy's own quota is used"
        );
    });
}

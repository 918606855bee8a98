//! The quotas that policies take from requests, by a function or by a lookup that takes time.

use std::{
    future::{Future, pending, poll_fn},
    pin::Pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use http::request::Parts;
use tokio::{runtime::Handle, sync::Semaphore, time::Instant};

use super::mode::Mode;
use crate::{
    log::LogThrottle,
    policy::{Policy, quotas::QuotaLookupFuture},
    quota::Quota,
    runtime::{Timer, runtime_with_timers},
};

/// Lookups that run, which return the quotas with the index of their entry.
pub(crate) type QuotaLookups = Pin<Box<dyn Future<Output = Vec<(usize, Quota)>> + Send>>;

/// The lookup of a request's quota under one policy.
pub(crate) struct QuotaLookup {
    /// Returned with the quota.
    pub(crate) index: usize,
    /// The policy's name.
    pub(crate) policy: Arc<str>,
    pub(crate) lookup: QuotaLookupFuture,
    pub(crate) timeout: Duration,
}

/// The quota that a policy takes from a request. One that has to be looked up is added to `lookups`, to be returned with `index`;
/// under a mode that looks up none, one that never ends, without a call of the application.
pub(crate) fn quota_of_request(
    policy: &Policy,
    parts: &Parts,
    index: usize,
    mode: Mode,
    lookups: &mut Vec<QuotaLookup>,
) -> Option<Quota> {
    if !mode.looks_up_quotas && policy.looks_up_quota() {
        lookups.push(QuotaLookup {
            index,
            policy: policy.shared_name(),
            lookup: Box::pin(pending()),
            timeout: Duration::ZERO,
        });
        return None;
    }
    if let Some((lookup, timeout)) = policy.look_up_quota(parts) {
        lookups.push(QuotaLookup {
            index,
            policy: policy.shared_name(),
            lookup,
            timeout,
        });
        return None;
    }
    policy.quota_in_request(parts)
}

/// Upper bound of the lookups past their timeout that run on, in this process.
const MAX_LATE_LOOKUPS: usize = 64;

/// Awaits lookups, each no longer than its timeout. Without timers one that is not ready at once is late, since nothing would end a
/// lookup that hangs.
pub(crate) async fn run_lookups(lookups: Vec<QuotaLookup>) -> Vec<(usize, Quota)> {
    let mut found = Vec::new();
    let has_timers = runtime_with_timers().is_some();
    let mut waiting: Vec<_> = lookups
        .into_iter()
        .map(|pending| {
            let late = Instant::now().checked_add(pending.timeout);
            let late = has_timers.then(|| Timer::at(late));
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
            if late
                .as_mut()
                .is_some_and(|late| Pin::new(late).poll(cx).is_pending())
            {
                return true;
            }
            if let Some(pending) = pending.take() {
                run_on(pending, late.is_some());
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
fn run_on(pending: QuotaLookup, had_timer: bool) {
    let QuotaLookup {
        policy,
        lookup,
        timeout,
        ..
    } = pending;
    static RUNNING: Semaphore = Semaphore::const_new(MAX_LATE_LOOKUPS);
    static LATE: LogThrottle = LogThrottle::new();
    static UNTIMED: LogThrottle = LogThrottle::new();
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
    let policy = &*policy;
    if had_timer {
        LATE.log_with(|suppressed| {
            tracing::warn!(
                policy,
                ?timeout,
                in_background = runs_on,
                suppressed,
                "quota_lookup exceeded its timeout; the policy's own quota is used"
            );
        });
    } else {
        UNTIMED.log_with(|suppressed| {
            tracing::error!(
                policy,
                in_background = runs_on,
                suppressed,
                "quota_lookup can't wait outside of a tokio runtime with timers; the policy's own quota is used"
            );
        });
    }
}

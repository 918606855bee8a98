//! Decides a request by its entries and the store's response. While the store fails, policies with a local fallback are counted in
//! process, by this process's share of their quota.

use std::{mem, time::Duration};

use smallvec::SmallVec;

use super::{
    decision::{Decision, DecisionKind},
    entry::{Entry, longest_wait},
    policy_set::{BoundPolicy, PolicyRole, PolicySet},
    request::Purpose,
};
use crate::{
    error::{NotNow, StoreError},
    log::LogThrottle,
    observe::Event,
    policy::on_store_error::{OnMisconfiguration, OnStoreError},
    store::{
        CounterMode, CounterOp, CounterResult, DecisionSource, Op, OpResult, PendingResponse,
        Store, StoreResponse, TOO_FEW_RESULTS, Units, memory::MemoryStore,
    },
    strategy::{ChargeReceipt, LazyStatus, RetryAfter},
};

/// The `Retry-After` of a request that costs more than a share ever admits, and no more than the full quota.
const RETRY_AFTER_OUTAGE: Duration = Duration::from_secs(1);

/// The action for a request when the store fails. If its policies differ, the last of these actions is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FailureAction {
    Admit,
    LocalFallback,
    /// A waiting call attempts again until the store is back.
    Wait,
    Reject,
    /// The error is returned.
    Error,
}

/// Calls the store with the decision's entries. Returns the response if it is pending; otherwise the decision is complete.
#[inline(always)]
pub(crate) fn decide(decision: &mut Decision, purpose: Purpose) -> Option<PendingResponse> {
    if decision.entries.is_empty() {
        return None;
    }
    let response = with_ops(&decision.set, &decision.entries, purpose, |ops| {
        decision.set.store.execute(purpose.op(), ops)
    });
    match response {
        StoreResponse::Ready(result) => {
            apply(decision, purpose, result);
            None
        }
        StoreResponse::Pending(response) => Some(response),
    }
}

/// Completes the decision, if the store responds without waiting.
pub(crate) fn decide_now(decision: &mut Decision, purpose: Purpose) -> Result<(), NotNow> {
    if decision.entries.is_empty() {
        return Ok(());
    }
    let result = with_ops(&decision.set, &decision.entries, purpose, |ops| {
        decision.set.store.execute_now(purpose.op(), ops)
    });
    apply(decision, purpose, result.ok_or(NotNow::Store)?);
    Ok(())
}

/// Completes the decision by the store's response.
#[inline(always)]
pub(crate) fn apply(
    decision: &mut Decision,
    purpose: Purpose,
    result: Result<OpResult, StoreError>,
) {
    match result {
        Ok(result) if result.counters.len() < decision.entries.len() => {
            apply_failure(decision, purpose, TOO_FEW_RESULTS);
        }
        Ok(result) => apply_result(decision, purpose, &result),
        Err(error) => apply_failure(decision, purpose, error),
    }
    if !decision.is_admitted() {
        log_rejection(decision, purpose);
    }
}

/// Calls `f` with the store's operations for the entries.
#[inline(always)]
fn with_ops<T>(
    set: &PolicySet,
    entries: &[Entry],
    purpose: Purpose,
    f: impl FnOnce(&[CounterOp<'_>]) -> T,
) -> T {
    match entries {
        [entry] => f(&[arrival_op(set, entry, purpose)]),
        entries => {
            let ops = entries.iter().map(|entry| arrival_op(set, entry, purpose));
            f(&ops.collect::<SmallVec<[CounterOp<'_>; 4]>>())
        }
    }
}

#[inline(always)]
fn arrival_op<'a>(set: &'a PolicySet, entry: &'a Entry, purpose: Purpose) -> CounterOp<'a> {
    let bound = set.bound(entry.policy);
    let counts_nothing =
        bound.is_ban() && (purpose == Purpose::Attempt || bound.policy.is_block_list());
    CounterOp {
        limit: entry.limit(set),
        key: entry.key,
        units: if counts_nothing {
            Units::ZERO
        } else {
            entry.units()
        },
        receipt: None,
        caller: entry.caller(),
        mode: bound.mode,
    }
}

#[inline(always)]
fn apply_result(decision: &mut Decision, purpose: Purpose, result: &OpResult) {
    let set = &*decision.set;
    for (entry, counter) in decision.entries.iter_mut().zip(&result.counters[..]) {
        apply_counter(set, entry, counter, result);
    }
    decision.source = result.source;
    decision.admitted = result.admitted;
    let last = decision.entries.last().map(|last| last.role);
    let has_bans_or_shadows = last.is_some_and(|last| last != PolicyRole::Live);
    if has_bans_or_shadows && purpose.charges() && result.source == DecisionSource::Store {
        report_bans_begun(set, &decision.entries);
    }
    if purpose.charges() {
        if result.admitted == 0 {
            mark_rejected(decision);
        }
    } else if longest_wait(set, &decision.entries) != RetryAfter::Now {
        decision.kind = DecisionKind::Rejected;
    }
    if has_bans_or_shadows {
        apply_bans_and_shadows(decision, purpose);
    }
}

/// Sets one policy's status and receipt.
#[inline(always)]
pub(crate) fn apply_counter(
    set: &PolicySet,
    entry: &mut Entry,
    counter: &CounterResult,
    result: &OpResult,
) {
    let at = result.time_of(counter);
    let rule = entry.limit(set).rule();
    entry.receipt = ChargeReceipt {
        charged_at: at,
        remaining: counter.units,
        window_id: rule.window_id(&counter.snapshot, at),
    };
    entry.status = LazyStatus::Snapshot(counter.snapshot);
    if result.admitted_after > 0 && entry.role == PolicyRole::Live {
        // Equal requests were admitted after this one, so their units were available to it.
        let later = match set.bound(entry.policy).mode {
            CounterMode::Check => 0,
            _ => entry.units().of(result.admitted_after),
        };
        entry.update_status(set, |status| {
            status.remaining = status.remaining.saturating_add(later);
            status.retry_after = RetryAfter::Now;
        });
    }
    if result.source == DecisionSource::Lease {
        apply_lease(set, entry, counter, result.age);
    } else if !result.age.is_zero() {
        // The wait for a permit is a constant hint: it does not shorten as the result ages.
        if set.bound(entry.policy).is_permit() {
            entry.receipt.charged_at = at + result.age;
        } else {
            entry.age(set, result.age);
        }
    }
}

/// Sets the status and the receipt of a request that a lease admitted: the status follows from the store's last response and the
/// units that are held, and the units may have been charged before that response.
fn apply_lease(set: &PolicySet, entry: &mut Entry, counter: &CounterResult, age: Duration) {
    let (cost, held, charged_before) = (entry.cost, counter.held, counter.charged_before);
    // Held units may have refilled in the store.
    let capacity = entry.limit(set).info().capacity;
    entry.update_status(set, |status| {
        status.remaining = status.remaining.saturating_add(held).min(capacity);
        if held >= cost {
            status.retry_after = RetryAfter::Now;
        }
        // The date of the reset is that long after the charge.
        let reset_after = status.reset_after.saturating_add(charged_before);
        status.advance(age, cost);
        status.reset_after = reset_after;
    });
    entry.receipt.charged_at = entry.receipt.charged_at - charged_before;
}

fn mark_rejected(decision: &mut Decision) {
    decision.kind = DecisionKind::Rejected;
    for entry in &mut decision.entries {
        // Computed once, since a rejection reads the status several times.
        entry.status = LazyStatus::Resolved(entry.status(&decision.set));
    }
}

/// Evaluates shadows, and removes bans that do not block.
#[cold]
fn apply_bans_and_shadows(decision: &mut Decision, purpose: Purpose) {
    let set = &*decision.set;
    for entry in &mut decision.entries {
        if entry.is_shadow() {
            apply_shadow(set, entry, decision.admitted, purpose);
        }
    }
    if purpose.charges() {
        decision.entries.retain(|entry| {
            entry.role != PolicyRole::Ban || entry.status(set).retry_after != RetryAfter::Now
        });
    }
}

/// Sets whether a shadow would reject, and counts how many of the admitted requests it would have rejected.
fn apply_shadow(set: &PolicySet, entry: &mut Entry, admitted: u64, purpose: Purpose) {
    let charged = entry.receipt.remaining.checked_div(entry.cost).unwrap_or(0);
    let rejects = charged == 0 && entry.rejects(set);
    entry.role = PolicyRole::Shadow { rejects };
    if !purpose.charges() {
        return;
    }
    let would_reject = match charged {
        0 if rejects => admitted,
        // The shadow charges after the response, or the request costs nothing.
        0 => 0,
        charged => admitted.saturating_sub(charged),
    };
    let bound = set.bound(entry.policy);
    bound.state.shadow.record(admitted, would_reject);
    if would_reject > 0 {
        log_shadow(bound.policy.name(), admitted, would_reject);
    }
}

fn log_shadow(policy: &str, admitted: u64, would_reject: u64) {
    static WOULD_REJECT: LogThrottle = LogThrottle::new();
    WOULD_REJECT.log_with(|suppressed| {
        tracing::debug!(
            policy,
            admitted,
            would_reject,
            suppressed,
            "a shadow policy would reject admitted requests"
        );
    });
}

/// Reports the bans that began with what the store has counted, each once.
#[cold]
pub(crate) fn report_bans_begun(set: &PolicySet, entries: &[Entry]) {
    if set.observers.is_none() {
        return;
    }
    for entry in entries.iter().filter(|entry| entry.role == PolicyRole::Ban) {
        let LazyStatus::Snapshot(snapshot) = &entry.status else {
            continue;
        };
        let (bound, at) = (set.bound(entry.policy), entry.receipt.charged_at);
        let begun = entry.limit(set).rule().ban_begun(snapshot, at);
        if let Some(lasts) = begun.filter(|_| bound.state.bans_begun.add(entry.key, at)) {
            set.listener.on_event(&Event::BanBegan {
                policy: bound.policy.name(),
                key: &entry.key,
                lasts,
                by_hand: false,
            });
        }
    }
}

/// Completes the decision after a failure of the store.
#[cold]
fn apply_failure(decision: &mut Decision, purpose: Purpose, error: StoreError) {
    let entries = &decision.entries;
    let waits = match purpose {
        Purpose::Attempt => true,
        // A request that costs nothing has nothing to wait for.
        Purpose::LastAttempt => entries
            .iter()
            .any(|entry| entry.role == PolicyRole::Live && entry.cost > 0),
        Purpose::Check(_) | Purpose::Admit | Purpose::Peek => false,
    };
    let policies = entries.iter().map(|entry| decision.set.bound(entry.policy));
    let action = match purpose {
        Purpose::Peek => FailureAction::Error,
        _ => failure_action(&decision.set, policies, &error, waits),
    };
    log_failure(&decision.set, &error, action);
    match action {
        FailureAction::Admit => {
            decision.set_without_policies(DecisionKind::Admitted, DecisionSource::Fallback);
        }
        FailureAction::LocalFallback if decide_by_shares(decision, purpose) => {}
        FailureAction::LocalFallback
        | FailureAction::Wait
        | FailureAction::Reject
        | FailureAction::Error => {
            let kind = DecisionKind::StoreFailed(error);
            decision.set_without_policies(kind, DecisionSource::Fallback);
        }
    }
}

/// The action for a request of these policies after a failure. `waits` is whether a policy without a setting waits for the store.
pub(crate) fn failure_action<'a>(
    set: &PolicySet,
    policies: impl Iterator<Item = &'a BoundPolicy>,
    error: &StoreError,
    waits: bool,
) -> FailureAction {
    let rejects = set.on_misconfiguration == OnMisconfiguration::Reject;
    let is_misconfigured = rejects && error.is_misconfiguration();
    let enforced = policies.filter(|bound| !bound.is_shadow());
    let actions = enforced.map(|bound| match bound.on_store_error {
        _ if is_misconfigured => FailureAction::Reject,
        Some(OnStoreError::Reject) => FailureAction::Reject,
        Some(OnStoreError::LocalFallback(_)) => FailureAction::LocalFallback,
        Some(OnStoreError::Admit) => FailureAction::Admit,
        None if waits => FailureAction::Wait,
        None => FailureAction::Admit,
    });
    actions.max().unwrap_or(FailureAction::Admit)
}

/// Logs a failure of the store.
pub(crate) fn log_failure(set: &PolicySet, error: &StoreError, action: FailureAction) {
    match error.remedy() {
        Some(remedy) => set.misconfiguration_log.log_with(|suppressed| {
            tracing::error!(%error, remedy, ?action, suppressed, "rate limit store is misconfigured");
        }),
        None => set.outage_log.log_with(|suppressed| {
            tracing::warn!(%error, ?action, suppressed, "rate limit store failed");
        }),
    }
}

/// Decides by the policies that have a share, in process. Returns false if the store of the shares fails: it may be full.
fn decide_by_shares(decision: &mut Decision, purpose: Purpose) -> bool {
    let set = &*decision.set;
    let Some(shares) = &set.shares else {
        return false;
    };
    let entries = mem::take(&mut decision.entries).into_iter();
    decision.entries = entries
        .filter_map(|entry| entry_of_share(set, shares, entry))
        .collect();
    let response = with_ops(set, &decision.entries, purpose, |ops| {
        shares.execute(purpose.op(), ops)
    });
    let StoreResponse::Ready(Ok(result)) = response else {
        return false;
    };
    apply_result(decision, purpose, &result);
    decision.source = DecisionSource::Fallback;
    let set = &*decision.set;
    for entry in &mut decision.entries {
        let full_capacity = entry.quota.as_ref().and_then(|share| share.full_capacity);
        let fits = full_capacity.is_some_and(|capacity| entry.cost <= capacity);
        if fits && entry.status(set).retry_after == RetryAfter::Never {
            entry.update_status(set, |status| {
                status.retry_after = RetryAfter::In(RETRY_AFTER_OUTAGE);
            });
        }
    }
    true
}

/// The entry with this process's share of its quota; `None` if its policy has no share.
fn entry_of_share(set: &PolicySet, shares: &MemoryStore, entry: Entry) -> Option<Entry> {
    let bound = set.bound(entry.policy);
    let share = bound.share.as_ref()?;
    let share = share.of(
        shares,
        &bound.policy,
        &bound.other_quotas,
        entry.quota.as_ref(),
    );
    Some(Entry {
        quota: Some(share),
        ..entry
    })
}

/// Resets the shares of keys that the store has reset.
pub(crate) fn reset_shares(set: &PolicySet, entries: &[Entry]) {
    let Some(shares) = &set.shares else {
        return;
    };
    for entry in entries {
        if let Some(entry) = entry_of_share(set, shares, entry.clone()) {
            shares.execute_detached(Op::Reset, &[entry.counter_op(set)], None);
        }
    }
}

/// Logs a rejected request; not the attempt of a call that may attempt again.
#[cold]
pub(crate) fn log_rejection(decision: &Decision, purpose: Purpose) {
    let is_final = purpose.charges() && purpose != Purpose::Attempt;
    if !is_final || !tracing::enabled!(tracing::Level::DEBUG) {
        return;
    }
    let (set, entries) = (&*decision.set, &decision.entries);
    let mut enforced = entries.iter().filter(|entry| !entry.is_shadow());
    let by = enforced
        .find(|entry| entry.rejects(set))
        .filter(|_| matches!(decision.kind, DecisionKind::Rejected));
    let by_policy = by.map(|entry| (&set.bound(entry.policy).policy, entry));
    // In the form that the admin API and key lists read.
    let key = by_policy.map(|(policy, entry)| policy.key_text(&entry.key));
    let retry_after = by.and_then(|_| longest_wait(set, entries).duration());
    let outcome = decision.kind.outcome(false, false).as_str();
    tracing::debug!(
        outcome,
        policy = by_policy.map(|(policy, _)| policy.name()),
        key = key.as_deref().map(tracing::field::display),
        retry_after = retry_after.map(tracing::field::debug),
        "a request was rejected"
    );
}

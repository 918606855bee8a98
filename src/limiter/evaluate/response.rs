//! From the store's response to a decision.

use std::time::Duration;

use smallvec::SmallVec;

use super::decision_builder::DecisionBuilder;
use crate::{
    decision::{DecisionKind, LazyStatus, PolicyEntry, PolicyRole, longest_wait},
    error::StoreError,
    limiter::{core::LimiterRef, held_permits::HeldPermits},
    store::{CounterMode, CounterResult, DecisionSource, Op, OpResult, TOO_FEW_RESULTS},
    strategy::{ChargeReceipt, RetryAfter},
};

impl LimiterRef {
    /// Applies the store's response.
    #[inline(always)]
    pub(crate) fn apply_response(
        &self,
        builder: &mut DecisionBuilder,
        response: Result<OpResult, StoreError>,
    ) {
        match response {
            Ok(result) if result.counters.len() < builder.entries.len() => {
                self.handle_store_error(builder, TOO_FEW_RESULTS);
            }
            Ok(result) => {
                if builder.op == Op::Reset {
                    // Before anything is written back, or what was reset would be charged again.
                    self.clear_local_state(builder);
                }
                if result.source == DecisionSource::Store {
                    self.write_back();
                }
                if self.apply_result(builder, &result) {
                    self.log_rejected(builder);
                }
            }
            Err(error) => self.handle_store_error(builder, error),
        }
    }

    /// Clears what this process keeps of keys that the store has reset.
    #[cold]
    fn clear_local_state(&self, builder: &DecisionBuilder) {
        let entries = builder.entries.iter();
        let keys = entries.map(|entry| (entry.policy, entry.key));
        self.wait_queues
            .clear_rejections(self.generation, &keys.collect::<SmallVec<[_; 1]>>());
        self.reset_local_shares(&builder.entries);
    }

    /// Applies a result; returns whether it rejects the request.
    #[inline(always)]
    pub(crate) fn apply_result(&self, builder: &mut DecisionBuilder, result: &OpResult) -> bool {
        let entries = &mut builder.entries[..];
        // Entries are ordered by role: bans follow live policies, and shadows bans.
        let has_bans_or_shadows = entries
            .last()
            .is_some_and(|last| last.role != PolicyRole::Live);
        for (entry, counter) in entries.iter_mut().zip(&result.counters[..]) {
            self.apply_counter(entry, counter, result);
        }
        builder.source = result.source;
        builder.admitted = result.admitted;
        let acquires = matches!(builder.op, Op::Acquire(_));
        let rejected = acquires && result.admitted == 0;
        if rejected {
            self.mark_rejected(builder);
        }
        if !acquires || has_bans_or_shadows || self.has_permits {
            self.apply_rare_cases(builder, result);
        }
        rejected
    }

    /// Sets one policy's status and receipt.
    #[inline(always)]
    fn apply_counter(&self, entry: &mut PolicyEntry, counter: &CounterResult, result: &OpResult) {
        let at = result.time_of(counter);
        entry.lazy_status = LazyStatus::Snapshot(counter.snapshot);
        let bound = self.bound(entry.policy);
        let rule = bound.limit_of(entry).rule();
        entry.receipts.set_first(ChargeReceipt {
            charged_at: at,
            remaining: counter.units,
            window_id: rule.window_id(&counter.snapshot, at),
        });
        // `admitted_after` is 0 for a rejected one of equal requests.
        if result.admitted_after > 0 && entry.role == PolicyRole::Live {
            // Equal requests were admitted after this one, so their units were still available.
            let later = match bound.policy.counter_mode() {
                CounterMode::Check => 0,
                _ => entry.units().of(result.admitted_after),
            };
            entry.update_status(self, |status| {
                status.remaining = status.remaining.saturating_add(later);
                status.retry_after = RetryAfter::Now;
            });
        }
        if result.source == DecisionSource::Lease {
            self.apply_lease(entry, counter, result.age);
        } else if !result.age.is_zero() {
            // The wait for a permit is a hint, which does not age.
            if self.limit(entry).permit_ttl().is_none() {
                let cost = entry.cost;
                entry.update_status(self, |status| status.advance(result.age, cost));
            }
            entry.receipts.age_by(result.age);
        }
    }

    /// Sets the status and the receipt of a request that a lease admitted: the status is by the store's last response and the units
    /// that are held, and the units may have been charged before that response.
    fn apply_lease(&self, entry: &mut PolicyEntry, counter: &CounterResult, age: Duration) {
        let (cost, held, charged_before) = (entry.cost, counter.held, counter.charged_before);
        // Held units may have refilled in the store.
        let capacity = self.limit(entry).capacity();
        entry.update_status(self, |status| {
            status.remaining = status.remaining.saturating_add(held).min(capacity);
            if held >= cost {
                status.retry_after = RetryAfter::Now;
            }
            // The date of the reset is that long after the charge.
            let reset_after = status.reset_after.saturating_add(charged_before);
            status.advance(age, cost);
            status.reset_after = reset_after;
        });
        let latest = entry.receipts.first();
        entry.receipts.set_first(ChargeReceipt {
            charged_at: latest.charged_at - charged_before,
            ..latest
        });
    }

    fn mark_rejected(&self, builder: &mut DecisionBuilder) {
        builder.kind = DecisionKind::Rejected;
        for entry in &mut builder.entries {
            // Resolved now, since a rejection reads it several times.
            entry.lazy_status = LazyStatus::Resolved(entry.status(self));
        }
    }

    /// Applies what only peeks, bans, shadows and permits need.
    #[cold]
    fn apply_rare_cases(&self, builder: &mut DecisionBuilder, result: &OpResult) {
        let acquires = matches!(builder.op, Op::Acquire(_));
        if !acquires && longest_wait(self, &builder.entries) != RetryAfter::Now {
            builder.kind = DecisionKind::Rejected;
        }
        let last = builder.entries.last().map(|last| last.role);
        if let Some(PolicyRole::Ban | PolicyRole::Shadow { .. }) = last {
            self.report_bans_begun(builder, result);
            self.apply_bans_and_shadows(builder);
        }
        let admitted = matches!(builder.kind, DecisionKind::Admitted);
        if acquires && admitted && self.has_permits {
            let entries = builder.entries.iter();
            let permits = entries.filter(|entry| self.bound(entry.policy).is_permit());
            // With receipts of their own. A permit that is refunded by its holder and by the decision is refunded once, since its
            // caller identifies it in the store.
            let permits = permits.filter_map(|entry| {
                let units = entry.receipts.first().remaining;
                (units > 0).then(|| entry.with_receipts(entry.receipts.split(units)))
            });
            builder.permit = HeldPermits::hold(self.core(), permits.collect(), self.permit_ttl);
        }
    }

    fn apply_bans_and_shadows(&self, builder: &mut DecisionBuilder) {
        if matches!(builder.op, Op::Acquire(_) | Op::Peek) {
            self.record_shadows(builder);
        }
        if matches!(builder.op, Op::Acquire(_)) {
            // A ban that does not block is not part of the decision.
            builder.entries.retain(|entry| {
                entry.role != PolicyRole::Ban || entry.status(self).retry_after != RetryAfter::Now
            });
        }
    }
}

//! Shadow policies, which are evaluated and not enforced: of the requests that the enforced policies admit, a shadow charges
//! those that it would admit too. Stores evaluate them in `store/fit.rs`, and on Redis in `script/operations.lua`.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{
    bound_policy::Enforcement, core::LimiterRef, decide::DecisionBuilder, entry::PolicyRole,
};
use crate::{log::LogThrottle, observe::ShadowStats, store::Op};

impl LimiterRef {
    /// Sets whether each shadow would reject, and counts how many of the admitted requests it would have rejected.
    pub(crate) fn record_shadows(&self, builder: &mut DecisionBuilder) {
        let acquires = matches!(builder.op, Op::Acquire(_));
        for entry in &mut builder.entries {
            let bound = self.bound(entry.policy);
            let Enforcement::Shadow(counters) = &bound.enforcement else {
                continue;
            };
            let charged = entry.receipts.first().remaining;
            let charged_requests = charged.checked_div(entry.cost).unwrap_or(0);
            let rejects = charged_requests == 0 && entry.rejects(self);
            entry.role = PolicyRole::Shadow { rejects };
            if !acquires {
                continue;
            }
            let admitted = builder.admitted;
            let would_reject = match charged_requests {
                0 if rejects => admitted,
                // It charges after the response, or the request costs nothing.
                0 => 0,
                charged => admitted.saturating_sub(charged),
            };
            counters.record(admitted, would_reject);
            if would_reject > 0 {
                log_rejection(bound.policy.name(), admitted, would_reject);
            }
        }
    }
}

fn log_rejection(policy: &str, admitted: u64, would_reject: u64) {
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

/// Counts what a [shadow policy](crate::Policy::shadow) would have rejected.
#[derive(Debug, Default)]
pub(crate) struct ShadowCounters {
    evaluated: AtomicU64,
    would_reject: AtomicU64,
}

impl ShadowCounters {
    fn record(&self, evaluated: u64, would_reject: u64) {
        self.evaluated.fetch_add(evaluated, Ordering::Relaxed);
        self.would_reject.fetch_add(would_reject, Ordering::Relaxed);
    }

    pub(crate) fn stats(&self) -> ShadowStats {
        ShadowStats {
            evaluated: self.evaluated.load(Ordering::Relaxed),
            would_reject: self.would_reject.load(Ordering::Relaxed),
        }
    }
}

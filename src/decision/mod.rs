//! The decision on a request, with one policy decision for each policy.

use std::{fmt, future::Future, pin::Pin, sync::Arc};

use smallvec::SmallVec;

use crate::{
    clock::Timestamp,
    error::{StoreError, UnknownPolicy},
    outcome,
    quota::Quota,
    store::{DecisionSource, Op},
    strategy::{ChargeReceipt, QuotaStatus, RetryAfter, Snapshot},
};

mod brief;
pub(crate) mod entry;
mod permit;
pub(crate) mod policy_decision;
pub(crate) mod quota_override;
mod receipts;
mod refund;
pub(crate) mod response_cache;

pub(crate) use self::entry::{Counted, Part, Standing};
pub use self::policy_decision::PolicyDecision;
pub(crate) use self::response_cache::{Problem, Said};
pub(crate) use brief::Brief;
pub(crate) use permit::{DecisionPermit, Permit};
pub(crate) use receipts::{Piece, Receipts};
pub use refund::Refund;

/// The result for a request: whether it was admitted, and its status under each policy that applied.
///
/// It holds the permits of [in-flight limits](crate::Concurrency); dropping the last clone releases them.
/// [`into_result`](Decision::into_result) passes them to an [`Admission`](crate::Admission), which
/// [`Limiter::admit`](crate::Limiter::admit) returns directly. A decision that is dropped with a permit is logged as an error,
/// once per policy:
///
/// ```
/// # use tollgate::{Key, Limiter, Rejected};
/// # async fn work() {}
/// # async fn f(limiter: Limiter, key: Key) -> Result<(), Rejected> {
/// // Wrong: the decision is dropped before the block, and its permit with it.
/// if limiter.check(key).await.is_admitted() {
///     work().await;
/// }
/// // Right: the permit is held until the end of the scope.
/// let _admission = limiter.admit(key).await?;
/// work().await;
/// # Ok(())
/// # }
/// ```
///
/// Clones share the request's charge: a unit is [refunded](Decision::refund) once, by any of them. Each keeps the results as
/// they were when it was cloned.
///
/// A decision must be used:
///
/// ```compile_fail
/// #![deny(unused_must_use)]
/// # async fn f(limiter: tollgate::Limiter) {
/// // Enforces nothing.
/// limiter.check("alice").await;
/// # }
/// ```
#[derive(Clone)]
#[must_use = "a request may be rejected, and dropping its decision releases the permits of in-flight limits"]
pub struct Decision {
    pub(crate) books: Arc<dyn Books>,
    pub(crate) kind: DecisionKind,
    pub(crate) source: DecisionSource,
    pub(crate) admitted: u64,
    pub(crate) counted: SmallVec<[Counted; 1]>,
    /// The permits of in-flight limits, until an admission takes them over.
    pub(crate) permit: DecisionPermit,
}

/// Whether a request was admitted, and if not, why.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum DecisionKind {
    /// The request is admitted and charged.
    Admitted,
    /// A quota is exhausted, or the key is banned. Nothing was charged, unless a policy [charges rejected
    /// requests](crate::Policy::charge_rejected).
    Rejected,
    /// The request has no key for the policy, which [rejects](crate::MissingKey::Reject) such requests. Nothing was charged.
    #[non_exhaustive]
    MissingKey {
        /// The policy's name.
        policy: Arc<str>,
        /// What the request lacks, as the response says it: `the header x-api-key`.
        missing: Arc<str>,
    },
    /// The request is on a [deny list](crate::LimiterBuilder::deny). Nothing was charged.
    DenyListed,
    /// The store failed, and the limiter [rejects](crate::OnStoreError::Reject) requests then. The request may have been
    /// charged: see the error.
    StoreFailed(StoreError),
    /// A call by hand names a policy that the limiter does not have: a mistake in the application, logged as an error at most
    /// every 10 s. Nothing was charged.
    UnknownPolicy(UnknownPolicy),
    /// The policy takes its quota, its cost or its conditions from requests, and a call by hand has none: a mistake in the
    /// application, logged as an error at most every 10 s. Nothing was charged. See [`Check::parts`](crate::Check::parts).
    #[non_exhaustive]
    PartsRequired {
        /// The policy's name.
        policy: Arc<str>,
    },
}

/// Those who keep the counts: what a decision needs of its limiter.
pub(crate) trait Books: Send + Sync {
    /// The name of a policy.
    fn name(&self, policy: u32) -> &str;
    /// The name of the policy that a shadow would take the place of.
    fn live_name(&self, policy: u32) -> Option<&str>;
    /// The names of all policies.
    fn names(&self) -> Vec<&str>;
    /// Where a policy is counted, if that is known: the store's number, the policy's name and its state format.
    fn counted_at(&self, policy: u32) -> Option<(u64, &str, &'static str)>;
    /// Logs that an outer layer has counted the request in the same place.
    fn log_counted_twice(&self, policy: &str);
    /// What is said of its policies each time.
    fn said(&self) -> &Said;
    /// The quota that was applied, and the most units that can pass at once.
    fn quota(&self, counted: &Counted) -> (Quota, u64);
    /// Whether what was used comes back unit by unit, not all at once.
    fn refills_gradually(&self, counted: &Counted) -> bool;
    /// What a state that was seen on arrival says to who was counted so.
    fn status(&self, counted: &Counted, snapshot: &Snapshot) -> QuotaStatus;
    /// When it was judged, by a wall clock.
    fn judged_at(&self, counted: &Counted) -> Timestamp;
    /// Which store and which of its shards counts it: what is counted in one is adjusted together, all or nothing.
    fn shard(&self, counted: &Counted) -> (bool, usize);
    /// Charges past what is left, or refunds units of receipts: all lines, which are of one shard, or none.
    fn adjust(&self, ask: Op, lines: &[Adjust<'_>]) -> Adjusting;
    /// The same, done also if nothing waits for it, where there is no runtime, and later if the store can't be reached now. An
    /// error says no more than that there is no answer.
    fn adjust_detached(&self, ask: Op, lines: &[Adjust<'_>]) -> Adjusting;
    /// Refunds what was charged, without waiting for it.
    fn give_back(&self, counted: &mut [Counted]);
    /// Whether the charge depends on what becomes of the request.
    fn settles(&self, counted: &Counted) -> bool;
    /// Whether the policy is an in-flight limit.
    fn is_permit(&self, counted: &Counted) -> bool;
    /// Whether a policy charges a request that ended so. It calls the application's closure, so not under a lock.
    fn charges(&self, policy: u32, outcome: &outcome::Outcome<'_>) -> bool;
    /// Charges or refunds at the end of the request, which `charges` or does not, without waiting for it. If an admission
    /// still `watches`, it returns the charge that is being made, for its receipt.
    fn settle(&self, counted: &mut Counted, charges: bool, watches: bool) -> Option<Adjusting>;
}

/// A charge to be made, or units of a receipt to be refunded.
pub(crate) struct Adjust<'a> {
    pub(crate) counted: &'a Counted,
    /// Of a refund.
    pub(crate) receipt: ChargeReceipt,
    pub(crate) units: u64,
}

/// Charges that are being made or refunded. It has an answer to each line.
pub(crate) type Adjusting = Pin<Box<dyn Future<Output = Result<AllAdjusted, StoreError>> + Send>>;

/// Charges that were made or refunded, in the order of their lines.
pub(crate) type AllAdjusted = SmallVec<[Adjusted; 1]>;

/// A charge that was made or given back.
#[derive(Debug)]
pub(crate) struct Adjusted {
    /// How many units were.
    pub(crate) units: u64,
    /// Of a charge.
    pub(crate) receipt: ChargeReceipt,
    /// How it stands since then.
    pub(crate) status: QuotaStatus,
}

impl Decision {
    /// Whether the request was admitted.
    pub fn is_admitted(&self) -> bool {
        matches!(self.kind, DecisionKind::Admitted)
    }

    /// The number of requests that were admitted: 0 or 1, or more of a [`check`](crate::Limiter::check) for
    /// [several](crate::Check::times).
    pub fn admitted(&self) -> u64 {
        self.admitted
    }

    /// Whether the request was admitted, and if not, why.
    pub fn kind(&self) -> &DecisionKind {
        &self.kind
    }

    /// The source of the decision: the store, the rejection cache, or the fallback.
    pub fn source(&self) -> DecisionSource {
        self.source
    }

    /// The result under each enforced policy that applied, in the order of the [builder's](crate::LimiterBuilder::policy)
    /// calls. Empty if the store failed. A [ban](crate::Ban) has one while it blocks the key, and in a
    /// [`peek`](crate::Limiter::peek).
    pub fn policies(&self) -> impl ExactSizeIterator<Item = PolicyDecision<'_>> {
        let (enforced, _) = self.counted.split_at(self.enforced());
        enforced.iter().map(|counted| self.verdict_of(counted))
    }

    /// The result under each [shadow policy](crate::Policy::shadow) that applied.
    pub fn shadows(&self) -> impl ExactSizeIterator<Item = PolicyDecision<'_>> {
        let (_, shadows) = self.counted.split_at(self.enforced());
        shadows.iter().map(|counted| self.verdict_of(counted))
    }

    /// The result under the policy of that name, enforced or not; `None` if it did not apply.
    pub fn policy(&self, policy: &str) -> Option<PolicyDecision<'_>> {
        let verdicts = self.counted.iter().map(|counted| self.verdict_of(counted));
        let mut named = verdicts.filter(|verdict| verdict.policy() == policy);
        named.next()
    }

    /// The same for other charges, such as parts of these.
    pub(crate) fn with_counted(&self, counted: impl IntoIterator<Item = Counted>) -> Self {
        Self {
            books: self.books.clone(),
            kind: self.kind.clone(),
            source: self.source,
            admitted: self.admitted,
            counted: counted.into_iter().collect(),
            permit: self.permit.clone(),
        }
    }

    fn verdict_of<'a>(&'a self, counted: &'a Counted) -> PolicyDecision<'a> {
        PolicyDecision {
            decision: self,
            counted,
        }
    }

    /// How many policies are enforced: they stand first.
    fn enforced(&self) -> usize {
        self.counted.partition_point(|counted| !counted.is_shadow())
    }

    /// Whether a [ban](crate::Ban) rejected it.
    pub(crate) fn is_banned(&self) -> bool {
        let mut policies = self.policies();
        policies.any(|policy| policy.counted.part == Part::Ban && policy.rejected())
    }

    /// The wait until the same request would be admitted: the longest of all policies under which it costs something.
    /// [`Unknown`](RetryAfter::Unknown) if the store failed (responses then have `Retry-After: 1`),
    /// [`Never`](RetryAfter::Never) if waiting does not help.
    pub fn retry_after(&self) -> RetryAfter {
        match &self.kind {
            DecisionKind::Admitted => retry(&*self.books, &self.counted),
            DecisionKind::Rejected => match retry(&*self.books, &self.counted) {
                RetryAfter::Now => RetryAfter::Unknown,
                wait => wait,
            },
            DecisionKind::MissingKey { .. }
            | DecisionKind::DenyListed
            | DecisionKind::UnknownPolicy(_)
            | DecisionKind::PartsRequired { .. } => RetryAfter::Never,
            DecisionKind::StoreFailed(_) => RetryAfter::Unknown,
        }
    }
}

/// When a request that is counted so would pass.
pub(crate) fn retry(books: &dyn Books, counted: &[Counted]) -> RetryAfter {
    let enforced = counted.iter().take_while(|counted| !counted.is_shadow());
    let charged = enforced.filter(|counted| counted.cost > 0);
    let waits = charged.map(|counted| counted.status(books).retry_after);
    waits.max().unwrap_or(RetryAfter::Now)
}

impl fmt::Debug for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decision")
            .field("kind", &self.kind)
            .field("source", &self.source)
            .field("policies", &self.policies().collect::<Vec<_>>())
            .field("shadows", &self.shadows().collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

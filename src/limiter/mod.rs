//! Calls of a [`Limiter`] by hand, what they return, and what builds one.

// Policies over a store, with or without HTTP.
//
// A request's way through it:
//
// 1. A call enters by a method of `Limiter`, whose `Check` (`check`) evaluates it when it is polled; a layer calls
//    `LimiterRef::evaluate_request`. Both work on `core`: the policies, each bound to its limit in the store.
// 2. `resolve` lets `access` decide what needs no store: access lists, skip rules and invalid calls. Then it adds an entry with
//    key, cost and quota for each policy that applies to a `DecisionBuilder` (`decide`).
// 3. It makes one operation of the store for all entries. `PendingDecision` awaits a response that is not
//    ready.
// 4. `decide` sets each entry's status and receipt from the response, and adds shadows (`shadow`), bans and permits (`permits`).
//    After a store error, `fallback` decides. The result is a `Decision`, or an `Admission` or `Rejected` made of one.
// 5. The decision refers to the limiter, which charges, refunds and settles for it later (`adjust`, `settle`).
//
// Requests that wait form queues: `wait` and the files named after it.
//
// What is not on that way:
//
// - a limiter is built, or its policies are replaced: `builder`, `validate`, `bind` (which says what is kept), `bound_policy`;
// - calls by hand: `keys`, `check`, `handle` and `credit`; what applies to each entry point: `mode`; `bans`; `explain`, which charges nothing;
// - quotas other than a policy's own: `other_quotas`; of single keys, set by operators: `overrides`; while the store fails: `fallback`;
// - charges in a handler: `policy_admission`; what is left of each charge: `entry`;
// - requests without a key: `bound_policy`; for operators: `report_decision`, `health_checks`, `shutdown`.

mod access;
mod adjust;
pub(crate) mod admission;
mod bans;
mod bind;
mod block_list;
mod bound_policy;
mod builder;
mod check;
mod core;
mod credit;
mod decide;
pub(crate) mod decision;
mod entry;
pub(crate) mod explain;
mod fallback;
mod handle;
mod health_checks;
mod keys;
#[expect(
    clippy::module_inception,
    reason = "the folder's files are parts of a limiter"
)]
pub(crate) mod limiter;
mod mode;
mod other_quotas;
mod overrides;
mod permits;
mod policy_admission;
mod policy_decision;
pub(crate) mod rejected;
mod report_decision;
mod resolve;
mod settle;
mod shadow;
mod shutdown;
mod wait;
mod wait_list;
mod wait_queue;
#[allow(dead_code, reason = "it replaces `wait_queue`")]
mod wait_queues;

#[cfg(feature = "admin")]
pub(crate) use self::entry::PolicyRole;
pub(crate) use self::{
    admission::Admission,
    core::{CachedBody, LimiterRef, LimiterRefs},
    decide::{DecisionBuilder, PendingDecision},
    decision::Decision,
    limiter::Limiter,
    permits::HeldPermits,
    rejected::{Rejected, status_of},
    wait::DEFAULT_MAX_WAITERS,
};
pub use self::{
    admission::PermitGuard,
    bans::{Block, Blocks},
    builder::LimiterBuilder,
    check::{Check, CheckFuture},
    credit::{Credit, CreditFuture, Credited},
    decision::{DecisionKind, Refund},
    handle::PolicyHandle,
    keys::{CallEntry, Keys},
    overrides::ListedOverride,
    policy_admission::{PolicyAdmission, UnitMeter},
    policy_decision::{LimitStatus, PolicyDecision},
    settle::SettleError,
    shutdown::ShutdownError,
    wait::{Wait, WaitFuture},
};
pub use crate::{
    error::overrides::OverrideError,
    policy::on_store_error::OnMisconfiguration,
    store::overrides::{Override, OverrideLimit},
};

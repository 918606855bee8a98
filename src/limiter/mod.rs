//! Calls of a [`Limiter`] by hand, what they return, and what builds one.

// A file imports only from files of its own group and of earlier ones, and there are no cycles:
//
// 1. Calls and policies: the `keys` of a call; a `request`; `policy_set`, the policies in force, each bound to a limit of the store,
//    with a `policy_state` and `quota_limits` for other quotas; a `listener`, which charges and permits report to.
// 2. A `decision` is data: whether a request is admitted, with an `entry` for each policy that applies. `rejected` is its error.
// 3. `resolve` finds the entries of a request, with key, cost and quota, or an `early` decision. `decide` calls the store, and fills
//    in the decision.
// 4. `charge` settles and refunds what was charged, by an `adjust_call` of the store. `permits` are charges that the store keeps
//    alive. `admission` is what a handler and its layers share of these.
// 5. `wait_queues` are fair queues of anything. `report` calls observers; `evaluate` is a request's way through 3, reported.
// 6. `current` is a `Limiter`, and what outlives its policies, such as its `health` checks. `bind` makes a policy set from a
//    `builder`.
// 7. The calls: `check`, `adjust`, `wait`, `explain`, `bans`, `block_list`, `handle`, `overrides`, `shutdown`. `limiter` has the
//    methods of a `Limiter` that make them.

mod adjust;
mod adjust_call;
pub(crate) mod admission;
mod bans;
mod bind;
mod block_list;
mod builder;
mod charge;
mod check;
pub(crate) mod current;
mod decide;
pub(crate) mod decision;
mod early;
mod entry;
mod evaluate;
pub(crate) mod explain;
mod handle;
mod health;
mod keys;
#[expect(
    clippy::module_inception,
    reason = "the folder's files are parts of a limiter"
)]
mod limiter;
mod listener;
mod overrides;
mod permits;
mod policy_set;
mod policy_state;
mod quota_limits;
pub(crate) mod rejected;
mod report;
mod request;
mod resolve;
mod shutdown;
mod wait;
mod wait_queues;

#[cfg(feature = "admin")]
pub(crate) use self::policy_set::PolicyRole;
pub use self::{
    adjust::{Adjust, AdjustFuture, Credit, Credited},
    admission::{PermitGuard, PolicyAdmission, SettleError, UnitMeter},
    bans::{Block, Blocks},
    builder::LimiterBuilder,
    charge::Refund,
    check::{Check, CheckFuture},
    decision::{DecisionKind, LimitStatus, PolicyDecision},
    handle::PolicyHandle,
    keys::{CallEntry, Keys},
    overrides::ListedOverride,
    shutdown::ShutdownError,
    wait::{Wait, WaitFuture},
};
pub(crate) use self::{
    admission::Admission,
    current::Limiter,
    decision::Decision,
    evaluate::{PendingDecision, evaluate},
    permits::Permits,
    policy_set::{CachedBody, PolicySet},
    rejected::{Rejected, status_of},
    request::{KeySource, LimitRequest, Purpose, RequestHead},
    wait::DEFAULT_MAX_WAITERS,
};
pub use crate::{
    error::overrides::OverrideError,
    policy::on_store_error::OnMisconfiguration,
    store::overrides::{Override, OverrideLimit},
};

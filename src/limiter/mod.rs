//! Calls of a [`Limiter`] by hand, what they return, and what builds one.

// A file imports only from those before it:
//
// 1. What there is: `keys` of a call, a `request`, and `policy_set`, the policies in force, each bound to a limit of the store, with
//    other `quota_limits` and a `policy_state`. `bind` makes a set from a `builder`.
// 2. `resolve` finds the entries of a request: the policies that apply, with key, cost and quota of each; or an `early` answer.
// 3. `decide` makes a `decision` of entries and the store's answer. A decision is data.
// 4. `charge` settles and refunds what was charged, by an `adjust_call` of the store, and reports to a `listener`.
// 5. `permits` are charges that the store keeps alive.
// 6. `admission` is what a handler and its layers share: decisions, charges and permits.
// 7. `wait_queues` are fair queues of anything, and import nothing.
// 8. `report` has what observers receive; `evaluate` is a request's way through 2, 3 and 8.
// 9. `limiter` has the public calls. They are made by `check`, `adjust`, `wait`, `explain`, `bans`, `handle`, `overrides`, over the
//    policies in force, `current`.

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

//! The JSON of the admin API: the bodies of requests, and the answers.
//!
//! Clients in Rust use these types; others find them in the [OpenAPI document](OPENAPI). Later versions may add fields to answers,
//! so clients ignore those that they do not know.

/// The OpenAPI document of the routes, which `GET /openapi.json` answers.
pub const OPENAPI: &str = include_str!("../../../tollgate.openapi.json");

mod activity;
mod answers;
mod explain;
mod requests;

pub use self::{
    activity::{
        ActivityReport, BreakerInfo, Latencies, LatencyInfo, LeaseInfo, PolicyActivity,
        ProcessInfo, StoreInfo, TopKeyInfo, TopPolicy, TopReport,
    },
    answers::{
        BlockInfo, Blocked, BlockedKey, BlocksInfo, Callers, ConfigInForce, Credited, Health,
        IncompleteReason, LeaseSettings, OverrideChanged, OverrideInfo, OverridesInfo, Policies,
        PolicyInfo, Problem, Reset, Restored, Role, Shadow, Shadows, Status, Unblocked, WatchInfo,
    },
    explain::{ExplainRequest, ExplainedPolicyInfo, ExplanationInfo},
    requests::{
        BlockRequest, CallersRequest, CreditRequest, KeyText, OverrideKey, OverrideRequest,
        PeekRequest, ResetRequest, RestoreRequest, UnblockRequest,
    },
};

//! Calls for operators and applications beside a request's check.

pub(crate) mod bans;
pub(crate) mod blocks;
pub(crate) mod credit;
pub(crate) mod explain;
pub(crate) mod explanation;
pub(crate) mod handle;
pub(crate) mod health_check;
pub(crate) mod peek_request;
pub(crate) mod shutdown;
pub(crate) mod wait;

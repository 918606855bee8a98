//! From a request to the store's operations, and from its response to a decision.

pub(crate) mod access;
pub(crate) mod decision_builder;
pub(crate) mod fallback;
pub(crate) mod quota_lookup;
pub(crate) mod request;
pub(crate) mod response;
pub(crate) mod shadow;
pub(crate) mod trace;

//! From a request to the store's operations, and from its response to a decision.

pub(crate) mod decide;
pub(crate) mod door;
pub(crate) mod draft;
pub(crate) mod fallback;
pub(crate) mod judge;
pub(crate) mod pending;
pub(crate) mod shadow;

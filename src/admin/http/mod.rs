//! Requests and responses of the admin API.

pub(super) mod input;
pub(super) mod json;
pub(super) mod problem;

//! The handlers of the routes.

pub(super) mod activity;
pub(super) mod blocks;
pub(super) mod explain;
pub(super) mod health;
pub(super) mod keys;
pub(super) mod policies;
mod status;

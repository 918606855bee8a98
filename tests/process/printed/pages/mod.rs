//! What each page needs besides its commands.

pub(crate) mod admin;
pub(crate) mod cli;
pub(crate) mod examples;
pub(crate) mod metrics;
pub(crate) mod operations;
pub(crate) mod readme;
pub(crate) mod replay;

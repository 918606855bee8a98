//! What stands before a store that is far away, so that it is asked no more than it has to be.

pub(crate) mod breaker;
pub(crate) mod denials;

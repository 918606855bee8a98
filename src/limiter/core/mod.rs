//! What a limiter is made of, below everything that it does.

pub(in crate::limiter) mod comparison;
pub(in crate::limiter) mod held;
pub(in crate::limiter) mod missing;
pub(in crate::limiter) mod share;
pub(in crate::limiter) mod tiers;
pub(in crate::limiter) mod write_back;

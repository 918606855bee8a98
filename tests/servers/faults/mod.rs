//! When the store fails: no request waits past its deadline, no key gets more than its share, and the store is in use
//! again soon.

mod blocked_handlers;
mod breaker;
mod error_codes;
mod fallback;
mod fallback_settlements;
mod load;
mod misconfigured;
mod outages;
mod per_policy;
mod refunds;
mod settlements;
mod shutdown;
mod support;
mod waiting;

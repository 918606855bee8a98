//! Leases: units of hot keys that are charged in the store ahead of need, and spent in process.
//!
//! A lease is an ordinary [`Op::Acquire`](crate::store::Op::Acquire) of several requests, which travels in the same batches as all
//! others; no script knows of leases. `demand` finds hot keys, and `table` has them. A `leased_key` decides requests by the units
//! that it holds, each lease in a `held_lease`, and says when another one is due. `grant` requests it, hands what is charged to its
//! key, and refunds what is left of leases when that is due.
//!
//! Only a request whose every counter charges under a limit with a lease, or is a ban, is decided by a lease. Everything else is
//! up to the store, as without leases.

pub(super) use self::table::{LeaseDecision, Leases, ResponseRecorder};

mod demand;
mod grant;
mod held_lease;
mod leased_key;
#[cfg(test)]
mod simulation;
mod table;
#[cfg(test)]
mod tests;

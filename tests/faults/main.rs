//! When the store is at fault: nobody waits past his deadline, nobody gets more than his share, and all is well again soon.

#![allow(missing_docs)]

mod breaker;
mod calls;
mod codes;
mod connections;
mod fallback;
mod give_backs;
mod load;
mod misconfigured;
mod outages;
mod policies;
mod probes;
mod settling;
mod shutdown;
mod support;
#[path = "../common/until.rs"]
mod until;
mod waiting;
mod write_back;

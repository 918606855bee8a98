//! When the store fails: no request waits past its deadline, no key gets more than its share, and the store is in use
//! again soon.

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
mod settlements;
mod settling;
mod shutdown;
mod support;
#[path = "../common/until.rs"]
mod until;
mod waiting;
mod write_back;

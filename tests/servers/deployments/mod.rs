//! Every kind of Redis deployment.

mod addresses;
mod ping;
use tollgate_tests::results;
use tollgate_tests::rights;
mod sentinel;
mod support;
mod tls;
use tollgate_tests::until;

//! A configuration file that changes while requests are served.

#![allow(missing_docs)]

mod bad_files;
mod every_log;
mod four_processes;
mod load;
mod many_reloads;
mod observed;
#[path = "../common/plain_http.rs"]
mod plain_http;
#[path = "../examples/process.rs"]
#[allow(dead_code, reason = "the tests of examples use the rest")]
mod process;
mod several;
mod shipped;
mod triggers;
#[path = "../common/until.rs"]
mod until;
mod writes;

//! A configuration file that changes while requests are served.

mod bad_files;
mod every_log;
mod four_processes;
mod load;
mod many_reloads;
mod observed;
use tollgate_tests::example as process;
use tollgate_tests::plain_http;
mod several;
mod shipped;
mod triggers;
use tollgate_tests::until;
mod writes;

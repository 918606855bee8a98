//! Overrides: the limit of one key, until an instant or for good, set while requests are served.

mod applying;
mod processes;
mod support;
mod waiting;

//! The admin API, called by curl.

use crate::printed::{page::Page, pages::manifest, session::Session};
use tollgate_tests::prelude::*;

pub(crate) fn run(page: &mut Page) {
    manifest(page);
    run_sessions(page);
}

/// Runs the commands, and compares the log of the service that they start.
pub(crate) fn run_sessions(page: &mut Page) {
    let mut session = Session::start(Timers::Stopped);
    while let Some(block) = page.next() {
        match &*block.language {
            "text" => session.log(page, &block),
            _ => session.run(page, &block),
        }
    }
}

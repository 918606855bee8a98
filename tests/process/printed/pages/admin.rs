//! The admin API, called by curl.

use testkit::Timers;

use crate::printed::{manifests, page::Page, session::Session};

pub(crate) fn run(page: &mut Page) {
    manifests::check(&page.expect("toml"));
    let mut session = Session::start(Timers::Stopped);
    while let Some(block) = page.next() {
        match &*block.language {
            "text" => session.log(page, &block),
            _ => session.run(page, &block),
        }
    }
}
